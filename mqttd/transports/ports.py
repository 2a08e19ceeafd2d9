"""The listening sockets of the engine, and what the kernel knows of a connection.

    kernel --knock--> Port --full? gate?--> accept --make(address)--> a Stack of layers, or none
                       ^
                       '-- paused: not listened to until there is room, or it is time

Whoever waits for room does so in the kernel's queue, at no cost here, and is not turned away; who
comes faster than the gate allows stands in a line of its address (`line`), since the kernel has one
for all. `Carrier` and `Sockets` say what a connection with layers and its engine are to each other.
"""

from __future__ import annotations

import os
import select
import socket
from typing import Any, Final

from mqttd.net.fair import FairQueue, house_of
from mqttd.session.channel.channel import CLOSED, Channel, Server
from mqttd.session.ground.connection import Connection, Edge
from mqttd.transports.costly import Costly
from mqttd.transports.linger import Linger
from mqttd.transports.lobby import House, Lobby

__all__ = ["WAITING", "Carrier", "Channels", "Port", "Sockets", "peer_of"]

#: Milliseconds for which a TLS handshake holds its place while the peer says nothing.
_PATIENCE: Final = 500

#: Of those who come faster than they may, so many wait to be let in.
WAITING: Final = 4096

#: After so many reads it is decided anew whether to rest, ...
_READS: Final = 64
#: ... for which they must have come within this many milliseconds, with between 1.05 packets
#: each, below which there is nothing to gather, and so many or so large ones (as a power of two),
#: from which on it gathers anyway.
_DENSE: Final = 8
_MANY: Final = 8
_MUCH: Final = 12


class Carrier(Edge):
    """A connection of the engine with more between socket and `channel` than a read."""

    channel: Channel

    def ready(self, event: int) -> None:
        """The engine's poll has found something for this descriptor."""
        raise NotImplementedError

    #: When its handshake was last worked on, in milliseconds.
    worked: int
    house: House

    def go(self) -> None:
        """It has waited for its handshake, and may begin."""
        raise NotImplementedError

    def give_place(self) -> None:
        """Its handshake goes on without holding a place."""
        raise NotImplementedError


class Sockets(Edge):
    """The engine, as a carrier sees it: who is polled, and by descriptor the carriers."""

    def __init__(self, server: Server, epoll: select.epoll) -> None:
        self.server = server
        self.epoll: select.epoll = epoll
        #: Connections with layers: TLS, WebSocket, PROXY protocol.
        self.layered: dict[int, Carrier] = {}
        #: Who costs much, and waits for the others.
        self.costly: Costly = Costly()
        #: Connections that are over, but for what their peers are still writing.
        self.linger = Linger(epoll)
        #: Handshake steps of this turn, and of each house.
        self.steps: int = 0
        self.steps_of: dict[House, int] = {}
        #: Bytes that this turn has read.
        self.taken: int = 0
        self.resting: bool = False
        #: Since `since`: reads and packets.
        self.reads: int = 0
        self.packets: int = 0
        self.since: int = 0
        #: What had been received until then.
        self.before: int = 0

    def rests(self, reads: int, packets: int) -> bool:
        """Whether to rest after a turn with so many reads and packets.

        As network cards hold interrupts back: many small reads of more than a packet each show that
        senders do not wait for answers; a rest makes fewer and larger ones of them (5.4 us of CPU a
        message instead of 6.9). Clients that wait for answers wait for no rest. Nor do large
        packets, of which a full read has few: the caches would have lost them meanwhile.
        """
        self.reads += reads
        self.packets += packets
        if self.reads >= _READS:
            now = self.server.now
            few = self.reads * 21 < self.packets * 20 and self.packets < self.reads * _MANY
            received = self.server.metrics.bytes_received
            small = received - self.before < self.reads << _MUCH
            gather = self.server.settings.gather
            self.resting = few and small and now - self.since <= _DENSE and gather > 0
            self.since = now
            self.before = received
            self.reads = 0
            self.packets = 0
        return self.resting and packets > 0

    def close(self, fd: int, channel: Connection) -> None:
        """Close a descriptor: at once, or so that its peer can read why."""
        self.costly.gone(fd)
        if channel.reason_code and channel.version:
            self.linger.close(fd, self.server.now)
        else:
            os.close(fd)


class Channels:
    """Connections by descriptor: those are small numbers, and a dict takes ten times the memory."""

    __slots__ = ("by_fd", "count")

    def __init__(self) -> None:
        self.by_fd: list[Channel | None] = []
        self.count: int = 0

    def put(self, fd: int, channel: Channel) -> None:
        """A connection has this descriptor, which none has."""
        while len(self.by_fd) <= fd:
            self.by_fd.append(None)
        self.by_fd[fd] = channel
        self.count += 1

    def take(self, fd: int) -> bool:
        """A descriptor is about to be closed; whether one of these connections had it."""
        if fd >= len(self.by_fd) or self.by_fd[fd] is None:
            return False
        self.by_fd[fd] = None
        self.count -= 1
        return True

    def all(self) -> list[Channel]:
        """Those that are there now."""
        return [channel for channel in self.by_fd if channel is not None]


def defers_accept(listening: socket.socket) -> bool:
    """Whether this socket shows connections only when they have sent something."""
    if listening.family == socket.AF_UNIX or not hasattr(socket, "TCP_DEFER_ACCEPT"):
        return False
    return listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT) > 0


class Port:
    """A listening socket of the engine.

    `make(address)` gives the `Stack` of layers of a new connection, None refuses it; without it
    the connections are plain. `handshakes` counts the places of TLS handshakes that have begun and
    are not done: where there are `max_handshakes` (0: no limit), or `handshakes_each` of one house,
    who would begin one is not read from but stands in `waiting`, a line for each house, which have
    their turn one after the other. A place is for work: whoever leaves us waiting for
    `_PATIENCE` milliseconds goes on without it, so that silence keeps nobody out. What is not
    through its layers' handshakes `handshake_timeout` milliseconds after it was accepted is closed,
    wherever it stands.

    `lobby` has the connections by house.

    While there are `max_connections`, or descriptors are short, the port is not listened to: `why`
    says which, `paused_until` when to look again. Those who come faster than `gate` (an
    `Admission`) allows are accepted and stand in `line`, up to `waiting_most` of them, until it is
    the turn of their house; while they do, `why` is "rate".
    """

    __slots__ = (
        "connections",
        "busy_with",
        "deferred",
        "family",
        "fd",
        "first_byte_timeout",
        "gate",
        "handshake_timeout",
        "handshakes",
        "handshakes_each",
        "identify",
        "line",
        "lobby",
        "make",
        "max_connections",
        "max_handshakes",
        "name",
        "paused_until",
        "proxied",
        "socket",
        "waiting",
        "waiting_most",
        "why",
    )

    def __init__(
        self,
        name: str,
        listening: socket.socket,
        max_connections: int,
        make: Any = None,
        max_handshakes: int = 0,
        handshake_timeout: int = 0,
    ) -> None:
        self.name = name
        self.socket = listening
        self.fd = listening.fileno()
        self.family = int(listening.family)
        #: The kernel shows a connection when its first bytes are there: see `defer_accept`.
        self.deferred: bool = defers_accept(listening)
        self.max_connections = max_connections
        self.connections: int = 0
        self.paused_until: int = 0
        self.why: str = ""
        self.gate: Any = None
        #: Milliseconds a plain connection has for its first byte; 0: as long as for CONNECT.
        self.first_byte_timeout: int = 0
        self.make: Any = make
        self.max_handshakes = max_handshakes
        self.handshake_timeout = handshake_timeout
        self.handshakes: int = 0
        #: By house and descriptor, those whose handshake would be one too many.
        self.waiting: dict[str, dict[int, Carrier]] = {}
        #: Those that hold a place, who were worked on longest ago first.
        self.busy_with: dict[int, Carrier] = {}
        self.handshakes_each: int = 0
        self.lobby: Lobby = Lobby()
        #: Descriptor, address as `accept` told it and host of those who wait to be let in.
        self.line: FairQueue[tuple[int, Any, str]] = FairQueue(0, 0)
        self.waiting_most: int = WAITING
        #: Proxies connect here, and say for whom.
        self.proxied: bool = False
        #: On a Unix socket: descriptor -> who the peer's process is.
        self.identify: Any = None

    def refuses(self, host: str, server: Server) -> bool:
        """Whether an address has as many connections as it may; then that is told."""
        if self.proxied or self.lobby.admits(host, server.now):
            return False
        server.house_full(self.name, host)
        return True

    def stand(self, fd: int, address: Any, host: str, room: int, server: Server) -> None:
        """Wait to be let in, where `room` is left in all; who has to go for it is closed."""
        line = self.line
        line.most = line.each = min(room, self.waiting_most)
        gone = line.join(house_of(host), (fd, address, host))
        if gone is not None:
            os.close(gone[0])
            server.line_full(self.name, gone[2])

    def disperse(self) -> None:
        """Nobody is let in any more."""
        while len(self.line):
            os.close(self.line.next()[0])

    def busy(self, house: House, now: int) -> bool:
        """Whether another handshake, of this house, would be one too many."""
        if not self._full(house):
            return False
        self._relieve(now)
        return self._full(house)

    def _full(self, house: House) -> bool:
        if self.max_handshakes > 0 and self.handshakes >= self.max_handshakes:
            return True
        return self.handshakes_each > 0 and house.handshakes >= self.handshakes_each

    def _relieve(self, now: int) -> None:
        """Those who leave us waiting go on without a place."""
        for edge in list(self.busy_with.values()):
            if now - edge.worked < _PATIENCE:
                break
            edge.give_place()

    def take_place(self, edge: Carrier, now: int) -> None:
        """A handshake begins."""
        self.handshakes += 1
        edge.house.handshakes += 1
        edge.worked = now
        self.busy_with[edge.channel.fd] = edge

    def leave_place(self, edge: Carrier) -> None:
        """A handshake is over, or goes on without a place."""
        self.handshakes -= 1
        edge.house.handshakes -= 1
        self.busy_with.pop(edge.channel.fd, None)

    def stand_in_line(self, edge: Carrier) -> None:
        """It would be one too many for now."""
        line = self.waiting.get(edge.house.name)
        if line is None:
            line = self.waiting[edge.house.name] = {}
        line[edge.channel.fd] = edge

    def leave_line(self, edge: Carrier) -> None:
        """It waits no longer."""
        line = self.waiting.get(edge.house.name)
        if line is not None:
            line.pop(edge.channel.fd, None)
            if not line:
                del self.waiting[edge.house.name]

    def next_handshake(self) -> None:
        """There may be places: the houses that wait have their turn one after the other."""
        waiting = self.waiting
        for name in list(waiting):
            line = waiting.get(name)
            while line:
                if self.max_handshakes > 0 and self.handshakes >= self.max_handshakes:
                    return
                edge = next(iter(line.values()))
                if self._full(edge.house):
                    break
                self.leave_line(edge)
                if line:  # to the end of those that wait
                    del waiting[name]
                    waiting[name] = line
                if edge.channel.state != CLOSED:
                    edge.go()
                    break

    def tick(self, now: int) -> None:
        """A few times a second: places that nobody works in are free."""
        if self.waiting:
            self._relieve(now)
            before = -1
            while self.waiting and self.handshakes != before:
                before = self.handshakes
                self.next_handshake()


def peer_of(fd: int, family: int) -> tuple[str, int]:
    """The peer's address, asked of the kernel."""
    peer = socket.socket(family, socket.SOCK_STREAM, 0, fd)
    try:
        name = peer.getpeername()
    except OSError:
        return ("", 0)
    finally:
        peer.detach()
    if isinstance(name, tuple):
        return (str(name[0]), int(name[1]))
    return ("unix", 0)
