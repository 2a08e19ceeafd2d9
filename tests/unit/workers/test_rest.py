"""Where a worker cannot follow, those who publish to it at the others wait, and nobody else."""

from __future__ import annotations

import pytest

from mqttd.codec.packets import Publish, Subscribe, Subscription, Unsubscribe
from mqttd.codec.serializer import serialize
from mqttd.mesh.link import Link
from tests.support.memory import MemoryClient
from tests.unit.workers.test_bounded import across
from tests.unit.workers.test_ferry import Worker, joined, pump


def two() -> tuple[Worker, Worker, Link, MemoryClient]:
    """The second worker has a subscriber to `a`, the first a link to it."""
    here, there, link, _, client = across(1)
    return here, there, link, client


def publish(worker: Worker, name: str, topic: str, qos: int) -> MemoryClient:
    """A client that has published one message."""
    client = worker.node.connect(name, 5)
    client.read()
    client.channel.feed(serialize(Publish(topic, b"x", qos, packet_id=1 if qos else 0), 5))
    return client


@pytest.mark.parametrize("qos", [0, 1])
def test_who_publishes_to_it_waits_until_it_can_follow(qos: int) -> None:
    here, there, _, client = two()
    there.node.broker.set_congested(True, "store")
    pump(here, there)
    publisher = publish(here, "p", "a/b", qos)
    elsewhere = publish(here, "q", "b", qos)
    pump(here, there)
    assert publisher.channel.paused
    assert not elsewhere.channel.paused
    # What it had sent has gone, and nothing else is asked for meanwhile.
    assert [packet.topic for packet in client.published()] == ["a/b"]
    there.node.broker.set_congested(True, "event log")
    there.node.broker.set_congested(False, "store")
    pump(here, there)
    assert publisher.channel.paused
    there.node.broker.set_congested(False, "event log")
    pump(here, there)
    assert not publisher.channel.paused


def test_what_is_no_message_goes_on() -> None:
    here, there, link, _ = two()
    there.node.broker.set_congested(True, "store")
    pump(here, there)
    publish(here, "p", "a/b", 0)
    went: list[str] = []
    link.line_up(lambda: went.append("relayed"))
    link.when_drained(lambda: went.append("published"))
    pump(here, there)
    assert went == ["relayed"]
    there.node.broker.set_congested(False, "store")
    pump(here, there)
    assert went == ["relayed", "published"]


def test_a_link_that_begins_meanwhile_says_it() -> None:
    here, there = Worker(1), Worker(2)
    there.node.broker.set_congested(True, "store")
    joined(here, there)
    link = here.mesh.neighbours[2].link
    assert link is not None and link.rests
    assert link.limit < 0 and not link.is_full()


def test_its_end_lets_all_go_on() -> None:
    here, there, link, _ = two()
    there.node.broker.set_congested(True, "store")
    pump(here, there)
    publisher = publish(here, "p", "a/b", 0)
    went: list[str] = []
    link.when_drained(lambda: went.append("published"))
    pump(here, there)
    assert publisher.channel.paused and not went
    here.mesh.unlinked(link)
    link.lost()
    here.node.broker.perform()
    assert not publisher.channel.paused and went


def test_it_is_said_past_what_waits_for_the_store() -> None:
    here, there, link, _ = two()
    back = there.mesh.neighbours[1].link
    assert back is not None
    gate = back.shut()
    there.node.broker.set_congested(True, "store")
    pump(here, there)
    assert link.rests
    there.node.broker.set_congested(False, "store")
    pump(here, there)
    assert not link.rests
    gate.open()


@pytest.mark.parametrize("last", [False, True])
def test_a_message_to_thousands_goes_to_all_and_its_publisher_waits(last: bool) -> None:
    here, there, link, client = two()
    if last:
        client.send(Unsubscribe(1, ["a/#"]))
        pump(here, there)
    locals_ = []
    for number in range(9000):
        client = here.node.connect(f"l{number}", 5)
        client.send(Subscribe(1, [Subscription("a/b", 0)]))
        client.take()
        locals_.append(client)
    if last:
        client = there.node.connect("s", 5)
        client.send(Subscribe(1, [Subscription("a/b", 1)]))
        pump(here, there)
    there.node.broker.set_congested(True, "store")
    pump(here, there)
    publisher = publish(here, "p", "a/b", 1)
    pump(here, there)
    assert not here.node.broker.fans.lines
    assert all(len(client.published()) == 1 for client in locals_)
    assert publisher.channel.paused
    there.node.broker.set_congested(False, "store")
    pump(here, there)
    assert not publisher.channel.paused
    assert not link.waiting
