"""Who got in lately: eight bytes for each of many clients, the oldest of which are forgotten first.

    newest [ 3 . 8 1 . ]   [ 7 2 . 9 5 ]   ...   [ 4 . 6 0 2 ] oldest
             ^ added to                            ^ goes when a new table is begun

A client is the 64-bit hash of its names, whose key Python draws at random for each process: so that
two are taken for one is as likely as that somebody guesses 64 bits. A table is open: a hash lies at
its place, or at the next one that was free.

Promise: to add and to find cost a few look-ups for each of `_TABLES`; at most 14 bytes for each
client, once there are some thousands.
"""

from __future__ import annotations

from array import array
from typing import Final

__all__ = ["Known"]

_TABLES: Final = 20


class Known:
    """At most `most` clients, rounded down to a multiple of the number of tables."""

    def __init__(self, most: int) -> None:
        #: Clients of one table, of which at most five places in eight are taken.
        self._each = max(most // _TABLES, 1)
        self._mask = (1 << (self._each * 8 // 5).bit_length()) - 1
        #: The newest last.
        self._tables: list[array[int]] = []
        self._full = 0
        self._newest = self._each

    def __len__(self) -> int:
        return self._full + (self._newest if self._tables else 0)

    def __contains__(self, client: tuple[str, ...]) -> bool:
        number = _number(client)
        return any(table[self._place(table, number)] for table in self._tables)

    def add(self, client: tuple[str, ...]) -> None:
        """It has got in now."""
        number = _number(client)
        if self._tables:
            table = self._tables[-1]
            at = self._place(table, number)
            if table[at]:
                return
            if self._newest < self._each:
                table[at] = number
                self._newest += 1
                return
            self._full += self._each
            if len(self._tables) == _TABLES:
                del self._tables[0]
                self._full -= self._each
        table = array("Q", bytes(8 * (self._mask + 1)))
        table[self._place(table, number)] = number
        self._tables.append(table)
        self._newest = 1

    def _place(self, table: array[int], number: int) -> int:
        """Where a number is, or would be: a place that is 0 then."""
        at = number & self._mask
        while table[at] and table[at] != number:
            at = (at + 1) & self._mask
        return at


def _number(client: tuple[str, ...]) -> int:
    return hash(client) & 0xFFFF_FFFF_FFFF_FFFF or 1
