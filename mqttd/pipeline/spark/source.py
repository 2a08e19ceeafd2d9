"""The readers of the data source `mqttd`: what Spark calls to plan and to read.

Exactly once, as far as a source can give it: an event has one (log, node, seq); a range read again
gives the same rows or fails; what is not there is an error, never fewer rows. With
``failOnDataLoss = false`` the query goes on, and a `log.gap` row stands for what is missing.

Nothing here needs Twisted or zope. The stream's reader is in `stream`, tasks are in `tasks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from mqttd.pipeline.log.reader import DataLoss
from mqttd.pipeline.log.schema import CODES, EVENTS
from mqttd.pipeline.spark.options import Options
from mqttd.pipeline.spark.stream import StreamReader
from mqttd.pipeline.spark.tasks import Reader, Task, plan

__all__ = ["BatchReader", "PushingReader", "StreamReader", "Task", "plan"]


class BatchReader(Reader, DataSourceReader):
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
