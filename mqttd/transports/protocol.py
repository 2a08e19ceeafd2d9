"""MQTT as an ordinary Twisted protocol and factory, for any endpoint.

`MqttProtocol` feeds a channel and lets the node perform the effects once per reactor turn. It is
the portable door: TLS, WebSocket, Unix sockets, `iosim` tests, platforms without epoll.
"""

from __future__ import annotations

import time
from typing import Any

from twisted.internet import interfaces
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure
from zope.interface import classImplements

from mqttd.broker.broker import Broker
from mqttd.session.channel import Channel
from mqttd.transports.engine import Engine
from mqttd.transports.stream import StreamEdge

__all__ = ["MqttFactory", "MqttProtocol"]

# Declared here: compiled classes take no class decorators.
classImplements(StreamEdge, interfaces.IPushProducer)
classImplements(Engine, interfaces.IReadDescriptor)


class MqttProtocol(Protocol):
    """One connection. `channel` is its protocol machine."""

    factory: MqttFactory
    channel: Channel | None = None

    def connectionMade(self) -> None:
        """Make the channel and listen to the transport's back-pressure."""
        factory = self.factory
        peer = self.transport.getPeer()  # type: ignore[union-attr]
        edge = StreamEdge(
            factory.broker, self.transport, getattr(peer, "host", "unix"), getattr(peer, "port", 0)
        )
        factory.broker.now = factory.milliseconds()
        self.channel = Channel(factory.broker, edge, -1, factory.name)
        edge.channel = self.channel
        factory.broker.metrics.connections_accepted += 1
        factory.connections += 1
        self.transport.registerProducer(edge, True)  # type: ignore[union-attr]
        if factory.max_connections and factory.connections > factory.max_connections:
            factory.broker.metrics.connections_refused += 1
            self.channel.end("too many connections")
            factory.perform_soon()

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the peer."""
        channel = self.channel
        if channel is not None:
            self.factory.broker.now = self.factory.milliseconds()
            try:
                channel.feed(data)
            except Exception as error:  # a fault of ours must end this connection only
                self.factory.broker.crashed(channel, error)
            self.factory.perform_soon()

    def connectionLost(self, reason: Failure | None = None) -> None:
        """The connection is gone."""
        channel = self.channel
        self.channel = None
        self.factory.connections -= 1
        if channel is not None:
            channel.end("connection lost")
            self.factory.perform_soon()


class MqttFactory(Factory):
    """Builds protocols for one listener.

    Arguments: the broker; the listener's name; a reactor or clock with `callLater` and `seconds`;
    how many connections at most (0: no limit).
    """

    protocol = MqttProtocol  # type: ignore[assignment]
    noisy = False

    def __init__(self, broker: Broker, name: str, reactor: Any, max_connections: int = 0) -> None:
        self.broker = broker
        self.name = name
        self.reactor = reactor
        self.max_connections = max_connections
        self.connections = 0
        self._scheduled = False

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
