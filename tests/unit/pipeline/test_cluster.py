"""The nodes of a cluster as one stream: they come and go, and offsets survive it; no network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from mqttd.pipeline.log import cluster
from mqttd.pipeline.log.cluster import ClusterLog, Exports
from mqttd.pipeline.log.many import joined, knows, remade
from mqttd.pipeline.log.pull import Away, PullError
from mqttd.pipeline.log.reader import DataLoss, EventLog, LogReader
from mqttd.pipeline.log.writer import Writer
from mqttd.pipeline.spark.options import read_options
from mqttd.pipeline.spark.source import BatchReader
from mqttd.pipeline.spark.stream import StreamReader
from tests.unit.pipeline.logs import fill, written
from tests.unit.pipeline.test_many import by_node
from tests.unit.pipeline.test_source import rows, schema


class Etcd(Exports):
    """What etcd has; None: nobody answers."""

    def __init__(self) -> None:
        super().__init__(["http://etcd:1"], "c")
        self.has: dict[str, str] | None = {}

    def urls(self) -> dict[str, str]:
        if self.has is None:
            raise Away("etcd at http://etcd:1: nobody")
        return dict(self.has)


class World:
    """Logs behind URLs, who is away, and a clock; executors find it, too."""

    logs: ClassVar[dict[str, Path]] = {}
    away: ClassVar[set[str]] = set()
    opened: ClassVar[list[str]] = []
    etcd: ClassVar[Etcd]
    now: ClassVar[float] = 0.0

    @classmethod
    def open(cls, url: str, away: float = 0.0) -> EventLog:
        cls.opened.append(url)
        if url in cls.away:
            raise Away(f"{url} cannot be reached")
        return LogReader(str(cls.logs[url]))

    @classmethod
    def sleep(cls, seconds: float) -> None:
        cls.now += seconds

    @classmethod
    def log(cls, patience: float) -> ClusterLog:
        return ClusterLog(cls.etcd, cls.open, patience, lambda: cls.now, cls.sleep)


class _OfWorld:
    options: Any

    def _open_cluster(self) -> ClusterLog:
        return World.log(self.options.outage)

    def _exports(self) -> Etcd:
        return World.etcd

    def _open(
        self, path: str | None, url: str | None, away: Any = None, elsewhere: Any = None
    ) -> EventLog:
        assert url is not None
        if url in World.away and elsewhere is not None:
            url = elsewhere.url() or url  # what `PullReader` does
        return World.open(url)


class Stream(_OfWorld, StreamReader):
    """A stream of the world."""


class Batch(_OfWorld, BatchReader):
    """A batch of it."""


@pytest.fixture(autouse=True)
def world(tmp_path: Path) -> Iterator[type[World]]:
    World.logs, World.away, World.opened, World.now = {}, set(), [], 0.0
    World.etcd = Etcd()
    for name in ("a", "b"):
        add(tmp_path, name)
    yield World


def add(path: Path, name: str) -> None:
    written(path / name, 3, node=name)
    World.logs[f"http://{name}"] = path / name
    assert World.etcd.has is not None
    World.etcd.has[name] = f"http://{name}"


def more(path: Path, name: str) -> None:
    writer = Writer(str(path / name), name)
    fill(writer, 1)
    writer.close()


def made(kind: Any, **more: str) -> Any:
    options = {"cluster": "c", "etcd": "http://etcd:1", "startingOffsets": "earliest", **more}
    found = read_options(options)
    return kind(found, schema(found.columns))


def step(reader: Stream, start: Any) -> tuple[Any, dict[str, list[int]]]:
    World.now += 5.0
    end = reader.latestOffset(start, ReadAllAvailable())
    return end, by_node(rows(reader, reader.partitions(start, end)))


def test_executors_ask_the_node_and_nobody_else(world: type[World]) -> None:
    reader = made(Batch)
    tasks = reader.partitions()
    assert {task.url for task in tasks} == {"http://a", "http://b"}
    World.etcd.has = None
    assert by_node(rows(reader, tasks)) == {"a": list(range(30)), "b": list(range(30))}


def test_a_task_finds_its_node_where_that_is_by_now(world: type[World]) -> None:
    """A node has died after the batch was planned, and is back at another address."""
    reader = made(Batch)
    tasks = reader.partitions()
    assert {(task.exporter, task.url) for task in tasks} == {("a", "http://a"), ("b", "http://b")}
    World.away = {"http://b"}
    World.logs["http://b2"] = World.logs["http://b"]
    World.etcd.has["b"] = "http://b2"
    assert by_node(rows(reader, tasks)) == {"a": list(range(30)), "b": list(range(30))}


def test_nodes_come_and_go_and_offsets_survive_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reader = made(Stream)
    start = reader.initialOffset()
    at, found = step(reader, start)
    assert found == {"a": list(range(30)), "b": list(range(30))}
    ids = {name: LogReader(str(tmp_path / name)).log_id for name in "ab"}
    assert at["log"] == f"a={ids['a']}+b={ids['b']}" and at["nodes"] == {"a": 30, "b": 30}
    # One joins, the other leaves.
    add(tmp_path, "c")
    World.etcd.has = {name: f"http://{name}" for name in "ac"}
    more(tmp_path, "b")
    at, found = step(reader, at)
    assert found == {"c": list(range(30))} and at["nodes"] == {"a": 30, "b": 30, "c": 30}
    assert "node b has left the cluster" in capfd.readouterr().err
    assert f"b={ids['b']}" in at["log"]
    # The query starts again without it, and it is back: at another address, with its log.
    reader = made(Stream)
    more(tmp_path, "c")
    at, found = step(reader, at)
    assert found == {"c": list(range(30, 40))}
    assert capfd.readouterr().err.count("node b is not there, the query has read 30 of it") == 1
    World.logs["http://b2"] = tmp_path / "b"
    World.etcd.has["b"] = "http://b2"
    at, found = step(reader, at)
    assert found == {"b": list(range(30, 40))}
    assert step(reader, at) == (at, {})


def test_a_node_that_is_away_stops_nobody_until_it_was_away_for_too_long(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = made(Stream)
    at, _ = step(first, first.initialOffset())
    World.away = {"http://b"}
    more(tmp_path, "a")
    reader = made(Stream, outageTimeout="60s")
    at, found = step(reader, at)
    assert found == {"a": list(range(30, 40))}
    assert capfd.readouterr().err.count("http://b cannot be reached; the others go on") == 1
    assert reader.reportLatestOffset()["brokerAwaySeconds"] == 0.0
    assert step(reader, at) == (at, {})
    assert reader.reportLatestOffset()["brokerAwaySeconds"] == 5.0
    World.now += 60.0
    with pytest.raises(PullError, match="node b: http://b cannot be reached.*force-leave"):
        step(reader, at)
    # What is put out is not waited for.
    assert World.etcd.has is not None
    del World.etcd.has["b"]
    assert step(made(Stream, outageTimeout="60s"), at) == (at, {})


def test_who_reads_all_waits_for_all() -> None:
    World.away = {"http://b"}
    for begins in (
        lambda: made(Batch, outageTimeout="10s").partitions(),
        lambda: made(Stream, outageTimeout="10s").initialOffset(),
        lambda: made(Stream, outageTimeout="10s").prepareForTriggerAvailableNow(),
    ):
        with pytest.raises(PullError, match="it has been away for 10 s"):
            begins()


def test_a_batch_that_was_begun_is_read_to_its_end(tmp_path: Path) -> None:
    """Its end is in the checkpoint: it is the same rows, or none yet."""
    reader = made(Stream)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    World.away = {"http://b"}
    with pytest.raises(PullError, match="node b"):
        made(Stream, outageTimeout="10s").partitions(start, end)
    World.away = set()
    del World.etcd.has["b"]
    with pytest.raises(DataLoss, match="events 0 to 29 of node b are not in the log"):
        made(Stream).partitions(start, end)
    World.etcd.has["b"] = "http://b"
    again = made(Stream)
    assert by_node(rows(again, again.partitions(start, end))) == {
        "a": list(range(30)), "b": list(range(30)),
    }  # fmt: skip


def test_a_log_that_was_made_anew_costs_its_node_alone(tmp_path: Path) -> None:
    reader = made(Stream)
    at, _ = step(reader, reader.initialOffset())
    World.logs["http://b"] = written(tmp_path / "new", 1, node="b")
    more(tmp_path, "a")
    with pytest.raises(DataLoss, match="made anew"):
        step(made(Stream), at)
    found = step(made(Stream, failOnDataLoss="false"), at)[1]
    assert found == {"a": list(range(30, 40)), "b": list(range(10))}


def test_etcd_may_be_away_once_it_has_answered(capfd: pytest.CaptureFixture[str]) -> None:
    reader = made(Stream)
    start = reader.initialOffset()
    World.etcd.has, had = None, World.etcd.has
    at, found = step(reader, start)
    assert set(found) == {"a", "b"}
    assert step(reader, at) == (at, {})
    World.etcd.has = had
    step(reader, at)
    told = capfd.readouterr().err
    assert told.count("nodes that come are not seen") == told.count("answers again") == 1
    World.etcd.has = None
    with pytest.raises(PullError, match="it was away for 7 s"):
        World.log(7.0)
    World.etcd.has = {}
    with pytest.raises(PullError, match="no node of the cluster 'c' exports"):
        World.log(7.0)


def test_what_in_etcd_is_no_node_and_its_url_is_passed_by_and_said_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = [(b"a", b"http://a:1"), (b"\xff", b"http://b:1"), (b"c", b"\xff"), (b"d", b"{}"),
             (b"", b"http://e:1"), (b"f/g", b"http://f:1"), (b"h", b"")]  # fmt: skip
    said = [{"key": b64encode(b"/mqttd/c/v1/export/" + name), "value": b64encode(url)}
            for name, url in found]  # fmt: skip
    monkeypatch.setattr(cluster, "_post", lambda *_: {"kvs": said})
    exports = Exports(["http://etcd:1"], "c")
    assert exports.urls() == exports.urls() == {"a": "http://a:1"}
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == len(found) - 1 and "export/\\xff' in etcd is passed by" in lines[0]


def test_ids_say_whose_they_are() -> None:
    assert knows("a=1+b=2", "a=1") and knows("a=1", "a=1+b=2") and knows("", "a=1")
    assert knows("a=1+b=2", "1+2") and knows("1+2", "a=1+b=2")
    assert not knows("a=1+b=3", "a=1+b=2") and not knows("a=1", "1+2") and not knows("1", "b=2")
    assert remade("a=1+b=3", "a=1+b=2", "ab") == {"b"} and remade("a=1", "a=1+b=2", "ab") == set()
    assert remade("1+3", "1+2", "ab") == {"a", "b"} and remade("1+2+3", "1+2", "ab") == set()
    assert joined("a=1+c=3", "a=0+b=2") == "a=1+b=2+c=3" and joined("1+2", "1") == "1+2"
