"""How fast Spark reads the event log: python -m benchmarks.spark_read [--help]

    log         the format mqttd, from the directory
    json        the same events as JSON files, Spark's own source
    parquet     the same events as Parquet files, Spark's own source
    log, 2      the format mqttd, two columns
    parquet, 2  the same columns, selected from Parquet
    log, few    the format mqttd, one event in a hundred (events=client.*)

The log is as the broker writes it, blocks of 4,096 events with zstd; --plain leaves both. --block
1 is a flush after each event; with --properties messages have so many user properties, and headers
are read as well. One session, local[2]; the sources take turns, and each round k of one is
compared with round k of the others. What is timed is a stream's addBatch (Trigger.AvailableNow)
into a sink that drops everything, and into Parquet files. Leaves with 1 if the log is read less
than 1.3 x as fast as JSON or 0.55 x as fast as Parquet, or written to Parquet less than 0.75 x as
fast as from Parquet.

With --delay SECONDS also how long after its publish an event shows in a streaming aggregate, at
1,000 events a second and a trigger of 500 ms (at most 1.5 s in the median).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.report import machine
from mqttd.codec.properties import USER_PROPERTY, encode_properties
from mqttd.pipeline.log.blocks import (
    HAS_PAYLOAD,
    HAS_QOS,
    HAS_SIZE,
    NO_ID,
    Row,
    encode_block,
)
from mqttd.pipeline.log.packed import pack, taken_of
from mqttd.pipeline.log.schema import CODES
from mqttd.pipeline.log.writer import Encoded, Writer
from mqttd.pipeline.log.zstd import zstd

__all__ = ["BOUNDS", "main", "row_of", "write_log"]

#: (sink, source compared with) -> how many times as fast the log must be read.
BOUNDS: Final = {
    ("noop", "json"): 1.3,
    ("noop", "parquet"): 0.55,
    ("parquet", "parquet"): 0.75,
}
#: The columns of a scan of two.
TWO: Final = ("topic", "payload")
MOST_DELAY: Final = 1.5
BLOCK: Final = 4096
PLAIN_BLOCK: Final = 256
START: Final = 1_700_000_000_000_000


def row_of(i: int, properties: int = 0) -> Row:
    """The event number `i`: a publish of 40 bytes, one in a hundred a client that connects."""
    client = f"device-{i * 7919 % 5000:05d}"
    if i % 100 == 0:
        code = CODES["client.connected"]
        return (code, START + i * 50, 0, NO_ID, client, "", "10.1.2.3:40000", "", "", 0, b"", b"")
    payload = b'{"t": %06.2f, "n": %d}' % (i % 10_000 / 100, i)
    pairs = [(f"key-{k}", f"value {i} {k}") for k in range(properties)]
    return (
        CODES["message.publish"],
        START + i * 50,
        (i & 1) | HAS_QOS | HAS_SIZE | HAS_PAYLOAD,
        (START + i * 50 << 64 | i & 0xFFFF).to_bytes(16, "big"),
        client,
        "user",
        "",
        f"site/{i % 40}/line/{i % 7}/sensor/{i % 1000}",
        "",
        len(payload),
        payload,
        encode_properties({USER_PROPERTY: pairs}) if pairs else b"",
    )


def write_log(
    path: str, events: int, plain: bool = False, block: int = 0, properties: int = 0
) -> int:
    """A log of about so many events; returns how many."""
    writer = Writer(path, "n1")
    size = block or (PLAIN_BLOCK if plain else BLOCK)
    codec = None if plain else zstd()
    while writer.next < events:
        base = writer.next
        rows = [row_of(i, properties) for i in range(base, base + size)]
        data = encode_block(rows, base) if plain else pack(taken_of(rows), base, 0, codec)
        writer.write([Encoded(base, size, data)])
    writer.close()
    return writer.next


def read_stream(spark: Any, source: str, folder: Path, schema: Any) -> Any:
    """The events of a source as a stream."""
    if source.startswith("log"):
        reader = spark.readStream.format("mqttd").option("startingOffsets", "earliest")
        if "headers" in schema.names:
            reader = reader.option("includeHeaders", "true")
        if source == "log, 2":
            reader = reader.option("columns", ",".join(TWO))
        elif source == "log, few":
            reader = reader.option("events", "client.*")
        return reader.load(str(folder / "log"))
    kind, comma, _ = source.partition(",")
    frame = spark.readStream.schema(schema).format(kind).load(str(folder / kind))
    return frame.select(*TWO) if comma else frame


def timed(frame: Any, sink: str, folder: Path) -> float:
    """Seconds of addBatch until a stream has read everything."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        writer = frame.writeStream.format(sink).option("checkpointLocation", f"{place}/checkpoint")
        if sink != "noop":
            writer = writer.option("path", f"{place}/table")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(one["durationMs"].get("addBatch", 0) for one in query.recentProgress) / 1000


def throughput(spark: Any, folder: Path, given: argparse.Namespace, told: list[str]) -> bool:
    """Tell the tables, a line each; False if a bound was missed."""
    events = write_log(
        str(folder / "log"), given.events, given.plain, given.block, given.properties
    )
    batch = spark.read.format("mqttd").option("includeHeaders", given.properties > 0)
    batch = batch.load(str(folder / "log"))
    for source in ("json", "parquet"):
        batch.write.format(source).save(str(folder / source))
    for name, suffix in (("log", "events"), ("parquet", "parquet")):
        size = sum(one.stat().st_size for one in (folder / name).rglob(f"*.{suffix}"))
        say(told, f"{name}: {size / events:.1f} bytes an event")
    good = True
    for sink, sources in (
        ("noop", ["log", "json", "parquet", "log, 2", "parquet, 2", "log, few"]),
        ("parquet", ["log", "parquet"]),
    ):
        found: dict[str, list[float]] = {source: [] for source in sources}
        for one in range(given.rounds + 1):
            for source in sources:
                seconds = timed(read_stream(spark, source, folder, batch.schema), sink, folder)
                if one:  # the first round is to get warm
                    found[source].append(events / seconds)
        say(told, "", f"| into {sink} | events/s | lowest | highest | log is |",
            "|---|---:|---:|---:|---:|")  # fmt: skip
        for source, rates in found.items():
            ratios = [a / b for a, b in zip(found["log"], rates, strict=True)]
            ratio = statistics.median(ratios)
            bound = BOUNDS.get((sink, source))
            least = "" if bound is None else f", at least {bound:g} x"
            say(told, f"| {source} | {statistics.median(rates):,.0f} | {min(rates):,.0f} |"
                      f" {max(rates):,.0f} | {ratio:.2f} x{least} |")  # fmt: skip
            if bound is not None and ratio < bound:
                print(f"  missed: at least {bound:g} x {source}")
                good = False
    return good


def say(told: list[str], *lines: str) -> None:
    """Print, and remember for the page."""
    print("\n".join(lines), flush=True)
    told += lines


def delay(spark: Any, folder: Path, seconds: float, told: list[str]) -> bool:
    """How long an event takes to show in an aggregate; False if it is too long."""
    from mqttd.pipeline.log.appender import Appender

    writer = Writer(str(folder / "live"), "n1")
    due: list[tuple[float, Callable[[], None]]] = []

    class Timer:
        def cancel(self) -> None:
            due.clear()

    def later(after: float, f: Callable[[], None]) -> Timer:
        due.append((time.monotonic() + after, f))
        return Timer()

    log = Appender(writer, later, lambda f: None)
    ending = threading.Event()

    def publish() -> None:
        began, sent = time.monotonic(), 0
        while not ending.is_set():
            while sent < (time.monotonic() - began) * 1000:
                now = time.time_ns() // 1000
                log.append((*row_of(sent + 1)[:1], now, *row_of(sent + 1)[2:]))
                sent += 1
            while due and due[0][0] <= time.monotonic():
                due.pop(0)[1]()
            time.sleep(0.002)

    publisher = threading.Thread(target=publish)
    publisher.start()
    found: list[float] = []
    began = time.monotonic()

    def seen(frame: Any, batch: int) -> None:
        row = frame.agg({"latest": "max"}).collect()[0]
        if row[0] is not None and time.monotonic() - began > 15:
            found.append(time.time() - row[0].timestamp())

    query = (
        spark.readStream.format("mqttd")
        .option("columns", "timestamp,topic")
        .load(str(folder / "live"))
        .groupBy("topic")
        .agg({"timestamp": "max"})
        .withColumnRenamed("max(timestamp)", "latest")
        .writeStream.outputMode("update")
        .foreachBatch(seen)
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    query.awaitTermination(15 + seconds)
    query.stop()
    ending.set()
    publisher.join()
    log.stop()
    log.join()
    # An event waits half a trigger on the average before its batch begins.
    p50 = statistics.median(found) + 0.25
    say(
        told,
        "",
        "From publish to a streaming aggregate, 1,000 events a second, trigger of 500 ms: median"
        f" {p50:.2f} s (at most {MOST_DELAY:g} s); newest event of a batch {min(found):.2f} to"
        f" {max(found):.2f} s, {len(found)} batches.",
    )
    return p50 <= MOST_DELAY


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_read", description="How fast Spark reads the event log."
    )
    parser.add_argument("--events", type=int, default=2_000_000, help="(%(default)d)")
    parser.add_argument("--plain", action="store_true", help="small blocks, not compressed")
    parser.add_argument("--block", type=int, default=0, metavar="EVENTS", help="size of blocks")
    parser.add_argument("--properties", type=int, default=0, metavar="COUNT", help="(%(default)d)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (%(default)d)")
    parser.add_argument("--delay", type=float, metavar="SECONDS", help="measure the delay so long")
    parser.add_argument("--only-delay", action="store_true", help="and nothing else")
    parser.add_argument("--page", metavar="FILE", type=Path, help="keep the figures there")
    given = parser.parse_args(arguments)
    shape = machine()
    from mqttd.pipeline.spark import NoJava, register, session

    try:
        spark = session(
            "benchmark",
            "local[2]",
            spark__ui__enabled="false",
            spark__ui__showConsoleProgress="false",
            spark__driver__memory="2g",
            spark__sql__shuffle__partitions="2",
        )
    except NoJava as error:
        print(error, file=sys.stderr)
        return 2
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    told: list[str] = []
    say(
        told,
        f"Spark {spark.version}, local[2]; {given.events:,} events, {given.rounds} rounds, load"
        f" average {os.getloadavg()[0]:.1f}.",
    )
    met = []
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        if not given.only_delay:
            met.append(throughput(spark, Path(directory), given, told))
        if given.delay or given.only_delay:
            met.append(delay(spark, Path(directory), given.delay or 20, told))
    spark.stop()
    if given.page is not None:
        head = [
            f"# Spark reading the event log, {datetime.now(UTC):%Y-%m-%d}",
            "",
            f"{shape['cores']} x {shape['cpu']}, {shape['memory']} of memory, {shape['kernel']},"
            f" {shape['python']}. A stream's addBatch with Trigger.AvailableNow; the sources take"
            " turns, ratios are medians of those within a round.",
            "",
        ]
        given.page.write_text("\n".join(head + told) + "\n", "utf-8")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
