"""A Twisted transport with layers above it: TLS aside, what `LayeredEdge` is to the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqttd.session.channel.channel import CLOSED, Channel, Server
from mqttd.session.ground.connection import Connection
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
        #: As in `LayeredEdge`.
        self.left: int = 0
        self.lined: bool = False
        #: Called once a proxy has said for whom it comes; whether there is room for it.
        self.named: Callable[[Any], bool] | None = None

    def received(self, data: bytes) -> None:
        """Bytes from the transport."""
        channel = self.channel
        stack = self.stack
        over = stack.ended  # a copy: the type checker takes what it saw here for settled
        if channel is None or over or channel.state == CLOSED:
            return
        self._took(channel, stack.received(data))

    def step(self) -> bool:
        """See `Edge.step`."""
        channel = self.channel
        if channel is None:
            return False
        if self._may_go_on(channel):
            try:
                self._took(channel, self.stack.go_on())
            except Exception as error:  # as where bytes come
                self.server.crashed(channel, error)
        self.lined = self._may_go_on(channel)
        return self.lined

    def _may_go_on(self, channel: Connection) -> bool:
        return self.left > 0 and not channel.paused and channel.state != CLOSED

    def _took(self, channel: Channel, plain: bytes) -> None:
        """As `LayeredEdge`'s."""
        stack = self.stack
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
        if stack.work or self.left:
            left = stack.behind()
            if left != self.left:
                self._put_off(channel, left)
        if stack.ended and channel.state != CLOSED:
            if stack.shaking() and stack.ended != SERVED:
                self.server.refused(channel, stack.ended)
            if stack.half:
                channel.input_ended(stack.ended)
            else:
                channel.end(stack.ended)

    def _put_off(self, channel: Channel, left: int) -> None:
        """So much is left for later turns; it is read from when nothing is."""
        began = self.left == 0
        self.left = left
        channel.weigh()
        if channel.state == CLOSED:
            return
        if began:
            self.transport.pauseProducing()
        elif not left and not channel.paused:
            self.transport.resumeProducing()
        self._line_up(channel)

    def _line_up(self, channel: Connection) -> None:
        if not self.lined and self._may_go_on(channel):
            self.lined = True
            self.server.step_later(self)

    def resume(self, channel: Connection) -> None:
        """Read again, behind what has been put off."""
        if self.left:
            self._line_up(channel)
        else:
            StreamEdge.resume(self, channel)

    def behind(self, channel: Connection) -> int:
        """See `Edge.behind`."""
        return self.left

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
