"""kill -9 of a process that writes to a store: the file holds what it said, to the record.

After each kill the file must be that of one group, at or behind the last that was told, and of no
other: nothing lost, nothing come back, no half. With a power cut (`tests.faults.disk`) at or behind
the last that was told of the disk. MQTTD_LONG=1 does it many hundred times;
`python -m tests.faults.test_store_kill ROUNDS SEED [power]` as often as wanted.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from mqttd.storage.database import connect
from mqttd.storage.ledger import Ledger
from mqttd.storage.recovery import read
from tests.faults.disk import Disk
from tests.faults.store_driver import History, Model, on_disk

ROOT = Path(__file__).parents[2]
LONG = os.environ.get("MQTTD_LONG") == "1"
ROUNDS = 300 if LONG else 12
POWER = 1000 if LONG else 8


def kill(
    path: Path, seed: int, first: int, mutant: str = "", disk: Disk | None = None
) -> tuple[int, int]:
    """One run that ends with a kill inside a burst: the last group that was told, and on disk."""
    dice = random.Random(seed)
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.store_driver", path, str(seed), str(first), mutant],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **(disk.environment if disk is not None else {})},
    )
    assert driver.stdout is not None
    told = [first - 1]
    wanted = dice.randint(0, 60)
    for count, line in enumerate(driver.stdout):
        if line != b"begin\n":
            told.append(int(line))
        if count >= wanted:
            driver.send_signal(signal.SIGKILL)
            break
    for line in driver.stdout:
        if line.endswith(b"\n") and line != b"begin\n":
            told.append(int(line))
    driver.wait()
    driver.stdout.close()
    return told[-1], max([number for number in told[1:] if on_disk(number)], default=first - 1)


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


def rounds(
    path: Path, first_seed: int, count: int, mutant: str = "", disk: Disk | None = None
) -> str:
    """Kill it again and again, with a disk cut its power too; what was wrong, or ""."""
    last, model = 0, Model()
    for seed in range(first_seed, first_seed + count):
        before = highest(path) if last else 0
        told, synced = kill(path, seed, last + 1, mutant, disk)
        if disk is not None:
            disk.lose_power(path.parent, random.Random(seed))
            told = synced
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


def test_what_was_told_of_the_disk_outlasts_a_power_cut(tmp_path: Path) -> None:
    """`fsync`: whatever a disk keeps of what no fsync has covered, sector by sector."""
    disk = Disk(tmp_path, undo=True)
    assert rounds(tmp_path / "store.db", 4000, POWER, disk=disk) == ""


def test_promising_the_disk_what_only_the_system_has_is_found(tmp_path: Path) -> None:
    disk = Disk(tmp_path, undo=True)
    assert "was told" in rounds(tmp_path / "store.db", 5000, 20, "os", disk)


def test_telling_before_the_commit_is_found(tmp_path: Path) -> None:
    """The harness sees the fault that it is there for."""
    assert "was told" in rounds(tmp_path / "store.db", 2000, 40, "early")


def test_deleting_apart_from_the_transaction_is_found(tmp_path: Path) -> None:
    """Blocks that should be gone come back."""
    assert "came back" in rounds(tmp_path / "store.db", 3000, 40, "delete")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        layer = Disk(folder, undo=True) if sys.argv[3:] else None
        wrong = rounds(folder / "store.db", int(sys.argv[2]), int(sys.argv[1]), disk=layer)
        print(wrong or "nothing wrong")
