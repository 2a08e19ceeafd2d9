"""What the event log costs the broker: python -m benchmarks.event_log [--help]

    alone    one whole message in this process: columns, its share of a block; no broker, no network
    off      a broker without the plugin                        -> what exporting is compared with
    shipped  the plugin as it comes: clients, sessions, every publish, what is dropped
    on       every message.publish is exported
    acked    and acknowledgements wait until it is written (QoS 1)
    all      every event there is: with that of each delivery and of its acknowledgement, two events
             a message at QoS 0 and three above

p2p, QoS 0 and 1, as fast as it goes, where p99 is that of full queues; and 1,000 messages a second,
where it is that of a message. The brokers take turns, each started afresh; shown are medians of
broker CPU per delivered message, throughput, latency and memory, and what exporting adds. With
--against mosquitto its CPU per message is measured in the same rounds. Leaves with 1 if an event
alone takes more than 1 us, if exporting takes more than `MOST` times the CPU of off, or if mqttd
with all publishes exported is less than 4 x (QoS 0) or 3 x (QoS 1) as fast as mosquitto.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.brokers import (
    BROKERS,
    Broker,
    Mqttd,
    Running,
    StartError,
)
from benchmarks.load import Failure, Measurement, Mqttload, NotFound
from benchmarks.report import machine

__all__ = ["MOST_ALONE", "WORK", "Exporting", "Work", "alone", "main"]


class Work(NamedTuple):
    """What the brokers are loaded with.

    `bound`: how many times mosquitto's messages per CPU second must be left.
    """

    name: str
    title: str
    qos: int
    arguments: tuple[str, ...]
    bound: float | None = None


PAIRS: Final = ("--scenario", "p2p", "--pubs", "50")
WORK: Final = (
    Work("qos0", "50 pairs, QoS 0", 0, (*PAIRS, "--qos", "0"), 4.0),
    Work("qos1", "50 pairs, QoS 1", 1, (*PAIRS, "--qos", "1"), 3.0),
    Work("latency", "1,000 messages a second, QoS 1", 1,
         ("--scenario", "latency", "--qos", "1", "--pubs", "100", "--rate", "1000")),
)  # fmt: skip

Runs = dict[str, list[Measurement]]

#: Microseconds of one event alone.
MOST_ALONE: Final = 1.0

CONF: Final = 'events = ["message.publish"]\nretention_bytes = 1_000_000_000\n'
VARIANTS: Final[dict[str, str | None]] = {
    "off": None,
    "shipped": "retention_bytes = 1_000_000_000\n",
    "on": CONF,
    "acked": CONF + "acked_means_logged = true\n",
    "all": CONF.replace('"message.publish"', '"*"'),
}
TITLES: Final = {
    "off": "off",
    "shipped": "as shipped",
    "on": "every publish exported",
    "acked": "and acked means logged",
    "all": "every event exported",
}
#: Variant and QoS -> how many times the CPU per message of a broker without the plugin.
MOST: Final = {
    ("shipped", 0): 4.0, ("on", 0): 4.0, ("shipped", 1): 2.0, ("on", 1): 2.0, ("acked", 1): 3.0,
    ("all", 0): 4.0, ("all", 1): 2.0,
}  # fmt: skip

CORES: Final = (0, 1)
LIMIT: Final = 60.0


class Exporting(Mqttd):
    """mqttd with the plugin configured so; None is without it. `acl`: rules before the others."""

    def __init__(self, conf: str | None, acl: str = "") -> None:
        super().__init__()
        self.conf = conf
        self.acl = acl

    def configuration(self, port: int | str) -> Mapping[str, str]:
        """The usual files, the plugin's, and the line that loads it."""
        files = dict(super().configuration(port))
        files["acl.conf"] = self.acl + files["acl.conf"]
        if self.conf is not None:
            (name,) = (name for name in files if name.endswith("mqttd.conf"))
            files[name] += '\n[plugins]\nload = ["spark"]\n'
            files[f"{name.removesuffix('mqttd.conf')}plugins/spark.conf"] = self.conf
        return files

    def start(self, directory: Path, core: int | Sequence[int]) -> Running:
        """As any, with the folder of the plugin's configuration."""
        (directory / "plugins").mkdir()
        return super().start(directory, core)


class _Timer:
    def cancel(self) -> None:
        """Nothing is due here."""


def alone(events: int = 200_000) -> float:
    """Microseconds of CPU that an event takes in the reactor's thread; the best of five."""
    from mqttd.pipeline.log.appender import Appender
    from mqttd.pipeline.log.writer import Writer
    from mqttd.session.ground.guid import Guid
    from mqttd.session.ground.message import Message

    ids = Guid(0, 1)
    start = time.time_ns() // 1000
    messages = [
        Message(ids.next(start + i), f"site/{i % 1000}", b"%64d" % i, 1, False, None, f"c{i % 100}")
        for i in range(20_000)
    ]
    later: queue.SimpleQueue[Any] = queue.SimpleQueue()
    found = []
    for _ in range(5):
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            log = Appender(
                Writer(directory, "n1"), lambda seconds, f: _Timer(), later.put, queue_bytes=1 << 40
            )
            note = log.columns.note_message
            rounds = events // len(messages)
            began = time.thread_time()
            for _ in range(rounds):
                for message in messages:
                    note(message, 0)
            found.append((time.thread_time() - began) * 1e6 / (rounds * len(messages)))
            log.stop()
            log.join()
    return min(found)


def measure(
    brokers: Mapping[str, Broker], load: Mqttload, work: Work, given: argparse.Namespace
) -> Runs:
    """The runs of each broker, round by round; raises Failure."""
    found: dict[str, list[Measurement]] = {name: [] for name in brokers}
    arguments = [*work.arguments, "--duration", f"{given.duration:g}", "--warmup", "0.5"]
    for _ in range(given.rounds):
        for name, broker in brokers.items():
            with tempfile.TemporaryDirectory(prefix="bench-") as directory:
                with broker.start(Path(directory), CORES[0]) as running:
                    run = load.run(running.port, running.pid, arguments, given.duration + LIMIT)
            if run.deviation():
                raise Failure(f"{name}, {work.title}: {run.deviation()}")
            found[name].append(run)
    return found


def table(work: Work, found: Runs) -> list[str]:
    """The variants side by side, in Markdown."""
    head = ("", "us CPU/message", "lowest", "highest", "messages/s", "p50 ms", "p99 ms",
            "peak RSS MiB", "CPU", "messages/s", "p99", "RSS")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    off = found["off"]
    for name, runs in found.items():
        costs = [run.cpu for run in runs]
        rate, p50, p99, rss = (_median(runs, one) for one in ("rate", "p50", "p99", "rss_peak"))
        compared = [
            statistics.median(
                getattr(a, one) / getattr(b, one) for a, b in zip(runs, off, strict=True)
            )
            for one in ("cpu", "rate", "p99", "rss_peak")
        ]  # fmt: skip
        cells = [
            TITLES.get(name, name), f"{statistics.median(costs):.2f}", f"{min(costs):.2f}",
            f"{max(costs):.2f}", f"{rate:,.0f}", f"{p50 / 1000:.2f}", f"{p99 / 1000:.2f}",
            f"{rss / (1 << 20):.0f}", *(f"{one:.2f} x" for one in compared),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _median(runs: Sequence[Measurement], name: str) -> float:
    return statistics.median(getattr(run, name) for run in runs)


def judged(work: Work, found: Runs, against: str | None) -> tuple[list[str], bool]:
    """What exporting adds, and whether the bound is met."""
    lines = [
        f"{TITLES[name]}: {_median(runs, 'cpu') - _median(found['off'], 'cpu'):+.2f} us of CPU"
        " a message."
        for name, runs in found.items()
        if name in ("shipped", "on", "acked", "all")
    ]
    met = True
    for name, runs in found.items():
        most = MOST.get((name, work.qos)) if work.bound is not None else None
        if most is not None:
            pairs = zip(runs, found["off"], strict=True)
            ratio = statistics.median(mine.cpu / off.cpu for mine, off in pairs)
            lines.append(f"{TITLES[name]}: {ratio:.2f} x the CPU of off (at most {most:g} x).")
            met = met and ratio <= most
    bound = work.bound
    if against is None or bound is None:
        return lines, met
    pairs = zip(found[against], found["on"], strict=True)
    ratio = statistics.median(theirs.cpu / ours.cpu for theirs, ours in pairs)
    lines.append(f"All publishes exported: {ratio:.1f} x {against} (at least {bound:g} x).")
    return lines, met and (ratio >= bound or against != "mosquitto")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, keep; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.event_log", description="What the event log costs the broker."
    )
    peers = [name for name in BROKERS if name != "mqttd"]
    parser.add_argument("--against", choices=peers, help="a broker to compare with")
    parser.add_argument("--alone", action="store_true", help="only what an event takes alone")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (%(default)d)")
    parser.add_argument("--duration", type=float, default=3, help="seconds measured (%(default)g)")
    parser.add_argument("--only", choices=[work.name for work in WORK], action="append")
    parser.add_argument("--mqttload", metavar="PATH", help="the load generator ($MQTTLOAD)")
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="keep it there, and a page beside"
    )
    given = parser.parse_args(arguments)
    shape = machine()
    cost = alone()
    lines = [f"One event alone: {cost:.2f} us (at most {MOST_ALONE:g})."]
    print(lines[0], flush=True)
    met = [cost <= MOST_ALONE]
    runs: dict[str, Runs] = {}
    versions: list[str] = []
    try:
        if not given.alone:
            load = Mqttload.find(given.mqttload, CORES[1], os.environ)
            brokers: dict[str, Broker] = {name: Exporting(conf) for name, conf in VARIANTS.items()}
            if given.against:
                brokers[given.against] = BROKERS[given.against]()
            versions = [brokers["off"].version(), load.version()]
            print(f"{', '.join(versions)}, load average {shape['load_average']:.1f}")
            for work in WORK:
                if given.only and work.name not in given.only:
                    continue
                chosen = {n: b for n, b in brokers.items() if n != "acked" or work.qos}
                runs[work.name] = measure(chosen, load, work, given)
                told, good = judged(work, runs[work.name], given.against)
                lines += ["", f"## {work.title}", "", *table(work, runs[work.name]), "", *told]
                print("\n".join(lines[-len(told) - len(chosen) - 6 :]), flush=True)
                met.append(good)
    except (Failure, NotFound, StartError) as error:
        print(error, file=sys.stderr)
        return 2
    if given.json is not None:
        keep(given, shape, versions, cost, runs, lines)
    return 0 if all(met) else 1


def keep(
    given: argparse.Namespace,
    shape: Mapping[str, Any],
    versions: Sequence[str],
    cost: float,
    runs: Mapping[str, Runs],
    lines: Sequence[str],
) -> None:
    """Write the JSON file, and the page beside it."""
    today = datetime.now(UTC)
    result = {
        "date": today.isoformat(timespec="minutes"),
        "machine": shape,
        "versions": versions,
        "duration": given.duration,
        "rounds": given.rounds,
        "configurations": {TITLES[name]: conf for name, conf in VARIANTS.items()},
        "us_of_one_event_alone": round(cost, 3),
        "runs": {
            work: {name: [run.as_dict() for run in one] for name, one in found.items()}
            for work, found in runs.items()
        },
    }
    given.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    page = [
        f"# mqttd with and without the event log, {today:%Y-%m-%d}",
        "",
        f"{shape['cores']} x {shape['cpu']}, {shape['memory']} of memory, {shape['kernel']},"
        f" {shape['python']}. Broker on core {CORES[0]}, load on core {CORES[1]};"
        f" {given.duration:g} s measured, medians of {given.rounds} rounds; the last four columns"
        " are against the broker without the plugin, round by round.",
        "",
        *[f"- {version}" for version in versions],
        "",
        *lines,
    ]
    given.json.with_suffix(".md").write_text("\n".join(page) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
