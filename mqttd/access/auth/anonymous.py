"""Anonymous clients: whether those that give no user name may come in, or whatever name they give.

The promise: ``loopback`` (the default) admits only peers on this machine, that is
127.0.0.0/8, ::1, either of them in IPv4-mapped form, and Unix socket peers.  An address that
cannot be read is not on this machine.  ``any`` believes every user name that the modules before it
left to it, as mosquitto's ``allow_anonymous`` does, and a warning says so at the start.
"""

from __future__ import annotations

from collections.abc import Mapping

from zope.interface import implementer

from mqttd.interfaces import IAuthenticator
from mqttd.net.addresses import is_loopback
from mqttd.types import AUTH_IGNORE, AUTH_OK, AuthVerdict, ClientInfo

__all__ = ["Anonymous"]

_CHOICES = ("never", "loopback", "always", "any")


@implementer(IAuthenticator)
class Anonymous:
    """Accepts clients without a user name; option ``allow``: never, loopback, always or any."""

    def __init__(self) -> None:
        self.allow = "never"

    def init(self, opts: Mapping[str, object]) -> None:
        """Take the option ``allow``; ValueError if it is none of the four."""
        allow = opts.get("allow", "loopback")
        if allow not in _CHOICES:
            raise ValueError(f"auth.anonymous: {allow!r}: expected one of {', '.join(_CHOICES)}")
        self.allow = str(allow)

    def check(self, client: ClientInfo, password: bytes | None) -> AuthVerdict:
        """OK for an anonymous client that may come in, IGNORE for all others."""
        if self.allow == "any":
            return AUTH_OK
        if client.username is not None or self.allow == "never":
            return AUTH_IGNORE
        if self.allow == "always" or is_loopback(client.peerhost):
            return AUTH_OK
        return AUTH_IGNORE

    def description(self) -> str:
        """Who comes in without a user name."""
        who = {
            "never": "nobody without a user name",
            "loopback": "anybody on this machine without a user name",
            "always": "anybody without a user name",
            "any": "anybody under any user name",
        }
        return f"anonymous: {who[self.allow]}"
