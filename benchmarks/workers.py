"""What a message costs within a worker and across two, beside one process: CPU, not time.

    python -m benchmarks.workers [--seconds 5] [--load PATH] [--clean]

With `--clean` no costs, but whether four scenarios of mqttload at QoS 0, 1 and 2 are clean with
three workers: nothing lost, repeated or out of order.

mqttload's client ids with `--prefix` are known (`mlabcdp0`, `mlabcds0`, ...), so that pairs of
`p2p` are known to be at one worker or at two. CPU is that of all processes of the broker, by
deliveries that mqttload has checked.
"""

from __future__ import annotations

import argparse
import json
import os
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
}
#: Pairs of a run.
PAIRS = 50
#: What is to be clean over several workers.
SCENARIOS = {
    "p2p": ["--pubs", "30", "--subs", "30"],
    "fanin": ["--pubs", "30", "--subs", "1"],
    "fanout": ["--pubs", "1", "--subs", "30"],
    "wildcard": ["--pubs", "10", "--subs", "10"],
}


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


def run(broker: Broker, load: str, kind: list[str], seconds: float) -> tuple[float, float, bool]:
    """µs of CPU a delivery, deliveries a second, and whether every check passed."""
    command = [
        load, "--port", str(broker.port), "--scenario", "p2p", "--prefix", "w", "--pubs",
        str(PAIRS), "--subs", str(PAIRS), "--duration", str(seconds), "--warmup", "0", "--json",
        *kind,
    ]  # fmt: skip
    before = cpu_of(broker)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    used = cpu_of(broker) - before
    told = json.loads(done.stdout)
    received = float(told["received"] if "received" in told else told["counts"]["received"])
    return used / received * 1e6, received / seconds, done.returncode == 0


def scenarios(load: str, seconds: float) -> None:
    """Print which scenarios are clean with three workers."""
    with tempfile.TemporaryDirectory() as folder:
        # As much as the windows of all publishers may wait for one subscriber.
        settings = {"max_length": 100_000, "max_bytes": "64MiB"}
        broker = start_broker(Path(folder), node={"workers": 3}, mqueue=settings)
        try:
            for name, clients in SCENARIOS.items():
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
    parser.add_argument("--load", default=os.environ.get("MQTTLOAD", "build/load/mqttload"))
    parser.add_argument("--clean", action="store_true")
    options = parser.parse_args()
    if options.clean:
        scenarios(options.load, options.seconds)
        return
    for count in (1, 2):
        cross = sum(
            worker_of(f"mlabcdp{n}", count) != worker_of(f"mlabcds{n}", count) for n in range(PAIRS)
        )
        with tempfile.TemporaryDirectory() as folder:
            broker = start_broker(Path(folder), node={"workers": count})
            try:
                for name, kind in KINDS.items():
                    cost, rate, clean = run(broker, options.load, kind, options.seconds)
                    told = "clean" if clean else "FAILED"
                    print(
                        f"{count} workers, {100 * cross // PAIRS:3d} % cross  {name:14} "
                        f"{cost:6.2f} us  {rate:9.0f}/s  {told}",
                        file=sys.stdout, flush=True,
                    )  # fmt: skip
            finally:
                broker.stop()


if __name__ == "__main__":
    main()
