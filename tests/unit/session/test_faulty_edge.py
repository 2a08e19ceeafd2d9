"""A fault while one connection is written to or closed stays with that connection."""

from __future__ import annotations

import pytest

from mqttd.codec.packets import Publish, Subscribe, Subscription
from tests.support.memory import MemoryBroker


class Fault(Exception):
    """What must not be."""


def fails(*arguments: object) -> None:
    raise Fault


@pytest.mark.parametrize("first", ["faulty", "sound"])
def test_the_others_get_what_is_theirs(first: str) -> None:
    """The output of every connection is written in one loop: a fault must not end it."""
    node = MemoryBroker()
    names = ["faulty", "sound"] if first == "faulty" else ["sound", "faulty"]
    clients = {name: node.connect(name) for name in names}
    for client in clients.values():
        client.send(Subscribe(1, [Subscription("a", 0)]))
    publisher = node.connect("publisher")
    clients["faulty"].wire.write = fails  # type: ignore[method-assign]
    publisher.send(Publish("a", b"1"))
    publisher.send(Publish("a", b"2"))
    assert [packet.payload for packet in clients["sound"].published()] == [b"1", b"2"]
    assert node.broker.metrics.crashes >= 1
    assert "faulty" not in node.broker.sessions


def test_what_ends_with_it_ends_although_one_cannot_be_closed() -> None:
    node = MemoryBroker()
    first, second = node.connect("first"), node.connect("second")
    first.wire.loseConnection = fails  # type: ignore[method-assign]
    for client in (first, second):
        client.channel.end("kicked")
    node.broker.perform()
    assert second.wire.closed
    assert "second" not in node.broker.sessions
    assert node.broker.metrics.crashes == 1
