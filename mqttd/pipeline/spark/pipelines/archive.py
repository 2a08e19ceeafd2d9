"""Everything to Parquet, Delta or Iceberg, by date and event; small files become large ones.

    micro-batch --> out/_new/BATCH --plan--> out/date=2026-01-31/event=message.publish/*.parquet
    compaction  --> out/_new/...   --plan--> fewer files in place of many

A batch and a compaction write beside the table first. Then a plan (what is moved, what deleted) is
written in one piece: from that moment it will be done, by the next run if not by this one. A batch
that Spark runs again after that is passed over. So the table is a plain Hive layout that any tool
reads, and holds each event once.

Promise: exactly once, whenever driver or executors are killed. A reader that lists files while a
plan is carried out may see a part of it. Formats without plans and renames are in `lake`.
"""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from mqttd.pipeline.spark.pipelines.command import main, source
from mqttd.pipeline.spark.pipelines.command import run as run_stream
from mqttd.pipeline.spark.pipelines.lake import FORMATS, MOST, lake_of

__all__ = ["Table", "add_arguments", "frame", "run"]

PLAN: Final = "_plan.json"
LAST: Final = "_last.json"
NEW: Final = "_new"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Arguments of this pipeline."""
    command.add_argument("--out", required=True, metavar="PLACE", help="the table")
    command.add_argument(
        "--format",
        choices=["parquet", *FORMATS],
        default="parquet",
        help="parquet (default) is written by Spark, where files can be renamed; files is Parquet"
        " wherever pyarrow reaches (s3://...); delta and iceberg (--out CATALOG/NAMESPACE.TABLE)"
        " are tables of these kinds",
    )
    command.add_argument(
        "--events", default="*", metavar="GLOBS", help="names or globs, comma-separated"
    )
    command.add_argument(
        "--compact",
        type=int,
        metavar="FILES",
        default=16,
        help="at the end, rewrite partitions of more than so many files (default 16; 0: never)",
    )


def run(spark: Any, options: argparse.Namespace) -> None:
    """Archive, then compact."""
    if options.format != "parquet":
        _run_lake(spark, options)
        return
    table = Table(spark, options.out)
    events = source(spark, options, options.events, includeHeaders="true")
    run_stream(frame(events), options, lambda to: to.foreachBatch(table.add), options.out)
    if options.compact:
        table.compact(options.compact)


def _run_lake(spark: Any, options: argparse.Namespace) -> None:
    if options.checkpoint is None and ("://" in options.out or options.format == "iceberg"):
        raise ValueError("--checkpoint DIRECTORY is needed: it remembers what was read")
    options.max_events = options.max_events or MOST
    lake = lake_of(options.format, options.out)

    def add(batch: Any, number: int) -> None:
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        rows = batch.toArrow()
        if rows.num_rows:
            lake.add(rows, query, number)

    events = source(spark, options, options.events, includeHeaders="true")
    run_stream(frame(events), options, lambda to: to.foreachBatch(add), options.out)
    if options.compact:
        lake.compact(options.compact)


def frame(events: Any) -> Any:
    """Events with the column they are partitioned by beside `event`."""
    from pyspark.sql import functions as F

    return events.withColumn("date", F.to_date("timestamp"))


class Table:
    """A table of Parquet files below `out`, in any file system that Spark knows."""

    def __init__(self, spark: Any, out: str, by: tuple[str, ...] = ("date", "event")) -> None:
        self.out = out.rstrip("/")
        self.by = by
        self._spark = spark
        jvm = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        configuration = spark._jsc.hadoopConfiguration()
        root = self._path(self.out)
        self._files = root.getFileSystem(configuration)
        self._jvm = jvm
        self._files.mkdirs(root)

    def read(self) -> Any:
        """The table as a DataFrame."""
        return self._spark.read.option("basePath", self.out).parquet(self.out)

    def add(self, batch: Any, number: int) -> None:
        """A micro-batch of a stream; one that is in already is passed over."""
        query = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        self.go_on()
        last = self._json(LAST) or {}
        if last.get("query") == query and last.get("batch", -1) >= number:
            return
        new = f"{NEW}/{number}"
        self._delete(new)
        batch.write.partitionBy(*self.by).parquet(f"{self.out}/{new}")
        moves = []
        for name in self._parquet(new):
            folder, _, file = name[len(new) + 1 :].rpartition("/")
            moves.append([name, f"{folder}/{query[:8]}-{number:08d}-{file}"])
        last = {"query": query, "batch": number}
        self._carry_out({"moves": moves, "deletes": [], "new": new, "last": last})

    def compact(self, most: int, size: int = 128 << 20) -> int:
        """Rewrite partitions of more than `most` files into files of about `size` bytes.

        :return: how many were.
        """
        self.go_on()
        folders: dict[str, list[tuple[str, int]]] = {}
        for name in self._parquet(""):
            length = int(self._files.getFileStatus(self._at(name)).getLen())
            if length < size // 2:  # larger ones are good as they are
                folders.setdefault(name.rpartition("/")[0], []).append((name, length))
        done = 0
        for folder, found in folders.items():
            if len(found) <= most:
                continue
            files = [name for name, _ in found]
            total = sum(length for _, length in found)
            new = f"{NEW}/compact"
            self._delete(new)
            rows = self._spark.read.option("mergeSchema", "true").parquet(
                *[f"{self.out}/{one}" for one in files]
            )
            order = [one for one in ("node", "seq") if one in rows.columns]
            merged = rows.coalesce(max(1, -(-total // size)))
            if order:
                merged = merged.sortWithinPartitions(*order)
            merged.write.parquet(f"{self.out}/{new}")
            moves = [
                [name, f"{folder}/compact-{name.rpartition('/')[2]}"] for name in self._parquet(new)
            ]
            self._carry_out({"moves": moves, "deletes": files, "new": new, "last": None})
            done += 1
        return done

    def go_on(self) -> None:
        """Carry out the plan that a run before this one could not."""
        plan = self._json(PLAN)
        if plan is not None:
            self._finish(plan)

    def _carry_out(self, plan: dict[str, Any]) -> None:
        self._write(PLAN, plan)
        self._finish(plan)

    def _finish(self, plan: dict[str, Any]) -> None:
        for name in plan["deletes"]:
            self._delete(name)
        for old, new in plan["moves"]:
            if self._files.exists(self._at(old)):
                self._files.mkdirs(self._at(new).getParent())
                if not self._files.rename(self._at(old), self._at(new)):
                    raise OSError(f"{self.out}/{old} cannot be moved to {new}")
            elif not self._files.exists(self._at(new)):
                raise OSError(f"{self.out}/{old} and {new} are both gone: {PLAN} names them")
        if plan["last"] is not None:
            self._write(LAST, plan["last"])
        self._delete(PLAN)
        self._delete(plan["new"])

    # -- files

    def _at(self, name: str) -> Any:
        return self._path(f"{self.out}/{name}" if name else self.out)

    def _parquet(self, folder: str) -> list[str]:
        """The Parquet files below a folder, by their names below the table."""
        found = []
        at = self._at(folder)
        if not self._files.exists(at):
            return []
        for status in self._files.listStatus(at):
            file = status.getPath().getName()
            name = f"{folder}/{file}" if folder else file
            if file.startswith(("_", ".")):
                continue
            if status.isDirectory():
                found += self._parquet(name)
            elif file.endswith(".parquet"):
                found.append(name)
        return sorted(found)

    def _delete(self, name: str) -> None:
        self._files.delete(self._at(name), True)

    def _json(self, name: str) -> dict[str, Any] | None:
        at = self._at(name)
        if not self._files.exists(at):
            return None
        stream = self._files.open(at)
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        found: dict[str, Any] = json.loads(text)
        return found

    def _write(self, name: str, value: dict[str, Any]) -> None:
        """Replace a file in one piece, synced."""
        beside = self._at(f"{name}.new")
        stream = self._files.create(beside, True)
        try:
            stream.write(bytearray(json.dumps(value).encode()))
            stream.hsync()
        finally:
            stream.close()
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            beside.toUri(), self._spark._jsc.hadoopConfiguration()
        )
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        overwrite = self._spark.sparkContext._gateway.new_array(rename, 1)
        overwrite[0] = rename.OVERWRITE
        qualified = [self._files.makeQualified(one) for one in (beside, self._at(name))]
        context.rename(*qualified, overwrite)


if __name__ == "__main__":
    raise SystemExit(main(name="archive"))
