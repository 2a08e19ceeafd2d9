"""The readers of the data source `mqttd`: what Spark calls to plan and to read.

Exactly once, as far as a source can give it: an event has one (log, node, seq); a range read again
gives the same rows or fails; what is not there is an error, never fewer rows. With
``failOnDataLoss = false`` the query goes on, and a `log.gap` row stands for what is missing.

Filters are not pushed down: Spark 4.3 keeps what was pushed with the DataFrame, and one that is
used twice with different filters, as in a join with itself, got the rows of one of them for both.
Options choose blocks instead.

Nothing here needs Twisted or zope. The stream's reader is in `stream`, tasks are in `tasks`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import DataSourceReader, InputPartition

from mqttd.pipeline.log.reader import DataLoss
from mqttd.pipeline.spark.plain import plain
from mqttd.pipeline.spark.stream import StreamReader
from mqttd.pipeline.spark.tasks import Reader, Task, lost_task, plan

__all__ = ["BatchReader", "StreamReader", "Task", "plan"]


class BatchReader(Reader, DataSourceReader):
    """For read: everything there is, or [startingOffsets, endingOffsets)."""

    @plain
    def partitions(self) -> Sequence[InputPartition]:
        """The tasks; raises DataLoss if what was asked for by number is gone."""
        options = self.options
        _, found = self.bounds(everybody=True)
        starts = self.at("earliest" if options.starting is None else options.starting, found)
        ends = self.at(
            "latest" if options.ending is None else options.ending, found, "endingOffsets"
        )
        tasks: list[Task] = []
        for node, (earliest, _) in found.items():
            start, end = starts[node], ends[node]
            if end < start and isinstance(options.ending, dict) and node in options.ending:
                raise ValueError(
                    f"mqttd: endingOffsets end node {node} at {end}, before startingOffsets begin"
                    f" there, at {start}"
                )
            if start < min(end, earliest):
                missing = min(end, earliest)
                what = f"events {start} to {missing - 1} of node {node} were deleted by retention"
                if options.fail_on_data_loss:
                    raise DataLoss(
                        f"mqttd: {what}; begin at {earliest}, or set failOnDataLoss to false"
                    )
                if options.gaps:
                    why = "deleted by retention before they were read"
                    tasks.append(lost_task(self.log(), node, start, missing, why))
                start = missing
            if start < end:
                tasks += plan(self.log(), node, start, end, options)
        return tasks or [Task("", 0, 0)]
