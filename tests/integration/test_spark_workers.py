"""Spark reads and writes a broker of several workers as one: each event once, whoever dies."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.pipeline.log.reader import LogReader, events
from tests.integration.test_spark_sink import ended, stream
from tests.integration.test_workers import all_serve, asked, id_at
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import told as ctl
from tests.support.spark import local_spark, spark_marks
from tests.support.waiting import until
from tests.unit.pipeline.logs import written

pytestmark = spark_marks()

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from local_spark("workers")


def start(tmp_path: Path, workers: int) -> Broker:
    return start_broker(
        tmp_path,
        node={"workers": workers},
        plugins={"load": ["spark"]},
        admin={"tcp": {"bind": "127.0.0.1:0", "pull_token_file": "pull"}},
        files={
            "plugins/spark.conf": 'events = ["message.publish"]\nacked_means_logged = true\n',
            "pull": TOKEN + "\n",
        },
    )


def url_of(broker: Broker) -> str:
    found = re.search(r"HTTP interface on port (\d+)", broker.output)
    assert found is not None
    return f"http://127.0.0.1:{found[1]}"


class Sent:
    """Publishes numbers, and notes those that were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self._next = 0

    def publish(self, broker: Broker, client_id: str, count: int) -> None:
        client = RawClient(broker.port, mq.V5).connect(client_id)
        for _ in range(count):
            payload = b"%d" % self._next
            self._next += 1
            client.publish("t", payload, qos=1)
            self.acknowledged.append(payload)
        client.disconnect()


def logged(tmp_path: Path) -> dict[tuple[str, int], bytes]:
    log = LogReader(str(tmp_path / "data/events"))
    return {
        (node, event.seq): event.payload or b""
        for node, bounds in log.bounds().items()
        for event in events(log, node, *bounds)
    }


def kill(broker: Broker, number: int) -> None:
    """End a worker with SIGKILL."""
    (pid,) = [one["pid"] for one in asked(broker, "status")["workers"] if one["worker"] == number]
    os.kill(pid, signal.SIGKILL)


def all_there(broker: Broker) -> None:
    until(lambda: all_serve(broker), "all workers")


def test_the_sink_publishes_once_whichever_worker_dies(spark: Any, tmp_path: Path) -> None:
    """Its tasks are clients of all workers, each of which is killed in the middle of the stream."""
    log = written(tmp_path / "source", 40, 50)
    broker = start(tmp_path, 2)
    checkpoint = tmp_path / "checkpoint"

    def published() -> Counter[bytes]:
        return Counter(logged(tmp_path).values())

    def wait_for(count: int) -> None:
        until(lambda: published().total() >= count, "nothing is published", 120)

    try:
        query = stream(spark, log, broker.port, checkpoint, delivery="staged")
        for number, wanted in ((1, 250), (2, 1250)):
            wait_for(wanted)
            kill(broker, number)
            all_there(broker)
        for _ in range(4):
            if ended(query):
                break
            query = stream(spark, log, broker.port, checkpoint, delivery="staged")
        until(lambda: published().total() >= 2000, "some are missing", 60)
        # Spark does not know of its last batches, and runs them again.
        for name in ("3", "2"):
            for file in (checkpoint / "commits" / name, checkpoint / "commits" / f".{name}.crc"):
                file.unlink(missing_ok=True)
        query = stream(spark, log, broker.port, checkpoint, delivery="staged")
        assert ended(query)
        assert published() == Counter(b"%d" % number for number in range(2000))
    finally:
        broker.stop()


def test_one_url_has_the_events_of_all_workers(spark: Any, tmp_path: Path) -> None:
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    sent = Sent()

    def begin(url: str, **trigger: Any) -> Any:
        frame = (
            spark.readStream.format("mqttd")
            .option("url", url)
            .option("token", TOKEN)
            .option("startingOffsets", "earliest")
            .option("groupId", "tests")
            .load()
        )
        writer = frame.writeStream.format("parquet").option("path", table)
        return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()

    broker = start(tmp_path, 2)
    query = None
    try:
        sent.publish(broker, id_at(1, 2), 30)
        sent.publish(broker, id_at(2, 2), 20)
        begin(url_of(broker), availableNow=True).awaitTermination(100)
        query = begin(url_of(broker), processingTime="0.2 seconds")

        def has_read() -> bool:
            assert query is not None and query.exception() is None
            seen = query.lastProgress
            if not seen or not seen["sources"][0]["endOffset"]:
                return False
            nodes = json.loads(seen["sources"][0]["endOffset"])["nodes"]
            return bool(sum(nodes.values()) == len(sent.acknowledged))

        # Each dies once: the other has its events, as well as its own.
        for number, other in ((2, 1), (1, 2)):
            kill(broker, number)
            sent.publish(broker, id_at(other, 2), 10)
            until(has_read, "the other is not read", 60)
            all_there(broker)
            sent.publish(broker, id_at(number, 2), 10)
            until(has_read, "it is not read again", 60)
        told = asked(broker, "events", "info")
        assert set(told["nodes"]) == {"mqttd-worker-1", "mqttd-worker-2"}
        query.stop()
        # With another number of workers, and with one process, the same stream goes on.
        for workers in (3, 1):
            broker.stop()
            broker = start(tmp_path, workers)
            for number in range(1, workers + 1):
                sent.publish(broker, id_at(number, workers), 5)
            begin(url_of(broker), availableNow=True).awaitTermination(100)
    finally:
        try:
            if query is not None:
                query.stop()
        finally:
            broker.stop()
    wanted = logged(tmp_path)
    rows = spark.read.parquet(table).select("node", "seq", "payload").collect()
    assert Counter((row.node, row.seq) for row in rows) == Counter(list(wanted))
    assert {bytes(row.payload) for row in rows} == set(sent.acknowledged)
    assert len(rows) == len(sent.acknowledged) == 110
    nodes = {f"mqttd-worker-{number}" for number in (1, 2, 3)}
    assert {row.node for row in rows} == nodes | {"mqttd"}
    assert "mqttd-worker-3" in ctl(broker, "events", "info")
