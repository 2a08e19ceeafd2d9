"""What a reader pays for small blocks: python -m benchmarks.spark_plan [--help]

    slow     1,000 events a second, a block each 20 ms, as they were written
    merged   the same when the broker's background work has merged its finished segments
    busy     the same events in blocks of 4,096

Each log is looked at by a reader that has not seen it, as a driver's is: its bounds, and the plan
of a scan of all of it. Prints blocks, bytes an event, the best of five times, and the memory for
what a reader remembers. The newest segment is not merged, and each of its blocks is verified: that
is what the merged log takes longer, at most 16,384 blocks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.report import machine
from benchmarks.spark_read import BLOCK, row_of
from mqttd.pipeline.log.files import segments_in
from mqttd.pipeline.log.packed import pack, taken_of
from mqttd.pipeline.log.reader import LogReader, runs_of
from mqttd.pipeline.log.writer import Encoded, Writer
from mqttd.pipeline.log.zstd import zstd

__all__ = ["main", "merged", "planned", "wrote"]

#: Events of a block that is written each 20 ms.
FEW: Final = 20
NODE: Final = "n1"


def wrote(path: Path, events: int, size: int) -> None:
    """A log of about so many events, in blocks of `size`."""
    writer = Writer(str(path), NODE)
    codec = zstd()
    while writer.next < events:
        base = writer.next
        rows = [row_of(i) for i in range(base, base + size)]
        writer.write([Encoded(base, size, pack(taken_of(rows), base, 0, codec))])
    writer.close()


def merged(path: Path) -> None:
    """Merge every segment but the newest, as the broker does."""
    folder = path / NODE
    for name in segments_in(str(folder))[:-1]:
        file = folder / name
        beside = f"{file}.merged"
        command = [sys.executable, "-m", "mqttd.pipeline.log.merge", str(file), beside, "zstd"]
        if subprocess.run(command, check=False).returncode == 0:
            os.replace(beside, file)


def planned(path: Path) -> tuple[int, float]:
    """How many blocks a scan plans, and the seconds that took a new reader; the best of five."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        log = LogReader(str(path))
        blocks = log.blocks(NODE, *log.bounds()[NODE])
        runs_of(blocks)
        found.append(time.perf_counter() - began)
    return len(blocks), min(found)


def _remembered(path: Path) -> float:
    """MiB that a reader keeps of what it has planned."""
    tracemalloc.start()
    log = LogReader(str(path))
    log.blocks(NODE, *log.bounds()[NODE])
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / (1 << 20)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_plan", description="What a reader pays for small blocks."
    )
    parser.add_argument("--events", type=int, default=5_000_000, help="(%(default)d)")
    given = parser.parse_args(arguments)
    shape = machine()
    print(f"{shape['cores']} x {shape['cpu']}, {given.events:,} events\n")
    print("| log | blocks | bytes an event | to plan a scan | a reader remembers |")
    print("|---|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        slow, busy = Path(directory, "slow"), Path(directory, "busy")
        wrote(slow, given.events, FEW)
        wrote(busy, given.events, BLOCK)
        for name, path in (("slow", slow), ("merged", slow), ("busy", busy)):
            if name == "merged":
                merged(path)
            blocks, seconds = planned(path)
            size = sum(one.stat().st_size for one in (path / NODE).glob("*.events"))
            cells = (f"{blocks:,}", f"{size / given.events:.1f}", f"{seconds * 1000:,.1f} ms",
                     f"{_remembered(path):.1f} MiB")  # fmt: skip
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
