"""Listening sockets of the engine: who comes is let in, told off, stands in line or in the kernel.

    kernel --> no room, no descriptor left: pause
        '----> an address that may not, or has enough: closed
        '----> faster than accept_rate: a line for each house (`mqttd.net.fair`), --.  each in turn
        '----> plain: a channel      layers (TLS, WebSocket, PROXY): a stack  <-----'

The kernel has one queue for all, in which whoever comes most often would have most places: it is
emptied into the lines, which cost a descriptor for each who waits. Beyond as many as a port's
`waiting_most` the last of the longest line is closed.

Accepts go in portions, by number and by what comes with them, so that a storm of connects leaves
room for messages. Where the kernel defers accepting until bytes have come, those are read at once,
so that a connection and its CONNECT cost one event.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mqttd.net.fair import UNIX
from mqttd.session.channel.channel import NEW, OPEN, Channel, Server
from mqttd.transports.layered_edge import LayeredEdge
from mqttd.transports.layers import Stack
from mqttd.transports.lobby import House
from mqttd.transports.ports import Carrier, Channels, Port, Sockets

__all__ = ["LET_IN", "MUCH", "Accepting"]

Later = Callable[[float, Callable[[], None]], object]

_IN: Final = 1
_IN_EDGE: Final = _IN | select.EPOLLET
#: Connections per listener and turn that are taken from the kernel, and those of them that are let
#: in: with CONNECT, a will and a SUBSCRIBE one takes a third of a millisecond.
_ACCEPTS: Final = 256
LET_IN: Final = 64
#: Bytes that come with those who are accepted at once, and their work as bytes: a quarter of what a
#: turn reads.
_BROUGHT: Final = 1 << 20
#: What a read counts for that costs much: 1024 units, about a millisecond. When those of a turn
#: have counted for so much, it looks whose the next ones are.
MUCH: Final = 1 << 16
#: Connections that cost much, of which each is read from before somebody is accepted.
_FEW: Final = 4
#: Seconds between two looks at who waits in line, where the rate does not ask for more.
_LINES: Final = 0.01


class Accepting(Sockets):
    """The part of the engine that takes connections in."""

    def __init__(self, server: Server, epoll: select.epoll, later: Later | None) -> None:
        super().__init__(server, epoll)
        #: The epoll object is a reactor's.
        self.shared: bool = False
        self.channels = Channels()  # those without layers
        #: Addresses of connections that have not been asked for theirs, as `accept` told them:
        #: CONNECT needs one soon, and asking the kernel again costs 2 us.
        self.fresh: dict[int, tuple[str, int]] = {}
        #: The same of those that have been, until the next tick: who has come acts at once.
        self.lately: dict[int, tuple[str, int]] = {}
        #: The most connections of all ports together; 0: no limit.
        self.most: int = 0
        self.ports: dict[int, Port] = {}
        self.by_name: dict[str, Port] = {}
        #: Runs something in so many seconds, where somebody can; else who waits waits for `tick`.
        self.later: Later | None = later
        #: Descriptors that are nobody's connection, and what is called when they are readable.
        self.bells: dict[int, Callable[[], None]] = {}
        self.gone: dict[int, Callable[[], None]] = {}
        #: Those that bring messages, and what takes an event of theirs.
        self.streams: dict[int, Callable[[int], object]] = {}
        self._looks: bool = False
        #: What this turn's work counts for, as bytes that were read.
        self.worked: int = 0
        #: Who is readable and waits for the others, in this order.
        self.line: deque[int] = deque()
        #: How many of the line were served, and how many it takes until somebody is accepted.
        self.served: int = 0
        self.knock: int = 0

    def read(self, channel: Channel, fd: int) -> None:
        """Read what has come for a channel."""
        raise NotImplementedError

    def let_work(self, edge: Carrier, fd: int, event: int) -> None:
        """What the poll has found for one with layers."""
        raise NotImplementedError

    def listen(
        self,
        name: str,
        listening: socket.socket,
        max_connections: int,
        make: Any = None,
        max_handshakes: int = 0,
        handshake_timeout: int = 0,
    ) -> None:
        """Accept connections of a bound, listening, non-blocking socket (arguments: see `Port`)."""
        port = Port(name, listening, max_connections, make, max_handshakes, handshake_timeout)
        self.ports[port.fd] = port
        self.by_name[name] = port
        self.epoll.register(port.fd, _IN)

    def watch(self, fd: int, called: Callable[[], None], gone: Callable[[], None]) -> None:
        """Call this whenever the descriptor has become readable, which need not be read for that;
        `gone` when the engine reads no more.
        """
        self.bells[fd] = called
        self.gone[fd] = gone
        self.epoll.register(fd, _IN_EDGE)

    def carry(self, fd: int, called: Callable[[int], object], gone: Callable[[], None]) -> None:
        """Call this with what the poll finds for a stream, among the clients of a turn: what it
        brings is written with what they do. `gone` when the engine polls no more.
        """
        self.streams[fd] = called
        self.gone[fd] = gone
        self.epoll.register(fd, _IN)

    def unwatch(self, fd: int) -> None:
        """Call neither any more."""
        if self.gone.pop(fd, None) is not None:
            self.bells.pop(fd, None)
            self.streams.pop(fd, None)
            self.epoll.unregister(fd)

    def leave(self) -> None:
        """Nobody reads for the engine any more: those it reads for have to do so themselves."""
        for fd, gone in list(self.gone.items()):
            self.unwatch(fd)
            gone()

    def unlisten(self, name: str) -> None:
        """Stop accepting and close the listening socket; connections stay."""
        port = self.by_name.pop(name, None)
        if port is not None:
            self.ports.pop(port.fd, None)
            if not port.paused_until:
                self.epoll.unregister(port.fd)
            port.disperse()
            port.socket.close()

    def close_listener(self, name: str) -> None:
        """Stop accepting and close the connections too."""
        self.unlisten(name)
        for channel in self.channels.all():
            if channel.listener == name:
                channel.close(0x8B, "listener stopped")
        for edge in list(self.layered.values()):
            if edge.channel.listener == name:
                edge.channel.close(0x8B, "listener stopped")
        self.server.perform()

    def came_from(self, fd: int) -> tuple[str, int] | None:
        """The address of a connection, where it need not be asked of the kernel."""
        address = self.fresh.pop(fd, None)
        if address is None:
            return self.lately.get(fd)
        self.lately[fd] = address
        return address

    def tick(self, now: int) -> None:
        """Listen again where there is room, let go of what has lingered."""
        self.linger.tick(now)
        self.lately.clear()
        for port in self.ports.values():
            port.tick(now)
            if len(port.line):
                self.serve_line(port)
            if port.paused_until == 0:
                if port.why and not self.full(port) and not len(port.line):
                    # Has been listening for a whole tick since.
                    port.why = ""
                    self.server.accept_paused(port.name, "", port.connections)
            elif now >= port.paused_until and (
                not self.full(port) or port.lobby.can_make_room(now)
            ):
                port.paused_until = 0
                self.epoll.register(port.fd, _IN)

    def close_all(self) -> None:
        """At shutdown: close every connection and port."""
        layered = [edge.channel for edge in self.layered.values()]
        for channel in [*self.channels.all(), *layered]:
            if channel.state == OPEN:
                channel.close(0x8B, "server shutting down")
            else:
                channel.end("server shutting down")
        self.server.perform()
        self.linger.close_all()
        for name in list(self.by_name):
            self.unlisten(name)
        if not self.shared:
            self.epoll.close()

    def _knocked(self, others: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Accept where somebody connects; returns the events that are left."""
        left: list[tuple[int, int]] = []
        accepted = False
        for fd, event in others:
            port = self.ports.get(fd)
            if port is not None:
                if self._may_accept():
                    self.accept(port)
                    accepted = True
            elif fd in self.bells:
                self.bells[fd]()
            elif not self.linger.ready(fd):
                left.append((fd, event))
        if accepted:
            self.server.perform()
        return left

    def _may_accept(self) -> bool:
        """Whether all were served that were in line when somebody knocked; else he knocks again.

        And those who cost much, where they are few: of many, one user's, nobody waits for all.
        """
        waiting = len(self.line)
        costly = len(self.costly)
        if costly <= _FEW:
            waiting += costly
        if waiting:
            if not self.knock:
                self.knock = self.served + waiting
            if self.served < self.knock:
                return False
        self.knock = 0
        return True

    def accept(self, port: Port) -> None:
        """Somebody knocks."""
        gate = port.gate
        if gate is None:
            self._take(port, None, LET_IN)
            return
        if len(port.line):
            self.serve_line(port)
        room: int = 0 if len(port.line) else gate.room(self.server.now, LET_IN)
        gate.take(self._take(port, None if gate.open else gate, room))
        if len(port.line):
            self._wait(port, gate)

    def _take(self, port: Port, rules: Any, room: int) -> int:
        """Take those who may come from the kernel: `room` of them are let in, others stand in line.

        Returns how many were let in.
        """
        server = self.server
        count: int = 0
        most: int = self.taken + self.worked + _BROUGHT
        for _ in range(_ACCEPTS):
            if self.taken + self.worked >= most or (port.gate is None and count == room):
                return count  # the next knock in the next turn
            if self.full(port) and not port.lobby.make_room("", server.now):
                self._pause(port, "full")
                return count
            try:
                fd, address = port.socket._accept()  # type: ignore[attr-defined]
            except BlockingIOError:
                return count
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    # No descriptor left: look again in a second instead of spinning.
                    self._pause(port, "files")
                    return count
                continue  # the peer was gone already
            if rules is not None and not rules.allows(address[0]):
                os.close(fd)
                server.metrics.connections_refused += 1
                server.turned_away(port.name, address[0], address[1])
                continue
            host: str = address[0] if isinstance(address, tuple) else UNIX
            if port.refuses(host, server):
                os.close(fd)
            elif count < room:
                count += 1
                self._let_in(port, fd, address, host)
            else:
                port.stand(fd, address, host, self._room(port), server)
        return count

    def serve_line(self, port: Port) -> None:
        """Let those in who wait, a house after the other, as many as may come in now."""
        line, gate, server = port.line, port.gate, self.server
        room: int = LET_IN if gate is None else gate.room(server.now, LET_IN)
        count: int = 0
        most: int = self.taken + self.worked + _BROUGHT
        while (
            count < room and len(line) and self.taken + self.worked < most and not self.full(port)
        ):
            fd, address, host = line.next()
            count += 1
            if port.refuses(host, server):
                os.close(fd)
            else:
                self._let_in(port, fd, address, host)
        if gate is not None:
            gate.take(count)
            if len(line):
                self._wait(port, gate)

    def _wait(self, port: Port, gate: Any) -> None:
        """Some wait: look again when more may come in, which may be the next turn."""
        server = self.server
        if self.full(port):
            return
        wait: int = gate.wait(server.now)
        if wait and not port.why:
            server.metrics.accepts_paused_rate += 1
            port.why = "rate"
            server.accept_paused(port.name, "rate", port.connections)
        if self.later is not None and not self._looks:
            self._looks = True
            self.later(max(wait / 1000.0, _LINES) if wait else 0.0, self._look)

    def _look(self) -> None:
        """It is time for some of those who wait in line."""
        self._looks = False
        self.server.now = time.monotonic_ns() // 1_000_000
        for port in list(self.ports.values()):
            if len(port.line):
                self.serve_line(port)
        self.server.perform()

    def _let_in(self, port: Port, fd: int, address: Any, host: str) -> None:
        """A connection gets its channel."""
        server = self.server
        os.set_blocking(fd, False)
        if port.make is not None:
            self._accept_layered(port, fd, address)
            return
        port.connections += 1
        server.metrics.connections_accepted += 1
        channel = Channel(server, self, fd, port.name)
        self.channels.put(fd, channel)
        house = port.lobby.enter(channel, host, server.now)
        channel.io = house
        if isinstance(address, tuple):  # with one text for all who come from there
            self.fresh[fd] = (house.name if house.name == host else host, address[1])
        self.epoll.register(fd, _IN)
        if port.deferred and not self._later(house):
            self.read(channel, fd)
            if channel.state != NEW or channel.rest is not None:
                return
        first = port.first_byte_timeout
        if first and first < server.connect_timeout(port.name):
            channel.need = -1
            server.wheel.schedule(channel, server.now + first)

    def _later(self, house: House) -> bool:
        """Whether a connection is left to the poll: others from there cost much, and have now."""
        return self.worked >= MUCH and self.costly.users.get(house.name, 0) >= self.server.now

    def full(self, port: Port) -> bool:
        """Whether another connection would be one too many."""
        return self._room(port) <= 0

    def _room(self, port: Port) -> int:
        """How many more connections there may be."""
        room: int = port.max_connections - port.connections if port.max_connections else 1 << 30
        if self.most > 0:
            return min(room, self.most - self.channels.count - len(self.layered))
        return room

    def _pause(self, port: Port, why: str) -> None:
        """Leave further connections to the kernel; `tick` looks whether to go on."""
        metrics = self.server.metrics
        wait = 1
        if why == "full":
            metrics.accepts_paused_full += 1
        else:
            metrics.accepts_paused_files += 1
            wait = 1000
        port.paused_until = self.server.now + wait
        self.epoll.unregister(port.fd)
        if port.why != why:
            port.why = why
            self.server.accept_paused(port.name, why, port.connections)

    def _accept_layered(self, port: Port, fd: int, address: Any) -> None:
        """Give a new connection its layers."""
        stack = port.make(address)
        if stack is None:
            os.close(fd)
            self.server.metrics.connections_refused += 1
            return
        assert isinstance(stack, Stack)
        port.connections += 1
        self.server.metrics.connections_accepted += 1
        edge = LayeredEdge(self, port, fd, address, stack)
        self.layered[fd] = edge
        self.epoll.register(fd, _IN)
        # Whoever would have to wait may have sent nothing, and is not to stand in the queue.
        if (
            port.deferred
            and not port.busy(edge.house, self.server.now)
            and not self._later(edge.house)
        ):
            self.let_work(edge, fd, _IN)
