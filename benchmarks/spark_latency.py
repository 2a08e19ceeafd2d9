"""From a publish to a streaming aggregate: python -m benchmarks.spark_latency [--help]

    publisher --QoS 0--> broker --> event log -----------------> Spark: groupBy(topic).count()
    a stamp in each               '-> subscriber --> JSON files --> Spark's file source, the same

A publisher of its own process sends at `--rate`; the query's aggregate is collected after each
micro-batch, at a time that is noted. Afterwards each event's latency is that time less its stamp:
for every event that was published after `--warm` seconds, none is sampled. The file source is what
one has without an event log: a subscriber writes a file each 100 ms, in one piece.

Prints p50, p99 and p99.9 for each rate, source by source; says what the machine did beside.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from benchmarks.killed import DEADLINE, Failed, Run
from benchmarks.report import machine
from mqttd.codec.packets import Connect, Publish, Subscribe, Subscription
from mqttd.codec.parser import Parser
from mqttd.codec.serializer import serialize

__all__ = ["main", "measured"]

PLUGIN_CONF: Final = 'events = ["message.publish"]\noverflow = "block"\n'
TOPICS: Final = 50
#: Seconds between two looks at what is due; and between two files.
TICK: Final = 0.005
FILE_EVERY: Final = 0.1

DRIVER: Final = """
import json, sys, time
from mqttd.pipeline.spark import register, session
folder, kind, trigger = sys.argv[1:]
spark = register(session("latency", "local[2]", spark__ui__enabled="false",
                         spark__driver__memory="2g", spark__sql__shuffle__partitions="2",
                         spark__sql__streaming__minBatchesToRetain="1000000"))
spark.sparkContext.setLogLevel("ERROR")
if kind == "log":
    frame = spark.readStream.format("mqttd").option("columns", "topic")
    frame = frame.load(folder + "/data/events")
else:
    frame = spark.readStream.schema("stamp LONG, topic STRING").json(folder + "/files")
seen = open(folder + "/batches-" + kind, "w")

def collected(batch, number):
    batch.collect()
    seen.write(json.dumps([number, time.time()]) + "\\n")
    seen.flush()

(frame.groupBy("topic").count().writeStream.outputMode("update").foreachBatch(collected)
 .option("checkpointLocation", folder + "/checkpoint-" + kind)
 .trigger(processingTime=trigger).start().awaitTermination())
"""


def _connected(port: int, client_id: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(serialize(Connect(client_id, 4), 4))
    connection.recv(4)
    return connection


def publish(port: int, rate: float, seconds: float) -> None:
    """Send stamped messages at this rate."""
    connection = _connected(port, "publisher")
    heads = []
    for one in range(TOPICS):
        packet = serialize(Publish(f"site/{one}", bytes(8)), 4)
        heads.append(packet[:-8])
    began, sent = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        due = int(now * rate)
        if due > sent:
            stamp = (time.time_ns() // 1000).to_bytes(8, "big")
            connection.sendall(b"".join(heads[i % TOPICS] + stamp for i in range(sent, due)))
            sent = due
        time.sleep(TICK)
    connection.close()


def write_files(port: int, folder: Path) -> None:
    """Subscribe to everything, and write it to files, until terminated."""
    connection = _connected(port, "files")
    connection.sendall(serialize(Subscribe(1, [Subscription("site/#", 0)]), 4))
    parser = Parser(4, role="client")
    lines: list[str] = []
    number, begun = 0, time.monotonic()
    connection.settimeout(FILE_EVERY / 4)
    while True:
        try:
            data = connection.recv(1 << 16)
            if not data:
                return
            for packet in parser.feed(data):
                if isinstance(packet, Publish):
                    stamp = int.from_bytes(packet.payload, "big")
                    lines.append(f'{{"stamp": {stamp}, "topic": "{packet.topic}"}}\n')
        except TimeoutError:
            pass
        if lines and time.monotonic() - begun >= FILE_EVERY:
            beside = folder / f".{number:08d}"
            beside.write_text("".join(lines))
            beside.rename(folder / f"{number:08d}.json")
            lines, number, begun = [], number + 1, time.monotonic()


def measured(folder: Path, kinds: Sequence[str], rate: float, seconds: float, warm: float,
             trigger: str) -> list[dict[str, Any]]:  # fmt: skip
    """Latencies of these sources at one rate, in a folder of its own. Raises Failed."""
    run = Run(folder, 7, DRIVER, PLUGIN_CONF)
    (folder / "files").mkdir()
    context = get_context("spawn")
    helpers: list[BaseProcess] = []
    drivers: list[subprocess.Popen[bytes]] = []
    try:
        port = run.start_broker()
        if "files" in kinds:
            helpers.append(context.Process(target=write_files, args=(port, folder / "files")))
            helpers[0].start()
        publish(port, 100, 1)  # so that there is something to look at
        began = time.monotonic()
        for kind in kinds:
            with (folder / "driver.log").open("ab") as output:
                driver = subprocess.Popen(
                    [sys.executable, str(folder / "driver.py"), str(folder), kind, trigger],
                    stdout=output, stderr=output, start_new_session=True,
                    env={**os.environ, "PYSPARK_PYTHON": sys.executable,
                         "SPARK_LOCAL_IP": "127.0.0.1"},
                )  # fmt: skip
            drivers.append(driver)
            seen = folder / f"batches-{kind}"
            while not (seen.exists() and seen.stat().st_size):
                # The log is followed from its end on: something has to come.
                publish(port, 100, 0.2)
                if driver.poll() is not None or time.monotonic() - began > DEADLINE:
                    raise Failed((folder / "driver.log").read_text()[-2000:])
                time.sleep(0.2)
        sender = context.Process(target=publish, args=(port, rate, warm + seconds))
        start = time.time()
        helpers.append(sender)
        sender.start()
        sender.join()
        time.sleep(10)
    finally:
        for driver in drivers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        for one in helpers:
            one.terminate()
            one.join()
        run.stop()
    return [
        {"source": kind, "rate": rate, **_latencies(folder, kind, (start + warm) * 1e6)}
        for kind in kinds
    ]


def _latencies(folder: Path, kind: str, first: float) -> dict[str, Any]:
    import numpy as np

    done = dict(map(json.loads, (folder / f"batches-{kind}").read_text().splitlines()))
    stamps, batches = (_of_log if kind == "log" else _of_files)(folder)
    times = np.array([done.get(number, 0.0) for number in range(max(done) + 1)]) * 1e6
    known = batches <= max(done)
    stamps, batches = stamps[known], batches[known]
    late = (times[batches] - stamps)[stamps >= first] / 1000
    if not len(late) or (late < 0).any():
        raise Failed(f"{len(late)} events, some before they were published")
    p50, p99, p999 = np.percentile(late, [50, 99, 99.9])
    span = (stamps.max() - first) / 1e6
    return {
        "events": len(late), "per_second": round(len(late) / span, 1), "batches": len(done),
        "p50_ms": round(p50), "p99_ms": round(p99), "p99.9_ms": round(p999),
        "max_ms": round(float(late.max())),
    }  # fmt: skip


def _of_log(folder: Path) -> tuple[Any, Any]:
    """Stamps, and the micro-batch of each."""
    import numpy as np
    import pyarrow as pa

    from mqttd.pipeline.log.reader import LogReader, runs_of, split
    from mqttd.pipeline.spark.arrow import Batches

    ends = []
    offsets = (folder / "checkpoint-log/offsets").glob("[0-9]*")
    for name in sorted(offsets, key=lambda one: int(one.name)):
        offset = json.loads(name.read_text().splitlines()[-1])
        ends.append(next(iter(offset["nodes"].values()), 0))
    log = LogReader(str(folder / "data/events"))
    ((node, bounds),) = log.bounds().items()
    schema = pa.schema([("seq", pa.int64()), ("payload", pa.binary())])
    stamps, numbers = [], []
    for run in runs_of(log.blocks(node, *bounds)):
        for batch in Batches(schema, node, *bounds).read(split(log.read_run(run), run)):
            payload = batch["payload"]
            stamps.append(np.frombuffer(payload.buffers()[2], ">u8")[: len(payload)])
            numbers.append(batch["seq"].to_numpy())
    seq = np.concatenate(numbers)
    return np.concatenate(stamps).astype(np.int64), np.searchsorted(np.array(ends), seq, "right")


def _of_files(folder: Path) -> tuple[Any, Any]:
    """The same, of the file source."""
    import numpy as np
    from pyarrow import json as arrow_json

    stamps, batches = [], []
    taken: dict[str, int] = {}
    for name in (folder / "checkpoint-files/sources/0").glob("[0-9]*"):
        for line in name.read_text().splitlines()[1:]:
            entry = json.loads(line)
            taken[entry["path"].removeprefix("file://")] = entry["batchId"]
    for path, number in taken.items():
        found = arrow_json.read_json(path)["stamp"].to_numpy()
        stamps.append(found)
        batches.append(np.full(len(found), number))
    return np.concatenate(stamps), np.concatenate(batches)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_latency",
        description="From a publish to a streaming aggregate.",
    )
    parser.add_argument("--rate", type=float, nargs="+", default=[500, 20_000])
    parser.add_argument("--seconds", type=float, default=600, help="each (%(default)g)")
    parser.add_argument("--warm", type=float, default=20, help="seconds before (%(default)g)")
    parser.add_argument("--source", nargs="+", choices=["log", "files"], default=["log", "files"])
    parser.add_argument("--together", action="store_true", help="both sources at the same time")
    parser.add_argument("--trigger", default="0 seconds", metavar="TIME", help="(%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures there")
    given = parser.parse_args(arguments)
    shape = machine()
    print(f"{shape['cores']} x {shape['cpu']}, load average {os.getloadavg()[0]:.2f},"
          f" trigger {given.trigger}, {given.seconds:g} s each")  # fmt: skip
    print("| source | rate/s | events/s | batches | p50 ms | p99 ms | p99.9 ms | max ms |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    told = []
    for rate in given.rate:
        for kinds in [given.source] if given.together else [[kind] for kind in given.source]:
            with tempfile.TemporaryDirectory(prefix="bench-") as directory:
                try:
                    found = measured(
                        Path(directory), kinds, rate, given.seconds, given.warm, given.trigger
                    )
                except Failed as error:
                    print(f"{', '.join(kinds)} at {rate:g}/s: {error}", file=sys.stderr)
                    return 1
            told += found
            for one in found:
                print(f"| {one['source']} | {rate:,.0f} | {one['per_second']:,.0f} |"
                      f" {one['batches']} |"
                      f" {one['p50_ms']:,} | {one['p99_ms']:,} | {one['p99.9_ms']:,} |"
                      f" {one['max_ms']:,} |", flush=True)  # fmt: skip
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": shape, "found": told}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
