"""A worker's share in a broker of several: its links, its calls, and when it may let clients in.

    start: store read, plugins loaded --up--> supervisor --links--> met all others --> clients
    a turn: link readable --> Arriving --> sessions --> end of turn: one write for each link

What all workers do (a ban) is a *call*: made by one, done by all. Figures go round once a second,
so that whoever is asked can tell the sum.

Promise: a worker ends when its supervisor does; what a link brings is taken in pieces of 64 KiB, so
that clients have their turns.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor, IWriteDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from mqttd.broker.broker import Broker
from mqttd.mesh.arriving import Arriving
from mqttd.mesh.frames import CALL, FIGURES, frame
from mqttd.mesh.link import Link, Pipe
from mqttd.transports.engine import Engine
from mqttd.workers.commons import Commons
from mqttd.workers.control import Control, stop
from mqttd.workers.mesh import WorkerMesh
from mqttd.workers.moving import Mover
from mqttd.workers.place import Place
from mqttd.workers.relay import Relays
from mqttd.workers.sums import add_up, counted
from mqttd.workers.ways import Way

__all__ = ["ALARM", "Worker"]

#: Some worker does not serve.
ALARM: Final = "worker_down"

_IN: Final = 1
_OUT: Final = 4
_IN_OUT: Final = 5
_READ: Final = 65536
#: Reads of a link in one turn.
_READS: Final = 4
#: Seconds between two rounds of figures.
_FIGURES: Final = 1.0


class Worker:
    """Worker `place.number` of a broker."""

    def __init__(self, broker: Broker, engine: Engine, reactor: Any, place: Place) -> None:
        self.broker = broker
        self.engine = engine
        self.reactor = reactor
        self.place = place
        self.mesh = WorkerMesh(broker, place.number, place.count)
        self.relays = Relays(broker, self._other)
        self.mesh.others = self.relays
        self.mesh.met = self._met_one
        self.ways: dict[int, Way] = {}
        self.mover = Mover(broker, engine, self.mesh, self.relays, self._way, self._await_room)
        broker.connecting.mover = self.mover
        self.streams: dict[int, _Stream] = {}
        #: What is done for a call, by its name.
        self.calls: dict[str, Callable[[dict[str, Any]], object]] = {}
        #: The figures of the other workers: counters and gauges.
        self.figures: dict[int, dict[str, dict[str, int]]] = {}
        # What a terminal sends to its group is for the supervisor, who passes it on.
        os.setpgid(0, 0)
        #: Those of the listeners, bound by the supervisor.
        self.sockets = {name: socket.socket(fileno=fd) for name, fd in place.sockets.items()}
        self.mover.listeners = self.sockets
        end = socket.socket(fileno=place.control)
        self.control = Control(end, reactor, self._told, self._orphaned)
        self._opened: Deferred[None] = Deferred()
        self._early: list[tuple[bytes, int]] = []
        self._open = False
        self._figured = 0.0
        self.commons = Commons(broker, self.call)
        self.calls.update(self.commons.calls)
        self.mesh.given = self._tell_new
        broker.wills.hold()

    # -- start and end -------------------------------------------------------------------------

    def join(self, result: object = None) -> Deferred[None]:
        """The store is read: fires when clients may be let in."""
        self.mesh.begin()
        self.control.start()
        self.control.send({"up": True})
        return self._opened

    def ready(self, told: dict[str, Any]) -> None:
        """Clients are let in."""
        self._open = True
        self.control.send({"ready": told})
        early, self._early = self._early, []
        for data, fd in early:
            self.adopt(data, fd)

    def failed(self, text: str) -> None:
        """The start has failed for a reason that stays."""
        self.control.send({"failed": text})

    def stop(self) -> None:
        """Tell those that are served here over the mesh, then leave it."""
        self.mesh.leave()
        self.relays.close_all()
        self.broker.perform()
        for stream in list(self.streams.values()):
            stream.close()
        for way in list(self.ways.values()):
            way.close()

    def audited(self, what: str, before: Any, after: Any) -> None:
        """A file has changed that all workers read: the first of them tells the audit."""
        if self.place.number == 1:
            self.control.send({"audited": [what, before, after]})

    def _let_in(self) -> None:
        opened = self._opened
        if not opened.called:
            self.broker.wills.release()
            opened.callback(None)

    # -- the supervisor ------------------------------------------------------------------------

    def _orphaned(self) -> None:
        """The supervisor is gone: nobody would know of us."""
        stop(self.reactor)

    def _told(self, message: dict[str, Any], fds: list[int]) -> None:
        if "link" in message and len(fds) == 2:
            number = int(message["link"])
            for held in (self.streams.pop(number, None), self.ways.pop(number, None)):
                if held is not None:
                    held.close()
            self.streams[number] = _Stream(self, number, fds[0], bool(message["takes"]))
            self.ways[number] = Way(
                self.broker, self.reactor, number, fds[1], self.adopt, self.mover.has_room
            )
        elif "opened" in message and not self.mesh.takes_over():
            self._let_in()  # else it is said again when all are met
        elif "down" in message:
            self._others_down(dict(message["down"]))

    def _others_down(self, down: dict[int, str]) -> None:
        """These do not serve: the first of the others has the alarm."""
        alarms = self.broker.alarms
        there = (number for number in range(1, self.place.count + 1) if number not in down)
        if not down or next(there, 0) != self.place.number:
            alarms.clear(ALARM)
            return
        text = "; ".join(f"worker {number} {why}" for number, why in down.items())
        alarms.activate(ALARM, f"{text}: who is its client waits until it serves again")

    def _met_one(self, number: int) -> None:
        met = [each.number for each in self.mesh.neighbours.values() if each.met]
        self.control.send({"met": met})

    # -- calls and figures ---------------------------------------------------------------------

    def call(self, name: str, what: dict[str, Any]) -> None:
        """Have all other workers do something."""
        body = json.dumps([name, what]).encode()
        for neighbour in self.mesh.neighbours.values():
            neighbour.ferry.tell(frame(CALL, body))
        self.broker.perform_later()

    def _other(self, number: int, kind: int, body: bytes) -> None:
        if kind == FIGURES:
            self.figures[number] = json.loads(body)
            return
        name, what = json.loads(body)
        done = self.calls.get(name)
        if done is not None:
            done(what)

    def tick(self, now: int) -> None:
        """A few times a second; `now` in milliseconds."""
        self.mesh.tick(now)
        self.relays.tick()
        self.mover.tick()
        seconds = time.monotonic()
        if seconds - self._figured >= _FIGURES:
            self._figured = seconds
            self.control.send({"alive": True})
            said = {"counters": self.broker.metrics.snapshot(), "gauges": self.broker.stats()}
            data = frame(FIGURES, json.dumps(said).encode())
            for neighbour in self.mesh.neighbours.values():
                if neighbour.link is not None:
                    neighbour.link.send(data)

    def sums(self) -> tuple[dict[str, int], dict[str, int]]:
        """Gauges and counters of all workers that are there."""
        gauges = [self.broker.stats()]
        counters = [self.broker.metrics.snapshot()]
        for said in self.figures.values():
            gauges.append(said["gauges"])
            counters.append(said["counters"])
        return add_up(gauges), counted(counters)

    def _tell_new(self, number: int) -> None:
        """A worker begins: this is what all know."""
        ferry = self.mesh.neighbours[number].ferry
        for told in self.commons.all():
            ferry.tell(frame(CALL, json.dumps(told).encode()))

    # -- connections ---------------------------------------------------------------------------

    def _way(self, number: int) -> socket.socket | None:
        way = self.ways.get(number)
        return None if way is None else way.end

    def _await_room(self, number: int) -> None:
        self.ways[number].await_room()

    def adopt(self, data: bytes, fd: int) -> None:
        """A connection has come that belongs here."""
        early = self._early
        if not self._open and len(early) < self.engine.most:
            early.append((data, fd))
        elif not self._open or not self.mover.adopt(data, fd):
            os.close(fd)  # more than may wait, or its listener has been stopped
            self.broker.metrics.connections_closed += 1

    def unlinked(self, stream: _Stream) -> None:
        """Another worker is gone."""
        if self.streams.get(stream.number) is stream:
            del self.streams[stream.number]
            way = self.ways.pop(stream.number, None)
            if way is not None:
                way.close()
            self.figures.pop(stream.number, None)


@implementer(IReadDescriptor, IWriteDescriptor)
class _Stream:
    """The socket of a link: polled by the engine, and by the reactor when that polls no more."""

    def __init__(self, worker: Worker, number: int, fd: int, takes: bool) -> None:
        os.set_blocking(fd, False)
        self.worker = worker
        self.number = number
        self.fd = fd
        self.reactor = worker.reactor
        self.pipe = Pipe(fd, self._watch)
        self.link = Link(worker.broker, self.pipe, number)
        self.link.wraps = True
        self.link.bound(0)
        self.arriving: Arriving = worker.mesh.linked(number, self.link, takes)
        self.arriving.faulty = self._faulty
        self.engine: Engine | None = worker.engine
        worker.engine.carry(fd, self.ready, self._left)

    def _watch(self, blocked: bool) -> None:
        if self.fd < 0:
            return
        if self.engine is not None:
            self.engine.epoll.modify(self.fd, _IN_OUT if blocked else _IN)
        elif blocked:
            self.reactor.addWriter(self)
        else:
            self.reactor.removeWriter(self)

    def _left(self) -> None:
        """The engine comes to its end before the links do."""
        self.engine = None
        self.reactor.addReader(self)
        if self.link.blocked:
            self.reactor.addWriter(self)

    def fileno(self) -> int:
        """See `IFileDescriptor`."""
        return self.fd

    def logPrefix(self) -> str:
        """See `ILoggingContext`."""
        return "mqttd-mesh"

    def connectionLost(self, reason: Failure | None = None) -> None:
        """See `IFileDescriptor`."""
        self.close()

    def close(self) -> None:
        """The end of the link."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        self.pipe.fd = -1  # what is put to the link until it ends is not for who has this one next
        if self.engine is not None:
            self.engine.unwatch(fd)
            self.engine = None
        else:
            # The reactor asks for the descriptor while it is taken out.
            self.fd = fd
            self.reactor.removeReader(self)
            self.reactor.removeWriter(self)
            self.fd = -1
        os.close(fd)
        self.worker.mesh.unlinked(self.link)
        self.worker.unlinked(self)

    def ready(self, event: int) -> None:
        """What the engine's poll has found; what comes of it is done at the end of its turn."""
        if event & _OUT:
            self.link.edge.flush(self.link)
        if event & ~_OUT:
            self._take()

    def _take(self) -> None:
        """Take what has come."""
        for _ in range(_READS):
            if self.fd < 0 or self.arriving.busy():
                return
            try:
                data = os.read(self.fd, _READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            try:
                self.arriving.take(data)
            except Exception as error:
                self._faulty(error)
                return
            if len(data) < _READ:
                return

    def _faulty(self, error: Exception) -> None:
        """The stream makes no sense any more: begin a new one."""
        worker = self.worker
        worker.broker.log("internal error", {"error": repr(error), "worker": self.number})
        self.close()
        worker.control.send({"lost": self.number})

    def doRead(self) -> None:
        """The reactor has found the same."""
        broker = self.worker.broker
        broker.now = time.monotonic_ns() // 1_000_000
        self._take()
        broker.perform()

    def doWrite(self) -> None:
        """There is room again."""
        self.link.edge.flush(self.link)
        self.worker.broker.perform()
