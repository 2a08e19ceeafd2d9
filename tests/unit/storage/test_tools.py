"""Tools for a store whose broker is down."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqttd.broker.rights.bans import DRAWER, Ban
from mqttd.session.ground.message import Message
from mqttd.storage.database import (
    KEEP,
    LEAVE_SESSION,
    OPEN_SESSION,
    SET_WILL,
    SUBSCRIBE,
    StoreError,
    connect,
)
from mqttd.storage.entries import dump
from mqttd.storage.ledger import DELIVERY, MESSAGE3, MESSAGE5, RECEIVED, RELEASED, Ledger
from mqttd.storage.lines import MessageLine, dump_line
from mqttd.storage.recovery import read
from mqttd.storage.tools import backup, check, finish, info, restore, shrink
from mqttd.storage.transfer import export_lines, import_lines
from mqttd.storage.writer import write
from tests.support.waiting import until
from tests.unit.storage.test_workers import Worker

NOW = 1_800_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with something of everything."""
    made = str(tmp_path / "store.db")
    base = connect(made)
    ledger = Ledger()
    for owner, client_id in ((1, "alice"), (7, "b\u00f6b")):
        ledger.row(OPEN_SESSION, (owner, client_id, None, 100))
        ledger.row(LEAVE_SESSION, (1234, owner))
        ledger.row(SUBSCRIBE, (owner, f"{client_id}/#", 2, owner))
    message = Message(1 << 70, "t", b"payload", 1, False, {0x26: [("k", "v")]}, "who", None, 0)
    old = message.wire(1, False, False, None, 0)
    new = message.wire(2, False, True, [3], 0)
    ledger.note(1, MESSAGE3, 0, old)
    ledger.note(7, MESSAGE5, 9, new)
    ledger.note(7, RECEIVED, 10, b"")
    ledger.note(1, RELEASED, 11, b"")
    from mqttd.session.ground.message import Delivery

    remembered = Delivery.of(message, 1, False, True, None, 0)
    remembered.expires_at = 5000
    ledger.note(1, DELIVERY, 0, dump(remembered, NOW))
    for ban in (Ban("username", "eve", "rude", None, 5.0), Ban("peerhost", "10.0.0.0/8", "", 9e9)):
        ledger.row(KEEP, (DRAWER, ban.key(), ban.dump()))
    ledger.row(KEEP, ("acme", "key \u00fc", bytes(range(256))))
    ledger.row(SET_WILL, ("alice", None, 5, 0, message.wire(1, False, True, None, 0)))
    group = ledger.close()
    assert group is not None
    write(base, group)
    base.close()
    return made


def test_info_counts(path: str) -> None:
    found = info(path)
    assert (found["sessions"], found["subscriptions"], found["messages"]) == (2, 2, 3)
    assert (found["packet_ids"], found["retained"]) == (2, 0)
    assert (found["wills"], found["damaged"]) == (1, 0)


def test_a_whole_store_passes_the_check_and_a_damaged_one_does_not(path: str) -> None:
    assert check(path) == []
    base = connect(path)
    base.execute("UPDATE block SET words = x'01020304'")
    base.close()
    assert check(path) == ["block 1: its words are damaged"]


def exported(path: str) -> list[str]:
    return [dump_line(line) for line in export_lines(path)]


def test_what_was_exported_can_be_imported_elsewhere(path: str, tmp_path: Path) -> None:
    """The same lines come out again, whatever numbers the new file has given."""
    lines = exported(path)
    other = str(tmp_path / "other.db")
    counts = import_lines(other, lines)
    assert counts == {
        "session": 2, "message": 5, "retained": 0, "will": 1, "ban": 2, "user": 0, "value": 1,
    }  # fmt: skip
    assert exported(other)[1:] == lines[1:]
    assert check(other) == []
    assert Path(other).stat().st_mode & 0o777 == 0o600
    messages = [line for line in export_lines(path) if isinstance(line, MessageLine)]
    states = sorted(line.state for line in messages)
    assert states == ["inflight", "queued", "queued", "received", "released"]
    (remembered,) = [line for line in messages if line.record is not None]
    assert remembered.expires_at == NOW + 5000
    assert remembered.publisher == "who"
    assert sorted(made.name for made in tmp_path.iterdir()) == ["other.db", "store.db"]


def test_lines_of_the_first_version_are_read(path: str, tmp_path: Path) -> None:
    """They had no end, and no bans, users and values."""
    lines = [line for line in exported(path) if '"type":"value"' not in line and "ban" not in line]
    lines[0] = '{"type": "store", "version": 1, "written_at": 5}'
    assert import_lines(str(tmp_path / "other.db"), lines[:-1])["message"] == 5


def test_an_import_never_touches_a_store_that_is_there(path: str) -> None:
    before = Path(path).read_bytes()
    with pytest.raises(StoreError, match="there already"):
        import_lines(path, [])
    assert Path(path).read_bytes() == before


HEAD = '{"type":"store","version":2}'
SESSION = '{"type":"session","client_id":"c","expiry":5}'
END = '{"type":"end","lines":2}'


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([], "line 1: expected .* found nothing"),
        (["\x00\xb5mosquitto db"], "line 1: JSON is malformed"),
        ([SESSION], 'line 1: expected {"type":"store"'),
        (['{"type":"store","version":4}'], "line 1: version 4: this mqttd reads 1 to 3"),
        ([HEAD, SESSION], "line 3: expected more"),
        ([HEAD, SESSION, '{"type":"end","lines":3}'], "line 3: 3 lines were written, 2 are here"),
        ([HEAD, SESSION, SESSION[:30]], "line 3: "),
        ([HEAD, SESSION, END, SESSION], "line 4: a line behind the last"),
        ([HEAD, SESSION, HEAD], "line 3: a second first line"),
        ([HEAD, SESSION, SESSION], "line 3: session 'c' comes twice"),
        ([HEAD, '{"type":"other"}'], "line 2: Invalid value 'other'"),
        ([HEAD, '{"type":"session","client_id":"c"}'], "line 2: .*missing required field `expiry`"),
        (
            [HEAD, '{"type":"session","client_id":"c","expiry":"never"}'],
            r"line 2: Expected `int`, got `str` - at `\$.expiry`",
        ),
        (
            [HEAD, '{"type":"session","client_id":"c","expiry":5,"subscriptions":[["a/#/b",1,0]]}'],
            "line 2: .*#",
        ),
        (
            [HEAD, '{"type":"session","client_id":"c","expiry":5,"subscriptions":[["a",7,0]]}'],
            "line 2: options 7 of 'a': expected a QoS up to 2",
        ),
        (
            [HEAD, '{"type":"message","client_id":"no","packet_id":1,"state":"received"}'],
            "line 2: client_id 'no': expected that of a session before",
        ),
        (
            [HEAD, SESSION, '{"type":"message","client_id":"c","packet_id":0,"state":"released"}'],
            "line 3: packet_id 0",
        ),
        (
            [
                HEAD,
                SESSION,
                '{"type":"message","client_id":"c","packet_id":0,"state":"queued","version":4,'
                '"packet":"MBAA"}',
            ],
            "line 3: packet: expected a PUBLISH",
        ),
        (
            [HEAD, '{"type":"ban","kind":"peerhost","value":"nowhere"}'],
            "line 2: peerhost = 'nowhere'",
        ),
        (
            [HEAD, '{"type":"value","plugin":"$bans","key":"k","value":""}'],
            "line 2: plugin '.bans'",
        ),
    ],
)
def test_bad_lines_make_no_store(tmp_path: Path, lines: list[str], text: str) -> None:
    with pytest.raises(StoreError, match=text):
        import_lines(str(tmp_path / "new.db"), lines)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", range(1, 12))
def test_a_file_that_was_cut_off_is_refused_wherever_that_was(
    path: str, tmp_path: Path, part: int
) -> None:
    text = "\n".join(exported(path))
    cut = text[: len(text) * part // 12]
    with pytest.raises(StoreError, match="line [0-9]+: "):
        import_lines(str(tmp_path / "new.db"), cut.splitlines())
    assert [made.name for made in tmp_path.iterdir()] == ["store.db"]


def test_what_fails_at_the_last_moment_is_undone(path: str, tmp_path: Path) -> None:
    """The users were written already when somebody else has made a store."""
    other = tmp_path / "other.db"
    undone: list[int] = []

    def take(users: object) -> Any:
        other.write_bytes(b"mine")
        return lambda: undone.append(1)

    with pytest.raises(StoreError, match="there already"):
        import_lines(str(other), exported(path), take)
    assert undone == [1] and other.read_bytes() == b"mine"
    assert sorted(made.name for made in tmp_path.iterdir()) == ["other.db", "store.db"]


def test_no_store_is_told_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        info(str(tmp_path / "none.db"))
    assert list(tmp_path.iterdir()) == []


def test_a_copy_is_put_back(path: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    before = Path(path).read_bytes()
    found = restore(path, str(data / "store.db"))
    assert (found["sessions"], found["bans"], found["values"]) == (2, 2, 1)
    assert Path(path).read_bytes() == before
    assert exported(str(data / "store.db"))[1:] == exported(path)[1:]
    assert [made.name for made in data.iterdir()] == ["store.db"]
    with pytest.raises(StoreError, match=r"data/store\.db is there already"):
        restore(path, str(data / "store.db"))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "there is no such file"),
        (b"", "expected a copy that"),
        (b"rubbish" * 1000, "expected a copy that"),
        (b"cut", "malformed|damaged|record|integrity|page|expected"),
    ],
)
def test_what_is_no_whole_copy_is_not_put_back(
    path: str, tmp_path: Path, content: bytes | None, text: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    copy = tmp_path / "copy"
    if content == b"cut":
        content = Path(path).read_bytes()[:12_000]
    if content is not None:
        copy.write_bytes(content)
    with pytest.raises(StoreError, match=f"copy: .*({text})"):
        restore(str(copy), str(data / "store.db"))
    assert list(data.iterdir()) == []


def test_a_running_broker_is_not_overrun(path: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with open(data / "mqttd.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="in use by a running mqttd"):
            restore(path, str(data / "store.db"))
    assert [made.name for made in data.iterdir()] == ["mqttd.lock"]


def test_unused_pages_go_back_to_the_system_some_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    base = connect(str(path))
    base.execute("INSERT INTO kept VALUES ('acme', 'small', x'01')")
    base.execute("INSERT INTO kept VALUES ('acme', 'large', zeroblob(4000000))")
    base.execute("DELETE FROM kept WHERE key = 'large'")
    base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before = path.stat().st_size
    steps = 1
    while shrink(base):
        steps += 1
    assert steps >= 3
    assert path.stat().st_size < before // 20
    base.close()


def test_a_file_of_before_is_written_anew_for_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    base = connect(str(path))
    base.execute("PRAGMA auto_vacuum = NONE")
    base.execute("VACUUM")
    base.execute("INSERT INTO kept VALUES ('acme', 'large', zeroblob(4000000))")
    base.execute("DELETE FROM kept")
    assert not shrink(base)
    assert base.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert path.stat().st_size < 100_000
    base.close()


@pytest.fixture
def damaged(path: str) -> str:
    """The same with two blocks that cannot be read, one of them the last, and a bad record."""
    base = connect(path)
    ledger = Ledger()
    read(base, ledger)
    for data in (b"\xff", b"x" * 50, b"y" * 50):
        ledger.note(7, DELIVERY, 0, data)
        group = ledger.close()
        assert group is not None
        write(base, group)
    rows = [row[0] for row in base.execute("SELECT id FROM block ORDER BY id DESC LIMIT 2")]
    base.executemany("UPDATE block SET words = zeroblob(16) WHERE id = ?", [(row,) for row in rows])
    base.close()
    return path


def test_of_a_damaged_copy_all_that_is_whole_is_put_back(damaged: str, tmp_path: Path) -> None:
    """One row was enough for none of it to be restored, for ever."""
    data = tmp_path / "data"
    data.mkdir()
    assert len(check(damaged)) == 3
    store = str(data / "store.db")
    found = restore(damaged, store)
    assert sorted(found["left_out"]) == sorted(check(damaged))
    assert sum("its words are damaged" in text for text in found["left_out"]) == 2
    assert (found["sessions"], found["messages"], found["wills"]) == (2, 3, 1)
    assert (found["bans"], found["values"], found["damaged"]) == (2, 1, 0)
    assert check(store) == []
    left: list[str] = []
    assert exported(store)[1:] == [dump_line(line) for line in export_lines(damaged, left=left)][1:]
    assert len(left) == 3 and "of 'b\u00f6b'" in left[-1]
    again = tmp_path / "again.db"
    assert import_lines(str(again), exported(damaged))["message"] == 5


def test_a_file_that_is_torn_is_not_put_back(path: str, tmp_path: Path) -> None:
    """What SQLite finds wrong with it may be anything."""
    data = tmp_path / "data"
    data.mkdir()
    base = connect(path)
    base.execute("CREATE INDEX torn ON kept (key)")
    base.execute("PRAGMA writable_schema = ON")
    base.execute("UPDATE sqlite_master SET sql = 'CREATE INDEX torn ON kept (value)'"
                 " WHERE name = 'torn'")  # fmt: skip
    base.close()
    with pytest.raises(StoreError, match=r"store\.db: .*torn"):
        restore(path, str(data / "store.db"))
    assert list(data.iterdir()) == []


def test_a_copy_says_how_many_of_its_rows_are_damaged(damaged: str, tmp_path: Path) -> None:
    base = connect(damaged)
    backup(base, str(tmp_path / "making"), lambda: None)
    base.close()
    size, rows = finish(str(tmp_path / "making"), str(tmp_path / "copy"))
    assert (size, rows) == ((tmp_path / "copy").stat().st_size, 2)


def test_compaction_drops_what_cannot_be_read_and_the_broker_writes_on(damaged: str) -> None:
    """The last row was damaged: the next had its number, and no group could be written."""
    worker = Worker(Path(damaged).parent)
    worker.away("away", "t")
    for _ in range(3):
        worker.node.publish("t", b"new", 1)
        worker.settle()
    compacted = Deferred.fromCoroutine(worker.store.compact())
    told: list[Any] = []
    compacted.addBoth(told.append)

    def done() -> bool:
        worker.reactor.turn()
        worker.reactor.advance(0.01)
        worker.node.settle()
        return bool(told)

    until(done, "the compaction")
    worker.stop()
    assert len(told[0]["dropped"]) == 2 and all(damaged in name for name in told[0]["dropped"])
    assert check(damaged) == []
    assert sum(b"new" in line.packet for line in export_lines(damaged)
               if isinstance(line, MessageLine) and line.packet) == 3  # fmt: skip


def test_the_last_row_is_damaged_and_the_broker_writes_on(tmp_path: Path) -> None:
    """What was written next had its number, and was tried for ever: the store had failed."""
    worker = Worker(tmp_path)
    worker.away("away", "t")
    for payload in (b"first", b"second"):
        worker.node.publish("t", payload, 1)
        worker.settle()
    worker.stop()
    path = str(tmp_path / "store.db")
    base = connect(path)
    base.execute("UPDATE block SET words = x'00' WHERE id = (SELECT max(id) FROM block)")
    base.close()
    worker = Worker(tmp_path)
    worker.node.publish("t", b"third", 1)
    worker.settle()
    worker.stop()
    messages = [line for line in export_lines(path) if isinstance(line, MessageLine)]
    assert [line.packet[-5:] for line in messages if line.packet] == [b"first", b"third"]
