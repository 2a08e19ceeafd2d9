"""A real Spark for tests: `local[2]`, with the data source registered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.needs import missing

__all__ = ["local_spark"]


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
