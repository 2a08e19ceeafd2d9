"""The columns of many blocks as numpy arrays and bytes, whatever their format.

    Plain    a value for each event
    Packed   a value for each run of events (`mqttd.pipeline.log.packed`), unpacked when asked for

    | h | t | a b c | h | t | a b c | ...   -->   heads, tables: a row of numbers for each block
                                            -->   a a ..., b b ..., c c ...

The blocks are of one format and none is a gap. Both give values of runs; of plain blocks each event
is one. Message ids are given for each event.

Promise: what is not compressed costs no Python for each block; what is, one call for each column
that is asked for. A block of one event is not compressed: there are as many of these as events.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from mqttd.pipeline.log import packed
from mqttd.pipeline.log.blocks import HAS_SIZE, HEADER_SIZE, Corrupt, is_packed
from mqttd.pipeline.log.packed import MOST

__all__ = ["TEXTS", "Columns", "Packed", "Plain", "binary", "bits", "columns_of"]

#: What of a header is looked at here.
_HEAD: Final = np.dtype(
    {
        "names": ["base", "rows"],
        "formats": ["<i8", "<u4"],
        "offsets": [16, 24],
        "itemsize": HEADER_SIZE,
    }
)

#: Text column -> its number in a plain and in a packed block.
TEXTS: Final = {
    "client_id": (4, packed.CLIENTS),
    "username": (5, packed.USERS),
    "peer": (6, packed.PEERS),
    "topic": (7, packed.TOPICS),
    "reason": (8, packed.REASONS),
}


def columns_of(blocks: Sequence[memoryview]) -> Columns:
    """The columns of these blocks, at least one, all of the format of the first."""
    return Packed(blocks) if is_packed(blocks[0]) else Plain(blocks)


class Columns:
    """What both formats have in common: where the columns lie, and their bytes side by side.

    Arrays have a value for each block; `stored` and `raw` one for each of its columns: the bytes
    that are there, and those that they stand for.
    """

    #: Numbers of 4 bytes behind a header, and bytes behind the last column.
    _TABLE: ClassVar[int]
    _END: ClassVar[int]
    #: The numbers of columns.
    _CODES: ClassVar[int]
    _FLAGS: ClassVar[int]
    _SIZES: ClassVar[int]
    _PAYLOADS: ClassVar[int]
    _LENGTHS: ClassVar[int]
    _PROPERTIES: ClassVar[int]
    #: Which of the numbers in `TEXTS` is meant.
    _TEXT: ClassVar[int]

    def __init__(self, blocks: Sequence[memoryview]) -> None:
        self._joined = b"".join(blocks)
        self._data = np.frombuffer(self._joined, np.uint8)
        sizes = np.fromiter(map(len, blocks), np.int64, len(blocks))
        ends = np.cumsum(sizes)
        begins = ends - sizes
        heads = self._rows(begins, HEADER_SIZE).view(_HEAD)[:, 0]
        self.bases = heads["base"]
        self.counts = heads["rows"].astype(np.int64)
        self.rows = int(self.counts.sum())
        table = self._rows(begins + HEADER_SIZE, 4 * self._TABLE).view("<u4").astype(np.int64)
        self.stored, self.raw, places = self._lengths(table)
        first = begins + HEADER_SIZE + 4 * self._TABLE
        self._starts = first[:, None] + np.cumsum(places, axis=1) - places
        if (first + places.sum(axis=1) + self._END != ends).any() or self.raw.max() > MOST:
            raise Corrupt("a block whose columns do not fit it")
        #: Bytes of all columns, unpacked.
        self.size = int(self.raw.sum())
        #: How many runs each block has, and all of them.
        self.shares = self.raw[:, self._CODES]
        self.runs = int(self.shares.sum())

    def _rows(self, begins: Any, size: int) -> Any:
        """`size` bytes from each of these places on, a row each."""
        return self._data[begins[:, None] + np.arange(size)]

    def _lengths(self, table: Any) -> tuple[Any, Any, Any]:
        """Of each column: bytes that are stored, bytes that it has, bytes that its place has."""
        raise NotImplementedError

    def _unpacked(self, data: bytes, size: int, column: int) -> bytes:
        """A column of one block, `size` bytes, as it was before it was compressed."""
        raise NotImplementedError

    @cached_property
    def _pieces(self) -> Any:
        """Columns as values of one Arrow array, and what is between them as others."""
        bounds = np.empty((len(self._starts), 2 * self._starts.shape[1]), np.int32)
        bounds[:, ::2] = self._starts
        bounds[:, 1::2] = self._starts + self.stored
        return binary(pa.binary(), np.append(bounds, np.int32(len(self._data))), self._data)

    def _bytes(self, column: int) -> Any:
        """The bytes of a column of all blocks, one behind the other."""
        starts, stored, raw = self._starts[:, column], self.stored[:, column], self.raw[:, column]
        size = int(raw.sum())
        small = (stored != raw).any()
        if not size:
            return self._data[:0]
        if not small and len(starts) == 1:
            return self._data[starts[0] : starts[0] + size]
        if not small:
            width = 2 * self._starts.shape[1]
            wanted = np.arange(2 * column, width * len(starts), width, dtype=np.int32)
            return np.frombuffer(self._pieces.take(pa.array(wanted)).buffers()[2], np.uint8, size)
        return np.frombuffer(b"".join(self._each(column)), np.uint8)

    def _each(self, column: int) -> list[bytes]:
        """The bytes of a column of each block."""
        starts, stored, raw = self._starts[:, column], self.stored[:, column], self.raw[:, column]
        data = self._joined
        places = zip(starts.tolist(), (starts + stored).tolist(), strict=True)
        found = [data[start:end] for start, end in places]
        for i in np.flatnonzero(stored != raw).tolist():
            found[i] = self._unpacked(found[i], int(raw[i]), column)
        return found

    def _numbers(self, column: int, kind: Any, default: int = 0) -> Any:
        """A number of each run: `default` in blocks that have none."""
        found = self._bytes(column).view(kind)
        if len(found) == self.runs:
            return found
        numbers = np.full(self.runs, default, kind)
        numbers[np.repeat(self.raw[:, column] > 0, self.shares)] = found
        return numbers

    @cached_property
    def run_counts(self) -> Any:
        """Events of each run; None where all of them have one."""
        return None

    def seq(self) -> Any:
        """The offsets of all events."""
        before = np.cumsum(self.counts) - self.counts
        return np.repeat(self.bases - before, self.counts) + np.arange(self.rows)

    def codes(self) -> Any:
        """Event codes."""
        return self._bytes(self._CODES)

    @cached_property
    def flags(self) -> Any:
        """Flags."""
        return self._bytes(self._FLAGS)

    def sizes(self) -> Any:
        """Payload sizes."""
        return self._numbers(self._SIZES, np.uint32)

    @cached_property
    def times(self) -> Any:
        """Times, µs."""
        raise NotImplementedError

    def ids(self) -> Any:
        """Message ids of all events: two numbers each, as their bytes are."""
        raise NotImplementedError

    def payloads(self) -> Any:
        """Payloads, one behind the other."""
        return self._bytes(self._PAYLOADS)

    def properties(self) -> tuple[Any, Any]:
        """Bytes of each run's property block, 0 for none; the blocks, one behind the other."""
        return self._numbers(self._LENGTHS, np.uint32), self._bytes(self._PROPERTIES)

    def text(self, name: str) -> Any:
        """A text column, NULL where it is empty; None if it is nowhere else."""
        column = TEXTS[name][self._TEXT]
        if not self.raw[:, column].any():
            return None
        each = zip(self._each(column), self.shares.tolist(), strict=True)
        joined = b"\0".join([text or bytes(runs - 1) for text, runs in each])
        data = np.frombuffer(joined, np.uint8)
        ends = np.flatnonzero(data == 0)
        offsets = np.empty(self.runs + 1, np.int32)
        offsets[0] = 0
        offsets[1:-1] = ends - np.arange(self.runs - 1)
        offsets[-1] = len(data) - (self.runs - 1)
        texts = joined.translate(None, b"\0")  # in half the time of numpy's `data[data != 0]`
        return binary(pa.string(), offsets, texts, offsets[1:] != offsets[:-1])


class Plain(Columns):
    """Blocks with a value for each event."""

    _TABLE = 14
    _END = 0
    _CODES, _FLAGS, _SIZES, _PAYLOADS, _LENGTHS, _PROPERTIES = 0, 2, 9, 10, 11, 12
    _TEXT = 0

    def _lengths(self, table: Any) -> tuple[Any, Any, Any]:
        return table, table, table + (-table & 7)

    @cached_property
    def times(self) -> Any:
        """Times, µs."""
        return self._numbers(1, np.int64)

    def ids(self) -> Any:
        """Message ids of all events: two numbers each, as their bytes are."""
        return self._numbers(3, np.dtype((np.void, 16))).view(np.uint64).reshape(self.rows, 2)


class Packed(Columns):
    """Blocks with a value for each run."""

    _TABLE = 2 * len(packed.WIDTHS)
    _END = 1
    _CODES, _FLAGS, _SIZES = packed.CODES, packed.FLAGS, packed.SIZES
    _PAYLOADS, _LENGTHS, _PROPERTIES = packed.PAYLOADS, packed.LENGTHS, packed.PROPERTIES
    _TEXT = 1

    def _lengths(self, table: Any) -> tuple[Any, Any, Any]:
        return table[:, ::2], table[:, 1::2], table[:, ::2]

    def _unpacked(self, data: bytes, size: int, column: int) -> bytes:
        found = packed.unpacked(data, size)
        width = packed.WIDTHS[column]
        if width < 8:
            return packed.gathered(found, width)
        # Of numbers of 8 bytes this takes half the time, and a quarter of what transposing takes.
        numbers = np.empty((size // width, width), np.uint8)
        for place, each in enumerate(np.frombuffer(found, np.uint8).reshape(width, -1)):
            numbers[:, place] = each
        return numbers.tobytes()

    @cached_property
    def run_counts(self) -> Any:
        """Events of each run; None where all of them have one."""
        if self.runs == self.rows:
            return None
        return self._numbers(packed.COUNTS, np.uint32, 1)

    @cached_property
    def times(self) -> Any:
        """Times, µs: the difference to the run before, the first of a block to 0."""
        times = np.cumsum(self._numbers(packed.TIMES, np.int64))
        ends = np.cumsum(self.shares)[:-1]
        if len(ends):
            times -= np.repeat(np.append(0, times[ends - 1]), self.shares)
        return times

    def ids(self) -> Any:
        """Message ids of all events: two numbers each, as their bytes are."""
        lower = self._numbers(packed.IDS, np.uint64)
        since = self._numbers(packed.ID_TIMES, np.int64)
        upper = (self.times + since).astype(np.uint64)
        none = ((self.flags & HAS_SIZE) == 0) & (lower == 0) & (since == 0)
        upper[none] = 0
        counts = self.run_counts
        if counts is not None:
            upper = np.repeat(upper, counts)
            first = np.cumsum(counts, dtype=np.uint64) - counts
            lower = np.repeat(lower - first, counts) + np.arange(self.rows, dtype=np.uint64)
            lower[np.repeat(none, counts)] = 0
        halves = np.empty((self.rows, 2), ">u8")
        halves[:, 0] = upper
        halves[:, 1] = lower
        return halves.view(np.uint64)


def binary(kind: Any, offsets: Any, data: Any, valid: Any = None) -> Any:
    """A text or binary array from its parts; `valid`: where it is not NULL, None for everywhere."""
    buffers = [bits(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def bits(valid: Any) -> Any:
    """Where an array is not NULL, as Arrow has it."""
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
