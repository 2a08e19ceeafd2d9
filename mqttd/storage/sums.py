"""Checksums of the bytes in a block: what a disk has changed is not given to anybody.

    data    the records | CRC-32 of each 4 KiB of them | their size | CRC-32 of both | "sums"

They stand behind the records, where brokers of before look for nothing. A block without them, of
such a broker, is believed. What is read is read with the whole pages around it, and a record is as
it was written or not to be had; those beside it are.

Promise: 4 bytes and a checksum for 4 KiB, 12 bytes for a block that has any; to read one record
takes one read of the file where its block is small, two where it is not.
"""

from __future__ import annotations

import sqlite3
import struct
from typing import Final

from librt.strings import read_i64_le

from mqttd.checksum import crc32
from mqttd.storage.ledger import FORGET, INFLIGHT, LENGTH_MASK, SAME

__all__ = ["PAGE", "Blocks", "Opened", "Sums", "believable", "room", "sealed"]

#: Bytes that have one checksum.
PAGE: Final = 4096
#: Read at once, where a block is small or several of its records are wanted.
_MUCH: Final = 4 * PAGE
_MARK: Final = b"sums"
#: The size of the records, the checksum of what stands before it here, the mark.
_TAIL: Final = struct.Struct("<II4s")


class Sums:
    """Made of the bytes of a block, which come a piece at a time."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._size = 0
        self._last = 0  # of a page that has only begun

    def add(self, data: bytes) -> None:
        """The next bytes."""
        view = memoryview(data)
        at = 0
        while at < len(view):
            piece = view[at : at + PAGE - self._size % PAGE]
            self._last = crc32(piece, self._last)
            at += len(piece)
            self._size += len(piece)
            if not self._size % PAGE:
                self._sums.append(self._last)
                self._last = 0

    def tail(self) -> bytes:
        """What comes behind all of them."""
        if not self._size:
            return b""
        sums = [*self._sums, self._last] if self._size % PAGE else self._sums
        packed = struct.pack(f"<{len(sums)}I", *sums)
        return packed + _TAIL.pack(self._size, _sum_of(packed, self._size), _MARK)


def room(size: int) -> int:
    """Bytes of the tail of so many."""
    return -(-size // PAGE) * 4 + _TAIL.size if size else 0


def sealed(data: bytes) -> bytes:
    """The bytes of the records of a block, with their sums."""
    size = len(data)
    if 0 < size <= PAGE:  # as most are, where little is stored
        packed = crc32(data).to_bytes(4, "little")
        return b"".join((data, packed, _TAIL.pack(size, _sum_of(packed, size), _MARK)))
    sums = Sums()
    sums.add(data)
    return data + sums.tail()


def believable(words: bytes, data: bytes) -> bytes:
    """The data of a block as it was read, without sums, and zeros in place of damaged records.

    words: what is in it, which is whole. No record is of zeros.
    """
    size, sums = _tail_of(data, len(data))
    damaged = _damaged(data[:size], sums, 0)
    if not damaged:
        return data[:size]
    whole = bytearray(data[:size])
    end = 0
    for place in range(0, len(words), 16):
        length = read_i64_le(words, place) & LENGTH_MASK
        if length == SAME or read_i64_le(words, place + 8) >> 16 & 15 in (FORGET, INFLIGHT):
            continue
        start, end = end, end + length
        if length and not damaged.isdisjoint(range(start // PAGE, (end - 1) // PAGE + 1)):
            whole[start:end] = bytes(length)
    return bytes(whole)


class Opened:
    """A block that is open to be read, record by record.

    Raises sqlite3.Error where it is not there, and where the disk cannot be read.
    """

    def __init__(self, base: sqlite3.Connection, block: int) -> None:
        self.block = block
        self._blob = base.blobopen("block", "data", block, readonly=True)
        self._sums: tuple[int, ...] = ()
        self._size = len(self._blob)
        #: Some pages one behind the other, where they begin, and which of them are damaged.
        self._pages = b""
        self._from = 0
        self._damaged: set[int] = set()
        if self._size <= _MUCH:
            data = self._blob.read()
            self._size, self._sums = _tail_of(data, len(data))
            self._keep(data[: self._size], 0)
        else:
            self._size, self._sums = self._tail()

    def read(self, at: int, length: int) -> bytes | None:
        """The bytes of a record, None where they are not what was written."""
        end = at + length
        if end > self._size:
            return None
        if at < self._from or end > self._from + len(self._pages):
            start = at - at % PAGE
            until = min(max(-(-end // PAGE) * PAGE, start + self._more()), self._size)
            self._blob.seek(start)
            self._keep(self._blob.read(until - start), start)
        if self._damaged and length:
            for page in range(at // PAGE, (end - 1) // PAGE + 1):
                if page in self._damaged:
                    return None
        return self._pages[at - self._from : end - self._from]

    def close(self) -> None:
        """Let the file be written again."""
        self._blob.close()

    def _more(self) -> int:
        """How much is read at least: who wants a second record wants others."""
        return _MUCH if self._pages else 0

    def _keep(self, pages: bytes, start: int) -> None:
        self._pages = pages
        self._from = start
        self._damaged = _damaged(pages, self._sums, start // PAGE)

    def _tail(self) -> tuple[int, tuple[int, ...]]:
        """As `_tail_of`, of a block that is not read as a whole."""
        size = self._size
        self._blob.seek(size - _TAIL.size)
        end = self._blob.read(_TAIL.size)
        records, _, mark = _TAIL.unpack(end)
        if mark != _MARK or records + room(records) != size:
            return size, ()
        self._blob.seek(records)
        tail = self._blob.read(size - records)
        return _tail_of(tail, size)


class Blocks:
    """Blocks that are read one after the other; the last one is open, until `close`."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self._base = base
        self._opened: Opened | None = None

    def block(self, block: int) -> Opened:
        """One of them; raises as `Opened`."""
        if self._opened is None or block != self._opened.block:
            self.close()
            self._opened = Opened(self._base, block)
        return self._opened

    def close(self) -> None:
        """Let the file be written again."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _tail_of(data: bytes, size: int) -> tuple[int, tuple[int, ...]]:
    """How many bytes of a block are records', and the sums of their pages: none if it has none.

    data: all of the block, or no more than its tail; size: that of all of it.
    """
    if len(data) < _TAIL.size:
        return size, ()
    records, own, mark = _TAIL.unpack_from(data, len(data) - _TAIL.size)
    if mark != _MARK or not records or records + room(records) != size:
        return size, ()
    packed = data[len(data) - room(records) : len(data) - _TAIL.size]
    if _sum_of(packed, records) != own:
        return size, ()
    return records, struct.unpack(f"<{len(packed) // 4}I", packed)


def _damaged(pages: bytes, sums: tuple[int, ...], first: int) -> set[int]:
    """Which pages, of these and the number of the first, are not what their sums say."""
    if not sums:
        return set()
    view = memoryview(pages)
    return {
        first + number
        for number in range(-(-len(pages) // PAGE))
        if crc32(view[number * PAGE : (number + 1) * PAGE]) != sums[first + number]
    }


def _sum_of(packed: bytes, size: int) -> int:
    return crc32(packed, size)
