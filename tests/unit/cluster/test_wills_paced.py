"""Wills that change all the time are written to etcd at a pace, the last one of each client."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqttd.cluster.etcd.client import Answer
from mqttd.cluster.etcd.keys import Keys
from mqttd.cluster.etcd.pace import BURST
from mqttd.cluster.wills.heirs import Heirs
from mqttd.session.ground.message import Message
from mqttd.session.session import Session
from tests.support.memory import MemoryBroker

KEYS = Keys("t")


class Etcd:
    """Takes all that is written, at once."""

    def __init__(self) -> None:
        self.there: dict[bytes, int] = {}
        self.bytes = 0

    def transaction(self, when: list[Any], then: list[Any]) -> Deferred[Answer]:
        """As `Etcd.transaction`."""
        for step in then:
            if (write := step.get("request_put")) is not None:
                self.there[write["key"]] = len(write["value"])
                self.bytes += len(write["value"]) * 3 // 4
            else:
                self.there.pop(step["request_delete_range"]["key"], None)
        return succeed(Answer(True, 1, ()))


class Node:
    """Sessions with wills, whose node is a member."""

    def __init__(self) -> None:
        self.etcd, self.clock = Etcd(), Clock()
        self.broker = MemoryBroker().broker
        self.heirs = Heirs(
            self.etcd, KEYS, "a", self.clock, lambda *_: True, lambda: 0, lambda name: True
        )  # type: ignore[arg-type]
        self.heirs.serve(self.broker)
        self.heirs.begin(1, 0)

    def will(self, client_id: str, user: str, payload: bytes) -> None:
        """A client has this will from now on."""
        session = self.broker.sessions.get(client_id)
        if session is None:
            session = self.broker.sessions[client_id] = Session(self.broker, client_id, user)
        session.set_will(Message(0, "w", payload, 1, False, None, client_id, None, 0), 0)
        self.heirs.changed(client_id)
        self.clock.advance(0)

    def run(self, seconds: float) -> None:
        """Time goes by."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)


@pytest.fixture
def node() -> Node:
    return Node()


def test_the_last_one_is_written_when_its_time_comes(node: Node) -> None:
    size = 100_000
    for number in range(400):
        node.will("c", "one", number.to_bytes(4, "big") * (size // 4))
    assert BURST < node.etcd.bytes < BURST + 3 * size
    assert not node.etcd.there, "one of before would be published in its place"
    node.run(1.0)
    assert len(node.etcd.there) == 1
    last = node.heirs.written
    value, _ = node.heirs._value("c")
    assert last.has("c", value)


def test_others_do_not_wait_for_that(node: Node) -> None:
    for number in range(400):
        node.will("c", "one", number.to_bytes(4, "big") * 25_000)
    node.will("d", "two", b"will")
    assert len(node.etcd.there) == 1
    node.will("d", "two", b"another")
    assert node.heirs.written.has("d", node.heirs._value("d")[0])


def test_what_stands_there_already_is_left(node: Node) -> None:
    node.will("d", "one", b"will")
    for number in range(400):
        node.will("c", "one", number.to_bytes(4, "big") * 25_000)
    node.will("d", "one", b"will")
    assert len(node.etcd.there) == 1


def test_thousands_that_wait_are_looked_at_some_at_a_time(node: Node) -> None:
    for number in range(400):
        node.will("c", "one", number.to_bytes(4, "big") * 25_000)
    for number in range(3000):
        node.will(f"d{number}", "one", b"will")
    before = node.heirs.pace.refused
    node.run(0.5)
    assert node.heirs.pace.refused - before <= 1000
    node.run(10.0)
    assert len(node.etcd.there) == 3001
