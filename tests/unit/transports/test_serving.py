"""Whatever a turn of the engine raises: the broker serves on, and somebody is told."""

from __future__ import annotations

import socket

import pytest

from mqttd.testing import MemoryBroker
from mqttd.transports.engine import Engine
from mqttd.transports.ports import Port


@pytest.mark.parametrize("raised", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_a_turn_that_raises_does_not_reach_the_reactor(raised: BaseException) -> None:
    node = MemoryBroker()
    engine = Engine(node.broker)
    told: list[tuple[BaseException, int]] = []
    engine.failed = lambda error, count: told.append((error, count))

    def make(address: object) -> None:
        raise raised

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        port = Port("tcp:broken", listening, 0, make)
        engine.ports[port.fd] = port
        engine.epoll.register(port.fd, 1)
        clients = []
        for _ in range(2):
            clients.append(socket.create_connection(listening.getsockname()))
            engine.doRead()
        assert [count for _, count in told] == [1, 2]
        assert all(error is raised for error, _ in told)
        engine.doRead()
        assert engine.faults == 0
        engine.epoll.close()
        for client in clients:
            client.close()
