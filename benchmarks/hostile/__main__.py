"""Attacks on a broker with a memory budget, beside honest clients: python -m benchmarks.hostile

    bounds      resident memory at most the budget and 64 MiB, whatever is sent
                honest newcomers and residents: 250 ms at p99
                nobody who is connected is dropped, nobody fails who is not told to come later

Each row starts a broker of its own on core 0; honest clients, and the attack in another process,
are on core 1. Newcomers that are refused since memory is short are counted beside. mosquitto is
shown where it has the like; it has no budget, and so no verdict. Exit status: 0 if every bound was
met, 1 if one was missed, 2 if nothing could be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.brokers import Broker, Running, StartError, raise_file_limit
from benchmarks.hostile.brokers import (
    Attacked,
    AttackedCheckout,
    AttackedPeer,
    honest_arguments,
)
from benchmarks.hostile.honest import Honest
from benchmarks.hostile.opened import Opened
from benchmarks.hostile.rows import ROWS, Row

__all__ = ["judge", "main", "measure", "named", "peak", "resident", "stand_aside"]

BUDGET: Final = 512
OVER: Final = 64
P99: Final = 250.0
BROKER_CORE, LOAD_CORE = 0, 1

HEAD: Final = (
    f"{'attack':20} {'broker':10} {'steps':>8} {'sent':>7} {'CPU':>6} {'peak':>6}"
    f" | {'newcomers p50':>13} {'p99':>7} {'max':>7} {'later':>6}"
    f" | {'residents p50':>13} {'p99':>7} {'max':>7} {'lost':>5} |"
)


def measure(row: Row, broker: Broker, seconds: float) -> dict[str, Any]:
    """One attack on one broker."""
    with tempfile.TemporaryDirectory() as folder:
        with broker.start(Path(folder), BROKER_CORE) as running:
            needs = broker.needs if isinstance(broker, Attacked) else ""
            honest = Honest(running.port, **honest_arguments(needs)).open()
            before = loop_cpu(running)
            port = broker.attacked(running) if isinstance(broker, Attacked) else running.port
            opened = Opened(row.name, port)
            highest = watch(running, seconds)
            attack = opened.stop()
            highest = max(highest, watch(running, 1.0))
            used = loop_cpu(running) - before
            honest.stop()
            return {
                "row": row.name,
                "broker": broker.name,
                "attack": attack,
                "cpu": round(used, 2),
                "peak": round(max(highest, peak(running.pid)) / 2**20, 1),
                "ended": running.ended(),
                "newcomers": honest.new.summary(),
                "residents": honest.old.summary(),
            }


def judge(found: dict[str, Any], budget: int) -> list[str]:
    """What of the bounds was missed."""
    missed = []
    if found["ended"]:
        missed.append("the broker " + found["ended"].partition("\n")[0])
    if found["peak"] > budget + OVER:
        missed.append(f"memory {found['peak']:.0f} > {budget + OVER} MiB")
    for who in ("newcomers", "residents"):
        times = found[who]
        if times["failed"]:
            missed.append(f"{who}: {times['failed']} failed ({times['why']})")
        if times["p99"] is None:
            missed.append(f"{who}: none came through")
        elif times["p99"] > P99:
            missed.append(f"{who}: p99 {times['p99']:.0f} > {P99:.0f} ms")
    return missed


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    parts = [
        f"{found['row']:20} {found['broker']:10} {found['attack']['steps']:8,}"
        f" {found['attack']['sent'] / 2**20:6,.0f}M {found['cpu']:5.1f}s {found['peak']:5,.0f}M"
    ]
    for who, last in (("newcomers", "refused"), ("residents", "failed")):
        times = found[who]
        p50, p99, most = (
            "-" if times[key] is None else f"{times[key]:,.0f}" for key in ("p50", "p99", "max")
        )
        width = 6 if last == "refused" else 5
        parts.append(f"{p50:>13} {p99:>7} {most:>7} {times[last]:{width}}")
    return " | ".join(parts) + " |"


def watch(running: Running, seconds: float) -> int:
    """Wait; the most bytes that were resident."""
    end = time.monotonic() + seconds
    most = 0
    while time.monotonic() < end and not running.ended():
        most = max(most, resident(running.pid))
        time.sleep(0.1)
    return most


def resident(pid: int) -> int:
    """Resident bytes of a process now; 0 when it is gone."""
    return _status(pid, "VmRSS")


def peak(pid: int) -> int:
    """The most bytes that were resident; 0 when it is gone."""
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    try:
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def loop_cpu(running: Running) -> float:
    """Seconds of CPU that the thread of the loop has had; 0 when it is gone."""
    try:
        told = Path(f"/proc/{running.pid}/task/{running.pid}/schedstat").read_text()
    except OSError:
        return 0.0
    return int(told.split()[0]) / 1e9


def stand_aside() -> None:
    """This process and what it starts leave the broker's core alone, and may open many files."""
    os.sched_setaffinity(0, {LOAD_CORE % (os.cpu_count() or 1)})
    raise_file_limit()


def brokers_of(row: Row, options: argparse.Namespace) -> list[Broker]:
    ours: list[Attacked] = [Attacked(pure=options.pure)]
    if options.mqttd:
        ours = [AttackedCheckout(name, Path(path)) for name, path in options.mqttd]
    for one in ours:
        one.transport = options.transport
    found: list[Broker] = [one.for_row(row.needs, options.budget) for one in ours]
    return [*found, AttackedPeer()] if row.peer and not options.alone else found


def chosen(names: str) -> list[Row]:
    if not names:
        return list(ROWS.values())
    unknown = sorted(set(names.split(",")) - set(ROWS))
    if unknown:
        raise StartError(f"no such row: {', '.join(unknown)}; --list shows them")
    return [ROWS[name] for name in names.split(",")]


def run(options: argparse.Namespace) -> int:
    """Measure the rows that were asked for."""
    rows = chosen(options.only)
    stand_aside()
    results, missed = [], 0
    print(HEAD)
    for row in rows:
        for broker in brokers_of(row, options):
            try:
                found = measure(row, broker, options.seconds)
            except StartError as error:
                if isinstance(broker, Attacked):
                    raise
                print(f"{row.name:20} {broker.name}: {error}")
                continue
            wrong = judge(found, options.budget) if isinstance(broker, Attacked) else []
            verdict = "; ".join(wrong) or ("met" if isinstance(broker, Attacked) else "")
            print(line(found), verdict, flush=True)
            missed += bool(wrong)
            results.append({**found, "missed": wrong})
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(f"{missed} missed" if missed else "every bound was met")
    return 1 if missed else 0


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="benchmarks.hostile", description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="the rows")
    parser.add_argument("--only", default="", metavar="NAMES", help="rows, by comma")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    parser.add_argument("--budget", type=int, default=BUDGET, metavar="MIB")
    parser.add_argument("--json", metavar="FILE", help="write results there")
    parser.add_argument("--alone", action="store_true", help="without mosquitto")
    parser.add_argument("--transport", choices=("engine", "twisted"), default="engine")
    parser.add_argument("--pure", action="store_true", help="mqttd uncompiled")
    parser.add_argument("--mqttd", action="append", metavar="NAME=PATH", type=named,
                        help="mqttd of this checkout instead")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.list:
        for row in ROWS.values():
            print(f"{row.name:20} {row.told}")
        return 0
    try:
        return run(options)
    except StartError as error:
        print(error, file=sys.stderr)
        return 2


def named(text: str) -> tuple[str, str]:
    """NAME=PATH as both."""
    name, _, path = text.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"NAME=PATH, not {text!r}")
    return name, path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
