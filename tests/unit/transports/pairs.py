"""A connection of the engine with a layer, and its far end, for tests of layers."""

from __future__ import annotations

from socket import socketpair

from mqttd.transports.engine import Engine
from mqttd.transports.layered_edge import LayeredEdge
from mqttd.transports.layers import Layer, Stack
from mqttd.transports.ports import Port
from tests.support.memory import MemoryBroker

__all__ = ["Pair"]


class Pair:
    """The far end reads when it is told to."""

    def __init__(self, layer: Layer) -> None:
        self.node = MemoryBroker()
        self.engine = Engine(self.node.broker)
        self.listening = socketpair()
        port = Port("ws:door", self.listening[0], 0, None, 0, 0)
        near, self.far = socketpair()
        near.setblocking(False)
        self.far.setblocking(False)
        fd = near.detach()
        port.connections += 1
        self.edge = LayeredEdge(self.engine, port, fd, ("192.0.2.7", 40_000), Stack([layer]))
        self.engine.layered[fd] = self.edge
        self.engine.epoll.register(fd, 1)
        self.channel = self.edge.channel

    def send(self, data: bytes) -> None:
        """The engine reads it at once."""
        self.far.sendall(data)
        self.engine.doRead()

    def close(self) -> None:
        """The far end goes first."""
        self.far.close()
        self.node.run_soon()
        self.engine.doRead()
        for sock in self.listening:
            sock.close()
        self.engine.epoll.close()
