"""What a hook at message.publish costs: python -m benchmarks.hooks [--help]

    none      no hook: PUBLISH packets are forwarded as bytes, runs of them as one slice
    apart     no hook, runs switched off: one packet at a time         -> lost run coalescing
    message   one for a client who is not there: a Message each time   -> Message building
    noop      one callback that does nothing                           -> the call
    observe   one callback that counts messages and bytes per topic
    five      five callbacks that do nothing                           -> each further call
    change    one callback that gives each message another payload, so that none goes as it came

p2p, QoS 0 and 1, broker CPU per delivered message. The variants take turns, each with a broker
started afresh; shown are the medians, the ratio to none, and the shares that add up to noop's cost.
With --against mosquitto its CPU per message is measured in the same rounds. Leaves with 1 if one
no-op hook makes mqttd less than 5 x (QoS 0) or 4 x (QoS 1) as fast as it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.brokers import BROKERS, Broker, Mqttd, StartError, raise_file_limit
from benchmarks.load import Failure, Mqttload, NotFound

__all__ = ["BOUNDS", "VARIANTS", "Hooked", "main", "shares"]

#: QoS -> how many times mosquitto's messages per CPU second one no-op hook must leave.
BOUNDS: Final = {0: 5.0, 1: 4.0}

BEFORE: Final = """\
import os
from mqttd.types import OK
from twisted.application.service import Application
from mqttd.service import Options, makeService

options = Options()
options.parseOptions(["--config", os.path.join(os.path.dirname(__file__), "mqttd.conf")])
service = makeService(options)
application = Application("mqttd")
service.setServiceParent(application)
settings, hooks = service.broker.settings, service.hooks

def noop(message):
    return None

def change(message):
    return OK(message.replace(payload=message.payload[:]))

def observe(message, seen):
    count, size = seen.get(message.topic, (0, 0))
    seen[message.topic] = (count + 1, size + len(message.payload))

"""

#: Name of a variant -> what its broker does before it starts.
VARIANTS: Final[dict[str, str]] = {
    "none": "",
    "apart": "settings.coalesce_runs = False",
    "message": "hooks.hook('message.publish', noop, client='nobody')",
    "noop": "hooks.hook('message.publish', noop)",
    "observe": "hooks.hook('message.publish', observe, ({},))",
    "change": "hooks.hook('message.publish', change)",
    "five": "for _ in range(5):\n    hooks.hook('message.publish', lambda message: None)",
}

CORES: Final = (0, 1)
#: Seconds a run may take beyond its duration.
LIMIT: Final = 60.0


class Hooked(Mqttd):
    """mqttd with one of the variants."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.variant = variant

    def configuration(self, port: int | str) -> Mapping[str, str]:
        return {**super().configuration(port), "broker.tac": BEFORE + VARIANTS[self.variant] + "\n"}

    def command(self, directory: Path, port: int) -> list[str]:
        return [
            sys.executable, *self.twistd, "--nodaemon", "--pidfile=",
            "--python", str(directory / "broker.tac"),
        ]  # fmt: skip


def shares(cpu: Mapping[str, float]) -> dict[str, float]:
    """What one no-op hook adds to a message, in the microseconds of `cpu`, by its cause."""
    return {
        "lost run coalescing": cpu["apart"] - cpu["none"],
        "Message building": cpu["message"] - cpu["apart"],
        "the call": cpu["noop"] - cpu["message"],
        "each further call": (cpu["five"] - cpu["noop"]) / 4,
    }


def measure(
    brokers: Mapping[str, Broker], load: Mqttload, qos: int, given: argparse.Namespace
) -> dict[str, list[float]]:
    """Microseconds of broker CPU per message, of each round; raises Failure."""
    found: dict[str, list[float]] = {name: [] for name in brokers}
    arguments = [
        "--scenario", "p2p", "--pubs", "50", "--qos", str(qos),
        "--duration", f"{given.duration:g}", "--warmup", "0.5",
    ]  # fmt: skip
    for _ in range(given.rounds):
        for name, broker in brokers.items():
            with tempfile.TemporaryDirectory(prefix="bench-") as directory:
                with broker.start(Path(directory), CORES[0]) as running:
                    limit = given.duration + LIMIT
                    run = load.run(running.port, running.pid, arguments, limit)
            if run.deviation():
                raise Failure(f"{name}, QoS {qos}: {run.deviation()}")
            found[name].append(run.cpu)
    return found


def report(qos: int, found: Mapping[str, Sequence[float]], against: str | None) -> bool:
    """Print a table; False if a bound was missed."""
    cpu = {name: statistics.median(runs) for name, runs in found.items()}
    print(f"\np2p QoS {qos}      us/message   lowest  highest   to none")
    for name, runs in found.items():
        line = f"{name:15} {cpu[name]:12.2f} {min(runs):8.2f} {max(runs):8.2f}"
        print(f"{line} {cpu[name] / cpu['none']:8.2f} x")
    for name, cost in shares(cpu).items():
        print(f"  {name:22} {cost:+7.2f} us")
    if against is None:
        return True
    ratios = [theirs / ours for theirs, ours in zip(found[against], found["noop"], strict=True)]
    ratio, bound = statistics.median(ratios), BOUNDS[qos]
    print(f"  one no-op hook: {ratio:.1f} x {against} (at least {bound:g} x)")
    return ratio >= bound or against != "mosquitto"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hooks", description="What a hook at message.publish costs."
    )
    peers = [name for name in BROKERS if name != "mqttd"]
    parser.add_argument("--against", choices=peers, help="a broker to compare one no-op hook with")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (%(default)d)")
    parser.add_argument("--duration", type=float, default=3, help="seconds measured (%(default)g)")
    parser.add_argument("--qos", type=int, choices=(0, 1), action="append", help="only this one")
    parser.add_argument("--mqttload", metavar="PATH", help="the load generator ($MQTTLOAD)")
    given = parser.parse_args(arguments)
    try:
        raise_file_limit()
        load = Mqttload.find(given.mqttload, CORES[1], os.environ)
        brokers: dict[str, Broker] = {name: Hooked(name) for name in VARIANTS}
        print(f"{brokers['none'].version()}, load average {os.getloadavg()[0]:.1f}")
        if given.against:
            brokers[given.against] = BROKERS[given.against]()
        met = [
            report(qos, measure(brokers, load, qos, given), given.against)
            for qos in given.qos or BOUNDS
        ]
    except (Failure, NotFound, StartError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
