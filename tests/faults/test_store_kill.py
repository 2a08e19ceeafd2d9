"""kill -9 of a process that writes to a store: the file holds what it said, to the record.

After each kill the file must be that of one group, at or behind the last that was told, and of no
other: nothing lost, nothing come back, no half. MQTTD_LONG=1 does it a few hundred times.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from mqttd.storage.database import connect
from mqttd.storage.ledger import Ledger
from mqttd.storage.recovery import read
from tests.faults.store_driver import History, Model

ROOT = Path(__file__).parents[2]
ROUNDS = 300 if os.environ.get("MQTTD_LONG") == "1" else 12


def kill(path: Path, seed: int, first: int, mutant: str = "") -> int:
    """One run that ends with a kill inside a burst; the last group that was told."""
    dice = random.Random(seed)
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.store_driver", path, str(seed), str(first), mutant],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert driver.stdout is not None
    told = first - 1
    wanted = dice.randint(0, 60)
    for count, line in enumerate(driver.stdout):
        if line != b"begin\n":
            told = int(line)
        if count >= wanted:
            driver.send_signal(signal.SIGKILL)
            break
    for line in driver.stdout:
        if line.endswith(b"\n") and line != b"begin\n":
            told = int(line)
    driver.wait()
    driver.stdout.close()
    return told


def state(path: Path) -> tuple[int, Model]:
    """The last group of a file, and what lives in it."""
    base = connect(str(path))
    try:
        found: Model = {}
        for mine in read(base, Ledger()).records.values():
            for record in mine:
                row = base.execute("SELECT data FROM block WHERE id = ?", (record.block,))
                data = row.fetchone()[0][record.at : record.at + record.length]
                found[record.number] = (record.owner, record.kind, record.packet_id, data)
        row = base.execute("SELECT value FROM kept WHERE key = 'group'").fetchone()
        assert base.execute("PRAGMA quick_check").fetchone()[0] == "ok"
        return (0 if row is None else int(row[0])), dict(sorted(found.items()))
    finally:
        base.close()


def replay(seed: int, before: Model, highest: int, groups: int) -> Model:
    """What lives after so many groups of a seed."""
    history = History(seed, before)
    ledger = Ledger()
    ledger.number = highest + 1
    ledger.group.home.start = highest + 1
    for _ in range(groups):
        history.group(ledger)
        ledger.close()
    return dict(sorted(history.model.items()))


def highest(path: Path) -> int:
    """The highest number that a new run would not give again."""
    base = connect(str(path))
    try:
        ledger = Ledger()
        read(base, ledger)
        return ledger.number - 1
    finally:
        base.close()


def rounds(path: Path, first_seed: int, count: int, mutant: str = "") -> str:
    """Kill it again and again; what was wrong, or an empty string."""
    last, model = 0, Model()
    for seed in range(first_seed, first_seed + count):
        before = highest(path) if last else 0
        told = kill(path, seed, last + 1, mutant)
        found, is_there = state(path)
        if found < told:
            return f"seed {seed}: group {told} was told, the file is that of {found}"
        expected = replay(seed, model, before, found - last)
        if is_there != expected:
            lost = expected.keys() - is_there.keys()
            back = is_there.keys() - expected.keys()
            return f"seed {seed}: lost {sorted(lost)[:9]}, came back {sorted(back)[:9]}"
        last, model = found, is_there
    return ""


def test_the_file_is_exactly_that_of_a_group_that_was_told_or_later(tmp_path: Path) -> None:
    assert rounds(tmp_path / "store.db", 1000, ROUNDS) == ""


def test_telling_before_the_commit_is_found(tmp_path: Path) -> None:
    """The harness sees the fault that it is there for."""
    assert "was told" in rounds(tmp_path / "store.db", 2000, 40, "early")


def test_deleting_apart_from_the_transaction_is_found(tmp_path: Path) -> None:
    """Blocks that should be gone come back."""
    assert "came back" in rounds(tmp_path / "store.db", 3000, 40, "delete")
