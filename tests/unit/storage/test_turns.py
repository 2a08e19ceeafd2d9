"""A turn is short, whatever is queued for those who do not read, and moved in the file."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec.packets import Publish
from mqttd.codec.serializer import serialize
from mqttd.session.channel.framing import ALLOWANCE
from mqttd.session.pending import QUEUING
from mqttd.storage.ledger import MESSAGE3, Ledger
from mqttd.storage.recovery import read
from tests.unit.storage.test_journal import Kept, make


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = make(tmp_path)
    yield made
    made.base.close()


@pytest.mark.parametrize("qos", [1, 2])
def test_who_publishes_to_full_queues_has_turns(kept: Kept, qos: int) -> None:
    """Each message costs each of them a row and the oldest one's, as many as bytes on their way."""
    readers, full, count = 20, 10, 600
    settings = kept.node.broker.settings
    settings.mqueue_max_length = full
    settings.max_inflight = 1
    for at in range(readers):
        kept.subscriber(f"reader {at}", "t", qos, kept=True)
    publisher = kept.client("publisher", kept=True)
    metrics = kept.node.broker.metrics
    for at in range(full + 1):
        publisher.send(Publish("t", b"x", qos, False, False, at + 1, None))
        kept.settle()
    before = metrics.messages_queued
    ids = range(full + 2, full + 2 + count)
    publisher.feed(b"".join(serialize(Publish("t", b"x", qos, packet_id=at), 5) for at in ids))
    turns = 0
    each = 2 * QUEUING  # one comes, one goes
    most = ALLOWANCE + each * readers
    while True:
        turns += 1
        queued = metrics.messages_queued - before
        before += queued
        assert queued * each <= most
        tasks, kept.node.tasks = kept.node.tasks, []
        if not tasks:
            break
        for task in tasks:
            task()
        kept.settle()
    assert turns > count * readers * each // most
    assert metrics.dropped_queue_full == count * readers
    kept.settle()
    assert len(publisher.take()) == full + 1 + count


def test_what_is_read_again_is_moved_in_turns(kept: Kept) -> None:
    kept.client("owner", kept=True)
    ledger, journal = kept.ledger, kept.journal
    count, of = 80_000, 10
    wire = bytes(50)
    journal.begin()
    numbers = [ledger.note(1, MESSAGE3, 0, wire) for _ in range(count)]
    kept.node.broker.perform()
    kept.settle()
    journal.begin()
    for number in numbers:
        if number % of:
            ledger.forget(number)
    kept.node.broker.perform()
    kept.settle()
    ledger.compact()
    turns = moved = 0
    while ledger.thorough:
        journal.nudge()
        kept.write()
        while True:
            assert ledger.moved - moved <= 16_384 // of + 1
            turns += ledger.moved > moved
            moved = ledger.moved
            if not journal.moving():
                break
            journal.move()
            kept.node.broker.perform()
        kept.settle()
    assert turns > count // 16_384
    records = read(kept.base, Ledger()).records[1]
    assert [record.number for record in records] == [each for each in numbers if not each % of]


def test_what_many_have_is_moved_as_one(kept: Kept) -> None:
    kept.client("owner", kept=True)
    ledger, journal = kept.ledger, kept.journal
    wires = [bytes([number]) * 500_000 for number in range(3)]
    journal.begin()
    numbers = [ledger.note(1, MESSAGE3, 0, wire) for wire in wires for _ in range(100)]
    kept.node.broker.perform()
    kept.settle()
    journal.begin()
    for number in numbers[::2]:
        ledger.forget(number)
    kept.node.broker.perform()
    kept.settle()
    del wires
    ledger.compact()
    tracemalloc.start()
    try:
        while ledger.thorough:
            journal.nudge()
            kept.write()
            kept.settle()
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert ledger.moved == 150
    assert [record.number for record in read(kept.base, Ledger()).records[1]] == numbers[1::2]
