"""What exporting costs by kind and size of payloads: python -m benchmarks.event_payloads [--help]

    letters  mqttload's filler, the alphabet over and over: the kindest case there is
    text     JSON, readings of devices with numbers that differ
    random   what does not compress: JPEG, ciphertext, what is compressed already

50 pairs as fast as they go, and a broker without the plugin and with every event exported take
turns, each started afresh. Shown are medians of broker CPU per message and, round by round, how
many times that of the broker without it; how much of it threads beside the event loop took; bytes
of the log a message; and how many events were dropped because the queue was full, which then cost
nothing. Nothing is judged: docs/benchmarks says which bound holds where.

Before each run the page cache writes as much as the run will: a virtual machine may have given
memory that was free back to its host, and the first touch of a page costs five times what copying
into it does (2.3 us in place of 0.4 for 2,500 bytes). --fresh leaves that to the broker.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.brokers import StartError
from benchmarks.event_log import CORES, LIMIT, PAIRS, VARIANTS, Exporting
from benchmarks.load import Failure, Mqttload, NotFound
from benchmarks.report import machine
from mqttd.pipeline.log.reader import LogReader

__all__ = ["HEAD", "Found", "by_turns", "kept", "main", "row"]

KINDS: Final = ("letters", "text", "random")
SIZES: Final = ("64", "256", "1024", "4096", "1000-4000")
#: Head of a table of `row`s.
HEAD: Final = (
    "| {} | off, us | exported | threads | ratio | from to | logged | lost |\n"
    "|{}|---:|---:|---:|---:|---:|---:|---:|"
)
#: Bytes that the page cache has had in hands before a run.
WARM: Final = 2 << 30


class Found(NamedTuple):
    """One run: CPU per message and that of threads beside the loop (us), bytes of the log a
    message, and the share of events that were dropped.
    """

    cpu: float
    beside: float
    logged: float
    lost: float


def touch(path: Path) -> None:
    """Have the kernel's page cache hold `WARM` bytes, and give them back."""
    data = os.urandom(4 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(WARM // len(data)):
            file.write(data)
    path.unlink()


def run(
    exporting: Exporting, load: Mqttload, arguments: Sequence[str], seconds: float, warm: bool
) -> Found:
    """One broker under one load; raises Failure."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        with exporting.start(Path(directory), CORES[0]) as running:
            if warm:
                touch(Path(directory) / "touched")
            found = load.run(running.port, running.pid, arguments, seconds + LIMIT)
        if found.deviation():
            raise Failure(f"{' '.join(arguments)}: {found.deviation()}")
        segments = list(Path(directory).rglob("*.events"))
        written = sum(one.stat().st_size for one in segments)
        lost = dropped(segments[0].parents[1]) if segments else 0.0
    share = 1 - found.more.get("first_thread", 1.0)
    many = found.more["received"] or found.more["sent"]
    return Found(found.cpu, share * found.cpu, written / many, lost)


def dropped(path: Path) -> float:
    """The share of the events of a log that a gap stands for."""
    log = LogReader(str(path))
    ((node, bounds),) = log.bounds().items()
    blocks = list(log.blocks(node, *bounds))
    return sum(block.lost for block in blocks) / max(sum(block.rows for block in blocks), 1)


def compared(given: argparse.Namespace, load: Mqttload, qos: int, kind: str, size: str) -> str:
    """The row of a kind and a size; raises Failure."""
    length = ["--vary", size] if "-" in size else ["--payload", size]
    arguments = [*PAIRS, "--qos", str(qos), "--fill", kind, *length]
    found = by_turns(given, load, arguments, [None, kept(given.variant)])
    return row(f"{kind}, {size} B | {qos}", *found)


def kept(variant: str) -> str:
    """The plugin's configuration of a variant; nothing is deleted within a run."""
    return (VARIANTS[variant] or "").replace("retention_bytes = 1_", "retention_bytes = 20_")


def by_turns(
    given: argparse.Namespace,
    load: Mqttload,
    arguments: Sequence[str],
    confs: Sequence[str | None],
    acl: str = "",
) -> list[list[Found]]:
    """The rounds of each configuration, under the same load; raises Failure."""
    arguments = [*arguments, "--duration", f"{given.duration:g}", "--warmup", "0.5"]
    found: list[list[Found]] = [[] for _ in confs]
    for _ in range(given.rounds):
        for conf, runs in zip(confs, found, strict=True):
            broker = Exporting(conf, acl)
            runs.append(run(broker, load, arguments, given.duration, not given.fresh))
    return found


def row(title: str, off: Sequence[Found], on: Sequence[Found]) -> str:
    """What exporting costs, as a row of the table."""
    ratios = [b.cpu / a.cpu for a, b in zip(off, on, strict=True)]
    median = statistics.median
    cells = [
        title, f"{median(one.cpu for one in off):.2f}",
        f"{median(one.cpu for one in on):.2f}", f"{median(one.beside for one in on):.2f}",
        f"{median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}",
        f"{median(one.logged for one in on):,.0f}", f"{median(one.lost for one in on):.0%}",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.event_payloads",
        description="What exporting costs by kind and size of payloads.",
    )
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--size", nargs="+", metavar="BYTES|LO-HI", default=SIZES)
    parser.add_argument("--qos", nargs="+", type=int, choices=[0, 1], default=[1])
    parser.add_argument("--variant", choices=[v for v in VARIANTS if v != "off"], default="all")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (%(default)d)")
    parser.add_argument("--duration", type=float, default=2, help="seconds measured (%(default)g)")
    parser.add_argument("--fresh", action="store_true", help="do not warm the page cache before")
    parser.add_argument("--mqttload", metavar="PATH", help="the load generator ($MQTTLOAD)")
    given = parser.parse_args(arguments)
    try:
        load = Mqttload.find(given.mqttload, CORES[1], os.environ)
        print(f"{Exporting(None).version()}, {load.version()},"
              f" load average {machine()['load_average']:.1f}")  # fmt: skip
        print(HEAD.format("payloads | QoS", "---|---:"), flush=True)
        for qos in given.qos:
            for size in given.size:
                for kind in given.kind:
                    print(compared(given, load, qos, kind, size), flush=True)
    except (Failure, NotFound, StartError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
