"""Filters that come and go all the time are written to etcd at a pace, and who has them waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqttd.cluster.etcd import filling
from mqttd.cluster.etcd.client import Answer
from mqttd.cluster.etcd.keys import Keys
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.cluster.routes.routes import Routes
from mqttd.codec.packets import Pingreq, Pingresp, Suback, Subscribe, Subscription, Unsubscribe
from tests.support.memory import MemoryBroker, MemoryClient

RATE, BURST = 1 << 20, 32 << 20
LONG = 60_000


class Etcd:
    """Takes all that is written, at once."""

    def __init__(self) -> None:
        self.bytes = 0

    def transaction(self, when: list[Any], then: list[Any], _: list[Any]) -> Deferred[Answer]:
        """As `Etcd.transaction`."""
        for step in then:
            if (write := step.get("request_put")) is not None:
                self.bytes += len(write["value"]) * 3 // 4
        return succeed(Answer(True, 1, ()))


class Node:
    """A node with clients, alone in its cluster."""

    def __init__(self) -> None:
        self.etcd, self.clock = Etcd(), Clock()
        self.memory = MemoryBroker()
        self.routes = Routes(self.etcd, Keys("t"), "a", self.clock)  # type: ignore[arg-type]
        self.mesh = NodeMesh(
            self.memory.broker, self.routes.changed, self.routes.hold, lambda *_: None
        )
        self.routes.mesh = self.mesh
        self.routes.begin(1, 1)
        self.memory.broker.subscribing.pacer = self.routes.pacer

    @property
    def waited(self) -> int:
        return self.routes.pacer.pace.refused

    def goes_on(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.memory.run_soon()
        self.clock.advance(0.0)
        self.memory.run_soon()

    def churn(self, client: MemoryClient, number: int) -> bool:
        """Subscribe to fifteen long filters and unsubscribe again; whether that was answered."""
        names = [f"{number}/{at}/".ljust(LONG, "f") for at in range(15)]
        client.send(Subscribe(1, [Subscription(name, 0) for name in names]))
        client.send(Unsubscribe(2, names))
        self.goes_on()
        return len(client.take()) == 2


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    for _ in range(100):  # what is behind
        made.goes_on(1_000_000.0)
    assert not made.clock.getDelayedCalls()


def test_who_has_long_filters_come_and_go_waits_and_nobody_else_does(node: Node) -> None:
    client = node.memory.connect("a", 5, username="u")
    number = 0
    while node.churn(client, number):
        number += 1
    assert BURST * 0.9 < node.etcd.bytes < BURST * 1.1
    client.send(Pingreq())
    other = node.memory.connect("b", 5, username="v")
    other.send(Subscribe(1, [Subscription("t", 0)]))
    again = node.memory.connect("c", 5, username="u")
    again.send(Subscribe(1, [Subscription("t/c", 0)]))
    node.goes_on()
    assert [type(each) for each in other.take()] == [Suback]
    assert client.take() == again.take() == []  # nor is what is behind it read
    assert node.waited == 2
    for _ in range(3):
        node.goes_on(2.0)
    assert Pingresp in [type(each) for each in client.take()]
    assert [type(each) for each in again.take()] == [Suback]
    assert node.waited == 2
    began, before = node.clock.seconds(), node.etcd.bytes
    while node.clock.seconds() < began + 60:
        number += node.churn(client, number)
        node.goes_on(1.0)
    assert node.etcd.bytes - before < 1.1 * 60 * RATE


def test_a_hundred_thousand_ordinary_filters_do_not_wait(node: Node) -> None:
    """Twenty clients of one address, who all come again at once."""
    for _ in range(2):
        clients = [node.memory.connect(f"c{number}", 5) for number in range(20)]
        for number, client in enumerate(clients):
            names = [f"{number}/{at}/".ljust(50, "f") for at in range(5_000)]
            client.send(Subscribe(1, [Subscription(name, 0) for name in names]))
        node.goes_on()
        for client in clients:
            assert [type(each) for each in client.take()] == [Suback]
            client.drop()
        node.goes_on()
    assert node.etcd.bytes > 4 * 100_000 * 50 * 0.9
    assert node.waited == 0


def test_nothing_is_left_of_who_goes_while_it_waits(node: Node) -> None:
    client = node.memory.connect("a", 5, username="u")
    node.routes.pacer.pace.charge(("u", ""), 1 << 40, node.clock.seconds())
    client.send(Subscribe(1, [Subscription("t", 0)]))
    client.drop()
    node.goes_on(filling._LOOK)
    assert not node.clock.getDelayedCalls()
    assert not node.mesh.filters
