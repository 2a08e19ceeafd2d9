"""Blocks to Arrow: many blocks become one record batch, column by column.

    blocks --> codes, topics --> which rows? --> the other columns of those blocks --> rows

Promise: Python's work is per block and column, never per event; text columns are cut at their
NULs by numpy. What is pruned (events, topics, columns) is not decoded where it can be avoided.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mqttd.codec.properties import Properties
from mqttd.codec.topic import match
from mqttd.pipeline.log.blocks import (
    HAS_PAYLOAD,
    HAS_QOS,
    HAS_SIZE,
    QOS,
    RETAIN,
    gap_reason,
    is_packed,
    lost_text,
    parse_header,
)
from mqttd.pipeline.log.reader import Missing
from mqttd.pipeline.log.schema import COLUMNS, EVENTS, GAP
from mqttd.pipeline.spark.columns import PROPERTIES, TEXTS, Packed, Plain, properties_of

__all__ = ["BATCH_ROWS", "ARROW_TYPES", "Batches", "gap_row"]

#: Rows of a record batch, about; and bytes of blocks.
BATCH_ROWS: Final = 32_768
BATCH_BYTES: Final = 16 << 20

#: Topics whose answer is remembered.
MOST_TOPICS: Final = 100_000

_HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())]))
)

ARROW_TYPES: Final = {
    "BIGINT": pa.int64(),
    "STRING": pa.string(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "BINARY": pa.binary(),
    "TINYINT": pa.int8(),
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    COLUMNS["headers"][0]: _HEADERS,
    COLUMNS["user_properties"][0]: pa.map_(pa.string(), pa.string()),
}

#: Columns that are read from the properties of a message.
_OF_PROPERTIES: Final[dict[str, tuple[Callable[[Properties], Any], Any]]] = {
    name: (read, ARROW_TYPES[COLUMNS[name][0]]) for name, read in PROPERTIES.items()
}

_NAMES: Final = pa.array([*EVENTS, *(f"code.{code}" for code in range(len(EVENTS), 256))])


class _Blocks:
    """Some blocks of one node, without gaps, as if they were one."""

    def __init__(self, node: str, blocks: Sequence[memoryview]) -> None:
        self.node = node
        heads = [parse_header(block) for block in blocks]
        self.parts: list[Plain | Packed] = [
            Packed(block, head.rows) if is_packed(block) else Plain(block, head.rows)
            for block, head in zip(blocks, heads, strict=True)
        ]
        self.bases = [head.base for head in heads]
        self.counts = [head.rows for head in heads]
        self.rows = sum(self.counts)
        #: Events of each run, numpy; None where all of them have one.
        self.runs: Any = None
        if any(part.runs != part.rows for part in self.parts):
            self.runs = np.concatenate([part.counts() for part in self.parts])
        self._flags: Any = None
        self._sizes: Any = None
        self._numbered: tuple[list[bytes], Any] | None = None
        self._given: list[Properties] | None = None

    def spread(self, values: Any) -> Any:
        """Values of runs for each event; numpy."""
        return values if self.runs is None else np.repeat(values, self.runs)

    def codes(self) -> Any:
        """The event codes, numpy."""
        return self.spread(np.concatenate([part.codes() for part in self.parts]))

    def flags(self) -> Any:
        """The flags, numpy."""
        if self._flags is None:
            self._flags = self.spread(np.concatenate([part.flags() for part in self.parts]))
        return self._flags

    def sizes(self) -> Any:
        """Payload sizes, numpy."""
        if self._sizes is None:
            self._sizes = self.spread(np.concatenate([part.sizes() for part in self.parts]))
        return self._sizes

    def seq(self) -> Any:
        """The offsets, numpy."""
        parts = [
            np.arange(base, base + count, dtype=np.int64)
            for base, count in zip(self.bases, self.counts, strict=True)
        ]
        return np.concatenate(parts)

    def text(self, column: str) -> Any:
        """A text column: NULL where it is empty."""
        parts = [part.text(column) for part in self.parts]
        if not any(parts):
            return pa.nulls(self.rows, pa.string())
        found = [text or bytes(part.runs - 1) for part, text in zip(self.parts, parts, strict=True)]
        runs = sum(part.runs for part in self.parts)
        data = np.frombuffer(b"\0".join(found), np.uint8)
        ends = np.flatnonzero(data == 0)
        offsets = np.empty(runs + 1, np.int32)
        offsets[0] = 0
        offsets[1:-1] = ends - np.arange(runs - 1)
        offsets[-1] = len(data) - (runs - 1)
        array = _binary(pa.string(), offsets, data[data != 0], offsets[1:] != offsets[:-1])
        return self._take(array)

    def _take(self, array: Any) -> Any:
        """Values of runs for each event; Arrow."""
        if self.runs is None:
            return array
        return array.take(pa.array(np.repeat(np.arange(len(array), dtype=np.int32), self.runs)))

    def column(self, name: str) -> Any:
        """One column as an Arrow array."""
        if name in TEXTS:
            return self.text(name)
        if name == "seq":
            return pa.array(self.seq())
        if name == "node":
            return pa.array([self.node], pa.string()).take(pa.array(np.zeros(self.rows, np.int8)))
        if name == "event":
            return _NAMES.take(pa.array(self.codes()))
        if name == "timestamp":
            times = self.spread(np.concatenate([part.times() for part in self.parts]))
            return pa.Array.from_buffers(
                ARROW_TYPES["TIMESTAMP"], self.rows, [None, pa.py_buffer(times)]
            )
        if name in _OF_PROPERTIES:
            return self._properties(name)
        flags = self.flags()
        if name == "qos":
            return pa.array((flags & QOS).astype(np.int8), mask=(flags & HAS_QOS) == 0)
        if name == "retain":
            return pa.array((flags & RETAIN) != 0, mask=(flags & HAS_QOS) == 0)
        if name == "payload_size":
            return pa.array(self.sizes().astype(np.int32), mask=(flags & HAS_SIZE) == 0)
        if name == "payload":
            here = (flags & HAS_PAYLOAD) != 0
            offsets = np.zeros(self.rows + 1, np.int32)
            np.cumsum(np.where(here, self.sizes(), 0), out=offsets[1:])
            data = b"".join([part.payloads() for part in self.parts])
            return _binary(pa.binary(), offsets, data, here)
        return self._message_ids()

    def _message_ids(self) -> Any:
        halves = np.concatenate([part.ids() for part in self.parts])
        offsets = np.arange(0, 16 * self.rows + 1, 16, dtype=np.int32)
        # A zero id takes its 16 bytes in the buffer, as Arrow allows of a NULL.
        return _binary(pa.binary(), offsets, halves, (halves != 0).any(axis=1))

    def _properties(self, name: str) -> Any:
        """A column that is read from the property blocks; the same block is read once."""
        read, kind = _OF_PROPERTIES[name]
        blocks, numbers = self._property_blocks()
        if not blocks:
            return pa.nulls(self.rows, kind)
        if self._given is None:
            self._given = [properties_of(block) for block in blocks]
        values = pa.array([read(given) for given in self._given], kind)
        return values.take(pa.array(numbers, mask=numbers < 0))

    def _property_blocks(self) -> tuple[list[bytes], Any]:
        """The property blocks that differ, and for each event the number of its own; -1: none."""
        if self._numbered is None:
            numbers = np.full(sum(part.runs for part in self.parts), -1, np.int32)
            known: dict[bytes, int] = {}
            first = 0
            for part in self.parts:
                found = [(i, known.setdefault(one, len(known))) for i, one in part.properties()]
                if found:
                    places, values = zip(*found, strict=True)
                    numbers[first + np.array(places)] = values
                first += part.runs
            self._numbered = list(known), self.spread(numbers)
        return self._numbered


def _binary(kind: Any, offsets: Any, data: Any, valid: Any) -> Any:
    """A text or binary array from its parts; `valid` is where it is not NULL."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    bits = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(
        kind, len(valid), [bits, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=nulls
    )


class Batches:
    """Turns the blocks of one task into record batches of `schema`.

    codes: the events wanted, None for all; filters, pattern: the topics wanted; gaps: whether
    rows of gaps are. The range [start, end) cuts the first and last block; `since` and `until`
    are times in µs that cut rows as well.
    """

    def __init__(
        self,
        schema: Any,
        node: str,
        start: int,
        end: int,
        codes: frozenset[int] | None = None,
        filters: Sequence[str] = (),
        pattern: str | None = None,
        gaps: bool = True,
    ) -> None:
        self.schema = schema
        self.node = node
        self.start = start
        self.end = end
        self.codes = None if codes is None else np.array(sorted(codes), np.uint8)
        self.mask = -1 if codes is None else sum(1 << code for code in codes)
        self.filters = tuple(filters)
        self.pattern = None if pattern is None else re.compile(pattern)
        self.gaps = gaps
        self._wanted: dict[str | None, bool] = {None: False}

    def read(self, blocks: Iterable[memoryview | Missing]) -> Iterator[Any]:
        """The record batches of these blocks, in order; of what is missing a row."""
        waiting: list[memoryview] = []
        rows = size = 0
        for block in blocks:
            head = None if isinstance(block, Missing) else parse_header(block)
            if isinstance(block, Missing) or head is None or head.gap:
                gap = self._gap(block)
                if gap is not None:
                    if waiting:
                        yield from self._batch(waiting)
                        waiting, rows, size = [], 0, 0
                    yield gap
                continue
            if not head.mask & self.mask:
                continue
            waiting.append(block)
            rows += head.rows
            size += head.size
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield from self._batch(waiting)
                waiting, rows, size = [], 0, 0
        if waiting:
            yield from self._batch(waiting)

    def _gap(self, block: memoryview | Missing) -> Any:
        """The row for what of the range is in a gap or missing; None for none, or if unwanted.

        A gap may begin before the range: damage can reach back behind a reader.
        """
        if isinstance(block, Missing):
            base, end, at = block.base, block.end, block.time
        else:
            head = parse_header(block)
            base, end, at = head.base, head.end, head.first_time
        base, end = max(base, self.start), min(end, self.end)
        if base >= end or not self.gaps:
            return None
        if isinstance(block, Missing):
            reason = lost_text(end - base, block.why)
        else:
            reason = gap_reason(block, end - base)
        return gap_row(self.schema, self.node, base, at, reason)

    def _batch(self, waiting: Sequence[memoryview]) -> Iterator[Any]:
        blocks = _Blocks(self.node, waiting)
        chosen = self._chosen(blocks)
        if chosen is not None and not chosen.any():
            return
        names = self.schema.names
        arrays = [blocks.column(name) for name in names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        yield batch if chosen is None else batch.filter(pa.array(chosen))

    def _chosen(self, blocks: _Blocks) -> Any:
        """Which rows are wanted, numpy; None for all."""
        chosen = None
        if blocks.bases[0] < self.start or blocks.bases[-1] + blocks.counts[-1] > self.end:
            seq = blocks.seq()
            chosen = (seq >= self.start) & (seq < self.end)
        if self.codes is not None:
            wanted = np.isin(blocks.codes(), self.codes)
            chosen = wanted if chosen is None else chosen & wanted
        if self.filters or self.pattern is not None:
            topics = blocks.text("topic").dictionary_encode()
            matching = np.array(
                [*map(self._matches, topics.dictionary.to_pylist()), False], np.bool_
            )
            indices = topics.indices.fill_null(len(matching) - 1).to_numpy(zero_copy_only=False)
            wanted = matching[indices]
            chosen = wanted if chosen is None else chosen & wanted
        return chosen

    def _matches(self, topic: str) -> bool:
        known = self._wanted.get(topic)
        if known is None:
            if len(self._wanted) > MOST_TOPICS:
                self._wanted.clear()
            if self.pattern is not None:
                known = self.pattern.fullmatch(topic) is not None
            else:
                known = any(match(topic, one) for one in self.filters)
            self._wanted[topic] = known
        return known


def gap_row(schema: Any, node: str, seq: int, time: int, reason: str) -> Any:
    """A record batch of one row that stands for lost events."""
    values: dict[str, Any] = {
        "seq": seq,
        "node": node,
        "event": EVENTS[GAP],
        "timestamp": time,
        "reason": reason,
    }
    arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
