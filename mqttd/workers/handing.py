"""A connection that goes on in another process of its machine: what workers and nodes share of it.

    CONNECT is read --> one datagram: listener, address, the bytes read so far, and the descriptor
                    --> `adopt`: a channel of its own there, fed with these bytes

A connection counts where it stays: one too many for its listener or the open files, or as one that
comes for its address, is said to be (`too_many`).

Promise: nothing was done for the client before it goes but to look at its CONNECT.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.codec.serializer import serialize
from mqttd.session.channel.channel import Channel
from mqttd.session.ground.unfinished import Unfinished
from mqttd.transports.engine import Engine
from mqttd.transports.ports import Port
from mqttd.workers.place import worker_of

__all__ = ["FULL", "MOST", "Handing", "packed", "unpacked", "whole"]

#: Bytes of a datagram: a CONNECT, and what one read brought behind it.
MOST: Final = 1 << 20
FULL: Final = "there are max_connections"

#: Listener, host and port of the peer; whether it stays, wherever its client belongs.
Head = tuple[str, str, int, bool]


def packed(head: Head, data: bytes) -> bytes:
    """A datagram."""
    said = json.dumps(head).encode()
    return len(said).to_bytes(2, "big") + said + data


def unpacked(datagram: bytes) -> tuple[Head, bytes]:
    """What is in one."""
    size = int.from_bytes(datagram[:2], "big")
    listener, host, port, stays = json.loads(datagram[2 : 2 + size])
    return (listener, host, port, stays), datagram[2 + size :]


def whole(channel: Channel) -> bytes:
    """The CONNECT of one that waits, and what came behind it."""
    rest, connect = channel.rest, channel.connect
    assert connect is not None
    data = serialize(connect, connect.version)
    return data + rest.whole() if isinstance(rest, Unfinished) else data


class Handing:
    """Gives connections away and takes them over, as process `number` of `count`."""

    def __init__(self, broker: Broker, engine: Engine, number: int, count: int) -> None:
        self.broker = broker
        self.engine = engine
        self.number = number
        self.count = count
        #: How many are about to go, by listener.
        self.leaving: Counter[str] = Counter()
        #: How many more connections are accepted than may stay.
        self.passing = 0
        #: Why the connection that is taken over just now is one too many; None: none is.
        self.crowd: str | None = None

    def fresh_id(self) -> str:
        """A client id that belongs here."""
        while True:
            made = f"mqttd-{self.broker.next_message_id():x}"
            if worker_of(made, self.count) == self.number:
                return made

    def send(self, channel: Channel, data: bytes, way: socket.socket) -> bool:
        """Send one away with its bytes; False where the way is full. Raises OSError."""
        host, port = channel.edge.peer(channel)
        datagram = packed((channel.listener, host, port, False), data)
        try:
            socket.send_fds(way, [datagram], [channel.fd])
        except BlockingIOError:
            return False
        # The kernel's poll goes by the open file, which lives on elsewhere.
        self.engine.epoll.unregister(channel.fd)
        self.broker.metrics.connections_closed -= 1  # it is counted where it ends
        channel.end("moved to where its client belongs")
        return True

    def adopt(self, datagram: bytes, fd: int) -> bool:
        """Go on with a connection that another process has sent; False without its listener."""
        (listener, host, number, _), came = unpacked(datagram)
        port = self.engine.by_name.get(listener)
        if port is None:
            return False
        self.take(port, host, number, came, fd, self.too_many(port, host))
        return True

    def take(self, port: Port, host: str, number: int, came: bytes, fd: int, crowd: str) -> None:
        """It goes on here, from this address and with what has come of it."""
        engine, broker = self.engine, self.broker
        channel = Channel(broker, engine, fd, port.name)
        engine.channels.put(fd, channel)
        house = port.lobby.enter(channel, host, broker.now)
        channel.io = house
        if host != "unix":
            engine.fresh[fd] = (host, number)
        engine.epoll.register(fd, 1)
        port.connections += 1
        broker.metrics.bytes_received -= len(came)  # counted where they were read
        self.crowd = crowd
        try:
            channel.feed(came)
        except Exception as error:  # as in the edges: it must end this connection only
            broker.crashed(channel, error)
        finally:
            self.crowd = None
        port.lobby.heard(channel, house, broker.now)

    # -- one too many --------------------------------------------------------------------------

    def too_many(self, port: Port, host: str) -> str:
        """Why one that comes, of this address, is one too many; "" if it is not."""
        broker = self.broker
        why = self.full(port)
        if not why and self.engine.full(port) and not port.lobby.make_room("", broker.now):
            broker.metrics.accepts_paused_full += 1
            why = FULL
        if not why and not port.lobby.admits(host, broker.now):
            broker.metrics.refused_crowded += 1
            why = "this address has max_connections_per_address"
        return why

    def full(self, port: Port) -> str:
        """The same of the listener and the open files alone."""
        engine = self.engine
        room = 1
        if port.max_connections:
            room = port.max_connections - self.passing - self._stay(port)
        if room > 0 and engine.most:
            staying = sum(self._stay(each) for each in engine.ports.values())
            room = engine.most - min(self.passing, engine.most // 2) - staying
        if room > 0:
            return ""
        self.broker.metrics.accepts_paused_full += 1
        return FULL

    def _stay(self, port: Port) -> int:
        """Connections that are not about to leave, nor to say whose they are."""
        return port.connections - len(port.lobby.strangers) - self.leaving[port.name]
