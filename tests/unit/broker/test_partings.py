"""Wills that are due at once are published in as many turns as they need."""

from __future__ import annotations

from mqttd.broker.partings import ENOUGH
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscribe, Subscription, Will
from mqttd.codec.properties import Properties
from tests.support.memory import MemoryBroker, MemoryClient

SIZE = 65_000
#: Units of work of one will.
ONE = 1 + 1 + (SIZE >> 13)
COUNT = 400


def broken(expiry: int = 0) -> tuple[MemoryBroker, MemoryClient, list[MemoryClient]]:
    """The connections of many end in one turn."""
    node = MemoryBroker()
    node.settings.high_watermark = 1 << 30
    watcher = node.connect("watcher")
    watcher.send(Subscribe(1, [Subscription("wills/#", 0)]))
    watcher.take()
    clients = []
    for number in range(COUNT):
        will = Will(f"wills/{number}", b"x" * SIZE, 0, False, None)
        properties: Properties = {prop.SESSION_EXPIRY_INTERVAL: expiry}
        clients.append(node.connect(f"c{number}", 5, will=will, properties=properties))
    for client in clients:
        client.channel.end("reset")
    node.broker.perform()
    return node, watcher, clients


def topics(client: MemoryClient) -> list[str]:
    return [packet.topic for packet in client.take() if isinstance(packet, Publish)]


def test_a_turn_publishes_as_many_as_it_has_time_for() -> None:
    node, watcher, _ = broken()
    metrics = node.broker.metrics
    assert 0 < metrics.wills_published <= ENOUGH // ONE + 1
    turns = 0
    while node.broker.partings.line:
        before = metrics.wills_published
        node.broker.turns.turn()
        assert 0 < metrics.wills_published - before <= ENOUGH // ONE + 1
        turns += 1
    assert turns > COUNT * ONE // ENOUGH // 2
    assert topics(watcher) == [f"wills/{number}" for number in range(COUNT)]
    assert list(node.broker.sessions) == ["watcher"]
    assert node.broker.channels == 1


def test_who_comes_back_has_its_will_published_first() -> None:
    node, watcher, _ = broken(expiry=100)
    watcher.take()
    last = COUNT - 1
    again = node.connect(f"c{last}", 5, clean=False)
    assert topics(watcher) == [f"wills/{last}"]
    while node.broker.partings.line:
        node.broker.turns.turn()
    assert f"wills/{last}" not in topics(watcher)
    session = node.broker.sessions[f"c{last}"]
    assert session.channel is again.channel
    assert node.broker.channels == 2


def test_a_session_that_is_ended_meanwhile_ends_once() -> None:
    node, watcher, _ = broken()
    assert node.broker.registry.end_session(f"c{COUNT - 1}", 0x98, "kicked")
    assert topics(watcher)[-1] == f"wills/{COUNT - 1}"
    while node.broker.partings.line:
        node.broker.turns.turn()
    assert node.broker.metrics.wills_published == COUNT
    assert node.broker.channels == 1


def test_the_end_of_the_process_leaves_none_behind() -> None:
    node, _, _ = broken()
    node.broker.stop()
    assert node.broker.metrics.wills_published == COUNT
