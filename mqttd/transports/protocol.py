"""MQTT as an ordinary Twisted protocol and factory, for any endpoint.

`MqttProtocol` feeds a channel and lets the server perform the effects once per reactor turn. It is
the portable door: TLS, WebSocket, Unix sockets, `iosim` tests, platforms without epoll. What lies
between a transport and MQTT is a `Stack` of layers, as on the engine, or Twisted's own TLS.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from twisted.internet import interfaces
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure
from zope.interface import classImplements, implementer

from mqttd.broker.broker import Broker
from mqttd.net.fair import FairQueue, house_of
from mqttd.session.channel.channel import CLOSED, NEW, Channel
from mqttd.transports.engine import Engine
from mqttd.transports.layered_stream import LayeredStream
from mqttd.transports.layers import Stack
from mqttd.transports.lobby import House, Lobby
from mqttd.transports.ports import WAITING
from mqttd.transports.stream import StreamEdge
from mqttd.types import PeerIdentity

__all__ = ["MqttFactory", "MqttProtocol"]

#: Connections that begin in one turn, and seconds between two looks at those who wait.
_MOST: Final = 64
_LINES: Final = 0.01

# Declared here: compiled classes take no class decorators.
classImplements(StreamEdge, interfaces.IPushProducer)
classImplements(Engine, interfaces.IReadDescriptor)


@implementer(interfaces.IHandshakeListener, interfaces.IHalfCloseableProtocol)
class MqttProtocol(Protocol):
    """One connection. `channel` is its protocol machine, `layers` what lies below it."""

    factory: MqttFactory
    channel: Channel | None = None
    layers: LayeredStream | None = None
    counted = False
    house: House | None = None
    #: What the peer has been seen to speak instead, or what broke its TLS handshake.
    wrong = ""
    #: What has come of something that is one piece.
    pieces: list[bytes] | None = None

    def connectionMade(self) -> None:
        """Begin, or stand in line."""
        factory = self.factory
        self.counted = True
        factory.connections += 1
        host, port = self.peer()
        if not factory.admits(host, port):
            self.transport.abortConnection()  # type: ignore[union-attr]
        elif factory.may_begin():
            self.begin()
        else:
            self.transport.pauseProducing()  # type: ignore[union-attr]
            factory.stand_in_line(self, host)

    def peer(self) -> tuple[str, int]:
        """The address and port at the other end of the transport."""
        peer = self.transport.getPeer()  # type: ignore[union-attr]
        return getattr(peer, "host", "unix"), getattr(peer, "port", 0)

    def leave_line(self) -> None:
        """It is its turn, and the peer is there still."""
        if self.counted:
            self.begin()
            self.transport.resumeProducing()  # type: ignore[union-attr]

    def begin(self) -> None:
        """Make the channel and listen to the transport's back-pressure."""
        factory = self.factory
        host, port = self.peer()
        edge: StreamEdge
        if factory.make is None:
            edge = StreamEdge(factory.broker, self.transport, host, port)
        else:
            stack = factory.make((host, port))
            if stack is None:
                factory.broker.metrics.connections_refused += 1
                self.transport.abortConnection()  # type: ignore[union-attr]
                return
            edge = LayeredStream(factory.broker, self.transport, host, port, stack)
            self.layers = edge
        known = factory.identify_transport(self.transport)
        if known is not None:
            edge.known = known
            if known.host:
                edge.host, edge.port = known.host, known.port
        factory.broker.now = now = factory.milliseconds()
        # A proxy that has said for whom it comes, below TLS, is one that has been believed.
        whose = edge.host if not factory.proxied or known is not None and known.host else ""
        if not factory.lobby.admits(whose, now):
            factory.broker.house_full(factory.name, whose)
            self.transport.abortConnection()  # type: ignore[union-attr]
            return
        channel = Channel(factory.broker, edge, -1, factory.name)
        self.channel = edge.channel = channel
        self.house = factory.lobby.enter(channel, whose, now)
        if self.layers is not None and not whose:
            self.layers.named = self._named
        first = factory.first_byte_timeout
        if first and first < factory.broker.connect_timeout(factory.name):
            channel.need = -1
            factory.broker.wheel.schedule(channel, factory.broker.now + first)
        factory.broker.metrics.connections_accepted += 1
        factory.open.add(self)
        self.transport.registerProducer(edge, True)  # type: ignore[union-attr]
        if factory.max_connections and factory.connections > factory.max_connections:
            factory.broker.metrics.connections_refused += 1
            self.channel.end("too many connections")
            factory.perform_soon()

    def gather(self) -> None:
        """Take what comes until `gathered` for one piece."""
        self.pieces = []

    def gathered(self) -> None:
        """All of it has come."""
        pieces, self.pieces = self.pieces, None
        if pieces:
            self.dataReceived(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the peer."""
        if self.pieces is not None:
            self.pieces.append(data)
            return
        channel = self.channel
        if channel is not None:
            new = channel.state == NEW
            self.factory.broker.now = self.factory.milliseconds()
            try:
                if self.layers is not None:
                    self.layers.received(data)
                else:
                    channel.feed(data)
            except Exception as error:  # a fault of ours must end this connection only
                self.factory.broker.crashed(channel, error)
            if new and self.house is not None:
                self.factory.lobby.heard(channel, self.house, self.factory.broker.now)
            self.factory.perform_soon()

    def _named(self, known: Any) -> bool:
        """A proxy has said for whom it comes; whether there is room for one more of that house."""
        factory, house, channel = self.factory, self.house, self.channel
        if house is None or channel is None or not known.host:
            return True
        moved = factory.lobby.move(channel, house, str(known.host), factory.broker.now)
        if moved is None:
            factory.broker.house_full(factory.name, str(known.host))
            channel.end("too many connections of this address")
            return False
        self.house = moved
        return True

    def handshakeCompleted(self) -> None:
        """Twisted's TLS is there: learn who the client is by its certificate."""
        channel = self.channel
        certificate = self.transport.getPeerCertificate()  # type: ignore[union-attr]
        if channel is not None and certificate is not None and channel.state != CLOSED:
            self.factory.know_certificate(channel.edge, certificate)

    def readConnectionLost(self) -> None:
        """Nothing more comes from the peer, which may read yet."""
        channel = self.channel
        if channel is None or channel.state == CLOSED:
            self.transport.loseConnection()  # type: ignore[union-attr]
        else:
            channel.input_ended("closed by the client")
            self.factory.perform_soon()

    def writeConnectionLost(self) -> None:
        """Our half is closed: `StreamEdge.shut`."""

    def connectionLost(self, reason: Failure | None = None) -> None:
        """The connection is gone."""
        channel = self.channel
        self.channel = None
        if self.counted:
            self.counted = False
            self.factory.connections -= 1
            self.factory.make_room()
        self.factory.open.discard(self)
        house, self.house = self.house, None
        if channel is not None and house is not None:
            self.factory.lobby.left(channel, house)
        if channel is not None:
            if channel.version == 0 and (wrong := self.wrong or _tls_fault(reason)):
                self.factory.broker.refused(channel, wrong)
            channel.end("connection lost")
            self.factory.perform_soon()


class MqttFactory(Factory):
    """Builds protocols for one listener.

    Arguments: the broker; the listener's name; a reactor or clock with `callLater` and `seconds`;
    how many connections at most (0: no limit); `make(address)`, which gives the layers of a new
    connection or None to refuse it.
    """

    protocol = MqttProtocol  # type: ignore[assignment]
    noisy = False

    def __init__(
        self,
        broker: Broker,
        name: str,
        reactor: Any,
        max_connections: int = 0,
        make: Callable[[Any], Stack | None] | None = None,
    ) -> None:
        self.broker = broker
        self.name = name
        self.reactor = reactor
        self.max_connections = max_connections
        self.make = make
        #: What is known of a new transport's peer, and of a certificate (pyOpenSSL's X509).
        self.identify_transport: Callable[[Any], PeerIdentity | None] = lambda transport: None
        self.identify_certificate: Callable[[Any], PeerIdentity | None] = lambda certificate: None
        #: The listening port, which is not read from while there is no room, if it `waits`: else
        #: who comes then is closed.
        self.port: Any = None
        self.waits = True
        #: Address rules and accept rate, an `Admission`.
        self.gate: Any = None
        #: Milliseconds a connection without layers has for its first byte; 0: as for CONNECT.
        self.first_byte_timeout = 0
        #: Who is connected, by address; `proxied` where proxies say that.
        self.lobby = Lobby()
        self.proxied = False
        #: Who came faster than `gate` allows, `waiting_most` of them, until it is their turn.
        self.line: FairQueue[MqttProtocol] = FairQueue(0, 0)
        self.waiting_most = WAITING
        self.crowded = False
        self.paused = ""
        self._again: Any = None
        self.connections = 0
        self.open: set[MqttProtocol] = set()
        self._scheduled = False

    def admits(self, host: str, port: int) -> bool:
        """Whether a new connection may stay; stops accepting where it was the last for now."""
        broker, gate = self.broker, self.gate
        if gate is not None and not gate.allows(host):
            broker.metrics.connections_refused += 1
            broker.turned_away(self.name, host, port)
            return False
        if self.waits and self._full() and self._pause("full"):
            broker.metrics.accepts_paused_full += 1
        return True

    def may_begin(self) -> bool:
        """Whether a new connection comes no faster than it may, and nobody waits before it."""
        gate = self.gate
        if gate is None:
            return True
        if len(self.line) or not gate.room(self.milliseconds(), 1):
            return False
        gate.take(1)
        return True

    def stand_in_line(self, protocol: MqttProtocol, host: str) -> None:
        """It is not read from until its turn, a house after the other; or somebody has to go."""
        line = self.line
        line.most = line.each = self.waiting_most
        gone = line.join(house_of(host), protocol)
        if gone is not None:
            self.broker.line_full(self.name, gone.peer()[0])
            gone.transport.abortConnection()  # type: ignore[union-attr]
        if len(line) and not self.crowded:
            self.crowded = True
            self.broker.metrics.accepts_paused_rate += 1
            self.broker.accept_paused(self.name, "rate", self.connections)
        self._look_again()

    def serve_line(self) -> None:
        """Let those begin who wait, as many as may now."""
        gate, line = self.gate, self.line
        room = _MOST if gate is None else gate.room(self.milliseconds(), _MOST)
        for _ in range(min(room, len(line))):
            if gate is not None:
                gate.take(1)
            line.next().leave_line()
        if len(line):
            self._look_again()
        elif self.crowded:
            self.crowded = False
            if not self.paused:
                self.broker.accept_paused(self.name, "", self.connections)

    def _look_again(self) -> None:
        if len(self.line) and (self._again is None or not self._again.active()):
            wait = 0 if self.gate is None else self.gate.wait(self.milliseconds())
            self._again = self.reactor.callLater(max(wait / 1000, _LINES), self.serve_line)

    def _full(self) -> bool:
        return bool(self.max_connections) and self.connections >= self.max_connections

    def _pause(self, why: str) -> bool:
        """Leave further connections to the kernel, where the port is known."""
        if self.paused or self.port is None:
            return False
        self.paused = why
        self.port.stopReading()
        self.broker.accept_paused(self.name, why, self.connections)
        return True

    def make_room(self) -> None:
        """Accept again where there is room."""
        if not self.paused or self._full():
            return
        self.paused = ""
        if getattr(self.port, "connected", True):
            self.port.startReading()
        self.broker.accept_paused(self.name, "", self.connections)

    def know_certificate(self, edge: Any, certificate: Any) -> None:
        """A peer has shown a certificate: what a proxy said of its address stays."""
        identity = self.identify_certificate(certificate)
        if identity is not None:
            identity.host, identity.port = edge.host, edge.port
            edge.known = identity

    def close_all(self) -> None:
        """The listener stops: tell every client, close."""
        for protocol in list(self.open):
            if protocol.channel is not None:
                protocol.channel.close(0x8B, "listener stopped")
        while len(self.line):
            self.line.next().transport.abortConnection()  # type: ignore[union-attr]
        self.broker.perform()

    def milliseconds(self) -> int:
        """Monotonic milliseconds: the reactor's clock where it is a test's, else the system's."""
        if hasattr(self.reactor, "advance"):
            return int(self.reactor.seconds() * 1000)
        return time.monotonic_ns() // 1_000_000

    def perform_soon(self) -> None:
        """Flush once at the end of this reactor turn."""
        if not self._scheduled:
            self._scheduled = True
            self.reactor.callLater(0, self._perform)

    def _perform(self) -> None:
        self._scheduled = False
        self.broker.perform()


def _tls_fault(reason: Failure | None) -> str:
    """OpenSSL's word for why a handshake failed; empty for any other end."""
    errors = getattr(getattr(reason, "value", None), "args", ())
    if reason is None or type(reason.value).__module__ != "OpenSSL.SSL" or not errors:
        return ""
    try:
        return f"TLS handshake failed: {errors[0][-1][2]}"
    except (IndexError, TypeError):
        return "TLS handshake failed"
