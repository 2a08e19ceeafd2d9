"""Blocks to Arrow: many blocks become one record batch, column by column.

    blocks --> codes, topics --> which rows? --> the other columns of those blocks --> rows

Promise: Python's work is per block and column, never per event; text columns are cut at their
NULs by numpy. What is pruned (events, topics, columns) is not decoded where it can be avoided.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mqttd.codec.topic import match
from mqttd.pipeline.log.blocks import (
    HAS_PAYLOAD,
    HAS_QOS,
    HAS_SIZE,
    QOS,
    RETAIN,
    contents,
    gap_reason,
    is_gap,
    is_packed,
    lost_text,
    parse_header,
)
from mqttd.pipeline.log.reader import Missing
from mqttd.pipeline.log.schema import COLUMNS, EVENTS, GAP
from mqttd.pipeline.spark.columns import TEXTS, binary, columns_of
from mqttd.pipeline.spark.properties import PROPERTIES, MessageProperties

__all__ = ["BATCH_ROWS", "ARROW_TYPES", "Batches", "gap_row"]

#: Rows of a record batch, about; bytes of blocks; and what their columns are at most unpacked,
#: unless one block has more.
BATCH_ROWS: Final = 32_768
BATCH_BYTES: Final = 16 << 20
MOST_BYTES: Final = 64 << 20

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

_NAMES: Final = pa.array([*EVENTS, *(f"code.{code}" for code in range(len(EVENTS), 256))])


class _Blocks:
    """Some blocks of one node, without gaps and of one format, as if they were one."""

    def __init__(self, node: str, blocks: Sequence[memoryview]) -> None:
        self.node = node
        self.stored = columns_of(blocks)
        self.rows = self.stored.rows
        self._texts: dict[str, Any] = {}

    def spread(self, values: Any) -> Any:
        """Values of runs for each event; numpy."""
        counts = self.stored.run_counts
        return values if counts is None else np.repeat(values, counts)

    @cached_property
    def codes(self) -> Any:
        """The event codes, numpy."""
        return self.spread(self.stored.codes())

    @cached_property
    def flags(self) -> Any:
        """The flags, numpy."""
        return self.spread(self.stored.flags)

    @cached_property
    def sizes(self) -> Any:
        """Payload sizes, numpy."""
        return self.spread(self.stored.sizes())

    def text(self, column: str) -> Any:
        """A text column: NULL where it is empty."""
        if column not in self._texts:
            found = self.stored.text(column)
            if found is None:
                found = pa.nulls(self.rows, pa.string())
            elif self.stored.run_counts is not None:
                found = found.take(pa.array(self.spread(np.arange(len(found), dtype=np.int32))))
            self._texts[column] = found
        return self._texts[column]

    def column(self, name: str) -> Any:
        """One column as an Arrow array."""
        if name in TEXTS:
            return self.text(name)
        if name == "seq":
            return pa.array(self.stored.seq())
        if name == "node":
            return pa.array([self.node], pa.string()).take(pa.array(np.zeros(self.rows, np.int8)))
        if name == "event":
            return _NAMES.take(pa.array(self.codes))
        kind = ARROW_TYPES[COLUMNS[name][0]]
        if name == "timestamp":
            times = self.spread(self.stored.times)
            return pa.Array.from_buffers(kind, self.rows, [None, pa.py_buffer(times)])
        if name in PROPERTIES:
            found = self._properties
            return pa.nulls(self.rows, kind) if found is None else found.column(name, kind)
        flags = self.flags
        if name == "qos":
            return pa.array((flags & QOS).astype(np.int8), mask=(flags & HAS_QOS) == 0)
        if name == "retain":
            return pa.array((flags & RETAIN) != 0, mask=(flags & HAS_QOS) == 0)
        if name == "payload_size":
            return pa.array(self.sizes.astype(np.int32), mask=(flags & HAS_SIZE) == 0)
        if name == "payload":
            here = (flags & HAS_PAYLOAD) != 0
            offsets = np.zeros(self.rows + 1, np.int32)
            np.cumsum(np.where(here, self.sizes, 0), out=offsets[1:])
            return binary(kind, offsets, self.stored.payloads(), here)
        return self._message_ids()

    def _message_ids(self) -> Any:
        halves = self.stored.ids()
        offsets = np.arange(0, 16 * self.rows + 1, 16, dtype=np.int32)
        # A zero id takes its 16 bytes in the buffer, as Arrow allows of a NULL.
        return binary(pa.binary(), offsets, halves, (halves != 0).any(axis=1))

    @cached_property
    def _properties(self) -> MessageProperties | None:
        lengths, data = self.stored.properties()
        return MessageProperties(lengths, data, self.stored.run_counts) if len(data) else None


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
        packed = True
        for block in blocks:
            if isinstance(block, Missing) or is_gap(block):
                gap = self._gap(block)
                if gap is not None:
                    yield from self._batch(waiting)
                    waiting, rows, size = [], 0, 0
                    yield gap
                continue
            count, mask = contents(block)
            if not mask & self.mask:
                continue
            if is_packed(block) != packed:
                packed = not packed
                yield from self._batch(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(block)
            rows += count
            size += len(block)
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield from self._batch(waiting)
                waiting, rows, size = [], 0, 0
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
        if not waiting:
            return
        blocks = _Blocks(self.node, waiting)
        if len(waiting) > 1 and blocks.stored.size > MOST_BYTES:
            # What compresses very well: offsets in an array have 32 bits.
            yield from self._batch(waiting[: len(waiting) // 2])
            yield from self._batch(waiting[len(waiting) // 2 :])
            return
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
        stored = blocks.stored
        if stored.bases[0] < self.start or stored.bases[-1] + stored.counts[-1] > self.end:
            seq = stored.seq()
            chosen = (seq >= self.start) & (seq < self.end)
        if self.codes is not None:
            wanted = np.isin(blocks.codes, self.codes)
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
