"""When a session began: over a restart, a handover, lines, and files of before."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import msgspec
import pytest

from mqttd.broker.sessions.records import Record, record_of, restore
from mqttd.storage.copies import pack_group
from mqttd.storage.database import DATE_SESSION
from mqttd.storage.transfer import export_lines, import_lines
from mqttd.types import SessionState
from tests.unit.storage.test_workers import Worker

HOUR = 3600


def change(path: Path, *statements: str) -> None:
    base = sqlite3.connect(path)
    for statement in statements:
        base.execute(statement)
    base.commit()
    base.close()


def age(worker: Worker, client_id: str = "a") -> int:
    """In seconds."""
    session = worker.node.session(client_id)
    assert session is not None
    return (worker.node.broker.now - session.created_at) // 1000


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The directory of a store whose session began an hour ago."""
    worker = Worker(tmp_path / "one")
    worker.away("a", "t")
    worker.stop()
    change(tmp_path / "one/store.db", f"UPDATE session SET created_at = created_at - {HOUR}")
    return tmp_path / "one"


def test_a_restart_does_not_make_a_session_younger(old: Path) -> None:
    for _ in range(2):
        worker = Worker(old)
        assert HOUR <= age(worker) < HOUR + 600
        worker.away("a", "t")  # its client comes, and goes again
        assert HOUR <= age(worker) < HOUR + 600
        worker.stop()


def test_a_session_of_a_file_of_before_is_as_old_as_its_client_is_away(old: Path) -> None:
    left = int(time.time()) - 500
    change(old / "store.db", "ALTER TABLE session DROP COLUMN created_at",
           f"UPDATE session SET away_since = {left}")  # fmt: skip
    worker = Worker(old)
    assert 500 <= age(worker) < HOUR
    worker.away("b", "t")
    worker.stop()
    worker = Worker(old)
    assert 500 <= age(worker) < HOUR and age(worker, "b") < 500
    worker.stop()


def test_who_takes_a_session_over_knows_when_it_began(old: Path, tmp_path: Path) -> None:
    one, two = Worker(old), Worker(tmp_path / "two")
    for worker in (one, two):
        worker.node.broker.clock = lambda: time.time_ns() // 1000
    session = one.node.session("a")
    assert session is not None
    record = record_of(one.node.broker, session)
    one.stop()
    taken = restore(two.node.broker, "a", SessionState(record, (), 0), Record(record))
    assert HOUR <= (two.node.broker.now - taken.created_at) // 1000 < HOUR + 600
    two.node.broker.registry.put_back(taken)
    two.settle()
    two.stop()
    again = Worker(tmp_path / "two")
    assert HOUR <= age(again) < HOUR + 600
    again.stop()


def test_lines_have_it(old: Path, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    import_lines(str(tmp_path / "two/store.db"), export_lines(str(old / "store.db")))
    worker = Worker(tmp_path / "two")
    assert HOUR <= age(worker) < HOUR + 600
    worker.stop()


def test_copies_have_no_row_that_nodes_of_before_do_not_know(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    journal = worker.store.journal
    assert journal is not None
    owner = journal.opened(0, "a", None, 60)
    journal.dated(owner, 5)
    group = journal.ledger.group
    assert [row[0] for row in group.rows][-1] == DATE_SESSION
    assert b"a" in pack_group(group)
    rows = msgspec.msgpack.decode(pack_group(group))[3]
    assert [row[0] for row in rows] == [each[0] for each in group.rows[:-1]]
    worker.stop()
