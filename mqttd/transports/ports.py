"""The listening sockets of the engine, and what the kernel knows of a connection.

    kernel --knock--> Port --full? gate?--> accept --make(address)--> a Stack of layers, or none
                       ^
                       '-- paused: not listened to until there is room, or it is time

Whoever waits does so in the kernel's queue, at no cost here, and is not turned away. `Carrier` and
`Sockets` say what a connection with layers and its engine are to each other.
"""

from __future__ import annotations

import os
import select
import socket
from collections import OrderedDict
from typing import Any

from mqttd.session.channel import CLOSED, Channel, Server
from mqttd.session.connection import Connection, Edge
from mqttd.transports.linger import Linger

__all__ = ["Carrier", "Port", "Sockets", "peer_of"]


class Carrier(Edge):
    """A connection of the engine with more between socket and `channel` than a read."""

    channel: Channel

    def ready(self, event: int) -> None:
        """The engine's poll has found something for this descriptor."""
        raise NotImplementedError

    def go(self) -> None:
        """It has waited for its handshake, and may begin."""
        raise NotImplementedError


class Sockets(Edge):
    """The engine, as a carrier sees it: who is polled, and by descriptor the carriers."""

    def __init__(self, server: Server, epoll: select.epoll) -> None:
        self.server = server
        self.epoll: select.epoll = epoll
        #: Connections with layers: TLS, WebSocket, PROXY protocol.
        self.layered: dict[int, Carrier] = {}
        #: Connections that are over, but for what their peers are still writing.
        self.linger = Linger(epoll)
        #: Handshake steps of this turn.
        self.steps: int = 0

    def close(self, fd: int, channel: Connection) -> None:
        """Close a descriptor: at once, or so that its peer can read why."""
        if channel.reason_code and channel.version:
            self.linger.close(fd, self.server.now)
        else:
            os.close(fd)


def defers_accept(listening: socket.socket) -> bool:
    """Whether this socket shows connections only when they have sent something."""
    if listening.family == socket.AF_UNIX or not hasattr(socket, "TCP_DEFER_ACCEPT"):
        return False
    return listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT) > 0


class Port:
    """A listening socket of the engine.

    `make(address)` gives the `Stack` of layers of a new connection, None refuses it; without it
    the connections are plain. `handshakes` counts the TLS handshakes that have begun and are not
    done: where there are `max_handshakes` (0: no limit), who would begin one is not read from but
    stands in `waiting`, first come, first served. What is not through its layers' handshakes
    `handshake_timeout` milliseconds after it was accepted is closed, wherever it stands.

    While there are `max_connections`, while descriptors are short, or connections come faster than
    `gate` (an `Admission`) allows, the port is not listened to: `why` says which, `paused_until`
    when to look again.
    """

    __slots__ = (
        "connections",
        "deferred",
        "family",
        "fd",
        "first_byte_timeout",
        "gate",
        "handshake_timeout",
        "handshakes",
        "identify",
        "make",
        "max_connections",
        "max_handshakes",
        "name",
        "paused_until",
        "socket",
        "waiting",
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
        #: By descriptor, those whose handshake would be one too many.
        self.waiting: OrderedDict[int, Carrier] = OrderedDict()
        #: On a Unix socket: descriptor -> who the peer's process is.
        self.identify: Any = None

    def busy(self) -> bool:
        """Whether another handshake would be one too many."""
        return self.max_handshakes > 0 and self.handshakes >= self.max_handshakes

    def next_handshake(self) -> None:
        """A handshake is over: the first of those who wait has its turn."""
        waiting = self.waiting
        while waiting and not self.busy():
            edge = waiting.popitem(False)[1]
            if edge.channel.state != CLOSED:
                edge.go()


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
