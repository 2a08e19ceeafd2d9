"""Resumption where clients do what the model's honest ones do not."""

from __future__ import annotations

import itertools

import pytest

from mqttd.broker.ground.turns import SLICES
from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)
from mqttd.session.session import DRAINED
from tests.support.memory import MemoryBroker, MemoryClient

MESSAGES = 5


def resumed(node: MemoryBroker, qos: int) -> MemoryClient:
    """Five messages are in flight, and the client comes back with room for one."""
    lasting = {prop.SESSION_EXPIRY_INTERVAL: 100}
    client = node.connect("c", 5, properties=dict(lasting))
    client.send(Subscribe(1, [Subscription("a", qos)]))
    sender = node.connect("sender", 5)
    sender.send(*(Publish("a", b"%d" % n, qos, packet_id=n) for n in range(1, MESSAGES + 1)))
    assert len(client.published()) == MESSAGES
    client.drop()
    again = node.connect("c", 5, clean=False, properties={**lasting, prop.RECEIVE_MAXIMUM: 1})
    assert [p.payload for p in again.published()] == [b"1"]
    return again


@pytest.mark.parametrize("early", [2, 3, 5])
def test_an_acknowledgement_of_what_was_not_sent_again_yet_is_taken(early: int) -> None:
    """It had the message on the older connection; the session goes on with the others."""
    node = MemoryBroker()
    client = resumed(node, 1)
    client.send(Puback(early))
    got = [b"1"]
    for _ in range(MESSAGES):
        packets = client.published()
        got += [p.payload for p in packets]
        client.send(*(Puback(p.packet_id) for p in packets), Puback(1))
    assert got == [b"%d" % n for n in range(1, MESSAGES + 1) if n != early]
    assert not client.closed and not client.session.inflight


@pytest.mark.parametrize("early", [2, 3, 5])
def test_a_qos_2_message_received_before_it_was_sent_again_is_not_sent_again(early: int) -> None:
    node = MemoryBroker()
    client = resumed(node, 2)
    client.send(Pubrec(early))
    assert [p.packet_id for p in client.take() if isinstance(p, Pubrel)] == [early]
    client.send(Pubcomp(early), Pubrec(1))
    got = [b"1"]
    for _ in range(2 * MESSAGES):
        packets = client.take()
        got += [p.payload for p in packets if isinstance(p, Publish)]
        answers: list[Packet] = [Pubrec(p.packet_id) for p in packets if isinstance(p, Publish)]
        answers += [Pubcomp(p.packet_id) for p in packets if isinstance(p, Pubrel)]
        if answers:
            client.send(*answers)
    assert got == [b"%d" % n for n in range(1, MESSAGES + 1) if n != early]
    assert not client.closed and not client.session.inflight


def test_those_that_come_back_together_are_served_in_turn() -> None:
    """None waits for all that another is to get, and no turn has more than some slices."""
    node = MemoryBroker()
    node.settings.max_inflight = 65535
    node.settings.mqueue_max_length = 10_000
    lasting = {prop.SESSION_EXPIRY_INTERVAL: 100}
    for name in "ab":
        client = node.connect(name, 5, properties=dict(lasting))
        client.send(Subscribe(1, [Subscription("t", 1)]))
        client.drop()
    sender = node.connect("sender", 5)
    for n in range(1, 1501):
        sender.send(Publish("t", b"%d" % n, 1, packet_id=n))
    clients = [node.connect(name, 5, clean=False, properties=dict(lasting)) for name in "ab"]
    came: list[list[int]] = [[], []]
    turns: list[int] = []
    while True:
        most = 2 * DRAINED if not turns else SLICES * DRAINED
        counts = []
        for client, mine in zip(clients, came, strict=True):
            packets = client.published()
            mine += [int(packet.payload) for packet in packets]
            counts.append(len(packets))
        assert sum(counts) <= most
        assert not turns or min(counts) == max(counts), "both are served"
        turns.append(sum(counts))
        if not node.tasks:
            break
        tasks, node.tasks = node.tasks, []
        for task in tasks:
            task()
    assert came[0] == came[1] == list(range(1, 1501))
    assert len(turns) > 4


def test_what_has_expired_is_dropped_in_as_many_turns_as_it_takes() -> None:
    """It was dropped in one turn: a thousand messages each, of all who came back together."""
    node = MemoryBroker()
    node.settings.mqueue_max_length = 10_000
    lasting = {prop.SESSION_EXPIRY_INTERVAL: 100}
    client = node.connect("a", 5, properties=dict(lasting))
    client.send(Subscribe(1, [Subscription("t", 1)]))
    client.drop()
    sender = node.connect("sender", 5)
    count = 4 * DRAINED
    for n in range(1, count + 1):
        expiry = {prop.MESSAGE_EXPIRY_INTERVAL: 5}
        sender.send(Publish("t", b"old", 1, packet_id=n, properties=expiry))
    sender.send(Publish("t", b"last", 1, packet_id=count + 1))
    node.advance(6000)
    metrics = node.broker.metrics
    back = node.connect("a", 5, clean=False, properties=dict(lasting))
    dropped = [metrics.dropped_expired]
    sender.send(Publish("t", b"new", 1, packet_id=count + 2))
    while node.tasks:
        tasks, node.tasks = node.tasks, []
        for task in tasks:
            task()
        dropped.append(metrics.dropped_expired)
    assert dropped[-1] == count
    assert all(b - a <= DRAINED for a, b in itertools.pairwise([0, *dropped]))
    assert [packet.payload for packet in back.published()] == [b"last", b"new"]
