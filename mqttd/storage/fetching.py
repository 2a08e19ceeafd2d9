"""Payloads that are to be read again, block by block for all who want some of it.

    Reading, Reading, ...  -->  block -> who wants what of it  -->  the next blocks  -->  done
                                                 '-- each is opened once, and read from one end

A thousand sessions that come back want what was stored for all of them at the same time, so it lies
side by side: to open a block for each message took 14 us of each. Where a slice ended the next
one begins, and behind the last block with the first, so that everybody's block is reached.

Promise: a slice is of a block and of as many more as make `SLICE` pieces; what cannot be read is
wanted still, of a block that is not there any more nothing is found.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from mqttd.storage.blobs import forget_closed
from mqttd.storage.sums import Blocks, Opened

__all__ = ["SLICE", "Fetching", "Reading", "read"]

#: What SQLite answers for a row that is not there, and for a page that makes no sense.
SQLITE_ERROR: Final = 1
SQLITE_CORRUPT: Final = 11

#: Pieces that are read before a group that waits is written: some milliseconds.
SLICE: Final = 2048
#: What was read last stays, up to so many bytes, for sessions that want the same; smaller payloads
#: are read again as fast as they are found.
_RECENT: Final = 4 << 20
_WORTH: Final = 4096

#: Of a block: (block, where, how much).
Piece = tuple[int, int, int]


class Reading:
    """Payloads to be read again: pieces of blocks, each (block, where, how much)."""

    __slots__ = ("found", "left", "of", "pieces")

    def __init__(self, of: object, pieces: list[Piece]) -> None:
        #: Whose they are.
        self.of = of
        self.pieces = pieces
        #: Their bytes; None where there is no such block any more.
        self.found: list[bytes | None] = [None] * len(pieces)
        #: How many have not been looked for.
        self.left = len(pieces)


#: One of them: where it is, how much, which of the pieces of which reading.
_Wanted = tuple[int, int, int, Reading]


class Fetching:
    """What is to be read; anybody may `add`, one thread takes a `slice`.

    Arguments: how many pieces a slice has, how many bytes that several may want stay, how large a
    payload has to be for that.
    """

    def __init__(self, pieces: int = SLICE, recent: int = _RECENT, worth: int = _WORTH) -> None:
        self.pieces = pieces
        self.recent = recent
        self.worth = worth
        self._new: deque[Reading] = deque()
        self._by_block: dict[int, list[_Wanted]] = {}
        #: The block after the last one of the slice before.
        self._next = 0
        #: Those of which everything has been looked for.
        self._done: list[Reading] = []
        #: Payloads that several may want, as they were read.
        self._recent: dict[Piece, bytes] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._new or self._by_block)

    def add(self, readings: Iterable[Reading]) -> None:
        """Read these, too."""
        self._new.extend(readings)

    def slice(self, base: sqlite3.Connection) -> list[Reading]:
        """Read some of it; those of which everything has been looked for.

        Raises sqlite3.Error where the disk cannot be read.
        """
        self._sort()
        blocks = Blocks(base)
        count = 0
        try:
            for block in self._order():
                wanted = self._by_block.pop(block)
                wanted.sort(key=itemgetter(0, 1))
                try:
                    self._look(blocks, block, wanted)
                except sqlite3.Error:
                    self._by_block[block] = wanted
                    raise
                for _, _, _, reading in wanted:
                    reading.left -= 1
                    if not reading.left:
                        self._done.append(reading)
                self._next = block + 1
                count += len(wanted)
                if count >= self.pieces:
                    break
        finally:
            blocks.close()
            forget_closed(base)
        done, self._done = self._done, []
        return done

    def _sort(self) -> None:
        """Those that are new, block by block."""
        by_block = self._by_block
        while self._new:
            reading = self._new.popleft()
            if not reading.pieces:
                self._done.append(reading)
            for place, (block, at, length) in enumerate(reading.pieces):
                wanted = by_block.get(block)
                if wanted is None:
                    wanted = by_block[block] = []
                wanted.append((at, length, place, reading))

    def _order(self) -> list[int]:
        """The blocks of which something is wanted, from the last slice's end on and round."""
        blocks = sorted(self._by_block)
        at = bisect_left(blocks, self._next)
        return blocks[at:] + blocks[:at]

    def _look(self, blocks: Blocks, block: int, wanted: list[_Wanted]) -> None:
        """Find what is wanted of a block, which may not be there any more."""
        opened: Opened | None = None
        asked = False
        last = (-1, -1)
        data: bytes | None = None
        for at, length, place, reading in wanted:
            if (at, length) != last:  # several want what was stored for all of them
                last = (at, length)
                data = self._recent.get((block, at, length))
                if data is None:
                    if not asked:
                        asked = True
                        opened = opened_in(blocks, block)
                    data = None if opened is None else opened.read(at, length)
                    if data is not None and length >= self.worth:
                        self._keep((block, at, length), data)
            reading.found[place] = data

    def _keep(self, piece: Piece, data: bytes) -> None:
        """Have a payload for who wants it next."""
        self._recent[piece] = data
        self._size += len(data)
        while self._size > self.recent:
            self._size -= len(self._recent.pop(next(iter(self._recent))))


def opened_in(blocks: Blocks, block: int) -> Opened | None:
    """A block that can be read; None if there is none. Raises sqlite3.Error for the disk's sake."""
    try:
        return blocks.block(block)
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF not in (SQLITE_ERROR, SQLITE_CORRUPT):
            raise
        return None


def read(base: sqlite3.Connection, pieces: list[Piece]) -> list[bytes | None]:
    """Pieces of blocks, without the rest of them; None where they are not there or damaged.

    Raises sqlite3.Error where the disk cannot be read.
    """
    found: list[bytes | None] = []
    blocks = Blocks(base)
    try:
        for block, at, length in pieces:
            opened = opened_in(blocks, block)
            found.append(None if opened is None else opened.read(at, length))
    finally:
        blocks.close()
        forget_closed(base)
    return found
