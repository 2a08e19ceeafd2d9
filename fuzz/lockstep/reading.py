"""Client packets as the model reads them: what they say, or the reason code that refuses them.

`WireError` (of the fields, `tests.support.packets.Cursor`) is a malformed packet, 0x81; a `Refused`
names its reason. Numbers in comments are sections of MQTT 5.0; 3.1.1 closes the connection for the
same faults without a word.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tests.support import packets as mq
from tests.support.packets import Cursor, WireError

__all__ = [
    "BAD_AUTHENTICATION_METHOD",
    "MALFORMED",
    "PROTOCOL_ERROR",
    "Asked",
    "Message",
    "Refused",
    "Will",
    "read_acknowledgement",
    "read_connect",
    "read_disconnect",
    "read_publish",
    "read_subscribe",
    "read_unsubscribe",
    "unshared",
]

MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
BAD_AUTHENTICATION_METHOD: Final = 0x8C
FILTER_INVALID: Final = 0x8F
TOPIC_INVALID: Final = 0x90
ALIAS_INVALID: Final = 0x94

#: Reason codes that a client may send (3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1, 3.14.2.1).
CODES: Final = {
    mq.PUBACK: {0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    mq.PUBREC: {0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    mq.PUBREL: {0, 0x92},
    mq.PUBCOMP: {0, 0x92},
    mq.DISCONNECT: {0, 4, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)},
}
#: Which may be 0 or 1 only (3.1.2.11.6, 3.1.2.11.7, 3.3.2.3.2).
BOOLEANS: Final = {mq.REQUEST_PROBLEM_INFO, mq.REQUEST_RESPONSE_INFO, mq.PAYLOAD_FORMAT}
#: Which may not be 0 (3.1.2.11.3, 3.1.2.11.4, 3.8.2.1.2).
POSITIVE: Final = {mq.RECEIVE_MAXIMUM, mq.MAXIMUM_PACKET_SIZE, mq.SUBSCRIPTION_ID}
#: Properties that only a server may send with a packet of that type (3.3.2.3.8, 3.14.2.3.5).
SERVER_ONLY: Final = {(mq.PUBLISH, mq.SUBSCRIPTION_ID), (mq.DISCONNECT, mq.SERVER_REFERENCE)}


class Refused(Exception):
    """A packet that ends the connection, with its reason code."""

    def __init__(self, reason: int) -> None:
        super().__init__(f"0x{reason:02x}")
        self.reason = reason


@dataclass
class Message:
    """An Application Message, as published or on its way to one subscriber."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    source: str  # client id of the publisher
    props: mq.Props = ()
    #: When it expires, on the model's clock; None: never (3.3.2.3.3).
    until: float | None = None
    #: Of the subscriptions that it matched (3.3.2.3.8).
    identifiers: list[int] = field(default_factory=list)


@dataclass
class Will:
    """The message of a will, and how long it waits (3.1.3.2.2)."""

    message: Message
    delay: int = 0


@dataclass
class Asked:
    """What a CONNECT asks for."""

    version: int
    clean: bool
    client_id: str
    props: dict[int, Any]
    will: Will | None


def properties(cursor: Cursor, place: int, version: int) -> list[tuple[int, Any]]:
    """The properties of a packet (2.2.2), each with a value that it may have."""
    if version != mq.V5:
        return []
    length = cursor.varint()
    block = Cursor(cursor.take(length), cursor.name)
    found: list[tuple[int, Any]] = []
    while block.left:
        identifier = block.varint()
        kind, places = mq.PROPERTIES.get(identifier, ("", set[int]()))
        block.check(place in places, f"property 0x{identifier:02x} has no place here")
        value: Any = block.varint() if kind == "varint" else block.value(kind)
        if identifier != mq.USER_PROPERTY and any(i == identifier for i, _ in found):
            raise Refused(PROTOCOL_ERROR)
        if identifier in BOOLEANS and value > 1 or identifier in POSITIVE and not value:
            raise Refused(PROTOCOL_ERROR)
        if (place, identifier) in SERVER_ONLY:
            raise Refused(PROTOCOL_ERROR)
        if identifier == mq.RESPONSE_TOPIC and not good_topic(value):
            raise Refused(PROTOCOL_ERROR)  # MQTT-3.3.2-14
        found.append((identifier, value))
    return found


def topic_text(cursor: Cursor) -> str:
    """Of a PUBLISH: U+0000 makes it a wrong topic (MQTT-4.7.3-2), no wrong string."""
    try:
        return cursor.binary().decode()
    except UnicodeDecodeError as error:
        raise WireError(f"{cursor.name}: not UTF-8") from error


def good_topic(name: str) -> bool:
    """Whether it is a topic name (4.7.3)."""
    return bool(name) and not set(name) & {"+", "#", "\0"}


def good_filter(text: str) -> bool:
    """Whether it is a topic filter (4.7.1, 4.7.3)."""
    levels = text.split("/")
    alone = all(level in ("+", "#") or good_topic(level) or not level for level in levels)
    return bool(text) and alone and "#" not in levels[:-1]


def unshared(text: str) -> str:
    """The filter within a shared subscription's (4.8.2), or ""; other filters as they are."""
    if not text.startswith("$share/"):
        return text
    share, _, topic_filter = text.removeprefix("$share/").partition("/")
    return topic_filter if good_topic(share) else ""


def read_connect(cursor: Cursor, version: int) -> Asked:
    """What stands behind name and level of a CONNECT of this version (3.1.2, 3.1.3)."""
    bits = cursor.number(1)
    qos = bits >> 3 & 3
    password_alone = version == mq.V311 and bits & 0xC0 == 0x40  # 3.1.1: MQTT-3.1.2-22
    if bits & 1 or qos == 3 or (not bits & 4 and bits & 0x38) or password_alone:
        raise Refused(MALFORMED)
    cursor.number(2)  # Keep Alive: a sequence is over sooner
    props = dict(properties(cursor, mq.CONNECT, version))
    if mq.AUTH_DATA in props and mq.AUTH_METHOD not in props:
        raise Refused(PROTOCOL_ERROR)
    client_id = cursor.utf8()
    will = None
    if bits & 4:
        will_props = properties(cursor, mq.WILL, version)
        topic, payload = cursor.utf8(), cursor.binary()
        if not good_topic(topic):
            raise Refused(TOPIC_INVALID)
        kept = tuple(pair for pair in will_props if pair[0] != mq.WILL_DELAY)
        message = Message(topic, payload, qos, bool(bits & 0x20), client_id, kept)
        will = Will(message, dict(will_props).get(mq.WILL_DELAY, 0))
    if bits & 0x80:
        cursor.utf8()
    if bits & 0x40:
        cursor.binary()
    cursor.check(not cursor.left, "bytes left over")
    if mq.AUTH_METHOD in props:
        raise Refused(BAD_AUTHENTICATION_METHOD)  # the broker has none (4.12)
    return Asked(version, bool(bits & 2), client_id, props, will)


def read_publish(
    cursor: Cursor, flags: int, version: int, aliases: dict[int, str]
) -> tuple[Message, int]:
    """A PUBLISH (3.3) and its packet id; a topic alias is looked up, and noted."""
    dup, qos, retain = flags >> 3, flags >> 1 & 3, bool(flags & 1)
    cursor.check(qos < 3 and not (dup and not qos), "flags")
    topic = topic_text(cursor)
    if topic and not good_topic(topic):
        raise Refused(TOPIC_INVALID)
    packet_id = packet_id_of(cursor) if qos else 0
    props = properties(cursor, mq.PUBLISH, version)
    alias = dict(props).get(mq.TOPIC_ALIAS)
    if alias == 0:
        raise Refused(ALIAS_INVALID)
    if alias is not None and not topic:
        topic = aliases.get(alias, "")
    if not topic:
        raise Refused(PROTOCOL_ERROR)
    if alias is not None:
        aliases[alias] = topic
    kept = tuple(pair for pair in props if pair[0] != mq.TOPIC_ALIAS)
    return Message(topic, cursor.take(cursor.left), qos, retain, "", kept), packet_id


def packet_id_of(cursor: Cursor) -> int:
    """A packet id, which is not 0 (MQTT-2.2.1-3)."""
    packet_id = cursor.number(2)
    cursor.check(packet_id > 0, "packet id 0")
    return packet_id


def read_acknowledgement(cursor: Cursor, kind: int, version: int) -> tuple[int, int]:
    """Packet id and reason code of PUBACK, PUBREC, PUBREL or PUBCOMP (3.4 to 3.7)."""
    packet_id, reason = packet_id_of(cursor), 0
    if version == mq.V5 and cursor.left:
        reason = cursor.number(1)
        if cursor.left:
            properties(cursor, kind, version)
    cursor.check(not cursor.left, "bytes left over")
    if reason not in CODES[kind]:
        raise Refused(PROTOCOL_ERROR)
    return packet_id, reason


def read_subscribe(cursor: Cursor, version: int) -> tuple[int, list[tuple[str, int]], int]:
    """Packet id, (filter, options) pairs and subscription identifier of a SUBSCRIBE (3.8)."""
    packet_id = packet_id_of(cursor)
    identifier = dict(properties(cursor, mq.SUBSCRIBE, version)).get(mq.SUBSCRIPTION_ID, 0)
    pairs = []
    while cursor.left:
        text = cursor.utf8()
        if not good_filter(unshared(text)):
            raise Refused(FILTER_INVALID)
        options = cursor.number(1)
        reserved = 0xC0 if version == mq.V5 else 0xFC
        cursor.check(not options & reserved, "reserved options")  # MQTT-3.8.3-5
        if options & 3 == 3 or options >> 4 == 3:
            raise Refused(PROTOCOL_ERROR)  # 3.8.3.1
        if text.startswith("$share/") and options & 4:
            raise Refused(PROTOCOL_ERROR)  # MQTT-3.8.3-4
        pairs.append((text, options))
    if not pairs:
        raise Refused(PROTOCOL_ERROR)  # MQTT-3.8.3-2
    return packet_id, pairs, identifier


def read_unsubscribe(cursor: Cursor, version: int) -> tuple[int, list[str]]:
    """Packet id and filters of an UNSUBSCRIBE (3.10)."""
    packet_id = packet_id_of(cursor)
    properties(cursor, mq.UNSUBSCRIBE, version)
    filters = []
    while cursor.left:
        filters.append(cursor.utf8())
    if not filters:
        raise Refused(PROTOCOL_ERROR)
    if not all(map(good_filter, filters)):
        raise Refused(FILTER_INVALID)
    return packet_id, filters


def read_disconnect(cursor: Cursor, version: int) -> tuple[int, dict[int, Any]]:
    """Reason code and properties of a DISCONNECT (3.14)."""
    reason, props = 0, {}
    if version == mq.V5 and cursor.left:
        reason = cursor.number(1)
        if cursor.left:
            props = dict(properties(cursor, mq.DISCONNECT, version))
    cursor.check(not cursor.left, "bytes left over")
    if reason not in CODES[mq.DISCONNECT]:
        raise Refused(PROTOCOL_ERROR)
    return reason, props
