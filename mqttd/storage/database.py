"""The file of a store: its schema, its versions, who may open it, what becomes of a damaged one.

    block          id, words, data, crc     one group of records (`mqttd.storage.ledger`)
    session        owner, client_id, ...    one row a session that outlives its connection
    subscription   owner, filter, options, identifier
    will           client_id, ...           of everybody who has one, connected or away
    kept           plugin, key, value       what plugins keep by `handle.store`

SQLite in WAL mode, 4 KiB pages, one connection, locked for this process. Which version a file has
is read from its header, before SQLite touches it: a newer one is refused as it is, an older one is
copied before it is brought forward. A column that older brokers pass over is added without another
version. The file is made with mode 0600.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import suppress
from typing import Final

__all__ = [
    "DATE_SESSION",
    "END_SESSION",
    "FORGET_WILL",
    "KEEP",
    "LEAVE_SESSION",
    "MOVE_CLOCK",
    "OPEN_SESSION",
    "PLACE_SESSION",
    "SET_WILL",
    "STATEMENTS",
    "SUBSCRIBE",
    "UNKEEP",
    "UNSUBSCRIBE",
    "UNSUBSCRIBE_ALL",
    "VERSION",
    "Damaged",
    "StoreError",
    "connect",
    "look",
    "set_aside",
]

VERSION: Final = 1
#: "mqtd": what the file says it is.
_APPLICATION: Final = 0x6D717464
_MAGIC: Final = b"SQLite format 3\x00"

_SCHEMA: Final = """
CREATE TABLE block (
    id INTEGER PRIMARY KEY, words BLOB NOT NULL, data BLOB NOT NULL, crc INTEGER NOT NULL
);
CREATE TABLE session (
    owner INTEGER PRIMARY KEY, client_id TEXT NOT NULL, username TEXT,
    mountpoint TEXT NOT NULL DEFAULT '', expiry INTEGER NOT NULL,
    away_since INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE subscription (
    owner INTEGER NOT NULL, filter TEXT NOT NULL, options INTEGER NOT NULL,
    identifier INTEGER NOT NULL, PRIMARY KEY (owner, filter)
) WITHOUT ROWID;
CREATE TABLE will (
    client_id TEXT PRIMARY KEY, username TEXT, delay INTEGER NOT NULL, expiry INTEGER NOT NULL,
    packet BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE kept (
    plugin TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (plugin, key)
) WITHOUT ROWID;
"""

#: What rows of a group say, by number.
STATEMENTS: Final = (
    "INSERT INTO session (owner, client_id, username, expiry, created_at)"
    " VALUES (?, ?, ?, ?, CAST(strftime('%s', 'now') AS INTEGER))"
    " ON CONFLICT (owner) DO UPDATE SET expiry = excluded.expiry, away_since = 0",
    "UPDATE session SET mountpoint = ? WHERE owner = ?",
    "UPDATE session SET away_since = ? WHERE owner = ?",
    "DELETE FROM session WHERE owner = ?",
    "INSERT OR REPLACE INTO subscription VALUES (?, ?, ?, ?)",
    "DELETE FROM subscription WHERE owner = ? AND filter = ?",
    "DELETE FROM subscription WHERE owner = ?",
    "INSERT OR REPLACE INTO will VALUES (?, ?, ?, ?, ?)",
    "DELETE FROM will WHERE client_id = ?",
    "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)",
    "DELETE FROM kept WHERE plugin = ? AND key = ?",
    "UPDATE session SET away_since = away_since + ?"
    " WHERE away_since > 0 AND away_since NOT BETWEEN ? AND ?",
    "UPDATE session SET created_at = ? WHERE owner = ?",
)
OPEN_SESSION: Final = 0
PLACE_SESSION: Final = 1
LEAVE_SESSION: Final = 2
END_SESSION: Final = 3
SUBSCRIBE: Final = 4
UNSUBSCRIBE: Final = 5
UNSUBSCRIBE_ALL: Final = 6
SET_WILL: Final = 7
FORGET_WILL: Final = 8
KEEP: Final = 9
UNKEEP: Final = 10
MOVE_CLOCK: Final = 11
DATE_SESSION: Final = 12


#: Bytes free on a disk that is as good as full.
_LITTLE: Final = 1 << 20


class StoreError(Exception):
    """The store cannot be used; the text names the file and says what to do."""


class Damaged(Exception):
    """The file is not a store that can be read; the text says why."""


def look(path: str) -> None:
    """See whether this broker may use the file, without touching it; none there is well.

    Raises StoreError for one of a newer version or of another program, and where it cannot be
    read. What is damaged passes: it is set aside when it is opened.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None
    if len(header) < 100 or not header.startswith(_MAGIC):
        return
    application = int.from_bytes(header[68:72], "big")
    version = int.from_bytes(header[60:64], "big")
    if application not in (0, _APPLICATION):
        raise StoreError(f"{path} is a database of another program; move it away")
    if version > VERSION:
        raise StoreError(
            f"{path} has version {version} of the store; this mqttd knows {VERSION}: it was"
            " written by a newer one, and is left as it is; install that one, or move the file away"
            " and restore a copy that was made before (mqttd-ctl restore)"
        )


def connect(path: str) -> sqlite3.Connection:
    """Open the file for this process alone, made or brought forward where that is needed.

    Raises StoreError, and Damaged for a file that SQLite cannot read.
    """
    look(path)
    try:
        new = not os.path.exists(path)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        if new:
            _sync_directory(os.path.dirname(path) or ".")
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None
    base = sqlite3.connect(path, timeout=0.5, isolation_level=None, check_same_thread=False)
    try:
        _prepare(path, base)
    except sqlite3.Error as error:
        base.close()
        if _is_damage(error):
            raise Damaged(f"{path}: {error}") from None
        raise StoreError(f"{path}: {error}{_room(path)}") from None
    except BaseException:
        base.close()
        raise
    return base


def _sync_directory(path: str) -> None:
    """That a file was made there is on the disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _room(path: str) -> str:
    """Why SQLite may have failed, which has the same words for all that a disk refuses."""
    with suppress(OSError):
        disk = os.statvfs(os.path.dirname(path) or ".")
        if (free := disk.f_bavail * disk.f_frsize) < _LITTLE:
            return f"; the disk has {free} bytes free"
    return ""


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is at fault, not the disk or another process."""
    if isinstance(error, sqlite3.OperationalError):
        return "no such table" in str(error)
    return isinstance(error, sqlite3.DatabaseError)


def _prepare(path: str, base: sqlite3.Connection) -> None:
    base.execute("PRAGMA page_size = 4096")
    if not base.execute("PRAGMA page_count").fetchone()[0]:
        # So that `compact` can give pages back a few at a time; a file that is there is not touched
        # before it was looked at.
        base.execute("PRAGMA auto_vacuum = INCREMENTAL")
    base.execute("PRAGMA locking_mode = EXCLUSIVE")
    mode = base.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(f"{path}: its file system cannot hold a write-ahead log ({mode})")
    base.execute("PRAGMA synchronous = NORMAL")
    base.execute("PRAGMA wal_autocheckpoint = 1000")
    # Some builds of SQLite write zeros over each page that is given back: as many bytes as were
    # deleted, in the group that does it.
    base.execute("PRAGMA secure_delete = FAST")
    base.execute("PRAGMA temp_store = MEMORY")
    # A large group is written page by page, some of them twice before it is committed.
    base.execute("PRAGMA cache_spill = OFF")
    base.execute("BEGIN IMMEDIATE")
    version = base.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        base.execute("ROLLBACK")
        raise StoreError(f"{path} has version {version} of the store; this mqttd knows {VERSION}")
    if version == 0:
        if base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            base.execute("ROLLBACK")
            raise StoreError(f"{path} is a database of another program; move it away")
        for statement in _SCHEMA.split(";"):
            base.execute(statement)
        base.execute(f"PRAGMA application_id = {_APPLICATION}")
        base.execute(f"PRAGMA user_version = {VERSION}")
    elif "created_at" not in [row[1] for row in base.execute("PRAGMA table_info(session)")]:
        # Since 0.3: 0 where it is not known. A file without its tables is damaged, see below.
        with suppress(sqlite3.OperationalError):
            base.execute("ALTER TABLE session ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0")
    base.execute("COMMIT")
    if version == 0:
        # Into the file itself: `look` reads its header.
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for table in ("block", "session", "subscription", "will", "kept"):
        base.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchall()


def set_aside(path: str) -> str:
    """Rename a damaged file, and what belongs to it; returns its new name."""
    aside = f"{path}.damaged-{time.strftime('%Y%m%dT%H%M%S')}"
    number = 0
    while os.path.exists(aside):
        number += 1
        aside = f"{aside.split('~')[0]}~{number}"
    os.rename(path, aside)
    for end in ("-wal", "-shm"):
        if os.path.exists(path + end):
            shutil.move(path + end, aside + end)
    return aside
