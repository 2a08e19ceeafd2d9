"""What stands behind the fixed header of each packet, checked as it is read: bytes -> packet.

One function a packet type (3.1 to 3.15); `mqttd.codec.parser` has checked the first byte. What a
body says must fill it: a byte missing or left over is a malformed packet.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.packet_types import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5_0,
    PINGREQ,
    PINGRESP,
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
from mqttd.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttd.codec.properties import (
    AUTHENTICATION_METHOD,
    TOPIC_ALIAS,
    Properties,
    decode_binary,
    decode_properties,
    decode_utf8,
)
from mqttd.codec.reasons import (
    CODES_OF,
    MalformedPacket,
    ProtocolViolation,
    UnsupportedVersion,
)
from mqttd.codec.scan import is_filter
from mqttd.codec.topic import is_shared, validate_topic_filter, validate_topic_name

__all__ = ["parse_body"]

_ANY_LEVELS: Final = 0


def parse_body(first: int, data: bytes, pos: int, end: int, version: int) -> Packet:
    """Read what stands in `data` from `pos` to `end`, of a packet that begins with `first`.

    The first byte has been checked. Raises MqttError, a subclass that names the fault.
    """
    packet_type = first >> 4
    if packet_type == PUBLISH:
        return _publish(first, data, pos, end, version)
    if PUBACK <= packet_type <= PUBCOMP:
        return _acknowledgement(packet_type, data, pos, end, version)
    if packet_type == CONNECT:
        return _connect(data, pos, end)
    if packet_type == SUBSCRIBE:
        return _subscribe(data, pos, end, version)
    if packet_type == UNSUBSCRIBE:
        return _unsubscribe(data, pos, end, version)
    if packet_type == PINGREQ:
        _no_body(PINGREQ, pos, end)
        return Pingreq()
    if packet_type == PINGRESP:
        _no_body(PINGRESP, pos, end)
        return Pingresp()
    if packet_type == DISCONNECT:
        return _disconnect(data, pos, end, version)
    if packet_type == CONNACK:
        return _connack(data, pos, end, version)
    if packet_type == SUBACK:
        return _suback(data, pos, end, version)
    if packet_type == UNSUBACK:
        return _unsuback(data, pos, end, version)
    return _auth(data, pos, end)


def _publish(first: int, data: bytes, pos: int, end: int, version: int) -> Publish:
    topic, pos = decode_utf8(data, pos, end, "PUBLISH: topic name")
    qos = first >> 1 & 3
    packet_id = 0
    if qos:
        packet_id = _packet_id(data, pos, end, PUBLISH)
        pos += 2
    properties: Properties | None = None
    if version == MQTT_5_0:
        decoded, pos = decode_properties(data, pos, end, PUBLISH)
        if decoded:
            properties = decoded
    if "+" in topic or "#" in topic:
        validate_topic_name(topic, _ANY_LEVELS)
    if not topic:
        if version != MQTT_5_0:
            validate_topic_name(topic, _ANY_LEVELS)
        if properties is None or TOPIC_ALIAS not in properties:
            raise ProtocolViolation("PUBLISH: empty topic name without Topic Alias")
    return Publish(
        topic,
        data[pos:end],
        qos,
        first & 0x01 != 0,
        first & 0x08 != 0,
        packet_id,
        properties,
    )


def _packet_id(data: bytes, pos: int, end: int, packet_type: int) -> int:
    if pos + 2 > end:
        raise MalformedPacket(f"{TYPE_NAMES[packet_type]}: packet id is cut short")
    packet_id = data[pos] << 8 | data[pos + 1]
    if packet_id == 0:
        raise ProtocolViolation(f"{TYPE_NAMES[packet_type]}: packet id 0")
    return packet_id


def _properties(data: bytes, pos: int, end: int, packet_type: int) -> tuple[Properties | None, int]:
    decoded, pos = decode_properties(data, pos, end, packet_type)
    return (decoded if decoded else None), pos


def _nothing_left(packet_type: int, pos: int, end: int) -> None:
    if pos != end:
        raise MalformedPacket(f"{TYPE_NAMES[packet_type]}: {end - pos} bytes left over")


def _no_body(packet_type: int, pos: int, end: int) -> None:
    if pos != end:
        raise MalformedPacket(f"{TYPE_NAMES[packet_type]} with a body")


def _check_code(packet_type: int, code: int) -> None:
    if code not in CODES_OF[packet_type]:
        raise ProtocolViolation(f"{TYPE_NAMES[packet_type]}: reason code 0x{code:02X}")


def _acknowledgement(packet_type: int, data: bytes, pos: int, end: int, version: int) -> Packet:
    packet_id = _packet_id(data, pos, end, packet_type)
    pos += 2
    code = 0
    properties: Properties | None = None
    if version == MQTT_5_0 and pos < end:
        code = data[pos]
        _check_code(packet_type, code)
        pos += 1
        if pos < end:
            properties, pos = _properties(data, pos, end, packet_type)
    _nothing_left(packet_type, pos, end)
    if packet_type == PUBACK:
        return Puback(packet_id, code, properties)
    if packet_type == PUBREC:
        return Pubrec(packet_id, code, properties)
    if packet_type == PUBREL:
        return Pubrel(packet_id, code, properties)
    return Pubcomp(packet_id, code, properties)


def _connect(data: bytes, pos: int, end: int) -> Connect:
    protocol_name, pos = decode_utf8(data, pos, end, "CONNECT: protocol name")
    if protocol_name != "MQTT" and protocol_name != "MQIsdp":
        raise ProtocolViolation(f"CONNECT: unknown protocol name {protocol_name!r:.40}")
    if pos == end:
        raise MalformedPacket("CONNECT: protocol level is cut short")
    version = data[pos]
    if protocol_name == "MQIsdp":
        known = version == MQTT_3_1
    else:
        known = version == MQTT_3_1_1 or version == MQTT_5_0
    if not known:
        raise UnsupportedVersion(
            f"CONNECT: unknown protocol level {version} of {protocol_name}", version=version
        )
    if pos + 4 > end:
        raise MalformedPacket("CONNECT: flags or keep alive are cut short")
    flags = data[pos + 1]
    keep_alive = data[pos + 2] << 8 | data[pos + 3]
    pos += 4
    _check_connect_flags(flags, version)
    properties: Properties | None = None
    if version == MQTT_5_0:
        properties, pos = _properties(data, pos, end, CONNECT)
    client_id, pos = decode_utf8(data, pos, end, "CONNECT: client id")
    will: Will | None = None
    if flags & 0x04:
        will, pos = _will(flags, data, pos, end, version)
    username: str | None = None
    password: bytes | None = None
    # MQTT 3.1 lets a client set these flags and leave the fields out at the end (3.1, "CONNECT").
    may_omit = version == MQTT_3_1
    if flags & 0x80 and not (may_omit and pos == end):
        username, pos = decode_utf8(data, pos, end, "CONNECT: user name")
    if flags & 0x40 and not (may_omit and pos == end):
        password, pos = decode_binary(data, pos, end, "CONNECT: password")
    _nothing_left(CONNECT, pos, end)
    return Connect(
        client_id,
        version,
        protocol_name,
        flags & 0x02 != 0,
        keep_alive,
        will,
        username,
        password,
        properties,
    )


def _check_connect_flags(flags: int, version: int) -> None:
    if version == MQTT_3_1:
        # Bit 0 is "not used" there, and so are the will's bits without a will.
        flags &= 0xFE if flags & 0x04 else 0xC6
    if flags & 0x01:
        raise MalformedPacket("CONNECT: the reserved flag is 1")
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            raise MalformedPacket("CONNECT: will QoS 3")
    elif flags & 0x38:
        raise MalformedPacket("CONNECT: will QoS or will retain without a will")
    if flags & 0xC0 == 0x40 and version < MQTT_5_0:
        raise MalformedPacket("CONNECT: password without a user name")


def _will(flags: int, data: bytes, pos: int, end: int, version: int) -> tuple[Will, int]:
    properties: Properties | None = None
    if version == MQTT_5_0:
        properties, pos = _properties(data, pos, end, WILL)
    topic, pos = decode_utf8(data, pos, end, "CONNECT: will topic")
    payload, pos = decode_binary(data, pos, end, "CONNECT: will payload")
    validate_topic_name(topic, _ANY_LEVELS)
    return Will(topic, payload, flags >> 3 & 3, flags & 0x20 != 0, properties), pos


def _connack(data: bytes, pos: int, end: int, version: int) -> Connack:
    if pos + 2 > end:
        raise MalformedPacket("CONNACK is cut short")
    flags = data[pos]
    code = data[pos + 1]
    pos += 2
    properties: Properties | None = None
    if version == MQTT_5_0:
        _check_code(CONNACK, code)
        properties, pos = _properties(data, pos, end, CONNACK)
    elif code > 5:
        raise ProtocolViolation(f"CONNACK: return code {code}")
    _nothing_left(CONNACK, pos, end)
    if version == MQTT_3_1:
        flags = 0  # "reserved, not used" there
    if flags > 1:
        raise MalformedPacket(f"CONNACK: flags are {flags:08b}")
    if flags and code:
        raise ProtocolViolation("CONNACK: session present in a refusal")
    return Connack(flags != 0, code, properties)


def _subscribe(data: bytes, pos: int, end: int, version: int) -> Subscribe:
    packet_id = _packet_id(data, pos, end, SUBSCRIBE)
    pos += 2
    properties: Properties | None = None
    if version == MQTT_5_0:
        properties, pos = _properties(data, pos, end, SUBSCRIBE)
    if pos == end:
        raise ProtocolViolation("SUBSCRIBE without a topic filter")
    subscriptions: list[Subscription] = []
    while pos < end:
        start = pos + 2
        topic_filter, pos = decode_utf8(data, pos, end, "SUBSCRIBE: topic filter")
        if pos == end:
            raise MalformedPacket("SUBSCRIBE: options are cut short")
        if not is_filter(data, start, pos):
            validate_topic_filter(topic_filter, _ANY_LEVELS)
        options = data[pos]
        pos += 1
        if options < 3:
            subscriptions.append(Subscription(topic_filter, options))
        else:
            subscriptions.append(_subscription(topic_filter, options, version))
    return Subscribe(packet_id, subscriptions, properties)


def _subscription(topic_filter: str, options: int, version: int) -> Subscription:
    if options & (0xC0 if version == MQTT_5_0 else 0xFC):
        raise MalformedPacket(f"SUBSCRIBE: options are {options:08b}")
    if options & 0x03 == 0x03:
        raise ProtocolViolation("SUBSCRIBE: QoS 3")
    if options & 0x30 == 0x30:
        raise ProtocolViolation("SUBSCRIBE: Retain Handling 3")
    no_local = options & 0x04 != 0
    if no_local and is_shared(topic_filter):
        raise ProtocolViolation("SUBSCRIBE: No Local with a shared subscription")
    return Subscription(
        topic_filter, options & 0x03, no_local, options & 0x08 != 0, options >> 4 & 3
    )


def _suback(data: bytes, pos: int, end: int, version: int) -> Suback:
    packet_id = _packet_id(data, pos, end, SUBACK)
    pos += 2
    properties: Properties | None = None
    if version == MQTT_5_0:
        properties, pos = _properties(data, pos, end, SUBACK)
    codes = list(data[pos:end])
    if not codes:
        raise ProtocolViolation("SUBACK without a reason code")
    for code in codes:
        if version == MQTT_5_0:
            _check_code(SUBACK, code)
        elif code > 2 and code != 0x80:
            raise ProtocolViolation(f"SUBACK: return code {code}")
    return Suback(packet_id, codes, properties)


def _unsubscribe(data: bytes, pos: int, end: int, version: int) -> Unsubscribe:
    packet_id = _packet_id(data, pos, end, UNSUBSCRIBE)
    pos += 2
    properties: Properties | None = None
    if version == MQTT_5_0:
        properties, pos = _properties(data, pos, end, UNSUBSCRIBE)
    if pos == end:
        raise ProtocolViolation("UNSUBSCRIBE without a topic filter")
    topic_filters: list[str] = []
    while pos < end:
        start = pos + 2
        topic_filter, pos = decode_utf8(data, pos, end, "UNSUBSCRIBE: topic filter")
        if not is_filter(data, start, pos):
            validate_topic_filter(topic_filter, _ANY_LEVELS)
        topic_filters.append(topic_filter)
    return Unsubscribe(packet_id, topic_filters, properties)


def _unsuback(data: bytes, pos: int, end: int, version: int) -> Unsuback:
    packet_id = _packet_id(data, pos, end, UNSUBACK)
    pos += 2
    if version != MQTT_5_0:
        _nothing_left(UNSUBACK, pos, end)
        return Unsuback(packet_id, [])
    properties, pos = _properties(data, pos, end, UNSUBACK)
    codes = list(data[pos:end])
    if not codes:
        raise ProtocolViolation("UNSUBACK without a reason code")
    for code in codes:
        _check_code(UNSUBACK, code)
    return Unsuback(packet_id, codes, properties)


def _disconnect(data: bytes, pos: int, end: int, version: int) -> Disconnect:
    if version != MQTT_5_0:
        _no_body(DISCONNECT, pos, end)
        return Disconnect()
    if pos == end:
        return Disconnect()
    code = data[pos]
    pos += 1
    _check_code(DISCONNECT, code)
    properties: Properties | None = None
    if pos < end:
        properties, pos = _properties(data, pos, end, DISCONNECT)
    _nothing_left(DISCONNECT, pos, end)
    return Disconnect(code, properties)


def _auth(data: bytes, pos: int, end: int) -> Auth:
    if pos == end:
        return Auth()
    code = data[pos]
    _check_code(AUTH, code)
    properties, pos = _properties(data, pos + 1, end, AUTH)
    _nothing_left(AUTH, pos, end)
    if properties is None or AUTHENTICATION_METHOD not in properties:
        raise ProtocolViolation("AUTH without Authentication Method")
    return Auth(code, properties)
