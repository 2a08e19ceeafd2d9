"""A store as bytes, and another made of them: it has what the first has, whatever comes between."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mqttd.storage.blocks import Group
from mqttd.storage.copies import Copy, pack_blocks, pack_group, pack_start
from mqttd.storage.database import (
    KEEP,
    OPEN_SESSION,
    SUBSCRIBE,
    connect,
)
from mqttd.storage.ledger import MESSAGE3, Ledger
from mqttd.storage.recovery import read
from mqttd.storage.writer import write


class Source:
    """A store that lives: each group is written, and given to who copies it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.base = connect(str(path))
        self.ledger = Ledger()
        self.dice = random.Random(seed)
        self.numbers: list[int] = []
        self.owners: list[int] = []
        self.next = 0

    def live(self) -> Group:
        """Some of everything, in one group."""
        dice, ledger = self.dice, self.ledger
        for _ in range(dice.randint(1, 30)):
            roll = dice.random()
            if roll < 0.1 or not self.owners:
                self.next += 1
                ledger.row(OPEN_SESSION, (self.next, f"client {self.next}", None, 60))
                ledger.row(SUBSCRIBE, (self.next, "a/#", 1, 0))
                self.owners.append(self.next)
            elif roll < 0.13 and len(self.owners) > 1:
                owner = self.owners.pop(dice.randrange(len(self.owners)))
                ledger.group.end(owner)
            elif roll < 0.2:
                ledger.group.leave(dice.choice(self.owners), dice.randint(0, 9))
                ledger.row(KEEP, ("$nodes", "a", dice.randbytes(16)))
            elif roll < 0.6 or not self.numbers:
                data = dice.randbytes(dice.choice((0, 3, 200, 5000)))
                self.numbers.append(ledger.note(dice.choice(self.owners), MESSAGE3, 0, data))
            elif roll < 0.7:
                ledger.send(dice.choice(self.numbers), dice.randint(1, 60000))
            else:
                ledger.forget(self.numbers.pop(dice.randrange(len(self.numbers))))
        ledger.sweep()
        group = ledger.close()
        assert group is not None
        write(self.base, group)
        if group.reads:
            ledger.rewrite(group.found)
        return group


def contents(base: sqlite3.Connection) -> list[Any]:
    """All that is copied of a store: its rows, its blocks, and who lives in them."""
    columns = {"session": "owner, client_id, username, mountpoint, expiry, away_since"}
    found: list[Any] = [
        base.execute(f"SELECT {columns.get(table, '*')} FROM {table} ORDER BY 1, 2").fetchall()
        for table in ("session", "subscription", "kept", "block")
    ]
    records = read(base, Ledger()).records
    found.append(
        {
            owner: [(each.number, each.kind, each.packet_id, each.length) for each in of]
            for owner, of in records.items()
        }
    )
    return found


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_that_was_begun_in_the_midst_is_the_same(tmp_path: Path, seed: int) -> None:
    source = Source(tmp_path / "store.db", seed)
    for _ in range(40):
        source.live()
    packed, left = pack_start(source.base)
    entries = [packed]
    while left:
        if source.dice.random() < 0.6:
            entries.append(pack_group(source.live()))
        else:
            entries.append(pack_blocks(source.base, left, source.dice.choice((1, 20_000))))
    for _ in range(20):
        entries.append(pack_group(source.live()))
    again = source.dice.randrange(1, len(entries))
    copy = Copy(str(tmp_path / "copy.db"))
    for each in entries[:again] + entries[again - 1 :]:  # one of them comes twice
        copy.apply(each)
    assert contents(copy.base) == contents(source.base)
    copy.close()
    source.base.close()


def test_what_is_no_entry_is_refused(tmp_path: Path) -> None:
    copy = Copy(str(tmp_path / "copy.db"))
    with pytest.raises(ValueError):
        copy.apply(b"\xc1")
    copy.close()
