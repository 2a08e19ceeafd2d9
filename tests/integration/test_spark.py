"""Real Spark, local[2], on event logs: row for row what the log says.

One session for all tests here: starting one takes ten seconds. MQTTD_LONG=1 takes more kills.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.exactly_once import Run, exactly_once
from mqttd.pipeline.log.groups import groups
from mqttd.pipeline.log.reader import LogReader, events
from mqttd.pipeline.log.retention import Retention
from mqttd.pipeline.log.writer import Writer
from mqttd.pipeline.spark import progress
from tests.integration.test_events import everything, start
from tests.support.numbered import Publisher
from tests.support.servers import free_port
from tests.support.spark import local_spark, spark_marks
from tests.support.waiting import until
from tests.unit.pipeline.logs import NODE, fill, written

LONG = os.environ.get("MQTTD_LONG") == "1"

pytestmark = spark_marks(7200 if LONG else 900)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from local_spark("tests")


def ran(frame: Any, tmp_path: Path, **more: Any) -> Any:
    """Run a stream to its end, into Parquet; returns the query."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "table"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)
    return query


def test_a_table_is_the_log_row_for_row(spark: Any, tmp_path: Path) -> None:
    log = written(tmp_path / "log", 40, 100, segment_bytes=60_000)
    frame = (
        spark.readStream.format("mqttd")
        .option("path", str(log))
        .option("startingOffsets", "earliest")
        .option("maxEventsPerTrigger", "1500")
        .load()
    )
    query = ran(frame, tmp_path)
    assert [one["numInputRows"] for one in query.recentProgress] == [1500, 1500, 1000]
    reader = LogReader(str(log))
    wanted = list(events(reader, NODE, *reader.bounds()[NODE]))
    rows = spark.read.parquet(str(tmp_path / "table")).orderBy("seq").collect()
    assert len(rows) == len(wanted) == 4000
    for row, event in zip(rows, wanted, strict=True):
        assert (row.seq, row.node, row.event, row.client_id) == event[:3] + (event.client_id,)
        assert (bytes(row.payload), bytes(row.message_id)) == (event.payload, event.message_id)
        assert (row.topic, row.qos, row.retain) == (event.topic, event.qos, event.retain)
        assert round(row.timestamp.timestamp() * 1e6) == event.timestamp
    # What comes later is read by the next run, once.
    written(tmp_path / "log", 3, 100)
    ran(frame, tmp_path)
    table = spark.read.parquet(str(tmp_path / "table"))
    assert table.count() == table.select("seq").distinct().count() == 4300


def test_batch_options_change_what_is_read_not_what_is_right(spark: Any, tmp_path: Path) -> None:
    log = written(tmp_path / "log", 40, 100)
    frame = spark.read.format("mqttd").load(str(log))
    assert frame.count() == 4000
    some = frame.where("event = 'message.publish' and seq >= 150 and seq < 250 and topic = 't/3'")
    assert sorted(row.seq for row in some.collect()) == list(range(153, 250, 5))
    assert frame.where("event = 'client.connected'").count() == 0
    chosen = (
        spark.read.format("mqttd")
        .option("subscribe", "+/1,t/2")
        .option("columns", "topic,seq")
        .option("includeHeaders", "true")
        .load(str(log))
    )
    assert chosen.columns == ["topic", "seq"]
    assert {row.topic for row in chosen.collect()} == {"t/1", "t/2"}
    assert chosen.count() == 1600
    pattern = spark.read.format("mqttd").option("subscribePattern", "t/[34]").load(str(log))
    assert pattern.count() == 1600


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"events": "message.*"}, "event like 'message.%'"),
        ({"events": "client.connected"}, "event = 'client.connected'"),
        ({"subscribe": "t/+"}, "topic like 't/%'"),
        ({"subscribe": "t/1, +/3"}, "topic in ('t/1', 't/3')"),
        ({"subscribe": "$share/g/t/2"}, "topic = 't/2'"),
        ({"subscribe": "#", "events": "message.acked"}, "event = 'message.acked'"),
        ({"subscribePattern": "t/[0-2]"}, "topic < 't/3'"),
        ({"startingOffsets": '{"mqttd": 37}'}, "seq >= 37"),
        ({"endingOffsets": '{"mqttd": 252}'}, "seq < 252"),
        ({"startingTimestamp": "1700000000000", "endingTimestamp": "1700000000001"}, "TIME"),
        ({"events": "message.publish", "startingOffsets": '{"mqttd": 95}', "subscribe": "t/4"},
         "event = 'message.publish' and seq >= 95 and topic = 't/4'"),
    ],
)  # fmt: skip
def test_14_options_give_the_rows_that_a_query_would(
    spark: Any, tmp_path: Path, options: dict[str, str], where: str
) -> None:
    log = tmp_path / "log"
    writer = Writer(str(log), NODE, segment_bytes=20_000)
    for event in ("message.publish", "client.connected", "message.acked") * 2:
        fill(writer, 5, 10, event=event)
    writer.close()
    everything = spark.read.format("mqttd").load(str(log))
    if where == "TIME":  # an event each microsecond
        where = "timestamp >= timestamp_micros(1700000000000000)"
        where += " and timestamp < timestamp_micros(1700000000001000)"
    wanted = everything.where(where).orderBy("seq").collect()
    chosen = spark.read.format("mqttd").options(**options)
    assert wanted and chosen.load(str(log)).orderBy("seq").collect() == wanted
    pruned = chosen.option("columns", "topic,seq").load(str(log)).orderBy("seq").collect()
    assert [(one.topic, one.seq) for one in pruned] == [(one.topic, one.seq) for one in wanted]


def test_a_log_is_a_view_of_sql(spark: Any, tmp_path: Path) -> None:
    log = written(tmp_path / "log", 4, 100)
    spark.sql(f"CREATE TEMPORARY VIEW told USING mqttd OPTIONS (path '{log}')")
    rows = spark.sql("SELECT topic, count(*) AS n FROM told GROUP BY topic").collect()
    assert {(row.topic, row.n) for row in rows} == {(f"t/{i}", 80) for i in range(5)}
    schema = spark.table("told").schema
    assert not schema["seq"].nullable and schema["topic"].nullable


def test_a_frame_may_be_joined_with_itself(spark: Any, tmp_path: Path) -> None:
    """Spark shares what was pushed into a scan between two uses of a frame: nothing is."""
    writer = Writer(str(tmp_path), NODE)
    fill(writer, 3, 10)
    fill(writer, 2, 10, event="message.acked")
    writer.close()
    frame = spark.read.format("mqttd").load(str(tmp_path))
    published, acked = (frame.where(f"event = 'message.{one}'") for one in ("publish", "acked"))
    assert published.union(acked).count() == 50
    assert published.count() == 30


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "set the option path"),
        ({"path": "PATH", "maxEventPerTrigger": "5"}, "did you mean maxEventsPerTrigger"),
        ({"path": "PATH", "startingOffsets": "begin"}, "expected earliest, latest, JSON"),
        ({"path": "PATH", "events": "mesage.*"}, "expected names or globs of client.connected"),
    ],
)
def test_a_wrong_option_is_told_before_a_query_starts(
    spark: Any, tmp_path: Path, options: dict[str, str], told: str
) -> None:
    log = written(tmp_path / "log", 1)
    given = {key: str(log) if value == "PATH" else value for key, value in options.items()}
    for reader in (spark.read, spark.readStream):
        with pytest.raises(Exception, match=told):
            reader.format("mqttd").options(**given).load()


def test_no_log_is_told_by_its_name(spark: Any, tmp_path: Path) -> None:
    frame = spark.read.format("mqttd").load(str(tmp_path))
    with pytest.raises(Exception, match="no event log here"):
        frame.count()


def test_an_option_for_batches_is_told_to_a_stream(spark: Any, tmp_path: Path) -> None:
    log = written(tmp_path / "log", 1)
    frame = spark.readStream.format("mqttd").option("endingOffsets", "latest").load(str(log))
    with pytest.raises(Exception, match="option endingOffsets is for batch queries") as caught:
        ran(frame, tmp_path)
    assert "UnboundLocalError" not in str(caught.value)


@pytest.mark.timeout(120)
def test_a_broker_that_hangs_is_away(spark: Any, tmp_path: Path) -> None:
    """It is stopped: its port takes connections, and nothing answers."""
    broker = start(tmp_path, "", {"pull_token_file": "pull"})
    assert broker.process is not None
    try:
        line = until(
            lambda: [one for one in broker.lines if "HTTP interface on port" in one], broker.output
        )
        reader = (
            spark.read.format("mqttd")
            .option("url", f"http://127.0.0.1:{line[0].rpartition(':')[2]}")
            .option("token", (tmp_path / "etc/pull").read_text().split()[-1])
            .option("outageTimeout", "3s")
        )
        reader.load().count()
        os.kill(broker.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(Exception, match=r"timed out.*, for \d+ s by now"):
            reader.load().count()
        # Spark's planner has some of it, a busy machine more; by itself it waits for minutes.
        assert time.monotonic() - began < 60
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
        broker.stop()


def test_past_retention_a_query_stops_or_shows_the_gap(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = Writer(str(path), NODE, segment_bytes=10_000, retention=Retention(bytes=25_000))
    fill(writer, 1, 100)

    def frame(**options: str) -> Any:
        reader = spark.readStream.format("mqttd").option("startingOffsets", "earliest")
        return reader.options(**options).load(str(path))

    ran(frame(), tmp_path)
    fill(writer, 10, 100)
    writer.close()
    earliest = LogReader(str(path)).bounds()[NODE].earliest
    assert earliest > 100
    with pytest.raises(Exception, match=f"events 100 to {earliest - 1} of node {NODE}"):
        ran(frame(), tmp_path)
    ran(frame(failOnDataLoss="false"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).orderBy("seq").collect()
    assert [row.seq for row in rows] == [*range(101), *range(earliest, 1100)]
    assert (rows[100].event, rows[100].reason) == (
        "log.gap",
        f"{earliest - 100} events lost: deleted by retention before they were read",
    )


def test_events_of_a_running_broker_arrive_by_http(spark: Any, tmp_path: Path) -> None:
    broker = start(tmp_path, 'events = ["message.publish"]\n', {"pull_token_file": "pull"})
    try:
        line = until(
            lambda: [one for one in broker.lines if "HTTP interface on port" in one], broker.output
        )
        port = int(line[0].rpartition(":")[2])
        publisher = Publisher(lambda: broker.port, "a/b")
        publisher.start()
        until(lambda: len(publisher.acknowledged) >= 2000, "nothing is acknowledged")
        publisher.stop()
        until(lambda: len(everything(tmp_path)) >= 2000, "nothing is logged")
        token = (tmp_path / "etc/pull").read_text().split()[-1]
        frame = (
            spark.readStream.format("mqttd")
            .option("url", f"http://127.0.0.1:{port}")
            .option("token", token)
            .option("startingOffsets", "earliest")
            .option("maxEventsPerTrigger", "700")
            .option("groupId", "tests")
            .load()
        )
        ran(frame, tmp_path)
        found = everything(tmp_path)
        rows = spark.read.parquet(str(tmp_path / "table")).orderBy("seq").collect()
        assert [(row.seq, bytes(row.payload)) for row in rows] == [
            (event.seq, event.payload) for event in found
        ]
    finally:
        broker.stop()


def test_a_stream_outlives_its_broker(spark: Any, tmp_path: Path) -> None:
    """The broker is away for three seconds; MQTTD_LONG=1: 20 times, and for a minute as often."""
    port = free_port()
    conf = 'events = ["message.publish"]\nacked_means_logged = true\n'
    tcp = {"pull_token_file": "pull", "bind": f"127.0.0.1:{port}"}
    broker = start(tmp_path, conf, tcp)
    publisher = Publisher(lambda: broker.port, "a/b", rate=200)
    publisher.start()
    query = None
    try:
        query = (
            spark.readStream.format("mqttd")
            .option("url", f"http://127.0.0.1:{port}")
            .option("token", (tmp_path / "etc/pull").read_text().split()[-1])
            .option("startingOffsets", "earliest")
            .option("groupId", "tests")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "table"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )

        def read() -> int:
            assert query is not None
            assert query.exception() is None, query.exception()
            progress = query.lastProgress
            if not progress or not progress["sources"][0]["endOffset"]:
                return 0
            return int(json.loads(progress["sources"][0]["endOffset"])["nodes"].get(NODE, 0))

        def past(offset: int) -> bool:
            return read() > offset

        for seconds in [3.0, 60.0] * 20 if LONG else [3.0]:
            until(partial(past, read() + 100), "nothing is read", 100)
            broker.stop(hard=True)
            time.sleep(seconds)
            broker = start(tmp_path, conf, tcp)
        before = len(publisher.acknowledged)
        until(lambda: len(publisher.acknowledged) > before + 100, "nothing is acknowledged")
        publisher.stop()
        found = until(lambda: everything(tmp_path), "nothing is logged")
        until(lambda: read() == len(found), f"the query does not come to {len(found)}", 100)
        source = query.lastProgress["sources"][0]
        assert json.loads(source["latestOffset"])["offsetsBehindLatest"] == 0
        (told,) = (progress(query) or {})["sources"]
        assert told["description"] == f"mqttd[http://127.0.0.1:{port} groupId=tests]"
        assert told["metrics"]["offsetsBehindLatest"] == "0" and int(told["metrics"]["bytes"]) >= 0
        assert set(told["latestOffset"]) == {"log", "nodes"}
    finally:
        try:
            if query is not None:
                query.stop()
        finally:
            if publisher.is_alive():
                publisher.stop()
            broker.stop()
    rows = spark.read.parquet(str(tmp_path / "table")).orderBy("seq").collect()
    found = everything(tmp_path)
    assert [(row.seq, bytes(row.payload)) for row in rows] == [
        (event.seq, event.payload) for event in found
    ]
    assert {b"%d" % number for number in publisher.acknowledged} <= {one.payload for one in found}


def test_a_group_has_stopped_when_its_query_was_stopped(spark: Any, tmp_path: Path) -> None:
    """Spark ends the reader's process with SIGTERM: it was taken for one that reads on."""
    path = tmp_path / "log"
    writer = Writer(str(path), NODE)
    fill(writer, 1, 100)
    reader = spark.readStream.format("mqttd").option("startingOffsets", "earliest")
    frame = reader.option("groupId", "daily").load(str(path))
    query = frame.writeStream.format("noop").option("checkpointLocation", tmp_path / "c").start()
    query.processAllAvailable()
    assert not groups(str(path))["daily"]["stopped"]
    query.stop()
    until(lambda: groups(str(path))["daily"]["stopped"], "it has not stopped")
    assert groups(str(path))["daily"]["nodes"] == {NODE: 100}
    writer.close()


def test_retention_waits_for_a_group_up_to_its_cap(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "log"
    limits = Retention(bytes=20_000, held_bytes=150_000)
    writer = Writer(str(path), NODE, segment_bytes=10_000, retention=limits)
    fill(writer, 1, 100)
    reader = spark.readStream.format("mqttd").option("startingOffsets", "earliest")
    frame = reader.option("groupId", "nightly").load(str(path))
    ran(frame, tmp_path)
    group = groups(str(path))["nightly"]
    assert (group["nodes"], group["stopped"]) == ({NODE: 100}, True)
    fill(writer, 10, 100)  # five times what is kept otherwise
    ran(frame, tmp_path)
    assert spark.read.parquet(str(tmp_path / "table")).count() == 1100
    assert groups(str(path))["nightly"]["nodes"] == {NODE: 1100}
    writer.clean_up()
    assert LogReader(str(path)).bounds()[NODE].earliest > 100  # nobody needs it any more
    fill(writer, 30, 100)  # over the cap
    writer.close()
    with pytest.raises(Exception, match=r"events 1100 to \d+ of node mqttd .* \(\d+ events\)"):
        ran(frame, tmp_path)


def test_another_python_of_the_workers_is_told(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqttd.pipeline.spark import register

    log = written(tmp_path / "log", 1)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, pyspark.worker_util as checking\n"
        "class Other:\n"
        "    version_info = (3, 9, 0)\n"
        "    __getattr__ = lambda self, name: getattr(sys, name)\n"
        "checking.sys = Other()\n"
    )
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    context = spark.sparkContext
    try:
        with monkeypatch.context() as changed:
            changed.setattr(context, "pythonExec", str(other))
            register(spark)
        with pytest.raises(Exception, match=r"PYTHON_VERSION_MISMATCH.*3\.9"):
            spark.read.format("mqttd").load(str(log)).count()
    finally:
        register(spark)
    assert spark.read.format("mqttd").load(str(log)).count() == 10


def test_exactly_once_while_driver_and_broker_are_killed(spark: Any, tmp_path: Path) -> None:
    """kill -9 of the driver with its JVM and workers, and of the broker; the table is the log.

    The long form is what `python -m benchmarks.exactly_once` does.
    """

    def rest(run: Run) -> list[str]:
        # In this session, since starting another takes ten seconds; from the same checkpoint.
        stream = spark.readStream.format("mqttd").option("path", str(tmp_path / "data/events"))
        ran(stream.load(), tmp_path)
        files = spark.read.parquet(str(tmp_path / "table")).inputFiles()
        return [one.removeprefix("file://") for one in files]

    if LONG:
        found = exactly_once(tmp_path, rate=20_200, kills=20, spread=25)
        assert found["acknowledged_per_second"] >= 20_000
    else:
        found = exactly_once(tmp_path, rate=2_000, kills=1, spread=1, rest=rest)
    # Equal row for row and column for column, or it had raised.
    assert found["rows_in_table"] == found["events_in_log"] >= found["acknowledged"] > 1000
    assert found["broker_kills"] >= 1 and sum(found["driver_kills"].values()) >= 1


def test_a_table_of_the_catalog_reads_the_log_in_batches_and_streams(
    spark: Any, tmp_path: Path
) -> None:
    """Spark keeps no options of a Python source's table: they are in its schema."""
    path = tmp_path / "a log"
    written(path, 3, 10)
    written(tmp_path / "other", 1, 7, node="other")
    before = sorted(path.rglob("*"))
    options = f"OPTIONS (path '{path};{tmp_path}/other', maxEventsPerTrigger '20')"
    spark.sql("DROP TABLE IF EXISTS events")
    try:
        spark.sql(f"CREATE TABLE events USING mqttd {options}")
        assert spark.sql("SELECT seq FROM events").count() == 37
        assert spark.sql("SELECT seq FROM events WHERE node = 'other' AND seq < 5").count() == 5
        later = 'WITH (startingOffsets = \'{"mqttd": 25, "other": -1}\')'
        assert spark.sql(f"SELECT * FROM events {later}").count() == 5
        frame = spark.readStream.option("startingOffsets", "earliest").table("events")
        query = ran(frame, tmp_path)
        assert len(query.recentProgress) >= 2  # maxEventsPerTrigger
        assert spark.read.parquet(str(tmp_path / "table")).count() == 37
    finally:
        spark.sql("DROP TABLE IF EXISTS events")
    assert sorted(path.rglob("*")) == before
    with pytest.raises(Exception, match="a catalog is no place for a token"):
        spark.sql("CREATE TABLE events USING mqttd OPTIONS (url 'https://b:1', token 'secret')")
    try:
        spark.sql(f"CREATE TABLE narrow (seq BIGINT) USING mqttd OPTIONS (path '{path}')")
        with pytest.raises(Exception, match="a table is created without columns"):
            spark.sql("SELECT * FROM narrow").collect()
    finally:
        spark.sql("DROP TABLE IF EXISTS narrow")
    assert sorted(path.rglob("*")) == before
