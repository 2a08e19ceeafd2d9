"""The table of workloads: what mqttload is asked to do, what is compared, and the bound.

    RATE      messages (or connections) per CPU, theirs against ours      at least  N x
    CPU       CPU-seconds per million messages, ours against theirs       at most   N x
    LATENCY   p50 of the quietest round, ours against theirs              at most   N x
    MEMORY    bytes of RSS per connection, ours less theirs               at most + N bytes

Every run starts a broker afresh, so no workload sees what another one left.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

__all__ = ["CPU", "LATENCY", "MEMORY", "RATE", "WORKLOADS", "Measure", "Workload", "selected"]

Measure = Literal["rate", "cpu", "latency", "memory"]
RATE: Final[Measure] = "rate"
CPU: Final[Measure] = "cpu"
LATENCY: Final[Measure] = "latency"
MEMORY: Final[Measure] = "memory"


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table.

    `bound` and `pure_bound` are None where a figure is shown and nothing is asked of it.
    `always_cpu`: the rate is never compared, the CPU per message (or connection) is.
    `peer_may_queue`: a peer that leaves messages queued at the end still counts; never mqttd.
    """

    name: str
    title: str
    scenario: str
    args: tuple[str, ...] = ()
    measure: Measure = RATE
    bound: float | None = None
    pure_bound: float | None = None
    always_cpu: bool = False
    peer_may_queue: bool = False
    rounds: int = 3

    def arguments(self, duration: float, warmup: float) -> list[str]:
        """mqttload's arguments but for the broker's address; times in seconds."""
        return [
            "--scenario", self.scenario, *self.args,
            "--duration", f"{duration:g}", "--warmup", f"{warmup:g}",
        ]  # fmt: skip


#: Nothing may be slower than this without the compiled hot path ...
PURE: Final = 0.6
#: ... and QoS 1 with a window open at least this much faster.
PURE_PIPELINED: Final = 2.3

PAIRS = ("--pubs", "50")
FANIN = ("--pubs", "100", "--subs", "1")
FANOUT = ("--pubs", "1", "--subs", "1000")
ONE = ("--window", "1", "--inflight", "1")
IDLE = ("--conns", "19000")


def _rate(
    name: str, title: str, scenario: str, args: str, base: tuple[str, ...], bound: float,
    pure: float = PURE, *, cpu: bool = False, may_queue: bool = False,
) -> Workload:  # fmt: skip
    return Workload(name, title, scenario, (*base, *args.split()), RATE, bound, pure,
                    always_cpu=cpu, peer_may_queue=may_queue)  # fmt: skip


WORKLOADS: Final[tuple[Workload, ...]] = (
    _rate("p2p-qos0", "50 pairs, QoS 0", "p2p", "--qos 0", PAIRS, 12),
    _rate("p2p-qos0-1k", "50 pairs, QoS 0, 1 KiB", "p2p", "--qos 0 --payload 1024", PAIRS, 6),
    _rate("p2p-qos1", "50 pairs, QoS 1", "p2p", "--qos 1", PAIRS, 8, PURE_PIPELINED),
    _rate("p2p-qos2", "50 pairs, QoS 2", "p2p", "--qos 2", PAIRS, 7),
    _rate("fanin-qos0", "fan-in 100 -> 1, QoS 0", "fanin", "--qos 0", FANIN, 12),
    _rate("fanin-qos1", "fan-in 100 -> 1, QoS 1", "fanin", "--qos 1", FANIN, 8, PURE_PIPELINED,
          may_queue=True),
    _rate("fanout-qos0", "fan-out 1 -> 1,000, QoS 0", "fanout", "--qos 0", FANOUT, 15),
    _rate("fanout-qos0-1k", "fan-out 1 -> 1,000, QoS 0, 1 KiB", "fanout",
          "--qos 0 --payload 1024", FANOUT, 7),
    _rate("fanout-qos1", "fan-out 1 -> 1,000, QoS 1", "fanout", "--qos 1", FANOUT, 8,
          PURE_PIPELINED),
    _rate("batch1-qos0", "a write per message, QoS 0", "p2p", "--qos 0 --batch 1", PAIRS, 1.3),
    _rate("batch1-qos1", "a write per message, QoS 1", "p2p", "--qos 1 --batch 1", PAIRS, 1.8),
    _rate("window1-qos0", "window 1, pairs, QoS 0", "p2p", "--qos 0 --window 1", PAIRS, 1.0),
    _rate("window1-qos1", "window 1, pairs, QoS 1", "p2p", "--qos 1", (*PAIRS, *ONE), 1.0),
    _rate("window1-fanout-qos1", "window 1, fan-out, QoS 1", "fanout", "--qos 1",
          (*FANOUT, *ONE), 1.0),
    _rate("wildcard", "wildcards, 100,000 filters", "wildcard", "--qos 0 --filters 100000", (), 8),
    _rate("connstorm", "10,000 connections", "connstorm",
          "--conns 10000 --concurrency 100 --hold", (), 1.2, cpu=True),
    _rate("retained", "100,000 retained to one `#`", "retained", "--count 100000", (), 2),
    _rate("mqtt5", "5.0, alias, 2 user properties, QoS 1", "p2p",
          "--qos 1 --alias --user-props 2", PAIRS, 5, PURE_PIPELINED),
    Workload("latency", "latency at 1,000/s, QoS 1, p50", "latency",
             ("--qos", "1", "--pubs", "100", "--rate", "1000"), LATENCY, 1.6, rounds=5),
    Workload("trickle", "10,000/s over 1,000 pairs, QoS 1", "latency",
             ("--qos", "1", "--pubs", "1000", "--rate", "10000"), CPU, 1.5),
    Workload("idle", "RSS, idle connection", "idle", IDLE, MEMORY),
    Workload("idle-sub", "RSS, idle, one subscription", "idle", (*IDLE, "--subscribe"), MEMORY,
             512),
)  # fmt: skip


def selected(names: str | None) -> tuple[Workload, ...]:
    """The workloads named, as in `p2p-qos0,fan*`; all without names.

    Raises ValueError for a name that is none.
    """
    if not names:
        return WORKLOADS
    chosen = []
    for name in names.split(","):
        found = [workload for workload in WORKLOADS if fnmatchcase(workload.name, name)]
        if not found:
            known = ", ".join(w.name for w in WORKLOADS)
            raise ValueError(f"no workload {name!r}; there are: {known}")
        chosen += [w for w in found if w not in chosen]
    return tuple(chosen)
