"""A connection in memory: the transport below a broker's edge, and the peer at its other end.

broker <-- Channel <-- StreamEdge --> Wire (a transport that records) <-- Peer
"""

from __future__ import annotations

from collections.abc import Callable

from mqttd.broker.broker import Broker
from mqttd.codec.packets import Packet
from mqttd.codec.serializer import serialize
from mqttd.session.channel.channel import CLOSED, Channel
from mqttd.transports.stream import StreamEdge

__all__ = ["Peer", "Wire"]


class Wire:
    """A transport that keeps what is written; a peer that reads only what it wants to.

    `room` is how many bytes it takes before it asks to stop (None: no end). Like Twisted's
    transports it takes what is written all the same, and calls the edge back when it has room.
    """

    def __init__(self, room: int | None = None) -> None:
        self.edge: StreamEdge | None = None
        self.room = room
        self.waiting = bytearray()
        self.closed = False
        self.reading = True
        self.stopped = False
        self.writes = 0
        #: The most bytes that ever waited here.
        self.peak = 0
        #: Called when there is something to read.
        self.on_written: Callable[[], None] | None = None

    # What a StreamEdge asks of a transport.

    def write(self, data: bytes) -> None:
        """Keep what the broker writes."""
        self.writes += 1
        if self.closed:
            return
        self.waiting += data
        self.peak = max(self.peak, len(self.waiting))
        if self.on_written is not None:
            self.on_written()
        if self.room is not None and len(self.waiting) > self.room and not self.stopped:
            self.stopped = True
            assert self.edge is not None
            self.edge.pauseProducing()

    def loseConnection(self) -> None:
        """The broker closes."""
        self.closed = True

    def pauseProducing(self) -> None:
        """The broker reads no more for now."""
        self.reading = False

    def resumeProducing(self) -> None:
        """The broker reads again."""
        self.reading = True

    # What the peer does.

    def read(self, limit: int | None = None) -> bytes:
        """Take what has come, at most `limit` bytes; the edge hears of the room."""
        taken = bytes(self.waiting if limit is None else self.waiting[:limit])
        del self.waiting[: len(taken)]
        if self.stopped and not self.waiting:
            self.stopped = False
            if not self.closed and self.edge is not None:
                self.edge.resumeProducing()
        return taken


class Peer:
    """One connection as its peer sees it, in bytes and packets; `Wire` holds what the broker wrote.

    `room` is how many bytes its network takes while it does not read.
    """

    def __init__(
        self,
        broker: Broker,
        version: int,
        room: int | None,
        peer: tuple[str, int] = ("127.0.0.1", 40000),
    ) -> None:
        self.broker = broker
        self.version = version
        self.wire = Wire(room)
        edge = StreamEdge(broker, self.wire, *peer)
        self.wire.edge = edge
        self.channel = Channel(broker, edge, -1, "memory")
        edge.channel = self.channel
        broker.metrics.connections_accepted += 1

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""
        return self.channel.state == CLOSED

    def feed(self, data: bytes) -> None:
        """Bytes of this peer arrive: one turn of the broker."""
        self.channel.feed(data)
        self.broker.perform()

    def send(self, *packets: Packet) -> None:
        """These packets arrive in one chunk."""
        self.feed(b"".join([serialize(packet, self.version) for packet in packets]))

    def drop(self) -> None:
        """The connection breaks, without a DISCONNECT."""
        self.channel.end("connection lost")
        self.broker.perform()
