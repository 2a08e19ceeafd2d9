"""Reads a log: what is there, which blocks hold a range, their bytes. From any process.

    LogReader   the log's directory        } the same methods: a reader need not know
    PullReader  a broker's pull endpoint   } which it has (`open_log`)

    offsets   bounds() ----> earliest .............. latest
    plan      blocks(start, end) -> headers only: prune by event mask and time
    read      fetch(blocks) -> bytes, each block verified

Rules that a silent loss has taught:

* A segment is complete only when what was indexed ends at the first offset in the *next* segment's
  name. Anything else is looked at again.
* `check_cover` is called on the blocks of a range before any is pruned, and again where they are
  read: a hole is a `DataLoss`, never a short answer.

Promise: an index costs one read of 64 bytes per block, once; a refresh one `listdir` and what is
new. The writer may append, roll and delete meanwhile.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from mqttd.pipeline.log.blocks import (
    HEADER_SIZE,
    Block,
    Corrupt,
    decode_block,
    parse_header,
    verify,
)
from mqttd.pipeline.log.files import (
    LOG_FILE,
    base_of,
    nodes_in,
    read_json,
    segments_in,
)
from mqttd.pipeline.log.retention import commit_group
from mqttd.pipeline.log.schema import Event

__all__ = ["Bounds", "DataLoss", "EventLog", "LogReader", "check_cover", "events", "find_time"]

#: Blocks that follow one another are read in pieces of about this size.
READ_SIZE = 4 << 20


class DataLoss(Exception):
    """Events that should be in the log are not; the text names node and range."""


class Bounds(NamedTuple):
    """The first offset there is, and the one behind the last."""

    earliest: int
    latest: int


class EventLog(Protocol):
    """What can be read from: `LogReader` and `mqttd.pipeline.log.pull.PullReader`."""

    log_id: str

    def bounds(self) -> dict[str, Bounds]:
        """Node -> what is there of it now."""

    def blocks(self, node: str, start: int, end: int) -> list[Block]:
        """The headers of all blocks with an event in [start, end), in order.

        Of what `bounds` saw. Raises DataLoss if they do not cover the range.
        """

    def fetch(self, blocks: Sequence[Block]) -> Iterator[memoryview]:
        """The bytes of these blocks of one node, each verified.

        Raises DataLoss when one of them is gone, Corrupt for a wrong checksum.
        """

    def commit(self, group: str, nodes: dict[str, int]) -> None:
        """Register that `group` has read this far."""

    def close(self) -> None:
        """Let go of connections and files."""


def check_cover(blocks: Sequence[Block], node: str, start: int, end: int) -> None:
    """Raise DataLoss unless `blocks` hold every offset in [start, end)."""
    at = start
    for block in blocks:
        if block.base > at:
            raise DataLoss(f"events {at} to {block.base - 1} of node {node} are not in the log")
        at = max(at, block.end)
    if at < end:
        raise DataLoss(f"events {at} to {end - 1} of node {node} are not in the log")


class _Segment:
    """What is known of one segment."""

    __slots__ = ("blocks", "end", "ends", "name", "size")

    def __init__(self, name: str) -> None:
        self.name = name
        self.blocks: list[Block] = []
        #: `end` of each block, to search in.
        self.ends: list[int] = []
        #: Offset behind the last block, and its place in the file.
        self.end = base_of(name)
        self.size = 0


class LogReader:
    """The log in the directory `path` (that of `log.json`).

    Raises FileNotFoundError or ValueError if there is no log.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.log_id = str(read_json(os.path.join(path, LOG_FILE))["log"])
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path}: no event log here (no {LOG_FILE}); expected the directory the broker's"
                " spark plugin writes to, such as data/events"
            ) from None
        except KeyError:
            raise ValueError(f"{path}/{LOG_FILE}: no log id in it") from None
        self._nodes: dict[str, dict[str, _Segment]] = {}

    def bounds(self) -> dict[str, Bounds]:
        """Node -> what is there of it now; looks at the directory again."""
        if str(read_json(os.path.join(self.path, LOG_FILE)).get("log")) != self.log_id:
            raise DataLoss(f"{self.path}: the log was made anew while it was read")
        found = {}
        for node in nodes_in(self.path):
            segments = self._refresh(node)
            if segments:
                found[node] = Bounds(base_of(segments[0].name), segments[-1].end)
        return found

    def _refresh(self, node: str) -> list[_Segment]:
        """The segments of a node in order, indexed as far as they are written."""
        known = self._nodes.get(node, {})
        names = segments_in(os.path.join(self.path, node))
        present: dict[str, _Segment] = {}
        for i, name in enumerate(names):
            segment = known.get(name) or _Segment(name)
            last = i + 1 == len(names)
            if last or segment.end != base_of(names[i + 1]):
                try:
                    self._index(node, segment, last)
                except FileNotFoundError:
                    continue  # deleted since the directory was read
            present[name] = segment
        self._nodes[node] = present
        return list(present.values())

    def _index(self, node: str, segment: _Segment, last: bool) -> None:
        """Read the headers of the blocks that are new; in the newest segment verify them."""
        fd = os.open(os.path.join(self.path, node, segment.name), os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            while segment.size + HEADER_SIZE <= size:
                at = segment.size
                data = os.pread(fd, HEADER_SIZE, at)
                try:
                    block = parse_header(data, node, segment.name, at)
                except Corrupt:
                    break
                if at + block.size > size or block.base != segment.end:
                    break
                if last and not verify(os.pread(fd, block.size, at)):
                    break  # being written just now, or torn
                segment.blocks.append(block)
                segment.ends.append(block.end)
                segment.end = block.end
                segment.size += block.size
        finally:
            os.close(fd)

    def blocks(self, node: str, start: int, end: int) -> list[Block]:
        """The blocks with an event in [start, end); see `EventLog.blocks`."""
        if node not in self._nodes:
            self._refresh(node)
        found: list[Block] = []
        for segment in self._nodes[node].values():
            if segment.end <= start:
                continue
            if base_of(segment.name) >= end:
                break
            for i in range(bisect_right(segment.ends, start), len(segment.blocks)):
                block = segment.blocks[i]
                if block.base >= end:
                    break
                found.append(block)
        check_cover(found, node, start, end)
        return found

    def fetch(self, blocks: Sequence[Block]) -> Iterator[memoryview]:
        """The bytes of each block, read in large pieces; see `EventLog.fetch`."""
        at = 0
        while at < len(blocks):
            first = blocks[at]
            stop, size = at + 1, first.size
            while (
                stop < len(blocks)
                and blocks[stop].segment == first.segment
                and blocks[stop].position == first.position + size
                and size < READ_SIZE
            ):
                size += blocks[stop].size
                stop += 1
            data = memoryview(self._read(first, size, blocks[stop - 1].end))
            for block in blocks[at:stop]:
                start = block.position - first.position
                piece = data[start : start + block.size]
                check_block(piece, block)
                yield piece
            at = stop

    def _read(self, block: Block, size: int, end: int) -> bytes:
        path = os.path.join(self.path, block.node, block.segment)
        try:
            with open(path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), size, block.position)
        except FileNotFoundError:
            raise DataLoss(
                f"events {block.base} to {end - 1} of node {block.node} were deleted while they"
                " were read (retention)"
            ) from None
        if len(data) != size:
            raise DataLoss(f"{path}: {size} bytes at {block.position} expected, {len(data)} there")
        return data

    def commit(self, group: str, nodes: dict[str, int]) -> None:
        """Register that `group` has read this far, in the log's directory."""
        commit_group(self.path, group, self.log_id, nodes)

    def close(self) -> None:
        """Nothing is kept open."""


def check_block(data: memoryview, block: Block) -> None:
    """Raise Corrupt unless `data` is the block that was planned, unharmed."""
    found = parse_header(data, block.node, block.segment, block.position)
    if (found.base, found.rows, found.size) != (block.base, block.rows, block.size):
        raise Corrupt(
            f"{block.segment}:{block.position}: events {block.base} to {block.end - 1} of node"
            f" {block.node} expected, {found.base} to {found.end - 1} found"
        )
    if not verify(data):
        raise Corrupt(
            f"{block.segment}:{block.position}: wrong checksum, events {block.base} to"
            f" {block.end - 1} of node {block.node}"
        )


def events(log: EventLog, node: str, start: int, end: int) -> Iterator[Event]:
    """The events with offsets in [start, end), one by one: for tools, tests and replay.

    A gap comes as one `log.gap`, from the range that its first offset is in.
    """
    for data in log.fetch(log.blocks(node, start, end)):
        for event in decode_block(data, node):
            if start <= event.seq < end:
                yield event


def find_time(log: EventLog, node: str, time: int) -> int:
    """The offset of the first event at or after `time` (µs since 1970); the latest if none is."""
    bounds = log.bounds().get(node)
    if bounds is None:
        return 0
    for block in log.blocks(node, bounds.earliest, bounds.latest):
        if block.last_time >= time:
            if block.gap:
                return block.base
            for event in events(log, node, block.base, block.end):
                if event.timestamp >= time:
                    return event.seq
    return bounds.latest
