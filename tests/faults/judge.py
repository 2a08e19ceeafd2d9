"""A plugin that judges log-ins and access, and without which nobody comes in or may do anything.

A broker that asks it must not lose what is kept because it goes: it ends before the sessions do.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ACL", "FILES", "SETTINGS", "login"]

FILES: Final = {
    "plugins/judge.py": '''\
"""Knows the crowd: half of it at once, half of it in a thread."""

from zope.interface import implementer

from mqttd.interfaces import IAccessControl, IAuthenticator, IPlugin
from mqttd.plugins.declare import MqttdPlugin
from mqttd.types import AuthError, AuthOk, Verdict

judge = MqttdPlugin(name="judge", version="1.0", description="Knows the crowd.",
                    factory="mqttd_plugins.judge:Judge")


@implementer(IPlugin, IAuthenticator, IAccessControl)
class Judge:
    depends_on_qos_retain = False

    def load(self, handle, config):
        self.handle = handle
        handle.register_mod("auth", "judge", self, seq=0)
        handle.register_mod("acl", "judge", self, seq=0)

    def init(self, opts):
        pass

    def check(self, client, password):
        if len(client.client_id) % 2:
            return self.verdict(client.username, password)
        return self.handle.in_thread(self.verdict, client.username, password)

    def verdict(self, username, password):
        if username is None or password != b"secret of " + username.encode():
            return AuthError("not of the crowd")
        return AuthOk()

    def check_acl(self, client, action, topic):
        # Whose session was restored, and is not back, comes from nowhere.
        if client.peerhost and topic[:2] in ("c/", "w/", "r/", "l/", "u/"):
            return Verdict.ALLOW
        return Verdict.DENY

    def reload_acl(self):
        pass

    def description(self):
        return "judge: knows the crowd"

    def unload(self):
        pass
'''
}
ACL: Final = "{deny, all}.\n"
SETTINGS: Final[dict[str, Any]] = {
    "plugins": {"load": ["judge"]},
    # A verdict comes late where the machine is busy with something else.
    "auth": {"anonymous": "never", "backend": {"deadline": "60s"}},
}


def login(name: str) -> dict[str, Any]:
    """What somebody of the crowd says in CONNECT."""
    return {"username": name, "password": b"secret of " + name.encode()}
