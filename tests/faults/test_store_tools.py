"""Tools that are killed, have no room, meet another one or get half a file: all or nothing.

`mqttd-ctl restore` and `store import` fail, or are killed, at one of their first calls that write
and at the last; MQTTD_LONG=1: at each. Then there is no store, what failed said so in a
line that names a file, and the same command makes the whole store. A backup has its name when it is
whole, whatever becomes of the broker.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.storage.database import OPEN_SESSION, connect
from mqttd.storage.ledger import MESSAGE3, Ledger
from mqttd.storage.tools import check, info
from mqttd.storage.writer import write
from tests.faults.disk import Disk
from tests.faults.test_broker_kill import Brokers
from tests.support import ctl
from tests.support import packets as mq
from tests.support.waiting import until

LONG = os.environ.get("MQTTD_LONG") == "1"
MESSAGES = 300
CTL = Path(sys.executable).parent / "mqttd-ctl"


class Place:
    """A copy and lines of a store, and a directory where a new one is to be made."""

    def __init__(self, folder: Path) -> None:
        self.disk = Disk(folder)
        self.copy = folder / "copy"
        self.lines = folder / "lines"
        self.target = folder / "target"
        self.store = self.target / "store.db"
        made = folder / "made.db"
        fill(made)
        assert self.ctl("store", "export", str(self.lines), "--path", str(made)).returncode == 0
        made.rename(self.copy)
        self.target.mkdir()

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What a command does on this disk."""
        return subprocess.run(
            [CTL, *words], env={**os.environ, **self.disk.environment},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def make(self, what: str) -> subprocess.CompletedProcess[str]:
        """Make the store, of the copy or of the lines."""
        source = [what, str(self.copy)] if what == "restore" else ["store", what, str(self.lines)]
        return self.ctl(*source, "--path", str(self.store))

    def calls(self, what: str) -> list[int]:
        """After how many calls to fail."""
        before = self.disk.calls
        assert self.make(what).returncode == 0
        count = self.disk.calls - before
        self.whole()
        return list(range(count)) if LONG else [3, count - 1]

    def whole(self) -> None:
        """There is the store, it is whole, and nothing beside it; it is taken away."""
        assert os.listdir(self.target) == ["store.db"]
        assert check(str(self.store)) == []
        assert info(str(self.store))["messages"] == MESSAGES
        for name in os.listdir(self.target):
            (self.target / name).unlink()


def fill(path: Path) -> None:
    """A store with ten sessions and messages for them."""
    base = connect(str(path))
    ledger = Ledger()
    for number in range(MESSAGES):
        owner = number % 10 + 1
        if number < 10:
            ledger.row(OPEN_SESSION, (owner, f"c{owner}", None, 1_000_000))
        ledger.note(owner, MESSAGE3, 0, mq.publish("t", b"%d" % number + bytes(500), 1, 1))
        if number % 30 == 29:
            group = ledger.close()
            assert group is not None
            write(base, group)
    base.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.timeout(600 if LONG else 180)
@pytest.mark.parametrize("what", ["restore", "import"])
@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO] if LONG else [errno.ENOSPC])
def test_without_a_disk_nothing_is_made_and_it_is_said(place: Place, what: str, fault: int) -> None:
    for skip in place.calls(what):
        place.disk.fail(fault, skip)
        done = place.make(what)
        place.disk.work()
        assert done.returncode == 1
        assert done.stderr.startswith(f"mqttd-ctl: {place.store}"), done.stderr
        assert done.stderr.count("\n") == 1
        assert os.listdir(place.target) == []
    assert place.make(what).returncode == 0
    place.whole()


@pytest.mark.timeout(600 if LONG else 180)
@pytest.mark.parametrize("what", ["restore", "import"])
def test_what_a_kill_leaves_is_no_store_and_is_in_nobodys_way(place: Place, what: str) -> None:
    for skip in place.calls(what):
        place.disk.end(skip)
        assert place.make(what).returncode < 0
        place.disk.work()
        assert "store.db" not in os.listdir(place.target)
        done = place.make(what)
        assert done.returncode == 0, done.stderr
        place.whole()


def test_lines_that_were_cut_off_make_nothing(place: Place) -> None:
    whole = place.lines.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 10]
    dice = random.Random(13)
    for cut in [ends[-2], *dice.sample(range(len(whole) - 1), 60 if LONG else 1)]:
        place.lines.write_bytes(whole[:cut])
        done = place.make("import")
        assert done.returncode == 1 and f"{place.lines}: line " in done.stderr, (cut, done.stderr)
        assert os.listdir(place.target) == []


def test_a_copy_that_was_cut_off_makes_nothing(place: Place) -> None:
    whole = place.copy.read_bytes()
    dice = random.Random(13)
    for cut in [50, *dice.sample(range(100, len(whole) - 1), 60 if LONG else 1)]:
        place.copy.write_bytes(whole[:cut])
        done = place.make("restore")
        assert done.returncode == 1, (cut, done.stderr)
        assert done.stderr.startswith(f"mqttd-ctl: {place.copy}: "), done.stderr
        assert os.listdir(place.target) == []


def test_of_two_at_once_one_makes_the_store_and_the_other_nothing(place: Place) -> None:
    """The first waits for its lines while the second comes."""
    command = [CTL, "store", "import", "-", "--path", place.store]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdin is not None
    text = place.lines.read_bytes()
    first.stdin.write(text[:100])
    first.stdin.flush()
    until(lambda: os.listdir(place.target) != [], "the first makes its file")
    second = place.make("restore")
    assert second.returncode == 1
    assert f"another mqttd-ctl works in {place.target}" in second.stderr
    first.communicate(text[100:], timeout=60)
    assert first.returncode == 0
    place.whole()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    fill(data / "store.db")
    yield made
    made.kill()


def backup(brokers: Brokers, copy: Path) -> subprocess.CompletedProcess[str]:
    return ctl.run(brokers.path, "backup", str(copy))


def test_a_store_that_others_may_read_is_closed_to_them(brokers: Brokers) -> None:
    """Whoever has copied it there with `cp` has not thought of that."""
    store = brokers.path / "data" / "store.db"
    store.chmod(0o644)
    brokers.start()
    assert store.stat().st_mode & 0o777 == 0o600


def test_a_backup_without_room_leaves_nothing_and_the_broker_goes_on(brokers: Brokers) -> None:
    disk = Disk(brokers.path)
    brokers.settings["environment"] = disk.environment
    brokers.start()
    copy = brokers.path / "copy-of-store.db"
    counts = []
    for _ in range(2):  # the store may write something of its own beside one of them
        before = disk.calls
        assert backup(brokers, copy).returncode == 0
        counts.append(disk.calls - before)
        copy.unlink()
    count = min(counts)
    for fault, skip in ((errno.ENOSPC, count // 2), (errno.EIO, count * 3 // 4)):
        disk.fail(fault, skip)
        done = backup(brokers, copy)
        disk.work()
        assert done.returncode == 1
        assert str(copy) in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert not [name for name in os.listdir(brokers.path) if name.startswith(copy.name)]
    assert backup(brokers, copy).returncode == 0
    assert info(str(copy))["messages"] == MESSAGES
    until(lambda: "store_failed" not in brokers.ctl("alarms"), "the store works again")
    brokers.resume("c1").collect(MESSAGES // 10)


def test_a_broker_that_is_killed_leaves_no_copy_that_is_not_whole(brokers: Brokers) -> None:
    disk = Disk(brokers.path)
    brokers.settings["environment"] = disk.environment
    copy = brokers.path / "copy-of-store.db"
    for skip in range(0, 40, 2 if LONG else 20):
        brokers.start()
        disk.end(skip)
        done = backup(brokers, copy)
        disk.work()
        if done.returncode == 0:
            assert info(str(copy))["messages"] == MESSAGES
            copy.unlink()
        else:
            assert not copy.exists()
        brokers.kill()
    brokers.start()
    assert backup(brokers, copy).returncode == 0
    assert not Path(f"{copy}.making").exists()
    target = brokers.path / "target"
    target.mkdir()
    shutil.copy(copy, target / "store.db")
    assert check(str(target / "store.db")) == []
