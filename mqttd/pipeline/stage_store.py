"""What is staged, on disk: rows of tasks, and which batch of a query was released last.

    put      task's rows, chunk by chunk          written, survives a crash of the broker
    abort    a task or a batch has failed: its rows go
    release  one transaction: (query, batch) and the messages that belong to it, synced
    finish   the messages are published: only (query, batch) stays

A batch is in the file whole or not at all, and its number with it: there is no moment in which the
messages are out and the number is not. SQLite does the atomic part. All methods block: they are
called in threads, one at a time.

A task that runs on after its batch has failed finds the door shut: what it puts would stay. A write
that is given up is closed for good. Of a stream the tasks of a run name their stages ``RUN_STAGE``:
where a batch fails its run is over; where another run begins, what the one before has staged goes.

Promise: at most `limit` bytes of rows with what it takes to keep them, of one user no more than is
left free behind it; `MOST_QUERIES` queries; what is never released goes after a while.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["MOST_QUERIES", "Batch", "StageError", "StageStore"]

#: Queries whose last batch is remembered; of the user who has most of them, the one that was heard
#: of longest ago goes.
MOST_QUERIES: Final = 10_000
#: Writes and runs that are over, of which it is remembered that nothing more is taken.
MOST_OVER: Final = 1_000
#: Between the run and the rest of a stage's name.
OF_RUN: Final = "_"
#: What a chunk takes in the file beside its rows and its names, which are there twice.
CHUNK: Final = 128

_SCHEMA: Final = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS chunks (
    owner TEXT, query TEXT, stage TEXT, chunk INTEGER, rows INTEGER, data BLOB,
    batch INTEGER, place INTEGER, at REAL, PRIMARY KEY (owner, query, stage, chunk)
);
CREATE TABLE IF NOT EXISTS batches (
    owner TEXT, query TEXT, batch INTEGER, client_id TEXT, username TEXT, first_id BLOB,
    rows INTEGER, node TEXT, position INTEGER, done INTEGER, at REAL, PRIMARY KEY (owner, query)
);
"""
#: What a chunk weighs.
_WEIGHT: Final = f"""(length(data) + {CHUNK}
    + 2 * (length(CAST(owner AS BLOB)) + length(CAST(query AS BLOB)) + length(CAST(stage AS BLOB))))
"""


def weight_of(owner: str, query: str, stage: str, data: bytes) -> int:
    """What a chunk weighs."""
    return len(data) + CHUNK + 2 * sum(len(name.encode()) for name in (owner, query, stage))


class StageError(Exception):
    """It cannot be staged or released; the text says why, for whoever asked."""


@dataclass(frozen=True)
class Batch:
    """The last batch of a query."""

    owner: str
    query: str
    batch: int
    client_id: str
    username: str | None
    #: Message id of its first message; those of the others follow.
    first_id: int
    rows: int
    #: The node whose event log tells how far publishing came, and where to begin to look.
    node: str
    position: int
    done: bool


_FIELDS: Final = "owner, query, batch, client_id, username, first_id, rows, node, position, done"


class StageStore:
    """The file at `path`; `limit` is how much its chunks may weigh."""

    def __init__(self, path: str, limit: int, clock: Callable[[], float] = time.time) -> None:
        self.limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._file.executescript(_SCHEMA)
        #: What the chunks of each owner weigh, and all of them.
        self._held: dict[str, int] = {}
        self.bytes: int = 0
        self._count()
        #: (owner, query, run), the run is empty where the whole query is over; the oldest go first.
        self._over: dict[tuple[str, str, str], None] = {}
        self._runs: dict[tuple[str, str], str] = {}

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._file.close()

    def put(self, owner: str, query: str, stage: str, chunk: int, rows: int, data: bytes) -> None:
        """Keep a chunk; one that is there already is replaced by the same.

        Raises StageError if there is no room, or its write or run is over.
        """
        with self._lock:
            self._admit(owner, query, stage)
            key = (owner, query, stage, chunk)
            there = self._file.execute(
                f"SELECT {_WEIGHT}, batch FROM chunks"
                " WHERE owner = ? AND query = ? AND stage = ? AND chunk = ?",
                key,
            ).fetchone()
            if there is not None and there[1] is not None:
                raise StageError(f"stage {stage} was released already")
            more = weight_of(owner, query, stage, data) - (there[0] if there is not None else 0)
            held = self._held.get(owner, 0)
            if held + more > self.limit - self.bytes - more:
                raise StageError(
                    f"no room: {self.bytes} bytes are staged, {held} of them by this user, who may"
                    f" have as many as are left free; the limit (stage_bytes) is {self.limit}"
                )
            # A crash of the process keeps it; the release waits for the disk.
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute(
                "INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?, ?, NULL, NULL, ?)",
                (*key, rows, data, self._clock()),
            )
            self._held[owner] = held + more
            self.bytes += more

    def abort(self, owner: str, query: str, stages: list[str]) -> None:
        """Forget these stages, unless they were released.

        Of none named, all of the query: its run is over, nothing more of that is taken.
        """
        with self._lock:
            if not stages:
                run = self._runs.get((owner, query))
                if run is not None:
                    self._end(owner, query, run)
                self._drop_stages(owner, query)
            self._file.executemany(
                "DELETE FROM chunks WHERE owner = ? AND query = ? AND stage = ? AND batch IS NULL",
                [(owner, query, stage) for stage in stages],
            )
            self._count(owner)

    def close_query(self, owner: str, query: str) -> None:
        """Forget what the query has staged, and take nothing more of it."""
        with self._lock:
            self._end(owner, query, "")
            self._drop_stages(owner, query)
            self._count(owner)

    def _admit(self, owner: str, query: str, stage: str) -> None:
        """Raise StageError if nothing is taken of this any more; what the run before left goes."""
        run, named, _ = stage.partition(OF_RUN)
        if (owner, query, "") in self._over:
            raise StageError(f"the write {query} has failed and was given up")
        before = self._runs.get((owner, query))
        if named and (owner, query, run) in self._over:
            if run == before:
                raise StageError(f"a batch of query {query} has failed: its run is over")
            raise StageError(f"another run of query {query} has begun")
        if not named or run == before:
            return
        if before is not None:
            self._end(owner, query, before)
        self._runs.pop((owner, query), None)
        self._runs[owner, query] = run
        if len(self._runs) > MOST_QUERIES:
            del self._runs[next(iter(self._runs))]
        self._file.execute(
            "DELETE FROM chunks WHERE owner = ? AND query = ? AND batch IS NULL"
            " AND instr(stage, ?) > 0 AND substr(stage, 1, ?) != ?",
            (owner, query, OF_RUN, len(run) + 1, run + OF_RUN),
        )
        self._count(owner)

    def _end(self, owner: str, query: str, run: str) -> None:
        self._over[owner, query, run] = None
        if len(self._over) > MOST_OVER:
            del self._over[next(iter(self._over))]

    def release(self, asked: Batch, stages: dict[str, int]) -> tuple[Batch, bool]:
        """Make the stages (name -> chunks) the query's batch, unless it had it already.

        :return: the query's last batch, and whether it is new. One that is not new was asked for
            again: the stages are dropped.
        :raises StageError: a stage is not whole.
        """
        owner, query = key = asked.owner, asked.query
        with self._lock:
            last = self._last(owner, query)
            if last is not None and last.batch >= asked.batch:
                self._drop_stages(owner, query)
                self._count(owner)
                return last, False
            if last is not None and not last.done:
                raise StageError(f"batch {last.batch} of query {query} is still being published")
            self._file.execute("PRAGMA synchronous = FULL")
            self._file.execute("BEGIN IMMEDIATE")
            try:
                rows = 0
                for place, (stage, chunks) in enumerate(stages.items()):
                    found = self._file.execute(
                        "SELECT count(*), coalesce(sum(rows), 0), coalesce(max(chunk), -1)"
                        " FROM chunks WHERE owner = ? AND query = ? AND stage = ?",
                        (*key, stage),
                    ).fetchone()
                    if found[0] != chunks or found[2] != chunks - 1:
                        raise StageError(
                            f"stage {stage} of query {query} has {found[0]} of {chunks} chunks here"
                        )
                    rows += found[1]
                    self._file.execute(
                        "UPDATE chunks SET batch = ?, place = ?"
                        " WHERE owner = ? AND query = ? AND stage = ?",
                        (asked.batch, place, *key, stage),
                    )
                made = Batch(**{**asked.__dict__, "rows": rows, "done": False})
                values = (
                    *key, made.batch, made.client_id, made.username,
                    made.first_id.to_bytes(16, "big"), rows, made.node, made.position, 0,
                    self._clock(),
                )  # fmt: skip
                self._file.execute(
                    f"INSERT OR REPLACE INTO batches VALUES ({', '.join('?' * len(values))})",
                    values,
                )
                # What failed attempts of its tasks have left.
                self._drop_stages(owner, query)
                self._file.execute("COMMIT")
            except BaseException:
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")
                raise
            self._count(owner)
            return made, True

    def chunks(self, batch: Batch) -> list[tuple[str, int, int]]:
        """Of a released batch, in order: (stage, chunk, rows)."""
        with self._lock:
            return list(
                self._file.execute(
                    "SELECT stage, chunk, rows FROM chunks"
                    " WHERE owner = ? AND query = ? AND batch = ? ORDER BY place, chunk",
                    (batch.owner, batch.query, batch.batch),
                )
            )

    def read(self, batch: Batch, stage: str, chunk: int) -> bytes:
        """The bytes of one chunk."""
        with self._lock:
            found = self._file.execute(
                "SELECT data FROM chunks WHERE owner = ? AND query = ? AND stage = ? AND chunk = ?",
                (batch.owner, batch.query, stage, chunk),
            ).fetchone()
            return bytes(found[0])

    def finish(self, batch: Batch) -> None:
        """The batch is published: its number stays, its messages go."""
        with self._lock:
            self._file.execute("PRAGMA synchronous = FULL")
            self._file.execute("BEGIN IMMEDIATE")
            key = (batch.owner, batch.query, batch.batch)
            try:
                self._file.execute(
                    "UPDATE batches SET done = 1 WHERE owner = ? AND query = ? AND batch = ?", key
                )
                self._file.execute(
                    "DELETE FROM chunks WHERE owner = ? AND query = ? AND batch = ?", key
                )
                self._file.execute("COMMIT")
            except BaseException:
                # Else the next one would begin inside of this one, and fail, until a restart.
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")
                raise
            self._count(batch.owner)

    def last(self, owner: str, query: str) -> Batch | None:
        """The query's last batch."""
        with self._lock:
            return self._last(owner, query)

    def forget(self, batch: Batch) -> None:
        """Drop a batch that will not be published to the end, and its number with it."""
        with self._lock:
            key = (batch.owner, batch.query, batch.batch)
            for table in ("chunks", "batches"):
                self._file.execute(
                    f"DELETE FROM {table} WHERE owner = ? AND query = ? AND batch = ?", key
                )
            self._count(batch.owner)

    def unfinished(self) -> list[Batch]:
        """Batches that were released and not published to the end."""
        with self._lock:
            found = self._file.execute(f"SELECT {_FIELDS} FROM batches WHERE NOT done ORDER BY at")
            return [_batch(row) for row in found]

    def sweep(self, seconds: float) -> int:
        """Drop what was staged so long ago and never released; returns how many chunks."""
        with self._lock:
            found = self._file.execute(
                "DELETE FROM chunks WHERE batch IS NULL AND at < ?", (self._clock() - seconds,)
            )
            self._file.execute(
                "DELETE FROM batches WHERE done AND rowid IN (SELECT id FROM"
                " (SELECT rowid AS id, at, row_number() OVER"
                " (PARTITION BY owner ORDER BY at DESC) AS place FROM batches)"
                " ORDER BY place, at DESC LIMIT -1 OFFSET ?)",
                (MOST_QUERIES,),
            )
            self._count()
            return found.rowcount

    def status(self) -> dict[str, Any]:
        """Figures for operators."""
        with self._lock:
            staged = self._file.execute(
                "SELECT count(*), coalesce(sum(rows), 0) FROM chunks WHERE batch IS NULL"
            ).fetchone()
            queries = self._file.execute(
                "SELECT query, batch, rows, done FROM batches ORDER BY at DESC LIMIT 100"
            ).fetchall()
        return {
            "bytes": self.bytes,
            "staged_chunks": staged[0],
            "staged_rows": staged[1],
            "queries": [
                {"query": one[0], "batch": one[1], "rows": one[2], "published": bool(one[3])}
                for one in queries
            ],
        }

    def _last(self, owner: str, query: str) -> Batch | None:
        found = self._file.execute(
            f"SELECT {_FIELDS} FROM batches WHERE owner = ? AND query = ?", (owner, query)
        ).fetchone()
        return None if found is None else _batch(found)

    def _drop_stages(self, owner: str, query: str) -> None:
        self._file.execute(
            "DELETE FROM chunks WHERE owner = ? AND query = ? AND batch IS NULL", (owner, query)
        )

    def _count(self, owner: str | None = None) -> None:
        """Weigh what there is, of one user or of all."""
        if owner is None:
            every = f"SELECT owner, sum({_WEIGHT}) FROM chunks GROUP BY owner"
            self._held = dict(self._file.execute(every).fetchall())
        else:
            own = f"SELECT coalesce(sum({_WEIGHT}), 0) FROM chunks WHERE owner = ?"
            self._held[owner] = self._file.execute(own, (owner,)).fetchone()[0]
            if not self._held[owner]:
                del self._held[owner]
        self.bytes = sum(self._held.values())


def _batch(row: tuple[Any, ...]) -> Batch:
    owner, query, batch, client_id, username, first_id, rows, node, position, done = row
    first = int.from_bytes(first_id, "big")
    return Batch(owner, query, batch, client_id, username, first, rows, node, position, bool(done))
