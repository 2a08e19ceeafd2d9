"""What a client has kept beside messages leaves the reserve of the disk alone, too."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Connack,
    Packet,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttd.codec.reasons import QUOTA_EXCEEDED
from mqttd.storage import writer
from mqttd.storage.blocks import Group, row_cost
from mqttd.storage.database import STATEMENTS, SUBSCRIBE, connect
from mqttd.storage.ledger import MESSAGE5, Ledger
from mqttd.storage.writer import write
from mqttd.testing.client import MemoryClient
from tests.support.waiting import until
from tests.unit.storage.test_room import MIB, Disk, stuck
from tests.unit.storage.test_workers import Worker

#: Of a file system of 1 TiB, in MiB.
RESERVE = 64
LASTING: Properties = {prop.SESSION_EXPIRY_INTERVAL: 1000}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(1 << 20)
    monkeypatch.setattr(os, "statvfs", made)
    return made


@pytest.fixture
def worker(tmp_path: Path, disk: Disk) -> Iterator[Worker]:
    made = Worker(tmp_path)
    yield made
    made.stop()


def come(
    worker: Worker, client_id: str, version: int = 5, clean: bool = False, will: Will | None = None
) -> MemoryClient:
    """A client whose session is to be kept."""
    properties = dict(LASTING) if version == 5 else None
    client = worker.node.connect(client_id, version, clean, properties=properties, will=will)
    worker.settle()
    return client


def ask(worker: Worker, client: MemoryClient, packet: Packet) -> list[int]:
    """The codes of the answer to a SUBSCRIBE or UNSUBSCRIBE."""
    client.received.clear()
    client.send(packet)
    worker.settle()
    (answer,) = [one for one in client.received if isinstance(one, (Suback, Unsuback))]
    return list(answer.reason_codes)


def code_of(client: MemoryClient) -> int:
    assert isinstance(client.connack, Connack)
    return client.connack.reason_code


def test_sessions_and_filters_that_would_be_kept_are_refused_while_only_the_reserve_is_left(
    worker: Worker, disk: Disk
) -> None:
    """They were written to the last byte: nobody's session ended, and no broker started again."""
    old = come(worker, "old")
    assert ask(worker, old, Subscribe(1, [Subscription("a", 1)])) == [1]
    older = come(worker, "older", 4)
    disk.free = RESERVE - 1
    assert stuck(worker)
    broker = worker.node.broker
    assert code_of(come(worker, "new")) == QUOTA_EXCEEDED
    assert code_of(come(worker, "newer", 4)) == 3
    assert broker.metrics.refused_not_kept == 2
    filters = [Subscription("a", 1), Subscription("b", 1), Subscription("a", 2)]
    assert ask(worker, old, Subscribe(1, filters)) == [1, QUOTA_EXCEEDED, QUOTA_EXCEEDED]
    assert ask(worker, older, Subscribe(1, [Subscription("a", 1)])) == [0x80]
    assert broker.metrics.refused_not_kept == 5
    passing = worker.node.connect("passing", 5)
    assert ask(worker, passing, Subscribe(1, [Subscription("b", 1)])) == [1], "it is not kept"
    again = come(worker, "passing")
    assert code_of(again) == QUOTA_EXCEEDED, "nor is it for having been there"
    old.drop()
    back = come(worker, "old")
    assert back.connack is not None and back.connack.session_present
    assert ask(worker, back, Unsubscribe(1, ["a"])) == [0]
    assert code_of(come(worker, "old", clean=True)) == 0, "one ends for it"
    disk.free = 2 * RESERVE
    assert not stuck(worker)
    assert code_of(come(worker, "new")) == 0
    assert ask(worker, back := come(worker, "old"), Subscribe(1, [Subscription("b", 1)])) == [1]
    assert back.connack is not None


def test_what_comes_at_once_leaves_the_reserve_alone_too(worker: Worker, disk: Disk) -> None:
    """The disk was looked at after a megabyte of messages; rows did not count at all."""
    client = come(worker, "greedy")
    disk.free = RESERVE + 2
    assert not stuck(worker)
    size = 3000
    filters = [Subscription(f"{at}/".ljust(size, "x"), 1) for at in range(1000)]
    for at in range(0, 1000, 200):
        client.send(Subscribe(at + 1, filters[at : at + 200]))
    worker.settle()
    codes = [
        code for one in client.received if isinstance(one, Suback) for code in one.reason_codes
    ]
    granted = codes.count(1)
    assert codes == [1] * granted + [QUOTA_EXCEEDED] * (1000 - granted)
    assert 100 < granted and granted * row_cost(size) <= 2 * MIB
    worker.reactor.advance(10)  # it has been looked at since
    worker.settle()
    for _ in range(3):
        worker.reactor.turn()
        worker.node.settle()
    assert ask(worker, client, Subscribe(1, [Subscription("one more", 1)])) == [1]


@pytest.mark.parametrize("size", [10, 400, 900, 1100, 4000, 5000, 60000])
def test_no_row_costs_more_than_it_is_counted_with(tmp_path: Path, size: int) -> None:
    path = tmp_path / "store.db"
    base = connect(str(path))
    count = 4 << 20 >> size.bit_length()
    base.execute("BEGIN IMMEDIATE")
    for _ in range(count):
        row = (1, os.urandom(size // 2).hex(), 1, 0)
        base.execute(STATEMENTS[SUBSCRIBE], row)
    base.execute("COMMIT")
    taken = path.stat().st_size + (tmp_path / "store.db-wal").stat().st_size
    base.close()
    assert taken < 100_000 + count * row_cost(size)


def test_a_subscribe_that_could_not_be_written_is_answered(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was answered by nothing, for as long as the store failed."""
    client = come(worker, "client")
    assert ask(worker, client, Subscribe(1, [Subscription("before", 1)])) == [1]
    failing = threading.Event()
    failing.set()

    def written(base: sqlite3.Connection, group: Group) -> None:
        if failing.is_set():
            raise sqlite3.OperationalError("disk I/O error")
        write(base, group)

    monkeypatch.setattr(writer, "write", written)
    journal = worker.store.journal
    assert journal is not None
    journal.fail(True)  # what was written is not doubted any more
    journal.fail(False)
    session = worker.node.session("client")
    assert session is not None and list(session.subscriptions or ()) == ["before"]

    def answers(packet_id: int) -> list[list[int]]:
        worker.reactor.turn()
        worker.node.settle()
        return [
            list(one.reason_codes)
            for one in client.received
            if isinstance(one, Suback) and one.packet_id == packet_id
        ]

    filters = [Subscription("before", 1), Subscription("held", 1)]
    client.send(Subscribe(7, filters))
    client.send(Subscribe(8, filters))  # what it says of `held` depends on the first
    until(lambda: answers(8) == [[1, QUOTA_EXCEEDED]], "what was held is refused")
    assert answers(7) == [[1, QUOTA_EXCEEDED]]
    assert list(session.subscriptions or ()) == ["before"]
    client.send(Subscribe(9, filters))
    until(lambda: answers(9) == [[1, QUOTA_EXCEEDED]], "what comes then is refused at once")
    failing.clear()
    until(lambda: answers(9) != [] and not worker.store.describe()["failing"], "it works again")
    worker.settle()
    assert ask(worker, client, Subscribe(10, filters)) == [1, 1]


def test_at_qos_0_nothing_is_kept_either(worker: Worker, disk: Disk) -> None:
    """It was not asked about, and written past the reserve."""
    worker.away("away", "t")
    broker = worker.node.broker
    disk.free = RESERVE - 1
    assert stuck(worker)
    publisher = worker.node.connect("publisher")
    publisher.send(Publish("t", b"waits", 0))
    publisher.send(Publish("r", b"stays", 0, True))
    worker.settle()
    session = worker.node.session("away")
    assert session is not None and session.mqueue is None
    assert broker.metrics.dropped_not_kept == 1
    assert "r" not in broker.retainer.topics and broker.metrics.dropped_retained_full == 1
    disk.free = 2 * RESERVE
    assert not stuck(worker)
    publisher.send(Publish("t", b"waits", 0))
    publisher.send(Publish("r", b"stays", 0, True))
    worker.settle()
    assert session.mqueue is not None and "r" in broker.retainer.topics


def wills(worker: Worker) -> list[str]:
    assert worker.store.writer is not None
    rows = worker.store.writer.base.execute("SELECT client_id FROM will ORDER BY 1").fetchall()
    return [row[0] for row in rows]


def test_last_words_may_have_a_quarter_of_the_reserve(worker: Worker, disk: Disk) -> None:
    """Who comes with a will is let in; one that finds no room is known in memory alone."""
    worker.away("away", "w")
    disk.free = RESERVE - 1
    assert stuck(worker)
    first = worker.node.connect("first", will=Will("w", b"first", 1, False))
    worker.settle()
    disk.free = RESERVE * 3 // 4 - 1
    assert stuck(worker)
    second = worker.node.connect("second", will=Will("w", b"second", 1, True))
    worker.settle()
    assert wills(worker) == ["first"]
    heard = worker.node.subscribe("w")
    second.drop()
    worker.settle()
    assert [message.payload for message in heard] == [b"second"], "who is there hears it"
    session = worker.node.session("away")
    assert session is not None and session.mqueue is None, "it would be kept"
    assert "w" not in worker.node.broker.retainer.topics
    disk.free = RESERVE - 1
    assert stuck(worker)
    first.drop()
    worker.settle()
    assert session.mqueue is not None and session.mqueue.length == 1
    assert wills(worker) == []


def test_filters_are_held_to_their_users_share(tmp_path: Path) -> None:
    """With messages alone one user stopped at eight ninths; with filters it had all of it."""
    most = 4 * MIB
    worker = Worker(tmp_path, max_bytes=most)
    worker.away("other", "t", "bob")
    refused = 0
    for at in range(60):
        client = worker.node.connect(f"eve {at}", properties=dict(LASTING), username="eve")
        worker.settle()
        if code_of(client):
            break
        filters = [Subscription(f"{at}/{n}/".ljust(4000, "x"), 1) for n in range(100)]
        refused += ask(worker, client, Subscribe(1, filters)).count(QUOTA_EXCEEDED)
        worker.node.advance(1)
        worker.settle()
    assert refused
    broker = worker.node.broker
    assert most // 2 < broker.account.rows < most * 8 // 9 + 450_000
    assert not broker.stuck, "bob is refused nothing"
    bob = worker.node.connect("bob", properties=dict(LASTING), username="bob")
    assert ask(worker, bob, Subscribe(1, [Subscription("more", 1)])) == [1]
    for name in list(broker.sessions):
        broker.end_session(name)
    worker.settle()
    assert broker.account.rows == 0
    worker.stop()


def test_a_block_is_moved_where_the_disk_has_room_for_it_twice(worker: Worker, disk: Disk) -> None:
    """What lives of it is written first: of a disk that was nearly full that took the rest."""
    ledger = Ledger()
    ledger.old = 1
    numbers = [ledger.note(1, MESSAGE5, 0, os.urandom(30_000)) for _ in range(60)]
    group = ledger.close()
    assert group is not None
    for number in numbers[:30]:
        ledger.forget(number)
    journal = worker.store.journal
    assert journal is not None
    journal.ledger = ledger
    for free, moved in ((2, []), (8, [group.block.id])):
        disk.free = free
        worker.store.room.look(sqlite3.connect(":memory:"))
        worker.store.room.limit(journal, 0)
        ledger.sweep()
        assert ledger.group.reads == moved
    journal.ledger = worker.store.ledger


def test_rows_are_counted_again_after_a_restart(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    client = come(worker, "client")
    assert ask(worker, client, Subscribe(1, [Subscription("a/b", 1), Subscription("c", 1)]))
    rows = worker.node.broker.account.rows
    assert rows > 0
    worker.stop()
    worker = Worker(tmp_path)
    assert worker.node.broker.account.rows == rows
    worker.node.broker.end_session("client")
    assert worker.node.broker.account.rows == 0
    worker.stop()
