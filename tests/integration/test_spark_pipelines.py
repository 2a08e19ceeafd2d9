"""Every pipeline on real Spark, local[2]: the numbers are those of the log.

One session for all tests here; the pipelines are called as their command is.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset

from mqttd.pipeline.log.blocks import (
    HAS_PAYLOAD,
    HAS_QOS,
    HAS_SIZE,
    NO_ID,
    Row,
    encode_block,
)
from mqttd.pipeline.log.schema import CODES
from mqttd.pipeline.log.writer import Encoded, Writer
from tests.support.needs import missing
from tests.support.spark import local_spark, spark_marks
from tests.support.waiting import until
from tests.unit.pipeline.logs import NODE, START

pytestmark = spark_marks()

S = 1_000_000


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from local_spark("pipelines")


def write(path: Path, *events: tuple[Any, ...]) -> Path:
    """Events as (second, name, client id, topic, payload, message number), in blocks of 50."""
    writer = Writer(str(path), NODE)
    rows: list[Row] = []
    for at, name, client, *rest in events:
        topic, payload, number = [*rest, "", b"", 0][:3] if rest else ("", b"", 0)
        message = name.startswith("message.")
        flags = HAS_QOS | HAS_SIZE | 1 if message else 0
        if name == "message.publish":
            flags |= HAS_PAYLOAD
        when = START + round(at * S)
        message_id = (1 << 80 | number).to_bytes(16, "big") if message else NO_ID
        size = len(payload) if message else 0
        shown = payload if name == "message.publish" else b""
        reason = "closed" if name == "client.disconnected" else ""
        rows.append((CODES[name], when, flags, message_id, client, "", "127.0.0.1:1",
                     topic, reason, size, shown, b""))  # fmt: skip
    for at in range(0, len(rows), 50):
        part = rows[at : at + 50]
        writer.write([Encoded(writer.next, len(part), encode_block(part, writer.next))])
    writer.close()
    return path


def run(name: str, *words: object) -> None:
    from mqttd.pipeline.spark.pipelines.command import main

    assert main([name, "--master", "local[2]", *map(str, words)]) == 0


@pytest.mark.parametrize("kind", ["files", "delta"])
def test_14_the_archive_has_each_event_once_without_renames(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    events = [(i * 40, "message.publish", "c", f"t/{i}", b"%d" % i, i) for i in range(600)]
    log = write(tmp_path / "log", *events[:400])
    out, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    url = out.as_uri() if kind == "files" else str(out)
    if kind == "delta":
        try:
            from deltalake import DeltaTable
        except ImportError:
            missing("deltalake", "pip install 'mqttd[delta]'")

    def read() -> list[tuple[int, bytes]]:
        if kind == "delta":
            found = DeltaTable(str(out)).to_pyarrow_table()
        else:
            found = dataset.dataset(str(out), partitioning="hive").to_table()
        return sorted((row["seq"], row["payload"]) for row in found.to_pylist())

    words = ("--path", log, "--out", url, "--format", kind, "--checkpoint", checkpoint)
    run("archive", *words, "--max-events", 150)
    # Killed after its last batches were written: Spark runs them again.
    for number in "12":
        for name in (checkpoint / "commits").glob(f"*{number}*"):
            name.unlink()
    write(tmp_path / "log", *events[400:])
    run("archive", *words, "--compact", 1)
    assert read() == [(i, b"%d" % i) for i in range(600)]


def test_the_archive_has_each_event_once_by_date_and_event_and_is_compacted(
    spark: Any, tmp_path: Path
) -> None:
    from mqttd.pipeline.spark.pipelines.archive import Table

    # START is 80,000 seconds behind midnight: two days.
    events = [(i * 40, "message.publish" if i % 3 else "client.connected", f"c{i % 5}",
               f"t/{i}", b"%d" % i, i) for i in range(600)]  # fmt: skip
    log = write(tmp_path / "log", *events[:400])
    out = tmp_path / "lake"
    run("archive", "--path", log, "--out", out, "--max-events", 200, "--compact", 0)
    table = Table(spark, str(out))
    files = len(list(out.glob("date=*/event=*/*.parquet")))
    assert table.read().count() == 400 and files >= 6
    # Killed after its last batch: Spark runs it again.
    for name in (out / "_checkpoint/commits").glob("*1*"):
        name.unlink()
    # Killed while a plan is carried out: half is moved, the rest is not.
    (victim, other) = sorted(out.glob("date=*/event=*/*.parquet"))[:2]
    (out / "_new/1").mkdir(parents=True)
    kept = f"{other.parent.relative_to(out)}/{other.name}"
    (out / "_new/1/x.parquet").write_bytes(other.read_bytes())
    other.unlink()
    last = json.loads((out / "_last.json").read_text())
    moves = [["_new/1/gone.parquet", str(victim.relative_to(out))], ["_new/1/x.parquet", kept]]
    plan = {"moves": moves, "deletes": [], "new": "_new/1", "last": last}
    (out / "_plan.json").write_text(json.dumps(plan))
    (out / "._plan.json.crc").unlink(missing_ok=True)
    write(tmp_path / "log", *events[400:])
    run("archive", "--path", log, "--out", out, "--compact", 1)
    rows = table.read().select("seq", "event", "date", "payload", "timestamp").collect()
    assert sorted(row.seq for row in rows) == list(range(600))
    for row in rows:
        assert row.date == row.timestamp.date()
        assert row.event == events[row.seq][1]
        if row.event == "message.publish":
            assert bytes(row.payload) == b"%d" % row.seq
    folders = list(out.glob("date=*/event=*"))
    assert len(folders) == 4
    assert len(list(out.glob("date=*/event=*/*.parquet"))) == 4
    assert not (out / "_plan.json").exists() and not list((out / "_new").iterdir())


def test_rates_count_each_window_and_level(spark: Any, tmp_path: Path) -> None:
    # START is 20 seconds behind a full minute.
    events = [(i, "message.publish", "c", f"a/{'bc'[i % 2]}/x", b"12345", i) for i in range(200)]
    log = write(tmp_path / "log", *events)
    run("rates", "--path", log, "--out", tmp_path / "rates", "--lateness", "5 seconds")
    rows = spark.read.parquet(str(tmp_path / "rates")).collect()
    wanted: Counter[tuple[int, str]] = Counter()
    for at, _, _, topic, *_ in events:
        minute = (START // S + at) // 60
        wanted[minute, "a"] += 1
        wanted[minute, topic[:3]] += 1
    found = {(round(row.start.timestamp()) // 60, row.topic): row for row in rows}
    last = max(minute for minute, _ in wanted)
    assert {key: row.messages for key, row in found.items()} == {
        key: count for key, count in wanted.items() if key[0] < last
    }
    for (_, topic), row in found.items():
        assert row.bytes == 5 * row.messages and row.level == topic.count("/") + 1
        assert row.messages_per_second == pytest.approx(row.messages / 60)


def test_sessions_over_two_runs(spark: Any, tmp_path: Path) -> None:
    log = write(tmp_path / "log", (0, "client.connected", "a"), (5, "client.disconnected", "a"),
                (7, "client.connected", "a"), (1, "client.connected", "b"))  # fmt: skip
    out = tmp_path / "sessions"
    run("sessions", "--path", log, "--out", out)
    write(log, (17, "client.disconnected", "a"), (31, "client.disconnected", "b"))
    run("sessions", "--path", log, "--out", out)
    rows = spark.read.parquet(str(out)).orderBy("client_id", "connected_at").collect()
    assert [(row.client_id, row.seconds, row.gap_seconds, row.reason) for row in rows] == [
        ("a", 5.0, None, "closed"),
        ("a", 10.0, 2.0, "closed"),
        ("b", 30.0, None, "closed"),
    ]
    assert round(rows[0].connected_at.timestamp() * S) == START


def test_anomalies_are_told_to_the_broker(spark: Any, tmp_path: Path) -> None:
    from mqttd.pipeline.client import Address, Client
    from tests.integration.test_events import start

    events: list[tuple[Any, ...]] = [(i / 10, "client.connected", "flappy/1") for i in range(12)]
    for bucket in range(8):
        count = 5 if bucket < 7 else 300
        events += [(60 * bucket + i / 10, "message.publish", "talker", "t", b"x", i)
                   for i in range(count)]  # fmt: skip
    log = write(tmp_path / "log", *events)
    broker = start(tmp_path / "broker")
    try:
        with Client(Address("127.0.0.1", broker.port)) as heard:
            heard.subscribe("alerts/#")
            run("anomalies", "--path", log, "--to-broker", f"127.0.0.1:{broker.port}",
                "--topic", "alerts", "--checkpoint", tmp_path / "checkpoint")  # fmt: skip
            found = {}
            for _ in range(2):
                message = heard.receive(30)
                assert message is not None
                found[message.topic] = json.loads(message.payload)
            assert heard.receive(0.2) is None
        assert found["alerts/flapping/flappy_1"]["count"] == 10
        assert found["alerts/flapping/flappy_1"]["client_id"] == "flappy/1"
        assert 90 <= found["alerts/spike/talker"]["count"] <= 110
    finally:
        broker.stop()


def test_the_latest_value_of_each_device_and_topic(spark: Any, tmp_path: Path) -> None:
    from mqttd.pipeline.spark.pipelines.latest import Latest

    def events(start: int) -> list[tuple[Any, ...]]:
        return [(i, "message.publish", f"d{i % 3}", f"t/{i % 2}", b"%d" % i, i)
                for i in range(start, start + 100)]  # fmt: skip

    log = write(tmp_path / "log", *events(0))
    out = tmp_path / "latest"
    run("latest", "--path", log, "--out", out, "--max-events", 40)
    write(log, *events(100))
    run("latest", "--path", log, "--out", out)
    rows = Latest(spark, str(out)).read().collect()
    assert {(row.client_id, row.topic): int(bytes(row.payload)) for row in rows} == {
        (f"d{i % 3}", f"t/{i % 2}"): i for i in range(194, 200)
    }


def test_latency_from_publish_to_acknowledgement(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[tuple[Any, ...]] = []
    for i in range(100):
        at = i / 10
        events += [(at, "message.publish", "p", "a/b", b"x", i)]
        for receiver in ("r1", "r2"):
            events += [(at + 0.001 * (i + 1), "message.delivered", receiver, "a/b", b"", i)]
        events += [(at + 0.001 * (i + 1) + 0.05, "message.acked", "r1", "a/b", b"", i)]
    log = write(tmp_path / "log", *sorted(events, key=lambda one: one[0]))
    out = tmp_path / "latency"
    run("latency", "--path", log, "--out", out, "--window", "1 hour")
    (row,) = spark.read.parquet(str(out)).collect()
    assert (row.topic, row.deliveries, row.acked) == ("a", 200, 100)
    assert row.delivery_p50 == pytest.approx(50, abs=1)
    assert row.delivery_p99 == pytest.approx(99, abs=1)
    assert row.ack_p50 == pytest.approx(50, abs=0.1)
    assert row.total_p95 == pytest.approx(145, abs=1)


def test_latency_is_followed_while_the_log_grows(spark: Any, tmp_path: Path) -> None:
    """A window is written once, when what comes later is late by more than `--longest`."""

    def minute(number: int) -> list[tuple[Any, ...]]:
        events: list[tuple[Any, ...]] = []
        for i in range(50):
            at, one = 60 * number + i / 10, 100 * number + i
            events += [
                (at, "message.publish", "p", "a/b", b"x", one),
                (at + 0.02, "message.delivered", "r", "a/b", b"", one),
                (at + 0.03, "message.acked", "r", "a/b", b"", one),
            ]
        return sorted(events, key=lambda one: one[0])

    log, out = write(tmp_path / "log", *minute(0)), tmp_path / "latency"
    words = ["--path", log, "--out", out, "--window", "10 seconds", "--longest", "10 seconds",
             "--follow", "--trigger", "200 milliseconds"]  # fmt: skip
    from pyspark.errors import AnalysisException

    failed: list[BaseException] = []

    def follow() -> None:
        try:
            run("latency", *words)
        except BaseException as error:
            failed.append(error)

    def rows() -> list[Any]:
        if failed:
            raise failed[0]
        try:
            return list(spark.read.parquet(str(out)).orderBy("start").collect())
        except AnalysisException:  # no table yet
            return []

    following = threading.Thread(target=follow, daemon=True)
    following.start()
    try:
        for number in (1, 2):  # each ends the one before
            write(log, *minute(number))
            found = until(lambda number=number: rows()[number - 1 :], "no window ends", 120)
            (row,) = found
            assert round(row.start.timestamp() * S) == START + (60 * number - 60) * S
            assert (row.topic, row.deliveries, row.acked) == ("a", 50, 50)
            assert row.delivery_p50 == pytest.approx(20, abs=0.1)
            assert row.total_p99 == pytest.approx(30, abs=0.1)
    finally:
        for query in spark.streams.active:
            query.stop()
        following.join(60)
    assert not following.is_alive() and not failed


def test_a_mistake_is_one_line(spark: Any, tmp_path: Path,
                               capsys: pytest.CaptureFixture[str],
                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.delenv("MQTTD_TRACEBACK", raising=False)
    from mqttd.pipeline.spark.pipelines.command import main

    words = ["--master", "local[2]", "--out", str(tmp_path / "out")]
    assert main(["rates", "--path", str(tmp_path), *words]) == 1
    assert "no event log here" in capsys.readouterr().err
    log = write(tmp_path / "log", (0, "client.connected", "a"))
    assert main(["rates", "--path", str(log), "--subscribe", "a/#/b", *words]) == 1
    error = capsys.readouterr().err
    assert "option subscribe" in error and len(error.splitlines()) == 1


def test_the_notebook_goes_from_a_broker_to_a_chart(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells, in order, in the session of these tests; the last of them, since it ends it."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("agg")
    shown: list[Any] = []
    monkeypatch.setattr(pyplot, "show", lambda: shown.append(pyplot.gcf()))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    page = Path(__file__).parents[2] / "docs/howto/spark-notebook.ipynb"
    cells = [cell for cell in json.loads(page.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == 10
    names: dict[str, Any] = {}
    try:
        for number, cell in enumerate(cells):
            text = "".join(cell["source"])
            if number == 9:
                text = text.replace("spark.stop()", "")
            exec(compile(text, f"cell {number + 1}", "exec"), names)
    finally:
        if "broker" in names:
            names["broker"].kill()
    (figure,) = shown
    assert [len(line.get_xdata()) for line in figure.axes[0].lines] == [200] * 3
    assert names["values"].shape[0] == 600
