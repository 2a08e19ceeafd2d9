"""What `mqttd.interfaces` asks of stores, of SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mqttd.storage.providers import SqliteRetained, SqliteSessions
from mqttd.testing import RetainedStoreConformance, SessionStoreConformance


class TestSessions(SessionStoreConformance):
    def make(self) -> Any:
        return SqliteSessions(self.directory / "sessions.db")


class TestRetained(RetainedStoreConformance):
    def make(self) -> Any:
        return SqliteRetained(self.directory / "retained.db")


def test_a_batch_is_stored_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    store = SqliteSessions(tmp_path / "sessions.db")
    store.open()
    store.save("alice", 1, b"r")
    with pytest.raises(sqlite3.Error):
        store.append("alice", 1, [b"one", object()])  # type: ignore[list-item]
    state = store.load("alice")
    assert state is not None and state.queue == ()
    store.close()


def test_a_file_in_use_is_refused_by_its_name(tmp_path: Path) -> None:
    store, other = (SqliteRetained(tmp_path / "retained.db") for _ in range(2))
    store.open()
    with pytest.raises(sqlite3.OperationalError, match=r"retained\.db: database is locked"):
        other.open()
    store.close()
    other.open()
    assert (tmp_path / "retained.db").stat().st_mode & 0o777 == 0o600
    other.close()
