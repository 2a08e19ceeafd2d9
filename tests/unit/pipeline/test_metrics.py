"""A query's progress: what of it is told in Spark's own words, and when there is little to tell."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.listener import StreamingQueryProgress

from mqttd.pipeline.log.writer import Writer
from mqttd.pipeline.spark import progress
from mqttd.pipeline.spark.source import Task
from tests.unit.pipeline.logs import NODE, fill
from tests.unit.pipeline.test_source import stream

END = {"log": "a", "nodes": {"mqttd": 5}}


def told(**source: Any) -> Any:
    last = SimpleNamespace(json=json.dumps({"sources": [{"description": "Python@1", **source}]}))
    found = progress(SimpleNamespace(lastProgress=last))
    assert found is not None
    return found["sources"][0]


def test_description_and_metrics_stand_where_spark_has_them() -> None:
    latest = {**END, "source": "mqttd[/log]", "offsetsBehindLatest": 0, "bytes": 70}
    found = told(latestOffset=latest, endOffset=END, numInputRows=5)
    assert found["description"] == "mqttd[/log]" and found["latestOffset"] == END
    assert found["metrics"] == {"offsetsBehindLatest": "0", "bytes": "70", "rows": "5"}


def test_spark_connect_gives_offsets_as_text() -> None:
    """A progress as Spark 4.3 gave it, where metrics were {} and the description that of Java."""
    source = {
        "description": "org.apache.spark.sql.execution.PythonMicroBatchStream@2d181343",
        "startOffset": None,
        "endOffset": '{"log": "3bf8", "nodes": {"mqttd": 200}}',
        "latestOffset": '{"log": "3bf8", "nodes": {"mqttd": 200}, "source": "mqttd[/tmp/log]",'
        ' "offsetsBehindLatest": 0, "bytes": 11832}',
        "numInputRows": 200, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 11.1,
        "metrics": {},
    }  # fmt: skip
    given = {
        "id": "a4fd08c1-877e-4d82-ade2-8baa87d0f9eb",
        "runId": "758dfa90-60c1-4ce7-b00a-c0c01a5a7286",
        "name": None, "timestamp": "2026-11-29T13:34:57.230Z", "batchId": 0, "batchDuration": 17976,
        "durationMs": {}, "eventTime": {}, "stateOperators": [], "sources": [source],
        "sink": {"description": "NoopTable", "numOutputRows": 200, "metrics": {}},
        "observedMetrics": {},
    }  # fmt: skip
    for last in (StreamingQueryProgress.fromJson(given), SimpleNamespace(json=json.dumps(given))):
        found = progress(SimpleNamespace(lastProgress=last))
        assert found is not None
        assert found["sources"][0] == {
            **source, "description": "mqttd[/tmp/log]",
            "endOffset": {"log": "3bf8", "nodes": {"mqttd": 200}},
            "latestOffset": {"log": "3bf8", "nodes": {"mqttd": 200}},
            "metrics": {"offsetsBehindLatest": "0", "bytes": "11832", "rows": "200"},
        }  # fmt: skip
    assert told(latestOffset="a text", endOffset="{") == {
        "description": "Python@1", "latestOffset": "a text", "endOffset": "{",
    }  # fmt: skip


def test_a_batch_that_is_run_again_tells_its_rows() -> None:
    found = told(latestOffset=None, endOffset=END, numInputRows=5)
    assert (found["description"], found["metrics"]) == ("mqttd", {"rows": "5"})


def test_other_sources_and_no_progress_stay_as_they_are() -> None:
    assert told(latestOffset=7, endOffset={"t": {"0": 1}}) == {
        "description": "Python@1", "latestOffset": 7, "endOffset": {"t": {"0": 1}},
    }  # fmt: skip
    assert progress(SimpleNamespace(lastProgress=None)) is None


def test_bytes_are_those_of_the_batch_that_comes(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), NODE)
    fill(writer, 3)
    reader = stream(tmp_path, startingOffsets="earliest", events="message.*")
    at, batches = reader.initialOffset(), []
    for more in (2, 0, 1):
        end = reader.latestOffset(at, ReadAllAvailable())
        told = reader.reportLatestOffset()["bytes"]
        tasks = reader.partitions(at, end)
        assert told == sum(run.size for one in tasks for run in cast(Task, one).runs)
        batches.append(told)
        at = end
        fill(writer, more)
    assert batches[0] > batches[1] > batches[2] == 0
    writer.close()
