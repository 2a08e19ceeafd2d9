"""The Spark session that the examples and pipelines begin with."""

from __future__ import annotations

import os
from typing import Any

import pyspark.sql
import pytest

from mqttd.pipeline.spark import sessions


class Builder:
    """Notes what Spark would be told."""

    active: object = None

    def __init__(self) -> None:
        self.conf: dict[str, str] = {}

    @property
    def builder(self) -> Builder:
        return self

    def getActiveSession(self) -> object:  # noqa: N802
        return self.active

    def appName(self, name: str) -> Builder:  # noqa: N802
        return self

    def master(self, url: str) -> Builder:
        return self.config("master", url)

    def config(self, key: str, value: str) -> Builder:
        self.conf[key] = value
        return self

    def getOrCreate(self) -> dict[str, str]:  # noqa: N802
        return self.conf


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Builder:
    found = Builder()
    monkeypatch.setattr(pyspark.sql, "SparkSession", found)
    monkeypatch.setattr(sessions, "check_java", lambda: None)
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")
    return found


@pytest.mark.parametrize(
    ("master", "conf", "tasks"),
    [
        (None, {}, str(os.cpu_count() or 2)),
        ("local[2]", {"spark__sql__shuffle__partitions": "7"}, "7"),
        ("spark://head:7077", {}, None),
    ],
)
def test_a_shuffle_on_this_machine_has_a_task_for_each_core(
    spark: Builder, master: str | None, conf: dict[str, str], tasks: str | None
) -> None:
    made: Any = sessions.session("counts", master, **conf)
    assert made.get("spark.sql.shuffle.partitions") == tasks


def test_a_session_that_is_there_keeps_its_partitions(spark: Builder) -> None:
    spark.active = object()
    made: Any = sessions.session("counts")
    assert "spark.sql.shuffle.partitions" not in made
