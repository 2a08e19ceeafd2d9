"""Measures mqttd beside other brokers: python -m benchmarks [--help]

    core 0   mqttd   mosquitto   flashmq   mqttd   mosquitto ...    one at a time, each afresh
    core 1   mqttload, which checks every delivery

    python -m benchmarks --merge A.json B.json ...     several runs as one, with their range

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
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.brokers import (
    BROKERS,
    Broker,
    Checkout,
    FlashMQ,
    Mqttd,
    StartError,
    raise_file_limit,
)
from benchmarks.companions import Churning, decisions_run, failed, subscribe_run
from benchmarks.compare import Comparison, compare
from benchmarks.load import Failure, Measurement, Mqttload, NotFound
from benchmarks.merge import merge
from benchmarks.report import as_json, machine, page, table
from benchmarks.workloads import WORKLOADS, Workload, selected

__all__ = ["main"]

BROKER_CORE, LOAD_CORE = 0, 1

#: Seconds a run may take beyond its duration: 100,000 filters, 19,000 connections, the drain.
LIMIT = 180.0

#: Load average up to which the machine counts as having nothing else to do.
QUIET = 0.5

#: The same broker in the same rounds, set otherwise.
ITSELF = "itself"


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure mqttd beside other brokers.",
        epilog="workloads: " + ", ".join(w.name for w in WORKLOADS),
    )  # fmt: skip
    parser.add_argument("--broker", choices=BROKERS, default="mqttd", help="ours (%(default)s)")
    parser.add_argument("--against", choices=[*BROKERS, "none"], default="mosquitto",
                        help="theirs (%(default)s)")  # fmt: skip
    parser.add_argument("--flashmq", metavar="PATH", type=Path, help="also beside this FlashMQ")
    parser.add_argument("--mqttd", metavar="NAME=CHECKOUT", type=_checkout, action="append",
                        default=[], help="also beside that checkout's twistd")  # fmt: skip
    parser.add_argument("--pure", action="store_true", help="also mqttd without its compiled part")
    parser.add_argument("--only", metavar="NAME,...", help="these workloads, as in p2p-q0,fan*")
    parser.add_argument("--rounds", type=_positive, help="runs of each (3, latency 5)")
    parser.add_argument("--duration", type=float, default=3, help="seconds measured (%(default)g)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds before (%(default)g)")
    parser.add_argument("--quick", action="store_true", help="one round of one second")
    parser.add_argument("--mqttload", metavar="PATH", help="a load generator ($MQTTLOAD)")
    parser.add_argument("--json", metavar="FILE", type=Path,
                        help="results (build/benchmarks/BROKER-against-PEER.json)")  # fmt: skip
    parser.add_argument("--merge", metavar="FILE", type=Path, nargs="+",
                        help="measure nothing: one table of these results")  # fmt: skip
    parser.add_argument("--into", metavar="PAGE", type=Path,
                        help="with --merge: write the short table into this page")  # fmt: skip
    parser.add_argument("--list", action="store_true",
                        help="show the workloads, those of --only, and stop")  # fmt: skip
    found = parser.parse_args(arguments)
    if found.broker == found.against:
        parser.error(f"--broker and --against are both {found.against}")
    if found.into and not found.merge:
        parser.error("--into needs --merge")
    if found.quick:
        found.rounds, found.duration, found.warmup = found.rounds or 1, 1.0, 0.3
    try:
        found.workloads = selected(found.only)
    except ValueError as error:
        parser.error(str(error))
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a number from 1")
    return int(text)


def _checkout(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not name or not equals or not path or name in (*BROKERS, ITSELF):
        raise argparse.ArgumentTypeError("NAME=CHECKOUT, with a name that no broker has")
    return name, Path(path)


class Bench:
    """The brokers of one session and the load generator between them."""

    def __init__(self, given: argparse.Namespace, load: Mqttload) -> None:
        self.given = given
        self.load = load
        self.machine = machine()  # before the brokers load it themselves
        self.ours: list[Broker] = [BROKERS[given.broker]()]
        if given.pure:
            self.ours.append(Mqttd(pure=True))
        self.peers: list[Broker] = []
        if given.against != "none":
            self.peers.append(BROKERS[given.against]())
        if given.flashmq is not None:
            self.peers = [peer for peer in self.peers if not isinstance(peer, FlashMQ)]
            self.peers.append(FlashMQ(given.flashmq))
        self.peers += [Checkout(name, path) for name, path in given.mqttd]
        self.versions = {broker.name: broker.version() for broker in [*self.ours, *self.peers]}

    def brokers(self, workload: Workload) -> dict[str, Broker]:
        """Who is measured, each as the workload wants it, in the order of a round."""
        found: dict[str, Broker] = {}
        for broker in [*self.ours, *self.peers]:
            setting = workload.setting
            ours = isinstance(broker, Mqttd)
            found[broker.name] = broker.under(setting if ours else setting.of_others())
        if workload.itself is not None and isinstance(self.ours[0], Mqttd):
            found[ITSELF] = self.ours[0].under(workload.itself)
        return found

    def measure(self, workload: Workload) -> dict[str, list[Measurement]]:
        """Run the brokers in turn; a broker that gave no figure has a failed run instead."""
        brokers = self.brokers(workload)
        runs: dict[str, list[Measurement]] = {name: [] for name in brokers}
        rounds = self.given.rounds or workload.rounds
        for number in range(rounds):
            for name, broker in brokers.items():
                text = f"{workload.name}: {name}, round {number + 1} of {rounds}"
                print(text, file=sys.stderr, flush=True)
                runs[name].append(self._run(broker, workload))
        return runs

    def _run(self, broker: Broker, workload: Workload) -> Measurement:
        arguments = workload.arguments(self.given.duration, self.given.warmup)
        limit = self.given.duration + self.given.warmup + LIMIT
        with ExitStack() as stack:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            churning: Churning | None = None
            try:
                running = stack.enter_context(broker.start(Path(name), BROKER_CORE))
                if workload.companion == "subscribe":
                    found = subscribe_run(running.port, running.pid, LOAD_CORE, limit)
                elif workload.companion.startswith("decisions "):
                    what = workload.companion.removeprefix("decisions ")
                    found = decisions_run(what, running.port, running.pid, LOAD_CORE, limit)
                elif workload.companion == "churn":
                    with Churning(running.port, LOAD_CORE) as churning:
                        found = self.load.run(running.port, running.pid, arguments, limit)
                else:
                    found = self.load.run(running.port, running.pid, arguments, limit)
            except StartError as error:
                return failed(str(error))
            except Failure as error:
                return failed(f"{error} {running.ended()}".strip())
            faults = [churning.fault if churning else "", running.ended()]
            if any(faults):
                return replace(found, ok=False, errors=(*found.errors, *filter(None, faults)))
            return found

    def rows(self, workload: Workload, runs: dict[str, list[Measurement]]) -> list[Comparison]:
        """Our row, and the pure one's with its own bound, beside each peer."""
        found = []
        for broker in self.ours:
            pure = isinstance(broker, Mqttd) and (
                broker.pure or "(compiled)" not in self.versions[broker.name]
            )
            for peer, theirs in runs.items():
                if peer in (ours.name for ours in self.ours):
                    continue
                bound = workload.bounds.get(peer)
                if pure:
                    bound = workload.pure_bound if peer == "mosquitto" else None
                if not isinstance(broker, Mqttd):
                    bound = None
                row = compare(workload, peer, runs[broker.name], theirs, bound, broker.name)
                if peer != ITSELF or broker is self.ours[0]:
                    found.append(row)
        return found

    def cut(self, workload: Workload) -> Workload:
        """The workload with what a peer that needs less gets, the same for all."""
        brokers = [*self.ours, *self.peers]
        more = [arg for broker in brokers for arg in broker.cuts.get(workload.name, ())]
        return replace(workload, args=(*workload.args, *more)) if more else workload


def about(bench: Bench) -> dict[str, object]:
    """What was run, for the reader of a result."""
    given = bench.given
    return {
        "machine": bench.machine,
        "broker": given.broker,
        "peers": [peer.name for peer in bench.peers],
        "versions": {**bench.versions, "mqttload": bench.load.version()},
        "configurations": {b.name: dict(b.configuration("PORT")) for b in _all(bench)},
        "cores": {"broker": BROKER_CORE, "mqttload": LOAD_CORE},
        "duration": given.duration,
        "warmup": given.warmup,
        "rounds": str(given.rounds or "3, latency 5"),
    }


def _all(bench: Bench) -> list[Broker]:
    return [*bench.ours, *bench.peers]


def announce(bench: Bench) -> None:
    """Print versions, machine and configurations."""
    shape = bench.machine
    print(f"{shape['cores']} x {shape['cpu']}, {shape['kernel']}, {shape['python']}")
    for name, version in bench.versions.items():
        print(f"{name}: {version}")
    print(f"load: {bench.load.version()}; broker on core {BROKER_CORE}, load on {LOAD_CORE}")
    if shape["load_average"] > QUIET:
        print(f"load average {shape['load_average']:g}: others use this machine, expect noise")
    for broker in _all(bench):
        for file, text in broker.configuration("PORT").items():
            print(f"\n--- {broker.name}: {file}\n{text}", end="")
    print(flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit status."""
    given = options(arguments)
    if given.list:
        for workload in given.workloads:
            print(f"{workload.name:20} {workload.title:48} {' '.join(workload.args)}")
        return 0
    if given.merge:
        return merge(given.merge, given.json, given.into)
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
    done = 0
    try:
        for workload in map(bench.cut, given.workloads):
            runs[workload.name] = bench.measure(workload)
            rows += bench.rows(workload, runs[workload.name])
            done += 1
    except KeyboardInterrupt:
        print("interrupted; what was finished:", file=sys.stderr)
    print(table(rows))
    out = given.json or Path(f"build/benchmarks/{given.broker}-against-{given.against}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    result = as_json(rows, runs, about(bench))
    out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    out.with_suffix(".md").write_text(page(result, rows), "utf-8")
    print(f"\nwritten to {out} and, as a page, {out.with_suffix('.md').name}")
    whole = done == len(given.workloads)
    return 0 if whole and all(row.passed is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
