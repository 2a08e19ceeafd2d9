"""What a reader finds missing has the time of what stands beside it, at each reading the same."""

from __future__ import annotations

import argparse
import io
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from mqttd.pipeline.log.files import segments_in
from mqttd.pipeline.log.reader import EventLog, LogReader, events, time_beside
from mqttd.pipeline.log.tools import run
from mqttd.pipeline.spark.options import read_options
from mqttd.pipeline.spark.source import BatchReader, StreamReader
from tests.unit.pipeline.logs import NODE, START, delete_first, written


def at(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def harm(path: Path, number: int, where: str = "body") -> None:
    """Flip a bit of the block with this number."""
    (name,) = segments_in(str(path / NODE))
    file = path / NODE / name
    found = LogReader(str(path))
    block = found.blocks(NODE, *found.bounds()[NODE])[number]
    data = bytearray(file.read_bytes())
    data[block.position + (block.size - 3 if where == "body" else 40)] ^= 1
    file.write_bytes(data)


def gaps(path: Path, **options: str) -> list[tuple[int, datetime]]:
    """The rows of gaps that a batch gives: offset and time."""
    found = read_options({"path": str(path), "failOnDataLoss": "false", **options})
    schema = StructType([StructField(name, StringType()) for name in found.columns])
    reader = BatchReader(found, schema)
    rows: list[dict[str, Any]] = []
    for task in reader.partitions():
        for one in reader.read(task):
            rows += one.to_pylist()
    return [(one["seq"], one["timestamp"]) for one in rows if one["event"] == "log.gap"]


@pytest.mark.parametrize("where", ["body", "header"])
@pytest.mark.parametrize("tasks", ["1", "5"])
def test_a_gap_that_a_reader_finds_has_the_time_of_the_event_before(
    tmp_path: Path, where: str, tasks: str
) -> None:
    harm(written(tmp_path), 4, where)
    found = gaps(tmp_path, minPartitions=tasks)
    assert found == [(40, at(START + 39))]
    assert gaps(tmp_path, minPartitions=tasks) == found
    (gap,) = (
        one for one in events(LogReader(str(tmp_path)), NODE, 0, 100, whole=False) if one.lost
    )
    assert gap.timestamp == START + 39


def test_where_nothing_is_before_it_has_the_time_of_the_first_behind(tmp_path: Path) -> None:
    harm(written(tmp_path), 0)
    assert gaps(tmp_path) == [(0, at(START + 10))]


def test_what_retention_has_deleted_is_before_what_is_there(tmp_path: Path) -> None:
    written(tmp_path, segment_bytes=1)
    delete_first(tmp_path / NODE, 3)
    earliest = LogReader(str(tmp_path)).bounds()[NODE].earliest
    assert earliest > 0
    found = gaps(tmp_path, startingOffsets=json.dumps({NODE: 0}))
    assert found == [(0, at(START + earliest))]


def test_a_log_made_anew_puts_its_first_event_s_time_for_what_the_other_had(
    tmp_path: Path,
) -> None:
    written(tmp_path / "a")
    options = read_options({"path": str(tmp_path / "a"), "failOnDataLoss": "false"})
    schema = StructType([StructField(name, StringType()) for name in options.columns])
    before = StreamReader(options, schema).initialOffset()
    shutil.rmtree(tmp_path / "a")
    written(tmp_path / "a", 3)
    start = {"log": before["log"], "nodes": {NODE: 20}}
    (task,) = StreamReader(options, schema).partitions(start, before)
    assert (task.start, task.end, task.time) == (20, 100, START)


def test_a_block_is_looked_for_on_and_on_and_nowhere_is_no_time(tmp_path: Path) -> None:
    log: EventLog = LogReader(str(written(tmp_path)))
    assert time_beside(log, NODE, 100, 5_000) == START + 99
    assert time_beside(log, NODE, 1_000_000, 1_000_001) == START + 99
    assert time_beside(log, NODE, 0, 0) == START
    assert time_beside(log, "another", 0, 10) == 0


def test_dump_gives_the_time_and_null_where_there_is_none(tmp_path: Path) -> None:
    harm(written(tmp_path, blocks=2), 1)
    out = io.StringIO()
    options = argparse.Namespace(
        events_command="dump", from_=None, to_=None, node=None, event="log.gap", filter=None
    )
    assert run(options, str(tmp_path), out) == 0
    assert json.loads(out.getvalue())["timestamp"] == "2023-11-14T22:13:20.000009Z"
    harm(written(tmp_path / "b", blocks=1), 0)
    out = io.StringIO()
    assert run(options, str(tmp_path / "b"), out) == 0
    assert json.loads(out.getvalue())["timestamp"] is None
