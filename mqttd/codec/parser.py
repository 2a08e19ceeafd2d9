"""Bytes to packets, for MQTT 3.1, 3.1.1 and 5.0, strict as the standard is strict.

    chunk ─┬─ whole packets ──────────────────────> parsed in place
           └─ rest ─> buffer ─┬─ + next chunk ────> parsed when the last byte is there
                              └─ never longer than one packet of max_packet_size

`parse_packet` reads one packet whose end is known; `Parser` finds the ends in a stream. Packets are
the same however the stream is cut. The first byte of a packet and then its length are judged as
soon as they are there: a wrong type, a wrong direction or too large a packet is refused before its
body is waited for or kept.

Cost is linear in the bytes: each is copied into the buffer at most once, and each field once out of
it. Bytes from the wire raise `MqttError` or nothing; any other exception is a fault of this module.

Of topics only the syntax is checked; levels and lengths are limits of the broker. MQTT 3.1 is read
as 3.1.1 but for what it allows: DUP in SUBSCRIBE, UNSUBSCRIBE and PUBREL, a user name or password
flag without the field behind it (chapters 2 and 3).
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.frame import header
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
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    Properties,
    decode_binary,
    decode_properties,
    decode_utf8,
)
from mqttd.codec.reasons import (
    CODES_OF,
    SENT_BY_CLIENT_ONLY,
    SENT_BY_SERVER_ONLY,
    MalformedPacket,
    MqttError,
    PacketTooLarge,
    ProtocolViolation,
    UnsupportedVersion,
)
from mqttd.codec.topic import validate_topic_filter, validate_topic_name

__all__ = [
    "MAX_PACKET_SIZE",
    "Parser",
    "check_direction",
    "check_first_byte",
    "parse_packet",
]

MAX_PACKET_SIZE: Final = 268_435_460
"""Bytes of the largest packet: five of fixed header, and what four bytes of length say (2.1.4)."""

_ANY_LEVELS: Final = 0

# A bit per packet type: what each side may receive.
_TO_SERVER: Final = (
    1 << CONNECT
    | 1 << PUBLISH
    | 1 << PUBACK
    | 1 << PUBREC
    | 1 << PUBREL
    | 1 << PUBCOMP
    | 1 << SUBSCRIBE
    | 1 << UNSUBSCRIBE
    | 1 << PINGREQ
    | 1 << DISCONNECT
    | 1 << AUTH
)
_TO_CLIENT: Final = (
    1 << CONNACK
    | 1 << PUBLISH
    | 1 << PUBACK
    | 1 << PUBREC
    | 1 << PUBREL
    | 1 << PUBCOMP
    | 1 << SUBACK
    | 1 << UNSUBACK
    | 1 << PINGRESP
    | 1 << DISCONNECT
    | 1 << AUTH
)


class Parser:
    """The packets of one direction of one connection, cut out of its byte stream.

    A server's parser wants CONNECT first, and once, and takes the version from it. What follows a
    DISCONNECT is ignored, and so is what follows an error: that is raised once.

    :param version: 3, 4 or 5; for role "server" until CONNECT says otherwise.
    :param max_packet_size: bytes, fixed header included; may be changed between packets.
    :param role: the side that reads, "server" or "client".
    :ivar before_fault: after an error, the packets that were complete before it in the same chunk.
    """

    __slots__ = (
        "_buffer",
        "_closed",
        "_connected",
        "_needed",
        "_server",
        "before_fault",
        "max_packet_size",
        "version",
    )

    def __init__(
        self,
        version: int = MQTT_3_1_1,
        max_packet_size: int = MAX_PACKET_SIZE,
        role: str = "server",
    ) -> None:
        if role != "server" and role != "client":
            raise ValueError(f"role is {role!r}, not 'server' or 'client'")
        self.version: int = version
        self.max_packet_size: int = max_packet_size
        self.before_fault: list[Packet] = []
        self._server: bool = role == "server"
        self._connected: bool = False
        self._closed: bool = False
        # The bytes of one incomplete packet, and how many it takes to get on with it.
        self._buffer: bytearray | None = None
        self._needed: int = 0

    @property
    def buffered(self) -> int:
        """Bytes kept of a packet that is not complete yet."""
        return 0 if self._buffer is None else len(self._buffer)

    def feed(self, data: bytes) -> list[Packet]:
        """Take the next bytes; return the packets they complete, in order.

        :raises MqttError: a subclass that names the fault; see also `before_fault`.
        """
        packets: list[Packet] = []
        if self._closed:
            return packets
        buffer = self._buffer
        if buffer is not None:
            buffer += data
            if len(buffer) < self._needed:
                return packets
            data = bytes(buffer)
            self._buffer = None
        try:
            self._split(data, packets)
        except MqttError:
            self._closed = True
            self.before_fault = packets
            raise
        return packets

    def _split(self, data: bytes, packets: list[Packet]) -> None:
        end = len(data)
        pos = 0
        while pos < end:
            first = data[pos]
            self._check_first(first)
            # The remaining length, one byte more often than not.
            body = pos + 2
            if body > end:
                self._keep(data, pos, 2)
                return
            length = data[pos + 1]
            if length >= 0x80:
                length, body = header(data, pos, end)
                if body == 0:
                    self._keep(data, pos, end - pos + 1)
                    return
            stop = body + length
            if stop - pos > self.max_packet_size:
                raise PacketTooLarge(
                    f"{TYPE_NAMES[first >> 4]} of {stop - pos} bytes, "
                    f"at most {self.max_packet_size} are accepted"
                )
            padded = body - pos > 2 and data[body - 1] == 0
            if padded and self.version == MQTT_5_0 and first >> 4 != CONNECT:
                raise MalformedPacket("remaining length is longer than it needs to be")
            if stop > end:
                self._keep(data, pos, stop - pos)
                return
            packet = self._parse(first, data, body, stop)
            if padded and self.version == MQTT_5_0:
                raise MalformedPacket("remaining length is longer than it needs to be")
            packets.append(packet)
            if self._closed:
                return
            pos = stop

    def _keep(self, data: bytes, pos: int, needed: int) -> None:
        self._buffer = bytearray(data[pos:])
        self._needed = needed

    def _check_first(self, first: int) -> None:
        packet_type = first >> 4
        if self._server:
            if not self._connected:
                if packet_type != CONNECT:
                    raise ProtocolViolation(f"{TYPE_NAMES[packet_type]} before CONNECT")
            elif packet_type == CONNECT:
                raise ProtocolViolation("second CONNECT")
            elif not _TO_SERVER >> packet_type & 1:
                check_first_byte(first, self.version)
                raise ProtocolViolation(f"{TYPE_NAMES[packet_type]} from a client")
        elif not _TO_CLIENT >> packet_type & 1 or (
            packet_type == DISCONNECT and self.version < MQTT_5_0
        ):
            check_first_byte(first, self.version)
            raise ProtocolViolation(f"{TYPE_NAMES[packet_type]} from a server")
        if packet_type != PUBLISH or first & 0x06 == 0x06 or first & 0x0E == 0x08:
            check_first_byte(first, self.version)

    def _parse(self, first: int, data: bytes, pos: int, end: int) -> Packet:
        packet_type = first >> 4
        if packet_type == CONNECT:
            # Known even if the rest is wrong: the answer has to be in the client's version.
            self._adopt_version(data, pos, end)
        packet = _parse_body(first, data, pos, end, self.version)
        if packet_type == PUBLISH:
            if self._server and self.version == MQTT_5_0:
                check_direction(packet, True)
        elif packet_type == CONNECT:
            self._connected = True
        elif packet_type >= DISCONNECT:
            check_direction(packet, self._server)
            self._closed = packet_type == DISCONNECT
        return packet

    def _adopt_version(self, data: bytes, pos: int, end: int) -> None:
        if pos + 2 <= end:
            level = pos + 2 + (data[pos] << 8 | data[pos + 1])
            if level < end and MQTT_3_1 <= data[level] <= MQTT_5_0:
                self.version = data[level]


def parse_packet(first: int, body: bytes, version: int) -> Packet:
    """Read one packet of either direction.

    :param first: first byte of the fixed header: type and flags.
    :param body: everything behind the remaining length, no more and no less.
    :param version: 3, 4 or 5; CONNECT brings its own.
    :raises MqttError: a subclass that names the fault; `UnsupportedVersion` for a CONNECT of
        another level.
    """
    packet_type = first >> 4
    if packet_type != PUBLISH or first & 0x06 == 0x06 or first & 0x0E == 0x08:
        check_first_byte(first, version)
    return _parse_body(first, body, 0, len(body), version)


def check_first_byte(first: int, version: int) -> None:
    """Refuse a reserved packet type and reserved flags (2.1.2, 2.1.3).

    :raises MalformedPacket: in MQTT 3.1 DUP is allowed where the fixed QoS is 1.
    """
    packet_type = first >> 4
    flags = first & 0x0F
    if packet_type == 0:
        raise MalformedPacket("packet type 0 is reserved")
    if packet_type == AUTH and version < MQTT_5_0:
        raise MalformedPacket("packet type 15 is reserved before MQTT 5.0")
    if packet_type == PUBLISH:
        if flags & 0x06 == 0x06:
            raise MalformedPacket("PUBLISH: QoS 3")
        if flags & 0x0E == 0x08:
            raise MalformedPacket("PUBLISH: DUP with QoS 0")
        return
    if packet_type == PUBREL or packet_type == SUBSCRIBE or packet_type == UNSUBSCRIBE:
        if flags == 0x02 or (flags == 0x0A and version == MQTT_3_1):
            return
    elif flags == 0:
        return
    raise MalformedPacket(f"{TYPE_NAMES[packet_type]}: reserved flags are {flags:04b}")


def check_direction(packet: Packet, from_client: bool) -> None:
    """Refuse what is well-formed but only the other side may say.

    Types are judged by the `Parser` before their body; here are the fields: a client's Subscription
    Identifier in PUBLISH (3.3.4-6), a server's Session Expiry Interval in DISCONNECT (3.14.2-2),
    reason codes of DISCONNECT (3.14.2.1) and AUTH (3.15.2.1).

    :raises ProtocolViolation: names the field.
    """
    if isinstance(packet, Publish):
        properties = packet.properties
        if from_client and properties is not None and SUBSCRIPTION_IDENTIFIER in properties:
            raise ProtocolViolation("PUBLISH: Subscription Identifier from a client")
        return
    if isinstance(packet, Disconnect):
        code = packet.reason_code
        properties = packet.properties
        if not from_client and properties is not None and SESSION_EXPIRY_INTERVAL in properties:
            raise ProtocolViolation("DISCONNECT: Session Expiry Interval from a server")
    elif isinstance(packet, Auth):
        code = packet.reason_code
    else:
        return
    others = SENT_BY_SERVER_ONLY if from_client else SENT_BY_CLIENT_ONLY
    if code in others[packet.type]:
        side = "client" if from_client else "server"
        raise ProtocolViolation(
            f"{TYPE_NAMES[packet.type]}: reason code 0x{code:02X} from a {side}"
        )


def _parse_body(first: int, data: bytes, pos: int, end: int, version: int) -> Packet:
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
        topic_filter, pos = decode_utf8(data, pos, end, "SUBSCRIBE: topic filter")
        if pos == end:
            raise MalformedPacket("SUBSCRIBE: options are cut short")
        options = data[pos]
        pos += 1
        validate_topic_filter(topic_filter, _ANY_LEVELS)
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
    if no_local and topic_filter.startswith(("$share/", "$queue/")):
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
        topic_filter, pos = decode_utf8(data, pos, end, "UNSUBSCRIBE: topic filter")
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
