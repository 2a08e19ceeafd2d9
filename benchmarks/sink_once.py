"""Kills Spark's driver while its sink stages and releases: python -m benchmarks.sink_once

    event log --Spark stream--> rows --stage, release--> broker --QoS 1--> a subscriber
    numbered                    kill -9                         --QoS 2--> another

The driver, with its JVM and workers, is killed `--kills` times in the middle of a batch that it
has staged, and started again with its checkpoint. Where a kill fell is read from the broker's file
of staged rows afterwards, so that each counts as what it was:

    staged      rows are staged, the batch was not released
    publishing  the batch was released, the broker had not published all of it
    unknown     all of it was published, and Spark's checkpoint does not know

Afterwards every number that Spark has read was received by each subscriber: once with QoS 2, at
least once with QoS 1. Leaves with 1 if it is not so.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.killed import DEADLINE, Failed, Run, driver
from mqttd.pipeline.client import Address, Client
from mqttd.pipeline.log.blocks import HAS_PAYLOAD, HAS_QOS, HAS_SIZE, encode_block
from mqttd.pipeline.log.schema import CODES
from mqttd.pipeline.log.writer import Encoded, Writer

__all__ = ["WISHES", "main", "sink_once"]

PLUGIN_CONF: Final = 'events = ["message.publish"]\n'

#: A batch is released faster than a subscriber on a busy machine reads; what a full queue drops is
#: no loss of the sink's.
TABLES: Final = "[mqueue]\nmax_length = 1_000_000\n"

DRIVER: Final = driver(
    log="source",
    stream="""\
(frame.selectExpr("topic", "payload", "2 as qos")
          .writeStream.format("mqttd").option("delivery", "staged")
          .option("broker", open(folder + "/address").read()))""",
    pause=0,
    memory="1g",
)

#: Rows of a micro-batch, and micro-batches that are ready when a driver starts.
MOST: Final = 3000
AHEAD: Final = 6
#: Where a kill is wished for.
WISHES: Final = ("staged", "publishing", "unknown")


class Subscriber(threading.Thread):
    """Counts the numbers it gets."""

    def __init__(self, port: int, qos: int) -> None:
        super().__init__(daemon=True)
        self.qos = qos
        self.found: Counter[int] = Counter()
        self.ending = False
        self._client = Client(Address("127.0.0.1", port), f"subscriber-{qos}")
        self._client.subscribe("out/#", qos)
        self.start()

    def run(self) -> None:
        """Until `ending`."""
        while not self.ending:
            message = self._client.receive(0.5)
            if message is None:
                self._client.ping()
            else:
                self.found[struct.unpack(">Q", message.payload)[0]] += 1
        self._client.close()


class Source:
    """The log that Spark reads, as long as is needed."""

    def __init__(self, path: Path) -> None:
        self._writer = Writer(str(path), "source")

    @property
    def count(self) -> int:
        """Events in it."""
        return self._writer.next

    def fill(self, count: int) -> None:
        """Make it so long."""
        while self._writer.next < count:
            base = self._writer.next
            flags = 1 | HAS_QOS | HAS_SIZE | HAS_PAYLOAD
            rows = [
                (CODES["message.publish"], time.time_ns() // 1000, flags, i.to_bytes(16, "big"),
                 "source", "", "", f"out/{i % 8}", "", 8, struct.pack(">Q", i), b"")
                for i in range(base, base + 250)
            ]  # fmt: skip
            self._writer.write([Encoded(base, len(rows), encode_block(rows, base))])

    def close(self) -> None:
        """The end."""
        self._writer.close()


def staged(folder: Path) -> tuple[int, int, bool]:
    """Rows staged and not released; the last batch, and whether it is published."""
    found = sorted(folder.glob("data/**/stage.db"))
    if not found:
        return 0, -1, True
    file = sqlite3.connect(f"file:{found[0]}?mode=ro", uri=True, timeout=10)
    try:
        (rows,) = file.execute(
            "SELECT coalesce(sum(rows), 0) FROM chunks WHERE batch IS NULL"
        ).fetchone()
        last = file.execute("SELECT batch, done FROM batches").fetchone() or (-1, 1)
    except sqlite3.OperationalError:  # it is being made
        return 0, -1, True
    finally:
        file.close()
    return int(rows), int(last[0]), bool(last[1])


def _place(run: Run, before: tuple[int, int]) -> str:
    """Where the driver is in a batch that it has staged; empty if it is in none.

    :param before: rows that drivers before it have staged, and the last batch that they released.
    """
    rows, batch, done = staged(run.folder)
    if batch > before[1]:
        if not done:
            return "publishing"
        if batch >= run.batches()[1]:
            return "unknown"
    return "staged" if rows > before[0] else ""


def _kill(run: Run, wish: str) -> None:
    """Start the driver and kill it where it is wished to be."""
    stale, released, _ = staged(run.folder)
    first = run.batches()[1]
    run.start_driver(MOST)
    skip = run.chance.randrange(3)
    deadline = time.monotonic() + DEADLINE
    while run.batches()[1] < first + skip or _place(run, (stale, released)) != wish:
        run.check_driver()
        if staged(run.folder)[0] < stale:
            stale = 0  # a release drops what others have left
        if run.batches()[1] >= first + AHEAD - 1 or time.monotonic() > deadline:
            break  # it was too quick
        time.sleep(0.001)
    time.sleep(run.chance.choice((0.0, 0.0, 0.005, 0.02)))
    # Stopped, it does nothing more while it is looked at.
    run.stop_driver()
    run.kill_driver(_place(run, (stale, released)) or "elsewhere")


def sink_once(
    folder: Path,
    kills: int,
    seed: int = 7,
    rest: Callable[[Run], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
    workers: int = 1,
) -> dict[str, Any]:
    """Do all of it in `folder`; what was found. Raises Failed.

    :param kills: in the middle of staged batches; others are not counted.
    :param workers: of the broker.
    :param rest: lets Spark read what the killed drivers have left.
    """
    options = {"minPartitions": "2"}
    run = Run(folder, seed, DRIVER, PLUGIN_CONF, options, tables=TABLES, workers=workers)
    source = Source(folder / "source")
    subscribers: list[Subscriber] = []
    began = time.monotonic()
    try:
        port = run.start_broker()
        (folder / "address").write_text(f"127.0.0.1:{port}")
        subscribers = [Subscriber(port, qos) for qos in (1, 2)]
        tries = 0
        while sum(run.driver_kills[wish] for wish in WISHES) < kills:
            if tries > 4 * kills + 4:
                raise Failed(f"too few kills fell in staged batches: {dict(run.driver_kills)}")
            source.fill((run.batches()[1] + AHEAD) * MOST)
            _kill(run, WISHES[tries % 3])
            tries += 1
            say(f"{dict(run.driver_kills)}; {run.batches()[1]} batches")
        if rest is not None:
            rest(run)
        else:
            run.finish_driver(MOST)
        deadline = time.monotonic() + DEADLINE
        while any(len(one.found) < source.count for one in subscribers):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        time.sleep(2.0)  # what comes twice comes late
    finally:
        for one in subscribers:
            one.ending = True
        for one in subscribers:
            one.join(10)
        source.close()
        run.stop()
    found: dict[str, Any] = {
        "driver_kills": dict(run.driver_kills),
        "in_staged_batches": sum(run.driver_kills[wish] for wish in WISHES),
        "micro_batches": run.batches()[1],
        "rows": source.count,
        "seconds": round(time.monotonic() - began, 1),
    }
    for one in subscribers:
        lost = source.count - len(one.found)
        twice = sum(count - 1 for count in one.found.values())
        if lost or (twice and one.qos == 2):
            raise Failed(f"QoS {one.qos}: {lost} lost, {twice} twice; {found}")
        found[f"twice_at_qos_{one.qos}"] = twice
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Do it and print what was found; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sink_once",
        description="Kills Spark's driver while its sink stages and releases batches.",
    )
    parser.add_argument(
        "--kills", type=int, default=30, help="in the middle of staged batches (%(default)d)"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=1, help="of the broker (%(default)d)")
    parser.add_argument("--folder", type=Path, help="work here, and leave everything behind")
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = sink_once(
            folder, given.kills, given.seed,
            say=lambda text: print(f"{time.strftime('%H:%M:%S')} {text}", flush=True),
            workers=given.workers,
        )  # fmt: skip
    except Failed as error:
        print(f"not once: {error}; everything is in {folder}", file=sys.stderr)
        return 1
    if given.folder is None:
        shutil.rmtree(folder)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
