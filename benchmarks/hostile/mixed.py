"""Attacks of all kinds at once, beside honest clients: python -m benchmarks.hostile.mixed --seeds N

    seed --> one to three rows of `benchmarks.hostile.rows` in one of their shapes, how long they
             go on, which readers are away meanwhile, who is written to

Under a budget of 256 MiB the broker must live, its resident memory stay within that and 64 MiB,
and nothing be lost that was acknowledged (`benchmarks.hostile.ledger`). A broker lives for so many
seeds, so that what one attack has left is there for the next. A seed goes on for its time and until
each attack has made a step, on a slow machine as well; nothing is timed, so several runs with seeds
of their own may share the machine. A seed decides what is tried; what happens first in it is
decided by the machine, so one that failed is tried again more than once. Where the machine stood
still meanwhile, or had no processor for the broker, and an answer was missed, the seed is run
again: a broker that ended or took too much memory has no such excuse.

Exit status 0 if every seed held, 1 if one did not, 2 if nothing could be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.brokers import Running, StartError, raise_file_limit
from benchmarks.hostile.__main__ import OVER, named, peak
from benchmarks.hostile.attack import Attack
from benchmarks.hostile.brokers import Attacked, AttackedCheckout
from benchmarks.hostile.ledger import Ledger, Lost
from benchmarks.hostile.pulse import Pulse
from benchmarks.hostile.rows import ROWS, Row

__all__ = ["draw", "main", "one_seed"]

BUDGET: Final = 256
#: Seconds without a processor after which an answer that did not come says nothing.
STILL: Final = 3.0
#: How often a broker is started until it is ready: the machine may stand still then as well.
STARTS: Final = 20
#: Seconds for the first step of an attack.
FIRST: Final = 10.0
MIXED: Final = tuple(row for row in ROWS.values() if row.shapes)


def draw(random: Random) -> list[tuple[Row, dict[str, Any]]]:
    """The attacks of a seed."""
    return [
        (row, {name: random.choice(values) for name, values in row.shapes.items()})
        for row in random.sample(MIXED, random.randint(1, 3))
    ]


def one_seed(seed: int, port: int, ledger: Ledger, seconds: float) -> str:
    """Run it; what was tried. Raises Lost."""
    random = Random(seed)
    drawn = draw(random)
    tried = ", ".join(f"{row.name}{shape}" for row, shape in drawn)
    ledger.away(random)
    attacks: list[Attack] = []
    try:
        attacks.extend(row.open(port, **shape) for row, shape in drawn)
        ledger.write(random, seed, time.monotonic() + random.uniform(0.2, 1.0) * seconds)
        begun = time.monotonic() + FIRST
        while time.monotonic() < begun and not all(attack.steps > 1 for attack in attacks):
            ledger.write(random, seed, time.monotonic() + 0.02)
        if random.random() < 0.5:
            ledger.settle()
    except Lost as lost:
        raise Lost(f"{lost}; {tried}") from lost
    finally:
        for attack in attacks:
            attack.stop()
    try:
        ledger.settle()
    except Lost as lost:
        raise Lost(f"{lost}; {tried}") from lost
    return tried


class Counts:
    """Of all seeds so far."""

    def __init__(self) -> None:
        self.seeds = self.acknowledged = self.received = self.refused = 0
        #: Seeds that are run again since the machine stood still.
        self.again = 0
        self.peak = 0.0
        self.failed: dict[int, str] = {}

    def add(self, ledger: Ledger) -> None:
        """What a ledger has counted."""
        self.acknowledged += ledger.acknowledged
        self.received += ledger.received
        self.refused += ledger.refused

    def __str__(self) -> str:
        return (
            f"{self.seeds:,} seeds, {self.acknowledged:,} acknowledged, {self.received:,} received,"
            f" {self.refused:,} refused, peak {self.peak:.0f} MiB, {self.again} run again,"
            f" {len(self.failed)} failed"
        )


def one_broker(
    broker: Attacked,
    seeds: Sequence[int],
    counts: Counts,
    pulse: Pulse,
    options: argparse.Namespace,
) -> int:
    """Seeds on one broker until one fails; how many are judged."""
    with tempfile.TemporaryDirectory() as folder:
        with broker.start(Path(folder), sorted(os.sched_getaffinity(0))) as running:
            ledger = Ledger(running.port)
            judged = 0
            for seed in seeds:
                pulse.begin(running.pid)
                wrong, excused = judge(seed, running, ledger, counts, options)
                if excused and pulse.missing() > STILL:
                    counts.again += 1
                    break
                counts.seeds += 1
                judged += 1
                if wrong:
                    counts.failed[seed] = wrong
                    print(f"seed {seed}: {wrong}", flush=True)
                    if options.logs:
                        shutil.copy(Path(folder) / "log", Path(options.logs) / f"{seed}.log")
                    break
            counts.add(ledger)
            ledger.close()
    return judged


def judge(
    seed: int, running: Running, ledger: Ledger, counts: Counts, options: argparse.Namespace
) -> tuple[str, bool]:
    """Run a seed; what was wrong, and whether a machine that stood still would be an excuse."""
    lost = ""
    try:
        tried = one_seed(seed, running.port, ledger, options.seconds)
    except Lost as error:
        lost = tried = str(error)
    if ended := running.ended():
        return f"the broker {ended}; {tried}", False
    highest = peak(running.pid) / 2**20
    counts.peak = max(counts.peak, highest)
    if highest > options.budget + OVER:
        return f"{highest:.0f} MiB > {options.budget + OVER}; {tried}", False
    return lost, bool(lost)


def run(options: argparse.Namespace) -> Counts:
    """All seeds, so many to a broker."""
    raise_file_limit()
    broker: Attacked = Attacked(pure=options.pure)
    if options.mqttd:
        broker = AttackedCheckout(options.mqttd[0], Path(options.mqttd[1]))
    broker.for_row("", options.budget)
    counts, pulse, starts = Counts(), Pulse(), 0
    seeds = list(range(options.first, options.first + options.seeds))
    while seeds:
        try:
            judged = one_broker(broker, seeds[: options.each], counts, pulse, options)
        except StartError:
            starts += 1
            if starts == STARTS:
                raise
            continue
        del seeds[:judged]
        print(f"from {options.first}: {counts}", flush=True)
    return counts


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.hostile.mixed", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=100, metavar="N")
    parser.add_argument("--first", type=int, default=1, metavar="SEED")
    parser.add_argument("--each", type=int, default=50, help="seeds that one broker lives for")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a seed, at most")
    parser.add_argument("--budget", type=int, default=BUDGET, metavar="MIB")
    parser.add_argument("--json", metavar="FILE", help="write counts and failures there")
    parser.add_argument("--logs", default="", metavar="DIR", help="keep logs of failed seeds there")
    parser.add_argument("--pure", action="store_true", help="mqttd uncompiled")
    parser.add_argument("--mqttd", metavar="NAME=PATH", type=named,
                        help="mqttd of this checkout instead")  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        counts = run(options)
    except StartError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        Path(options.json).write_text(json.dumps(vars(counts), indent=1) + "\n", "utf-8")
    return 1 if counts.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
