"""Takes the broker away while Spark reads it by URL: python -m benchmarks.outages --away 60

    publishers --QoS 1--> broker --HTTPS or HTTP--> Spark stream --> Parquet
    numbered              away for `--away` seconds, `--times` times: kill -9 and stopped by turns

Spark's driver is never started again: its query has to outlive every absence. An acknowledgement
means that the event is logged. Afterwards the table equals the log, row for row, and the log has
every number that was acknowledged (`benchmarks.exactly_once` compares). How long after the broker
listens again the query ends its next micro-batch is told, too. Leaves with 1 if it is not so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.exactly_once import PLUGIN_CONF, compared
from benchmarks.killed import DEADLINE, Failed, Run, attempt, driver, quiet_port

__all__ = ["main", "outages"]

TOKEN: Final = "benchmark-token-of-the-event-log"
TABLES: Final = """\
[admin.tcp]
bind = "127.0.0.1:{port}"
pull_token_file = "pull-tokens"
"""
DRIVER: Final = driver(
    log="",
    stream='frame.writeStream.format("parquet").option("path", folder + "/table")',
    pause=1000,
    memory="1g",
    after="""\
files = spark.read.parquet(folder + "/table").inputFiles()
print("FILES", json.dumps(list(files)), flush=True)
""",
)


def _await_batch(run: Run, events: Callable[[], bool] = lambda: True) -> float:
    """Seconds until a micro-batch that begins now is done."""
    began, (begun, _) = time.monotonic(), run.batches()
    while run.batches()[1] <= begun or not events():
        run.check_driver()
        if run.slow_starts:
            raise Failed("the driver ended: the machine is too slow for this")
        if time.monotonic() > began + DEADLINE:
            raise Failed(f"no micro-batch ends in {DEADLINE:g} s")
        time.sleep(0.05)
    return time.monotonic() - began


def outages(
    folder: Path,
    away: float,
    times: int,
    rate: float = 200.0,
    seed: int = 7,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Do all of it in `folder`; what was found. Raises Failed.

    :param away: seconds of each absence.
    :param rate: messages a second.
    """
    from benchmarks.numbered import Publishers

    port = quiet_port()
    options = {"url": f"http://127.0.0.1:{port}", "token": TOKEN}
    run = Run(folder, seed, DRIVER, PLUGIN_CONF, options, tables=TABLES.format(port=port))
    tokens = folder / "pull-tokens"
    tokens.write_text(f"{TOKEN}\n")
    tokens.chmod(0o600)
    publishers = Publishers(folder / "publishers", rate)
    back: list[float] = []
    try:
        publishers.port = run.start_broker()
        run.start_driver()
        _await_batch(run)
        for number in range(times):
            time.sleep(run.chance.uniform(0.5, 4.0))
            if number % 2:
                run.stop_broker()
            else:
                run.kill_broker()
            time.sleep(away)
            publishers.port = run.start_broker()
            back.append(_await_batch(run))
            done = run.batches()[1]
            say(f"away {number + 1} times; {back[-1]:.1f} s until a batch; {done} batches")
        told = publishers.stop()
        say(f"{told['acknowledged']:,} acknowledged; reading the rest")
        run.kill_driver()
        said = run.finish_driver().decode().splitlines()
        (line,) = (line for line in said if line.startswith("FILES "))
        files = [one.removeprefix("file://") for one in json.loads(line[6:])]
        run.stop_broker()
    finally:
        run.stop()
    return {
        "away_seconds": away,
        "times": times,
        "killed": run.broker_kills,
        "drivers": 1 + run.slow_starts,
        "micro_batches": run.batches()[1],
        "seconds_until_a_batch": {
            "median": round(statistics.median(back), 1),
            "most": round(max(back), 1),
        },
        **told,
        **compared(folder, files, told),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Do it and print what was found; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.outages",
        description="Takes the broker away while Spark reads it by URL.",
    )
    parser.add_argument("--away", type=float, default=60, help="seconds (%(default)g)")
    parser.add_argument("--times", type=int, default=20, help="(%(default)d)")
    parser.add_argument("--rate", type=float, default=200, help="messages a second (%(default)g)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="work here, and leave everything behind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep it")
    given = parser.parse_args(arguments)
    status, found = attempt(
        given.folder,
        lambda folder, say: outages(
            folder, given.away, given.times, given.rate, given.seed, say=say
        ),
    )
    if status:
        return status
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
