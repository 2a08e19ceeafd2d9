"""What is said of a retained message: that a topic has one, or has none any more.

    RETAIN  stamp, flags, when it expires, who published it and where, the packet
    DELETE  stamp, flags, topic

The stamp says when that was (`mqttd.mesh.changes`), 0 where nobody remembers. When it expires is
told in milliseconds since 1970: `Broker.now` is another number on each machine. Nodes below version
4 say and take it as theirs is.
"""

from __future__ import annotations

from typing import Final

from mqttd.broker.retained.retained import Retained
from mqttd.codec.frame import ONE_BYTE, packet_id_at
from mqttd.mesh.frames import DELETE, RETAIN, numbered, packed, unpacked

__all__ = ["FOLLOWED", "OF_ALL", "delete_frame", "key_of", "retain_frame", "retained_from"]

#: Flags: the packet follows; it is told with all there are.
FOLLOWED: Final = 1
_V5: Final = 2
OF_ALL: Final = 4
#: Milliseconds that are since 1970 from here on; of a `Broker.now` they were 34 years.
_DATED: Final = 1 << 40


def key_of(topic: str) -> bytes:
    """A topic as a PUBLISH begins with it."""
    raw = topic.encode()
    return len(raw).to_bytes(2, "big") + raw


def retain_frame(stamp: int, flags: int, kept: Retained, since: int) -> bytes:
    """What is said of a retained message; `since`: see `Neighbour.since`."""
    expires_at = kept.expires_at + since if kept.expires_at else 0
    username = kept.username
    fields = [
        ONE_BYTE[flags | (_V5 if kept.v5 else 0)],
        expires_at.to_bytes(8, "big"),
        kept.expiry_at.to_bytes(4, "big"),
        kept.source.encode(),
        b"" if username is None else b"\0" + username.encode(),
        kept.peerhost.encode(),
        kept.listener.encode(),
        kept.wire,
    ]
    return numbered(RETAIN, stamp, packed(fields))


def delete_frame(stamp: int, flags: int, topic: str) -> bytes:
    """What is said of a topic that has no retained message any more."""
    return numbered(DELETE, stamp, ONE_BYTE[flags] + topic.encode())


def retained_from(body: bytes, since: int) -> tuple[int, Retained]:
    """What was said of a retained message: the flags, and the message.

    since: what is added to the broker's milliseconds to get those since 1970.
    """
    fields = unpacked(body)
    if len(fields) != 8:
        raise ValueError(f"{len(fields)} values, expected 8")
    said, expires_at, expiry_at, source, username, peerhost, listener, wire = fields
    flags = said[0]
    qos = wire[0] >> 1 & 3
    made = Retained(wire, qos, flags & _V5 != 0, 0, 0, source.decode())
    if qos:
        id_at = packet_id_at(wire)
        made.id_at = id_at
        made.packet_id = wire[id_at] << 8 | wire[id_at + 1]
    at = int.from_bytes(expires_at, "big")
    # 0 is never: what was over before this machine began is over.
    made.expires_at = max(at - since, 1) if at >= _DATED else at
    made.expiry_at = int.from_bytes(expiry_at, "big")
    made.username = username[1:].decode() if username else None
    made.peerhost = peerhost.decode()
    made.listener = listener.decode()
    return flags, made
