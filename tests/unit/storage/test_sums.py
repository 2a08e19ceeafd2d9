"""What a disk has changed is not given to anybody, and what stands beside it is."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.storage.copies import Copy, pack_blocks
from mqttd.storage.database import connect
from mqttd.storage.fetching import read
from mqttd.storage.ledger import MESSAGE5, Ledger
from mqttd.storage.reader import Reader
from mqttd.storage.recovery import Found
from mqttd.storage.recovery import read as contents_of
from mqttd.storage.sums import PAGE, Sums, believable, room, sealed
from mqttd.storage.tools import check
from mqttd.storage.writer import write

#: One page and less, just one, some and a bit, more than are read at once, more than a piece.
LENGTHS = [(1,), (PAGE,), (PAGE - 1, 1), (PAGE + 1,), (100,) * 200, (3 * PAGE, 5, 5 * PAGE),
           (50_000, 10, 70_000)]  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = connect(str(tmp_path / "store.db"))
    yield made
    made.close()


def records(lengths: tuple[int, ...], seed: int = 0) -> list[bytes]:
    """Each begins as a PUBLISH does."""
    dice = random.Random(seed)
    return [b"\x32" + dice.randbytes(length - 1) for length in lengths]


def put(base: sqlite3.Connection, wires: list[bytes]) -> list[tuple[int, int, int]]:
    """One block of these; their places."""
    ledger = Ledger()
    base.execute("INSERT OR IGNORE INTO session (owner, client_id, expiry) VALUES (7, 'a', 9)")
    for wire in wires:
        ledger.note(7, MESSAGE5, 0, wire)
    group = ledger.close()
    assert group is not None
    write(base, group)
    at = 0
    pieces = []
    for wire in wires:
        pieces.append((group.block.id, at, len(wire)))
        at += len(wire)
    return pieces


def flip(base: sqlite3.Connection, at: int) -> None:
    """One bit of the data of the only block is another."""
    data = bytearray(base.execute("SELECT data FROM block").fetchone()[0])
    data[at] ^= 4
    base.execute("UPDATE block SET data = ?", (bytes(data),))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_what_was_written_is_read(base: sqlite3.Connection, lengths: tuple[int, ...]) -> None:
    wires = records(lengths)
    pieces = put(base, wires)
    assert read(base, pieces) == wires
    assert read(base, pieces[::-1]) == wires[::-1]
    (data,) = base.execute("SELECT data FROM block").fetchone()
    assert data == sealed(b"".join(wires)) and len(data) == sum(lengths) + room(sum(lengths))
    assert check(path_of(base)) == []


def path_of(base: sqlite3.Connection) -> str:
    """Its file, which is let go."""
    path = str(base.execute("PRAGMA database_list").fetchone()[2])
    base.close()
    return path


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_a_bit_that_was_changed_costs_the_pages_around_it(
    base: sqlite3.Connection, lengths: tuple[int, ...], seed: int
) -> None:
    wires = records(lengths)
    pieces = put(base, wires)
    dice = random.Random(seed)
    changed = dice.choice((0, sum(lengths) - 1, dice.randrange(sum(lengths))))
    flip(base, changed)
    page = changed // PAGE
    expected = [
        None if at // PAGE <= page <= (at + length - 1) // PAGE else wire
        for (_, at, length), wire in zip(pieces, wires, strict=True)
    ]
    assert None in expected
    some = list(range(len(pieces)))
    dice.shuffle(some)
    assert read(base, [pieces[at] for at in some]) == [expected[at] for at in some]
    words, data = base.execute("SELECT words, data FROM block").fetchone()
    left = believable(words, data)
    for (_, at, length), wire in zip(pieces, expected, strict=True):
        assert left[at : at + length] == (bytes(length) if wire is None else wire)
    assert len(left) == sum(lengths)
    lost = sum(wire is None for wire in expected)
    assert sum("not what was written" in text for text in check(path_of(base))) == lost


def test_sums_that_were_changed_are_none_and_the_records_are_believed(
    base: sqlite3.Connection,
) -> None:
    wires = records((200, 9_000))
    pieces = put(base, wires)
    size = sum(map(len, wires))
    for at in range(size, size + room(size)):
        flip(base, at)
        assert read(base, pieces) == wires
        flip(base, at)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_block_of_a_broker_that_made_no_sums_is_believed(
    base: sqlite3.Connection, lengths: tuple[int, ...]
) -> None:
    wires = records(lengths)
    pieces = put(base, wires)
    base.execute("UPDATE block SET data = ?", (b"".join(wires),))
    assert read(base, pieces) == wires
    words, data = base.execute("SELECT words, data FROM block").fetchone()
    assert believable(words, data) == b"".join(wires)


@given(data=st.binary(max_size=3 * PAGE), cuts=st.lists(st.integers(0, 3 * PAGE), max_size=5))
def test_sums_are_the_same_however_the_bytes_come(data: bytes, cuts: list[int]) -> None:
    sums = Sums()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in zip(places, places[1:], strict=False):
        sums.add(data[start:end])
    assert data + sums.tail() == sealed(data)
    assert len(sums.tail()) == room(len(data))


def test_what_is_damaged_stays_so_when_it_is_moved_or_copied(
    base: sqlite3.Connection, tmp_path: Path
) -> None:
    """It would have sums of its own there, and be as it was written."""
    wires = records((300,) * 40)
    pieces = put(base, wires)
    flip(base, 5_000)
    ledger = Ledger()
    found = [one for one in contents_of(base, ledger).records[7] if isinstance(one, Found)]
    copy = Copy(str(tmp_path / "copy.db"))
    copy.apply(pack_blocks(base, [pieces[0][0]], 1 << 20))
    copy.close()
    with Reader(str(tmp_path / "copy.db")) as other:
        other.contents.records[7] = found
        copied = [other.data(one) for one in found]
    for one in found[:30]:
        ledger.forget(one.number)
    ledger.compact()
    for _ in range(3):
        ledger.sweep()
        group = ledger.close()
        if group is not None:
            write(base, group)
            ledger.rewrite(group.found)
    with Reader(path_of(base)) as moved:
        moved_wires = [moved.data(one) for one in moved.contents.records[7]]
    page = range(PAGE - 299, 2 * PAGE)  # where a record begins that has bytes of the second one
    assert copied == [
        bytes(300) if at in page else wire for (_, at, _), wire in zip(pieces, wires, strict=True)
    ]
    assert moved_wires == copied[30:]
