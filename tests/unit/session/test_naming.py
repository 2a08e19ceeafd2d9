"""Identifiers that alone set receivers apart: joined packets are those that are cut one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttd.codec import properties as prop
from mqttd.codec.packets import Packet, Publish, Subscribe, Subscription
from mqttd.codec.properties import Properties
from mqttd.codec.serializer import serialize
from mqttd.session.routes.route import MISSED, NAMED, SPREAD
from tests.support import sizes
from tests.support.memory import MemoryBroker, MemoryClient
from tests.unit.session.test_differential import (
    CLIENTS,
    VARIANTS,
    Stage,
    Step,
    Story,
    connects,
    last_ids,
    publishes,
    steps,
)

IDENTIFIERS = [0, 2, 300, *sizes.IDENTIFIERS]
#: All of them match `a/b`, most `a`.
FILTERS = ["a", "a/b", "a/#", "+/b", "#"]
TWISTS: list[dict[str, Any]] = [
    {},
    {},
    {"max_inflight": 2, "mqueue_max_length": 3},
    {"max_inflight": 2, "mqueue_max_bytes": 60, "mqueue_store_qos0": False},
    {"outbound_topic_alias": True},
    {"max_packet_size": 64},
]


clients = st.integers(0, CLIENTS - 1)


@st.composite
def named(draw: st.DrawFn) -> list[Packet]:
    """Subscriptions with options that every message passes, each with an identifier or without."""
    made: list[Packet] = []
    for topic_filter in draw(st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3)):
        properties: Properties | None = None
        identifier = draw(st.sampled_from(IDENTIFIERS))
        if identifier:
            properties = {prop.SUBSCRIPTION_IDENTIFIER: [identifier]}
        asked = Subscription(topic_filter, draw(st.integers(0, 2)), False, draw(st.booleans()), 2)
        made.append(Subscribe(9, [asked], properties))
    return made


@st.composite
def stories(draw: st.DrawFn) -> Story:
    return Story(
        dict(draw(st.sampled_from(TWISTS))),
        draw(st.lists(connects(), min_size=CLIENTS, max_size=CLIENTS)),
        [
            *(Step(client, "burst", draw(named())) for client in range(CLIENTS)),
            *(
                draw(st.one_of(steps(), st.builds(Step, clients, st.just("burst"), publishes())))
                for _ in range(draw(st.integers(1, 8)))
            ),
        ],
        draw(last_ids),
    )


@pytest.mark.parametrize(
    ("switches", "view"),
    [VARIANTS[0], VARIANTS[4]],
    ids=["runs", "fast"],
)
@settings(max_examples=150, deadline=None)
@given(story=stories())
@pytest.mark.slow
def test_joined_packets_are_those_that_are_cut(
    story: Story, switches: dict[str, Any], view: Any
) -> None:
    fast = Stage(story).play()
    slow = Stage(story, **switches).play()
    assert view(fast) == view(slow)
    assert fast.state() == slow.state()
    counted = [
        (m.messages_sent, m.messages_received_qos0, m.packets_received, m.dropped_slow_consumer)
        for m in (fast.node.broker.metrics, slow.node.broker.metrics)
    ]
    assert counted[0] == counted[1]


def identified(node: MemoryBroker, count: int, qos: int = 0) -> list[MemoryClient]:
    """Subscribers of `a`, each with an identifier of its own, from 1 on."""
    made = []
    for n in range(1, count + 1):
        client = node.connect(f"reader-{n}", version=5)
        properties: Properties = {prop.SUBSCRIPTION_IDENTIFIER: [n]}
        client.send(Subscribe(1, [Subscription("a", qos)], properties))
        client.read()
        made.append(client)
    return made


def run_of(count: int, qos: int = 0, properties: Properties | None = None) -> bytes:
    return b"".join(
        serialize(
            Publish("a", b"%04d" % n, qos, packet_id=n if qos else 0, properties=properties), 5
        )
        for n in range(1, count + 1)
    )


@pytest.mark.parametrize("properties", [None, {prop.CONTENT_TYPE: "text"}])
def test_each_has_a_run_with_its_own_identifier(properties: Properties | None) -> None:
    node = MemoryBroker()
    readers = identified(node, 200)
    sender = node.connect("sender", version=5)
    sender.feed(run_of(5, 0, properties))
    assert node.broker.router.of("a").gear == SPREAD | NAMED
    for n, reader in enumerate(readers, 1):
        got = reader.published()
        assert [packet.payload for packet in got] == [b"%04d" % k for k in range(1, 6)]
        wanted = {**(properties or {}), prop.SUBSCRIPTION_IDENTIFIER: [n]}
        assert [packet.properties for packet in got] == [wanted] * 5
    assert node.broker.metrics.messages_sent == 1000
    assert node.broker.metrics.messages_received_qos0 == 5


def test_a_run_is_one_piece_for_each() -> None:
    """The comparison would say nothing if every packet was cut by itself."""
    node = MemoryBroker()
    readers = identified(node, 3)
    for reader in readers:
        reader.channel.blocked = True
    node.connect("sender", version=5).feed(run_of(40))
    assert [len(reader.channel.out or ()) for reader in readers] == [1, 1, 1]


def test_those_who_share_an_identifier_share_the_bytes() -> None:
    node = MemoryBroker()
    readers = [node.connect(f"reader-{n}", version=5) for n in range(4)]
    for reader in readers:
        properties: Properties = {prop.SUBSCRIPTION_IDENTIFIER: [7]}
        reader.send(Subscribe(1, [Subscription("a", 0)], properties))
        reader.read()
        reader.channel.blocked = True
    node.connect("sender", version=5).feed(run_of(2))
    wires = [(reader.channel.out or [b""])[0] for reader in readers]
    assert all(wire is wires[0] for wire in wires) and wires[0]


def test_a_run_of_many_shapes_is_bounded() -> None:
    """What each receiver has of its own is no more together than what shapes may take."""
    node = MemoryBroker()
    identified(node, 20)
    router = node.broker.router
    for n in range(20):
        node.connect(f"other-{n}").send(Subscribe(1, [Subscription("b", 0)]))
    most = [router.of(topic).cut(0, 1 << 30, 100) for topic in "ab"]
    assert most[0] <= (16 << 20) // 20 < most[1]


def test_a_slow_reader_loses_what_others_get() -> None:
    node = MemoryBroker()
    readers = identified(node, 3)
    readers[1].channel.limit = 30
    readers[1].channel.blocked = True
    sender = node.connect("sender", version=5)
    sender.feed(run_of(5))
    assert len(readers[0].published()) == len(readers[2].published()) == 5
    assert len(readers[1].channel.out or ()) == 2  # of 12 bytes each
    assert node.broker.metrics.dropped_slow_consumer == 3


def test_nobody_is_missed_by_identifiers() -> None:
    """Who hears of what reaches nobody costs nothing where all reach somebody."""
    node = MemoryBroker()
    router = node.broker.router
    router.gears.ask("somebody", MISSED, None)
    reader = identified(node, 1)[0]
    assert router.of("a").gear == SPREAD | NAMED
    properties: Properties = {prop.SUBSCRIPTION_IDENTIFIER: [7]}
    reader.send(Subscribe(1, [Subscription("a", 0, no_local=True)], properties))
    assert router.of("a").gear == SPREAD | MISSED


@pytest.mark.parametrize("size", range(112, 130))
def test_a_packet_id_is_written_where_it_stands(size: int) -> None:
    """An identifier made some heads longer by a byte: others had it written into their topic."""
    node = MemoryBroker()
    readers = []
    for n, identifier in enumerate([0, 300, 0, 300, 0, 300, 0, 300]):
        client = node.connect(f"reader-{n}", version=5)
        properties: Properties = {prop.SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}
        client.send(Subscribe(1, [Subscription("a", 1)], properties))
        client.read()
        readers.append((client, identifier))
    payload = b"x" * size
    for sender in ("one", "two"):  # the second has to get another id: the first is in flight
        client = node.connect(sender, version=5)
        client.send(Publish("a", payload, 1, packet_id=7))
        client.read()
    for client, identifier in readers:
        found = client.published()
        assert [(each.topic, each.payload) for each in found] == [("a", payload)] * 2
        assert len({each.packet_id for each in found}) == 2
        for each in found:
            given = (each.properties or {}).get(prop.SUBSCRIPTION_IDENTIFIER, [])
            assert given == ([identifier] if identifier else [])
