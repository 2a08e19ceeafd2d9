"""The edge of one Twisted transport: the same channel behind any endpoint.

Used by the Twisted protocol (TLS, WebSocket, endpoint strings, tests in memory) where the epoll
engine does not hold the socket. The transport's producer calls say when the peer takes no more;
what comes meanwhile stays in `channel.out`, where the watermarks count it.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.tcp import Connection as TcpConnection

from mqttd.session.channel.channel import Channel, Server
from mqttd.session.ground.connection import Connection, Edge
from mqttd.session.ground.wheel import Timer
from mqttd.transports.linger import LAST

__all__ = ["StreamEdge"]


def _plain(transport: object) -> bool:
    """Whether it can be half-closed; TLS of Twisted's waits for its peer by itself."""
    return isinstance(transport, TcpConnection) and not transport.TLS


class _Parting(Timer):
    """The end of a half-closed connection whose peer does not go."""

    __slots__ = ("transport",)

    def __init__(self, transport: Any) -> None:
        super().__init__()
        self.transport: Any = transport

    def due(self, now: int) -> None:
        """It has had its second."""
        self.transport.loseConnection()


class StreamEdge(Edge):
    """Writes of one channel go to `transport.write`; it is an IPushProducer for the way back."""

    #: Our half is closed, the rest of it soon.
    parting: _Parting | None = None

    def __init__(self, server: Server, transport: Any, host: str, port: int) -> None:
        self.server = server
        self.transport: Any = transport
        self.host = host
        self.port = port
        self.channel: Channel | None = None
        #: What is known of the peer beyond its address, a `PeerIdentity`.
        self.known: object | None = None

    def flush(self, channel: Connection) -> None:
        """Hand everything to the transport."""
        out = channel.out
        if out is None:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        channel.out = None
        channel.out_bytes = 0
        self.server.metrics.bytes_sent += len(data)
        channel.bytes_sent += len(data)
        self.transport.write(data)
        if not channel.blocked:
            self._room(channel)

    def _room(self, channel: Connection) -> None:
        if channel.backlogged:
            self.server.backlog -= channel.backlogged
            channel.backlogged = 0
        if channel.thirsty:
            channel.thirsty = False
            self.server.thirsty.append(channel)

    def shut(self, channel: Connection) -> None:
        """Close after what was written."""
        self.server.backlog -= channel.backlogged
        channel.backlogged = 0
        transport = self.transport
        if channel.reason_code and channel.version and _plain(transport):
            # So that a peer in the middle of writing can read why it has to go.
            transport.resumeProducing()
            transport.loseWriteConnection()
            self.parting = _Parting(transport)
            self.server.wheel.schedule(self.parting, self.server.now + LAST)
        else:
            transport.loseConnection()

    def drop(self, channel: Connection) -> None:
        """Close without what the peer has not read."""
        abort = getattr(self.transport, "abortConnection", None)
        if abort is not None:
            abort()

    def pause(self, channel: Connection) -> None:
        """Stop reading."""
        self.transport.pauseProducing()

    def resume(self, channel: Connection) -> None:
        """Read again."""
        self.transport.resumeProducing()

    def peer(self, channel: Connection) -> tuple[str, int]:
        """The peer's address."""
        return (self.host, self.port)

    def identity(self, channel: Connection) -> object | None:
        """What is known of the peer."""
        return self.known

    # -- IPushProducer: the transport's buffer is full, has room, is gone ----------------------

    def pauseProducing(self) -> None:
        """The peer takes no more for now."""
        if self.channel is not None:
            self.channel.blocked = True
            self.server.slow[self.channel] = self.server.now

    def resumeProducing(self) -> None:
        """The peer takes more."""
        channel = self.channel
        if channel is not None and channel.blocked:
            channel.blocked = False
            if channel.out is not None:
                self.flush(channel)
            else:
                self._room(channel)
            self.server.perform()

    def stopProducing(self) -> None:
        """The connection is gone; `connectionLost` tells the channel."""
        if self.parting is not None:
            self.server.wheel.cancel(self.parting)
            self.parting = None
