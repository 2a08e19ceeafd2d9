"""The thread that writes groups: one transaction each, and nothing else.

    submit(group) --> join, INSERT, DELETE, rows, COMMIT --> done --> wake()
                                    '-- it fails: rolled back, tried again until it can be written

`PRAGMA synchronous` says before each transaction what its COMMIT waits for: the system (`os`) or
the disk (`fsync`). What fails (no room, an I/O error) is tried again every `RETRY` seconds, and
told each time; groups stay in their order, so nothing behind it is written before.

Promise: SQLite lets other threads run in each of its calls; beside them the thread takes some
microseconds a group. A group is `done` when its transaction is committed, and not before.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from array import array
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from mqttd.storage.blocks import Group
from mqttd.storage.database import STATEMENTS

__all__ = ["RETRY", "Writer", "write"]

#: Seconds between two tries.
RETRY: Final = 0.5

_INSERT: Final = "INSERT INTO block VALUES (?, ?, ?, ?)"
_DELETE: Final = "DELETE FROM block WHERE id = ?"
_READ: Final = "SELECT words, data FROM block WHERE id = ?"

#: Something done with the connection between two groups (a backup).
Job = Callable[[sqlite3.Connection], None]


class Writer:
    """Writes to `base`; `wake` is called in the thread when something is `done` or has failed."""

    def __init__(self, base: sqlite3.Connection, wake: Callable[[], None]) -> None:
        self.base = base
        self.wake = wake
        self.done: deque[Group] = deque()
        #: Why the group at hand cannot be written, None while it can.
        self.fault: BaseException | None = None
        self._waiting: SimpleQueue[Group | Job | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._full = False
        self._thread = threading.Thread(target=self._run, name="mqttd-store", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(self, group: Group) -> None:
        """Write a group after those before."""
        self._waiting.put(group)

    def between(self, job: Job) -> None:
        """Have `job` called with the connection, in the thread, after the groups before."""
        self._waiting.put(job)

    def stop(self) -> None:
        """Write what was submitted, then close the file; gives up what cannot be written."""
        self._stopping.set()
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        self.base.close()

    def _run(self) -> None:
        while True:
            waiting = self._waiting.get()
            if waiting is None:
                return
            if not isinstance(waiting, Group):
                waiting(self.base)
                continue
            if not self._write(waiting):
                return
            self.done.append(waiting)
            self.wake()

    def _write(self, group: Group) -> bool:
        """Write one group, however often that has to be tried; False if it was given up."""
        while True:
            try:
                if group.fsync != self._full:
                    full = "FULL" if group.fsync else "NORMAL"
                    self.base.execute(f"PRAGMA synchronous = {full}")
                    self._full = group.fsync
                write(self.base, group)
            except (sqlite3.Error, OSError, MemoryError) as error:
                group.error = error
                self.fault = error
                self._roll_back()
                self.wake()
                if self._stopping.wait(RETRY):
                    return False
                continue
            if self.fault is not None:
                self.fault = None
            return True

    def _roll_back(self) -> None:
        try:
            if self.base.in_transaction:
                self.base.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # SQLite has done so itself


def write(base: sqlite3.Connection, group: Group) -> None:
    """One transaction; then the blocks that are to be read again are read."""
    execute = base.execute
    if group.words or group.rows or group.drops:
        words = array("Q", group.words).tobytes()
        data = b"".join(group.data)
        execute("BEGIN IMMEDIATE")
        if words:
            execute(_INSERT, (group.block.id, words, data, zlib.crc32(words)))
        for number in group.drops:
            execute(_DELETE, (number,))
        for statement, parameters in group.rows:
            execute(STATEMENTS[statement], parameters)
        execute("COMMIT")
    for number in group.reads:
        found = execute(_READ, (number,)).fetchone()
        if found is not None:
            group.found.append((number, found[0], found[1]))
