"""SUBACKs that wait for other nodes, and what their clients send behind them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqttd.broker.routing.abroad import Taken
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.codec.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from tests.support.memory import MemoryBroker, MemoryClient

UNDER_WAY = 16


class Others:
    """The other nodes, which take filters when they are told to."""

    def __init__(self, node: MemoryBroker) -> None:
        self.broker = node.broker
        self.held: list[Taken] = []
        self.mesh = NodeMesh(
            node.broker,
            lambda full_filter: None,
            lambda taken, _: self.held.append(taken),
            lambda *_: None,
        )

    def take(self) -> None:
        """They have the filters of who has waited longest."""
        taken = self.held.pop(0)
        for full_filter in taken.filters():
            self.mesh.unsettled.pop(full_filter, None)
        taken.taken()
        self.broker.perform_later()


@pytest.fixture
def parts() -> tuple[MemoryBroker, Others, MemoryClient]:
    node = MemoryBroker()
    return node, Others(node), node.connect("c", 5)


def _subscribe(packet_id: int, *filters: str) -> Subscribe:
    return Subscribe(packet_id, [Subscription(each, 1) for each in filters])


def test_what_is_behind_a_subscribe_does_not_wait_for_its_suback(
    parts: tuple[MemoryBroker, Others, MemoryClient],
) -> None:
    node, others, client = parts
    client.send(_subscribe(1, "a"))
    client.send(_subscribe(2, "b"))
    client.send(Pingreq())
    node.run_soon()
    assert [type(each) for each in client.take()] == [Pingresp]
    others.take()
    others.take()
    node.run_soon()
    assert [each.packet_id for each in client.take() if isinstance(each, Suback)] == [1, 2]


def test_long_subscribes_are_under_way_at_the_same_time(
    parts: tuple[MemoryBroker, Others, MemoryClient],
) -> None:
    node, others, client = parts
    for packet_id in (1, 2, 3):
        client.send(_subscribe(packet_id, *(f"{packet_id}/{n}" for n in range(1000))))
    node.run_soon()
    assert len(others.held) == 3
    while others.held:
        others.take()
    node.run_soon()
    answers = [each for each in client.take() if isinstance(each, Suback)]
    assert [(each.packet_id, each.reason_codes) for each in answers] == [
        (packet_id, [1] * 1000) for packet_id in (1, 2, 3)
    ]


def test_no_more_than_so_many_subacks_of_a_client_wait(
    parts: tuple[MemoryBroker, Others, MemoryClient],
) -> None:
    node, others, client = parts
    for packet_id in range(1, UNDER_WAY + 4):
        client.send(_subscribe(packet_id, f"f/{packet_id}"))
    node.run_soon()
    assert len(others.held) == UNDER_WAY
    while others.held:
        others.take()
        node.run_soon()
    answers = [each.packet_id for each in client.take() if isinstance(each, Suback)]
    assert answers == list(range(1, UNDER_WAY + 4))
    assert not node.broker.subscribing.under_way


def _goes(client: MemoryClient) -> None:
    client.drop()


def _unsubscribes(client: MemoryClient) -> None:
    client.send(Unsubscribe(9, ["a"]))


@pytest.mark.parametrize("then", [_goes, _unsubscribes])
def test_an_unsubscribe_waits_and_nothing_is_left_of_a_client_that_goes(
    parts: tuple[MemoryBroker, Others, MemoryClient], then: Callable[[MemoryClient], None]
) -> None:
    node, others, client = parts
    client.send(_subscribe(1, "a"))
    then(client)
    node.run_soon()
    assert client.take() == []
    others.take()
    node.run_soon()
    subscribing = node.broker.subscribing
    assert (subscribing.under_way, subscribing.behind) == ({}, {})
    if then is _unsubscribes:
        answers = client.take()
        assert [type(each) for each in answers] == [Suback, Unsuback]
        assert "a" not in others.mesh.filters


def test_a_refused_filter_is_none_and_others_go_on(
    parts: tuple[MemoryBroker, Others, MemoryClient],
) -> None:
    node, others, client = parts
    client.send(_subscribe(1, "a"))
    client.send(_subscribe(2, "b"))
    others.held.pop(0).refused()
    others.take()
    node.run_soon()
    answers = [each for each in client.take() if isinstance(each, Suback)]
    assert [each.reason_codes for each in answers] == [[0x83], [1]]
    assert list(others.mesh.filters) == ["b"]


def test_what_an_administrator_subscribes_to_is_told_when_others_have_it(
    parts: tuple[MemoryBroker, Others, MemoryClient],
) -> None:
    node, others, client = parts
    node.connect("other", 5).send(Publish("a", b"kept", retain=True))
    told: list[bool] = []
    assert node.broker.subscribe_client("c", Subscription("a", 1), told.append) == 1
    node.run_soon()
    # The last message of now would be one too early: another may come where nobody knows yet.
    assert told == [] and client.published() == []
    others.take()
    node.run_soon()
    assert told == [True]
    assert [(each.topic, each.retain) for each in client.published()] == [("a", True)]


def test_what_others_cannot_be_told_of_an_administrator_has_not_subscribed_to(
    parts: tuple[MemoryBroker, Others, MemoryClient],
) -> None:
    node, others, client = parts
    told: list[bool] = []
    node.broker.subscribe_client("c", Subscription("a", 1), told.append)
    others.held.pop().refused()
    node.connect("other", 5).send(Publish("a", b"lost"))
    node.run_soon()
    assert told == [False] and client.published() == []


@pytest.mark.parametrize("start", ["", "$share/g/", "$queue/"])
def test_what_a_node_says_of_itself_is_asked_of_no_other(
    parts: tuple[MemoryBroker, Others, MemoryClient], start: str
) -> None:
    """Of `$queue` it was: whoever shared a figure that way got those of all nodes."""
    node, others, client = parts
    client.send(_subscribe(1, f"{start}$SYS/broker/uptime"))
    node.run_soon()
    assert [type(each) for each in client.take()] == [Suback]
    assert not others.mesh.filters
    client.send(Unsubscribe(2, [f"{start}$SYS/broker/uptime"]))
    assert not others.mesh.filters


def test_a_disconnect_waits_for_subacks(parts: tuple[MemoryBroker, Others, MemoryClient]) -> None:
    node, others, client = parts
    for packet_id in (1, 2):
        client.send(_subscribe(packet_id, f"f/{packet_id}"))
    client.send(Disconnect(0))
    node.run_soon()
    assert not client.wire.closed
    while others.held:
        others.take()
        node.run_soon()
    assert [each.packet_id for each in client.take() if isinstance(each, Suback)] == [1, 2]
    assert client.wire.closed
