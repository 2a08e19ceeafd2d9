"""What plugins that authenticate against a back end have in common.

    settings     keys that all of them have; secrets; no password over an open network
    templates    ${username} and its like in queries, keys and URLs: values, never text
    hashes       password hashes of other systems
    rules        rows and documents as rules in the grammar of acl.conf
    asking       the module of the authentication chain: from a client to a verdict
    pool         connections of libraries that block
    sql          all of it for SQL data bases

It is here, and not in one of the plugins, so that a plugin of anybody's may use it: beside
`mqttd.interfaces` and `mqttd.types`, and with the same promise. (In ``mqttd_plugins``, beside the
plugins, Twisted would import it in search of declarations.) Nothing here knows the broker.
"""
