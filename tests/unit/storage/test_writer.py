"""The writer's thread: a long job lets by what has come to wait behind it."""

from __future__ import annotations

import gc
import sqlite3
import threading
from pathlib import Path

import pytest

from mqttd.storage.blobs import MANY
from mqttd.storage.database import (
    END_SESSION,
    KEEP,
    OPEN_SESSION,
    SUBSCRIBE,
    UNSUBSCRIBE_ALL,
    connect,
)
from mqttd.storage.fetching import Reading, read
from mqttd.storage.ledger import MESSAGE3, Ledger
from mqttd.storage.sums import sealed
from mqttd.storage.tools import backup
from mqttd.storage.writer import Stopped, Writer, write

DEADLINE = 60.0


def grown(path: Path, bytes_: int) -> sqlite3.Connection:
    """A store of so many bytes."""
    base = connect(str(path))
    for number in range(bytes_ >> 16):
        base.execute("INSERT INTO kept VALUES ('p', ?, ?)", (str(number), bytes(1 << 16)))
    return base


def test_groups_are_written_while_a_copy_is_made_and_are_in_it(tmp_path: Path) -> None:
    base = grown(tmp_path / "store.db", 4 << 20)
    writer = Writer(base, lambda: None)
    ledger = Ledger()
    steps: list[int] = []
    ended = threading.Event()

    def pass_by() -> None:
        ledger.row(KEEP, ("late", str(len(steps)), b"x"))
        group = ledger.close()
        assert group is not None
        writer.submit(group)
        writer.pass_by()
        steps.append(len(writer.done))

    def copy(base: sqlite3.Connection) -> None:
        backup(base, str(tmp_path / "copy.db"), pass_by)
        ended.set()

    writer.start()
    writer.between(copy)
    assert ended.wait(DEADLINE)
    writer.stop()
    assert len(steps) > 4
    assert steps == list(range(1, len(steps) + 1)), "each was written within its step"
    with sqlite3.connect(tmp_path / "copy.db") as made:
        assert made.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert made.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        kept = dict(made.execute("SELECT plugin, count(*) FROM kept GROUP BY plugin").fetchall())
    made.close()
    assert kept["p"] == 64
    assert kept["late"] >= len(steps) - 1  # what the last step has let by may come behind it


def test_a_copy_is_given_up_when_the_store_is_closed(tmp_path: Path) -> None:
    base = grown(tmp_path / "store.db", 4 << 20)
    writer = Writer(base, lambda: None)
    began, stopped = threading.Event(), threading.Event()
    found: list[BaseException] = []

    def pass_by() -> None:
        began.set()
        assert stopped.wait(DEADLINE)
        writer.pass_by()

    def copy(base: sqlite3.Connection) -> None:
        try:
            backup(base, str(tmp_path / "copy.db"), pass_by)
        except Stopped as error:
            found.append(error)

    writer.start()
    writer.between(copy)
    assert began.wait(DEADLINE)
    writer._waiting.put(None)
    stopped.set()
    writer.stop()
    assert len(found) == 1
    assert not (tmp_path / "copy.db").exists()


def test_a_copy_goes_over_nothing(tmp_path: Path) -> None:
    base = connect(str(tmp_path / "store.db"))
    (tmp_path / "copy.db").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        backup(base, str(tmp_path / "copy.db"), lambda: None)
    assert (tmp_path / "copy.db").read_bytes() == b"mine"
    base.close()


def test_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    base = connect(str(tmp_path / "store.db"))
    ledger = Ledger()
    ledger.note(1, MESSAGE3, 0, b"payload")
    group = ledger.close()
    assert group is not None
    write(base, group)
    for _ in range(3 * MANY):
        assert read(base, [(group.block.id, 3, 4)]) == [b"load"]
    kept = [len(found) for found in gc.get_referents(base) if isinstance(found, list)]
    assert max(kept) <= MANY
    base.close()


def test_a_large_group_is_written_in_pieces_and_is_the_same(tmp_path: Path) -> None:
    base = connect(str(tmp_path / "store.db"))
    ledger = Ledger()
    told = [b"%06d" % number * (number % 7 * 200 + 1) for number in range(300)]
    told[100] = bytes(500_000)
    numbers = [ledger.note(1, MESSAGE3, 0, data) for data in told]
    group = ledger.close()
    assert group is not None and group.size > 800_000
    write(base, group)
    stored = base.execute("SELECT data FROM block").fetchone()[0]
    assert stored == sealed(b"".join(told))
    for number, data in zip(numbers, told, strict=True):
        place = ledger.place(number)
        assert place is not None
        assert read(base, [(place[0].id, place[1], len(data))]) == [data]
    base.close()


def test_a_group_that_is_one_row_is_one_statement(tmp_path: Path) -> None:
    """It is a transaction of its own; all else is put into one."""
    base = connect(str(tmp_path / "store.db"))
    said: list[str] = []
    base.set_trace_callback(said.append)
    ledger = Ledger()
    ledger.note(1, MESSAGE3, 0, b"first")
    group = ledger.close()
    assert group is not None
    write(base, group)
    assert [statement.split()[0] for statement in said] == ["INSERT"]
    said.clear()
    ledger.note(1, MESSAGE3, 0, b"second")
    ledger.row(KEEP, ("p", "k", b"v"))
    group = ledger.close()
    assert group is not None
    write(base, group)
    assert [statement.split()[0] for statement in said] == ["BEGIN", "INSERT", "INSERT", "COMMIT"]
    said.clear()
    for number in (1, 2):
        ledger.forget(number)
    group = ledger.close()
    assert group is not None and group.drops
    write(base, group)
    assert [statement.split()[0] for statement in said] == ["DELETE"]
    assert not base.in_transaction
    base.close()


def test_to_delete_much_is_not_to_write_as_much(tmp_path: Path) -> None:
    """Some builds of SQLite write zeros over whatever is deleted unless they are told not to."""
    path = tmp_path / "store.db"
    base = connect(str(path))
    for number in range(1, 65):
        base.execute("INSERT INTO block VALUES (?, ?, ?, 0)", (number, bytes(16), bytes(1 << 18)))
    base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    base.execute("DELETE FROM block")
    written = Path(f"{path}-wal").stat().st_size
    base.close()
    assert written < 1 << 20


def test_sessions_that_end_together_take_few_statements(tmp_path: Path) -> None:
    """In the order of all rows: one that begins and ends in a group is over, its successor not."""
    base = connect(str(tmp_path / "store.db"))
    ledger = Ledger()
    count = 1200
    for owner in range(1, count + 1):
        ledger.row(OPEN_SESSION, (owner, f"c{owner}", None, 60))
        ledger.row(SUBSCRIBE, (owner, "a/#", 1, 0))
    for _ in range(2):
        group = ledger.close()
        assert group is not None
        said: list[str] = []
        base.set_trace_callback(said.append)
        write(base, group)
        base.set_trace_callback(None)
        for owner in range(1, count):
            ledger.row(END_SESSION, (owner,))
            ledger.row(UNSUBSCRIBE_ALL, (owner,))
        ledger.row(OPEN_SESSION, (count + 1, "c1", None, 60))
        ledger.row(SUBSCRIBE, (count + 1, "b", 1, 0))
        ledger.row(OPEN_SESSION, (count + 2, "gone", None, 60))
        ledger.row(END_SESSION, (count + 2,))
    assert len(said) < 20
    owners = [row[0] for row in base.execute("SELECT owner FROM session ORDER BY owner")]
    assert owners == [count, count + 1]
    filters = base.execute("SELECT owner, filter FROM subscription ORDER BY owner").fetchall()
    assert filters == [(count, "a/#"), (count + 1, "b")]
    base.close()


def test_what_many_are_to_get_is_read_once(tmp_path: Path) -> None:
    """As far as some megabytes hold it; what is small is read again."""
    base = connect(str(tmp_path / "store.db"))
    read_now = threading.Semaphore(0)
    writer = Writer(base, read_now.release)
    ledger = Ledger()
    large = ledger.note(1, MESSAGE3, 0, b"large" * 1000)
    small = ledger.note(1, MESSAGE3, 0, b"small")
    group = ledger.close()
    assert group is not None
    write(base, group)
    writer.start()
    pieces: list[tuple[int, int, int]] = []
    for number, size in ((large, 5000), (small, 5)):
        place = ledger.place(number)
        assert place is not None
        pieces.append((place[0].id, place[1], size))
    for _ in range(2):
        writer.fetch([Reading(None, list(pieces))])
        assert read_now.acquire(timeout=DEADLINE)
    first, second = writer.read
    assert first.found == second.found == [b"large" * 1000, b"small"]
    assert first.found[0] is second.found[0]
    assert first.found[1] is not second.found[1]
    writer.stop()
