"""A real Spark for tests: `local[2]`, with the data source registered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.needs import missing

__all__ = ["local_spark", "spark_marks"]


def spark_marks(seconds: float = 900) -> list[pytest.MarkDecorator]:
    """What each test with a Spark has: its time in seconds, and two more tries for Spark itself.

    Spark gives a Python worker ten seconds to start, and no option changes it: where others keep
    the machine busy, that is the test of nothing here.
    """
    again = pytest.mark.flaky(reruns=2, only_rerun=["worker failed to connect back"])
    return [pytest.mark.timeout(seconds), again]


def local_spark(name: str) -> Iterator[Any]:
    """The one session of a module's tests, to be a fixture's: starting one takes ten seconds."""
    from mqttd.pipeline.spark import NoJava, register, session
    from mqttd.pipeline.spark.sessions import check_java

    try:
        check_java()
    except NoJava:
        missing("Java", "apt-get install default-jre-headless")
    made = session(
        name,
        "local[2]",
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        spark__driver__memory="1g",
        spark__sql__session__timeZone="UTC",
    )
    yield register(made)
    made.stop()
