"""The store beside others: mosquitto, memory, live traffic: python -m benchmarks.stored_beside WHAT

    cost      what storing a message for a session that is away costs: CPU in all and of the loop's
              thread, rate, PUBACK; mosquitto, then mqttd without a store, with `os` and `fsync`
    resume    1,000 sessions with 1,000 messages each come back at once, beside mosquitto; and how
              long PINGRESP of somebody else takes meanwhile
    live      live traffic alone, sessions that are drained alone, both at once: what both cost
              beyond the sum

One line of JSON a figure, rounds by turns. Ours promises what it says, mosquitto saves every 30
minutes and when it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.brokers import Mosquitto, raise_file_limit
from benchmarks.running import Broker
from benchmarks.setting import Setting, Store
from benchmarks.stored import Echo, Stored, Taker, load, make, spread, tell
from mqttd import compiled

__all__ = ["main"]

#: Messages a second of live traffic.
LIVE: Final = 20_000


def cost(tool: Path, rounds: int, each: int, device: bool = True) -> None:
    """See the module."""
    kinds: list[tuple[str, Broker, Store]] = [
        ("mosquitto", Mosquitto(), "os"), ("memory", Stored(), ""), ("os", Stored(), "os"),
        ("fsync", Stored(), "fsync"),
    ]  # fmt: skip
    found: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(rounds):
        for name, broker, store in kinds:
            with tempfile.TemporaryDirectory() as folder:
                if device:
                    tell(what="fdatasync of 4 KiB", ms=spread(fdatasync(Path(folder))))
                with broker.under(Setting(store=store)).start(Path(folder), [0, 1]) as running:
                    said = load(tool, running, "--scenario", "offline", "--pubs", "10", "--subs",
                                "100", "--qos", "1", "--count", str(each), "--inflight",
                                "20")  # fmt: skip
            took = said["broker"]
            us = took["cpu_s"] / said["sent"] * 1e6
            loop_us = took["first_thread_cpu_s"] / said["sent"] * 1e6
            tell(what="cost", broker=name, ok=said["ok"], per_s=said["in_per_s"],
                 cpu_us=round(us, 2), loop_us=round(loop_us, 2), ack_us=said["ack_us"],
                 bytes_each=took["rss_bytes_per_stored"])  # fmt: skip
            found.setdefault(name, []).append((said["in_per_s"], us, loop_us))
    middle = {name: [median(row[at] for row in rows) for at in range(3)]
              for name, rows in found.items()}  # fmt: skip
    for name in ("os", "fsync"):
        tell(what="cost, medians", broker=name,
             rate_of_mosquitto=round(middle[name][0] / middle["mosquitto"][0], 2),
             cpu_of_mosquitto=round(middle[name][1] / middle["mosquitto"][1], 2),
             loop_of_memory=round(middle[name][2] / middle["memory"][2], 2),
             cpu_of_memory=round(middle[name][1] / middle["memory"][1], 2))  # fmt: skip


def fdatasync(folder: Path, count: int = 200) -> list[float]:
    """How long the device's own takes, in ms, with 4 KiB before each."""
    waited = []
    with (folder / "synced").open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            waited.append((time.perf_counter() - began) * 1000)
    return waited


def resume(tool: Path, sessions: int, each: int, rounds: int) -> None:
    """See the module."""
    brokers: list[Broker] = [Mosquitto(), Stored()]
    rates: dict[str, list[float]] = {}
    for _ in range(rounds):
        for broker in brokers:
            with tempfile.TemporaryDirectory() as folder:
                with broker.under(Setting(store="os")).start(Path(folder), [0, 1]) as running:
                    echo = Echo(running.port)
                    echo.start()
                    said = load(tool, running, "--scenario", "offline", "--pubs", "10", "--subs",
                                str(sessions), "--qos", "1", "--count", str(each))  # fmt: skip
                    # It ends when they have it all, but for some closing.
                    since = time.perf_counter() - said["drain_s"] - 1
                    waited = [ms for at, ms in echo.end() if at >= since]
            rates.setdefault(broker.name, []).append(said["out_per_s"])
            drained = said["broker"]["drain_cpu_s"] / said["received"] * 1e6
            tell(what="resume", broker=broker.name, ok=said["ok"], drain_s=said["drain_s"],
                 delivered_per_s=said["out_per_s"], cpu_us=round(drained, 2),
                 others_ms=spread(waited), asked=len(waited))  # fmt: skip
    ours, theirs = median(rates["mqttd"]), median(rates["mosquitto"])
    tell(what="resume, medians", rate_of_mosquitto=round(ours / theirs, 2))


def live(tool: Path, sessions: int, each: int, rounds: int) -> None:
    """See the module."""
    beyond = []
    for _ in range(rounds):
        alone = _live(tool, sessions, each, publish=True, drain=False)
        drained = _live(tool, sessions, each, publish=False, drain=True)
        both = _live(tool, sessions, each, publish=True, drain=True)
        beyond.append(both / (alone + drained))
        tell(what="live", alone_cpu_s=round(alone, 3), drain_cpu_s=round(drained, 3),
             both_cpu_s=round(both, 3), beyond=round(beyond[-1], 3))  # fmt: skip
    tell(what="live, median", beyond=round(median(beyond), 3))


def _live(tool: Path, sessions: int, each: int, publish: bool, drain: bool) -> float:
    """Seconds of the broker's CPU; it begins with sessions that have so many messages each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir(mode=0o700)
        make(folder / "data" / "store.db", sessions, sessions * each)
        with Stored().under(Setting(store="os")).start(folder, [0, 1]) as running:
            before = _cpu(running.pid)
            loader: subprocess.Popen[str] | None = None
            if publish:
                loader = subprocess.Popen(
                    [str(tool), "--port", str(running.port), "--json", "--scenario", "p2p",
                     "--pubs", "20", "--qos", "1", "--rate", str(LIVE), "--duration", "4"],
                    stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
                time.sleep(1.5)
            takers = []
            if drain:
                takers = [Taker(running.port, f"c{at}") for at in range(1, sessions + 1)]
                while sum(taker.count for taker in takers) < sessions * each:
                    for taker in takers:
                        taker.take()
            if loader is not None:
                said = json.loads(loader.communicate()[0])
                if not said["ok"]:
                    raise RuntimeError(f"live traffic went wrong: {said}")
            took = _cpu(running.pid) - before
            for taker in takers:
                taker.close()
            return took


def _cpu(pid: int) -> float:
    """Seconds of CPU of all threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stored_beside")
    parser.add_argument("what", choices=("cost", "resume", "live"))
    parser.add_argument("--mqttload", type=Path, default=Path("build/load/mqttload"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--each", type=int, default=0, help="messages for each session")
    asked = parser.parse_args()
    raise_file_limit()
    tell(compiled=compiled(), machine=os.uname().release)
    subprocess.run(["make", "-s", "-C", "benchmarks/load"], check=True)
    match asked.what:
        case "cost":
            cost(asked.mqttload, asked.rounds, asked.each or 3000)
        case "resume":
            resume(asked.mqttload, asked.sessions, asked.each or 1000, asked.rounds)
        case "live":
            live(asked.mqttload, asked.sessions, asked.each or 200, asked.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
