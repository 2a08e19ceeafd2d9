"""What neighbours say to one another: packets framed as MQTT frames them.

    PUBLISH        0x30-0x3F   a packet of MQTT 5.0, forwarded as bytes; QoS 1 and 2 are counted
    all else       0x01-0x0F   type, remaining length, body; see the constants

Type 0 is reserved in MQTT, so one stream holds both, and a run of PUBLISHes that a client has sent
is a run of frames as it is. What is *counted* is acknowledged by its number: `ACK` says how many
of the counted frames of a stream are taken.

Promise: sans-I/O; the peer is the same program, one that has proved it or on the same machine, so
a frame that cannot be is a fault (ValueError), not an attack; of a frame that has not wholly come
nothing is looked at.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.frame import ONE_BYTE, header
from mqttd.codec.reasons import MalformedPacket
from mqttd.codec.serializer import varint

__all__ = [
    "ABOUT",
    "ACK",
    "ADD",
    "ANSWER",
    "ASK",
    "AT",
    "BEGIN",
    "CALL",
    "COUNTED",
    "CREDIT",
    "DELETE",
    "DOWN",
    "DOWN_END",
    "END",
    "FIGURES",
    "FOLLOWS",
    "HAVE",
    "HELLO",
    "LANE",
    "MEMBER",
    "OLDER",
    "OPEN",
    "PAUSE",
    "REMOVE",
    "REST",
    "RESUME",
    "RETAIN",
    "RUN1",
    "SEEN",
    "STATE",
    "STUCK",
    "TAKEN",
    "TELL",
    "UP",
    "UP_END",
    "frame",
    "number_of",
    "numbered",
    "packed",
    "packed_frame",
    "split",
    "unpacked",
]

#: So many counted frames are taken: a number.
ACK: Final = 0x01
#: Filters that have a first subscriber, and those that have lost their last: texts. Counted.
ADD: Final = 0x02
REMOVE: Final = 0x03
#: All filters follow as `ADD`, and then all of them have been told.
BEGIN: Final = 0x04
END: Final = 0x05
#: The last message of a topic: when, source, user, address, listener, the packet. Counted.
RETAIN: Final = 0x06
#: It has none any more: when, topic. Counted.
DELETE: Final = 0x07
#: Who has published the packet that follows: source, user, message id.
ABOUT: Final = 0x08
#: The packet that follows is for a member of this shared group: filter, source.
MEMBER: Final = 0x09
#: Something for all workers to do: a name, and what it needs as JSON. Counted.
CALL: Final = 0x0A
#: Counters and gauges of this worker, or how much this node has, as JSON.
FIGURES: Final = 0x0B
#: A connection that stays where it was accepted: number, listener, host, port, identity, bytes.
OPEN: Final = 0x0C
#: Who is there, the first frame between nodes: see `mqttd.cluster.links.hello`.
HELLO: Final = 0x0D
#: All routes up to this revision of etcd are in the tables of this node: a number.
SEEN: Final = 0x0E
#: About a session that moves between nodes, see `mqttd.cluster.sessions.moves`. Counted, and kept.
STATE: Final = 0x0F
#: With 0x10 and more, what OPEN has begun: bytes from the client and to it, and the ends of both.
UP: Final = 0x10
UP_END: Final = 0x11
DOWN: Final = 0x12
DOWN_END: Final = 0x13
#: The client is not to be read from, or again; so many bytes to it are written.
PAUSE: Final = 0x14
RESUME: Final = 0x15
CREDIT: Final = 0x16
#: The number of the last message that is taken and kept, and that of the last one before the next
#: that comes, each with its book: see `mqttd.mesh.ferry`.
HAVE: Final = 0x17
AT: Final = 0x18
#: So many bytes follow of PUBLISHes of QoS 0 and MQTT 3.1.1, whole ones. Between workers only.
OLDER: Final = 0x19
#: One of QoS 1, of the version (4, 5) that comes first, equal but for packet ids and payloads; with
#: 8 beside the version a span (`mqttd.codec.spans`). Each of its packets is counted. Between
#: workers only.
RUN1: Final = 0x1A
#: What an operator wants to know, and a piece of the answer: see `mqttd.cluster.admin.asking`.
#: Between nodes only.
ASK: Final = 0x1B
ANSWER: Final = 0x1C
#: A piece of what goes by the second lane of a link: `mqttd.mesh.lane`. Between nodes only.
LANE: Final = 0x1D
#: The packet that follows had RETAIN set, if it is of this topic: its length, and it.
FOLLOWS: Final = 0x1E
#: Messages of QoS 1 (1) and 2 (2) that come wait for a store that takes nothing: the sum of these.
#: Between nodes of version 3; between workers, which have one lane, 1 or 0.
STUCK: Final = 0x1F
#: Say by a `TAKEN` when this is reached. Between workers, and nodes of version 4.
TELL: Final = 0x20
#: So many bytes of a link have been handled, of all that has come by it. Between these.
TAKEN: Final = 0x21
#: Who publishes to here waits (1), or goes on (0): what is behind this process cannot follow.
#: Between these.
REST: Final = 0x22

COUNTED: Final = frozenset((ADD, REMOVE, RETAIN, DELETE, CALL, STATE))


def frame(kind: int, body: bytes) -> bytes:
    """One frame."""
    return ONE_BYTE[kind] + varint(len(body)) + body


def numbered(kind: int, number: int, body: bytes = b"") -> bytes:
    """A frame whose body begins with a number."""
    return frame(kind, number.to_bytes(8, "big") + body)


def number_of(body: bytes) -> int:
    """The number with which a body begins."""
    if len(body) < 8:
        raise ValueError(f"{len(body)} bytes where a number is expected")
    return int.from_bytes(body[:8], "big")


def packed(fields: list[bytes]) -> bytes:
    """Several values one behind the other, each with its length before it."""
    return b"".join(_parts(fields))


def packed_frame(kind: int, fields: list[bytes]) -> bytes:
    """One frame whose body is these fields, `packed`; a large one is copied once."""
    parts = _parts(fields)
    return b"".join([ONE_BYTE[kind] + varint(sum(map(len, parts))), *parts])


def _parts(fields: list[bytes]) -> list[bytes]:
    parts: list[bytes] = []
    for field in fields:
        parts.append(varint(len(field)))
        parts.append(field)
    return parts


def unpacked(body: bytes) -> list[bytes]:
    """What was `packed`; raises ValueError."""
    fields: list[bytes] = []
    at = 0
    end = len(body)
    while at < end:
        size = 0
        shift = 0
        while True:
            if at >= end or shift > 28:
                raise ValueError("a length is cut off")
            byte = body[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if at + size > end:
            raise ValueError("a value is cut off")
        fields.append(body[at : at + size])
        at += size
    return fields


def split(data: bytes, pos: int) -> tuple[int, int]:
    """Where the body of the frame at `pos` begins, and where it ends.

    (0, 0) while it has not wholly come. Raises ValueError.
    """
    try:
        length, body = header(data, pos, len(data))
    except MalformedPacket as error:
        raise ValueError(str(error)) from None
    if not body or body + length > len(data):
        return 0, 0
    return body, body + length
