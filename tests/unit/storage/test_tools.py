"""Tools for a store whose broker is down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqttd.session.message import Message
from mqttd.storage.database import (
    LEAVE_SESSION,
    OPEN_SESSION,
    SET_WILL,
    SUBSCRIBE,
    StoreError,
    connect,
)
from mqttd.storage.entries import dump
from mqttd.storage.ledger import DELIVERY, MESSAGE3, MESSAGE5, RECEIVED, RELEASED, Ledger
from mqttd.storage.tools import check, export, import_lines, info
from mqttd.storage.writer import write

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
    from mqttd.session.message import Delivery

    remembered = Delivery.of(message, 1, False, True, None, 0)
    remembered.expires_at = 5000
    ledger.note(1, DELIVERY, 0, dump(remembered, NOW))
    ledger.row(SET_WILL, ("alice", None, 5, 0, message.wire(1, False, True, None, 0)))
    group = ledger.close()
    assert group is not None
    write(base, group)
    base.close()
    return made


def test_info_counts(path: str) -> None:
    found = info(path)
    assert (found["sessions"], found["subscriptions"], found["messages"]) == (2, 2, 3)
    assert (found["retained"], found["wills"], found["damaged"]) == (0, 1, 0)


def test_a_whole_store_passes_the_check_and_a_damaged_one_does_not(path: str) -> None:
    assert check(path) == []
    base = connect(path)
    base.execute("UPDATE block SET words = x'01020304'")
    base.close()
    assert check(path) == ["block 1: its words are damaged"]


def test_what_was_exported_can_be_imported_elsewhere(path: str, tmp_path: Path) -> None:
    """The same lines come out again, whatever numbers the new file has given."""
    lines = list(export(path))
    other = str(tmp_path / "other.db")
    counts = import_lines(other, [json.dumps(line) for line in lines])
    assert counts == {"session": 2, "message": 5, "retained": 0, "will": 1}
    assert list(export(other))[1:] == lines[1:]
    assert check(other) == []
    assert Path(other).stat().st_mode & 0o777 == 0o600
    states = sorted(line["state"] for line in lines if line["type"] == "message")
    assert states == ["inflight", "queued", "queued", "received", "released"]
    (remembered,) = [line for line in lines if "record" in line]
    assert remembered["expires_at"] == NOW + 5000
    assert remembered["publisher"] == "who"


def test_an_import_never_touches_a_store_that_is_there(path: str) -> None:
    before = Path(path).read_bytes()
    with pytest.raises(StoreError, match="there already"):
        import_lines(path, [])
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (['{"type": "session"}'], "line 1"),
        (['{"type": "store", "version": 2}'], "version 2"),
        (['{"type": "store", "version": 1}', "x"], "line 2"),
        (['{"type": "store", "version": 1}', '{"type": "message", "client_id": "no"}'], "line 2"),
        (['{"type": "store", "version": 1}', '{"type": "other"}'], "line 2"),
    ],
)
def test_bad_lines_make_no_store(tmp_path: Path, lines: list[str], text: str) -> None:
    with pytest.raises(StoreError, match=text):
        import_lines(str(tmp_path / "new.db"), lines)
    assert list(tmp_path.iterdir()) == []


def test_no_store_is_told_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        info(str(tmp_path / "none.db"))
    assert list(tmp_path.iterdir()) == []
