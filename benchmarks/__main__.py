"""Measures mqttd beside another broker: python -m benchmarks [--help]

    core 0   mqttd   mosquitto   mqttd   mosquitto ...    one at a time, started afresh each time
    core 1   mqttload, which checks every delivery

Leaves with 0 if every bound was met, 1 if one was missed or a result refused, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.brokers import BROKERS, Broker, Mqttd, StartError, raise_file_limit
from benchmarks.compare import Comparison, compare
from benchmarks.load import Failure, Measurement, Mqttload, NotFound
from benchmarks.report import as_json, machine, page, table
from benchmarks.workloads import WORKLOADS, Workload, selected

__all__ = ["main"]

BROKER_CORE, LOAD_CORE = 0, 1

#: Seconds a run may take beyond its duration: 100,000 filters, 19,000 connections, the drain.
LIMIT = 180.0

#: Load average up to which the machine counts as having nothing else to do.
QUIET = 0.5


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure mqttd beside another broker.",
        epilog="workloads: " + ", ".join(w.name for w in WORKLOADS),
    )  # fmt: skip
    parser.add_argument("--broker", choices=BROKERS, default="mqttd", help="ours (%(default)s)")
    parser.add_argument("--against", choices=BROKERS, default="mosquitto",
                        help="theirs (%(default)s)")  # fmt: skip
    parser.add_argument("--pure", action="store_true", help="also mqttd without its compiled part")
    parser.add_argument("--only", metavar="NAME,...", help="these workloads, as in p2p-qos0,fan*")
    parser.add_argument("--rounds", type=_positive, help="runs of each (3, latency 5)")
    parser.add_argument("--duration", type=float, default=3, help="seconds measured (%(default)g)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds before (%(default)g)")
    parser.add_argument("--mqttload", metavar="PATH", help="the load generator ($MQTTLOAD)")
    parser.add_argument("--json", metavar="FILE", type=Path,
                        help="results (build/benchmarks/BROKER-against-PEER.json)")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="show the workloads and stop")
    found = parser.parse_args(arguments)
    if found.broker == found.against:
        parser.error(f"--broker and --against are both {found.against}")
    try:
        found.workloads = selected(found.only)
    except ValueError as error:
        parser.error(str(error))
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a number from 1")
    return int(text)


class Bench:
    """The brokers of one session and the load generator between them."""

    def __init__(self, given: argparse.Namespace, load: Mqttload) -> None:
        self.given = given
        self.load = load
        self.machine = machine()  # before the brokers load it themselves
        ours, theirs = BROKERS[given.broker](), BROKERS[given.against]()
        self.brokers: list[Broker] = [ours, theirs]
        if given.pure:
            self.brokers.insert(1, Mqttd(pure=True))
        self.versions = {broker.name: broker.version() for broker in self.brokers}

    def measure(self, workload: Workload) -> dict[str, list[Measurement]]:
        """Run the brokers in turn; a broker that gave no figure has a failed run instead."""
        runs: dict[str, list[Measurement]] = {broker.name: [] for broker in self.brokers}
        rounds = self.given.rounds or workload.rounds
        for number in range(rounds):
            for broker in self.brokers:
                text = f"{workload.name}: {broker.name}, round {number + 1} of {rounds}"
                print(text, file=sys.stderr, flush=True)
                runs[broker.name].append(self._run(broker, workload))
        return runs

    def _run(self, broker: Broker, workload: Workload) -> Measurement:
        arguments = workload.arguments(self.given.duration, self.given.warmup)
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            with broker.start(Path(name), BROKER_CORE) as running:
                limit = self.given.duration + self.given.warmup + LIMIT
                try:
                    found = self.load.run(running.port, running.pid, arguments, limit)
                except Failure as error:
                    return failed(f"{error} {running.ended()}".strip())
                if running.ended():
                    return replace(found, ok=False, errors=(*found.errors, running.ended()))
                return found

    def rows(self, workload: Workload, runs: dict[str, list[Measurement]]) -> list[Comparison]:
        """Our row, and the pure one's with its own bound. The bounds are mosquitto's alone."""
        ours, theirs = self.brokers[0], self.brokers[-1]
        bounded = self.given.against == "mosquitto" and self.given.broker == "mqttd"
        compiled = "(compiled)" in self.versions[ours.name]
        found = []
        for broker in self.brokers[:-1]:
            pure = isinstance(broker, Mqttd) and (broker.pure or not compiled)
            bound = (workload.pure_bound if pure else workload.bound) if bounded else None
            row = workload
            if broker is not ours:
                row = replace(workload, name=f"{workload.name} pure")
            found.append(compare(row, runs[broker.name], runs[theirs.name], bound))
        return found

    def cut(self, workload: Workload) -> Workload:
        """The workload with what a peer that needs less gets, the same for both."""
        more = [arg for broker in self.brokers for arg in broker.cuts.get(workload.name, ())]
        return replace(workload, args=(*workload.args, *more)) if more else workload


def failed(why: str) -> Measurement:
    """A run without figures."""
    return Measurement(False, 0, 0, 0, 0, 0, 0, 0, 0, 0, {}, (why,))


def about(bench: Bench) -> dict[str, object]:
    """What was run, for the reader of a result."""
    given = bench.given
    return {
        "machine": bench.machine,
        "broker": given.broker,
        "against": given.against,
        "versions": {**bench.versions, "mqttload": bench.load.version()},
        "configurations": {b.name: dict(b.configuration("PORT")) for b in bench.brokers},
        "cores": {"broker": BROKER_CORE, "mqttload": LOAD_CORE},
        "duration": given.duration,
        "warmup": given.warmup,
        "rounds": str(given.rounds or "3, latency 5"),
    }


def announce(bench: Bench) -> None:
    """Print versions, machine and configurations."""
    shape = bench.machine
    print(f"{shape['cores']} x {shape['cpu']}, {shape['kernel']}, {shape['python']}")
    for name, version in bench.versions.items():
        print(f"{name}: {version}")
    print(f"load: {bench.load.version()}; broker on core {BROKER_CORE}, load on {LOAD_CORE}")
    if shape["load_average"] > QUIET:
        print(f"load average {shape['load_average']:g}: others use this machine, expect noise")
    for broker in bench.brokers:
        for file, text in broker.configuration("PORT").items():
            print(f"\n--- {broker.name}: {file}\n{text}", end="")
    print(flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit status."""
    given = options(arguments)
    if given.list:
        for workload in WORKLOADS:
            print(f"{workload.name:20} {workload.title:38} {' '.join(workload.args)}")
        return 0
    # Ended from outside, still end the broker.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        if len(os.sched_getaffinity(0)) < 2 or shutil.which("taskset") is None:
            raise StartError("two cores and taskset are needed: one for a broker, one for the load")
        raise_file_limit()
        bench = Bench(given, Mqttload.find(given.mqttload, LOAD_CORE, os.environ))
    except (NotFound, StartError) as error:
        print(error, file=sys.stderr)
        return 2
    announce(bench)
    rows: list[Comparison] = []
    runs: dict[str, dict[str, list[Measurement]]] = {}
    try:
        for workload in map(bench.cut, given.workloads):
            runs[workload.name] = bench.measure(workload)
            rows += bench.rows(workload, runs[workload.name])
    except StartError as error:
        print(error, file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; what was finished:", file=sys.stderr)
    print(table(rows))
    out = given.json or Path(f"build/benchmarks/{given.broker}-against-{given.against}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    result = as_json(rows, runs, about(bench))
    out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    out.with_suffix(".md").write_text(page(result, rows), "utf-8")
    print(f"\nwritten to {out} and, as a page, {out.with_suffix('.md').name}")
    done = len(rows) >= len(given.workloads)
    return 0 if done and all(row.passed is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
