"""A store that is open for a tool: its tables, its records, their bytes."""

from __future__ import annotations

import os
import sqlite3

from mqttd.storage.database import Damaged, StoreError, connect
from mqttd.storage.ledger import Ledger
from mqttd.storage.recovery import Contents, Found, read

__all__ = ["Reader"]


class Reader:
    """A store that is open for a tool. Raises StoreError."""

    def __init__(self, path: str) -> None:
        if not os.path.exists(path):
            raise StoreError(f"{path}: there is no store")
        try:
            self.base = connect(path)
        except Damaged as error:
            raise StoreError(str(error)) from None
        self.ledger = Ledger()
        self._block = 0
        self._data = b""
        try:
            self.contents: Contents = read(self.base, self.ledger)
        except sqlite3.DatabaseError as error:
            self.base.close()
            raise StoreError(f"{path}: {error}") from None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *failure: object) -> None:
        self.base.close()

    def data(self, found: Found) -> bytes:
        """The bytes of a record."""
        if found.block != self._block:
            row = self.base.execute("SELECT data FROM block WHERE id = ?", (found.block,))
            self._data = row.fetchone()[0]
            self._block = found.block
        return self._data[found.at : found.at + found.length]
