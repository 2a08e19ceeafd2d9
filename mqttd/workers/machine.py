"""A node's share in a machine that has several of its cluster: a client stays at its node.

    CONNECT read --> hash(client id) -- here --> goes on
                     |
                     +-- a plain socket, and its node takes clients: its descriptor goes there
                     '-- all else goes on here

So who comes again is where its session is, whichever of the nodes that share a port the kernel has
chosen. It is a hint and no ownership, which is etcd's: a client may be at any node, and where its
own is away, drained, full or behind with what it is sent, it is served where it came.

Promise: nobody waits for a node, but for one that stands still and has not for `_STILL` ms yet.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Protocol

from mqttd.broker.broker import Broker
from mqttd.broker.connecting import Attempt
from mqttd.codec.packets import Connect
from mqttd.session.channel.channel import OPEN, WAITING, Channel
from mqttd.transports.engine import Engine
from mqttd.workers.handing import MOST, Handing, packed, unpacked, whole
from mqttd.workers.parent import Parent
from mqttd.workers.place import worker_of
from mqttd.workers.ways import Way

__all__ = ["Machine", "NodeMover"]

#: Milliseconds for which a node may leave what was sent to it, before others keep what is its.
_STILL: Final = 1000


class Member(Protocol):
    """A node, as others know it."""

    @property
    def ready(self) -> bool:
        """Whether it lets clients in."""


class View(Protocol):
    """Those that are there."""

    @property
    def members(self) -> Mapping[str, Member]:
        """By their names."""


class Nodes(Protocol):
    """The cluster, as far as it is needed here."""

    @property
    def view(self) -> View:
        """What is known of all of its nodes."""

    @property
    def minority(self) -> bool:
        """Whether the others do not count with this node."""


class NodeMover(Handing):
    """Sends connections to the nodes of the machine, `names`, of which this is `number`."""

    def __init__(
        self, broker: Broker, engine: Engine, nodes: Nodes, number: int, names: list[str]
    ) -> None:
        super().__init__(broker, engine, number, len(names))
        self.nodes = nodes
        self.names = names
        self.ways: dict[int, Way] = {}
        #: Since when a way has not been empty, in milliseconds.
        self.since: dict[int, int] = {}
        #: Those that go with the end of this turn; the one that goes on here just now.
        self._going: list[tuple[Channel, int]] = []
        self._kept: Channel | None = None

    def stays(self, channel: Channel, connect: Connect) -> bool:
        """Whether a client goes on here; one of another node goes with the end of this turn."""
        number = worker_of(connect.client_id, self.count)
        if number == self.number or self.crowd is not None or channel is self._kept:
            return True
        if not (_is_plain(channel, self.engine) and self._takes(number)):
            return True
        if self.nodes.minority and connect.client_id in self.broker.sessions:
            return True  # it would get no session there
        if not self._going:
            self.broker.soon(self.go)
        self._going.append((channel, number))
        self.leaving[channel.listener] += 1
        return False

    def _takes(self, number: int) -> bool:
        """Whether a node takes its clients over, and is quick to."""
        way, node = self.ways.get(number), self.nodes.view.members.get(self.names[number - 1])
        if way is None or way.fileno() < 0 or node is None or not node.ready:
            return False
        now = self.broker.now
        if not _unread(way.fileno()):
            self.since[number] = now
        return now - self.since.setdefault(number, now) < _STILL

    def go(self) -> None:
        """Those of this turn go."""
        going, self._going = self._going, []
        for channel, number in going:
            self.leaving[channel.listener] -= 1
            if channel.state == WAITING and not self._send(channel, number):
                self._keep(channel)
        self.broker.perform()

    def _send(self, channel: Channel, number: int) -> bool:
        way, data = self.ways[number], whole(channel)
        if way.fileno() < 0 or len(data) > MOST:
            return False
        try:
            sent = self.send(channel, data, way.end)
        except OSError:  # too large for the kernel, or it is just going
            return False
        # Each node has its figures by itself.
        self.broker.metrics.connections_closed += sent
        return sent

    def _keep(self, channel: Channel) -> None:
        """It goes on here after all."""
        connect = channel.connect
        assert connect is not None
        connecting = self.broker.connecting
        self._kept = channel
        try:
            connecting.advance(Attempt(connecting, channel, connect))
        except Exception as error:  # a fault of ours: the client must not wait for nothing
            self.broker.crashed(channel, error)
        finally:
            self._kept = None
        if channel.state == OPEN:
            channel.resume_input()

    def arrived(self, number: int, datagram: bytes, fd: int) -> None:
        """Node `number` has sent a connection; one that cannot be taken over goes back."""
        head, came = unpacked(datagram)
        listener, host, port, stays = head
        door = self.engine.by_name.get(listener)
        if door is not None and (stays or not (self._is_drained() or self.too_many(door, host))):
            self.broker.metrics.connections_accepted += 1
            self.take(door, host, port, came, fd, "")
            return
        if not stays and number in self.ways:
            self.ways[number].send(packed((listener, host, port, True), came), fd)
        os.close(fd)

    def _is_drained(self) -> bool:
        return self.broker.connecting.connacks.elsewhere is not None


class Machine:
    """What the parent of a node tells it of the other nodes of its machine."""

    def __init__(
        self, broker: Broker, engine: Engine, reactor: Any, parent: Parent, nodes: Nodes
    ) -> None:
        self.broker = broker
        self.engine = engine
        self.reactor = reactor
        self.nodes = nodes
        self.number = parent.number
        self.mover: NodeMover | None = None
        parent.told = self._told

    def _told(self, message: dict[str, Any], fds: list[int]) -> None:
        if "way" not in message or len(fds) != 1:
            return
        mover, number = self.mover, int(message["way"])
        if mover is None:
            mover = NodeMover(
                self.broker, self.engine, self.nodes, self.number, list(message["nodes"])
            )
            self.mover = self.broker.connecting.mover = mover
        if number in mover.ways:
            mover.ways[number].close()
        mover.ways[number] = Way(
            self.broker, self.reactor, number, fds[0], partial(mover.arrived, number)
        )

    def stop(self) -> None:
        """Nobody goes to another node any more, and nobody comes."""
        if self.mover is not None:
            self.broker.connecting.mover = None
            self.mover.go()
            for way in self.mover.ways.values():
                way.close()


def _is_plain(channel: Channel, engine: Engine) -> bool:
    """Whether all of a connection is in its descriptor, and its listener may be at any node."""
    return channel.edge is engine and channel.listener.startswith("tcp:")


def _unread(fd: int) -> int:
    """Bytes of a socket that its other end has not read."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0"))[0])
