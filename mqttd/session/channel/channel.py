"""The protocol machine of one connection: bytes in, effects out (EMQ's channel).

          CONNECT            accepted                DISCONNECT, fault, loss
    NEW ----------> WAITING ----------> OPEN ------------------------------> CLOSED
     |                 | refused: CONNACK, close                               ^
     +-----------------+-------------------------------------------------------+

What a channel is made of, each layer knowing those below it:

    Connection     output, reading, end              Acknowledging   what clients answer
    Publisher      who may publish where             Framing         bytes to packets
    General        the general way of a PUBLISH      Leaving         DISCONNECT, behind answers
    Forwarding     PUBLISH as bytes                  Channel         CONNECT, all else, time

No Twisted, no socket, no clock here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.frame import header
from mqttd.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from mqttd.codec.parser import check_direction, parse_packet
from mqttd.codec.properties import Properties
from mqttd.codec.reasons import MqttError, PacketTooLarge, ProtocolViolation
from mqttd.codec.serializer import serialize, serialize_within
from mqttd.session.channel.framing import FEW
from mqttd.session.channel.leaving import Leaving
from mqttd.session.ground.account import properties_weight, text_weight
from mqttd.session.ground.aliases import Aliases
from mqttd.session.ground.connection import CLOSED, NEW, OPEN, WAITING, Edge
from mqttd.session.ground.unfinished import Unfinished
from mqttd.session.publish.general import Router
from mqttd.session.routes.receiver import NO_LIMIT
from mqttd.session.session import Session

if TYPE_CHECKING:
    from mypy_extensions import i32

__all__ = ["CLOSED", "NEW", "OPEN", "STATES", "WAITING", "Channel", "Server"]

#: State -> name and the states that may follow (drawn in docs/design/session.md).
STATES: Final[dict[int, tuple[str, tuple[int, ...]]]] = {
    NEW: ("new", (WAITING, CLOSED)),
    WAITING: ("waiting", (OPEN, CLOSED)),
    OPEN: ("open", (CLOSED,)),
    CLOSED: ("closed", ()),
}

#: A CONNECT and what is known of its client while it is decided on, beside what it says.
_CONNECT: Final = 1000
#: CONNACK of 3.1 and 3.1.1: accepted, without and with a session present.
_CONNACK_NEW: Final = b"\x20\x02\x00\x00"
_CONNACK_PRESENT: Final = b"\x20\x02\x01\x00"


class Server(Router):
    """What channels ask of the broker, and tell it."""

    def connect_timeout(self, listener: str) -> int:
        """Milliseconds from an accepted connection to its CONNECT."""
        return self.settings.connect_timeout

    def open(self, channel: Channel, connect: Connect) -> None:
        """A CONNECT came: authenticate, then `channel.accept` or `channel.refuse`."""
        raise NotImplementedError

    def auth(self, channel: Channel, packet: Auth) -> None:
        """An AUTH packet came: a step of an authentication, or a new one."""
        raise NotImplementedError

    def subscribe(self, channel: Channel, packet: Subscribe) -> None:
        """Serve a SUBSCRIBE: SUBACK and retained messages go to the channel's output."""
        raise NotImplementedError

    def unsubscribe(self, channel: Channel, packet: Unsubscribe) -> None:
        """Serve an UNSUBSCRIBE."""
        raise NotImplementedError

    def closed(self, channel: Channel) -> None:
        """The channel's connection is gone; its session ends, expires later or waits."""
        raise NotImplementedError

    def ended(self, channel: Channel) -> None:
        """The connection of a client that was let in is over: log it."""

    def fault(self, channel: Channel, error: MqttError, packet_type: int) -> None:
        """The peer broke the rules: count and log it."""
        raise NotImplementedError

    def refused(self, channel: Channel, reason: str) -> None:
        """The layers below MQTT did not let the peer in: count and log it."""
        raise NotImplementedError

    def turned_away(self, listener: str, host: str, port: int) -> None:
        """An address may not connect to this listener: log it."""

    def house_full(self, listener: str, host: str) -> None:
        """An address has as many connections to this listener as it may: log it."""

    def line_full(self, listener: str, host: str) -> None:
        """Too many wait to be let in by this listener: the last of this address goes; log it."""

    def accept_paused(self, listener: str, why: str, connections: int) -> None:
        """A listener accepts nobody for now, or ("") goes on."""

    def limited(self, channel: Channel) -> None:
        """A connection sends faster than it may: it is not read from for a while."""

    def handle_info(self, session: Session, info: object) -> None:
        """Somebody sent a client's channel a piece of information."""
        raise NotImplementedError


class Channel(Leaving):
    """One connection. The transport calls `feed` and `lost`; see `Edge` for the other way.

    Arguments: the server, the edge that carries the bytes, and the transport's descriptor (`fd`,
    -1 when it has none of its own), the listener's name.
    """

    __slots__ = ("assigned", "auth", "challenged", "connect", "keepalive", "since")

    def __init__(self, server: Server, edge: Edge, fd: int, listener: str) -> None:
        super().__init__(server, edge, fd, listener)
        #: The client was sent AUTH, and its answer is read before the CONNECT is decided on.
        self.challenged: bool = False
        #: The broker chose the client id.
        self.assigned: bool = False
        self.keepalive: i32 = 0
        #: The CONNECT, while authentication is under way.
        self.connect: Connect | None = None
        #: How the client got in: the name of what let it in, or more; the server's own business.
        self.auth: object | None = None
        #: When the CONNECT was accepted.
        self.since: int = 0
        server.wheel.schedule(self, server.now + server.connect_timeout(listener))
        self.arrive()

    @property
    def server(self) -> Server:
        """The connection's `router`."""
        return cast(Server, self.router)

    def drained(self) -> None:
        """The edge wrote everything: what waited for room goes on."""
        self.thirsty = False
        session = self.session
        if session is not None and self.state == OPEN:
            self.resume()
            session.drain()

    # -- input ---------------------------------------------------------------------------------

    def hold(self, data: bytes) -> None:
        """Keep what comes while authentication is under way, and stop reading."""
        if not data:
            return
        rest = self.rest
        self.rest = Unfinished(data if rest is None else rest.whole() + data, 0)
        if self.challenged:
            self._answered()
        else:
            self.pause()

    def _answered(self) -> None:
        """Serve the AUTH packets of an authentication under way (MQTT-3.1.2-30)."""
        server = self.server
        try:
            while self.challenged and self.rest is not None:
                data = self.rest.whole()
                if data and data[0] & 0xF0 not in (0xE0, 0xF0):
                    # Judged by its type alone: CONNACK has no codes for what else is wrong with it.
                    raise ProtocolViolation("a packet other than AUTH before CONNACK")
                length, start = header(data, 0, len(data))
                end = start + length
                if max(end, len(data)) > server.settings.max_connect_size:
                    raise PacketTooLarge("more than one CONNECT may have, before CONNACK")
                if not end or end > len(data):
                    return
                self.rest = Unfinished(data[end:], 0) if end < len(data) else None
                packet = parse_packet(data[0], data[start:end], self.version)
                if isinstance(packet, Disconnect):
                    self.end("client disconnected")
                else:
                    assert isinstance(packet, Auth)
                    self.last = server.now
                    self.challenged = False
                    server.auth(self, packet)
        except MqttError as error:
            server.metrics.malformed_packets += 1
            server.fault(self, error, 15)
            self.refuse(error.reason_code, error.detail)
            return
        if self.state == OPEN:
            self.resume_input()
        elif self.state == WAITING and not self.challenged:
            self.pause()

    # -- everything else -----------------------------------------------------------------------

    def take_packet(self, first: int, body: bytes) -> None:
        """Any packet that the loop does not serve itself."""
        kind = first >> 4
        self.server.packet_type = kind
        self.parses(len(body))
        if self.state == NEW:
            connect = parse_packet(first, body, 4)
            assert isinstance(connect, Connect)
            self._connect(connect)
            return
        if kind == 1:
            raise ProtocolViolation("a second CONNECT")
        if kind in (2, 9, 11, 13) or kind == 0:
            raise ProtocolViolation(f"packet type {kind} from a client")
        if len(body) > FEW:
            self.check_size(kind, body)
        packet = parse_packet(first, body, self.version)
        check_direction(packet, True)
        if isinstance(packet, Subscribe):
            self.server.subscribe(self, packet)
        elif isinstance(packet, Unsubscribe):
            self.server.unsubscribe(self, packet)
        elif isinstance(packet, Disconnect):
            self.take_disconnect(packet)
        elif isinstance(packet, Puback):
            self.take_puback(packet.packet_id, packet.reason_code)
        elif isinstance(packet, Pubrec):
            self.take_pubrec(packet.packet_id, packet.reason_code)
        elif isinstance(packet, Pubrel):
            self.take_pubrel(packet.packet_id)
        elif isinstance(packet, Pubcomp):
            self.take_pubcomp(packet.packet_id)
        elif isinstance(packet, Auth):
            self.server.auth(self, packet)
        else:
            raise ProtocolViolation(f"packet type {kind} out of place")

    def _connect(self, connect: Connect) -> None:
        self.version = connect.version
        self.v5 = connect.version == 5
        if self.v5:
            properties = connect.properties
            if properties is not None and properties.get(prop.REQUEST_PROBLEM_INFORMATION) == 0:
                self.quiet = True
        self.state = WAITING
        self.connect = connect
        self.asking = _weight_of(connect)
        self.weigh()
        self.server.open(self, connect)

    def accept(
        self, session: Session, session_present: bool, properties: Properties | None
    ) -> None:
        """The server accepts the CONNECT: CONNACK, what is pending, then what was held back."""
        connect = self.connect
        assert connect is not None
        server = self.server
        settings = server.settings
        self.connect = None
        self.state = OPEN
        self.let_in()
        self.session = session
        if not self.largest:
            self.largest = settings.max_packet_size
        keep_alive = connect.keep_alive
        if settings.server_keepalive_seconds:
            keep_alive = settings.server_keepalive_seconds
        patience = int(keep_alive * 1000 * settings.keepalive_multiplier)
        self.keepalive = patience
        self.last = self.since = server.now
        if patience:
            server.wheel.schedule(self, self.last + patience)
        else:
            server.wheel.cancel(self)
        receive_maximum = max_packet = 0
        if connect.properties is not None:
            receive_maximum = _int(connect.properties, prop.RECEIVE_MAXIMUM)
            max_packet = _int(connect.properties, prop.MAXIMUM_PACKET_SIZE)
            alias_maximum = _int(connect.properties, prop.TOPIC_ALIAS_MAXIMUM)
            if alias_maximum and settings.outbound_topic_alias:
                self.aliases = Aliases(alias_maximum, server.account)
        self.special = self.apart()
        if self.v5:
            # That it fits was seen to before; what may be left out is.
            largest = max_packet if max_packet else NO_LIMIT
            self.send(serialize_within(Connack(session_present, 0, properties), largest))
        else:
            # MQTT 3.1 has no session present: the byte is "reserved".
            present = session_present and self.version == 4
            self.send(_CONNACK_PRESENT if present else _CONNACK_NEW)
        session.attach(self, receive_maximum, max_packet)
        session.resend()

    def resume_input(self) -> None:
        """After a late `accept`: handle what came meanwhile and read again."""
        self.resume()
        if self.challenged:
            self._answered()
            return
        rest = self.rest
        if rest is not None and self.state == OPEN:
            self.rest = None
            if self.intake is None:
                self.packets(rest.whole())
            else:
                self.intake.take(rest.whole())
            self.weigh()

    def refuse(self, code: int, detail: str, properties: Properties | None = None) -> None:
        """The server refuses the CONNECT: CONNACK with the reason, then close."""
        if self.state != WAITING:
            return
        largest = self.takes()
        self.connect = None
        self.reason_code = code
        self.server.metrics.connects_refused += 1
        if self.v5:
            wire = serialize_within(Connack(False, code, properties), largest)
            if wire:
                self.send(wire)
        else:
            self.send(bytes((0x20, 2, 0, reasons.to_connack_v3(code))))
        self.end(detail)

    def takes(self) -> int:
        """The largest packet that the client takes, its Maximum Packet Size (MQTT-3.1.2-24)."""
        session = self.session
        if session is not None:
            return session.max_packet
        connect = self.connect
        if connect is None or connect.properties is None:
            return NO_LIMIT
        largest = _int(connect.properties, prop.MAXIMUM_PACKET_SIZE)
        return largest if largest else NO_LIMIT

    def send_info(self, info: object) -> None:
        """Tell the client something: hook client.handle_info turns it into messages for it."""
        session = self.session
        if session is not None and self.state == OPEN:
            self.server.handle_info(session, info)

    # -- end -----------------------------------------------------------------------------------

    def due(self, now: int) -> None:
        """Time-out of the first byte or of CONNECT, or keep alive."""
        if self.state in (NEW, WAITING):
            at = self.last + self.server.connect_timeout(self.listener)
            if self.state == NEW and now < at:
                if self.rest is not None:
                    self.server.wheel.schedule(self, at)
                    return
                if self.need < 0:
                    self.server.metrics.first_byte_timeouts += 1
                    self._too_late("not a byte in time")
                    return
            self.server.metrics.connect_timeouts += 1
            self._too_late("no CONNECT in time")
        elif self.leaving:
            self.left()  # no answer in time
        elif self.state == OPEN and self.keepalive:
            if self.paused and not self.blocked:
                self.last = now  # it is we who do not read
            patience: int = self.keepalive
            if now - self.last >= patience:
                self.server.metrics.keepalive_timeouts += 1
                self.close(reasons.KEEP_ALIVE_TIMEOUT, "keep alive timeout")
            else:
                self.server.wheel.schedule(self, self.last + patience)

    def make_room(self) -> None:
        """Those who have not been let in hold too much, and this is the oldest of them."""
        self.server.metrics.memory_unauthenticated_closed += 1
        self.server.refused(self, "too much is held for clients that are not let in")
        self.end("no room before authentication")
        self.let_in()  # of those who wait to be it is none any more, whatever its edge still holds

    def _too_late(self, reason: str) -> None:
        self.server.refused(self, reason)
        self.close(reasons.KEEP_ALIVE_TIMEOUT, reason)

    def fail(self, error: MqttError, packet_type: int) -> None:
        """The peer broke the rules: log, answer as its version allows, close behind answers."""
        self.server.metrics.malformed_packets += 1
        self.server.fault(self, error, packet_type)
        if self.state == NEW and isinstance(error, reasons.UnsupportedVersion):
            self.send(b"\x20\x02\x00\x01")
        if isinstance(error, reasons.ReceiveMaximumExceeded):
            self.close(error.reason_code, error.detail)  # too many wait already
        else:
            self.part(error.reason_code, error.detail)

    def close(self, code: int, detail: str) -> None:
        """End the connection from our side, with DISCONNECT where 5.0 has one."""
        if self.state == CLOSED:
            return
        self.reason_code = code
        if self.state == OPEN and self.v5 and not self.leaving:
            self.send(serialize(Disconnect(code, None), 5))
        self.end(detail)

    def end(self, detail: str) -> None:
        """The connection is over: nothing more is read, what is due is written, then closed."""
        opened = self.state == OPEN
        super().end(detail)
        self.rest = None
        if opened:
            self.server.ended(self)

    def lost(self) -> None:
        """The connection is gone (called by the edge, once); the session goes its own way."""
        if self.state != CLOSED:
            opened = self.state == OPEN
            self.state = CLOSED
            if not self.close_reason:
                self.close_reason = "connection lost"
            if opened:
                self.server.ended(self)
        self.server.wheel.cancel(self)
        if self.intake is not None:
            self.intake.close()
            self.intake = None
        if self.server.slow:
            self.server.slow.pop(self, None)
        if self.server.stalled:
            self.server.stalled.pop(self, None)
        self.server.closed(self)
        if self.promises is not None:
            self.promises.close()
            self.promises = None
        self.cool()
        self.session = None
        self.connect = None
        self.auth = None
        self.out = None
        self.out_bytes = 0
        self.out_at = 0
        self.rest = None
        self.depart()
        if self.aliases is not None:
            self.aliases.close()
            self.aliases = None
        self.mount = None
        self.io = None

    def info(self) -> dict[str, object]:
        """What the control API shows of a connection."""
        host, port = self.edge.peer(self)
        return {
            "peer": f"{host}:{port}",
            "listener": self.listener,
            "protocol": {3: "3.1", 4: "3.1.1", 5: "5.0"}.get(self.version, ""),
            "state": STATES[self.state][0],
            "out_bytes": self.out_bytes,
            "blocked": self.blocked,
            "keepalive_seconds": self.keepalive / 1000,
        }


def _weight_of(connect: Connect) -> int:
    """What a CONNECT takes while it is decided on."""
    weight = _CONNECT + len(connect.client_id) + properties_weight(connect.properties)
    if connect.username is not None:
        weight += text_weight(connect.username)
    if connect.password is not None:
        weight += len(connect.password)
    will = connect.will
    if will is not None:
        weight += len(will.topic) + len(will.payload) + properties_weight(will.properties)
    return weight


def _int(properties: Properties, name: int) -> int:
    value = properties.get(name)
    return value if isinstance(value, int) else 0
