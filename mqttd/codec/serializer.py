"""Packets to bytes, for MQTT 3.1, 3.1.1 and 5.0.

    packet ──> first byte | remaining length | variable header | payload

Each packet is built from its parts with one join, so that a payload is copied once. What a version
does not have is left out: properties and reason codes of acknowledgements below 5.0; codes of
CONNACK and SUBACK are translated. What is sent is the caller's choice; a value that has no form on
the wire (a packet id of 70000, a string of 66 KiB) raises `MalformedPacket` (chapters 2 and 3).
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.frame import ONE_BYTE
from mqttd.codec.packet_types import MQTT_3_1, MQTT_5_0
from mqttd.codec.packets import (
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttd.codec.properties import (
    REASON_STRING,
    RESPONSE_INFORMATION,
    USER_PROPERTY,
    Properties,
    binary,
    encode_properties,
    utf8,
    varint,
)
from mqttd.codec.reasons import MalformedPacket, to_connack_v3

__all__ = ["serialize", "serialize_within", "utf8", "varint"]

#: What an answer may do without, in the order in which it is left out.
_OPTIONAL: Final = (USER_PROPERTY, REASON_STRING, RESPONSE_INFORMATION)


def serialize(packet: Packet, version: int) -> bytes:
    """The bytes of one packet.

    :param version: 3, 4 or 5; CONNECT brings its own.
    :raises MalformedPacket: a field whose value does not fit the wire, or no such packet in this
        version.
    """
    if isinstance(packet, Publish):
        return _publish(packet, version)
    if isinstance(packet, Acknowledgement):
        return _acknowledgement(packet, version)
    if isinstance(packet, Subscribe):
        return _subscribe(packet, version)
    if isinstance(packet, Suback):
        return _suback(packet, version)
    if isinstance(packet, Connect):
        return _connect(packet)
    if isinstance(packet, Connack):
        return _connack(packet, version)
    if isinstance(packet, Pingreq):
        return b"\xc0\x00"
    if isinstance(packet, Pingresp):
        return b"\xd0\x00"
    if isinstance(packet, Unsubscribe):
        return _unsubscribe(packet, version)
    if isinstance(packet, Unsuback):
        return _unsuback(packet, version)
    if isinstance(packet, Disconnect):
        if version < MQTT_5_0:
            return b"\xe0\x00"
        return _reason_only(0xE0, packet.reason_code, packet.properties)
    if isinstance(packet, Auth):
        if version < MQTT_5_0:
            raise MalformedPacket("there is no AUTH before MQTT 5.0")
        if packet.reason_code == 0 and not packet.properties:
            return b"\xf0\x00"
        return _frame(0xF0, [_byte(packet.reason_code), encode_properties(packet.properties)])
    raise MalformedPacket(f"packet type {packet.type} cannot be serialised")


def serialize_within(packet: Connack | Auth, largest: int) -> bytes:
    """A packet of MQTT 5.0 in at most `largest` bytes; empty where that cannot be (3.1.2-24).

    What the standard lets a server leave out is left out for it.
    """
    wire = serialize(packet, MQTT_5_0)
    properties = packet.properties
    if len(wire) <= largest:
        return wire
    if properties is not None:
        left = dict(properties)
        for name in _OPTIONAL:
            if left.pop(name, None) is None:
                continue
            if isinstance(packet, Connack):
                wire = serialize(Connack(packet.session_present, packet.reason_code, left), 5)
            else:
                wire = serialize(Auth(packet.reason_code, left), 5)
            if len(wire) <= largest:
                return wire
    return b""


def _frame(first: int, parts: list[bytes]) -> bytes:
    length = 0
    for part in parts:
        length += len(part)
    parts.insert(0, ONE_BYTE[first] + varint(length))
    return b"".join(parts)


def _byte(value: int) -> bytes:
    if value < 0 or value > 255:
        raise MalformedPacket(f"{value} does not fit one byte")
    return ONE_BYTE[value]


def _two_bytes(value: int, what: str) -> bytes:
    if value < 0 or value > 65535:
        raise MalformedPacket(f"{what} {value} does not fit two bytes")
    return value.to_bytes(2, "big")


def _packet_id(packet_id: int) -> bytes:
    if packet_id < 1 or packet_id > 65535:
        raise MalformedPacket(f"packet id {packet_id} is not in 1 to 65535")
    return packet_id.to_bytes(2, "big")


def _qos(qos: int) -> int:
    if qos < 0 or qos > 2:
        raise MalformedPacket(f"QoS {qos} is not in 0 to 2")
    return qos


def _connect(packet: Connect) -> bytes:
    version = packet.version
    will = packet.will
    username = packet.username
    password = packet.password
    if version < MQTT_5_0 and password is not None and username is None:
        raise MalformedPacket("CONNECT: a password needs a user name before MQTT 5.0")
    flags = 0x02 if packet.clean_start else 0
    if will is not None:
        flags |= 0x04 | _qos(will.qos) << 3 | (0x20 if will.retain else 0)
    if password is not None:
        flags |= 0x40
    if username is not None:
        flags |= 0x80
    parts = [
        utf8(packet.protocol_name),
        _byte(version) + ONE_BYTE[flags],
        _two_bytes(packet.keep_alive, "keep alive"),
    ]
    if version >= MQTT_5_0:
        parts.append(encode_properties(packet.properties))
    parts.append(utf8(packet.client_id))
    if will is not None:
        _will(will, version, parts)
    if username is not None:
        parts.append(utf8(username))
    if password is not None:
        parts.append(binary(password))
    return _frame(0x10, parts)


def _will(will: Will, version: int, parts: list[bytes]) -> None:
    if version >= MQTT_5_0:
        parts.append(encode_properties(will.properties))
    parts.append(utf8(will.topic))
    parts.append(binary(will.payload))


def _connack(packet: Connack, version: int) -> bytes:
    code = packet.reason_code
    if version >= MQTT_5_0:
        present = 1 if packet.session_present else 0
        return _frame(0x20, [ONE_BYTE[present] + _byte(code), encode_properties(packet.properties)])
    if code >= 0x80:
        code = to_connack_v3(code)
    # Session Present came with 3.1.1; its byte is reserved in 3.1.
    present = 1 if packet.session_present and version > MQTT_3_1 else 0
    return b"\x20\x02" + ONE_BYTE[present] + _byte(code)


def _publish(packet: Publish, version: int) -> bytes:
    qos = packet.qos
    first = 0x30 | _qos(qos) << 1
    if packet.dup:
        first |= 0x08
    if packet.retain:
        first |= 0x01
    head = utf8(packet.topic)
    if qos:
        head += _packet_id(packet.packet_id)
    if version >= MQTT_5_0:
        head += encode_properties(packet.properties)
    payload = packet.payload
    length = len(head) + len(payload)
    if length < 128:
        return (first << 8 | length).to_bytes(2, "big") + head + payload
    return b"".join((ONE_BYTE[first], varint(length), head, payload))


def _acknowledgement(packet: Acknowledgement, version: int) -> bytes:
    packet_id = packet.packet_id
    if packet_id < 1 or packet_id > 65535:
        raise MalformedPacket(f"packet id {packet_id} is not in 1 to 65535")
    first = packet.type << 4
    if isinstance(packet, Pubrel):
        first |= 0x02
    code = packet.reason_code
    properties = packet.properties
    if version < MQTT_5_0 or (code == 0 and not properties):
        return (first << 24 | 0x020000 | packet_id).to_bytes(4, "big")
    if not properties:
        return (first << 24 | 0x030000 | packet_id).to_bytes(4, "big") + _byte(code)
    return _frame(first, [_packet_id(packet_id), _byte(code), encode_properties(properties)])


def _subscribe(packet: Subscribe, version: int) -> bytes:
    parts = [_packet_id(packet.packet_id)]
    if version >= MQTT_5_0:
        parts.append(encode_properties(packet.properties))
    for subscription in packet.subscriptions:
        parts.append(utf8(subscription.topic_filter))
        options = _qos(subscription.qos)
        if version >= MQTT_5_0:
            if subscription.no_local:
                options |= 0x04
            if subscription.retain_as_published:
                options |= 0x08
            options |= _qos(subscription.retain_handling) << 4
        parts.append(ONE_BYTE[options])
    return _frame(0x82, parts)


def _suback(packet: Suback, version: int) -> bytes:
    codes = packet.reason_codes
    if version >= MQTT_5_0:
        return _frame(
            0x90,
            [_packet_id(packet.packet_id), encode_properties(packet.properties), _codes(codes)],
        )
    # Before 5.0 there is one failure code (3.1.1, 3.9.3).
    return _frame(0x90, [_packet_id(packet.packet_id), _codes([min(code, 0x80) for code in codes])])


def _unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    parts = [_packet_id(packet.packet_id)]
    if version >= MQTT_5_0:
        parts.append(encode_properties(packet.properties))
    for topic_filter in packet.topic_filters:
        parts.append(utf8(topic_filter))
    return _frame(0xA2, parts)


def _unsuback(packet: Unsuback, version: int) -> bytes:
    if version < MQTT_5_0:
        return b"\xb0\x02" + _packet_id(packet.packet_id)
    return _frame(
        0xB0,
        [
            _packet_id(packet.packet_id),
            encode_properties(packet.properties),
            _codes(packet.reason_codes),
        ],
    )


def _codes(codes: list[int]) -> bytes:
    for code in codes:
        if code < 0 or code > 255:
            raise MalformedPacket(f"reason code {code} does not fit one byte")
    return bytes(codes)


def _reason_only(first: int, code: int, properties: Properties | None) -> bytes:
    if properties:
        return _frame(first, [_byte(code), encode_properties(properties)])
    if code:
        return bytes((first, 1)) + _byte(code)
    return bytes((first, 0))
