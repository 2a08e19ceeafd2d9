"""The readers of the data source `mqttd`: what Spark calls to plan and to read.

    driver     latestOffset(start, limit) -> {"log": ID, "nodes": {"mqttd": 5000}}
               partitions(start, end) -> check the cover -> prune -> tasks of about equal size
    executor   read(task) -> verify each block -> Arrow record batches

Exactly once, as far as a source can give it: an event has one (log, node, seq); a range read again
gives the same rows or fails; what is not there is an error, never fewer rows. With
``failOnDataLoss = false`` the query goes on, and a `log.gap` row stands for what is missing.

Nothing here needs Twisted or zope.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from mqttd.pipeline.log.blocks import Block, lost_text, parse_header
from mqttd.pipeline.log.pull import open_log
from mqttd.pipeline.log.reader import (
    Bounds,
    DataLoss,
    EventLog,
    Missing,
    Run,
    find_time,
    holes,
    runs_of,
    salvage,
)
from mqttd.pipeline.log.schema import CODES, EVENTS
from mqttd.pipeline.spark.arrow import ARROW_TYPES, Batches, gap_row
from mqttd.pipeline.spark.options import Options, Position

__all__ = ["BatchReader", "PushingReader", "StreamReader", "Task", "plan"]

Offset = dict[str, Any]

_ADVICE: Final = (
    "Set the option failOnDataLoss to false to go on with what there is: a log.gap row then stands"
    " for what is missing"
)

#: Events that take as long as a task takes to start: about 50 ms.
WORTH_A_TASK: Final = 50_000


@dataclass
class Task(InputPartition):
    """What one Spark task reads: runs of blocks of one node, or one row for a gap."""

    node: str
    start: int
    end: int
    runs: list[Run] = field(default_factory=list)
    #: Why the events [start, end) are missing; empty for a task that reads.
    missing: str = ""

    def __post_init__(self) -> None:
        self.value = (self.node, self.start)


def plan(
    log: EventLog, node: str, start: int, end: int, options: Options, times: tuple[int, int]
) -> list[Task]:
    """The tasks that read [start, end) of a node.

    :param times: earliest and latest time wanted, µs.
    :raises DataLoss: the range is not whole, and `options` say that this is an error.
    """
    blocks = log.blocks(node, start, end, options.fail_on_data_loss)
    tasks = []
    if options.fail_on_data_loss:
        for block in blocks:
            if block.damaged:
                raise _damaged(node, max(block.base, start), block.end, "the log was damaged")
    elif options.gaps:
        tasks += [Task(node, a, b, [], "not in the log") for a, b in holes(blocks, start, end)]
    if options.codes is not None:
        mask = sum(1 << code for code in options.codes)
        blocks = [block for block in blocks if block.mask & mask]
    blocks = [b for b in blocks if b.last_time >= times[0] and b.first_time <= times[1]]
    rows = sum(block.rows for block in blocks if not block.gap)
    wanted = round(rows / options.partition_events)
    if wanted > options.cores:
        # All cores are busy to the end: three tasks on two take as long as four.
        wanted += -wanted % options.cores
    spread = min(options.cores, rows // WORTH_A_TASK)
    wanted = max(options.min_partitions, wanted, spread, 1)
    share = max(-(-rows // wanted), 1)
    chosen: list[Block] = []
    filled = 0
    for block in blocks:
        chosen.append(block)
        filled += 0 if block.gap else block.rows
        if filled >= share:
            tasks.append(Task(node, start, end, runs_of(chosen)))
            chosen, filled = [], 0
    if chosen:
        tasks.append(Task(node, start, end, runs_of(chosen)))
    return tasks


def _damaged(node: str, base: int, end: int, why: str) -> DataLoss:
    count = end - base
    return DataLoss(
        f"mqttd: events {base} to {end - 1} of node {node} are lost ({count} event"
        f"{'s' if count > 1 else ''}): {why}. {_ADVICE}"
    )


class _Reader:
    """What both readers have in common. It travels to the executors: no open log in it."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.names = [one.name for one in schema.fields]
        self.kinds = [_kind(one) for one in schema.fields]
        self.times = (-(1 << 63), (1 << 63) - 1)
        self._log: EventLog | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log": None}

    def log(self) -> EventLog:
        """The log, opened once in each process."""
        if self._log is None:
            options = self.options
            self._log = open_log(options.path, options.url, options.token, options.ca_file)
        return self._log

    def bounds(self) -> tuple[str, dict[str, Bounds]]:
        """The log's id, and what is there now."""
        log = self.log()
        try:
            return log.log_id, log.bounds()
        except DataLoss:
            # Made anew: the one that is there now, under its own id.
            log.close()
            self._log = None
            log = self.log()
            return log.log_id, log.bounds()

    def at(self, position: Position, found: dict[str, Bounds]) -> dict[str, int]:
        """Where `position` is on each node."""
        offsets = {}
        for node, (earliest, latest) in found.items():
            if isinstance(position, int):
                offsets[node] = find_time(self.log(), node, position)
            elif isinstance(position, dict):
                given = position.get(node, -2)
                offsets[node] = {-2: earliest, -1: latest}.get(given, given)
            else:
                offsets[node] = earliest if position == "earliest" else latest
        if isinstance(position, dict):
            for node, given in position.items():
                if node not in offsets:
                    raise ValueError(
                        f"mqttd: startingOffsets/endingOffsets name the node {node!r}; the log has"
                        f" {', '.join(found) or 'none yet'}"
                    )
                if given > found[node].latest:
                    raise ValueError(
                        f"mqttd: offset {given} of node {node} is behind the end of the log,"
                        f" {found[node].latest}"
                    )
        return offsets

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of a task; runs on an executor."""
        import pyarrow as pa

        assert isinstance(partition, Task)
        options = self.options
        schema = pa.schema(
            [
                pa.field(name, ARROW_TYPES[kind])
                for name, kind in zip(self.names, self.kinds, strict=True)
            ]
        )
        if partition.missing:
            reason = lost_text(partition.end - partition.start, partition.missing)
            now = int(time.time() * 1e6)
            yield gap_row(schema, partition.node, partition.start, now, reason)
            return
        batches = Batches(
            schema,
            partition.node,
            partition.start,
            partition.end,
            options.codes,
            options.filters,
            options.pattern,
            options.gaps,
        )
        log = self.log()
        yield from batches.read(self._pieces(log, partition.runs))

    def _pieces(self, log: EventLog, runs: Sequence[Run]) -> Iterator[memoryview | Missing]:
        for run in runs:
            for piece in salvage(log, run):
                if self.options.fail_on_data_loss:
                    if isinstance(piece, Missing):
                        raise _damaged(run.node, piece.base, piece.end, piece.why)
                    head = parse_header(piece)
                    if head.damaged:
                        raise _damaged(run.node, head.base, head.end, "the log was damaged")
                yield piece


def _kind(one: Any) -> str:
    """The type of a column, as `COLUMNS` has it."""
    from mqttd.pipeline.log.schema import COLUMNS

    if one.name not in COLUMNS:
        raise ValueError(
            f"mqttd: the schema has a column {one.name!r}; there are {', '.join(COLUMNS)}."
            " Give columns by the option columns, not by schema()"
        )
    return COLUMNS[one.name][0]


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """For readStream: offsets are ``{"log": ID, "nodes": {NODE: next offset}}``."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.ending is not None:
            raise ValueError(
                "mqttd: option endingOffsets is for batch queries (spark.read); a stream reads on,"
                " or with Trigger.AvailableNow to what is the end when it starts"
            )
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> Offset:
        """Where a query without a checkpoint begins."""
        log_id, found = self.bounds()
        return _offset(log_id, self.at(self.options.starting or "latest", found))

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxEventsPerTrigger."""
        if self.options.max_events:
            return ReadMaxRows(self.options.max_events)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset:
        """What there is, for the query's progress."""
        log_id, found = self.bounds()
        return _offset(log_id, {node: bounds.latest for node, bounds in found.items()})

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: this run ends with it."""
        self._target = {node: bounds.latest for node, bounds in self.bounds()[1].items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next micro-batch goes; raises DataLoss if its begin is gone."""
        log_id, found = self.bounds()
        begin = self._begin(start, log_id, found)
        ends = {node: offset for node, offset in begin.items() if node not in found}
        for node, bounds in found.items():
            latest = bounds.latest
            if self._target is not None:
                latest = min(latest, self._target.get(node, 0))
            ends[node] = max(latest, begin[node])
        if isinstance(limit, ReadMaxRows):
            there = {node: ends[node] for node in found}
            for node, end in _limited(begin, there, found, limit.max_rows).items():
                ends[node] = end if end == there[node] else self._behind_gap(node, end)
        return _offset(log_id, ends)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a micro-batch, none for an empty range."""
        log_id, found = self.bounds()
        if end["log"] != log_id:
            self._lost(
                f"the event log was made anew: the query's checkpoint is of log {end['log']},"
                f" here is log {log_id}"
            )
            known = start["nodes"] if start["log"] == end["log"] else {}
            gone = [(node, known.get(node, 0), stop) for node, stop in end["nodes"].items()]
            return [task for one in gone for task in self._gap(*one, "the log was made anew")]
        begin = self._begin(start, log_id, found)
        tasks: list[Task] = []
        for node, stop in end["nodes"].items():
            first = begin.get(node, 0)
            bounds = found.get(node, Bounds(stop, first))
            if bounds.latest < stop:
                at = max(first, bounds.latest)
                if at < stop:
                    self._lost(
                        f"events {at} to {stop - 1} of node {node} are not in the log"
                        f" ({stop - at} events)"
                    )
                    tasks += self._gap(node, at, stop, "not in the log")
                if node not in found:
                    continue
            earliest = min(bounds.earliest, stop)
            tasks += self._gap(node, first, earliest, "deleted by retention before they were read")
            first = max(first, earliest)
            stop = min(stop, bounds.latest)
            if first < stop:
                tasks += plan(self.log(), node, first, stop, self.options, self.times)
        return tasks

    def _behind_gap(self, node: str, end: int) -> int:
        """`end`, or if it is in a gap the end of that: one row stands for it."""
        for block in self.log().blocks(node, end - 1, end, whole=False):
            if block.gap:
                return max(block.end, end)
        return end

    def _gap(self, node: str, start: int, end: int, why: str) -> list[Task]:
        """The task of the row that stands for these events, if there are any and it is wanted."""
        return [Task(node, start, end, [], why)] if start < end and self.options.gaps else []

    def commit(self, end: Offset) -> None:
        """The micro-batch is done: register it, if the query has a group."""
        if self.options.group:
            try:
                self.log().commit(self.options.group, end["nodes"])
            except Exception as error:  # progress is a courtesy, the checkpoint has the truth
                print(f"mqttd: groupId {self.options.group}: {error}", file=sys.stderr)

    def _begin(self, start: Offset, log_id: str, found: dict[str, Bounds]) -> dict[str, int]:
        """Where each node's next event is; a new node begins at its first one."""
        if start["log"] != log_id:
            self._lost(
                f"the event log was made anew: the query's checkpoint is of log {start['log']},"
                f" here is log {log_id}"
            )
            return {node: bounds.earliest for node, bounds in found.items()}
        begin: dict[str, int] = dict(start["nodes"])
        for node in begin.keys() - found.keys():
            self._lost(f"the log of node {node} is gone, the query has read {begin[node]} of it")
        for node, (earliest, latest) in found.items():
            first = begin.setdefault(node, earliest)
            if first < earliest:
                self._lost(
                    f"events {first} to {earliest - 1} of node {node} were deleted by retention"
                    f" before this query read them ({earliest - first} events)"
                )
            if first > latest:
                self._lost(
                    f"the log of node {node} ends at event {latest}, the query has read up to"
                    f" {first}"
                )
        return begin

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"mqttd: {what}. Keep more (retention in etc/plugins/spark.conf), or set the option"
                " failOnDataLoss to false to go on with what there is"
            )
        print(f"mqttd: {what}", file=sys.stderr)


def _offset(log_id: str, nodes: dict[str, int]) -> Offset:
    """Spark compares offsets as text: the order of the nodes is always the same."""
    return {"log": log_id, "nodes": {node: nodes[node] for node in sorted(nodes)}}


def _limited(
    begin: dict[str, int], ends: dict[str, int], found: dict[str, Bounds], most: int
) -> dict[str, int]:
    """`ends` so that at most `most` events are read, each node its share, one at least."""
    firsts = {node: max(begin[node], found[node].earliest) for node in ends}
    there = {node: max(ends[node] - firsts[node], 0) for node in ends}
    total = sum(there.values())
    if total <= most:
        return ends
    limited = {}
    left = most
    for node, count in there.items():
        share = min(count, left, max(1, most * count // total) if count else 0)
        left -= share
        limited[node] = max(firsts[node] + share, begin[node]) if share else begin[node]
    return limited


class BatchReader(_Reader, DataSourceReader):
    """For read: everything there is, or [startingOffsets, endingOffsets)."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        #: (node, first, last) that filters have left.
        self._nodes: frozenset[str] | None = None
        self._seq = (0, 1 << 63)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks; raises DataLoss if what was asked for by number is gone."""
        options = self.options
        _, found = self.bounds()
        starts = self.at(options.starting or "earliest", found)
        ends = self.at(options.ending or "latest", found)
        tasks: list[Task] = []
        for node, (earliest, _) in found.items():
            if self._nodes is not None and node not in self._nodes:
                continue
            start, end = max(starts[node], self._seq[0]), min(ends[node], self._seq[1])
            if starts[node] < earliest and start < min(end, earliest):
                missing = min(end, earliest)
                what = f"events {start} to {missing - 1} of node {node} were deleted by retention"
                if options.fail_on_data_loss:
                    raise DataLoss(
                        f"mqttd: {what}; begin at {earliest}, or set failOnDataLoss to false"
                    )
                if options.gaps:
                    why = "deleted by retention before they were read"
                    tasks.append(Task(node, start, missing, [], why))
                start = missing
            if start < end:
                tasks += plan(self.log(), node, start, end, options, self.times)
        return tasks or [Task("", 0, 0)]


class PushingReader(BatchReader):
    """A `BatchReader` that applies filters while it plans: fewer blocks, fewer rows."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Take what blocks can be chosen by; every filter goes back to Spark as well.

        Spark does not tell two scans apart by what was pushed into them: without their filters
        above them it would use one's rows for the other, as in a join of two kinds of events.
        """
        for one in filters:
            self._take(one)
            yield one

    def _take(self, one: Any) -> None:
        column = getattr(one, "attribute", None)
        value = getattr(one, "value", None)
        if column == ("event",) and isinstance(one, EqualTo | In):
            names: Any = value if isinstance(one, In) else (value,)
            codes = frozenset(CODES[name] for name in names if name in CODES)
            known = self.options.codes
            if known is None:
                known = frozenset(range(len(EVENTS)))
            self.options = _with_codes(self.options, known & codes)
        elif column == ("node",) and isinstance(one, EqualTo | In):
            given: Any = value if isinstance(one, In) else (value,)
            nodes: frozenset[str] = frozenset(given)
            self._nodes = nodes if self._nodes is None else self._nodes & nodes
        elif column == ("timestamp",) and value is not None:
            at = round(value.timestamp() * 1_000_000)
            first, last = self.times
            if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo):
                first = max(first, at)
            if isinstance(one, LessThan | LessThanOrEqual | EqualTo):
                last = min(last, at)
            self.times = (first, last)
        elif column == ("seq",) and value is not None:
            first, last = self._seq
            if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo):
                first = max(first, value)
            if isinstance(one, LessThan | LessThanOrEqual | EqualTo):
                last = min(last, value + 1)
            self._seq = (first, last)


def _with_codes(options: Options, codes: frozenset[int]) -> Options:
    from dataclasses import replace

    return replace(options, codes=codes)
