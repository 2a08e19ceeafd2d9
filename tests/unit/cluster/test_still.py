"""A node that has stood still reads nothing from its clients until etcd has answered."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mqttd.cluster import still as module
from mqttd.cluster.still import Still
from mqttd.transports.engine import Engine
from tests.support import packets as mq
from tests.support.memory import MemoryBroker
from tests.support.waiting import Patience, readable

LEASE = 3.0


class Node:
    """Its lease is proved until `LEASE`, and it has looked a moment ago."""

    def __init__(self) -> None:
        self.now = 0.0
        keeper = SimpleNamespace(heard=0.0)
        self.membership: Any = SimpleNamespace(
            proved=LEASE, epoch=1, keeper=keeper, settings=SimpleNamespace(lease=LEASE)
        )
        self.apart: Any = SimpleNamespace(state="", begin=self._begin)
        self.still = Still(self.membership, self.apart)

    def _begin(self, state: str) -> None:
        self.apart.state = state

    def looks(self, until: float) -> None:
        while self.now < until:
            self.now += 0.2
            self.still.tick(self.now)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now)
    return made


@pytest.mark.parametrize("first", ["a turn", "a look"])
def test_a_node_that_stood_still_waits_for_etcd(node: Node, first: str) -> None:
    node.looks(1)
    assert not node.still.holds()
    node.now = 8.0
    if first == "a look":
        node.still.tick(node.now)
    assert node.still.holds()
    node.looks(8.5)
    assert node.still.holds() and not node.apart.state
    node.membership.proved = 8.5 + LEASE
    node.still.end()
    assert not node.still.holds()
    node.looks(11)
    assert not node.apart.state


def test_a_lease_that_ends_as_it_goes_on_has_ended_while_it_stood_still(node: Node) -> None:
    node.now = LEASE - 0.1
    node.still.tick(node.now)
    assert not node.still.holds()
    node.looks(LEASE + 0.1)
    assert node.still.holds() and not node.apart.state


def test_it_is_in_a_minority_if_etcd_does_not_answer_for_a_lease(node: Node) -> None:
    node.now = 8.0
    assert node.still.holds()
    node.looks(8.0 + LEASE + 1)
    assert node.apart.state == "minority"
    assert not node.still.holds()


def test_a_node_that_has_looked_is_in_a_minority_at_once(node: Node) -> None:
    node.now = 2.0
    node.still.tick(node.now)
    node.membership.proved = 2.1 + LEASE  # it has stood still, and etcd has answered since
    node.looks(5.05)
    node.now = 5.2
    assert not node.still.holds()
    node.still.tick(node.now)
    assert node.apart.state == "minority"


def test_who_stood_still_for_less_than_its_lease_goes_on(node: Node) -> None:
    node.now = 2.9
    assert not node.still.holds()
    node.membership.proved = 9.0  # a loop that is late: the lease is kept by a thread
    node.now = 8.0
    assert not node.still.holds()


class Holder:
    held = False

    def holds(self) -> bool:
        return self.held


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(MemoryBroker().broker)
    yield made
    made.close_all()


def test_clients_are_not_read_from_nor_let_in_meanwhile(engine: Engine) -> None:
    holder = Holder()
    engine.holder = holder
    port = socket.create_server(("127.0.0.1", 0))
    port.setblocking(False)
    engine.listen("tcp:door", port, 0)
    broker: Any = engine.server
    with (
        socket.create_connection(port.getsockname(), timeout=10) as one,
        socket.create_connection(port.getsockname(), timeout=10) as other,
    ):
        one.sendall(mq.connect("one"))
        patience = Patience(30.0)
        while not readable(one.fileno()) and patience.left():
            engine.doRead()
        holder.held = True
        one.sendall(mq.publish("t", b"x", 1, 1))
        other.sendall(mq.connect("other"))
        before = broker.metrics.packets_received
        for _ in range(20):
            engine.doRead()
        assert broker.metrics.packets_received == before
        holder.held = False
        patience = Patience(30.0)
        while broker.metrics.packets_received < before + 2 and patience.left():
            engine.doRead()
        assert broker.metrics.packets_received == before + 2
