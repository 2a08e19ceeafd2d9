"""A disk that fails when a test says so, and forgets what no fsync has covered.

    Disk(folder).environment     for a process whose store is to live on it (`disk.c`, preloaded)
    disk.fail(errno.ENOSPC)      its writes fail from now on, or those of certain numbers
    disk.lose_power(data, dice)  after kill -9: what was written since the last fsync of its file is
                                 there, or not, or in parts, sector by sector

Linux with a C compiler.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["Disk"]

SECTOR: Final = 512
_CONTROL: Final = struct.Struct("<QQQIIII")
_RECORD: Final = struct.Struct("<IIQQ40s")
_WRITE, _TRUNCATE, _SYNC = 1, 2, 3
_FAIL, _SHORT, _END = 1, 2, 3
_ALWAYS: Final = (1 << 64) - 1


@cache
def _library(folder: Path) -> Path:
    """The layer, compiled."""
    made = folder / "disk.so"
    source = Path(__file__).with_name("disk.c")
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", made, source, "-ldl"],
        check=True,
        capture_output=True,
    )
    return made


class Disk:
    """The disk of one process after the other, controlled through files in `folder`."""

    def __init__(self, folder: Path, undo: bool = False) -> None:
        self.undo = folder / "disk.undo"
        control = folder / "disk.control"
        control.write_bytes(bytes(64))
        with control.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 64)
        #: What its process is started with.
        self.environment = {"LD_PRELOAD": str(_library(folder)), "MQTTD_DISK": str(control)}
        if undo:
            self.environment["MQTTD_DISK_UNDO"] = str(self.undo)

    # -- faults --------------------------------------------------------------------------------

    @property
    def calls(self) -> int:
        """How often it was written to or synced."""
        return int(_CONTROL.unpack_from(self._shared)[0])

    @property
    def failed(self) -> int:
        """How often that has failed."""
        return int(_CONTROL.unpack_from(self._shared)[6])

    def fail(self, error: int, skip: int = 0, count: int = 0) -> None:
        """Fail with this errno, after so many calls, so often (0: until `work`)."""
        self._set(_FAIL, error, skip, count)

    def cut_short(self, skip: int = 0, count: int = 0) -> None:
        """Write half of what is to be written."""
        self._set(_SHORT, 0, skip, count)

    def end(self, skip: int = 0) -> None:
        """Kill the process that writes, after so many calls and before the next."""
        self._set(_END, 0, skip, 0)

    def work(self) -> None:
        """Do as one is told again."""
        struct.pack_into("<I", self._shared, 24, 0)

    def slow(self, milliseconds: int) -> None:
        """Take so much longer for each fsync."""
        struct.pack_into("<I", self._shared, 32, milliseconds)

    def _set(self, kind: int, error: int, skip: int, count: int) -> None:
        self.work()
        first = self.calls + skip
        struct.pack_into("<QQ", self._shared, 8, first, first + count if count else _ALWAYS)
        struct.pack_into("<II", self._shared, 24, kind, error)

    def syncs(self) -> int:
        """How many calls of fsync were noted since the power was lost last."""
        return sum(what == _SYNC for what, *_ in self._records())

    # -- power ---------------------------------------------------------------------------------

    def lose_power(self, folder: Path, dice: random.Random) -> None:
        """What the files of a process that is gone are when the power goes with it."""
        records = list(self._records())
        for name in {name for _, name, _, _, _ in records}:
            mine = [record for record in records if record[1] == name]
            synced = max((at for at, r in enumerate(mine) if r[0] == _SYNC), default=-1)
            unsynced = mine[synced + 1 :]
            path = folder / name
            if unsynced and path.exists():
                path.write_bytes(_torn(path.read_bytes(), unsynced, dice))
        if self.undo.exists():
            os.truncate(self.undo, 0)  # a nursery's next process appends to the same file

    def _records(self) -> Iterator[tuple[int, str, int, int, bytes]]:
        """What was done: what, to which file, where, how long it was, what was there."""
        if not self.undo.exists():
            return
        data = self.undo.read_bytes()
        at = 0
        while at + _RECORD.size <= len(data):
            what, length, offset, size, name = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            yield what, name.rstrip(b"\0").decode(), offset, size, data[at : at + length]
            at += length


def _torn(
    now: bytes, unsynced: list[tuple[int, str, int, int, bytes]], dice: random.Random
) -> bytes:
    """A file of which some sectors are as they were at its last fsync."""
    before = bytearray(now)
    for _, _, offset, size, old in reversed(unsynced):
        if len(before) < size:
            before.extend(bytes(size - len(before)))
        del before[size:]
        before[offset : offset + len(old)] = old
    kept = dice.choice((0.0, 0.1, 0.5, 0.9))
    size = dice.choice((len(before), len(now))) if kept else len(before)
    torn = bytearray(size)
    then = bytes(before)
    for at in range(0, size, SECTOR):
        source = now if dice.random() < kept else then
        torn[at : at + SECTOR] = source[at : at + SECTOR].ljust(SECTOR, b"\0")
    return bytes(torn[:size])
