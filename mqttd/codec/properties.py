"""The properties of MQTT 5.0: one table, and the reader and writer that obey it.

    property length | id value | id value | …         <->     {id: value, …}

The table gives each identifier its name, its type on the wire, the packets it may appear in and
whether it may be repeated. Values are ``int``, ``str`` or ``bytes``; User Property is a list of
pairs and Subscription Identifier a list of numbers, both in the order of the wire.

Reading is one pass, bounded by the property length, which is bounded by the packet. Strict: an
unknown identifier, one in the wrong packet, a second copy of a single one and a value out of range
are errors (MQTT 5.0, 2.2.2).
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from mqttd.codec.frame import ONE_BYTE
from mqttd.codec.packet_types import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    TYPE_NAMES,
    UNSUBACK,
    UNSUBSCRIBE,
    WILL,
)
from mqttd.codec.reasons import MalformedPacket, ProtocolViolation, TopicAliasInvalid

__all__ = [
    "ASSIGNED_CLIENT_IDENTIFIER",
    "AUTHENTICATION_DATA",
    "AUTHENTICATION_METHOD",
    "BINARY",
    "BYTE",
    "CONTENT_TYPE",
    "CORRELATION_DATA",
    "FOUR_BYTES",
    "MAXIMUM_PACKET_SIZE",
    "MAXIMUM_QOS",
    "MESSAGE_EXPIRY_INTERVAL",
    "PAYLOAD_FORMAT_INDICATOR",
    "PROPERTIES",
    "REASON_STRING",
    "RECEIVE_MAXIMUM",
    "REQUEST_PROBLEM_INFORMATION",
    "REQUEST_RESPONSE_INFORMATION",
    "RESPONSE_INFORMATION",
    "RESPONSE_TOPIC",
    "RETAIN_AVAILABLE",
    "SERVER_KEEP_ALIVE",
    "SERVER_REFERENCE",
    "SESSION_EXPIRY_INTERVAL",
    "SHARED_SUBSCRIPTION_AVAILABLE",
    "STRING",
    "STRING_PAIR",
    "SUBSCRIPTION_IDENTIFIER",
    "SUBSCRIPTION_IDENTIFIER_AVAILABLE",
    "TOPIC_ALIAS",
    "TOPIC_ALIAS_MAXIMUM",
    "TWO_BYTES",
    "USER_PROPERTY",
    "VARINT",
    "WILDCARD_SUBSCRIPTION_AVAILABLE",
    "WILL",
    "WILL_DELAY_INTERVAL",
    "Properties",
    "PropertyInfo",
    "PropertyValue",
    "binary",
    "decode_binary",
    "decode_properties",
    "decode_utf8",
    "decode_varint",
    "encode_properties",
    "utf8",
    "varint",
]

PropertyValue: TypeAlias = int | str | bytes | list[tuple[str, str]] | list[int]
Properties: TypeAlias = dict[int, PropertyValue]

PAYLOAD_FORMAT_INDICATOR: Final = 0x01
MESSAGE_EXPIRY_INTERVAL: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY_INTERVAL: Final = 0x11
ASSIGNED_CLIENT_IDENTIFIER: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY_INTERVAL: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIER_AVAILABLE: Final = 0x29
SHARED_SUBSCRIPTION_AVAILABLE: Final = 0x2A

# The types on the wire (1.5).
BYTE: Final = 1
TWO_BYTES: Final = 2
FOUR_BYTES: Final = 3
VARINT: Final = 4
STRING: Final = 5
BINARY: Final = 6
STRING_PAIR: Final = 7

_LAST: Final = 0x2A


class PropertyInfo(NamedTuple):
    """One row of the table (2.2.2.2).

    :ivar identifier: the byte on the wire.
    :ivar name: the standard's name.
    :ivar wire_type: BYTE, TWO_BYTES, FOUR_BYTES, VARINT, STRING, BINARY or STRING_PAIR.
    :ivar packets: packet types it may appear in; WILL for the will's own properties.
    :ivar multiple: it may appear more than once in some packet, and its value is a list.
    """

    identifier: int
    name: str
    wire_type: int
    packets: frozenset[int]
    multiple: bool


def _table() -> dict[int, PropertyInfo]:
    message = (PUBLISH, WILL)
    opening = (CONNECT, CONNACK)
    reasoned = (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)
    everywhere = (CONNECT, PUBLISH, WILL, SUBSCRIBE, UNSUBSCRIBE, *reasoned)
    rows: list[tuple[int, str, int, tuple[int, ...]]] = [
        (PAYLOAD_FORMAT_INDICATOR, "Payload Format Indicator", BYTE, message),
        (MESSAGE_EXPIRY_INTERVAL, "Message Expiry Interval", FOUR_BYTES, message),
        (CONTENT_TYPE, "Content Type", STRING, message),
        (RESPONSE_TOPIC, "Response Topic", STRING, message),
        (CORRELATION_DATA, "Correlation Data", BINARY, message),
        (SUBSCRIPTION_IDENTIFIER, "Subscription Identifier", VARINT, (PUBLISH, SUBSCRIBE)),
        (
            SESSION_EXPIRY_INTERVAL,
            "Session Expiry Interval",
            FOUR_BYTES,
            (*opening, DISCONNECT),
        ),
        (ASSIGNED_CLIENT_IDENTIFIER, "Assigned Client Identifier", STRING, (CONNACK,)),
        (SERVER_KEEP_ALIVE, "Server Keep Alive", TWO_BYTES, (CONNACK,)),
        (AUTHENTICATION_METHOD, "Authentication Method", STRING, (*opening, AUTH)),
        (AUTHENTICATION_DATA, "Authentication Data", BINARY, (*opening, AUTH)),
        (REQUEST_PROBLEM_INFORMATION, "Request Problem Information", BYTE, (CONNECT,)),
        (WILL_DELAY_INTERVAL, "Will Delay Interval", FOUR_BYTES, (WILL,)),
        (REQUEST_RESPONSE_INFORMATION, "Request Response Information", BYTE, (CONNECT,)),
        (RESPONSE_INFORMATION, "Response Information", STRING, (CONNACK,)),
        (SERVER_REFERENCE, "Server Reference", STRING, (CONNACK, DISCONNECT)),
        (REASON_STRING, "Reason String", STRING, reasoned),
        (RECEIVE_MAXIMUM, "Receive Maximum", TWO_BYTES, opening),
        (TOPIC_ALIAS_MAXIMUM, "Topic Alias Maximum", TWO_BYTES, opening),
        (TOPIC_ALIAS, "Topic Alias", TWO_BYTES, (PUBLISH,)),
        (MAXIMUM_QOS, "Maximum QoS", BYTE, (CONNACK,)),
        (RETAIN_AVAILABLE, "Retain Available", BYTE, (CONNACK,)),
        (USER_PROPERTY, "User Property", STRING_PAIR, everywhere),
        (MAXIMUM_PACKET_SIZE, "Maximum Packet Size", FOUR_BYTES, opening),
        (WILDCARD_SUBSCRIPTION_AVAILABLE, "Wildcard Subscription Available", BYTE, (CONNACK,)),
        (
            SUBSCRIPTION_IDENTIFIER_AVAILABLE,
            "Subscription Identifier Available",
            BYTE,
            (CONNACK,),
        ),
        (SHARED_SUBSCRIPTION_AVAILABLE, "Shared Subscription Available", BYTE, (CONNACK,)),
    ]
    multiple = (USER_PROPERTY, SUBSCRIPTION_IDENTIFIER)
    return {
        identifier: PropertyInfo(
            identifier, name, wire_type, frozenset(packets), identifier in multiple
        )
        for identifier, name, wire_type, packets in rows
    }


PROPERTIES: Final[dict[int, PropertyInfo]] = _table()
"""Identifier to its row."""


def _wire_types() -> list[int]:
    wire_types = [0] * (_LAST + 1)
    for info in PROPERTIES.values():
        wire_types[info.identifier] = info.wire_type
    return wire_types


def _packet_masks() -> list[int]:
    masks = [0] * (_LAST + 1)
    for info in PROPERTIES.values():
        for packet_type in info.packets:
            masks[info.identifier] |= 1 << packet_type
    return masks


# The same table as flat lists, because a reader on the hot path indexes them: identifier to wire
# type (0: unknown), and to a bit per packet type it is allowed in.
_WIRE_TYPES: Final[list[int]] = _wire_types()
_PACKET_MASKS: Final[list[int]] = _packet_masks()


def decode_properties(data: bytes, pos: int, end: int, packet_type: int) -> tuple[Properties, int]:
    """Read the property length at ``data[pos]`` and the properties behind it.

    :param end: index behind the last byte that belongs to the packet.
    :param packet_type: CONNECT … AUTH, or WILL.
    :returns: the properties, empty if there are none, and the index behind them.
    :raises MalformedPacket: cut short, unknown identifier, not allowed in this packet, bad string.
    :raises ProtocolViolation: a second copy of a single property, a value out of range.
    :raises TopicAliasInvalid: Topic Alias 0.
    """
    props: Properties = {}
    if pos < end and data[pos] == 0:
        return props, pos + 1
    length, pos = decode_varint(data, pos, end)
    stop = pos + length
    if stop > end:
        raise MalformedPacket("property length goes beyond the packet")
    while pos < stop:
        identifier = data[pos]
        pos += 1
        wire_type = _WIRE_TYPES[identifier] if identifier <= _LAST else 0
        if wire_type == 0:
            raise MalformedPacket(f"unknown property 0x{identifier:02X}")
        if not _PACKET_MASKS[identifier] >> packet_type & 1:
            raise MalformedPacket(
                f"{PROPERTIES[identifier].name} is not a property of {TYPE_NAMES[packet_type]}"
            )
        if wire_type == STRING_PAIR:
            pos = _decode_pair(data, pos, stop, props)
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            pos = _decode_subscription_identifier(data, pos, stop, packet_type, props)
        elif identifier in props:
            raise ProtocolViolation(f"{PROPERTIES[identifier].name} twice")
        elif wire_type <= FOUR_BYTES:
            pos = _decode_number(data, pos, stop, identifier, wire_type, props)
        else:
            pos = _decode_text(data, pos, stop, identifier, wire_type, props)
    if AUTHENTICATION_DATA in props and AUTHENTICATION_METHOD not in props:
        raise ProtocolViolation("Authentication Data without Authentication Method")
    return props, pos


def _decode_pair(data: bytes, pos: int, stop: int, props: Properties) -> int:
    name, pos = decode_utf8(data, pos, stop, "User Property")
    value, pos = decode_utf8(data, pos, stop, "User Property")
    pairs = props.get(USER_PROPERTY)
    if isinstance(pairs, list):
        pairs.append((name, value))  # type: ignore[arg-type]
    else:
        props[USER_PROPERTY] = [(name, value)]
    return pos


def _decode_subscription_identifier(
    data: bytes, pos: int, stop: int, packet_type: int, props: Properties
) -> int:
    number, pos = decode_varint(data, pos, stop)
    if number == 0:
        raise ProtocolViolation("Subscription Identifier 0")
    numbers = props.get(SUBSCRIPTION_IDENTIFIER)
    if isinstance(numbers, list):
        if packet_type == SUBSCRIBE:
            raise ProtocolViolation("Subscription Identifier twice")
        numbers.append(number)  # type: ignore[arg-type]
    else:
        props[SUBSCRIPTION_IDENTIFIER] = [number]
    return pos


def _decode_number(
    data: bytes, pos: int, stop: int, identifier: int, wire_type: int, props: Properties
) -> int:
    width = 4 if wire_type == FOUR_BYTES else wire_type
    if pos + width > stop:
        raise MalformedPacket(f"{PROPERTIES[identifier].name} is cut short")
    number = data[pos]
    if wire_type == BYTE:
        # Every property of one byte is a yes or no, or a QoS of 0 or 1.
        if number > 1:
            raise ProtocolViolation(f"{PROPERTIES[identifier].name} is {number}, not 0 or 1")
    else:
        number = number << 8 | data[pos + 1]
        if width == 4:
            number = number << 16 | data[pos + 2] << 8 | data[pos + 3]
        if number == 0:
            if identifier == RECEIVE_MAXIMUM or identifier == MAXIMUM_PACKET_SIZE:
                raise ProtocolViolation(f"{PROPERTIES[identifier].name} 0")
            if identifier == TOPIC_ALIAS:
                raise TopicAliasInvalid("Topic Alias 0")
    props[identifier] = number
    return pos + width


def _decode_text(
    data: bytes, pos: int, stop: int, identifier: int, wire_type: int, props: Properties
) -> int:
    if wire_type == BINARY:
        props[identifier], pos = decode_binary(data, pos, stop, PROPERTIES[identifier].name)
        return pos
    text, pos = decode_utf8(data, pos, stop, PROPERTIES[identifier].name)
    if identifier == RESPONSE_TOPIC:
        if not text:
            raise ProtocolViolation("empty Response Topic")
        if "+" in text or "#" in text:
            raise ProtocolViolation("wildcard in the Response Topic")
    props[identifier] = text
    return pos


def decode_varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Read a Variable Byte Integer of one to four bytes (1.5.5): its value, and the index behind.

    :raises MalformedPacket: cut short, a fifth byte, or more bytes than needed.
    """
    value = 0
    shift = 0
    while pos < end:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise MalformedPacket("variable byte integer is longer than it needs to be")
            return value, pos
        shift += 7
        if shift == 28:
            raise MalformedPacket("variable byte integer has more than four bytes")
    raise MalformedPacket("variable byte integer is cut short")


def decode_utf8(data: bytes, pos: int, end: int, what: str) -> tuple[str, int]:
    """Read a UTF-8 Encoded String (1.5.4): the text, and the index behind it.

    A byte order mark stays; surrogates and U+0000 are refused.

    :param what: the field's name, for the error.
    :raises MalformedPacket: cut short, or not well-formed.
    """
    start = pos + 2
    if start > end:
        raise MalformedPacket(f"{what} is cut short")
    pos = start + (data[pos] << 8 | data[pos + 1])
    if pos > end:
        raise MalformedPacket(f"{what} is cut short")
    try:
        text = data[start:pos].decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedPacket(f"{what} is not well-formed UTF-8") from None
    if "\0" in text:
        raise MalformedPacket(f"U+0000 in {what}")
    return text, pos


def decode_binary(data: bytes, pos: int, end: int, what: str) -> tuple[bytes, int]:
    """Read Binary Data (1.5.6): the bytes, and the index behind them.

    :param what: the field's name, for the error.
    :raises MalformedPacket: cut short.
    """
    start = pos + 2
    if start > end:
        raise MalformedPacket(f"{what} is cut short")
    pos = start + (data[pos] << 8 | data[pos + 1])
    if pos > end:
        raise MalformedPacket(f"{what} is cut short")
    return data[start:pos], pos


def encode_properties(props: Properties | None) -> bytes:
    """Write properties with their length before them; None and empty are one zero byte.

    Writes what it is given, in the order of the dict: whether a property belongs into the packet is
    the caller's business.

    :raises MalformedPacket: unknown identifier, or a value that its wire type cannot hold.
    """
    if not props:
        return b"\x00"
    parts: list[bytes] = []
    for identifier, value in props.items():
        wire_type = _WIRE_TYPES[identifier] if 0 <= identifier <= _LAST else 0
        if wire_type == 0:
            raise MalformedPacket(f"unknown property {identifier}")
        if isinstance(value, int):
            parts.append(_encode_number(identifier, wire_type, value))
        elif isinstance(value, str):
            if wire_type != STRING:
                raise _unfit(identifier, value)
            parts.append(ONE_BYTE[identifier] + utf8(value))
        elif isinstance(value, bytes):
            if wire_type != BINARY:
                raise _unfit(identifier, value)
            parts.append(ONE_BYTE[identifier] + binary(value))
        else:
            _encode_list(identifier, wire_type, value, parts)
    encoded = b"".join(parts)
    return varint(len(encoded)) + encoded


def _encode_number(identifier: int, wire_type: int, value: int) -> bytes:
    if wire_type > VARINT:
        raise _unfit(identifier, value)
    if wire_type == VARINT:
        return ONE_BYTE[identifier] + varint(value)
    width = 4 if wire_type == FOUR_BYTES else wire_type
    if value < 0 or value >> 8 * width:
        raise _unfit(identifier, value)
    return (identifier << 8 * width | value).to_bytes(width + 1, "big")


def _encode_list(
    identifier: int,
    wire_type: int,
    value: list[tuple[str, str]] | list[int],
    parts: list[bytes],
) -> None:
    prefix = ONE_BYTE[identifier]
    for item in value:
        if isinstance(item, int):
            if wire_type != VARINT:
                raise _unfit(identifier, value)
            parts.append(prefix + varint(item))
        else:
            if wire_type != STRING_PAIR:
                raise _unfit(identifier, value)
            parts.append(prefix + utf8(item[0]) + utf8(item[1]))


def _unfit(identifier: int, value: object) -> MalformedPacket:
    return MalformedPacket(f"{PROPERTIES[identifier].name} cannot be {value!r:.80}")


def varint(n: int) -> bytes:
    """A Variable Byte Integer in as few bytes as it needs (1.5.5).

    :param n: 0 to 268,435,455.
    :raises MalformedPacket: out of range.
    """
    if 0 <= n < 128:
        return ONE_BYTE[n]
    if n < 0 or n > 268_435_455:
        raise MalformedPacket(f"{n} does not fit a variable byte integer")
    encoded: list[int] = []
    while n >= 128:
        encoded.append(n & 0x7F | 0x80)
        n >>= 7
    encoded.append(n)
    return bytes(encoded)


def utf8(s: str) -> bytes:
    """A UTF-8 Encoded String: two bytes of length, then the text (1.5.4).

    :raises MalformedPacket: more than 65,535 bytes, a surrogate, or U+0000.
    """
    try:
        encoded = s.encode("utf-8")
    except UnicodeEncodeError:
        raise MalformedPacket("surrogate in a string") from None
    if "\0" in s:
        raise MalformedPacket("U+0000 in a string")
    return binary(encoded)


def binary(data: bytes) -> bytes:
    """Binary Data: two bytes of length, then the bytes (1.5.6).

    :raises MalformedPacket: more than 65,535 bytes.
    """
    if len(data) > 65535:
        raise MalformedPacket(f"{len(data)} bytes where at most 65535 fit")
    return len(data).to_bytes(2, "big") + data
