"""What the settings of a listener say, in the terms of those who hold to it.

    accept_gate    who may come in, and how fast: asked by what accepts connections
    record_of      versions, mountpoint, rates, address rules, times: the broker's record

Behind a proxy the address is known only when the PROXY header has come: the rules are the broker's
to ask then, and what accepts connections has the rate alone.
"""

from __future__ import annotations

from typing import Any, Final

from mqttd.config.schema import SocketListener
from mqttd.session.channel.limits import Limits
from mqttd.session.channel.listener import FlappingRule, Listener
from mqttd.transports.admission import Admission

__all__ = ["accept_gate", "record_of"]

_VERSIONS: Final = {"3.1": 3, "3.1.1": 4, "5.0": 5}
#: As `mqttd.storage.durability` has them.
_DURABILITY: Final = {"": -1, "none": 0, "os": 1, "fsync": 2}
_ALL: Final = [(True, None)]


def accept_gate(settings: Any, now: int) -> Admission | None:
    """What is asked before a connection is accepted; None where all may come (`now` in ms)."""
    rules = _ALL if _is_proxied(settings) else _rules(settings)
    if settings.accept_rate or len(rules) > 1:
        return Admission(rules, settings.accept_rate, now)
    return None


def record_of(name: str, settings: Any, mountpoint: str, now: int) -> Listener:
    """The record of a listener that is called `name` (`now` in milliseconds)."""
    versions = frozenset(_VERSIONS[text] for text in settings.protocol_versions)
    rates = (
        settings.bytes_rate,
        settings.messages_rate,
        settings.all_bytes_rate,
        settings.all_messages_rate,
        settings.send_rate,
    )
    limits = None
    if any(rates) or settings.max_packet_size:
        limits = Limits(now, *rates, settings.burst, settings.max_packet_size)
    flapping = None
    if settings.flapping_disconnects:
        flapping = FlappingRule(
            settings.flapping_disconnects, settings.flapping_window, settings.flapping_ban
        )
    rules = _rules(settings)
    gated = _is_proxied(settings) and len(rules) > 1
    return Listener(
        name,
        versions if len(versions) < len(_VERSIONS) else None,
        mountpoint,
        limits,
        Admission(rules, 0, now).allows if gated else None,
        int(settings.connect_timeout * 1000),
        flapping,
        _DURABILITY[settings.durability],
    )


def _rules(settings: Any) -> list[Any]:
    return settings.rules if isinstance(settings, SocketListener) else _ALL


def _is_proxied(settings: Any) -> bool:
    return bool(getattr(settings, "proxy_protocol", ()))
