"""Attacks on a broker, a file each, that measurements and tests open and stop.

    attack = wrong_passwords.open_attack(port)     begins, in threads of its own
    attack.stop()                                  ends it, closes its connections; what was sent

They come from `CROWD`, so that honest clients have another address of this machine (Linux). They
take a port of 127.0.0.1 and need the standard library alone.
"""
