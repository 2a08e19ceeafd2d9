"""The command line of `mqttd-bench`: conn, pub, sub.

    mqttd-bench conn -c 10000 -R 1000          10,000 connections, 1,000 a second, held
    mqttd-bench sub  -c 50 -t bench/%i -q 1    50 subscribers that check what they receive
    mqttd-bench pub  -c 50 -t bench/%i -q 1    50 publishers, as fast as their windows allow

Leaves with 0 if all was well, 1 if something was refused, lost, doubled or out of order.
Published figures of this project come from mqttload, a program in C; what this one can drive
itself is stated in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from mqttd.bench.load import Figures, Job, run
from mqttd.bench.stamp import HEADER, percentile

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-h", "--host", default="127.0.0.1", help="broker (%(default)s)")
    common.add_argument("-p", "--port", type=int, default=1883, help="port (%(default)s)")
    common.add_argument("-c", "--count", type=_positive, default=100, help="clients (%(default)s)")
    common.add_argument("-R", "--rate", type=float, default=0, help="connections per second (all)")
    common.add_argument("-w", "--workers", type=_positive, default=1, help="processes (1)")
    common.add_argument("-D", "--duration", type=float, default=0, help="seconds; 0: until ^C")
    common.add_argument("-V", "--mqtt-version", choices=("3", "4", "5"), default="4")
    common.add_argument("-k", "--keep-alive", type=int, default=60, help="seconds (%(default)s)")
    common.add_argument("-n", "--start-number", type=int, default=0, help="number of client 1")
    common.add_argument("-u", "--username")
    common.add_argument("-P", "--password-env", metavar="NAME",
                        help="environment variable that holds the password")  # fmt: skip
    common.add_argument("--prefix", default="bench", help="start of client ids (%(default)s)")
    common.add_argument("--json", action="store_true", help="the result as JSON")
    common.add_argument("--help", action="help")

    topics = argparse.ArgumentParser(add_help=False)
    topics.add_argument("-t", "--topic", default="bench/%i", help="%%i: the client's number")
    topics.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0)
    topics.add_argument("-N", "--messages", type=int, default=0, help="per client; 0: no end")

    parser = argparse.ArgumentParser(prog="mqttd-bench", description="Load for an MQTT broker.")
    commands = parser.add_subparsers(dest="command", required=True)
    make: Any = commands.add_parser
    make("conn", parents=[common], add_help=False, help="connect and stay")
    make("sub", parents=[common, topics], add_help=False, help="subscribe and check")
    pub = make("pub", parents=[common, topics], add_help=False, help="publish")
    pub.add_argument("-s", "--size", type=int, default=64, help="bytes of payload (%(default)s)")
    pub.add_argument("-I", "--interval", type=float, default=0, help="ms between messages")
    pub.add_argument("-F", "--inflight", type=_positive, default=20)
    pub.add_argument("-r", "--retain", action="store_true")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def job_of(options: argparse.Namespace) -> Job:
    """The whole job, before it is shared out. Leaves with 2 for what cannot be."""
    job = Job(
        options.command, options.host, options.port, options.start_number, options.count,
        options.rate, duration=options.duration, version=int(options.mqtt_version),
        keep_alive=options.keep_alive, username=options.username, prefix=options.prefix,
        run=random.getrandbits(32),
    )  # fmt: skip
    if options.password_env is not None:
        job.password = os.environ.get(options.password_env)
        if job.password is None:
            sys.exit(f"mqttd-bench: --password-env: no variable {options.password_env!r}")
    if options.command != "conn":
        job.topic, job.qos, job.messages = options.topic, options.qos, options.messages
    if options.command == "pub":
        job.interval, job.inflight = options.interval / 1000, options.inflight
        job.size, job.retain = options.size, options.retain
        if job.size < HEADER:
            sys.exit(f"mqttd-bench: --size {job.size}: at least {HEADER} bytes, for the check")
    return job


def shares(job: Job, workers: int) -> list[Job]:
    """One job per process, each with its own clients."""
    workers = min(workers, job.clients)
    result = []
    first = job.first
    for i in range(workers):
        clients = job.clients // workers + (i < job.clients % workers)
        result.append(replace(job, first=first, clients=clients, rate=job.rate / workers))
        first += clients
    return result


def added(parts: Sequence[Figures]) -> Figures:
    """The figures of all processes together."""
    total = Figures(done=all(part.done for part in parts))
    for part in parts:
        for field in fields(Figures):
            value = getattr(part, field.name)
            if isinstance(value, list):
                getattr(total, field.name).extend(value)
            elif not isinstance(value, bool):
                setattr(total, field.name, getattr(total, field.name) + value)
    total.faults = list(dict.fromkeys(total.faults))
    return total


def _child(number: int, job: Job, results: Any) -> None:
    run(job, lambda figures: results.put((number, figures)))


def _progress(command: str, total: Figures, before: Figures, seconds: float) -> str:
    parts = [f"{total.connected} connected"]
    if total.refused:
        parts.append(f"{total.refused} refused")
    for name in ("sent", "received"):
        count = getattr(total, name)
        if count:
            parts.append(f"{count} {name}, {(count - getattr(before, name)) / seconds:,.0f}/s")
    return f"{command}: " + "; ".join(parts)


def result_of(total: Figures, seconds: float) -> dict[str, Any]:
    """The result as it is printed."""
    result: dict[str, Any] = {
        name: getattr(total, name)
        for name in ("connected", "refused", "sent", "acknowledged", "received", "lost",
                     "duplicates", "out_of_order", "foreign", "faults")
    }  # fmt: skip
    result["seconds"] = round(seconds, 2)
    if total.late_us:
        result["latency_us"] = {
            f"p{share:g}": percentile(total.late_us, share / 100) for share in (50, 90, 99, 99.9)
        }
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, with a line of progress a second on standard error and the result at the end."""
    options = _parser().parse_args(arguments)
    jobs = shares(job_of(options), options.workers)
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    children = [
        context.Process(target=_child, args=(i, job, results), daemon=True)
        for i, job in enumerate(jobs)
    ]
    began = shown = time.monotonic()
    for child in children:
        child.start()
    # The children see ^C too, and report before they leave.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    latest = [Figures() for _ in jobs]
    before = Figures()
    while not all(figures.done for figures in latest):
        try:
            number, figures = results.get(timeout=0.5)
            latest[number] = figures
        except queue.Empty:
            if not any(child.is_alive() for child in children):
                break
        now = time.monotonic()
        if now - shown >= 1:
            total = added(latest)
            print(_progress(options.command, total, before, now - shown), file=sys.stderr)
            before, shown = total, now
    total = added(latest)
    result = result_of(total, time.monotonic() - began)
    for child in children:
        child.join(5)
    if options.json:
        print(json.dumps(result))
    else:
        print(", ".join(f"{name} {value}" for name, value in result.items()))
    whole = total.done and total.connected == options.count
    return 0 if whole and not (total.lost or total.duplicates or total.out_of_order) else 1


if __name__ == "__main__":
    sys.exit(main())
