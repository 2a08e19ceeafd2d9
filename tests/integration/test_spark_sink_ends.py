"""What a stream without a name has staged when it fails or is stopped goes from the broker at once.

One session for all tests here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_events import ctl, start
from tests.support.spark import local_spark, spark_marks
from tests.support.waiting import until
from tests.unit.pipeline.logs import written

pytestmark = spark_marks(600)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from local_spark("sink-ends")


def staged(path: Path) -> int:
    """How many rows wait for their release."""
    told = ctl(path, "spark", "stage").stdout
    return int(json.loads(told)["staged_rows"]) if told.startswith("{") else 0


def endless(spark: Any, path: Path, port: int, **options: str) -> Any:
    """A stream whose first task stages rows; the other fails when the file `fail` is there."""
    fail = str(path / "fail")

    def rows(batches: Any) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        def some(count: int) -> Any:
            names = {"topic": ["out/a"] * count, "payload": ["x"] * count}
            return pa.RecordBatch.from_pydict(names)

        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            # Spark collects ten thousand, and on the way are buffers.
            yield from (some(5_000) for _ in range(20))
        while not Path(fail).exists() or context.partitionId() == 0:
            time.sleep(0.05)
        raise RuntimeError("a task that fails")

    frame = (
        spark.readStream.format("mqttd")
        .options(startingOffsets="earliest", minPartitions="2")
        .load(str(written(path / "log", 20, 50)))
        .select("topic", "seq")
        .repartition(2)
        .mapInArrow(rows, "topic STRING, payload STRING")
    )
    return (
        frame.writeStream.format("mqttd")
        .options(broker=f"127.0.0.1:{port}", delivery="staged", **options)
        .option("checkpointLocation", str(path / "checkpoint"))
        .start()
    )


@pytest.mark.parametrize("end", ["fails", "stops"])
def test_what_a_stream_without_a_name_has_staged_goes_when_it(
    spark: Any, tmp_path: Path, end: str
) -> None:
    """No task has come to its end: Spark told the driver of none, and the rows stayed."""
    broker = start(tmp_path)
    try:
        query = endless(spark, tmp_path, broker.port)
        until(lambda: staged(tmp_path) > 0, "nothing is staged")
        if end == "fails":
            (tmp_path / "fail").touch()
            with pytest.raises(Exception, match="a task that fails"):
                query.awaitTermination(120)
        else:
            query.stop()
        until(lambda: staged(tmp_path) == 0, "rows stay")
    finally:
        broker.stop()
