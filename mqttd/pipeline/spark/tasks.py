"""What batch and stream readers share: tasks, how a range becomes tasks, how a task is read.

driver     plan(range) -> check the cover -> prune -> tasks of about equal size
executor   read(task) -> verify each block -> Arrow record batches
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from mqttd.pipeline.log.blocks import FLAG_DAMAGE, Block, is_gap, lost_text, parse_header
from mqttd.pipeline.log.cluster import ClusterLog, Exports
from mqttd.pipeline.log.many import ManyLogs, parts
from mqttd.pipeline.log.pull import Elsewhere, open_log
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
    time_beside,
)
from mqttd.pipeline.log.schema import COLUMNS
from mqttd.pipeline.spark.arrow import ARROW_TYPES, Batches, gap_row
from mqttd.pipeline.spark.options import Options, Position
from mqttd.pipeline.spark.plain import plain_rows

__all__ = ["Reader", "Task", "lost_task", "plan", "wanted"]

#: What to do where a format is not known to `blocks.parse_header`.
_NEWER: Final = "Give Spark the mqttd that wrote this. "
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
    #: The time of the row that stands for them.
    time: int = 0
    #: Where this node is read, of a cluster: an executor need not ask etcd, unless it is not there.
    url: str = ""
    #: Which node of the cluster that is; `node` may be a worker of it.
    exporter: str = ""

    def __post_init__(self) -> None:
        self.value = (self.node, self.start)


def plan(log: EventLog, node: str, start: int, end: int, options: Options) -> list[Task]:
    """The tasks that read [start, end) of a node.

    :raises DataLoss: the range is not whole, and `options` say that this is an error.
    """
    try:
        blocks = log.blocks(node, start, end, options.fail_on_data_loss)
    except DataLoss as error:
        if not options.fail_on_data_loss:
            raise
        raise DataLoss(f"mqttd: {error}. {_advice(str(error))}") from None
    tasks = []
    if options.fail_on_data_loss:
        for block in blocks:
            if block.damaged:
                raise _damaged(node, max(block.base, start), block.end, "the log was damaged")
    elif options.gaps:
        tasks += [
            lost_task(log, node, a, b, "not in the log") for a, b in holes(blocks, start, end)
        ]
    blocks = wanted(blocks, options)
    rows = sum(block.rows for block in blocks if not block.gap)
    count = round(rows / options.partition_events)
    if count > options.cores:
        # All cores are busy to the end: three tasks on two take as long as four.
        count += -count % options.cores
    spread = min(options.cores, rows // WORTH_A_TASK)
    count = max(options.min_partitions, count, spread, 1)
    exporter, url = log.where(node) if isinstance(log, ClusterLog) else ("", "")
    for chosen in _shared(blocks, count):
        tasks.append(Task(node, start, end, runs_of(chosen), url=url, exporter=exporter))
    return tasks


def _shared(blocks: Sequence[Block], count: int) -> Iterator[Sequence[Block]]:
    """`blocks` in so many parts of about as many events, or one by one if they are fewer."""
    left = min(count, len(blocks))
    rows = sum(block.rows for block in blocks if not block.gap)
    first = filled = 0
    for behind, block in enumerate(blocks, 1):
        filled += 0 if block.gap else block.rows
        full = filled * left >= rows or len(blocks) - behind < left
        if behind == len(blocks) or (full and left > 1):
            yield blocks[first:behind]
            first, rows, filled, left = behind, rows - filled, 0, left - 1


def lost_task(log: EventLog, node: str, start: int, end: int, why: str, anew: bool = False) -> Task:
    """The task of the row that stands for events [start, end) that are missing.

    `anew`: their log is gone, and another one begins.
    """
    time = time_beside(log, node, 0, 0) if anew else time_beside(log, node, start, end)
    return Task(node, start, end, [], why, time)


def wanted(blocks: list[Block], options: Options) -> list[Block]:
    """The blocks in which there may be events that `options` name.

    Any block may be damaged: who asks for gaps reads all of them, since nothing else tells.
    """
    if options.codes is None or options.gaps:
        return blocks
    mask = sum(1 << code for code in options.codes)
    return [block for block in blocks if block.mask & mask]


def _damaged(node: str, base: int, end: int, why: str) -> DataLoss:
    count = end - base
    return DataLoss(
        f"mqttd: events {base} to {end - 1} of node {node} are lost ({count} event"
        f"{'s' if count > 1 else ''}): {why}. {_advice(why)}"
    )


def _advice(why: str) -> str:
    return f"{_NEWER if 'this program reads' in why else ''}{_ADVICE}"


class Reader:
    """What both readers have in common. It travels to the executors: no open log in it."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.names = [one.name for one in schema.fields]
        self.nullable = [one.nullable for one in schema.fields]
        self.kinds = [_kind(one) for one in schema.fields]
        self._log: EventLog | None = None
        #: The driver has found it: an endpoint that is not there is one that starts.
        self._known = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log": None}

    def log(self) -> EventLog:
        """The log, opened once in each process."""
        if self._log is None:
            options = self.options
            if options.cluster:
                self._log = self._open_cluster()
                return self._log
            logs = [self._open(path, None) for path in parts(options.path or "")]
            logs += [self._open(None, url) for url in parts(options.url or "")]
            self._log = logs[0] if len(logs) == 1 else ManyLogs(logs, options.outage)
            self._known = True
        return self._log

    def _open(
        self,
        path: str | None,
        url: str | None,
        away: float | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> EventLog:
        """One log; one that has been `away` for so many seconds is not waited for."""
        options = self.options
        now = away is not None
        patience = 0.0 if now else options.outage
        log = open_log(
            path, url, options.token, options.ca_file, patience, now or self._known, elsewhere,
            options.outage, away,
        )  # fmt: skip
        if options.archive:
            from mqttd.pipeline.log.archive import ArchivedLog

            many = options.cluster or ";" in (options.path or options.url or "")
            log = ArchivedLog(log, options.archive, not many, self._known, options.outage)
        return log

    def _exports(self) -> Exports:
        options = self.options
        return Exports(
            list(options.etcd), options.cluster or "", options.etcd_ca_file,
            options.etcd_certificate, options.etcd_private_key, options.etcd_user,
            options.etcd_password,
        )  # fmt: skip

    def _open_cluster(self) -> ClusterLog:
        return ClusterLog(
            self._exports(), lambda url, away: self._open(None, url, away), self.options.outage
        )

    def _open_node(self, task: Task) -> EventLog:
        """The log of a node of a cluster, which may have moved since the task was planned."""

        def url() -> str | None:
            try:
                return self._exports().url(task.exporter)
            except ValueError:  # certificates for etcd may be where the driver is alone
                return None

        return self._open(None, task.url, elsewhere=Elsewhere(task.exporter, url))

    def bounds(self, everybody: bool = False) -> tuple[str, dict[str, Bounds]]:
        """The log's id, and what is there now; of a cluster of `everybody`, who is waited for."""
        try:
            return self._bounds(everybody)
        except DataLoss:
            # Made anew: the one that is there now, under its own id.
            self.log().close()
            self._log = None
            return self._bounds(everybody)

    def _bounds(self, everybody: bool) -> tuple[str, dict[str, Bounds]]:
        log = self.log()
        if everybody and isinstance(log, ClusterLog):
            log.meet()
        found = log.bounds()
        return log.log_id, found

    def at(
        self, position: Position, found: dict[str, Bounds], option: str = "startingOffsets"
    ) -> dict[str, int]:
        """Where `position` is on each node, as `option` says.

        Nodes that JSON leaves out begin at their earliest event, and end at their latest.
        """
        unnamed = -1 if option == "endingOffsets" else -2
        offsets = {}
        for node, (earliest, latest) in found.items():
            if isinstance(position, int):
                offsets[node] = find_time(self.log(), node, position)
            elif isinstance(position, dict):
                given = position.get(node, unnamed)
                offsets[node] = {-2: earliest, -1: latest}.get(given, given)
            else:
                offsets[node] = earliest if position == "earliest" else latest
        if isinstance(position, dict):
            for node, given in position.items():
                if node not in offsets:
                    raise ValueError(
                        f"mqttd: option {option} names the node {node!r}; the log has"
                        f" {', '.join(found) or 'none yet'}"
                    )
                if given > found[node].latest:
                    raise ValueError(
                        f"mqttd: option {option}: offset {given} of node {node} is behind the end"
                        f" of the log, {found[node].latest}; -1 is the end"
                    )
        return offsets

    @plain_rows
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of a task; runs on an executor."""
        import pyarrow as pa

        assert isinstance(partition, Task)
        self._known = True
        options = self.options
        schema = pa.schema(
            [
                pa.field(name, ARROW_TYPES[kind], nullable)
                for name, kind, nullable in zip(self.names, self.kinds, self.nullable, strict=True)
            ]
        )
        if partition.missing:
            reason = lost_text(partition.end - partition.start, partition.missing)
            yield gap_row(schema, partition.node, partition.start, partition.time, reason)
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
        log = self._open_node(partition) if partition.url else self.log()
        yield from batches.read(self._pieces(log, partition.runs))

    def _pieces(self, log: EventLog, runs: Sequence[Run]) -> Iterator[memoryview | Missing]:
        for run in runs:
            for piece in salvage(log, run):
                if self.options.fail_on_data_loss:
                    if isinstance(piece, Missing):
                        raise _damaged(run.node, piece.base, piece.end, piece.why)
                    if is_gap(piece, FLAG_DAMAGE):
                        head = parse_header(piece)
                        raise _damaged(run.node, head.base, head.end, "the log was damaged")
                yield piece


def _kind(one: Any) -> str:
    """The type of a column, as `COLUMNS` has it."""
    if one.name not in COLUMNS:
        raise ValueError(
            f"mqttd: the schema has a column {one.name!r}; there are {', '.join(COLUMNS)}."
            " Give columns by the option columns, not by schema(); a table that has one more by"
            " ALTER TABLE is to be dropped and created again, which leaves the log as it is"
        )
    return COLUMNS[one.name][0]
