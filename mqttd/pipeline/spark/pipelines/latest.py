"""The last value of each device and topic, as a table that is brought up to date.

    version=7 + micro-batch --> version=8      _current.json: {"batch": 8, "version": "version=8"}

Each micro-batch writes the table anew, beside the one before, and then says in one piece which
one counts: a reader sees one or the other, a batch that Spark runs again changes nothing. For
tables of up to some millions of rows, and triggers of seconds or more.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from mqttd.pipeline.spark.pipelines.archive import Table
from mqttd.pipeline.spark.pipelines.command import main, source
from mqttd.pipeline.spark.pipelines.command import run as run_stream

__all__ = ["Latest", "add_arguments", "frame", "run"]

CURRENT: Final = "_current.json"
#: Versions that stay for readers which have begun with them.
KEPT: Final = 2


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Arguments of this pipeline."""
    command.add_argument("--out", required=True, metavar="DIRECTORY", help="the table")
    command.add_argument(
        "--key", default="client_id,topic", metavar="COLUMNS", help="what there is one row of"
    )


def run(spark: Any, options: argparse.Namespace) -> None:
    """Keep the table up to date."""
    columns = "event,node,seq,timestamp,client_id,username,topic,qos,payload"
    events = source(spark, options, "message.publish", columns=columns)
    table = Latest(spark, options.out, tuple(options.key.split(",")))
    run_stream(events, options, lambda to: to.foreachBatch(table.add), options.out)


def frame(events: Any, key: tuple[str, ...] = ("client_id", "topic")) -> Any:
    """The last event for each key; the later of two at the same time is that with the higher seq.

    Raises ValueError for a column that events do not have.
    """
    from pyspark.sql import functions as F

    for one in key:
        if one not in events.columns:
            raise ValueError(f"key {one!r}: expected some of {', '.join(events.columns)}")
    rest = [one for one in events.columns if one not in key]
    return (
        events.groupBy(*key)
        .agg(F.max_by(F.struct(*rest), F.struct("timestamp", "seq")).alias("last"))
        .select(*key, "last.*")
    )


class Latest(Table):
    """The table at `out`; `read` gives its rows."""

    def __init__(self, spark: Any, out: str, key: tuple[str, ...] = ("client_id", "topic")) -> None:
        super().__init__(spark, out)
        self.key = key

    def read(self) -> Any:
        """The rows as they are now; raises FileNotFoundError before the first."""
        current = self._json(CURRENT)
        if current is None:
            raise FileNotFoundError(f"{self.out}: nothing was written yet")
        return self._spark.read.parquet(f"{self.out}/{current['version']}")

    def add(self, batch: Any, number: int) -> None:
        """Bring the table up to date with a micro-batch."""
        query = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        current = self._json(CURRENT)
        rows = frame(batch, self.key)
        count = 0
        if current is not None:
            if current["query"] == query and current["batch"] >= number:
                return
            rows = frame(self.read().unionByName(rows), self.key)
            count = current["count"] + 1
        version = f"version={count}"
        rows.write.mode("overwrite").parquet(f"{self.out}/{version}")
        self._write(CURRENT, {"query": query, "batch": number, "version": version, "count": count})
        self._delete(f"version={count - KEPT - 1}")


if __name__ == "__main__":
    raise SystemExit(main(name="latest"))
