"""An error that is meant for who runs the query comes without the way that it has come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

from mqttd.pipeline.spark import register
from mqttd.pipeline.spark.data_source import MqttdDataSource
from mqttd.pipeline.spark.source import BatchReader
from tests.unit.pipeline.logs import delete_first, written
from tests.unit.pipeline.test_log import foreign
from tests.unit.pipeline.test_source import batch, schema, stream


def told(call: Callable[[], Any]) -> tuple[list[str], str]:
    """The functions of ours in the traceback, and the last line."""
    with pytest.raises(Exception) as caught:
        call()
    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [one.name for one in frames if "/mqttd/pipeline/" in one.filename]
    return ours, "".join(traceback.format_exception(caught.value)).splitlines()[-1]


def calls(path: Path) -> dict[str, Callable[[], Any]]:
    log = written(path / "log", 20, segment_bytes=2000)
    ahead = {"log": "another", "nodes": {"mqttd": 5}}
    reader = batch(log)
    tasks = list(reader.partitions())
    delete_first(log / "mqttd", 2)
    limit = stream(log).getDefaultReadLimit()
    return {
        "a batch of what is gone": batch(log, startingOffsets='{"mqttd": 0}').partitions,
        "a task whose log is gone": lambda: list(reader.read(tasks[0])),
        "the next batch of another log": lambda: stream(log).latestOffset(ahead, limit),
        "its tasks": lambda: stream(log).partitions({"nodes": 1}, {}),
        "a begin": stream(log, startingOffsets='{"other": 5}').initialOffset,
        "an option": MqttdDataSource({"path": str(log), "minPartitions": "0"}).schema,
        "no log": batch(path).partitions,
        "no broker to write to": lambda: MqttdDataSource({}).writer(schema(("topic",)), False),
    }


def test_of_the_way_to_an_error_that_is_told_one_step_is_left(tmp_path: Path) -> None:
    for name, call in calls(tmp_path).items():
        ours, last = told(call)
        assert ours == ["called"], name
        assert ": mqttd: " in last or "no event log here" in last, name


def test_the_way_is_shown_to_who_asks_for_it_and_of_what_nobody_has_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = BatchReader(batch(written(tmp_path, 1)).options, schema(("seq",)))
    reader.options = None  # type: ignore[assignment]
    ours, last = told(reader.partitions)
    assert ours[:2] == ["called", "partitions"] and last.startswith("AttributeError")
    monkeypatch.setenv("MQTTD_TRACEBACK", "1")
    for call in calls(tmp_path / "more").values():
        assert len(told(call)[0]) > 1


def test_a_newer_format_is_told_with_what_to_do(tmp_path: Path) -> None:
    """The advice was to go on without these events."""
    log = written(tmp_path / "log", 1)
    segment = next((log / "mqttd").glob("*.events"))
    segment.write_bytes(foreign(segment.read_bytes()))
    ours, last = told(batch(log).partitions)
    assert ours == ["called"]
    assert "format 4, this program reads 1 and 2" in last and "Give Spark the mqttd that" in last
    state = json.loads((log / "log.json").read_text())
    (log / "log.json").write_text(json.dumps(state | {"format": 9}))
    ours, last = told(batch(log).partitions)
    assert ours == ["called"] and "format 9" in last and "Use the program that wrote it" in last


def test_a_log_that_may_not_be_read_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = batch(written(tmp_path, 1))
    tasks = list(reader.partitions())

    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", "/srv/events/log.json")

    monkeypatch.setattr(os, "open", denied)
    monkeypatch.setattr("builtins.open", denied)
    for call in (batch(tmp_path).partitions, lambda: list(reader.read(tasks[0]))):
        with pytest.raises(PermissionError) as caught:
            call()
        assert str(caught.value) == (
            "mqttd: Permission denied: /srv/events/log.json. Let the user that Spark runs as here"
            " read the folder of the log (path), or read it by url"
        )


def test_it_travels_to_a_planner_that_has_nothing_of_ours() -> None:
    sent: list[bytes] = []
    spark: Any = SimpleNamespace(
        addArtifacts=lambda archive, pyfile: None,
        dataSource=SimpleNamespace(register=lambda made: sent.append(cloudpickle.dumps(made))),
    )
    register(spark)
    program = (
        "import sys; sys.modules['mqttd'] = None\n"
        "from pyspark import cloudpickle\n"
        "print(cloudpickle.loads(sys.stdin.buffer.read()).name())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=sent[0], capture_output=True)
    assert done.stdout == b"mqttd\n", done.stderr
