"""What an operator asks of a store: what is in it, is it whole, a copy of it.

    info      sizes, counts of sessions, messages, retained messages, bans, what plugins keep
    check     SQLite's own check, each block's checksums, each record that lives read once
    backup    of the store behind a connection, a few pages at a time; `finish` names it
    shrink    likewise: unused pages go back to the system
    restore   a copy becomes the store, without what of it cannot be read

A broker that runs has the file for itself, so the first two are refused then. Its contents as JSON
lines: `mqttd.storage.transfer`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, Final

from mqttd.broker.rights.bans import DRAWER
from mqttd.storage.database import StoreError, look
from mqttd.storage.ledger import DELIVERY, MESSAGE3, MESSAGE5
from mqttd.storage.place import alone, put_in_place, remove
from mqttd.storage.reader import Reader, damaged_rows, row_named
from mqttd.storage.recovery import Found
from mqttd.storage.transfer import line_of
from mqttd.storage.writer import write

__all__ = ["backup", "check", "drop_rows", "finish", "info", "restore", "shrink"]

Json = dict[str, Any]

_INCREMENTAL: Final = 2
#: Pages that `shrink` gives back at a time, and that `backup` copies.
_PAGES: Final = 256
_COPIED: Final = 64


def info(path: str) -> Json:
    """What is in a store. Raises StoreError."""
    with Reader(path) as store:
        records = store.contents.records
        count = store.base.execute
        kinds = [found.kind for owner, mine in records.items() if owner for found in mine]
        messages = sum(kind in (MESSAGE3, MESSAGE5, DELIVERY) for kind in kinds)
        return {
            "path": path,
            "bytes": os.path.getsize(path),
            "blocks": len(store.ledger.blocks),
            "block_bytes": store.ledger.bytes,
            "sessions": count("SELECT count(*) FROM session").fetchone()[0],
            "subscriptions": count("SELECT count(*) FROM subscription").fetchone()[0],
            "wills": count("SELECT count(*) FROM will").fetchone()[0],
            "messages": messages,
            "packet_ids": len(kinds) - messages,  # of QoS 2: a PUBREL is awaited, or is out
            "bans": count("SELECT count(*) FROM kept WHERE plugin = ?", (DRAWER,)).fetchone()[0],
            "values": count("SELECT count(*) FROM kept WHERE plugin <> ?", (DRAWER,)).fetchone()[0],
            "retained": len(records.get(0, ())),
            "damaged": store.contents.damaged,
        }


def check(path: str) -> list[str]:
    """What is wrong with a store, nothing if it is whole. Raises StoreError."""
    with Reader(path) as store:
        wrong = _torn(store.base)
        wrong += [row_named(number) for number in store.damaged()]
        wrong += [text for _, text in _unreadable(store)]
    return wrong


def _torn(base: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with the file itself."""
    rows = base.execute("PRAGMA integrity_check").fetchall()
    return [str(row[0]) for row in rows if row[0] != "ok"]


def _unreadable(store: Reader) -> Iterator[tuple[Found, str]]:
    """Records that live and cannot be read, of blocks that can; and what is wrong with each."""
    for owner, mine in store.contents.records.items():
        for found in mine:
            line = line_of(store, found, str(owner))
            if isinstance(line, Exception):
                yield found, f"record {found.number} in block {found.block}: {line!r}"


def _mend(path: str) -> list[str]:
    """Take out of a store what cannot be read, and nothing else; what that was.

    Raises StoreError where the file itself is torn: what is in it may be anything.
    """
    with Reader(path) as store:
        if torn := _torn(store.base):
            raise StoreError(f"{path}: {torn[0]}" + _more(torn))
        rows = store.damaged()
        left = [row_named(number) for number in rows]
        for found, text in list(_unreadable(store)):
            left.append(text)
            store.ledger.forget(found.number)
        store.let_go()
        if left:
            drop_rows(store.base, rows)
            if (group := store.ledger.close()) is not None:
                write(store.base, group)
    return left


def drop_rows(base: sqlite3.Connection, rows: list[int]) -> list[int]:
    """Delete these blocks, those of them that are damaged; which they were."""
    damaged = damaged_rows(base, rows)
    base.execute("BEGIN IMMEDIATE")
    try:
        for number in damaged:
            base.execute("DELETE FROM block WHERE id = ?", (number,))
        base.execute("COMMIT")
    except sqlite3.Error:
        if base.in_transaction:
            base.execute("ROLLBACK")
        raise
    return damaged


def backup(base: sqlite3.Connection, path: str, pass_by: Callable[[], None]) -> None:
    """Copy the store behind a connection to a new file, mode 0600, a few pages at a time.

    Between them `pass_by` is called: it may write with the same connection, and the copy has that
    too. The file is not synced (`finish`). What is raised leaves no file behind.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        target = sqlite3.connect(path, isolation_level=None)
        try:
            # It is no store before it is whole, and has its name only after `finish`.
            target.execute("PRAGMA synchronous = OFF")
            target.execute("PRAGMA journal_mode = OFF").fetchall()
            base.backup(target, pages=_COPIED, progress=lambda *_: pass_by())
            target.execute("PRAGMA journal_mode = DELETE").fetchall()
        finally:
            target.close()
    except BaseException:
        remove(path)
        raise


def finish(making: str, path: str) -> tuple[int, int]:
    """Give a copy its name when it is on the disk; its size, and how many rows are damaged.

    Raises StoreError and OSError, and leaves no file behind then.
    """
    try:
        with closing(sqlite3.connect(making, isolation_level=None)) as base:
            damaged = len(damaged_rows(base))
        put_in_place(making, path, give=False)
    finally:
        remove(making)
    return os.path.getsize(path), damaged


def shrink(base: sqlite3.Connection) -> bool:
    """Give pages that nothing is in back to the system, some at a time; whether there are more.

    A file that was made before this could be done is written anew, once, which takes as long as
    copying what is in it.
    """
    ask = base.execute
    if ask("PRAGMA auto_vacuum").fetchone()[0] != _INCREMENTAL:
        ask("PRAGMA auto_vacuum = INCREMENTAL")
        ask("VACUUM")
    elif ask("PRAGMA freelist_count").fetchone()[0]:
        ask(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
        if ask("PRAGMA freelist_count").fetchone()[0]:
            return True
    ask("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return False


def restore(backup: str, path: str) -> dict[str, Any]:
    """Make a copy of a store the store at `path`; returns what is in it, as `info`.

    `left_out` of that names what cannot be read, which would not be read from the store either.
    Raises StoreError where there is one already, where the copy is none or its file is torn, and
    while a broker has the directory; then nothing was changed.
    """
    with alone(path):
        for end in ("", "-wal"):
            if os.path.exists(path + end):
                raise StoreError(f"{path + end} is there already; move it away first")
        if not os.path.exists(backup):
            raise StoreError(f"{backup}: there is no such file")
        _check_header(backup)
        making = f"{path}.making"
        remove(making)
        try:
            # A copy of the copy: to look at a store is to open it, and the copy stays as it is.
            os.close(os.open(making, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            shutil.copyfile(backup, making)
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{backup}-wal", f"{making}-wal")
            try:
                left = _mend(making)
                found = info(making)
            except StoreError as error:
                # The copy is at fault, or the disk that it is to go to.
                disk = isinstance(error.__context__, sqlite3.OperationalError)
                name = path if disk else backup
                raise StoreError(str(error).replace(making, name)) from None
            put_in_place(making, path)
        except OSError as error:
            # Where two are named it could not be copied: for want of room, as a rule.
            name = error.filename if error.filename2 is None else path
            raise StoreError(f"{name or path}: {error.strerror}") from None
        finally:
            remove(making)
        found |= {"path": path, "left_out": left}
        return found


def _check_header(path: str) -> None:
    """Raises StoreError for what is no store of this version or an earlier one."""
    look(path)
    with open(path, "rb") as file:
        header = file.read(100)
    if header[:16] != b"SQLite format 3\x00" or header[68:72] != b"mqtd":
        raise StoreError(f"{path}: expected a copy that `mqttd-ctl backup` has made")


def _more(wrong: list[str]) -> str:
    return f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
