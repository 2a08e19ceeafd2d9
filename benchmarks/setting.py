"""What a row asks of a broker's configuration, in words that hold for every broker.

    door     tcp, tls or ws: where mqttload comes in
    rules    that many access rules, and clients with a password; the last rule is the one that fits
    own      a client may publish below `OWN`, which names it, and nowhere else
    plugin   "noop" a callback at message.publish that does nothing, a peer's own where it has one
             (`benchmarks.peers`); of mqttd: "held" one that holds every acknowledgement until the
             end of the turn, "spark" every publish in the event log
    gather   of mqttd: False has the engine never rest (`output.gather`)
    store    sessions and what waits for them are kept on disk: "os" or "fsync" is what mqttd's
             acknowledgements promise of it; mosquitto saves when it stops and every 30 minutes
    workers  of mqttd: so many processes serve the clients, all on the broker's core

`Setting.arguments` is what mqttload has to know of it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal

__all__ = [
    "OWN",
    "PASSWORD",
    "PLAIN",
    "USER",
    "Door",
    "Plugin",
    "Setting",
    "Store",
    "certificates",
    "password_line",
    "rule_topics",
]

Door = Literal["tcp", "tls", "ws"]
Plugin = Literal["", "noop", "held", "spark"]
Store = Literal["", "os", "fsync"]

OWN: Final = "dev/%c"
USER: Final = "bench"
PASSWORD: Final = "as long as they usually are"


@dataclass(frozen=True, slots=True)
class Setting:
    """See the module."""

    door: Door = "tcp"
    rules: int = 0
    own: bool = False
    plugin: Plugin = ""
    gather: bool = True
    store: Store = ""
    workers: int = 1

    def arguments(self) -> list[str]:
        """mqttload's arguments for it."""
        door = {"tcp": [], "tls": ["--tls"], "ws": ["--ws"]}[self.door]
        return [*door, *(["--username", USER, "--password", PASSWORD] if self.rules else [])]

    def of_others(self) -> Setting:
        """What of it a broker that is not mqttd can be asked."""
        plugin: Plugin = "noop" if self.plugin == "noop" else ""
        return replace(self, plugin=plugin, gather=True, workers=1)

    def __str__(self) -> str:
        named: list[str] = [self.door if self.door != "tcp" else "", self.plugin]
        named += [f"{self.rules:,} rules" if self.rules else ""]
        named += ["a rule with %c" if self.own else ""]
        named += ["" if self.gather else "without rests"]
        named += [f"stored ({self.store})" if self.store else ""]
        named += [f"{self.workers} workers"] if self.workers > 1 else []
        return ", ".join(filter(None, named)) or "plain"


PLAIN: Final = Setting()


def rule_topics(count: int) -> list[str]:
    """The topics of so many rules: none but the last fits what is published.

    Every other one is about another site, and every other shares two levels with what is published,
    so that whoever asks one rule after the other sees that only at the third.
    """
    return [
        *(f"+/t/line{n}/#" if n % 2 else f"site{n}/+/state/#" for n in range(count - 1)), "#"
    ]  # fmt: skip


def password_line() -> str:
    """The user as mosquitto_passwd writes it, which every broker here reads."""
    salt = b"twelve bytes"
    digest = hashlib.pbkdf2_hmac("sha512", PASSWORD.encode(), salt, 101)
    parts = (base64.b64encode(part).decode() for part in (salt, digest))
    return f"{USER}:$7$101${'$'.join(parts)}\n"


@cache
def certificates() -> Mapping[str, str]:
    """ca.crt, server.crt and server.key, the same for all brokers of a session."""
    from cryptography.hazmat.primitives.serialization import Encoding

    from tests.support.certificates import Authority

    authority = Authority()
    server = authority.server("localhost")
    return {
        "ca.crt": authority.certificate.public_bytes(Encoding.PEM).decode(),
        "server.crt": server.pem().decode(),
        "server.key": server.key_pem().decode(),
    }
