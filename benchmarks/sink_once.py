"""Kills Spark's driver while its sink stages and releases: python -m benchmarks.sink_once

    event log --Spark stream--> rows --stage, release--> broker --QoS 1--> a subscriber
    numbered                    kill -9                         --QoS 2--> another

The driver, with its JVM and workers, is killed `--kills` times in the middle of a batch that it
has staged, and started again with its checkpoint. It is stopped first; the broker's file of staged
rows then says where it is, so that each kill counts as what it was. One that is not in a staged
batch goes on, until it is in one:

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
    # Half of what a driver costs that does not live long is the compiler.
    java="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)

#: Rows of a micro-batch, and micro-batches that are ready at any time.
MOST: Final = 3000
AHEAD: Final = 3
#: Micro-batches after which a kill may fall anywhere in a staged batch, whatever is wished for.
PATIENCE: Final = 6
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


class Stage:
    """What the broker's file of staged rows says: where in a batch the driver is."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._file: sqlite3.Connection | None = None
        self._stale = self._released = 0
        self.begin()

    def begin(self) -> None:
        """Another driver starts: what there is now is not its own."""
        self._stale, self._released, _ = self._look()

    def place(self) -> str:
        """Where it is in a batch that it has staged; empty if it is in none."""
        rows, batch, done = self._look()
        if rows < self._stale:
            self._stale = 0  # a release drops what others have left
        if batch > self._released:
            if not done:
                return "publishing"
            if batch >= self._run.batches()[1]:
                return "unknown"
        return "staged" if rows > self._stale else ""

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def _look(self) -> tuple[int, int, bool]:
        """Rows staged and not released; the last batch, and whether it is published."""
        try:
            if self._file is None:
                (found,) = self._run.folder.glob("data/**/stage.db")
                self._file = sqlite3.connect(f"file:{found}?mode=ro", uri=True, timeout=10)
            (rows,) = self._file.execute(
                "SELECT coalesce(sum(rows), 0) FROM chunks WHERE batch IS NULL"
            ).fetchone()
            last = self._file.execute("SELECT batch, done FROM batches").fetchone() or (-1, 1)
        except (ValueError, sqlite3.OperationalError):  # it is being made
            return 0, -1, True
        return int(rows), int(last[0]), bool(last[1])


def _kill(run: Run, stage: Stage, source: Source, wish: str) -> None:
    """Start the driver and kill it in a staged batch, where it is wished to be if that is hit."""
    stage.begin()
    first = run.batches()[1] + run.chance.randrange(3)
    run.start_driver(MOST)
    deadline = time.monotonic() + 2 * DEADLINE
    while True:
        done = run.batches()[1]
        source.fill((done + AHEAD) * MOST)
        place = stage.place() if done >= first else ""
        if place == wish or (place and done >= first + PATIENCE):
            if wish == "staged":  # from the first chunk of a task to the last one of all
                time.sleep(run.chance.choice((0.0, 0.0, 0.01, 0.03)))
            # Stopped, it does nothing more while it is looked at.
            run.stop_driver()
            place = stage.place()
            if place:
                run.kill_driver(place)
                return
            run.resume_driver()
        run.check_driver()
        if time.monotonic() > deadline:
            raise Failed(f"no kill falls in a staged batch; {done} batches are done")
        time.sleep(0.002)


def sink_once(
    folder: Path,
    kills: int,
    seed: int = 7,
    rest: Callable[[Run], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
    workers: int = 1,
) -> dict[str, Any]:
    """Do all of it in `folder`; what was found. Raises Failed.

    :param kills: in the middle of staged batches.
    :param workers: of the broker.
    :param rest: lets Spark read what the killed drivers have left.
    """
    options = {"minPartitions": "2"}
    run = Run(folder, seed, DRIVER, PLUGIN_CONF, options, tables=TABLES, workers=workers, nice=0)
    stage = Stage(run)
    source = Source(folder / "source")
    subscribers: list[Subscriber] = []
    began = time.monotonic()
    try:
        port = run.start_broker()
        (folder / "address").write_text(f"127.0.0.1:{port}")
        subscribers = [Subscriber(port, qos) for qos in (1, 2)]
        for number in range(kills):
            _kill(run, stage, source, WISHES[number % 3])
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
        stage.close()
        run.stop()
    found: dict[str, Any] = {
        "driver_kills": dict(run.driver_kills),
        "in_staged_batches": sum(run.driver_kills[wish] for wish in WISHES),
        "started_anew": run.slow_starts,
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
