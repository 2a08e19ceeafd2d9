"""What peers that do harm cost the others: rounds with the fault beside rounds without, in turn.

    python -m benchmarks.faults [--rounds 10] [--duration 5] [--mqttload PATH]

    stall      5 of 1,000 subscribers read nothing: the others lose nothing, at most 5 % of rate
    half-open  10,000 connections that send a part of CONNECT: bytes each, and that they expire
    limits     the rates of a listener switched on but out of reach, beside none: what asking costs

Exit status 0 if every bound was met. Linux; needs mqttload as `python -m benchmarks` does.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import Mqttd, Running, StartError
from benchmarks.load import Failure, Measurement, Mqttload, NotFound

STALLED, SUBSCRIBERS, HALF_OPEN = 5, 1000, 10_000
WATERMARK = 1 << 20
LOST = 0.05

OUTPUT = """\
[output]
high_watermark = "1MiB"
low_watermark = "256KiB"
send_timeout = "1h"
"""
FAR = """\
bytes_rate = "10GB"
messages_rate = 50_000_000
all_bytes_rate = "10GB"
send_rate = "10GB"
"""


class Faulty(Mqttd):
    """mqttd with its shipped output limits, and more in its listener's table."""

    def __init__(self, listener: str = "") -> None:
        super().__init__()
        self.listener = listener

    def configuration(self, port: int | str) -> Mapping[str, str]:
        begin, _, end = self.CONFIG.partition("[output]")
        head = begin.replace('transport = "engine"\n', f'transport = "engine"\n{self.listener}')
        text = head + OUTPUT + end[end.index("\n[acl]") :]
        return {"mqttd.conf": text, "acl.conf": self.ACL}


@contextmanager
def started(broker: Faulty) -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder, broker.start(Path(folder), 0) as running:
        yield running


def alternate(
    load: Mqttload, rounds: int, pairs: Sequence[tuple[Faulty, Sequence[str]]]
) -> list[list[Measurement]]:
    """Runs of both, A B B A, each with a broker of its own: neither always comes second."""
    found: list[list[Measurement]] = [[] for _ in pairs]
    for number in range(rounds):
        order = range(len(pairs)) if number % 2 == 0 else reversed(range(len(pairs)))
        for at in order:
            broker, arguments = pairs[at]
            with started(broker) as running:
                found[at].append(load.run(running.port, running.pid, arguments, 120))
    return found


def compare(name: str, without: list[Measurement], with_it: list[Measurement]) -> float:
    """Print both rates and return the median of the ratios."""
    ratios = [b.rate / a.rate for a, b in zip(without, with_it, strict=True)]
    cpu = [b.cpu / a.cpu for a, b in zip(without, with_it, strict=True)]
    print(
        f"{name}: {statistics.median(m.rate for m in without):,.0f}/s without,"
        f" {statistics.median(m.rate for m in with_it):,.0f}/s with;"
        f" ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}),"
        f" CPU per message {statistics.median(cpu):.3f} ({min(cpu):.3f} to {max(cpu):.3f})"
    )
    return statistics.median(ratios)


def stall(load: Mqttload, rounds: int, duration: int) -> bool:
    """Stalled subscribers beside none."""
    common = [
        "--scenario", "fanout", "--pubs", "1", "--payload", "16384", "--duration", str(duration),
    ]  # fmt: skip
    healthy = [*common, "--subs", str(SUBSCRIBERS - STALLED)]
    broken = [*common, "--subs", str(SUBSCRIBERS), "--stall", str(STALLED)]
    without, with_it = alternate(load, rounds, [(Faulty(), healthy), (Faulty(), broken)])
    ratio = compare(f"{STALLED} of {SUBSCRIBERS} stall", without, with_it)
    wrong = [m.deviation() for m in with_it if m.deviation()]
    more = statistics.median(b.rss_peak - a.rss_peak for a, b in zip(without, with_it, strict=True))
    allowed = STALLED * WATERMARK
    print(f"  lost by others: {wrong or 'nothing'}; memory {more / 1024:,.0f} KiB more at its"
          f" peak, {STALLED} times the watermark is {allowed / 1024:,.0f} KiB")  # fmt: skip
    return not wrong and ratio >= 1 - LOST


def limits(load: Mqttload, rounds: int, duration: int) -> bool:
    """Rates that are never reached beside none at all."""
    arguments = ["--scenario", "p2p", "--pubs", "50", "--duration", str(duration)]
    without, with_it = alternate(load, rounds, [(Faulty(), arguments), (Faulty(FAR), arguments)])
    compare("rates out of reach", without, with_it)
    return not any(m.deviation() for m in with_it)


def half_open() -> bool:
    """Connections that begin a CONNECT and stop."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with started(Faulty('accept_rate = 0\nconnect_timeout = "10s"\n')) as running:
        before = resident(running.pid)
        sockets = []
        begin = time.monotonic()
        for _ in range(HALF_OPEN):
            sock = socket.create_connection(("127.0.0.1", running.port))
            sock.sendall(b"\x10\x20\0\4MQTT")
            sockets.append(sock)
        files = Path(f"/proc/{running.pid}/fd")
        while len(os.listdir(files)) < HALF_OPEN and time.monotonic() - begin < 9:
            time.sleep(0.05)
        each = (resident(running.pid) - before) / HALF_OPEN
        while len(os.listdir(files)) > 100 and time.monotonic() - begin < 60:
            time.sleep(0.1)
        gone = len(os.listdir(files)) <= 100
        took = time.monotonic() - begin
        for sock in sockets:
            sock.close()
    print(f"half-open: {each:,.0f} bytes each; all closed by the broker after {took:.1f} s: {gone}")
    return gone and each <= 4096


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main(arguments: list[str]) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--duration", type=int, default=5, help="seconds of each run")
    parser.add_argument("--mqttload")
    parser.add_argument("--only", choices=("stall", "half-open", "limits"))
    options = parser.parse_args(arguments)
    try:
        load = Mqttload.find(options.mqttload, 1, os.environ)
        met = []
        if options.only in (None, "half-open"):
            met.append(half_open())
        if options.only in (None, "stall"):
            met.append(stall(load, options.rounds, options.duration))
        if options.only in (None, "limits"):
            met.append(limits(load, options.rounds, options.duration))
    except (NotFound, Failure, StartError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
