"""Listening sockets of the engine: who comes is let in, told off, or left to the kernel a while.

    accept --> no room, no descriptor left: pause      gate (new connections a second): turn away
        '----> plain: a channel                        layers (TLS, WebSocket, PROXY): a stack

Accepts go in portions, so that a storm of connects leaves room for messages. Where the kernel
defers accepting until bytes have come, those are read at once, so that a connection and its CONNECT
cost one event.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from typing import Any, Final

from mqttd.net.fair import UNIX
from mqttd.session.channel import NEW, Channel, Server
from mqttd.transports.layers import LayeredEdge, Stack
from mqttd.transports.ports import Channels, Port, Sockets

__all__ = ["Accepting"]

_IN: Final = 1
#: Accepts per listener and turn.
_ACCEPTS: Final = 256


class Accepting(Sockets):
    """The part of the engine that takes connections in."""

    def __init__(self, server: Server, epoll: select.epoll) -> None:
        super().__init__(server, epoll)
        self.channels = Channels()  # those without layers
        #: Addresses of connections that have not been asked for theirs, as `accept` told them:
        #: CONNECT needs one soon, and asking the kernel again costs 2 us.
        self.fresh: dict[int, tuple[str, int]] = {}
        #: The most connections of all ports together; 0: no limit.
        self.most: int = 0
        self.ports: dict[int, Port] = {}
        self.by_name: dict[str, Port] = {}

    def read(self, channel: Channel, fd: int) -> None:
        """Read what has come for a channel."""
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

    def unlisten(self, name: str) -> None:
        """Stop accepting and close the listening socket; connections stay."""
        port = self.by_name.pop(name, None)
        if port is not None:
            self.ports.pop(port.fd, None)
            if not port.paused_until:
                self.epoll.unregister(port.fd)
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

    def accept(self, port: Port) -> None:
        gate = port.gate
        if gate is None:
            self._accept_most(port, _ACCEPTS, None)
            return
        room: int = gate.room(self.server.now, _ACCEPTS)
        taken = self._accept_most(port, room, None if gate.open else gate)
        gate.take(taken)
        if taken == room and room < _ACCEPTS:
            self._pause(port, "rate")

    def _accept_most(self, port: Port, most: int, gate: Any) -> int:
        """Accept up to `most` connections that `gate` lets in; returns how many there were."""
        server = self.server
        for count in range(most):
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
            if gate is not None and not gate.allows(address[0]):
                os.close(fd)
                server.metrics.connections_refused += 1
                server.turned_away(port.name, address[0], address[1])
                continue
            host: str = address[0] if isinstance(address, tuple) else UNIX
            if port.refuses(host, server):
                os.close(fd)
                continue
            os.set_blocking(fd, False)
            if port.make is not None:
                self._accept_layered(port, fd, address)
                continue
            port.connections += 1
            server.metrics.connections_accepted += 1
            channel = Channel(server, self, fd, port.name)
            self.channels.put(fd, channel)
            house = port.lobby.enter(channel, host, server.now)
            channel.io = house
            if isinstance(address, tuple):  # with one text for all who come from there
                self.fresh[fd] = (house.name if house.name == host else host, address[1])
            self.epoll.register(fd, _IN)
            if port.deferred:
                self.read(channel, fd)
                if channel.state != NEW or channel.rest is not None:
                    continue
            first = port.first_byte_timeout
            if first and first < server.connect_timeout(port.name):
                channel.need = -1
                server.wheel.schedule(channel, server.now + first)
        return most

    def full(self, port: Port) -> bool:
        """Whether another connection would be one too many."""
        if port.max_connections and port.connections >= port.max_connections:
            return True
        return self.most > 0 and self.channels.count + len(self.layered) >= self.most

    def _pause(self, port: Port, why: str) -> None:
        """Leave further connections to the kernel; `tick` looks whether to go on."""
        metrics = self.server.metrics
        wait = 1
        if why == "full":
            metrics.accepts_paused_full += 1
        elif why == "rate":
            metrics.accepts_paused_rate += 1
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
        if port.deferred and not port.busy(edge.house, self.server.now):
            edge.ready(_IN)
