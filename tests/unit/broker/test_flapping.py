"""Clients that come and go all the time are banned for a while; others are not."""

from __future__ import annotations

import pytest

from mqttd.broker.rights import flapping
from mqttd.broker.rights.flapping import Flapping
from mqttd.codec.packets import Connect, Disconnect
from mqttd.session.channel.listener import FlappingRule, Listener
from tests.support.memory import MemoryBroker


def watched(count: int = 3) -> MemoryBroker:
    node = MemoryBroker()
    broker = node.broker
    broker.bans._seconds = lambda: broker.now / 1000
    broker.flapping = Flapping(broker.bans, broker.metrics, node._log, lambda: broker.now / 1000)
    rule = FlappingRule(count, 10.0, 20.0)
    broker.listeners["memory"] = Listener("memory", flapping=rule)
    return node


def come_and_go(node: MemoryBroker, client_id: str = "c") -> None:
    node.connect(client_id).send(Disconnect())


def refused(node: MemoryBroker, client_id: str = "c", version: int = 5) -> int:
    client = node.client(version)
    client.send(Connect(client_id, version=version))
    return client.read()[3]


def test_too_many_disconnects_in_the_window_are_a_ban_for_a_while() -> None:
    node = watched()
    for _ in range(3):
        come_and_go(node)
    assert refused(node) == 0x8A
    assert refused(node, version=4) == 5
    assert [event for event, _ in node.events].count("flapping") == 1
    assert node.broker.metrics.clients_flapping == 1
    assert node.broker.metrics.refused_banned == 2
    come_and_go(node, "other")
    node.advance(21_000)
    assert refused(node) == 0


def test_disconnects_over_a_longer_time_are_none_of_our_business() -> None:
    node = watched()
    for _ in range(10):
        come_and_go(node)
        node.advance(6_000)
    assert refused(node) == 0


def test_two_clients_that_take_over_from_each_other_are_flapping() -> None:
    node = watched()
    for _ in range(4):
        node.connect("c")
    assert refused(node) == 0x8A


def test_what_is_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flapping, "MOST", 10)
    node = watched()
    for n in range(50):
        come_and_go(node, f"c{n}")
    assert len(node.broker.flapping._seen) <= 10
    node.advance(11_000)
    come_and_go(node, "last")
    assert list(node.broker.flapping._seen) == ["last"]


def test_such_bans_are_not_written_to_the_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    node = watched(count=1)
    node.broker.bans.path = str(tmp_path / "bans.json")
    come_and_go(node)
    assert not (tmp_path / "bans.json").exists()
    assert [ban.value for ban in node.broker.bans.list()] == ["c"]
