"""SQLite behind the small interfaces: sessions as records, retained messages by topic.

    SqliteSessions    `ISessionStore`     what an owner of client ids hands over and takes in
    SqliteRetained    `IRetainedStore`    topic -> message

The broker keeps its own state by `mqttd.storage.store`, change by change; these are for whoever
asks for one record at a time. Each change is a transaction of its own and done when the call
returns, or it has raised: what was stored survives the end of the process.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from zope.interface import implementer

from mqttd.interfaces import IRetainedStore, ISessionStore
from mqttd.types import SessionState, StaleEpoch

__all__ = ["SqliteRetained", "SqliteSessions"]

_SESSIONS: Final = (
    "CREATE TABLE IF NOT EXISTS session (client_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL,"
    " record BLOB)",
    "CREATE TABLE IF NOT EXISTS packet (id INTEGER PRIMARY KEY, client_id TEXT NOT NULL,"
    " data BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS packets ON packet (client_id, id)",
)
_RETAINED: Final = (
    "CREATE TABLE IF NOT EXISTS retained (topic TEXT PRIMARY KEY, message BLOB NOT NULL)"
    " WITHOUT ROWID",
)


class _File:
    """One SQLite file of this process alone, mode 0600."""

    schema: tuple[str, ...] = ()

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._base: sqlite3.Connection | None = None

    @property
    def base(self) -> sqlite3.Connection:
        """The connection; RuntimeError before `open` and after `close`."""
        if self._base is None:
            raise RuntimeError(f"{self.path} is not open")
        return self._base

    def open(self) -> None:
        """Make ready. Raises OSError and sqlite3.Error."""
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        base = sqlite3.connect(self.path, timeout=0.5, isolation_level=None)
        try:
            base.execute("PRAGMA locking_mode = EXCLUSIVE")
            base.execute("PRAGMA journal_mode = WAL").fetchall()
            base.execute("PRAGMA synchronous = NORMAL")
            for statement in self.schema:
                base.execute(statement)
        except sqlite3.Error as error:
            base.close()
            raise type(error)(f"{self.path}: {error}") from None
        self._base = base

    def close(self) -> None:
        """Let go."""
        if self._base is not None:
            self._base.close()
            self._base = None

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """All of what is done here, or nothing of it."""
        base = self.base
        base.execute("BEGIN IMMEDIATE")
        try:
            yield base
        except BaseException:
            base.execute("ROLLBACK")
            raise
        base.execute("COMMIT")


@implementer(ISessionStore)
class SqliteSessions(_File):
    """Sessions as one record each, with the packets that wait for it."""

    keeps = True
    schema = _SESSIONS

    def _claim(self, base: sqlite3.Connection, client_id: str, epoch: int) -> bytes | None:
        """The record under this epoch, the highest from now on; None for none."""
        row = base.execute(
            "SELECT epoch, record FROM session WHERE client_id = ?", (client_id,)
        ).fetchone()
        if row is None:
            return None
        if row[0] > epoch:
            raise StaleEpoch(f"{client_id!r} has epoch {row[0]}, not {epoch}")
        if row[0] < epoch:
            base.execute("UPDATE session SET epoch = ? WHERE client_id = ?", (epoch, client_id))
        record: bytes | None = row[1]
        return record

    def save(self, client_id: str, epoch: int, record: bytes) -> None:
        """As `ISessionStore.save`."""
        with self.change() as base:
            self._claim(base, client_id, epoch)
            base.execute("DELETE FROM packet WHERE client_id = ?", (client_id,))
            base.execute(
                "INSERT OR REPLACE INTO session VALUES (?, ?, ?)", (client_id, epoch, record)
            )

    def append(self, client_id: str, epoch: int, packets: Sequence[bytes]) -> None:
        """As `ISessionStore.append`."""
        with self.change() as base:
            if self._claim(base, client_id, epoch) is None:
                raise KeyError(client_id)
            base.executemany(
                "INSERT INTO packet (client_id, data) VALUES (?, ?)",
                [(client_id, packet) for packet in packets],
            )

    def _packets(self, client_id: str) -> tuple[bytes, ...]:
        rows = self.base.execute(
            "SELECT data FROM packet WHERE client_id = ? ORDER BY id", (client_id,)
        )
        return tuple(row[0] for row in rows)

    def load(self, client_id: str) -> SessionState | None:
        """As `ISessionStore.load`."""
        row = self.base.execute(
            "SELECT record, epoch FROM session WHERE client_id = ?", (client_id,)
        ).fetchone()
        if row is None or row[0] is None:
            return None
        return SessionState(row[0], self._packets(client_id), row[1])

    def remove(self, client_id: str, epoch: int) -> None:
        """As `ISessionStore.remove`; an epoch beyond the first stays."""
        with self.change() as base:
            self._claim(base, client_id, epoch)
            base.execute("UPDATE session SET record = NULL WHERE client_id = ?", (client_id,))
            base.execute("DELETE FROM session WHERE client_id = ? AND epoch = 1", (client_id,))
            base.execute("DELETE FROM packet WHERE client_id = ?", (client_id,))

    def recover(self) -> Iterable[tuple[str, SessionState]]:
        """As `ISessionStore.recover`: a session is read when it is asked for."""
        rows = self.base.execute(
            "SELECT client_id, record, epoch FROM session WHERE record IS NOT NULL"
        ).fetchall()
        for client_id, record, epoch in rows:
            yield client_id, SessionState(record, self._packets(client_id), epoch)

    def description(self) -> str:
        """As `ISessionStore.description`."""
        return f"SQLite, {self.path}; survives the process"


@implementer(IRetainedStore)
class SqliteRetained(_File):
    """The last message of each topic."""

    schema = _RETAINED

    def put(self, topic_name: str, message: bytes) -> None:
        """As `IRetainedStore.put`."""
        self.base.execute("INSERT OR REPLACE INTO retained VALUES (?, ?)", (topic_name, message))

    def delete(self, topic_name: str) -> None:
        """As `IRetainedStore.delete`."""
        self.base.execute("DELETE FROM retained WHERE topic = ?", (topic_name,))

    def load(self) -> Iterable[tuple[str, bytes]]:
        """As `IRetainedStore.load`."""
        return self.base.execute("SELECT topic, message FROM retained").fetchall()

    def description(self) -> str:
        """As `IRetainedStore.description`."""
        return f"SQLite, {self.path}; survives the process"
