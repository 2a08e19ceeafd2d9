"""What a message costs that stays in a worker and one that crosses, beside one process: CPU.

    python -m benchmarks.workers [--seconds 5] [--rounds 3] [--load PATH] [--only KIND]
                                 [--together] [--clean]

Pairs of a publisher and a subscriber (mqttload, `p2p`) have client ids that are at one worker of
two, or at both: none of the messages crosses then, or all do. Half of the pairs are of one process
of mqttload, which publishes at one worker, half of another, which publishes at the other one. One
broker of one process has the same clients, and two brokers that know nothing of each other have
half of them each: what these cost above one is the machine's, not the workers'. With `--together`
one mqttload has all pairs, and so serves both workers.

CPU is that of all processes of the brokers, by deliveries that mqttload has checked; rounds take
all ways in turn, and the medians are told, with the lowest and the highest ratio of a round.

With `--clean` no costs, but whether four scenarios of mqttload at QoS 0, 1 and 2 are clean with
publishers at one worker and subscribers at the other one: nothing lost, repeated or out of order.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from mqttd.workers.place import worker_of
from tests.support.broker import Broker, start_broker

#: Options of mqttload for the kinds of messages.
KINDS = {
    "QoS 0, 3.1.1": ["--qos", "0"],
    "QoS 0, 5.0": ["--qos", "0", "--mqtt5"],
    "QoS 1, 3.1.1": ["--qos", "1", "--sub-qos", "1"],
    "QoS 1, 5.0": ["--qos", "1", "--sub-qos", "1", "--mqtt5"],
    "QoS 2, 5.0": ["--qos", "2", "--sub-qos", "2", "--mqtt5"],
    "QoS 0, 1 KiB": ["--qos", "0", "--payload", "1024"],
    "QoS 1, 1 KiB": ["--qos", "1", "--sub-qos", "1", "--payload", "1024"],
}
#: Pairs of a run.
PAIRS = 8
#: What is to be clean from worker to worker: how many publish and subscribe.
SCENARIOS = {"p2p": (6, 6), "fanin": (7, 1), "fanout": (1, 7), "wildcard": (4, 4)}


#: Client ids that are tried.
_TRIES = 400_000


def _places(first: int, count: int) -> list[tuple[int, int]]:
    """The workers of the publisher and the subscriber of so many pairs."""
    pairs = range(first, first + count)
    return [(worker_of(f"mlabcdp{n}", 2), worker_of(f"mlabcds{n}", 2)) for n in pairs]


def first_of(publishes: int, crosses: bool, pairs: int = PAIRS // 2) -> int:
    """The first of so many pairs that publish at this worker and all cross, or all stay."""
    wanted = (publishes, 3 - publishes if crosses else publishes)
    for first in range(_TRIES):
        if all(each == wanted for each in _places(first, pairs)):
            return first
    raise LookupError("no such pairs")


def first_together(crosses: bool) -> int:
    """The first of `PAIRS` pairs that all cross, or all stay, half at each worker."""
    for first in range(_TRIES):
        places = _places(first, PAIRS)
        if (
            all((p != s) is crosses for p, s in places)
            and sum(p for p, _ in places) * 2 == PAIRS * 3
        ):
            return first
    raise LookupError("no such pairs")


def first_over(pubs: int, subs: int) -> int:
    """The first of clients whose publishers are at one worker, and subscribers at the other."""
    for first in range(_TRIES):
        places = _places(first, max(pubs, subs))
        from_, to = {each for each, _ in places[:pubs]}, {each for _, each in places[:subs]}
        if len(from_) == len(to) == 1 and from_ != to:
            return first
    raise LookupError("no such clients")


def cpu_of(broker: Broker) -> float:
    """Seconds of CPU of a broker's processes so far."""
    assert broker.process is not None
    root = broker.process.pid
    pids = [root, *map(int, Path(f"/proc/{root}/task/{root}/children").read_text().split())]
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def run(
    brokers: list[Broker], load: str, kind: list[str], firsts: list[int], seconds: float
) -> tuple[float, float, bool]:
    """µs of CPU a delivery, deliveries a second, and whether every check passed.

    A generator for each of `firsts`, at the brokers by turns.
    """
    pairs = str(PAIRS // len(firsts))
    before = sum(map(cpu_of, brokers))
    generators = []
    for at, first in enumerate(firsts):
        command = [
            load, "--port", str(brokers[at % len(brokers)].port), "--scenario", "p2p", "--prefix",
            f"w{at}", "--pubs", pairs, "--subs", pairs, "--first", str(first), "--duration",
            str(seconds), "--warmup", "0", "--json", "--strict", *kind,
        ]  # fmt: skip
        generators.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    received, good = 0.0, True
    for generator in generators:
        told = json.loads(generator.communicate()[0])
        received += float(told["received"] if "received" in told else told["counts"]["received"])
        good = good and generator.returncode == 0
    used = sum(map(cpu_of, brokers)) - before
    return used / received * 1e6, received / seconds, good


def costs(load: str, seconds: float, rounds: int, only: str, together: bool) -> None:
    """Print what a message costs, and by how much more where there are two workers."""
    if together:
        stays, crosses = [first_together(False)], [first_together(True)]
    else:
        stays, crosses = ([first_of(n, there) for n in (1, 2)] for there in (False, True))
    with tempfile.TemporaryDirectory() as folder:
        brokers: list[Broker] = []
        try:
            for name, count in (("one", 1), ("two", 2), ("half", 1), ("other", 1)):
                brokers.append(start_broker(Path(folder) / name, node={"workers": count}))
            one, two, *halves = brokers
            ways = {"one process": ([one], stays), "two brokers": (halves, stays),
                    "stays": ([two], stays), "crosses": ([two], crosses)}  # fmt: skip
            if together:
                del ways["two brokers"]
            for name, kind in KINDS.items():
                if only not in name:
                    continue
                found: dict[str, list[float]] = {way: [] for way in ways}
                rates: dict[str, list[float]] = {way: [] for way in ways}
                clean = True
                for _ in range(rounds):
                    for way, (where, firsts) in ways.items():
                        cost, rate, good = run(where, load, kind, firsts, seconds)
                        found[way].append(cost)
                        rates[way].append(rate)
                        clean = clean and good
                middle = {way: statistics.median(each) for way, each in found.items()}
                for way in ways:
                    times = middle[way] / middle["one process"]
                    rate = statistics.median(rates[way])
                    pairs = zip(found[way], found["one process"], strict=True)
                    ratios = [each / beside for each, beside in pairs]
                    print(
                        f"{name:14} {way:12} {middle[way]:6.2f} us  {times:5.2f} x"
                        f" ({min(ratios):.2f} to {max(ratios):.2f})  {rate:9.0f}/s"
                        f"  {'clean' if clean else 'FAILED'}",
                        file=sys.stdout, flush=True,
                    )  # fmt: skip
        finally:
            for broker in brokers:
                broker.stop()


def scenarios(load: str, seconds: float) -> None:
    """Print which scenarios are clean where everything crosses."""
    with tempfile.TemporaryDirectory() as folder:
        # As much as the windows of all publishers may wait for one subscriber.
        settings = {"max_length": 100_000, "max_bytes": "64MiB"}
        broker = start_broker(Path(folder), node={"workers": 2}, mqueue=settings)
        try:
            for name, (pubs, subs) in SCENARIOS.items():
                first = first_over(pubs, subs) if name != "p2p" else first_of(1, True, pubs)
                clients = ["--pubs", str(pubs), "--subs", str(subs), "--first", str(first)]
                for qos in "012":
                    command = [
                        load, "--port", str(broker.port), "--scenario", name, *clients, "--qos",
                        qos, "--sub-qos", qos, "--duration", str(seconds), "--json", "--strict",
                    ]  # fmt: skip
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    told = json.loads(done.stdout)
                    received = told["received"] if "received" in told else told["counts"]
                    said = "clean" if done.returncode == 0 else f"FAILED {done.stdout}"
                    print(f"{name:9} QoS {qos}  {received} received  {said}", flush=True)
        finally:
            broker.stop()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", default=os.environ.get("MQTTLOAD", "build/load/mqttload"))
    parser.add_argument("--only", default="", help="kinds of messages whose name has this")
    parser.add_argument("--together", action="store_true", help="one mqttload has all pairs")
    parser.add_argument("--clean", action="store_true")
    options = parser.parse_args()
    if options.clean:
        scenarios(options.load, options.seconds)
    else:
        costs(options.load, options.seconds, options.rounds, options.only, options.together)


if __name__ == "__main__":
    main()
