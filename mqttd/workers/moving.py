"""Where a connection goes whose client belongs to another worker.

    CONNECT --> hash(client id) -- here --> goes on
                     |
                     +-- a plain socket: its descriptor and the bytes read so far, in one datagram
                     '-- all else (TLS, WebSocket, PROXY, a Unix socket) stays, and is relayed

A worker that is being started again is waited for, `PATIENCE` seconds at most; then the client is
told 0x88 Server unavailable. An empty client id gets one that belongs here.

Datagrams wait in the kernel, which has room for some 200 KB of them: a few long CONNECTs. Whoever
finds it full stands in a line, each address with as much as any other (`mqttd.net.weighted`), until
the kernel says that there is room. So a newcomer's CONNECT waits for what is in the kernel, not for
what others have sent who have proved nothing. Of those in line nothing is held but what is charged
to each as a stranger (`memory.unauthenticated`).

A connection counts where it stays: one too many (`mqttd.workers.handing`) is told 0x97 Quota
exceeded. It does not wait at the door: the kernel would give that connections whose clients belong
elsewhere, where there is room (`PASSING`).

Promise: it is authenticated where it belongs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Container
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.codec import reasons
from mqttd.codec.packets import Connect
from mqttd.mesh.link import Link
from mqttd.net.weighted import WeightedQueue
from mqttd.session.channel.channel import WAITING, Channel
from mqttd.transports.door import PASSING
from mqttd.transports.engine import Engine
from mqttd.transports.lobby import House
from mqttd.workers.handing import MOST, Handing, whole
from mqttd.workers.mesh import WorkerMesh
from mqttd.workers.place import worker_of
from mqttd.workers.relay import Relays

__all__ = ["PATIENCE", "Mover"]

#: Seconds for which a client waits for its worker.
PATIENCE: Final = 5
#: Bytes of CONNECTs that go to one worker in a turn; and what a connection counts for besides.
_TURN: Final = 512 << 10
_EACH: Final = 1 << 10


class _Line:
    """Who is to go to worker `number`: by its way, or (not `plain`) over its link."""

    def __init__(self, number: int, plain: bool) -> None:
        self.number = number
        self.plain = plain
        self.queue: WeightedQueue[Channel] = WeightedQueue()
        #: The way that had no room; it is not tried before it has.
        self.full: socket.socket | None = None


class Mover(Handing):
    """Sends connections to the workers they belong to.

    `way(number)` is the socket for it; `call_back(number)` is asked for when that is full, and to
    call `has_room` when it is no more.
    """

    def __init__(
        self, broker: Broker, engine: Engine, mesh: WorkerMesh, relays: Relays,
        way: Callable[[int], socket.socket | None], call_back: Callable[[int], object],
    ) -> None:  # fmt: skip
        super().__init__(broker, engine, mesh.number, mesh.count)
        self.mesh = mesh
        self.relays = relays
        self.way = way
        self.call_back = call_back
        #: Those that every worker has.
        self.listeners: Container[str] = ()
        #: Connections that are to go, with their worker and when they came, the oldest first.
        self._waiting: dict[Channel, tuple[int, int]] = {}
        #: Those of this turn, who stand in no line yet: what is behind their CONNECT weighs, too.
        self._fresh: list[Channel] = []
        self._lines: dict[tuple[int, bool], _Line] = {}
        self._due = False
        self.passing = PASSING

    def stays(self, channel: Channel, connect: Connect) -> bool:
        """Whether a client goes on here; one of another worker goes with the end of this turn."""
        number = worker_of(connect.client_id, self.count)
        here = number == self.number
        if here or not self._is_plain(channel):
            crowd = self._crowded(channel)
            if crowd:
                self.broker.connect_refused(channel, connect, reasons.QUOTA_EXCEEDED, crowd)
                channel.refuse(reasons.QUOTA_EXCEEDED, crowd)
            if crowd or here:
                return not crowd
        self.leaving[channel.listener] += 1
        self._waiting[channel] = (number, self.broker.now)
        self._fresh.append(channel)
        self._soon()
        return False

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self.broker.soon(self.go)

    def go(self) -> None:
        """Send those away whose worker is there and can be told, a turn's worth of each."""
        self._due = False
        fresh, self._fresh = self._fresh, []
        for channel in fresh:
            if channel in self._waiting:
                self._line_up(channel)
        for line in self._lines.values():
            self._serve(line)
        self.broker.perform()

    def has_room(self, number: int) -> None:
        """The way to a worker was full, and is no more."""
        line = self._lines.get((number, True))
        if line is not None:
            line.full = None
        self.go()

    def tick(self) -> None:
        """A few times a second: look after those that still wait."""
        broker = self.broker
        for channel, (number, since) in list(self._waiting.items()):
            if channel.state != WAITING:
                self._forget(channel)
            elif broker.now - since > PATIENCE * 1000:
                self._forget(channel)
                self._give_up(channel, number)
        for line in self._lines.values():
            if len(line.queue) > 2 * len(self._waiting):
                line.queue.keep(self._waiting)  # many were gone before it was their turn
        if self._waiting:
            self.go()

    def _line_up(self, channel: Channel) -> None:
        """Behind those of its address."""
        key = number, plain = self._waiting[channel][0], self._is_plain(channel)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(number, plain)
        house = channel.io.name if isinstance(channel.io, House) else ""
        line.queue.join(house, _weight_of(channel), channel)

    def _serve(self, line: _Line) -> None:
        """Send those of a line away, in their order."""
        queue, number = line.queue, line.number
        link, way = self.mesh.link_to(number), self.way(number)
        if link is None or way is None or way is line.full:
            return
        room = _TURN
        while queue:
            channel = queue.first()
            if channel in self._waiting and channel.state == WAITING:
                if room <= 0:
                    self._soon()
                    return
                room -= _weight_of(channel)
                if not self._send(channel, link, way):
                    line.full = way
                    self.call_back(number)
                    return
            queue.next()
            self._forget(channel)

    def _forget(self, channel: Channel) -> None:
        """It has gone, one way or another."""
        if self._waiting.pop(channel, None) is not None:
            self.leaving[channel.listener] -= 1

    def _give_up(self, channel: Channel, number: int) -> None:
        """It has waited for too long."""
        detail = f"worker {number} is not there"
        if self.mesh.link_to(number) is not None:
            detail = f"worker {number} has too many others to take over"
        connect = channel.connect
        assert connect is not None
        self.broker.connect_refused(channel, connect, reasons.SERVER_UNAVAILABLE, detail)
        channel.refuse(reasons.SERVER_UNAVAILABLE, detail)

    def _is_plain(self, channel: Channel) -> bool:
        """Whether its descriptor goes, and not its bytes."""
        return channel.edge is self.engine and channel.listener in self.listeners

    def _send(self, channel: Channel, link: Link, way: socket.socket) -> bool:
        """Send one away; False where the way is full."""
        data = whole(channel)
        if self._is_plain(channel) and len(data) <= MOST:
            try:
                return self.send(channel, data, way)
            except OSError:
                pass  # too large for the kernel, or it is just going
        self.relays.send_away(channel, link, data)
        return True

    def _crowded(self, channel: Channel) -> str:
        """Why a connection that would stay is one too many; "" if it is not."""
        if self.crowd is not None:
            return self.crowd
        port = self.engine.by_name.get(channel.listener)
        # One that is relayed, or not the engine's, counts where it is connected.
        return self.full(port) if port is not None and channel.fd >= 0 else ""


def _weight_of(channel: Channel) -> int:
    """What it takes to move a connection, in bytes."""
    return _EACH + channel.asking + channel.unfinished()
