"""A store's groups as bytes, to be kept on other machines, and a store made of them again.

    group ------> GROUP   its blocks, the blocks that go, its rows
    the file ---> START   its rows as they are after the groups before
             '--> BLOCKS  some of its blocks, as far as they are there when it is their turn
    nothing more than what came before a START is needed when all blocks that it had were said

    START, GROUP and BLOCKS in their order --> `Copy`: a file for `mqttd.storage.recovery`

A block is never changed, and is there from its group to the group in which it goes; so what is read
of it any time between is the same, and groups may come between the blocks.

Promise: what was applied twice, in order, is as if it was applied once.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final, Protocol

import msgspec

from mqttd.checksum import crc32
from mqttd.storage.blocks import Group, Part
from mqttd.storage.database import DATE_SESSION, STATEMENTS, connect
from mqttd.storage.sums import believable, sealed

__all__ = ["BLOCKS", "GROUP", "START", "Copies", "Copy", "pack_blocks", "pack_group", "pack_start"]

GROUP: Final = 1
START: Final = 2
BLOCKS: Final = 3

#: What a START has, table by table.
_TABLES: Final = (
    ("session", "owner, client_id, username, mountpoint, expiry, away_since"),
    ("subscription", "owner, filter, options, identifier"),
    ("will", "client_id, username, delay, expiry, packet"),
    ("kept", "plugin, key, value"),
)
_BLOCK: Final = "INSERT OR REPLACE INTO block VALUES (?, ?, ?, ?)"


class Copies(Protocol):
    """Who has the groups of a store elsewhere, too."""

    #: Why nothing can be copied for a while now; empty while it can, or may soon.
    fault: str

    def submit(self, group: Group) -> None:
        """Copy a group after those before; `Store.copied` is called when it is there."""

    def has(self, group: Group) -> bool:
        """Whether this group is there; once it is, it is forgotten here."""


def _block(part: Group | Part) -> tuple[int, bytes, bytes] | None:
    words = part.directory()
    return (part.block.id, words, b"".join(part.data)) if words else None


def pack_group(group: Group) -> bytes:
    """What a group changes; it is closed."""
    blocks = [_block(part) for part in group.parts]
    blocks.append(_block(group))
    # Nodes of before know no row that dates a session.
    rows = [row for row in group.rows if row[0] != DATE_SESSION]
    said = (GROUP, [each for each in blocks if each is not None], group.drops, rows)
    return msgspec.msgpack.encode(said)


def pack_start(base: sqlite3.Connection) -> tuple[bytes, list[int]]:
    """The rows of a file, and the numbers of its blocks."""
    rows = [base.execute(f"SELECT {fields} FROM {table}").fetchall() for table, fields in _TABLES]
    blocks = [row[0] for row in base.execute("SELECT id FROM block ORDER BY id")]
    return msgspec.msgpack.encode((START, rows)), blocks


def pack_blocks(base: sqlite3.Connection, wanted: list[int], most: int) -> bytes:
    """The first of these blocks, those that are there: `most` bytes, and at least one.

    They are taken out of `wanted`.
    """
    found: list[tuple[int, bytes, bytes]] = []
    size = 0
    while wanted and size < most:
        row = base.execute(
            "SELECT id, words, data, crc FROM block WHERE id = ?", (wanted.pop(0),)
        ).fetchone()
        if row is not None and crc32(row[1]) == row[3]:
            found.append((row[0], row[1], believable(row[1], row[2])))
            size += len(row[1]) + len(row[2])
    return msgspec.msgpack.encode((BLOCKS, found))


class Copy:
    """A file that is made of what was packed; raises sqlite3.Error and OSError."""

    def __init__(self, path: str) -> None:
        self.base = connect(path)
        self.base.execute("PRAGMA synchronous = OFF")  # it can be made again

    def apply(self, packed: bytes) -> None:
        """One of them, after those before. Raises ValueError for bytes that are none."""
        try:
            kind, *said = msgspec.msgpack.decode(packed)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None
        self.base.execute("BEGIN")
        if kind == START:
            self._start(said[0])
        elif kind == BLOCKS:
            self._blocks(said[0])
        elif kind == GROUP:
            blocks, drops, rows = said
            self._blocks(blocks)
            for number in drops:
                self.base.execute("DELETE FROM block WHERE id = ?", (number,))
            for statement, parameters in rows:
                self.base.execute(STATEMENTS[statement], parameters)
        self.base.execute("COMMIT")

    def _start(self, tables: list[list[list[Any]]]) -> None:
        self.base.execute("DELETE FROM block")
        for (table, fields), rows in zip(_TABLES, tables, strict=True):
            marks = ", ".join("?" * len(fields.split(",")))
            self.base.execute(f"DELETE FROM {table}")
            self.base.executemany(f"INSERT INTO {table} ({fields}) VALUES ({marks})", rows)

    def _blocks(self, blocks: list[tuple[int, bytes, bytes]]) -> None:
        for number, words, data in blocks:
            self.base.execute(_BLOCK, (number, words, sealed(data), crc32(words)))

    def close(self) -> None:
        """Let go of the file."""
        self.base.close()
