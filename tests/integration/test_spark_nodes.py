"""Spark reads a cluster as one stream: a real etcd, real nodes that die, leave and join."""

from __future__ import annotations

import json
import runpy
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mqttd.pipeline.log.reader import LogReader, events
from mqttd.pipeline.spark.options import read_options
from mqttd.pipeline.spark.source import BatchReader
from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.nodes import Nodes, asked, start_node, start_nodes
from tests.support.spark import local_spark, spark_marks
from tests.support.waiting import until
from tests.unit.pipeline.test_source import rows, schema

pytestmark = spark_marks()

TOKEN = "0123456789abcdef0123456789abcdef"
MORE: Any = {
    "plugins": {"load": ["spark"]},
    "files": {"plugins/spark.conf": 'events = ["message.publish"]\n', "pull": TOKEN + "\n"},
    "admin": {"tcp": {"bind": "127.0.0.1:0", "pull_token_file": "pull"}},
}

Started = Callable[..., Broker]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from local_spark("nodes")


@pytest.fixture
def nodes(etcd: Etcd, tmp_path: Path) -> Iterator[Nodes]:
    started = start_nodes(tmp_path, etcd, {"a": {}, "b": {}}, **MORE)
    yield started
    for node in started.values():
        node.stop()


def exported(etcd: Etcd) -> dict[str, str]:
    from mqttd.pipeline.log.cluster import Exports

    return Exports(etcd.endpoints, "mqttd").urls()


def publish(node: Broker, count: int) -> None:
    client = RawClient(node.port, mq.V5).connect()
    for n in range(count):
        client.publish("t", b"%d" % n, qos=1)
    client.disconnect()


def logged(tmp_path: Path, *names: str) -> set[tuple[str, int]]:
    found = set()
    for name in names:
        log = LogReader(str(tmp_path / name / "data/events"))
        for node, bounds in log.bounds().items():
            found |= {(node, event.seq) for event in events(log, node, *bounds)}
    return found


def test_nodes_come_and_go_and_every_event_is_read_once(
    spark: Any, etcd: Etcd, nodes: Nodes, tmp_path: Path
) -> None:
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    until(lambda: exported(etcd).keys() == {"a", "b"}, "they do not say where they are read")
    example = runpy.run_path(str(Path(__file__).parents[2] / "docs/examples/cluster_events.py"))
    frame = example["of_cluster"](spark, ",".join(etcd.endpoints), TOKEN)

    def begin(**trigger: Any) -> Any:
        writer = frame.writeStream.format("parquet").option("path", table)
        return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()

    publish(nodes["a"], 30)
    publish(nodes["b"], 20)
    until(lambda: len(logged(tmp_path, "a", "b")) >= 50, "nothing is logged")
    begin(availableNow=True).awaitTermination(100)
    # b dies: the others go on, and so does one that joins.
    nodes["b"].stop(hard=True)
    query = begin(processingTime="0.5 seconds")

    def has_read(count: int) -> bool:
        assert query.exception() is None
        return sum(one["numInputRows"] for one in query.recentProgress) >= count

    try:
        publish(nodes["a"], 10)
        nodes["c"] = start_node(tmp_path, etcd, "c", **MORE)
        publish(nodes["c"], 15)
        until(lambda: has_read(25), "the others are not read", 60)
        was = exported(etcd)["b"]
        nodes["b"] = start_node(tmp_path, etcd, "b", **MORE)
        until(lambda: exported(etcd)["b"] != was, "it does not say that it is elsewhere")
        publish(nodes["b"], 5)
        until(lambda: has_read(30), "it is not read again", 60)
        # c leaves, and is not waited for; it comes back with its log.
        asked(nodes["c"], "cluster", "leave", "--rate", "1000")
        leaver = nodes.pop("c").process
        assert leaver is not None and leaver.wait(30) == 0
        until(lambda: "c" not in exported(etcd), "it has not left")
        publish(nodes["a"], 5)
        until(lambda: has_read(35), "the others are not read any more", 60)
        assert json.loads(query.lastProgress["sources"][0]["endOffset"])["nodes"]["c"] == 15
        nodes["c"] = start_node(tmp_path, etcd, "c", **MORE)
        publish(nodes["c"], 5)
        until(lambda: has_read(40), "it is not read again", 60)
    finally:
        query.stop()
    rows = spark.read.parquet(table).select("node", "seq").collect()
    wanted = logged(tmp_path, "a", "b", "c")
    assert Counter((row.node, row.seq) for row in rows) == Counter(wanted) and len(wanted) == 90


def test_a_micro_batch_under_way_finds_a_node_that_is_back_elsewhere(
    etcd: Etcd, nodes: Nodes, tmp_path: Path
) -> None:
    """Killed between the plan of its tasks and their reading."""
    until(lambda: exported(etcd).keys() == {"a", "b"}, "they do not say where they are read")
    publish(nodes["a"], 30)
    publish(nodes["b"], 20)
    until(lambda: len(logged(tmp_path, "a", "b")) >= 50, "nothing is logged")
    found = read_options(
        {"cluster": "mqttd", "etcd": ",".join(etcd.endpoints), "token": TOKEN,
         "outageTimeout": "100s"}
    )  # fmt: skip
    reader = BatchReader(found, schema(found.columns))
    tasks = reader.partitions()
    was = {task.url for task in tasks}
    nodes["b"].stop(hard=True)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(rows, reader, tasks)
        nodes["b"] = start_node(tmp_path, etcd, "b", **MORE)
        until(lambda: exported(etcd)["b"] not in was, "it does not say that it is elsewhere")
        by_node = Counter(row["node"] for row in read.result(100))
    assert by_node == {"a": 30, "b": 20}
