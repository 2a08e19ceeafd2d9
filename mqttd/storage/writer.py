"""The thread that writes groups, one transaction each, and reads payloads again between them.

    submit(group) --> join, INSERT, DELETE, rows, COMMIT --> done --> wake()
                                    '-- it fails: rolled back, tried again until it can be written
    fetch(readings) --> some blocks before the next group, more before a try --> read --> wake()
    between(job)   --> called with the connection; a long one lets others by: `pass_by`

`PRAGMA synchronous` says before each transaction what its COMMIT waits for: the system (`os`) or
the disk (`fsync`). What fails (no room, an I/O error) is tried again every `RETRY` seconds, and
told each time; groups stay in their order, so nothing behind it is written before.

Promise: SQLite lets other threads run in each of its calls; beside them the thread takes some
microseconds a group. A group is `done` when its transaction is committed, and not before.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from mqttd.checksum import crc32
from mqttd.storage.blobs import forget_closed
from mqttd.storage.blocks import Group, Part
from mqttd.storage.database import (
    END_SESSION,
    FORGET_WILL,
    LEAVE_SESSION,
    STATEMENTS,
    UNSUBSCRIBE_ALL,
)
from mqttd.storage.fetching import Fetching, Reading, read
from mqttd.storage.sums import Sums, believable, room, sealed

__all__ = ["RETRY", "Stopped", "Writer", "write"]

#: Seconds between two tries.
RETRY: Final = 0.5

_INSERT: Final = "INSERT INTO block VALUES (?, ?, ?, ?)"
_MAKE_ROOM: Final = "INSERT INTO block VALUES (?, ?, zeroblob(?), ?)"
_DELETE: Final = "DELETE FROM block WHERE id = ?"
#: Keys of one statement; SQLite takes 999 parameters at least.
_MANY: Final = 512
#: Statements that are one for several keys.
_OF_SEVERAL: Final = frozenset((LEAVE_SESSION, END_SESSION, UNSUBSCRIBE_ALL, FORGET_WILL))
_READ: Final = "SELECT words, data FROM block WHERE id = ?"

#: A statement of SQL and its parameters.
_Change: TypeAlias = tuple[str, tuple[object, ...]]

#: Something done with the connection between two groups.
Job: TypeAlias = Callable[[sqlite3.Connection], None]

#: Bytes that are joined at once. To join a megabyte, and to hand it over, takes milliseconds in
#: which nobody else runs; a slow disk lets groups of several gather.
_PIECE: Final = 96 << 10

#: Seconds until it is seen whether somebody else has got the connection.
_YIELD: Final = 0.0002


class Stopped(Exception):
    """The writer ends, and a long job with it."""


class Writer:
    """Writes to `base`; `wake` is called in the thread when something is `done` or has failed.

    failed(base): called in the thread before that, each time a group could not be written: jobs
    wait behind it.
    """

    def __init__(
        self, base: sqlite3.Connection, wake: Callable[[], None], failed: Job | None = None
    ) -> None:
        self.base = base
        self.wake = wake
        self.failed: Job = failed or _nothing
        self.done: deque[Group] = deque()
        #: What was fetched.
        self.read: deque[Reading] = deque()
        #: `Group.told` of the one that was written last.
        self.told: int = 0
        #: Why the group at hand cannot be written, None while it can.
        self.fault: BaseException | None = None
        #: Held while the connection is used.
        self.lock = threading.Lock()
        self._waiting: SimpleQueue[Group | Job | None] = SimpleQueue()
        self._fetching = Fetching()
        #: The loop's thread wants the connection.
        self._wanted = False
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

    def fetch(self, readings: Iterable[Reading]) -> None:
        """Read pieces of blocks that were written before."""
        self._fetching.add(readings)
        self._waiting.put(_nothing)

    def stop(self) -> None:
        """Write what was submitted, then close the file; gives up what cannot be written."""
        self._stopping.set()
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        self.base.close()

    def _run(self) -> None:
        while True:
            try:
                waiting = self._waiting.get(timeout=RETRY if self._fetching else None)
            except Empty:
                waiting = _nothing  # what could not be read is tried again
            if waiting is None or not self._serve(waiting):
                return

    def _serve(self, waiting: Group | Job) -> bool:
        """One thing that was asked for, and what is to be read; False if it was given up."""
        if self._read():
            self._waiting.put(_nothing)  # behind who waits by now
        if not isinstance(waiting, Group):
            with self.lock:
                waiting(self.base)
            return True
        if not self._write(waiting):
            return False
        self.told = waiting.told
        self.done.append(waiting)
        self.wake()
        return True

    def pass_by(self) -> None:
        """Called by a job: let by whatever has come to wait behind it. Raises Stopped."""
        self.lock.release()
        try:
            for _ in range(self._waiting.qsize()):
                waiting = self._waiting.get()
                if waiting is None or not self._serve(waiting):
                    self._waiting.put(None)
                    raise Stopped("the store is closed")
            while self._wanted:
                time.sleep(_YIELD)
        finally:
            self.lock.acquire()

    def _write(self, group: Group) -> bool:
        """Write one group, however often that has to be tried; False if it was given up."""
        while True:
            try:
                with self.lock:
                    self._transact(group)
            except (sqlite3.Error, OSError, MemoryError) as error:
                group.error = error
                self.fault = error
                with self.lock:
                    self.failed(self.base)
                self.wake()
                if self._stopping.wait(RETRY):
                    return False
                while self._read():
                    pass  # nobody waits to write
                continue
            if self.fault is not None:
                self.fault = None
            return True

    def _transact(self, group: Group) -> None:
        try:
            if group.fsync != self._full:
                full = "FULL" if group.fsync else "NORMAL"
                self.base.execute(f"PRAGMA synchronous = {full}")
                self._full = group.fsync
            write(self.base, group)
        except BaseException:
            try:
                if self.base.in_transaction:
                    self.base.execute("ROLLBACK")
            except sqlite3.Error:
                pass  # SQLite has done so itself
            raise

    def _read(self) -> bool:
        """Read some of what is wanted; whether there is more, for another time."""
        if not self._fetching:
            return False
        try:
            with self.lock:
                done = self._fetching.slice(self.base)
        except sqlite3.Error:
            return False  # it is tried again
        if done:
            self.read.extend(done)
            self.wake()
        return bool(self._fetching)

    def now(self, pieces: list[tuple[int, int, int]]) -> list[bytes | None]:
        """Read pieces of blocks in the thread of the caller; waits for a transaction under way."""
        self._wanted = True
        with self.lock:
            self._wanted = False
            return read(self.base, pieces)

    def at_once(self, pieces: list[tuple[int, int, int]]) -> list[bytes | None]:
        """As `now`, but nothing where somebody uses the connection."""
        if not self.lock.acquire(blocking=False):
            return []
        try:
            return read(self.base, pieces)
        finally:
            self.lock.release()


def _nothing(base: sqlite3.Connection) -> None:
    """It was enough to wake the thread."""


def write(base: sqlite3.Connection, group: Group) -> None:
    """One transaction; then the blocks that are to be read again are read."""
    execute = base.execute
    changes = [*_of_several(_DELETE, (), group.drops), *_changes(group.rows)]
    alone = len(changes) + group.said() <= 1  # then it is a transaction of its own
    together = not alone or len(group.parts) > 0 or group.size > _PIECE
    if together:
        execute("BEGIN IMMEDIATE")
    for statement, parameters in changes:  # first: on a full disk others have what they free
        execute(statement, parameters)
    for part in group.parts:
        _insert(base, part)
    _insert(base, group)
    if together:
        execute("COMMIT")
    for number in group.reads:
        found = execute(_READ, (number,)).fetchone()
        if found is not None:
            group.found.append((number, found[0], believable(found[0], found[1])))


def _changes(rows: list[tuple[int, tuple[object, ...]]]) -> Iterator[_Change]:
    """Rows in their order; those that say the same of several, beside each other, in one."""
    several: dict[tuple[int, tuple[object, ...]], list[object]] = {}
    for statement, parameters in rows:
        if statement in _OF_SEVERAL:
            several.setdefault((statement, parameters[:-1]), []).append(parameters[-1])
            continue
        yield from _gathered(several)
        yield STATEMENTS[statement], parameters
    yield from _gathered(several)


def _gathered(several: dict[tuple[int, tuple[object, ...]], list[object]]) -> Iterator[_Change]:
    """What is said of each of some, by statements and their other parameters."""
    for (statement, said), keys in several.items():
        yield from _of_several(STATEMENTS[statement], said, keys)
    several.clear()


def _of_several(
    statement: str, said: tuple[object, ...], keys: Sequence[object]
) -> Iterator[_Change]:
    """A statement whose last parameter is a key, for all of these.

    Each gives the interpreter's lock away and has to get it again, which a busy loop keeps for
    milliseconds: 6,000 of them took as long as that was busy, and who waited for the group with it.
    The last key is there again where that makes it a power of two: few statements are prepared.
    """
    before, _, _ = statement.rpartition("= ?")
    for at in range(0, len(keys), _MANY):
        some = tuple(keys[at : at + _MANY])
        more = (1 << (len(some) - 1).bit_length()) - len(some)
        marks = ", ".join("?" * (len(some) + more))
        yield f"{before}IN ({marks})", (*said, *some, *some[-1:] * more)


def _insert(base: sqlite3.Connection, part: Group | Part) -> None:
    """Write a block."""
    words = part.directory()
    if words and part.size > _PIECE:
        size = part.size + room(part.size)
        base.execute(_MAKE_ROOM, (part.block.id, words, size, crc32(words)))
        _fill(base, part)
    elif words:
        data = sealed(b"".join(part.data))
        base.execute(_INSERT, (part.block.id, words, data, crc32(words)))


def _fill(base: sqlite3.Connection, group: Group | Part) -> None:
    """Write the bytes of a block, and their sums, into the row that was made, a piece at a time."""
    piece: list[bytes] = []
    size = 0
    sums = Sums()
    with base.blobopen("block", "data", group.block.id) as blob:
        for data in group.data:
            if size + len(data) > _PIECE and piece:
                _add(blob, sums, piece)
                piece = []
                size = 0
            piece.append(data)
            size += len(data)
        _add(blob, sums, piece)
        blob.write(sums.tail())
    forget_closed(base)


def _add(blob: sqlite3.Blob, sums: Sums, piece: list[bytes]) -> None:
    joined = b"".join(piece)
    sums.add(joined)
    blob.write(joined)
