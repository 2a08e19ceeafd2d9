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

from mqttd.codec.bodies import parse_body
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
)
from mqttd.codec.packets import (
    Auth,
    Disconnect,
    Packet,
    Publish,
)
from mqttd.codec.properties import (
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
)
from mqttd.codec.reasons import (
    SENT_BY_CLIENT_ONLY,
    SENT_BY_SERVER_ONLY,
    MalformedPacket,
    MqttError,
    PacketTooLarge,
    ProtocolViolation,
)

__all__ = [
    "MAX_PACKET_SIZE",
    "Parser",
    "check_direction",
    "check_first_byte",
    "parse_packet",
]

MAX_PACKET_SIZE: Final = 268_435_460
"""Bytes of the largest packet: five of fixed header, and what four bytes of length say (2.1.4)."""

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
        packet = parse_body(first, data, pos, end, self.version)
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
    return parse_body(first, body, 0, len(body), version)


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
