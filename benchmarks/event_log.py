"""What the event log costs the broker: python -m benchmarks.event_log [--help]

    alone    one event in this process: callback, tuple, its share of a block; no broker, no network
    off      a broker without the plugin                        -> what exporting is compared with
    on       every message.publish is exported
    acked    and acknowledgements wait until it is written (QoS 1)

p2p, QoS 0 and 1. The brokers take turns, each started afresh; shown are medians of broker CPU per
delivered message, throughput, p99 and memory, and what exporting adds. With --against mosquitto
its CPU per message is measured in the same rounds. Leaves with 1 if an event alone takes more than
1 us, or if mqttd with all publishes exported is less than 4 x (QoS 0) or 3 x (QoS 1) as fast.
"""

from __future__ import annotations

import argparse
import os
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.brokers import (
    BROKERS,
    Broker,
    Mqttd,
    Running,
    StartError,
    raise_file_limit,
)
from benchmarks.load import Failure, Mqttload, NotFound

__all__ = ["BOUNDS", "MOST_ALONE", "Exporting", "alone", "main"]

#: QoS -> how many times mosquitto's messages per CPU second must be left.
BOUNDS: Final = {0: 4.0, 1: 3.0}
#: Microseconds of one event alone.
MOST_ALONE: Final = 1.0

CONF: Final = 'events = ["message.publish"]\nretention_bytes = 1_000_000_000\n'
VARIANTS: Final[dict[str, str | None]] = {
    "off": None,
    "on": CONF,
    "acked": CONF + "acked_means_logged = true\n",
}

CORES: Final = (0, 1)
LIMIT: Final = 60.0


class Exporting(Mqttd):
    """mqttd with the plugin configured so; None is without it."""

    def __init__(self, conf: str | None) -> None:
        super().__init__()
        self.conf = conf

    def configuration(self, port: int | str) -> Mapping[str, str]:
        """The usual files, the plugin's, and the line that loads it."""
        files = dict(super().configuration(port))
        if self.conf is not None:
            (name,) = (name for name in files if name.endswith("mqttd.conf"))
            files[name] += '\n[plugins]\nload = ["spark"]\n'
            files[f"{name.removesuffix('mqttd.conf')}plugins/spark.conf"] = self.conf
        return files

    def start(self, directory: Path, core: int) -> Running:
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
    from mqttd.session.guid import Guid
    from mqttd.session.message import Message
    from mqttd_plugins.spark.config import SparkConfig
    from mqttd_plugins.spark.exporter import Exporter

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
            publish = Exporter(SparkConfig(), log).message_publish
            rounds = events // len(messages)
            began = time.thread_time()
            for _ in range(rounds):
                for message in messages:
                    publish(message)
            found.append((time.thread_time() - began) * 1e6 / (rounds * len(messages)))
            log.stop()
            log.join()
    return min(found)


def measure(
    brokers: Mapping[str, Broker], load: Mqttload, qos: int, given: argparse.Namespace
) -> dict[str, list[Any]]:
    """The runs of each broker, round by round; raises Failure."""
    found: dict[str, list[Any]] = {name: [] for name in brokers}
    arguments = [
        "--scenario", "p2p", "--pubs", "50", "--qos", str(qos),
        "--duration", f"{given.duration:g}", "--warmup", "0.5",
    ]  # fmt: skip
    for _ in range(given.rounds):
        for name, broker in brokers.items():
            with tempfile.TemporaryDirectory(prefix="bench-") as directory:
                with broker.start(Path(directory), CORES[0]) as running:
                    run = load.run(running.port, running.pid, arguments, given.duration + LIMIT)
            if run.deviation():
                raise Failure(f"{name}, QoS {qos}: {run.deviation()}")
            found[name].append(run)
    return found


def report(qos: int, found: Mapping[str, Sequence[Any]], against: str | None) -> bool:
    """Print a table; False if a bound was missed."""
    cpu = {name: statistics.median(run.cpu for run in runs) for name, runs in found.items()}
    print(f"\np2p QoS {qos}      us/message   lowest  highest   messages/s   p99 ms  peak MiB")
    for name, runs in found.items():
        costs = [run.cpu for run in runs]
        rate = statistics.median(run.rate for run in runs)
        p99 = statistics.median(run.p99 for run in runs) / 1000
        peak = max(run.rss_peak for run in runs) / (1 << 20)
        print(
            f"{name:15} {cpu[name]:12.2f} {min(costs):8.2f} {max(costs):8.2f} {rate:12,.0f}"
            f" {p99:8.1f} {peak:9.0f}"
        )
    print(f"  exporting a publish    {cpu['on'] - cpu['off']:+7.2f} us")
    if against is None:
        return True
    pairs = zip(found[against], found["on"], strict=True)
    ratio, bound = statistics.median(theirs.cpu / ours.cpu for theirs, ours in pairs), BOUNDS[qos]
    print(f"  all publishes exported: {ratio:.1f} x {against} (at least {bound:g} x)")
    return ratio >= bound or against != "mosquitto"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.event_log", description="What the event log costs the broker."
    )
    peers = [name for name in BROKERS if name != "mqttd"]
    parser.add_argument("--against", choices=peers, help="a broker to compare with")
    parser.add_argument("--alone", action="store_true", help="only what an event takes alone")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (%(default)d)")
    parser.add_argument("--duration", type=float, default=3, help="seconds measured (%(default)g)")
    parser.add_argument("--qos", type=int, choices=(0, 1), action="append", help="only this one")
    parser.add_argument("--mqttload", metavar="PATH", help="the load generator ($MQTTLOAD)")
    given = parser.parse_args(arguments)
    cost = alone()
    print(f"one event alone: {cost:.2f} us (at most {MOST_ALONE:g})")
    met = [cost <= MOST_ALONE]
    try:
        if not given.alone:
            raise_file_limit()
            load = Mqttload.find(given.mqttload, CORES[1], os.environ)
            brokers: dict[str, Broker] = {name: Exporting(conf) for name, conf in VARIANTS.items()}
            print(f"{brokers['off'].version()}, load average {os.getloadavg()[0]:.1f}")
            if given.against:
                brokers[given.against] = BROKERS[given.against]()
            for qos in given.qos or BOUNDS:
                chosen = {n: b for n, b in brokers.items() if n != "acked" or qos}
                met.append(report(qos, measure(chosen, load, qos, given), given.against))
    except (Failure, NotFound, StartError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
