"""Sessions with large queues that come back together: what is read, sent again or replayed fits.

Nothing of it is lost: it waits for others to have been read, acknowledged, or ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import Puback, Publish, Subscribe, Subscription
from mqttd.session.ground.settings import NEVER, Settings
from mqttd.session.session import DRAINED
from mqttd.storage.reading import AHEAD
from tests.support.memory import MemoryBroker, MemoryClient
from tests.unit.storage.test_apart import Asked, lay_apart, numbers, serve
from tests.unit.storage.test_journal import Kept, make

MIB = 1 << 20
SIZE = 200_000
LASTING = {prop.SESSION_EXPIRY_INTERVAL: NEVER}


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = make(tmp_path)
    yield made
    made.base.close()


def back(kept: Kept, name: str) -> MemoryClient:
    client = kept.node.connect(name, 5, False, properties={prop.SESSION_EXPIRY_INTERVAL: 1000})
    kept.settle()
    return client


def away(kept: Kept, count: int) -> list[str]:
    names = [f"away{number}" for number in range(count)]
    for name in names:
        kept.subscriber(name, "t/#", 1, kept=True).drop()
    kept.settle()
    return names


def send(kept: Kept, count: int) -> None:
    """To so many that it takes more than a turn."""
    publisher = kept.client("publisher", kept=False)
    for number in range(1, count + 1):
        payload = b"%06d" % number + bytes(SIZE)
        publisher.send(Publish("t/x", payload, 1, packet_id=number))
        kept.node.run_soon()
        kept.settle()
    publisher.drop()


def being_read(asked: Asked) -> int:
    return sum(size for _, pieces in asked for _, _, size in pieces)


def go_on(kept: Kept, asked: Asked, clients: list[MemoryClient]) -> list[list[int]]:
    """All that the clients get, while each acknowledges at once."""
    found: list[list[int]] = [[] for _ in clients]
    moved = True
    while moved:
        moved = False
        serve(kept, asked)
        kept.node.advance(250)
        for at, client in enumerate(clients):
            for packet in client.published():
                moved = True
                found[at] += numbers([packet])
                client.send(Puback(packet.packet_id, 0, None))
    return found


def test_of_many_that_come_back_a_part_is_read_at_once(kept: Kept) -> None:
    """All that a thousand sessions had asked for came at once, beside what memory was weighed."""
    asked = lay_apart(kept)
    names = away(kept, 20)
    send(kept, 3)
    clients = [back(kept, name) for name in names]
    assert AHEAD <= being_read(asked) < AHEAD + SIZE + 100
    assert kept.journal.reading == being_read(asked)
    used = kept.node.broker.memory.used()
    kept.journal.reading += 1000
    assert kept.node.broker.memory.used() == used + 1000
    kept.journal.reading -= 1000
    assert go_on(kept, asked, clients) == [[1, 2, 3]] * len(names)
    assert kept.journal.reading == 0


def test_nothing_is_read_for_clients_that_have_gone_again(kept: Kept) -> None:
    asked = lay_apart(kept)
    names = away(kept, 20)
    send(kept, 2)
    clients = [back(kept, name) for name in names]
    for client in clients:
        client.drop()
    before = kept.node.broker.account.queued
    serve(kept, asked)
    assert kept.node.broker.account.queued == before
    clients = [back(kept, name) for name in names]
    assert go_on(kept, asked, clients) == [[1, 2]] * len(names)


def test_while_memory_is_scarce_they_wait_and_nobody_is_shed(kept: Kept) -> None:
    """Each message is read when those before have been acknowledged; all of them come."""
    asked = lay_apart(kept)
    names = away(kept, 60)
    send(kept, 3)
    broker = kept.node.broker
    broker.settings.memory_budget = 16 * MIB
    broker.memory.configure()
    most = 0
    clients = [back(kept, name) for name in names]
    for _ in range(8):
        serve(kept, asked)
        kept.node.run_soon()
        most = max(most, broker.memory.used())
    assert broker.scarce
    assert 14 * MIB < most < 16 * MIB
    assert go_on(kept, asked, clients) == [[1, 2, 3]] * len(names)
    assert not broker.scarce
    assert broker.metrics.memory_waited > 0
    assert broker.metrics.memory_shed == 0 and broker.metrics.dropped_queue_full == 0


def test_who_does_not_acknowledge_keeps_nobody_waiting_for_ever(kept: Kept) -> None:
    """A few are read for at each look, until those who hold most make room."""
    asked = lay_apart(kept)
    names = away(kept, 60)
    send(kept, 3)
    broker = kept.node.broker
    broker.settings.memory_budget = 16 * MIB
    broker.memory.configure()
    idle = [back(kept, name) for name in names[:-1]]
    serve(kept, asked)
    client = back(kept, names[-1])
    found: list[int] = []
    looks = 0
    while len(found) < 3:
        looks += 1
        assert looks < 400
        kept.node.advance(250)
        serve(kept, asked)
        for packet in client.published():
            found += numbers([packet])
            client.send(Puback(packet.packet_id, 0, None))
        assert broker.memory.used() < 17 * MIB
    assert found == [1, 2, 3]
    assert any(one.channel.session is not None for one in idle)


# -- without a store ------------------------------------------------------------------------------


def crowd(count: int, messages: int, **more: int) -> tuple[MemoryBroker, list[str]]:
    """Sessions that are away, with large messages of their own."""
    settings = Settings()
    settings.mqueue_max_bytes = 0
    for name, value in more.items():
        setattr(settings, name, value)
    node = MemoryBroker(settings)
    names = [f"away{number}" for number in range(count)]
    for name in names:
        client = node.connect(name, 5, False, properties=dict(LASTING))
        client.send(Subscribe(1, [Subscription("t/#", 1)]))
        client.drop()
    sender = node.connect("sender", 5)
    for number in range(messages):
        payload = b"%06d" % (number + 1) + bytes(SIZE)
        sender.send(Publish("t/x", payload, 1, packet_id=number + 1))
    node.run_soon()
    return node, names


def test_a_turn_sends_so_many_bytes_of_queues() -> None:
    node, names = crowd(1, 20)
    client = node.connect(names[0], 5, False, properties=dict(LASTING))
    turns = [len(client.wire.waiting)]
    while node.tasks:
        node.tasks.pop(0)()
        turns.append(len(client.wire.waiting))
    assert turns[-1] > 20 * SIZE
    steps = [turns[at] - turns[at - 1] for at in range(1, len(turns))]
    assert 0 < max([turns[0], *steps]) < (DRAINED << 10) + 2 * SIZE


def test_what_was_in_flight_is_sent_again_as_far_as_turn_and_output_have_room() -> None:
    """All of it, a copy with DUP of each, went into the output at once."""
    node, names = crowd(1, 8)
    first = node.connect(names[0], 5, False, properties=dict(LASTING))
    node.run_soon()
    assert numbers(first.published()) == list(range(1, 9))
    first.drop()
    second = node.connect(names[0], 5, False, properties=dict(LASTING), room=0)
    assert len(second.wire.waiting) + second.channel.out_bytes < (DRAINED << 10) + 2 * SIZE
    node.run_soon()
    assert second.channel.out_bytes <= node.settings.high_watermark
    sender = node.connect("late", 5)
    sender.send(Publish("t/x", b"%06d" % 9, 1, packet_id=1))
    node.run_soon()
    found: list[Publish] = []
    while packets := second.published():
        found += packets
        node.run_soon()
    assert numbers(found) == list(range(1, 10))
    assert [packet.dup for packet in found] == [True] * 8 + [False]


def test_retained_messages_and_queues_wait_for_memory_too() -> None:
    """One large message each, then they wait; small ones do not."""
    node, names = crowd(3, 2)
    sender = node.connect("keeper", 5)
    for number in range(4):
        payload = b"%06d" % number + bytes(SIZE)
        sender.send(Publish(f"kept/{number}", payload, 1, retain=True, packet_id=number + 1))
        sender.send(Publish(f"small/{number}", b"%06d" % number, 1, True, packet_id=number + 11))
    broker = node.broker
    broker.scarce = True
    client = node.connect(names[0], 5, False, properties=dict(LASTING))
    node.run_soon()
    assert client.published() == []
    other = node.connect("other", 5)
    other.send(Subscribe(1, [Subscription("small/#", 1)]))
    node.run_soon()
    assert sorted(numbers(other.published())) == [0, 1, 2, 3]
    other.send(Subscribe(1, [Subscription("kept/#", 1)]))
    node.run_soon()
    assert len(other.published()) == 1
    assert len(broker.room) == 2
    node.advance(250)  # there is no budget, so there is room
    assert numbers(client.published()) == [1, 2]
    assert len(other.published()) == 3
