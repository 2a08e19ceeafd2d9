"""The program: `python -m fuzz.lockstep --help`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fuzz import lockstep
from fuzz.lockstep.generating import generate
from fuzz.lockstep.homes import Home
from fuzz.lockstep.playing import Duel
from fuzz.lockstep.profiles import PROFILES
from fuzz.lockstep.running import AT_ONCE, play, reduced, report
from mqttd import compiled

__all__ = ["main"]

#: Seconds for the reduction of a sequence.
REDUCING = 120.0
#: Sequences of one kind of difference that are reduced and shown.
SHOWN = 2


def address(text: str) -> tuple[str, int]:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def main(arguments: list[str] | None = None) -> int:
    """Play, print what differs; the exit status is 1 if anything does."""
    told = lockstep.__doc__ or ""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.lockstep", description=told.split("\n")[0]
    )
    parser.add_argument("count", type=int, nargs="?", default=300, metavar="COUNT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", choices=sorted(PROFILES), help="all in turn, without it")
    parser.add_argument(
        "--beside", type=address, metavar="HOST:PORT", help="say what this broker does, too"
    )
    parser.add_argument(
        "--kill",
        action="store_true",
        help="kill the broker once in each sequence, a store behind it",
    )
    options = parser.parse_args(arguments)
    profiles = [options.profile] if options.profile else list(PROFILES)
    if options.kill and not options.profile:
        profiles.remove("time")
    # One profile after the other: what is played together takes about the same time.
    jobs = [
        (options.seed + at, profile)
        for nth, profile in enumerate(profiles)
        for at in range(len(range(nth, options.count, len(profiles))))
    ]
    beside = (lambda: options.beside) if options.beside else None
    print(f"seed {options.seed}, {'compiled' if compiled() else 'pure Python'} broker")
    began, kinds = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="lockstep-") as path:
        home = Home(Path(path), "sqlite" if options.kill else "memory")
        try:
            for begin in range(0, len(jobs), AT_ONCE):
                some = jobs[begin : begin + AT_ONCE]
                duels = play((generate(*job, options.kill) for job in some), home)
                for (seed, profile), duel in zip(some, duels, strict=True):
                    if duel.difference is not None:
                        kinds[duel.difference.kind] += 1
                        kill = " --kill" * options.kill
                        print(f"DIFFERS: 1 --seed {seed} --profile {profile}{kill}", flush=True)
                        if kinds[duel.difference.kind] <= SHOWN:
                            show(duel, home, beside)
        finally:
            home.close()
    print(
        f"{len(jobs)} sequences, {home.kills} kills, {kinds.total()} differ,"
        f" {time.monotonic() - began:.0f} s"
    )
    for kind, count in kinds.most_common():
        print(f"{count:8}  {kind}")
    complaints = home.complaints()
    print("\n".join(f"LOGGED: {line}" for line in complaints), end="\n" if complaints else "")
    return 1 if kinds or complaints else 0


def show(duel: Duel, home: Home, beside: Callable[[], tuple[str, int]] | None) -> None:
    """The shortest sequence with this difference; all of this one where it does not come again."""
    assert duel.difference is not None
    sequence = reduced(duel.sequence, duel.difference, home, REDUCING)
    (again,) = play([sequence], home)
    print(f"  {duel.difference.kind}" + ("" if again.difference else ", and not again"))
    print("\n".join(report(again if again.difference else duel, beside)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
