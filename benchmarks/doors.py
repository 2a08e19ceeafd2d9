"""Measures what each door costs: python -m benchmarks.doors [--help]

    tls-1, tls-20   TLS, QoS 0, 1 and 20 messages per write   beside mosquitto's TLS listener
    ws, ws-qos1     WebSocket, one message per frame          beside our plain TCP
    ws-gathered     WebSocket, QoS 1, many in a frame         (mosquitto and aedes are shown)
    handshakes      TLS connections opened, CPU of each       beside mosquitto
    idle            bytes per idle TLS connection             beside mosquitto

Each of our doors is there twice, on the engine and on Twisted's transports. What is compared is the
broker's CPU per message (per connection), which other work on the machine disturbs little; bounds
are for the engine. The brokers take turns; run *k* of one is compared with run *k* of the other,
the result is the median. Leaves with 0 if every bound was met, 1 if one was missed, 2 if nothing
could be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import Encoding

from benchmarks.__main__ import BROKER_CORE, LIMIT, LOAD_CORE
from benchmarks.brokers import (
    Aedes,
    Broker,
    Mosquitto,
    Mqttd,
    Running,
    StartError,
    free_port,
    raise_file_limit,
)
from benchmarks.load import Failure, Measurement, Mqttload, NotFound
from benchmarks.report import machine
from tests.support.certificates import Authority

__all__ = ["ROWS", "Row", "main", "result"]

P2P: Final = ("--scenario", "p2p", "--pubs", "50")
DOORS: Final = ("tcp", "ssl", "ws")
FLAGS: Final[Mapping[str, tuple[str, ...]]] = {"tcp": (), "ssl": ("--tls",), "ws": ("--ws",)}


class Certificates:
    """One server certificate for all brokers of a session: the same key type, chain and size."""

    def __init__(self) -> None:
        authority = Authority()
        server = authority.server("localhost")
        self.files = {
            "ca.crt": authority.certificate.public_bytes(Encoding.PEM).decode(),
            "server.crt": server.pem().decode(),
            "server.key": server.key_pem().decode(),
        }


class Doors(Broker):
    """A broker with more than one listener; `ports` says where each is, `engine:ssl` or `:ssl`."""

    certificates: Certificates

    def port_of(self, transport: str, door: str) -> int:
        """Where a listener is."""
        raise NotImplementedError


class MqttdDoors(Mqttd, Doors):
    """mqttd, each listener on the engine and on Twisted's transports."""

    TLS = 'certificate = "server.crt"\nprivate_key = "server.key"\n'

    def __init__(self, certificates: Certificates) -> None:
        super().__init__()
        self.certificates = certificates
        self.ports: dict[str, int] = {}

    def configuration(self, port: int | str) -> Mapping[str, str]:
        text = self.CONFIG
        for transport in ("engine", "twisted"):
            for door in DOORS:
                self.ports[f"{transport}:{door}"] = number = free_port()
                text += (
                    f'\n[listener.{door}.{transport}]\nbind = "127.0.0.1:{number}"\n'
                    f'transport = "{transport}"\naccept_rate = 0\n'
                )
                text += self.TLS if door == "ssl" else ""
        return {"mqttd.conf": text, "acl.conf": self.ACL, **self.certificates.files}

    def port_of(self, transport: str, door: str) -> int:
        return self.ports[f"{transport}:{door}"]


class MosquittoDoors(Mosquitto, Doors):
    """mosquitto with a TLS and a WebSocket listener."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates
        self.ports: dict[str, int] = {}

    def configuration(self, port: int | str) -> Mapping[str, str]:
        self.ports = {"tcp": int(port), "ssl": free_port(), "ws": free_port()}
        # `user`: as root it would drop its rights and could not read the run's directory.
        text = super().configuration(port)["mosquitto.conf"] + (
            "user root\n"
            f"listener {self.ports['ssl']} 127.0.0.1\n"
            "cafile CWD/ca.crt\ncertfile CWD/server.crt\nkeyfile CWD/server.key\n"
            # libwebsockets wants an interface here, no address
            f"listener {self.ports['ws']} lo\nprotocol websockets\n"
        )
        return {"mosquitto.conf": text, **self.certificates.files}

    def start(self, directory: Path, core: int | Sequence[int]) -> Running:
        port = free_port()
        for name, text in self.configuration(port).items():
            (directory / name).write_text(text.replace("CWD", str(directory)), "utf-8")
        return Running(self, directory, port, core)

    def ready_port(self, log: str, port: int) -> int | None:
        # The WebSocket listener opens a moment after the others.
        ready = [super(MosquittoDoors, self).ready_port(log, at) for at in self.ports.values()]
        return None if None in ready else port

    def port_of(self, transport: str, door: str) -> int:
        return self.ports[door]


class AedesDoors(Aedes, Doors):
    """aedes behind `ws`; both are looked for in $AEDES."""

    SERVER = """\
import { createServer } from 'node:http'
import { pathToFileURL } from 'node:url'
import { createRequire } from 'node:module'
const from = createRequire(process.argv[3] + '/')
const { Aedes } = await import(pathToFileURL(from.resolve('aedes')))
const { WebSocketServer, createWebSocketStream } = from('ws')
const broker = await Aedes.createBroker()
const server = createServer()
new WebSocketServer({ server }).on('connection', (ws, request) => {
  request.socket.setNoDelay(true)
  broker.handle(createWebSocketStream(ws), request)
})
server.listen(Number(process.argv[2]), '127.0.0.1')
"""

    def configuration(self, port: int | str) -> Mapping[str, str]:
        self.port = int(port)
        return super().configuration(port)

    def port_of(self, transport: str, door: str) -> int:
        return self.port


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: what `mqttload` does, through which door, and with what it is compared.

    `base` is ``"mosquitto"`` (the result is theirs / ours, at least `bound`), ``"tcp"`` (ours by
    this door / ours by plain TCP, at most `bound`) or ``"memory"`` (bytes, ours - mosquitto's).
    """

    name: str
    title: str
    door: str
    base: str
    args: tuple[str, ...]
    bound: float | None
    aedes: bool = False


STORM = ("--scenario", "connstorm", "--conns", "2000", "--concurrency", "50", "--hold")
IDLE = ("--scenario", "idle", "--conns", "2000")

ROWS: Final[tuple[Row, ...]] = (
    Row("tls-1", "TLS, 50 pairs, QoS 0, 1 message per write", "ssl", "mosquitto",
        (*P2P, "--qos", "0", "--batch", "1"), 0.9),
    Row("tls-20", "TLS, 50 pairs, QoS 0, 20 messages per write", "ssl", "mosquitto",
        (*P2P, "--qos", "0", "--batch", "20"), 5.0),
    Row("ws", "WebSocket, 50 pairs, QoS 0, 1 message per frame", "ws", "tcp",
        (*P2P, "--qos", "0", "--batch", "1"), 1.7, aedes=True),
    Row("ws-qos1", "WebSocket, 50 pairs, QoS 1, 1 message per frame", "ws", "tcp",
        (*P2P, "--qos", "1", "--batch", "1"), 1.3, aedes=True),
    Row("ws-gathered", "WebSocket, 50 pairs, QoS 1, up to 64 messages per frame", "ws", "tcp",
        (*P2P, "--qos", "1"), None, aedes=True),
    Row("handshakes", "2,000 TLS handshakes", "ssl", "mosquitto", STORM, None),
    Row("idle", "RSS, idle TLS connection", "ssl", "memory", IDLE, None),
)  # fmt: skip


def result(row: Row, ours: Sequence[float], base: Sequence[float]) -> tuple[float, bool | None]:
    """The median of the rounds' comparisons, and whether the bound was met.

    >>> result(ROWS[0], [2.0, 2.0, 4.0], [2.0, 3.0, 4.0])
    (1.0, True)
    """
    pairs = list(zip(ours, base, strict=True))
    if row.base == "mosquitto":
        value = median(b / a for a, b in pairs)
        return value, None if row.bound is None else value >= row.bound
    if row.base == "tcp":
        value = median(a / b for a, b in pairs)
        return value, None if row.bound is None else value <= row.bound
    return median(a - b for a, b in pairs), None


class Bench:
    """The brokers of one session."""

    def __init__(self, given: argparse.Namespace, load: Mqttload) -> None:
        self.given = given
        self.load = load
        certificates = Certificates()
        self.mqttd = MqttdDoors(certificates)
        self.mosquitto = MosquittoDoors(certificates)
        self.versions = [self.mqttd.version(), self.mosquitto.version()]
        self.aedes: AedesDoors | None = None
        if os.environ.get("AEDES"):
            self.aedes = AedesDoors()
            self.versions.append(self.aedes.version())

    def runs(self, row: Row) -> dict[str, list[Measurement]]:
        """Every subject's runs of one row, in turns; a fresh broker for each turn."""
        tried: list[tuple[str, Doors, str, str]] = [
            ("engine", self.mqttd, "engine", row.door),
            ("twisted", self.mqttd, "twisted", row.door),
            ("mosquitto", self.mosquitto, "", row.door),
        ]
        if row.base == "tcp":
            tried.append(("tcp engine", self.mqttd, "engine", "tcp"))
            tried.append(("tcp twisted", self.mqttd, "twisted", "tcp"))
        if row.aedes and self.aedes is not None:
            tried.append(("aedes", self.aedes, "", row.door))
        found: dict[str, list[Measurement]] = {name: [] for name, *_ in tried}
        for number in range(self.given.rounds):
            for name, broker, transport, door in tried:
                print(f"{row.name}: {name}, round {number + 1}", file=sys.stderr, flush=True)
                found[name].append(self._run(row, broker, transport, door))
        return found

    def _run(self, row: Row, broker: Doors, transport: str, door: str) -> Measurement:
        times = ["--duration", f"{self.given.duration:g}", "--warmup", f"{self.given.warmup:g}"]
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            running = stack.enter_context(broker.start(Path(folder), BROKER_CORE))
            port = broker.port_of(transport, door)
            arguments = [*row.args, *FLAGS[door], *times]
            return self.load.run(port, running.pid, arguments, LIMIT + self.given.duration)


def figures(row: Row, found: Mapping[str, Sequence[Measurement]]) -> list[dict[str, Any]]:
    """What to show: one entry per subject, with the comparison where there is one."""
    shown = []
    for name, runs in found.items():
        entry: dict[str, Any] = {
            "row": row.name, "title": row.title, "subject": name, "rounds": len(runs),
            "cpu_us": round(median(run.cpu for run in runs), 2),
            "rate": round(median(run.rate for run in runs)),
            "bytes": round(median(run.rss_per_connection for run in runs)),
            "faults": [run.deviation() for run in runs if run.deviation()],
        }  # fmt: skip
        if name in ("engine", "twisted"):
            base = f"tcp {name}" if row.base == "tcp" else "mosquitto"
            mine = [_figure(row, run) for run in runs]
            theirs = [_figure(row, run) for run in found[base]]
            if all(mine) and all(theirs):
                value, passed = result(row, mine, theirs)
                entry["value"] = round(value, 2)
                met = passed and not entry["faults"] if passed is not None else None
                entry["passed"] = met if name == "engine" else None
                entry["spread"] = [
                    round(result(row, [a], [b])[0], 2) for a, b in zip(mine, theirs, strict=True)
                ]
        shown.append(entry)
    return shown


def _figure(row: Row, run: Measurement) -> float:
    return float(run.rss_per_connection) if row.base == "memory" else run.cpu


def line(row: Row, entry: Mapping[str, Any]) -> str:
    """One line of the table."""
    value = entry.get("value")
    bound = ""
    if row.bound is not None and entry["subject"] == "engine":
        bound = f"{'>=' if row.base == 'mosquitto' else '<='} {row.bound:g}"
        bound += {True: " pass", False: " FAIL", None: ""}[entry.get("passed")]
    figure = f"{entry['bytes']:,} B" if row.base == "memory" else f"{entry['cpu_us']:g} us"
    ratio = ""
    if value is not None:
        low, high = min(entry["spread"]), max(entry["spread"])
        unit = " B" if row.base == "memory" else ""
        ratio = f"{value:,.2f}{unit} [{low:,.2f}, {high:,.2f}]"
    cells = [entry["row"], entry["subject"], figure, f"{entry['rate']:,}/s", ratio, bound]
    return "| " + " | ".join(cells) + " |"


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doors",
                                     description="Measure what each door costs.")  # fmt: skip
    names = [row.name for row in ROWS]
    parser.add_argument("--only", choices=names, action="append", help="these rows")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (%(default)d)")
    parser.add_argument("--duration", type=float, default=3, help="seconds measured (%(default)g)")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds before (%(default)g)")
    parser.add_argument("--mqttload", metavar="PATH", help="the load generator ($MQTTLOAD)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    given = options(arguments)
    try:
        raise_file_limit()
        bench = Bench(given, Mqttload.find(given.mqttload, LOAD_CORE, os.environ))
    except (NotFound, StartError) as error:
        print(error, file=sys.stderr)
        return 2
    shape = machine()
    print("\n".join([*bench.versions, bench.load.version()]))
    print(f"{shape['cores']} x {shape['cpu']}, load average {shape['load_average']:g}\n")
    print("| row | subject | cost | rate | compared | bound |\n|---|---|---:|---:|---:|---|")
    shown: list[dict[str, Any]] = []
    for row in ROWS:
        if given.only and row.name not in given.only:
            continue
        try:
            entries = figures(row, bench.runs(row))
        except (Failure, StartError) as error:
            print(f"{row.name}: {error}", file=sys.stderr)
            return 2
        shown += entries
        print("\n".join(line(row, entry) for entry in entries), flush=True)
        for entry in entries:
            for fault in entry["faults"]:
                print(f"{row.name}: {entry['subject']}: {fault}", file=sys.stderr)
    if given.json is not None:
        told = {"versions": bench.versions, "machine": shape, "figures": shown}
        given.json.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    return 1 if any(entry.get("passed") is False for entry in shown) else 0


if __name__ == "__main__":
    sys.exit(main())
