"""Kills everything on the way from the publishers to a table: python -m benchmarks.exactly_once

    publishers --QoS 1--> broker --thread--> event log --Spark stream--> Parquet
    numbered messages     kill -9            on disk     kill -9

At random moments, each on its own, the broker (and with it the thread that writes the log) and
Spark's driver with its JVM and workers are killed and started again, `--kills` times each at
least, while the publishers go on at `--rate`. A broker's acknowledgement means that the event is
logged. Afterwards, and not by the code that Spark read with:

    the table    equals the log, row for row and column for column
    the log      has no gap, every number that was acknowledged, and nothing that was not sent

With `--trouble` a full disk, a clock that jumps or an archive under way befall the broker as well.

Leaves with 1 if it is not so, or if the rate of acknowledged messages, over all of the time with
the broker's absences in it, was below `--rate`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from benchmarks.brokers import Mqttd
from benchmarks.killed import DEADLINE, Failed, Run, attempt, driver
from benchmarks.numbered import Publishers
from benchmarks.report import machine
from benchmarks.troubles import (
    NAMES,
    Troubles,
    archive_of,
    environment,
    plugin_conf,
    stream_options,
)
from mqttd.pipeline.log.archive import ArchivedLog
from mqttd.pipeline.log.blocks import (
    HAS_PAYLOAD,
    HAS_QOS,
    HAS_SIZE,
    QOS,
    RETAIN,
    columns_of,
    encode_block,
    parse_header,
)
from mqttd.pipeline.log.decode import rows_of
from mqttd.pipeline.log.reader import EventLog, LogReader, runs_of, split
from mqttd.pipeline.log.schema import EVENTS

__all__ = ["Failed", "Run", "compared", "drained", "exactly_once", "main"]

PLUGIN_CONF: Final = """\
events = ["message.publish"]
acked_means_logged = true
retention_bytes = 100_000_000_000
"""

DRIVER: Final = driver(
    log="data/events",
    stream='frame.writeStream.format("parquet").option("path", folder + "/table")',
    pause=500,
    memory="2g",
    after="""\
files = spark.read.parquet(folder + "/table").inputFiles()
print("FILES", json.dumps(list(files)), flush=True)
""",
)


def _kill_brokers(run: Run, publishers: Publishers, spread: float, ending: threading.Event) -> None:
    while not ending.wait(run.chance.uniform(0.2, spread)):
        began = time.monotonic()
        run.kill_broker()
        publishers.port = run.start_broker()
        run.broker_absent += time.monotonic() - began


def _kill_drivers(run: Run, kills: int, spread: float, say: Callable[[str], None]) -> None:
    """Start the driver and kill it, so many times, from its start on or a finished micro-batch."""
    for number in range(kills):
        run.start_driver()
        done = run.batches()[1]
        if number % 2 == 0:
            deadline = time.monotonic() + DEADLINE
            while run.batches()[1] == done:
                run.check_driver()
                if time.monotonic() > deadline:
                    raise Failed(f"no micro-batch ends in {DEADLINE:g} s")
                time.sleep(0.05)
        end = time.monotonic() + run.chance.uniform(0.0, spread)
        while time.monotonic() < end:
            run.check_driver()
            time.sleep(0.01)
        run.kill_driver()
        say(f"killed: {number + 1} drivers, {run.broker_kills} brokers; {run.batches()[1]} batches")


def drained(run: Run) -> list[str]:
    """Let a last driver read the rest; the files of the table, as Spark reads it."""
    said = run.finish_driver().decode().splitlines()
    (line,) = (line for line in said if line.startswith("FILES "))
    return [one.removeprefix("file://") for one in json.loads(line[6:])]


def exactly_once(
    folder: Path,
    rate: float,
    kills: int,
    spread: float = 20.0,
    seed: int = 7,
    rest: Callable[[Run], list[str]] = drained,
    say: Callable[[str], None] = lambda text: None,
    troubles: Sequence[str] = (),
) -> dict[str, Any]:
    """Do all of it in `folder`; what was found. Raises Failed.

    :param rate: messages a second.
    :param spread: seconds within which a kill follows what it follows.
    :param rest: reads what the killed drivers left, and gives the table's files.
    :param troubles: names of `benchmarks.troubles`.
    """
    conf = plugin_conf(PLUGIN_CONF, troubles, folder)
    options, more = stream_options(troubles, folder), environment(troubles, folder)
    run = Run(folder, seed, DRIVER, conf, options, more)
    publishers = Publishers(folder / "publishers", rate)
    ending = threading.Event()
    broken: list[BaseException] = []
    beside = Troubles(troubles, folder, lambda: run.broker_pid, random.Random(seed + 1), ending)

    def kill_brokers() -> None:
        try:
            _kill_brokers(run, publishers, spread, ending)
        except BaseException as error:
            broken.append(error)

    try:
        publishers.port = run.start_broker()
        killer = threading.Thread(target=kill_brokers, daemon=True)
        killer.start()
        beside.start()
        _kill_drivers(run, kills, spread, say)
        while run.broker_kills < kills and not broken:
            time.sleep(0.05)
        ending.set()
        killer.join(DEADLINE)
        beside.join(DEADLINE)
        if broken:
            raise broken[0]
        told = publishers.stop()
        run.stop_broker()
        say(f"{told['acknowledged']:,} acknowledged; reading the rest")
        files = rest(run)
    finally:
        ending.set()
        run.stop()
    found: dict[str, Any] = {
        "broker_kills": run.broker_kills,
        "troubles": dict(beside.made),
        "driver_kills": dict(run.driver_kills),
        "micro_batches": run.batches()[1],
        "broker_absent_seconds": round(run.broker_absent, 1),
        **told,
        "acknowledged_per_second": round(told["acknowledged"] / told["seconds"], 1),
    }
    say("comparing")
    return found | compared(folder, files, told)


# -- the comparison: no code of the data source


def compared(folder: Path, files: Sequence[str], told: dict[str, Any]) -> dict[str, Any]:
    """Table and log, log and publishers; raises Failed."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pa.concat_tables(
        [pq.read_table(one, partitioning=None) for one in files]
    ).combine_chunks()
    order = pc.sort_indices(table["seq"])
    rows = 0
    payloads = []
    for part in _log(folder):
        here = table.take(order[rows : rows + len(part)])
        for name in part.column_names:
            if (
                not here[name]
                .combine_chunks()
                .cast(part[name].type)
                .equals(part[name].combine_chunks())
            ):
                raise Failed(f"column {name} of the table is not the log's, at {rows} or behind")
        payloads.append(np.frombuffer(b"".join(part["payload"].to_pylist()), ">u8"))
        rows += len(part)
    if rows != len(table):
        raise Failed(f"{len(table)} rows in the table, {rows} events in the log")
    numbers = np.concatenate(payloads).astype(np.int64)
    publisher, number = numbers >> 48, numbers & (1 << 48) - 1
    once = acknowledged = 0
    for path in sorted((folder / "publishers").glob("*.acknowledged")):
        sent = np.frombuffer(path.read_bytes(), np.uint8)
        mine = number[publisher == int(path.stem)]
        if len(mine) and int(mine.max()) >= len(sent):
            raise Failed(f"the log has a number of publisher {path.stem} that was never sent")
        times = np.bincount(mine, minlength=len(sent))
        lost = int(np.count_nonzero((times == 0) & (sent == 1)))
        if lost:
            raise Failed(f"{lost} messages of publisher {path.stem} acknowledged and not logged")
        once += int(np.count_nonzero(times))
        acknowledged += int(np.count_nonzero(sent))
    # One that was refused may have been logged all the same.
    if acknowledged != told["acknowledged"] or (rows - once > told["sent_again"] + told["refused"]):
        raise Failed(f"{acknowledged} acknowledged, {rows} logged, {once} different; {told}")
    return {
        "events_in_log": rows,
        "rows_in_table": len(table),
        "different_messages": once,
        "logged_twice_and_sent_again": rows - once,
        "log_bytes": sum(one.stat().st_size for one in (folder / "data/events").rglob("*.events")),
        "archived_segments": len([*(folder / "archive").rglob("*.json")]),
        "equal": True,
    }


def _log(folder: Path) -> Iterator[Any]:
    """The log as Arrow tables of about a million events, from its bytes; raises Failed."""
    import numpy as np
    import pyarrow as pa

    log: EventLog = LogReader(str(folder / "data/events"))
    if (folder / "archive").exists():
        log = ArchivedLog(log, archive_of(folder))
    ((node, bounds),) = log.bounds().items()
    if bounds.earliest != 0:
        raise Failed(f"the log begins at {bounds.earliest}")
    blocks = log.blocks(node, *bounds)
    texts = {"client_id": 4, "username": 5, "peer": 6, "topic": 7, "reason": 8}
    at = 0
    for first in range(0, len(blocks), 1 << 14):
        chosen = blocks[first : first + (1 << 14)]
        raw: list[list[bytes]] = [[] for _ in range(11)]
        for run in runs_of(chosen):
            for data in split(log.read_run(run), run):
                # As a plain block has them, each event by itself: slow, and nothing of Spark's.
                plain = encode_block([*rows_of(data)], parse_header(data).base)
                for column, (start, length) in enumerate(columns_of(plain)[:11]):
                    raw[column].append(plain[start : start + length])
        rows = sum(block.rows for block in chosen)
        for block in chosen:
            if block.gap or block.base != at:
                raise Failed(f"the log has a gap at {at}")
            at = block.end
        codes = np.frombuffer(b"".join(raw[0]), np.uint8)
        flags = np.frombuffer(b"".join(raw[2]), np.uint8)
        sizes = np.frombuffer(b"".join(raw[9]), np.uint32)
        want = HAS_QOS | HAS_PAYLOAD | HAS_SIZE
        if len(codes) != rows or not ((flags & want) == want).all() or not (sizes == 8).all():
            raise Failed(f"the log has other events than the publishers', before {at}")
        columns: dict[str, Any] = {
            "seq": np.arange(at - rows, at),
            "node": pa.array([node] * rows),
            "event": pa.array(np.array(EVENTS)[codes]),
            "timestamp": pa.array(np.frombuffer(b"".join(raw[1]), np.int64)).cast(
                pa.timestamp("us", "UTC")
            ),
            "message_id": _fixed(b"".join(raw[3]), 16, rows),
            "qos": pa.array((flags & QOS).astype(np.int8)),
            "retain": pa.array((flags & RETAIN) != 0),
            "payload": _fixed(b"".join(raw[10]), 8, rows),
            "payload_size": pa.array(sizes.astype(np.int32)),
        }
        for name, column in texts.items():
            values: list[bytes | None] = []
            for block, text in zip(chosen, raw[column], strict=True):
                values += text.split(b"\0") if text else [None] * block.rows
            columns[name] = pa.array(values, pa.binary()).cast(pa.string())
        yield pa.table(columns)


def _fixed(data: bytes, size: int, rows: int) -> Any:
    import pyarrow as pa

    if len(data) != size * rows:
        raise Failed(f"{len(data)} bytes in a column of {rows} x {size}")
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(size), rows, [None, pa.py_buffer(data)]
    ).cast(pa.binary())


def page(found: dict[str, Any]) -> str:
    """What was found, in Markdown."""
    shape = found["machine"]
    seconds = found["seconds"]
    lines = [
        f"# Exactly once, with everything killed, {found['date'][:10]}",
        "",
        f"{shape['cores']} x {shape['cpu']}, {shape['memory']} of memory, {shape['kernel']},"
        f" {shape['python']}; {found['broker']}; Spark {found['spark']}, `local[2]`, Parquet sink."
        " Publishers, broker and Spark share the machine. `python -m benchmarks.exactly_once`.",
        "",
        "| | |",
        "|---|---:|",
    ]
    kills = ", ".join(f"{count} {doing}" for doing, count in found["driver_kills"].items())
    for name, value in (
        ("offered, all the time, QoS 1", f"{found['offered_per_second']:,.0f}/s"),
        (f"acknowledged, over {seconds:,.0f} s with the broker's absences",
         f"{found['acknowledged_per_second']:,.0f}/s"),
        ("kill -9 of the broker, with the thread that writes the log", found["broker_kills"]),
        ("it was away for", f"{found['broker_absent_seconds']:g} s"),
        ("kill -9 of the driver, its JVM and workers", sum(found["driver_kills"].values())),
        ("of these", kills),
        ("troubles beside", ", ".join(f"{n} x {one}" for one, n in found["troubles"].items())),
        ("segments archived", found["archived_segments"]),
        ("micro-batches", found["micro_batches"]),
        ("messages sent and acknowledged", f"{found['acknowledged']:,}"),
        ("sent again, since a connection broke", f"{found['sent_again']:,}"),
        ("events in the log, without a gap", f"{found['events_in_log']:,}"),
        ("of these logged twice, being sent again", f"{found['logged_twice_and_sent_again']:,}"),
        ("acknowledged and not in the log", 0),
        ("rows in the table", f"{found['rows_in_table']:,}"),
        ("rows or values that differ between log and table", 0),
    ):  # fmt: skip
        lines.append(f"| {name} | {value} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do it and print what was found; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.exactly_once",
        description="Kills broker and driver between numbered publishers and a table.",
    )
    parser.add_argument(
        "--rate", type=float, default=20_000, help="messages a second (%(default)g)"
    )
    parser.add_argument("--kills", type=int, default=20, help="of each (%(default)d)")
    parser.add_argument("--spread", type=float, default=20, help="seconds (%(default)g)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--trouble", nargs="+", choices=NAMES, default=[], help="that befalls the broker, too"
    )
    parser.add_argument("--folder", type=Path, help="work here, and leave everything behind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep it, and a page beside")
    given = parser.parse_args(arguments)
    status, found = attempt(
        given.folder,
        lambda folder, say: exactly_once(
            folder, given.rate * 1.01, given.kills, given.spread, given.seed,
            troubles=given.trouble, say=say,
        ),
    )  # fmt: skip
    if status:
        return status
    if given.json:
        told = {
            "date": datetime.now(UTC).isoformat(timespec="minutes"),
            "machine": machine(),
            "broker": Mqttd().version(),
            "spark": metadata.version("pyspark"),
            **found,
        }
        given.json.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
        given.json.with_suffix(".md").write_text(page(told), "utf-8")
    return 0 if found["acknowledged_per_second"] >= given.rate else 1


if __name__ == "__main__":
    sys.exit(main())
