"""What differs from listener to listener, in one record for each.

    broker.listeners["ssl:devices"] --> Listener: versions, mountpoint, limits, gate, times

The record of a connection is looked up by the name of its listener, at CONNECT and at the end;
where there is none, nothing but the settings of the broker holds. A record is replaced as a whole
when the listener is given other settings: connections keep what they began with.
"""

from __future__ import annotations

from collections.abc import Callable

from mqttd.session.channel.limits import Limits

__all__ = ["FlappingRule", "Listener"]


class FlappingRule:
    """How often is too often: `count` disconnects in `window` seconds, banned for `ban` seconds."""

    def __init__(self, count: int, window: float, ban: float) -> None:
        self.count: int = count
        self.window: float = window
        self.ban: float = ban


class Listener:
    """One listener as the broker sees it.

    `name` is `KIND:NAME`; `versions` the MQTT versions it takes (None: all); `mountpoint` the
    template of its clients' prefix (empty: none); `limits` the rates and sizes of its connections;
    `gate(address)` says whether an address may connect, where only a PROXY header tells it (None:
    all may); `connect_timeout` is milliseconds from an accepted connection to its CONNECT, 0 where
    the settings say it; `flapping` is None where nobody is banned for coming and going;
    `durability` is a class of `mqttd.storage.durability`, -1 where the settings say it.
    """

    def __init__(
        self,
        name: str,
        versions: frozenset[int] | None = None,
        mountpoint: str = "",
        limits: Limits | None = None,
        gate: Callable[[str], bool] | None = None,
        connect_timeout: int = 0,
        flapping: FlappingRule | None = None,
        durability: int = -1,
    ) -> None:
        self.name: str = name
        self.versions: frozenset[int] | None = versions
        self.mountpoint: str = mountpoint
        self.limits: Limits | None = limits
        self.gate: Callable[[str], bool] | None = gate
        self.connect_timeout: int = connect_timeout
        self.flapping: FlappingRule | None = flapping
        self.durability: int = durability
