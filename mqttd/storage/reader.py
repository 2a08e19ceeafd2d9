"""A store that is open for a tool: its tables, its records, their bytes.

damaged_rows   blocks whose words are not what their checksum says: nobody can read them
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing

from mqttd.storage.database import Damaged, StoreError, connect
from mqttd.storage.ledger import Ledger
from mqttd.storage.recovery import Contents, Found, is_damaged, read
from mqttd.storage.sums import Blocks

__all__ = ["Reader", "damaged_rows", "kept_in", "row_named", "subscriptions_in"]


class Reader:
    """A store that is open for a tool. Raises StoreError."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.base = _open(path)
        self.ledger = Ledger()
        self._blocks = Blocks(self.base)
        try:
            self.contents: Contents = read(self.base, self.ledger)
        except sqlite3.DatabaseError as error:
            self.base.close()
            raise StoreError(f"{path}: {error}") from None

    def damaged(self) -> list[int]:
        """The blocks that cannot be read."""
        return damaged_rows(self.base) if self.contents.damaged else []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *failure: object) -> None:
        self.let_go()
        self.base.close()

    def data(self, found: Found) -> bytes:
        """The bytes of a record. Raises ValueError where they are not what was written."""
        data = self._blocks.block(found.block).read(found.at, found.length)
        if data is None:
            raise ValueError("its bytes are not what was written")
        return data

    def let_go(self) -> None:
        """Let the file be written."""
        self._blocks.close()


def damaged_rows(base: sqlite3.Connection, among: Iterable[int] | None = None) -> list[int]:
    """The blocks, `among` these, whose words are damaged."""
    ask = "SELECT id, words, crc FROM block"
    if among is None:
        rows: Iterable[tuple[int, object, int]] = base.execute(ask)
    else:
        rows = (row for id in among for row in base.execute(f"{ask} WHERE id = ?", (id,)))
    return [number for number, words, crc in rows if is_damaged(words, crc)]


def row_named(number: int) -> str:
    """A damaged row, for people."""
    return f"block {number}: its words are damaged"


def kept_in(path: str, drawer: str) -> list[tuple[str, bytes]]:
    """Keys and values of a drawer; records are not read for it. Raises StoreError."""
    with closing(_open(path)) as base:
        rows = base.execute("SELECT key, value FROM kept WHERE plugin = ?", (drawer,))
        return rows.fetchall()


def subscriptions_in(path: str) -> list[tuple[str, str, int, int]]:
    """Filter, client id, options and identifier of each subscription. Raises StoreError."""
    with closing(_open(path)) as base:
        rows = base.execute(
            "SELECT filter, client_id, options, identifier"
            " FROM subscription JOIN session USING (owner)"
        )
        return rows.fetchall()


def _open(path: str) -> sqlite3.Connection:
    if not os.path.exists(path):
        raise StoreError(f"{path}: there is no store")
    try:
        return connect(path)
    except Damaged as error:
        raise StoreError(str(error)) from None
