"""The Spark session that the examples and pipelines begin with."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
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


def test_the_package_for_executors_has_all_that_it_imports(tmp_path: Path) -> None:
    """Also where mqttd is installed: what the zip lacks would be taken from nowhere else."""
    package = sessions.write_package(str(tmp_path / "mqttd.zip"))
    with zipfile.ZipFile(package) as archive:
        names = [name for name in archive.namelist() if name.startswith("mqttd/pipeline/spark/")]
    modules = [
        name.removesuffix(".py").replace("/", ".") for name in names if "__main__" not in name
    ]
    assert "mqttd.pipeline.spark.data_source" in modules
    program = (
        "import sys, importlib; sys.path.insert(0, sys.argv[1])\n"
        "for name in sys.argv[2:]:\n"
        "    assert importlib.import_module(name).__file__.startswith(sys.argv[1]), name\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, package, *modules],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
