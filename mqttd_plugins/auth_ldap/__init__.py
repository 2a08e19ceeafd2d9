"""The declaration of the plugin `auth_ldap`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["auth_ldap"]

auth_ldap = MqttdPlugin(
    name="auth_ldap",
    version="1.0.0",
    description="Authenticates clients against an LDAP directory.",
    factory="mqttd_plugins.auth_ldap.plugin:AuthLdap",
    config_schema="mqttd_plugins.auth_ldap.plugin:Settings",
)
