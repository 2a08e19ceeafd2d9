"""A Twisted transport with layers above it: TLS aside, what `LayeredEdge` is to the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqttd.session.channel import CLOSED, Server
from mqttd.session.connection import Connection
from mqttd.transports.layers import MAX_ANSWERS, SERVED, Stack
from mqttd.transports.stream import StreamEdge

__all__ = ["LayeredStream"]


class LayeredStream(StreamEdge):
    """A Twisted transport with layers above it."""

    def __init__(self, server: Server, transport: Any, host: str, port: int, stack: Stack) -> None:
        self.server = server
        self.transport = transport
        self.host = host
        self.port = port
        self.channel = None
        self.known = None
        self.stack = stack
        #: Bytes of answers since the peer took no more.
        self.said = 0
        #: Called once a proxy has said for whom it comes; whether there is room for it.
        self.named: Callable[[Any], bool] | None = None

    def received(self, data: bytes) -> None:
        """Bytes from the transport."""
        channel = self.channel
        stack = self.stack
        over = stack.ended  # a copy: the type checker takes what it saw here for settled
        if channel is None or over or channel.state == CLOSED:
            return
        plain = stack.received(data)
        said = stack.answers()
        if said:
            self.transport.write(said)
            self.said = self.said + len(said) if channel.blocked else 0
            if self.said > MAX_ANSWERS:
                channel.end("reads none of the answers")
                self.drop(channel)
                return
        named = self.named
        if named is not None and stack.known is not None:
            self.named = None
            if not named(stack.known):
                return
        if plain:
            channel.feed(plain)
        if stack.ended and channel.state != CLOSED:
            if stack.shaking() and stack.ended != SERVED:
                self.server.refused(channel, stack.ended)
            channel.end(stack.ended)

    def flush(self, channel: Connection) -> None:
        """Hand everything to the transport, through the layers."""
        out = channel.out
        if out is None:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        channel.out = None
        channel.out_bytes = 0
        data = self.stack.sent(data)
        self.server.metrics.bytes_sent += len(data)
        channel.bytes_sent += len(data)
        self.transport.write(data)
        if not channel.blocked:
            self._room(channel)

    def shut(self, channel: Connection) -> None:
        """Say goodbye, close after what was written."""
        last = self.stack.closing()
        if last:
            self.transport.write(last)
        StreamEdge.shut(self, channel)

    def peer(self, channel: Connection) -> tuple[str, int]:
        """The peer's address: what the proxy said, else the transport's."""
        known: Any = self.stack.known
        if known is not None and known.host:
            return (known.host, known.port)
        return (self.host, self.port)

    def identity(self, channel: Connection) -> object | None:
        """What the layers know of the peer, else what the transport does."""
        known = self.stack.identity()
        return known if known is not None else StreamEdge.identity(self, channel)
