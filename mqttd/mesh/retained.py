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
from mqttd.codec.properties import decode_varint, varint
from mqttd.mesh.frames import DELETE, RETAIN, frame, numbered, packed, unpacked

__all__ = [
    "FOLLOWED",
    "OF_ALL",
    "Who",
    "delete_frame",
    "here",
    "key_of",
    "retain_frame",
    "retained_from",
]

#: Flags: the packet follows; it is told with all there are.
FOLLOWED: Final = 1
_V5: Final = 2
OF_ALL: Final = 4
#: Milliseconds that are since 1970 from here on; of a `Broker.now` they were 34 years.
_DATED: Final = 1 << 40
#: When it expires, where it never does; and how far a body is that begins with flags and that.
_NEVER: Final = b"\x08" + bytes(8) + b"\x04" + bytes(4)
_WHEN: Final = 16


class Who:
    """Who published last: most messages are of the publisher of the one before."""

    __slots__ = ("listener", "peerhost", "said", "source", "username")

    def __init__(self) -> None:
        self.source: str = ""
        self.username: str | None = None
        self.peerhost: str = ""
        self.listener: str = ""
        #: As frames say it.
        self.said: bytes = bytes(4)

    def of(self, kept: Retained) -> bytes:
        """What is said of the publisher of this one."""
        if (
            kept.source != self.source
            or kept.username != self.username
            or kept.peerhost != self.peerhost
            or kept.listener != self.listener
        ):
            name = b"" if kept.username is None else b"\0" + kept.username.encode()
            self.said = packed(
                [kept.source.encode(), name, kept.peerhost.encode(), kept.listener.encode()]
            )
            self.source = kept.source
            self.username = kept.username
            self.peerhost = kept.peerhost
            self.listener = kept.listener
        return self.said

    def heard(self, source: bytes, username: bytes, peerhost: bytes, listener: bytes) -> None:
        """That is said of another one."""
        self.said = b""  # of nobody, should these be no names
        self.source = source.decode()
        self.username = username[1:].decode() if username else None
        self.peerhost = peerhost.decode()
        self.listener = listener.decode()
        self.said = packed([source, username, peerhost, listener])


def key_of(topic: str) -> bytes:
    """A topic as a PUBLISH begins with it."""
    raw = topic.encode()
    return len(raw).to_bytes(2, "big") + raw


def retain_frame(stamp: int, flags: int, kept: Retained, since: int, who: Who) -> bytes:
    """What is said of a retained message; `since`: see `Neighbour.since`."""
    when = _NEVER
    if kept.expires_at or kept.expiry_at:
        expires_at = kept.expires_at + since if kept.expires_at else 0
        when = packed([expires_at.to_bytes(8, "big"), kept.expiry_at.to_bytes(4, "big")])
    wire = kept.wire
    parts = [
        stamp.to_bytes(8, "big"),
        b"\x01",
        ONE_BYTE[flags | (_V5 if kept.v5 else 0)],
        when,
        who.of(kept),
        varint(len(wire)),
        wire,
    ]
    return frame(RETAIN, b"".join(parts))


def delete_frame(stamp: int, flags: int, topic: str) -> bytes:
    """What is said of a topic that has no retained message any more."""
    return numbered(DELETE, stamp, ONE_BYTE[flags] + topic.encode())


def retained_from(body: bytes, who: Who) -> tuple[int, Retained]:
    """What was said of a retained message, behind the stamp: the flags, and the message.

    When it expires is as it was said, see `here`.
    """
    size = len(body)
    at = 0
    length = 0
    if size > _WHEN and body[0] == 1 and body[2] == 8 and body[11] == 4:
        said = who.said
        if said and body.startswith(said, _WHEN):
            length, at = decode_varint(body, _WHEN + len(said), size)
    expires_at = 0
    expiry_at = 0
    if length and at + length == size:
        flags = body[1]
        if not body.startswith(_NEVER, 2):
            expires_at = int.from_bytes(body[3:11], "big")
            expiry_at = int.from_bytes(body[12:16], "big")
        wire = body[at:]
    else:
        fields = unpacked(body)
        if len(fields) != 8:
            raise ValueError(f"{len(fields)} values, expected 8")
        flags = fields[0][0]
        expires_at = int.from_bytes(fields[1], "big")
        expiry_at = int.from_bytes(fields[2], "big")
        who.heard(fields[3], fields[4], fields[5], fields[6])
        wire = fields[7]
    qos = wire[0] >> 1 & 3
    made = Retained(wire, qos, flags & _V5 != 0, 0, 0, who.source)
    if qos:
        id_at = packet_id_at(wire)
        made.id_at = id_at
        made.packet_id = wire[id_at] << 8 | wire[id_at + 1]
    made.expires_at = expires_at
    made.expiry_at = expiry_at
    made.username = who.username
    made.peerhost = who.peerhost
    made.listener = who.listener
    return flags, made


def here(expires_at: int, since: int) -> int:
    """When it expires by the broker's milliseconds; `since`: see `Ground.since`."""
    # 0 is never: what was over before this machine began is over.
    return max(expires_at - since, 1) if expires_at >= _DATED else expires_at
