"""Payloads read again block by block: the same as one by one, with every block opened once."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.storage.database import connect
from mqttd.storage.fetching import Fetching, Piece, Reading, read
from mqttd.storage.ledger import MESSAGE3, Ledger
from mqttd.storage.sums import Opened
from mqttd.storage.writer import write

BLOCKS = 12
SESSIONS = 40


@pytest.fixture
def base(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = connect(str(tmp_path / "store.db"))
    yield made
    made.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks that were opened, one after the other."""
    numbers: list[int] = []
    begin = Opened.__init__

    def counted(self: Opened, base: sqlite3.Connection, block: int) -> None:
        numbers.append(block)
        begin(self, base, block)

    monkeypatch.setattr(Opened, "__init__", counted)
    return numbers


def interleaved(base: sqlite3.Connection, size: int = 100) -> list[list[Piece]]:
    """Of each session where its messages are: one in each block."""
    ledger = Ledger()
    found: list[list[Piece]] = [[] for _ in range(SESSIONS)]
    for block in range(BLOCKS):
        numbers = [
            ledger.note(session, MESSAGE3, 0, b"%03d %03d" % (session, block) + bytes(size))
            for session in range(1, SESSIONS + 1)
        ]
        group = ledger.close()
        assert group is not None
        write(base, group)
        for pieces, number in zip(found, numbers, strict=True):
            place = ledger.place(number)
            assert place is not None
            pieces.append((place[0].id, place[1], 7 + size))
    return found


def all_of(waiting: Fetching, base: sqlite3.Connection) -> list[Reading]:
    done: list[Reading] = []
    while waiting:
        done += waiting.slice(base)
    return done


def test_a_block_is_opened_once_for_all_who_want_some_of_it(
    base: sqlite3.Connection, opened: list[int]
) -> None:
    wanted = interleaved(base)
    expected = [read(base, pieces) for pieces in wanted]
    opened.clear()
    waiting = Fetching()
    waiting.add([Reading(number, pieces) for number, pieces in enumerate(wanted)])
    done = {reading.of: reading.found for reading in all_of(waiting, base)}
    assert [done[number] for number in range(SESSIONS)] == expected
    assert len(opened) == BLOCKS


@pytest.mark.parametrize("seed", range(20))
def test_whoever_asks_when_has_what_he_would_have_alone(
    base: sqlite3.Connection, seed: int
) -> None:
    dice = random.Random(seed)
    pieces = [*(piece for some in interleaved(base) for piece in some), (0, 0, 0), (999, 5, 5)]
    waiting = Fetching(
        dice.choice((1, 7, 50)), dice.choice((0, 1000, 4 << 20)), dice.choice((50, 4096))
    )
    asked: dict[int, list[Piece]] = {}
    done: dict[object, list[bytes | None]] = {}
    while len(asked) < 60 or waiting:
        if len(asked) < 60:
            some = [dice.choice(pieces) for _ in range(dice.randrange(20))]
            waiting.add([Reading(len(asked), some)])
            asked[len(asked)] = some
        if dice.random() < 0.5:
            done |= {reading.of: reading.found for reading in waiting.slice(base)}
    assert done == {number: read(base, some) for number, some in asked.items()}


def test_nobody_waits_for_ever_behind_those_who_want_older_blocks(
    base: sqlite3.Connection,
) -> None:
    first, *others = interleaved(base)
    waiting = Fetching(pieces=1)
    waiting.add([Reading("last", [first[-1]])])
    for count in range(BLOCKS + 1):
        waiting.add([Reading("older", [other[0], other[1]]) for other in others])
        if any(reading.of == "last" for reading in waiting.slice(base)):
            assert count < BLOCKS
            return
    pytest.fail("never read")


def test_what_several_want_is_in_memory_once(base: sqlite3.Connection) -> None:
    pieces = interleaved(base)[0]
    waiting = Fetching()
    waiting.add([Reading(number, list(pieces)) for number in range(3)])
    first, *others = all_of(waiting, base)
    for other in others:
        assert all(a is b for a, b in zip(first.found, other.found, strict=True))


def test_what_cannot_be_read_is_wanted_still(
    base: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = interleaved(base)[0]
    waiting = Fetching()
    waiting.add([Reading(None, pieces)])
    once = [True]
    look = Opened.read

    def fails(self: Opened, at: int, length: int) -> bytes | None:
        if self.block == pieces[3][0] and once:
            once.clear()
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return look(self, at, length)

    monkeypatch.setattr(Opened, "read", fails)
    with pytest.raises(sqlite3.OperationalError):
        waiting.slice(base)
    assert waiting
    assert [reading.found for reading in all_of(waiting, base)] == [read(base, pieces)]


def test_who_wants_nothing_is_done_at_once(base: sqlite3.Connection) -> None:
    waiting = Fetching()
    waiting.add([Reading("nothing", [])])
    assert waiting
    assert [reading.of for reading in waiting.slice(base)] == ["nothing"]
    assert not waiting
