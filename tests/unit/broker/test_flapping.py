"""Clients that come and go all the time are banned for a while; others are not."""

from __future__ import annotations

import pytest

from mqttd.broker.rights import flapping
from mqttd.broker.rights.bans import BanError, Bans
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


def come_and_go(
    node: MemoryBroker, client_id: str = "c", username: str | None = None, host: str = "127.0.0.1"
) -> None:
    node.connect(client_id, username=username, host=host).send(Disconnect())


def refused(
    node: MemoryBroker,
    client_id: str = "c",
    version: int = 5,
    username: str | None = None,
    host: str = "127.0.0.1",
) -> int:
    client = node.client(version, host=host)
    client.send(Connect(client_id, version=version, username=username))
    code = client.read()[3]
    client.drop()
    return code


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
    assert list(node.broker.flapping._seen) == ['["last", null, "127.0.0.1"]']


def test_such_bans_are_not_written_to_the_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    node = watched(count=1)
    node.broker.bans.path = str(tmp_path / "bans.json")
    come_and_go(node)
    assert not (tmp_path / "bans.json").exists()
    assert [ban.value for ban in node.broker.bans.list()] == ['["c", null, "127.0.0.1"]']


@pytest.mark.parametrize(
    ("flaps", "others"),
    [
        (("eve", "10.0.0.1"), [("bob", "10.0.0.1"), (None, "10.0.0.1"), (None, "10.0.0.2")]),
        ((None, "10.0.0.1"), [(None, "10.0.0.2"), ("bob", "10.0.0.1")]),
        ((None, "2001:db8::1"), [(None, "2001:db8:0:1::1"), ("bob", "2001:db8::1")]),
    ],
)
def test_nobody_gets_the_client_id_of_another_banned(
    flaps: tuple[str | None, str], others: list[tuple[str | None, str]]
) -> None:
    node = watched()
    for _ in range(3):
        come_and_go(node, "c", *flaps)
    assert refused(node, "c", 5, *flaps) == 0x8A
    for username, host in others:
        assert refused(node, "c", 5, username, host) == 0


def test_a_user_is_counted_wherever_it_is_and_a_house_as_one() -> None:
    node = watched()
    for n in range(3):
        come_and_go(node, "c", "eve", f"10.0.0.{n}")
        come_and_go(node, "d", None, f"2001:db8::{n}")
    assert refused(node, "c", 5, "eve", "10.0.0.7") == 0x8A
    assert refused(node, "d", 5, None, "2001:db8::7") == 0x8A


def test_of_a_connection_that_was_reset_the_address_is_known() -> None:
    node = watched()
    for _ in range(3):
        client = node.connect("c", host="10.0.0.1")
        client.channel.edge.host = ""  # type: ignore[attr-defined]
        client.drop()
    assert refused(node, host="10.0.0.1") == 0x8A
    assert refused(node, host="10.0.0.2") == 0


def test_a_ban_of_a_client_is_lifted_as_it_is_listed() -> None:
    node = watched()
    for _ in range(3):
        come_and_go(node, "c", "eve")
    (ban,) = node.broker.bans.list()
    assert (ban.kind, ban.value) == ("client", '["c", "eve"]')
    assert node.broker.bans.remove(ban.kind, ban.value)
    assert refused(node, "c", 5, "eve") == 0


@pytest.mark.parametrize(
    "value", ["c", "[]", '["c"]', '["c","eve"]', '["c", 7]', '["c", null]', "[" * 9999, '{"c": 1}']
)
def test_what_is_no_client_is_not_banned(value: str) -> None:
    with pytest.raises(BanError, match="client = "):
        Bans().add("client", value)
