"""Runs mqttload, the load generator that checks what it measures, and reads its figures.

    mqttload.c  ---make--->  build/load/mqttload  ---run--->  JSON  ---read--->  Measurement

mqttload leaves with 0 only if every delivery was right: anything else is a `Failure` here, with
what it found, and never becomes a figure unnoticed. Its sources lie here and are built when it is
first asked for, and again when they have changed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "BUILD_LIMIT",
    "BUILT",
    "SOURCES",
    "Failure",
    "Measurement",
    "Mqttload",
    "NotFound",
    "build",
    "read",
]

#: mqttload's sources, and where it is built.
SOURCES = Path(__file__).resolve().parent
BUILT = SOURCES.parents[1] / "build" / "load"
#: Seconds that building may take.
BUILD_LIMIT = 300.0

#: mqttload's counters of what went wrong.
FAULTS = (
    "lost", "duplicates", "duplicates_unflagged", "out_of_order", "misrouted", "corrupt",
    "unacked", "rejected", "sub_failures", "disconnects", "protocol_errors", "retain_flag_wrong",
    "sessions_missing", "connections_failed", "user_props_wrong", "user_props_missing",
    "identifiers_wrong",
)  # fmt: skip

#: Faults that only say that messages were still queued when the run ended.
QUEUED = {"lost", "unacked"}


class NotFound(Exception):
    """There is no mqttload; the message says how to get one."""


class Failure(Exception):
    """mqttload gave no figures at all; the message is what it said."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run of mqttload showed.

    `rate` in messages (connections) per second, `cpu` in broker CPU-microseconds per message
    (connection), `cores` and `loader_cores` in cores used, times in microseconds, memory in bytes.
    """

    ok: bool
    rate: float
    cpu: float
    cores: float
    loader_cores: float
    p50: float
    p99: float
    p999: float
    rss_per_connection: int
    rss_peak: int
    faults: Mapping[str, int]
    errors: Sequence[str]
    #: What else was measured, by name.
    more: Mapping[str, float] = field(default_factory=dict)

    def deviation(self) -> str:
        """What was wrong, in a few words; empty if nothing was."""
        if self.ok and not self.faults:
            return ""
        words = [f"{name} {count:,}" for name, count in self.faults.items()]
        return ", ".join([*words, *self.errors]) or "a check failed"

    @property
    def only_queued(self) -> bool:
        """Whether the messages that did not arrive are all that was wrong."""
        return bool(self.faults) and set(self.faults) <= QUEUED

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def read(text: str, status: int) -> Measurement:
    """Read mqttload's JSON object and exit status; raises Failure if there is none."""
    try:
        found: dict[str, Any] = json.loads(text)
        return _measurement(found, status)
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"mqttload left with {status} and no figures ({error})") from None


def _measurement(found: dict[str, Any], status: int) -> Measurement:
    broker, latency = found["broker"], found["latency_us"]
    cores, cpu = broker["cpu_cores"], broker["cpu_s_per_m_out"]
    if found["scenario"] == "retained" and found["drain_s"]:
        # The measured time is that of storing; what is compared is the delivery after it.
        cores = broker["drain_cpu_s"] / found["drain_s"]
    rate = found["out_per_s"]
    more = {"received": float(found["received"]), "sent": float(found["sent"])}
    if cpu_s := broker.get("cpu_s"):
        # Of the CPU, the share of each process's first thread: an event loop without its helpers.
        more["first_thread"] = broker.get("first_thread_cpu_s", cpu_s) / cpu_s
    if found.get("unheard"):
        # All of it, or half, reaches nobody: what is compared is what was sent.
        rate, cpu, latency = found["in_per_s"], broker["cpu_s_per_m_in"], found["ack_us"]
    if found["scenario"] == "offline":
        # What is compared is storing: messages that were acknowledged, and how late they were.
        rate, cpu, latency = found["in_per_s"], broker["cpu_s_per_m_in"], found["ack_us"]
        more |= {
            "drained_per_s": float(found["out_per_s"]),
            "rss_bytes_per_stored": float(broker.get("rss_bytes_per_stored", 0)),
        }
    return Measurement(
        ok=bool(found["ok"]) and status == 0,
        rate=float(rate),
        cpu=float(cpu),
        cores=float(cores),
        loader_cores=float(found["loader"]["cpu_cores"]) / max(1, int(found["threads"])),
        p50=float(latency["p50"]),
        p99=float(latency["p99"]),
        p999=float(latency["p999"]),
        rss_per_connection=int(broker.get("rss_bytes_per_conn", 0)),
        rss_peak=int(broker["rss_kb_peak"]) * 1024,
        faults={name: int(found[name]) for name in FAULTS if found.get(name)},
        errors=tuple(str(error) for error in found.get("errors", ())),
        more=more,
    )


def build(out: Path, environ: Mapping[str, str]) -> Path:
    """Make mqttload in `out` unless it is there and newer than its source; raises NotFound."""
    for tool in ("make", environ.get("CC", "cc")):
        if shutil.which(tool, path=environ.get("PATH")) is None:
            raise NotFound(
                f"mqttload cannot be built without {tool}: install it (apt install gcc make"
                " pkg-config libssl-dev), or name a built one with --mqttload or $MQTTLOAD"
            )
    # Not the caller's CFLAGS, nor flags of a make that runs us.
    kept = {name: value for name, value in environ.items() if name not in ("CFLAGS", "MAKEFLAGS")}
    command = ["make", "--silent", "--directory", str(SOURCES), f"OUT={out}"]
    done = subprocess.run(
        command, env=kept, capture_output=True, text=True, timeout=BUILD_LIMIT
    )  # fmt: skip
    if done.returncode:
        raise NotFound(f"mqttload does not build:\n{done.stderr.strip()[-2000:]}")
    return out / "mqttload"


class Mqttload:
    """The program, pinned to a core of its own."""

    def __init__(self, path: Path, core: int) -> None:
        self.path = path
        self.core = core

    @classmethod
    def find(cls, option: str | None, core: int, environ: Mapping[str, str]) -> Mqttload:
        """Take the option, else $MQTTLOAD, else build it; raises NotFound."""
        named = option or environ.get("MQTTLOAD")
        path = Path(named) if named else build(BUILT, environ)
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise NotFound(
                f"no mqttload at {path}: without --mqttload and $MQTTLOAD it is built from"
                f" {SOURCES.name}/mqttload.c"
            )
        return cls(path.resolve(), core)

    def version(self) -> str:
        """What `--version` says, `mqttload 1.1`."""
        said = subprocess.run([self.path, "--version"], capture_output=True, text=True, timeout=10)
        return said.stdout.split(",")[0].strip()

    def run(self, port: int, pid: int, arguments: Sequence[str], limit: float) -> Measurement:
        """Load the broker `pid` on 127.0.0.1:`port`; raises Failure, also after `limit` seconds."""
        command = [
            "taskset", "-c", str(self.core), str(self.path),
            "--host", "127.0.0.1", "--port", str(port), "--pid", str(pid), "--json", *arguments,
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            raise Failure(f"mqttload did not end within {limit:g} s") from None
        if not done.stdout.strip():
            raise Failure(f"mqttload left with {done.returncode}: {done.stderr.strip()}")
        return read(done.stdout, done.returncode)
