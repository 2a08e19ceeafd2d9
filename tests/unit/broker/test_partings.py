"""Wills that are due at once are published in as many turns as they need."""

from __future__ import annotations

from mqttd.broker.sessions.partings import ENOUGH
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


def away(count: int, expiry: int, will: Will | None = None) -> tuple[MemoryBroker, MemoryClient]:
    """So many sessions were left in one moment."""
    node = MemoryBroker()
    node.settings.high_watermark = 1 << 30
    watcher = node.connect("watcher")
    watcher.send(Subscribe(1, [Subscription("wills/#", 0)]))
    watcher.take()
    properties: Properties = {prop.SESSION_EXPIRY_INTERVAL: expiry}
    clients = [
        node.connect(f"c{number}", 5, will=will, properties=properties) for number in range(count)
    ]
    for client in clients:
        client.channel.end("reset")
    node.broker.perform()
    return node, watcher


def pass_turns(node: MemoryBroker) -> int:
    """Until nobody is in line."""
    turns = 0
    while node.broker.partings.line:
        node.broker.turns.turn()
        turns += 1
    return turns


def test_sessions_that_expire_together_end_in_as_many_turns_as_they_need() -> None:
    node, _ = away(1000, 10)
    assert len(node.broker.sessions) == 1001
    node.broker.tick(node.now + 11_000)
    metrics = node.broker.metrics
    assert metrics.sessions_expired == ENOUGH // 8
    assert pass_turns(node) == (1000 - ENOUGH // 8) // (ENOUGH // 8) + 1
    assert metrics.sessions_expired == 1000
    assert list(node.broker.sessions) == ["watcher"]


def test_delayed_wills_that_are_due_together_go_in_as_many_turns_as_they_need() -> None:
    will = Will("wills/all", b"x" * SIZE, 0, False, {prop.WILL_DELAY_INTERVAL: 5})
    node, watcher = away(COUNT, 100, will)
    assert topics(watcher) == []
    node.broker.tick(node.now + 6_000)
    metrics = node.broker.metrics
    assert 0 < metrics.wills_published <= ENOUGH // (ONE + 8) + 1
    assert pass_turns(node) > COUNT * ONE // ENOUGH // 2
    assert metrics.wills_published == COUNT
    assert len(topics(watcher)) == COUNT
    # They expire all the same.
    node.broker.tick(node.now + 101_000)
    pass_turns(node)
    assert metrics.sessions_expired == COUNT


def test_who_comes_back_to_what_has_expired_starts_afresh() -> None:
    will = Will("wills/all", b"x", 0, False, {prop.WILL_DELAY_INTERVAL: 5})
    node, watcher = away(COUNT, 10, will)
    node.broker.tick(node.now + 11_000)
    had = node.broker.metrics.wills_published
    assert had < COUNT
    last = f"c{COUNT - 1}"
    again = node.connect(last, 5, clean=False, properties={prop.SESSION_EXPIRY_INTERVAL: 10})
    assert not again.connack.session_present
    assert node.broker.metrics.wills_published == had + 1
    pass_turns(node)
    assert node.broker.metrics.wills_published == COUNT
    assert len(topics(watcher)) == COUNT
    assert sorted(node.broker.sessions) == [last, "watcher"]


def test_where_the_disk_cannot_follow_they_wait_as_publishers_do() -> None:
    """4,000 retained wills of 60 kB were one group of the store, for seconds."""
    node, watcher, _ = broken()
    broker = node.broker
    broker.set_congested(True, "store")
    before = broker.metrics.wills_published
    for _ in range(3):
        broker.turns.turn()
    assert broker.metrics.wills_published == before
    node.run_soon()  # and nothing looks again and again whether it may go on
    assert broker.metrics.wills_published == before
    broker.set_congested(False, "store")
    node.run_soon()
    assert not broker.partings.line
    assert topics(watcher) == [f"wills/{number}" for number in range(COUNT)]


def test_what_is_retained_is_work_even_if_nobody_hears() -> None:
    node = MemoryBroker()
    clients = []
    for number in range(COUNT):
        will = Will(f"wills/{number}", b"x" * SIZE, 0, True, None)
        clients.append(node.connect(f"c{number}", 5, will=will))
    for client in clients:
        client.channel.end("reset")
    node.broker.perform()
    assert 0 < node.broker.metrics.wills_published <= ENOUGH // (ONE - 1) + 1
