"""The sink `mqttd` of a real Spark: exactly once with mqttd, at least once with others.

One session for all tests here.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.killed import Run
from benchmarks.sink_once import sink_once
from mqttd.pipeline.client import Address, Client
from mqttd.pipeline.spark.sink_rows import SinkError, message_of
from tests.integration.test_events import ctl, everything, start
from tests.support.doors import doors_of, write_certificates
from tests.support.needs import needs_program
from tests.support.servers import free_port
from tests.support.spark import local_spark, spark_marks
from tests.support.waiting import until
from tests.unit.pipeline.logs import written

LONG = os.environ.get("MQTTD_LONG") == "1"

pytestmark = spark_marks(3600 if LONG else 900)

TLS = {"certificate": "server.crt", "private_key": "server.key"}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from local_spark("sink")


def payloads(path: Path) -> Counter[bytes]:
    return Counter(
        event.payload
        for event in everything(path)
        if event.event == "message.publish" and event.topic.startswith("out/")
    )


def stream(spark: Any, log: Path, port: int, checkpoint: Path, **options: str) -> Any:
    """Rows of a log, published; a micro-batch has 500 of them, in two tasks."""
    frame = (
        spark.readStream.format("mqttd")
        .option("startingOffsets", "earliest")
        .option("maxEventsPerTrigger", "500")
        .option("minPartitions", "2")
        .load(str(log))
        .selectExpr("concat('out/', topic) as topic", "payload", "1 as qos")
    )
    return (
        frame.writeStream.format("mqttd")
        .options(**{"broker": f"127.0.0.1:{port}", "timeout": "20", **options})
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def test_rows_become_messages_with_all_they_have(spark: Any, tmp_path: Path) -> None:
    broker = start(tmp_path)
    try:
        heard = Client(Address("127.0.0.1", broker.port))
        heard.subscribe("out/#", 2)
        frame = spark.createDataFrame(
            [("out/a", "one", 1, True, {"contentType": "text/plain", "who": "me"}),
             ("out/b", "two", 2, False, None)],
            "topic STRING, payload STRING, qos INT, retain BOOLEAN, properties MAP<STRING, STRING>",
        )  # fmt: skip
        # Nobody is at the first address.
        addresses = f"127.0.0.1:{free_port()}, mqtt://127.0.0.1:{broker.port}"
        frame.write.format("mqttd").option("broker", addresses).mode("append").save()
        found = {}
        for _ in range(2):
            message = heard.receive(30)
            assert message is not None
            found[message.topic] = message
        one, two = found["out/a"], found["out/b"]
        assert (one.payload, one.qos) == (b"one", 1)
        assert one.properties == {3: "text/plain", 38: [("who", "me")]}
        assert (two.payload, two.qos) == (b"two", 2)
        late = Client(Address("127.0.0.1", broker.port))
        late.subscribe("out/#")
        message = late.receive(30)
        assert message is not None and message.topic == "out/a" and message.retain
        heard.close()
        late.close()
    finally:
        broker.stop()


def test_a_receiver_that_is_connected_gets_more_than_its_queue_holds(
    spark: Any, tmp_path: Path
) -> None:
    """A batch was poured into a queue of 1,000, and most of it dropped there."""
    broker = start(tmp_path)
    count = 8000
    try:
        heard = Client(Address("127.0.0.1", broker.port))
        heard.subscribe("out/#", 2)
        frame = spark.range(count).selectExpr("'out/a' as topic", "string(id) as payload", "2 qos")

        def hear() -> Counter[bytes]:
            messages = (heard.receive(30) for _ in range(count))
            return Counter(one.payload for one in messages if one is not None)

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(hear)
            where = f"127.0.0.1:{broker.port}"
            frame.write.format("mqttd").option("broker", where).mode("append").save()
            assert found.result() == Counter(b"%d" % i for i in range(count))
        assert json.loads(ctl(tmp_path, "spark", "stage").stdout)["dropped"] == 0
        heard.close()
    finally:
        broker.stop()


def test_batches_and_streams_are_published_over_tls_to_a_broker_that_is_trusted(
    spark: Any, tmp_path: Path
) -> None:
    write_certificates(tmp_path / "etc")
    broker = start(
        tmp_path,
        'events = ["message.publish"]\n',
        listener={"ssl": {"default": {"bind": "127.0.0.1:0", **TLS}}},
    )
    try:
        port = doors_of(broker)["ssl:default"].port
        where = {"broker": f"mqtts://localhost:{port}", "timeout": "20"}
        trusted = {"caFile": str(tmp_path / "etc/ca.crt")}
        frame = spark.range(20).selectExpr("concat('out/', id) as topic", "string(id) as payload")

        def write(**options: str) -> None:
            frame.write.format("mqttd").options(**where, **options).mode("append").save()

        with pytest.raises(Exception, match="certificate of localhost:[0-9]+ is not trusted"):
            write()
        write(**trusted)
        until(lambda: sum(payloads(tmp_path).values()) >= 20, "nothing is published")
        log = written(tmp_path / "log", 10, 50)
        query = stream(
            spark, log, port, tmp_path / "checkpoint", delivery="staged", **where, **trusted
        )
        assert ended(query)
        until(lambda: sum(payloads(tmp_path).values()) >= 520, "some are missing")
        wanted = Counter([b"%d" % i for i in range(20)]) + Counter(b"%d" % i for i in range(500))
        assert payloads(tmp_path) == wanted
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (["'x' as payload"], {}, "option topic"),
        (["'x' as payload", "'t' as topic", "1 as number"], {}, "column 'number'"),
        (["1 as payload", "'t' as topic"], {}, "expected STRING or BINARY"),
        (["'x' as payload"], {"topic": "a/#"}, "option topic"),
        (["'x' as payload"], {"topic": "a", "brokr": "x"}, "did you mean broker"),
        (["'x' as payload"], {"topic": "a", "delivery": "twice"}, "expected auto, staged, direct"),
        (["'x' as payload"], {"topic": "a", "caFile": "ca"}, "caFile = 'ca': expected mqtts://"),
    ],
)
def test_a_wrong_write_is_told_before_anything_is_sent(
    spark: Any, columns: list[str], options: dict[str, str], told: str
) -> None:
    frame = spark.range(1).selectExpr(*columns)
    with pytest.raises(Exception, match=told):
        frame.write.format("mqttd").options(broker="127.0.0.1:1", **options).mode("append").save()


def test_what_failed_writes_have_staged_goes_at_once(spark: Any, tmp_path: Path) -> None:
    broker = start(tmp_path)
    rows = [("out/a", str(i)) for i in range(1000)] + [("a/#", "no topic")]
    frame = spark.createDataFrame(rows, "topic STRING, payload STRING")
    try:
        for _ in range(3):
            with pytest.raises(Exception, match="a row with topic 'a/#'"):
                frame.repartition(2).write.format("mqttd").option(
                    "broker", f"127.0.0.1:{broker.port}"
                ).mode("append").save()
            until(lambda: staged(tmp_path) == 0, "rows stay")
        assert not payloads(tmp_path)
    finally:
        broker.stop()


def test_a_write_fails_where_a_message_of_it_is_refused(spark: Any, tmp_path: Path) -> None:
    """The message was left out, and the write told as done."""
    broker = start(tmp_path, retained={"max_payload": 100, "max_per_user": 1})

    def write(*rows: tuple[str, str, bool], **options: str) -> None:
        frame = spark.createDataFrame(rows, "topic STRING, payload STRING, retain BOOLEAN")
        writer = frame.coalesce(1).write.format("mqttd").options(**options)
        writer.option("broker", f"127.0.0.1:{broker.port}").mode("append").save()

    try:
        with pytest.raises(Exception, match="refused a message to out/2: 101 bytes to be retained"):
            write(("out/1", "a", False), ("out/2", "b" * 101, True), ("out/3", "c", False))
        assert not payloads(tmp_path)
        with pytest.raises(Exception, match=r"refused a message to out/2: Quota exceeded \(0x97\)"):
            write(("out/1", "d", True), ("out/2", "e", True), ("out/3", "f", False))
        assert payloads(tmp_path)[b"d"] == 1 and not payloads(tmp_path)[b"f"]
        # Nobody asks for the rest of it: it is given up.
        told = json.loads(ctl(tmp_path, "spark", "stage").stdout)
        assert told["bytes"] == 0 and told["queries"] == []
        write(("out/1", "g", True))
        assert payloads(tmp_path)[b"g"] == 1
        # Or what is refused is left out, when it is staged and when it is published.
        rows = (("out/1", "h" * 101, True), ("out/2", "i", True), ("out/3", "j", False))
        write(*rows, onRefused="skip")
        assert payloads(tmp_path)[b"j"] == 1 and not payloads(tmp_path)[b"h" * 101]
        assert broker.says("1 skipped: refused a message to out/1: 101 bytes to be retained")
        assert broker.says("1 skipped: refused a message to out/2: Quota exceeded (0x97)")
        with pytest.raises(Exception, match="onRefused = 'skip': expected delivery = staged"):
            write(*rows, onRefused="skip", delivery="direct")
    finally:
        broker.stop()


def staged(path: Path) -> int:
    """How many rows wait for their release."""
    told = ctl(path, "spark", "stage")
    found: int = json.loads(told.stdout)["staged_rows"]
    return found


def test_rows_that_are_no_messages_can_be_told_before(spark: Any) -> None:
    """As docs/examples/publish_or_keep.py does, which keeps them in a table of its own."""
    example = runpy.run_path(str(Path(__file__).parents[2] / "docs/examples/publish_or_keep.py"))
    topics = [
        "alerts/a", "/", "$SYS/x", "\u00e4" * 32_767, "a/" * 255, "a b\n", "\\u0000", "[x]", "0",
        "", None, "alerts/#", "a+b", "a\0", "\u00e4" * 32_768, "a/" * 256,
    ]  # fmt: skip
    frame = spark.createDataFrame([(topic,) for topic in topics], "topic STRING")
    told = [row.ok for row in frame.selectExpr(f"{example['IS_TOPIC']} as ok").collect()]

    def is_message(topic: str | None) -> bool:
        try:
            message_of({"topic": topic}, None, 1, False)
        except SinkError:
            return False
        return True

    assert told == [is_message(topic) for topic in topics] == [True] * 9 + [False] * 7


def test_a_write_that_would_take_something_away_is_refused(spark: Any) -> None:
    frame = spark.range(1).selectExpr("'t' as topic", "'x' as payload")
    with pytest.raises(Exception, match=r"cannot be taken back; use mode\(\"append\"\)"):
        frame.write.format("mqttd").option("broker", "127.0.0.1:1").mode("overwrite").save()


def test_a_stream_is_published_once_while_the_broker_is_killed_and_batches_are_replayed(
    spark: Any, tmp_path: Path
) -> None:
    """Killed between stage and release; and each batch run again from a copy of the checkpoint."""
    log = written(tmp_path / "log", 40, 50)
    conf = 'events = ["message.publish"]\n'
    port = free_port()
    listen = {"tcp": {"default": {"bind": f"127.0.0.1:{port}"}}}
    broker = start(tmp_path / "out", conf, listener=listen)
    checkpoint = tmp_path / "checkpoint"
    try:
        query = stream(spark, log, port, checkpoint, delivery="staged")
        until(lambda: sum(payloads(tmp_path / "out").values()) >= 500, "nothing is published")
        # Somewhere in the next batches; the query waits, or fails and is started again.
        broker.stop(hard=True)
        broker = start(tmp_path / "out", conf, listener=listen)
        ended(query)
        for _ in range(3):
            query = stream(spark, log, port, checkpoint, delivery="staged")
            if ended(query):
                break
        wanted = Counter(b"%d" % number for number in range(2000))
        until(lambda: len(payloads(tmp_path / "out")) >= 2000, "some are missing")
        assert payloads(tmp_path / "out") == wanted
        # The last batches have been published, and Spark does not know: it runs them again, in
        # other tasks.
        commits = checkpoint / "commits"
        for name in ("3", "2"):
            for file in (commits / name, commits / f".{name}.crc"):
                file.unlink(missing_ok=True)
        query = stream(spark, log, port, checkpoint, delivery="staged")
        assert ended(query)
        assert sum(one["numInputRows"] for one in query.recentProgress) >= 500
        time.sleep(0.1)
        assert payloads(tmp_path / "out") == wanted
    finally:
        broker.stop()


@pytest.mark.parametrize("workers", [1, 2])
def test_14_a_driver_killed_in_a_staged_batch_loses_and_doubles_nothing(
    spark: Any, tmp_path: Path, workers: int
) -> None:
    """Once; MQTTD_LONG=1: thirty times, as `python -m benchmarks.sink_once` does."""

    def rest(run: Run) -> None:
        # In this session, since starting another takes ten seconds; from the same checkpoint.
        frame = spark.readStream.format("mqttd").load(str(tmp_path / "source"))
        query = (
            frame.selectExpr("topic", "payload", "2 as qos")
            .writeStream.format("mqttd")
            .option("broker", (tmp_path / "address").read_text())
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert ended(query)

    found = sink_once(tmp_path, 30 if LONG else 1, rest=rest, workers=workers)
    assert found["in_staged_batches"] >= 1 and found["twice_at_qos_2"] == 0


def ended(query: Any) -> bool:
    """Whether it came to its end without an error; raises where Spark could not start a worker."""
    try:
        assert query.awaitTermination(300)
    except AssertionError:
        raise
    except Exception as error:
        print(str(error)[:2000])
        if "worker failed to connect back" in str(error):
            raise
        return False
    return True


def test_another_broker_gets_everything_at_least_once(spark: Any, tmp_path: Path) -> None:
    program = needs_program("mosquitto", "mosquitto")
    port = free_port()
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
    process = subprocess.Popen(
        [program, "-c", conf], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ,
    )  # fmt: skip
    try:
        heard = Client(Address("127.0.0.1", port))
        heard.subscribe("out/#")
        log = written(tmp_path / "log", 10, 50)
        assert ended(stream(spark, log, port, tmp_path / "checkpoint"))
        found: Counter[bytes] = Counter()
        while len(found) < 500:
            message = heard.receive(30)
            assert message is not None
            found[message.payload] += 1
        heard.close()
        with pytest.raises(Exception, match="cannot stage"):
            stream(spark, log, port, tmp_path / "checkpoint2", delivery="staged").awaitTermination(
                120
            )
    finally:
        process.terminate()
        process.wait(10)
