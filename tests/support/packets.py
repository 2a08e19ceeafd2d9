"""MQTT packets by hand: an independent builder and a strict independent reader.

Nothing here knows the broker's own codec, so a fault in that codec cannot hide itself.

    builder   connect(...), publish(...), subscribe(...) ... -> bytes
              every field can be made wrong on purpose (flags, levels, reserved bits, lengths)
    reader    read(first, body, version) -> Packet, or WireError

The reader plays the strict client: it refuses wrong fixed-header flags, packets only a client may
send, over-long variable byte integers, property lengths that do not add up, properties in the wrong
packet or given twice, reason codes a packet may not carry, and bytes left over. Read it with the
specification open: MQTT 3.1.1 and MQTT 5.0, chapters 2 and 3.
"""

from __future__ import annotations

from asyncio import StreamReader
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = [
    "Cursor",
    "Packet",
    "Will",
    "WireError",
    "auth",
    "connect",
    "disconnect",
    "fixed",
    "name_of",
    "properties",
    "prop",
    "puback",
    "pubcomp",
    "publish",
    "pubrec",
    "pubrel",
    "pingreq",
    "read",
    "receive",
    "subscribe",
    "unsubscribe",
    "utf8",
    "varint",
]

V31: Final = 3
V311: Final = 4
V5: Final = 5

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15
WILL: Final = 0  # not a packet: the place of the will's properties inside CONNECT

NAMES: Final = (
    "WILL CONNECT CONNACK PUBLISH PUBACK PUBREC PUBREL PUBCOMP SUBSCRIBE SUBACK "
    "UNSUBSCRIBE UNSUBACK PINGREQ PINGRESP DISCONNECT AUTH"
).split()

PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_ID: Final = 0x0B
SESSION_EXPIRY: Final = 0x11
ASSIGNED_CLIENT_ID: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTH_METHOD: Final = 0x15
AUTH_DATA: Final = 0x16
REQUEST_PROBLEM_INFO: Final = 0x17
WILL_DELAY: Final = 0x18
REQUEST_RESPONSE_INFO: Final = 0x19
RESPONSE_INFO: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_AVAILABLE: Final = 0x28
SUBSCRIPTION_ID_AVAILABLE: Final = 0x29
SHARED_AVAILABLE: Final = 0x2A

_REPLIES = {CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH}

# id -> (wire type, places it may stand in); MQTT 5.0 table 2-4
PROPERTIES: Final[dict[int, tuple[str, set[int]]]] = {
    PAYLOAD_FORMAT: ("byte", {PUBLISH, WILL}),
    MESSAGE_EXPIRY: ("four", {PUBLISH, WILL}),
    CONTENT_TYPE: ("utf8", {PUBLISH, WILL}),
    RESPONSE_TOPIC: ("utf8", {PUBLISH, WILL}),
    CORRELATION_DATA: ("binary", {PUBLISH, WILL}),
    SUBSCRIPTION_ID: ("varint", {PUBLISH, SUBSCRIBE}),
    SESSION_EXPIRY: ("four", {CONNECT, CONNACK, DISCONNECT}),
    ASSIGNED_CLIENT_ID: ("utf8", {CONNACK}),
    SERVER_KEEP_ALIVE: ("two", {CONNACK}),
    AUTH_METHOD: ("utf8", {CONNECT, CONNACK, AUTH}),
    AUTH_DATA: ("binary", {CONNECT, CONNACK, AUTH}),
    REQUEST_PROBLEM_INFO: ("byte", {CONNECT}),
    WILL_DELAY: ("four", {WILL}),
    REQUEST_RESPONSE_INFO: ("byte", {CONNECT}),
    RESPONSE_INFO: ("utf8", {CONNACK}),
    SERVER_REFERENCE: ("utf8", {CONNACK, DISCONNECT}),
    REASON_STRING: ("utf8", _REPLIES),
    RECEIVE_MAXIMUM: ("two", {CONNECT, CONNACK}),
    TOPIC_ALIAS_MAXIMUM: ("two", {CONNECT, CONNACK}),
    TOPIC_ALIAS: ("two", {PUBLISH}),
    MAXIMUM_QOS: ("byte", {CONNACK}),
    RETAIN_AVAILABLE: ("byte", {CONNACK}),
    USER_PROPERTY: ("pair", {CONNECT, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE} | _REPLIES),
    MAXIMUM_PACKET_SIZE: ("four", {CONNECT, CONNACK}),
    WILDCARD_AVAILABLE: ("byte", {CONNACK}),
    SUBSCRIPTION_ID_AVAILABLE: ("byte", {CONNACK}),
    SHARED_AVAILABLE: ("byte", {CONNACK}),
}

# what a broker may say in each packet; MQTT 5.0 section 2.4 and the tables of chapter 3
REASONS: Final[dict[int, set[int]]] = {
    CONNACK: {0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F},
    PUBACK: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    PUBREC: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    PUBREL: {0x00, 0x92},
    PUBCOMP: {0x00, 0x92},
    SUBACK: {0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    UNSUBACK: {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    DISCONNECT: {0, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3)},
    AUTH: {0x00, 0x18},
}

Props = Sequence[tuple[int, Any]]
Block = Props | bytes  # properties, or the ready-made content of a property block


class WireError(AssertionError):
    """The broker wrote bytes that no version of the standard allows."""


def name_of(packet_type: int) -> str:
    """The standard's name of a packet type."""
    return NAMES[packet_type]


# -- builder -----------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """A variable byte integer in its shortest form (MQTT 5.0 section 1.5.5)."""
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | 0x80 if value else low)
        if not value:
            return bytes(out)


def binary(data: bytes) -> bytes:
    """Two bytes of length, then `data`."""
    return len(data).to_bytes(2, "big") + data


def utf8(text: str | bytes) -> bytes:
    """A string field; give bytes to write something that is not UTF-8."""
    return binary(text.encode() if isinstance(text, str) else text)


def prop(identifier: int, value: Any) -> bytes:
    """One property: identifier and value, encoded by the identifier's wire type."""
    kind = PROPERTIES[identifier][0]
    head = varint(identifier)
    if kind == "byte":
        return head + bytes([value])
    if kind == "two":
        return head + int(value).to_bytes(2, "big")
    if kind == "four":
        return head + int(value).to_bytes(4, "big")
    if kind == "varint":
        return head + varint(value)
    if kind == "pair":
        return head + utf8(value[0]) + utf8(value[1])
    return head + utf8(value)


def properties(props: Block = ()) -> bytes:
    """A property block with its length; ready-made bytes are taken as the block's content."""
    body = props if isinstance(props, bytes) else b"".join(prop(i, v) for i, v in props)
    return varint(len(body)) + body


def fixed(first: int, *parts: bytes) -> bytes:
    """A whole packet from its first byte and the parts of its body."""
    body = b"".join(parts)
    return bytes([first]) + varint(len(body)) + body


@dataclass(frozen=True)
class Will:
    """The will a client leaves with its CONNECT."""

    topic: str | bytes
    payload: bytes = b"will"
    qos: int = 0
    retain: bool = False
    props: Block = ()


def connect(
    client_id: str | bytes = "",
    version: int = V311,
    *,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    props: Block = (),
    name: str | bytes | None = None,
    level: int | None = None,
    flags: int | None = None,
    first: int = 0x10,
    tail: bytes = b"",
) -> bytes:
    """A CONNECT; `flags` replaces the connect flags, `tail` is appended to the payload."""
    bits = 0x02 if clean else 0
    payload = utf8(client_id)
    if will is not None:
        bits |= 0x04 | will.qos << 3 | will.retain << 5
        if version == V5:
            payload += properties(will.props)
        payload += utf8(will.topic) + binary(will.payload)
    if username is not None:
        bits |= 0x80
        payload += utf8(username)
    if password is not None:
        bits |= 0x40
        payload += binary(password)
    return fixed(
        first,
        utf8(name if name is not None else "MQIsdp" if version == V31 else "MQTT"),
        bytes([version if level is None else level, bits if flags is None else flags]),
        keep_alive.to_bytes(2, "big"),
        properties(props) if version == V5 else b"",
        payload,
        tail,
    )


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int = 1,
    *,
    version: int = V311,
    retain: bool = False,
    dup: bool = False,
    props: Block = (),
) -> bytes:
    """A PUBLISH; the packet id is written only for a QoS above 0."""
    return fixed(
        0x30 | dup << 3 | qos << 1 | retain,
        utf8(topic),
        packet_id.to_bytes(2, "big") if qos else b"",
        properties(props) if version == V5 else b"",
        payload,
    )


def _ack(first: int, packet_id: int, version: int, reason: int, props: Block) -> bytes:
    tail = b""
    if version == V5 and (reason or props):
        tail = bytes([reason]) + (properties(props) if props else b"")
    return fixed(first, packet_id.to_bytes(2, "big"), tail)


def puback(packet_id: int, version: int = V311, reason: int = 0, props: Block = ()) -> bytes:
    """A PUBACK, in its shortest form."""
    return _ack(0x40, packet_id, version, reason, props)


def pubrec(packet_id: int, version: int = V311, reason: int = 0, props: Block = ()) -> bytes:
    """A PUBREC, in its shortest form."""
    return _ack(0x50, packet_id, version, reason, props)


def pubrel(packet_id: int, version: int = V311, reason: int = 0, props: Block = ()) -> bytes:
    """A PUBREL, in its shortest form."""
    return _ack(0x62, packet_id, version, reason, props)


def pubcomp(packet_id: int, version: int = V311, reason: int = 0, props: Block = ()) -> bytes:
    """A PUBCOMP, in its shortest form."""
    return _ack(0x70, packet_id, version, reason, props)


def subscribe(
    filters: Iterable[tuple[str | bytes, int]],
    packet_id: int = 1,
    *,
    version: int = V311,
    props: Block = (),
    first: int = 0x82,
) -> bytes:
    """A SUBSCRIBE of (filter, options byte) pairs; for 3.1.1 the options byte is the QoS."""
    return fixed(
        first,
        packet_id.to_bytes(2, "big"),
        properties(props) if version == V5 else b"",
        *(utf8(topic_filter) + bytes([options]) for topic_filter, options in filters),
    )


def unsubscribe(
    filters: Iterable[str | bytes],
    packet_id: int = 1,
    *,
    version: int = V311,
    props: Block = (),
    first: int = 0xA2,
) -> bytes:
    """An UNSUBSCRIBE."""
    return fixed(
        first,
        packet_id.to_bytes(2, "big"),
        properties(props) if version == V5 else b"",
        *(utf8(topic_filter) for topic_filter in filters),
    )


def pingreq() -> bytes:
    """A PINGREQ."""
    return b"\xc0\x00"


def disconnect(version: int = V311, reason: int = 0, props: Block = ()) -> bytes:
    """A DISCONNECT; reason and properties are written for 5.0 only, and only when given."""
    if version != V5 or not (reason or props):
        return b"\xe0\x00"
    return fixed(0xE0, bytes([reason]), properties(props) if props else b"")


def auth(reason: int = 0x18, props: Block = ()) -> bytes:
    """An AUTH (5.0 only)."""
    return fixed(0xF0, bytes([reason]), properties(props))


# -- reader ------------------------------------------------------------------------------------


@dataclass
class Packet:
    """One packet the broker sent, taken apart; fields that its type lacks keep their defaults."""

    type: int
    raw: bytes = field(repr=False)
    packet_id: int = 0
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    session_present: bool = False
    reason: int = 0
    reasons: list[int] = field(default_factory=list)
    props: list[tuple[int, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The standard's name of the packet."""
        return NAMES[self.type]

    def prop(self, identifier: int, default: Any = None) -> Any:
        """The value of a property, or `default` where it is absent."""
        return next((value for i, value in self.props if i == identifier), default)

    def all(self, identifier: int) -> list[Any]:
        """Every value of a property, in the order written."""
        return [value for i, value in self.props if i == identifier]


class Cursor:
    """Reads fields off the body of a packet of that name; what cannot be read is a WireError."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.pos = 0
        self.name = name

    def check(self, condition: bool, complaint: str) -> None:
        if not condition:
            raise WireError(f"{self.name}: {complaint}: {self.data[:80].hex(' ')}")

    @property
    def left(self) -> int:
        return len(self.data) - self.pos

    def take(self, count: int) -> bytes:
        self.check(self.left >= count, f"ends {count - self.left} bytes early")
        piece = self.data[self.pos : self.pos + count]
        self.pos += count
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            self.check(shift < 28, "variable byte integer of five bytes")
        self.check(shift == 0 or byte != 0, "variable byte integer is over-long")
        return value

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def utf8(self) -> str:
        data = self.binary()
        try:
            text = data.decode("utf-8", "strict")
        except UnicodeDecodeError as error:
            raise WireError(f"{self.name}: string is not UTF-8: {data!r}") from error
        self.check("\0" not in text, "string holds U+0000")
        return text

    def properties(self, place: int) -> list[tuple[int, Any]]:
        length = self.varint()
        self.check(length <= self.left, "property length exceeds the packet")
        end = self.pos + length
        found: list[tuple[int, Any]] = []
        while self.pos < end:
            identifier = self.varint()
            self.check(identifier in PROPERTIES, f"unknown property 0x{identifier:02x}")
            kind, places = PROPERTIES[identifier]
            self.check(place in places, f"property 0x{identifier:02x} has no place here")
            many = identifier == USER_PROPERTY or (
                identifier == SUBSCRIPTION_ID and place == PUBLISH
            )
            self.check(
                many or all(identifier != i for i, _ in found),
                f"property 0x{identifier:02x} is there twice",
            )
            found.append((identifier, self.value(kind)))
        self.check(self.pos == end, "property runs past the property length")
        return found

    def value(self, kind: str) -> Any:
        """The value of a property of this wire type."""
        if kind == "pair":
            return (self.utf8(), self.utf8())
        if kind == "utf8":
            return self.utf8()
        if kind == "binary":
            return self.binary()
        if kind == "varint":
            value = self.varint()
            self.check(value > 0, "subscription identifier 0")
            return value
        return self.number({"byte": 1, "two": 2, "four": 4}[kind])


async def receive(reader: StreamReader, version: int = V5) -> Packet:
    """A broker's next packet from a stream of asyncio; raises IncompleteReadError at its end."""
    first = (await reader.readexactly(1))[0]
    length = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return read(first, await reader.readexactly(length), version)


def read(first: int, body: bytes, version: int) -> Packet:
    """Take a broker's packet apart. Raises WireError for anything a broker may not send."""
    kind, flags = first >> 4, first & 0x0F
    cursor = Cursor(body, NAMES[kind] if kind else "type 0")
    packet = Packet(kind, bytes([first]) + varint(len(body)) + body)
    cursor.check(
        kind in (CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, PINGRESP)
        or (version == V5 and kind in (DISCONNECT, AUTH)),
        "a broker may not send this packet",
    )
    if kind == PUBLISH:
        _read_publish(cursor, packet, flags, version)
    else:
        expected = 0x02 if kind == PUBREL else 0
        cursor.check(flags == expected, f"fixed header flags are {flags:04b}")
        if kind == CONNACK:
            _read_connack(cursor, packet, version)
        elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            _read_ack(cursor, packet, version)
        elif kind in (SUBACK, UNSUBACK):
            _read_codes(cursor, packet, version)
        elif kind in (DISCONNECT, AUTH):
            _read_reason(cursor, packet)
    cursor.check(cursor.left == 0, f"{cursor.left} bytes left over")
    return packet


def _read_publish(cursor: Cursor, packet: Packet, flags: int, version: int) -> None:
    packet.dup, packet.qos, packet.retain = bool(flags & 8), flags >> 1 & 3, bool(flags & 1)
    cursor.check(packet.qos < 3, "QoS 3")
    cursor.check(packet.qos > 0 or not packet.dup, "DUP with QoS 0")
    packet.topic = cursor.utf8()
    cursor.check("+" not in packet.topic and "#" not in packet.topic, "wildcard in a topic name")
    if packet.qos:
        packet.packet_id = cursor.number(2)
        cursor.check(packet.packet_id > 0, "packet id 0")
    if version == V5:
        packet.props = cursor.properties(PUBLISH)
    cursor.check(
        packet.topic != "" or packet.prop(TOPIC_ALIAS) is not None, "neither topic name nor alias"
    )
    packet.payload = cursor.take(cursor.left)


def _read_connack(cursor: Cursor, packet: Packet, version: int) -> None:
    acknowledge = cursor.number(1)
    cursor.check(acknowledge in (0, 1), "reserved acknowledge flags are set")
    packet.session_present = bool(acknowledge)
    packet.reason = cursor.number(1)
    if version == V5 and (packet.reason != 1 or cursor.left):
        cursor.check(packet.reason in REASONS[CONNACK], f"reason 0x{packet.reason:02x}")
        packet.props = cursor.properties(CONNACK)
    else:  # the old form; in answer to an unknown protocol level a 5.0 broker may use it too
        cursor.check(packet.reason < 6, f"return code {packet.reason}")
    cursor.check(not (packet.reason and packet.session_present), "refusal with session present")


def _read_ack(cursor: Cursor, packet: Packet, version: int) -> None:
    packet.packet_id = cursor.number(2)
    cursor.check(packet.packet_id > 0, "packet id 0")
    if version == V5 and cursor.left:
        packet.reason = cursor.number(1)
        cursor.check(packet.reason in REASONS[packet.type], f"reason 0x{packet.reason:02x}")
        if cursor.left:
            packet.props = cursor.properties(packet.type)


def _read_codes(cursor: Cursor, packet: Packet, version: int) -> None:
    packet.packet_id = cursor.number(2)
    cursor.check(packet.packet_id > 0, "packet id 0")
    if version == V5:
        packet.props = cursor.properties(packet.type)
    elif packet.type == UNSUBACK:
        return
    packet.reasons = list(cursor.take(cursor.left))
    cursor.check(bool(packet.reasons), "no reason codes")
    allowed = REASONS[packet.type] if version == V5 else {0, 1, 2, 0x80}
    cursor.check(set(packet.reasons) <= allowed, f"reason codes {packet.reasons}")


def _read_reason(cursor: Cursor, packet: Packet) -> None:
    if cursor.left:
        packet.reason = cursor.number(1)
        cursor.check(packet.reason in REASONS[packet.type], f"reason 0x{packet.reason:02x}")
        if cursor.left:
            packet.props = cursor.properties(packet.type)
    cursor.check(packet.prop(SESSION_EXPIRY) is None, "Session Expiry Interval from a broker")
