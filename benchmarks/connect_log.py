"""What the log's lines about clients cost: python -m benchmarks.connect_log [--conns 20000]

    core 0   mqttd, off   mqttd, as shipped   mqttd, every line   mqttd, every line ...  each afresh
    core 1   mqttload: connect, CONNACK, close, 100 at a time, as fast as the broker takes them

    off          [log] connections = "off"
    as shipped   "info", of which `log.rate` writes 100 lines a second of a kind and counts the rest
    every line   "info" and rate = 100000: a line for each that comes, and for each that goes

A figure is the broker's CPU per connection, with that of the thread that writes the log; run *k* of
one is compared with run *k* of "off", and every other round goes the other way round. Bounds: as
shipped at most 3 % more than off; in a second at most the lines that `log.rate` allows; each
connection has its line or is in a count.

Leaves with 0 if every bound was met, 1 if one was missed or a run refused.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.brokers import Mqttd, raise_file_limit
from benchmarks.load import Failure, Mqttload, NotFound

__all__ = ["Logging", "Volume", "main", "volume"]

BROKER_CORE, LOAD_CORE = 0, 1
#: Seconds that a run may take.
LIMIT: Final = 180.0
#: What lines about clients may cost as shipped, over the cost without them.
MOST: Final = 1.03
#: As `log.rate` is shipped.
RATE: Final = 100

SETTINGS: Final[Mapping[str, str]] = {
    "off": 'connections = "off"\n',
    "as shipped": "",
    "every line": "rate = 100000\nqueue = 268435456\n",
}

_LINE: Final = re.compile(
    r"^(\S{19})\S* +info +mqttd\.broker (connected|disconnected by client): (.*)$", re.MULTILINE
)
_MORE: Final = re.compile(r"more_in_one_second=(\d+)")


class Logging(Mqttd):
    """mqttd with one of the `SETTINGS`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def configuration(self, port: int | str) -> Mapping[str, str]:
        files = dict(super().configuration(port))
        files["mqttd.conf"] += f"\n[log]\n{SETTINGS[self.name]}"
        return files


class Volume:
    """What a log says of clients: lines, those only counted, and the most lines in a second."""

    def __init__(self, lines: int, counted: int, most: int, size: int) -> None:
        self.lines = lines
        self.counted = counted
        self.most = most
        self.size = size


def volume(log: str) -> Volume:
    """The lines about clients that come, and go by themselves."""
    lines = counted = size = 0
    seconds: Counter[tuple[str, str]] = Counter()
    for second, kind, fields in _LINE.findall(log):
        more = _MORE.search(fields)
        if more is not None:
            counted += int(more[1])
        else:
            lines += 1
            seconds[second, kind] += 1
        size += len(second) + len(kind) + len(fields) + 30
    return Volume(lines, counted, max(seconds.values(), default=0), size)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connect_log")
    parser.add_argument("--conns", type=int, default=20000, help="of a run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (%(default)s)")
    parser.add_argument(
        "--no-every-line", action="store_true", help="leave that one off, for more rounds"
    )
    parser.add_argument("--mqttload", metavar="PATH", help="a load generator ($MQTTLOAD)")
    given = parser.parse_args(arguments)
    try:
        load = Mqttload.find(given.mqttload, LOAD_CORE, os.environ)
    except NotFound as error:
        print(error, file=sys.stderr)
        return 1
    raise_file_limit()
    print(Logging("off").version(), flush=True)
    names = list(SETTINGS)[: 2 if given.no_every_line else 3]
    cost: dict[str, list[float]] = {name: [] for name in names}
    rate: dict[str, list[float]] = {name: [] for name in names}
    told: dict[str, Volume] = {}
    faults: list[str] = []
    for number in range(given.rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            print(f"round {number + 1} of {given.rounds}: {name}", file=sys.stderr, flush=True)
            try:
                measured, told[name] = _run(name, load, given.conns)
            except Failure as error:
                faults.append(f"{name}: {error}")
                continue
            cost[name].append(measured[0])
            rate[name].append(measured[1])
            faults += _faults(name, told[name], given.conns)
    print(f"{'':12} {'us/connection':>14} {'connections/s':>14} {'over off':>18} "
          f"{'lines':>7} {'counted':>8} {'most/s':>7} {'KiB':>6}")  # fmt: skip
    over = 0.0
    for name in names:
        if len(cost[name]) != len(cost["off"]) or not cost[name]:
            continue
        ratios = [mine / off for mine, off in zip(cost[name], cost["off"], strict=True)]
        middle = statistics.median(ratios)
        if name == "as shipped":
            over = middle
        shown = f"{middle:.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
        last = told[name]
        print(f"{name:12} {statistics.median(cost[name]):14.1f} "
              f"{statistics.median(rate[name]):14,.0f} {shown:>18} {last.lines:7} "
              f"{last.counted:8} {last.most:7} {last.size / 1024:6.0f}")  # fmt: skip
    if not 0 < over <= MOST:
        faults.append(f"as shipped costs {over:.3f} of off, at most {MOST} is asked for")
    for fault in faults:
        print(f"FAIL {fault}")
    return 1 if faults else 0


def _run(name: str, load: Mqttload, conns: int) -> tuple[tuple[float, float], Volume]:
    """CPU-microseconds per connection and connections per second; what the log said."""
    arguments = ["--scenario", "connstorm", "--conns", str(conns), "--concurrency", "100"]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        with Logging(name).start(Path(folder), BROKER_CORE) as running:
            found = load.run(running.port, running.pid, arguments, LIMIT)
            if not found.ok:
                raise Failure(found.deviation())
        # What was suppressed in the last second is told when the broker stops.
        return (found.cpu, found.rate), volume(running.log)


def _faults(name: str, told: Volume, conns: int) -> list[str]:
    """What of the bounds a log does not keep."""
    if name == "off":
        return [f"off: {told.lines} lines"] if told.lines + told.counted else []
    found = []
    most = RATE if name == "as shipped" else 100_000
    # A limiter's second and the clock's are not the same: two of them touch.
    if told.most > 2 * most:
        found.append(f"{name}: {told.most} lines of a kind in a second, log.rate is {most}")
    if told.lines + told.counted < 2 * conns:
        found.append(f"{name}: {told.lines} lines and {told.counted} counted of {2 * conns}")
    return found


if __name__ == "__main__":
    sys.exit(main())
