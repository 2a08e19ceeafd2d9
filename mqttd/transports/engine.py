"""The epoll engine: all plain MQTT sockets behind one descriptor of the Twisted reactor.

    reactor (any)  --- one reader --->  Engine  --- epoll --->  fd, fd, fd ... (channels)

An epoll object is itself pollable, so the reactor sees the engine as one reader; per connection
there is no transport, protocol or socket object, only the channel and its descriptor number.
`doRead`: poll once, feed each readable descriptor what a read of up to 64 KiB gives (`reading`),
then the effects of the turn (`Server.perform`): one write per dirty channel, then the closes, so
that a descriptor number is never reused within a batch of events. Where packets come one by one but
densely, the engine rests for some microseconds between turns, and the kernel gathers them.

Level-triggered with one read per turn, some of few large packets, is fair between clients. Those
who have much to do wait in line until the others were served and answered, and have as long
together, or half a millisecond (`line`): who was not read from for a while and has filled each read
since, and who is sent a queue, a thousand of them after an outage. A client that comes between
waits for a turn, not for all of these. Whose reads have cost much of late comes behind all of them,
user by user (`costly`). When a turn has read `_TURN` bytes, the others come first in the next one:
packets that pile up in the kernel while nobody may publish would fill the memory in one turn, at
whose end the budget is looked at. EPOLLOUT is asked for only after a short write. Where the kernel
defers accepting until bytes have come, those are read at once, so that a connection and its CONNECT
cost one event. Measured reasons: docs/design/hot-path.md; reads over 64 KiB cost 9 times as much
(malloc's mmap threshold).
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from mqttd.net.fair import FairQueue
from mqttd.session.channel.channel import Channel, Server
from mqttd.session.ground.connection import Connection
from mqttd.session.ground.output import give_back, take
from mqttd.session.ground.unfinished import READ
from mqttd.transports.accepting import MUCH, Later
from mqttd.transports.held import Holder, but_clients
from mqttd.transports.layered_edge import os_reason
from mqttd.transports.lobby import House
from mqttd.transports.ports import peer_of
from mqttd.transports.reading import Reading

__all__ = ["Engine"]

_IN: Final = 1
_OUT: Final = 4
_IN_OUT: Final = 5
_ERR_HUP: Final = 0x18
_EVENTS: Final = 512
#: Seconds (as epoll counts them) in which a store has mostly written, turns until the reactor has
#: its own again, and how often a store that was slower is not waited for.
_SOON: Final = 0.001
_AGAIN: Final = 4
_HASTY: Final = 64
#: Bytes that a turn reads, or makes room for: it may pass the budget by so much.
_TURN: Final = 4 << 20
#: Nanoseconds of a turn for those in line, at least; what is read of one at once, until its place
#: is the next one's: 16 KiB of small messages that are stored take 0.7 ms, more than the share.
_SHARE: Final = 500_000
_PIECE: Final = READ >> 4


def _raised(error: BaseException, count: int) -> None:
    """Where nobody is told."""
    raise error


class Engine(Reading):
    """The edge of plain TCP connections. Add it to a reactor as a reader.

    Or give it the `epoll` of a reactor that polls for both (`mqttd.transports.reactor`): that calls
    `turn` with what it found, and doRead is never called.
    """

    def __init__(
        self, server: Server, epoll: select.epoll | None = None, later: Later | None = None
    ) -> None:
        super().__init__(server, select.epoll() if epoll is None else epoll, later)
        self.shared = epoll is not None
        #: What was readable when a turn had read enough.
        self.left: dict[int, int] = {}
        #: Those of the line, as a set.
        self.lined: set[int] = set()
        #: Who is read from again, and had more than a read each time.
        self.resumed: set[int] = set()
        #: When this turn began, in nanoseconds.
        self.began: int = 0
        #: Bytes that the first of the line has had.
        self.had: int = 0
        #: Turns in a row that raised, and who is told of it with their number.
        self.faults: int = 0
        self.failed: Callable[[BaseException, int], object] = _raised
        #: So many times the store is not waited for: its disk is slow.
        self.hasty: int = 0
        #: Whether clients are to be read from, where that is not always so.
        self.holder: Holder | None = None

    # -- Twisted's IReadDescriptor -------------------------------------------------------------

    def fileno(self) -> int:
        """The epoll object's own descriptor."""
        return self.epoll.fileno()

    def logPrefix(self) -> str:
        """How Twisted names us in its log."""
        return "mqttd-engine"

    def connectionLost(self, reason: object) -> None:
        """The reactor let go of us."""

    def doRead(self) -> None:
        """The reactor has seen that something waits in the epoll object.

        Where the store writes what this has brought, its answer is waited for here: another way
        through Twisted's loop for it costs a third of a message that comes alone. Connections end
        that wait; what else the reactor has may wait a millisecond. And while somebody is in line.
        """
        self.serve(self.epoll.poll(0, _EVENTS + len(self.costly)))
        journal = self.server.journal
        if self.hasty:
            self.hasty -= 1
        for _ in range(_AGAIN):
            if self.line:
                self.serve(self.epoll.poll(0, _EVENTS + len(self.costly)))
                continue
            if not journal.soon or self.hasty:
                return
            events = self.epoll.poll(_SOON, _EVENTS)
            if not events:
                self.hasty = _HASTY
                return
            self.serve(events)

    def serve(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """A turn whose faults, whatever they are, do not reach the reactor.

        Twisted lets go of a reader that raises: the process would be alive, and deaf.
        """
        try:
            others = self.turn(events)
        except BaseException as error:
            self.faults += 1
            self.failed(error, self.faults)
            return []
        self.faults = 0
        return others

    def turn(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """One turn: what is readable is fed, the effects are performed, then who waits is accepted.

        Accepting, with which a CONNECT may be read, comes last: a client that disconnects and
        connects again has done so in this order, whatever the order of the events. Returns the
        events of descriptors that are none of ours.
        """
        server = self.server
        metrics = server.metrics
        self.steps = 0
        self.steps_of.clear()
        self.taken = self.worked = 0
        if self.left:
            events = self._in_line(events)
        held = self.holder is not None and self.holder.holds()
        if held:
            events = but_clients(self, events)
        before = metrics.packets_received
        others = self._feed(events)
        if self.line and not held:
            if server.dirty:
                server.perform()  # what the others are answered waits for nobody in line
            self._serve_line()
        if len(self.costly) and not held:
            if server.dirty:
                server.perform()
            self._serve_costly()
        came = metrics.packets_received - before
        server.perform()
        reads = len(events)
        if others:
            reads -= len(others)
            others = self._knocked(others)
        if not self.line and not len(self.costly) and self.rests(reads, came):
            metrics.gather_rests += 1
            time.sleep(server.settings.gather)
        return others

    def _serve_line(self) -> None:
        """Feed those in line for their share of a turn; the others keep their places.

        As long as the others took: who acknowledges keeps up with those who publish.
        """
        channels = self.channels.by_fd
        now = time.monotonic_ns()
        until = now + max(_SHARE, now - self.began)
        while self.line:
            fd = self.line[0]
            channel = channels[fd] if fd < len(channels) else None
            there = channel is not None and not channel.paused
            before = self.taken
            if channel is not None and there:
                self.read(channel, fd, _PIECE)
            came = self.taken - before
            self.had += came
            if came < _PIECE or self.had >= READ:
                if there and self.had < READ:
                    self.resumed.discard(fd)
                self.had = 0
                self.line.popleft()
                self.lined.discard(fd)
                self.served += 1
            if there and (self.taken + self.worked >= _TURN or time.monotonic_ns() >= until):
                return

    def _serve_costly(self) -> None:
        """Read from those who cost much, as long as the others took, and one at least.

        Where one of the strangers has cost much, the other line has its turn in the next one.
        """
        costly = self.costly
        now = time.monotonic_ns()
        share = max(_SHARE, now - self.began)
        if not costly.turned:
            before = self.worked
            self._serve_one_line(costly.strangers, now + max(share, costly.took))
            if self.worked - before >= MUCH and len(costly.line):
                costly.turned = True
                return
            now = time.monotonic_ns()
        costly.turned = False
        self._serve_one_line(costly.line, now + share)
        costly.took = time.monotonic_ns() - now

    def _serve_one_line(self, line: FairQueue[int], until: int) -> None:
        channels = self.channels.by_fd
        while len(line):
            fd = self.costly.next(line, self.server.now)
            self.served += 1
            channel = channels[fd] if 0 <= fd < len(channels) else None
            if channel is not None:
                if channel.paused:
                    continue
                self.read(channel, fd)
            elif fd in self.layered:
                self.let_work(self.layered[fd], fd, _IN)
            if self.taken + self.worked >= _TURN or time.monotonic_ns() >= until:
                return

    def _in_line(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those that the turn before has left come first; of them the poll knows best."""
        channels = self.channels.by_fd
        line: dict[int, int] = {}
        for fd, event in self.left.items():
            if (fd < len(channels) and channels[fd] is not None) or fd in self.layered:
                line[fd] = event
        self.left = {}
        for fd, event in events:
            line[fd] = event
        return list(line.items())

    def _feed(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Feed what is readable, write where there is room; returns what is no connection's."""
        server = self.server
        self.began = time.monotonic_ns()
        server.now = self.began // 1_000_000
        channels = self.channels.by_fd
        known = self.costly.known
        waiting = self.costly.waiting
        others: list[tuple[int, int]] = []
        for fd, event in events:
            if event & _IN_OUT == _IN and fd in waiting:
                continue  # thousands may be
            channel = channels[fd] if fd < len(channels) else None
            if channel is None:
                edge = self.layered.get(fd)
                if edge is None:
                    stream = self.streams.get(fd)
                    if stream is None:
                        others.append((fd, event))
                    else:
                        stream(event)
                elif (
                    event & _IN and (known or self.worked >= MUCH) and self._waits(edge.channel, fd)
                ):
                    if event & _OUT:
                        edge.ready(_OUT)
                elif self.taken + self.worked < _TURN:
                    self.let_work(edge, fd, event)
                else:
                    self.left[fd] = event & _IN_OUT
                continue
            if self.taken + self.worked >= _TURN:
                self.left[fd] = event & _IN_OUT
                continue
            if event & _IN:
                if channel.paused:
                    continue
                session = channel.session
                if (known or self.worked >= MUCH) and self._waits(channel, fd):
                    pass
                elif (session is not None and session.waiting) or fd in self.resumed:
                    if fd not in self.lined:
                        self.lined.add(fd)
                        self.line.append(fd)
                else:
                    self.read(channel, fd)
            elif event & _ERR_HUP:
                channel.end("connection reset")
            if event & _OUT:
                self.flush(channel)
        return others

    def _waits(self, channel: Channel, fd: int) -> bool:
        """Whether it costs much, or is of a user whose others do where this turn has enough."""
        costly = self.costly
        now = self.server.now
        if fd in costly.known and costly.join(fd, now):
            return True
        if self.worked < MUCH and not len(costly.strangers):
            return False
        return costly.estrange(channel, now)

    # -- Edge ----------------------------------------------------------------------------------

    def flush(self, channel: Connection) -> None:
        """One write of what waits; EPOLLOUT brings the rest."""
        pieces = take(channel)
        if not pieces:
            return
        try:
            written = self._write(channel.fd, pieces, channel.out_at)
        except BlockingIOError:
            written = 0
        except OSError as error:
            channel.out = None
            channel.out_bytes = 0
            channel.out_at = 0
            channel.end(os_reason(error))
            return
        server = self.server
        server.metrics.bytes_sent += written
        channel.bytes_sent += written
        give_back(channel, pieces, written)
        if channel.out is not None:
            if not channel.blocked:
                channel.blocked = True
                server.slow[channel] = server.now
                self._watch(channel)
            elif written:
                server.slow[channel] = server.now
        elif channel.blocked:
            channel.blocked = False
            self._watch(channel)
        channel.account()

    def _write(self, fd: int, pieces: list[bytes], at: int) -> int:
        """One system call for the pieces, the first of them from `at` on."""
        first: Any = pieces[0]
        if at:
            first = memoryview(first)[at:]
        if len(pieces) == 1:
            return os.write(fd, first)
        vector: list[Any] = [first]
        vector += pieces[1:]
        return os.writev(fd, vector)

    def _watch(self, channel: Connection) -> None:
        """Tell epoll what we wait for on this descriptor."""
        mask = 0 if channel.paused else _IN
        if channel.blocked:
            mask |= _OUT
        self.epoll.modify(channel.fd, mask)

    def shut(self, channel: Connection) -> None:
        """Close the descriptor."""
        fd = channel.fd
        if fd < 0:
            return
        channel.fd = -1
        if self.channels.take(fd):
            self.close(fd, channel)
            self.fresh.pop(fd, None)
            self.lately.pop(fd, None)
            self.resumed.discard(fd)
            if isinstance(channel.io, House) and isinstance(channel, Channel):
                channel.io.lobby.left(channel, channel.io)
            port = self.by_name.get(channel.listener)
            if port is not None:
                port.connections -= 1
        self.server.backlog -= channel.backlogged
        channel.backlogged = 0

    def pause(self, channel: Connection) -> None:
        """Stop reading from this descriptor."""
        if channel.fd >= 0:
            self._watch(channel)

    def resume(self, channel: Connection) -> None:
        """Read from this descriptor again."""
        if channel.fd >= 0:
            self.resumed.add(channel.fd)
            self._watch(channel)

    def peer(self, channel: Connection) -> tuple[str, int]:
        """The peer's address, asked of the kernel: of an open connection none is stored."""
        if channel.fd < 0:
            return ("", 0)
        known = self.came_from(channel.fd)
        if known is not None:
            return known
        port = self.by_name.get(channel.listener)
        return peer_of(channel.fd, int(socket.AF_INET) if port is None else port.family)

    def identity(self, channel: Connection) -> object | None:
        """The peer's process, on a Unix socket."""
        port = self.by_name.get(channel.listener)
        if port is None or port.identify is None or channel.fd < 0:
            return None
        known: object | None = port.identify(channel.fd)
        return known
