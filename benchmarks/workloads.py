"""The table of workloads: what the load is, what is compared, and the bounds.

    COST      broker CPU per delivery (per connection), theirs / ours      at least  N x
              of what is kept: per stored message, its rate and latency those of acknowledgements
    LATENCY   p50 of the quietest round, ours / theirs                     at most   N x
    MEMORY    bytes of RSS per connection, ours less theirs                at most + N bytes

Traffic that varies stands first: topics, properties, sizes and flags that change from message to
message are what brokers meet; then what the same topics cost again and again. A row's `setting` is
what it asks of the brokers' configuration; what only mqttd has of it (a plugin) its peers are
measured without. `itself` is a second mqttd in the same rounds, set otherwise.

Every run starts a broker afresh, so no workload sees what another one left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final, Literal

from benchmarks.setting import PLAIN, Setting, Store

__all__ = [
    "COST",
    "FIRST",
    "LATENCY",
    "MEMORY",
    "SIZES",
    "TWINS",
    "WORKLOADS",
    "Group",
    "Measure",
    "Workload",
    "selected",
]

Measure = Literal["cost", "latency", "memory"]
COST: Final[Measure] = "cost"
LATENCY: Final[Measure] = "latency"
MEMORY: Final[Measure] = "memory"

Group = Literal[
    "Traffic that varies",
    "Hooks, the event log, acknowledgements that wait",
    "One message at a time",
    "The same topics again and again, in bursts",
    "Connections and latency",
    "Clients that come and go",
    "Kept for sessions that are away",
]
VARIES: Final[Group] = "Traffic that varies"
SEEN: Final[Group] = "Hooks, the event log, acknowledgements that wait"
SINGLE: Final[Group] = "One message at a time"
BURSTS: Final[Group] = "The same topics again and again, in bursts"
REST: Final[Group] = "Connections and latency"
VISITS: Final[Group] = "Clients that come and go"
STORED: Final[Group] = "Kept for sessions that are away"
#: The group that leads every table.
FIRST: Final = VARIES


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table.

    `bounds`: by the peer's name, or "itself"; where there is none a figure is shown and nothing is
    asked of it. `pure_bound` is that of mosquitto without the compiled part.
    `most`: microseconds that ours may take at most, whatever others take.
    `times`: duration and warm-up where they are part of the workload.
    `companion`: a client of `benchmarks` that runs beside mqttload; "subscribe" runs instead of it,
    and so does "decisions" with what it is to measure.
    `peer_may_queue`: a peer that leaves messages queued at the end still counts; never mqttd.
    """

    name: str
    title: str
    scenario: str
    args: tuple[str, ...] = ()
    group: Group = BURSTS
    measure: Measure = COST
    bounds: Mapping[str, float] = field(default_factory=dict)
    pure_bound: float | None = None
    most: float | None = None
    setting: Setting = PLAIN
    itself: Setting | None = None
    times: tuple[float, float] | None = None
    companion: str = ""
    peer_may_queue: bool = False
    rounds: int = 3

    def arguments(self, duration: float, warmup: float) -> list[str]:
        """mqttload's arguments but for the broker's address; times in seconds."""
        duration, warmup = self.times or (duration, warmup)
        return [
            "--scenario", self.scenario, *self.args, *self.setting.arguments(),
            "--duration", f"{duration:g}", "--warmup", f"{warmup:g}",
        ]  # fmt: skip


#: Nothing may cost more than this without the compiled hot path ...
PURE: Final = 0.6
#: ... and QoS 1 with a window open at least this much less.
PURE_PIPELINED: Final = 2.3

PAIRS = ("--pubs", "50")
FANIN = ("--pubs", "100", "--subs", "1")
FANOUT = ("--pubs", "1", "--subs", "1000")
ONE = ("--window", "1", "--inflight", "1")
#: Connections one after the other, a hundred at a time.
VISIT = ("--conns", "20000", "--concurrency", "100")
#: The same of a thousand clients, who come again.
AGAIN = (*VISIT, "--clients", "1000")
#: Ten publishers with 20 unacknowledged messages each, a hundred persistent sessions.
AWAY = ("--pubs", "10", "--subs", "100", "--inflight", "20")
IDLE = ("--conns", "19000")
#: Topics of all publishers drawn from 99,999 (mqttload's most), one subscriber each to # and +/t/#.
DRAWN = ("--pubs", "50", "--subs", "2", "--topics", "99999", "--random-topics", "--shared-topics",
         "--sub-filters", "#,+/t/#", "--filters", "0")  # fmt: skip
#: 50 publishers with 1,000 topics each in random order, two subscribers for each publisher.
MANY = ("--topics", "1000", "--random-topics", "--filters", "0", "--prefix", "bench/t")
#: Eight levels, the wildcards among them, a number in the topic that does not come again.
DEEP = ("--levels", "8", "--unique-topics", "--filters", "0")
#: 300 subscribers of one topic, each with an identifier that no other has.
NAMED = ("--pubs", "1", "--subs", "300", "--sub-ids", "300")
#: So few messages of these sizes under way that no queue holds more than 100 MB.
LARGE = ("--pubs", "10", "--window", "8", "--inflight", "8", "--batch", "8")
RULES = Setting(rules=1000)
OWN = Setting(own=True)


def _row(
    name: str, title: str, scenario: str, args: str, base: tuple[str, ...] = (), *,
    group: Group, mosquitto: float | None = None, flashmq: float | None = None,
    itself_bound: float | None = None, pure: float | None = None, setting: Setting = PLAIN,
    itself: Setting | None = None, companion: str = "", may_queue: bool = False,
    times: tuple[float, float] | None = None, most: float | None = None,
) -> Workload:  # fmt: skip
    named = {"mosquitto": mosquitto, "flashmq": flashmq, "itself": itself_bound}
    bounds = {peer: bound for peer, bound in named.items() if bound is not None}
    return Workload(
        name, title, scenario, (*base, *args.split()), group, COST, bounds, pure, most, setting,
        itself, times, companion, may_queue,
    )  # fmt: skip


def _varied() -> tuple[Workload, ...]:
    v = VARIES
    return (
        _row("v5props-q0", "5.0, properties that differ, QoS 0", "p2p", "--props5 --qos 0", PAIRS,
             group=v, mosquitto=8, flashmq=1),
        _row("v5props-q1", "5.0, properties that differ, QoS 1", "p2p", "--props5 --qos 1", PAIRS,
             group=v, mosquitto=5, flashmq=1),
        _row("topics100k-q0", "topics drawn from 100,000, QoS 0", "wildcard", "--qos 0", DRAWN,
             group=v, mosquitto=3.5, flashmq=1),
        _row("topics100k-q1", "topics drawn from 100,000, QoS 1", "wildcard", "--qos 1", DRAWN,
             group=v, mosquitto=3.5, flashmq=1),
        _row("rules100k-q1", "the same, 1,000 rules, passwords, QoS 1", "wildcard", "--qos 1",
             DRAWN, group=v, mosquitto=8, flashmq=0.5, setting=RULES),
        _row("churn-q0", "50,000 topics, 200 wildcard changes/s, QoS 0", "wildcard", "--qos 0",
             MANY, group=v, mosquitto=5, flashmq=1, companion="churn"),
        _row("churn-q1", "50,000 topics, 200 wildcard changes/s, QoS 1", "wildcard", "--qos 1",
             MANY, group=v, mosquitto=4, flashmq=1, companion="churn"),
        _row("coldfilters", "100,000 filters, the first 0.3 s", "wildcard",
             "--qos 0 --filters 100000", group=v, mosquitto=3, flashmq=1, times=(0.3, 0)),
        _row("share5-q0", "a shared group of five, QoS 0", "fanin",
             "--pubs 100 --subs 5 --share g --qos 0", group=v, mosquitto=6, flashmq=1),
        _row("share5-q1", "a shared group of five, QoS 1", "fanin",
             "--pubs 100 --subs 5 --share g --qos 1", group=v),
        _row("retain-q0", "RETAIN set, QoS 0", "p2p", "--retain --qos 0", PAIRS, group=v,
             mosquitto=8, flashmq=1),
        _row("retain-q1", "RETAIN set, QoS 1", "p2p", "--retain --qos 1", PAIRS, group=v,
             mosquitto=5, flashmq=1),
        _row("mixfan-q1", "fan-out 1,000, identifiers, 3.1.1 and 5.0, QoS 1", "fanout",
             "--mix-subs --qos 1", FANOUT, group=v, mosquitto=7, flashmq=1),
        _row("mixfan-q2", "fan-out 1,000, identifiers, 3.1.1 and 5.0, QoS 2", "fanout",
             "--mix-subs --qos 2", FANOUT, group=v, mosquitto=7, flashmq=1),
        _row("subids300-q0", "fan-out 300, an identifier for each, QoS 0", "fanout", "--qos 0",
             NAMED, group=v, flashmq=1),
        _row("subids300-q1", "fan-out 300, an identifier for each, QoS 1", "fanout", "--qos 1",
             NAMED, group=v, flashmq=1),
        _row("overlap4-q0", "the same, four filters for each that match, QoS 0", "fanout",
             "--overlap 4 --qos 0", NAMED, group=v),
        _row("overlap4-q1", "the same, four filters for each that match, QoS 1", "fanout",
             "--overlap 4 --qos 1", NAMED, group=v),
        _row("deep8-q0", "topics of eight levels, none twice, QoS 0", "wildcard", "--qos 0", DEEP,
             group=v, flashmq=1),
        _row("deep8-q1", "topics of eight levels, none twice, QoS 1", "wildcard", "--qos 1", DEEP,
             group=v, flashmq=1),
        _row("large256k-q1", "256 KiB, QoS 1", "p2p", "--payload 262144 --qos 1", LARGE, group=v,
             mosquitto=0.85, flashmq=1),
        _row("large1m-q1", "1 MiB, QoS 1", "p2p", "--payload 1048576 --qos 1", LARGE, group=v,
             mosquitto=0.65, flashmq=1),
        _row("subscribe190k", "one wildcard SUBSCRIBE, 190,000 topics in use", "subscribe", "",
             group=v, companion="subscribe", most=500),
        *_decided(),
    )  # fmt: skip


def _decided() -> tuple[Workload, ...]:
    """What rights are asked for, again and again."""

    def row(name: str, title: str, what: str, setting: Setting = OWN) -> Workload:
        # mosquitto ends the connection of a client whose message it refuses.
        mosquitto = None if what.startswith("denied") else 1
        return _row(name, title, "decisions", "", group=VARIES, mosquitto=mosquitto, flashmq=0.5,
                    setting=setting, companion=f"decisions {what}")  # fmt: skip

    return (
        row("own-q0", "topics that never come again, a rule with %c, QoS 0", "fresh-q0"),
        row("own-q1", "topics that never come again, a rule with %c, QoS 1", "fresh-q1"),
        row("denied-q0", "refused, QoS 0", "denied-q0"),
        row("denied-q1", "refused, QoS 1", "denied-q1"),
        row("denied5-q0", "refused, 5.0, QoS 0", "denied5-q0"),
        row("denied5-q1", "refused, 5.0, QoS 1", "denied5-q1"),
        row("filters", "a filter subscribed to again, 100 in a packet", "again", PLAIN),
        row("filters-new", "a filter subscribed to and given up, 100 in a packet", "renewed",
            PLAIN),
    )  # fmt: skip


def _single() -> tuple[Workload, ...]:
    s, tls, ws = SINGLE, Setting(door="tls"), Setting(door="ws")
    return (
        _row("small5000-q0", "5,000 publishers of 2/s to one, QoS 0", "fanin",
             "--pubs 5000 --subs 1 --rate 10000 --qos 0", group=s, mosquitto=0.9, flashmq=0.7),
        _row("trickle-q0", "10,000/s over 1,000 pairs, QoS 0", "latency",
             "--qos 0 --pubs 1000 --rate 10000", group=s, mosquitto=0.7, flashmq=0.7),
        _row("trickle-q1", "10,000/s over 1,000 pairs, QoS 1", "latency",
             "--qos 1 --pubs 1000 --rate 10000", group=s, mosquitto=0.95, flashmq=0.7),
        _row("batch1-q0", "a write per message, QoS 0", "p2p", "--qos 0 --batch 1", PAIRS,
             group=s, mosquitto=1.3, pure=PURE),
        _row("batch1-q1", "a write per message, QoS 1", "p2p", "--qos 1 --batch 1", PAIRS,
             group=s, mosquitto=1.8, pure=PURE),
        _row("tls1-q0", "TLS, a write per message, QoS 0", "p2p", "--qos 0 --batch 1", PAIRS,
             group=s, mosquitto=1.2, flashmq=1, setting=tls),
        _row("ws1-q0", "WebSocket, a write per message, QoS 0", "p2p", "--qos 0 --batch 1", PAIRS,
             group=s, mosquitto=1.2, flashmq=1, setting=ws),
        _row("slow200-q0", "200/s over 50 pairs, QoS 0", "latency",
             "--qos 0 --pubs 50 --rate 200", group=s),
        _row("window1-q0", "window 1, pairs, QoS 0", "p2p", "--qos 0 --window 1", PAIRS,
             group=s, mosquitto=1, pure=PURE),
        _row("window1-q1", "window 1, pairs, QoS 1", "p2p", "--qos 1", (*PAIRS, *ONE),
             group=s, mosquitto=1, pure=PURE),
        _row("window1-fanout-q1", "window 1, fan-out, QoS 1", "fanout", "--qos 1",
             (*FANOUT, *ONE), group=s, mosquitto=1, pure=PURE),
    )  # fmt: skip


def _seen() -> tuple[Workload, ...]:
    s, noop, log = SEEN, Setting(plugin="noop"), Setting(plugin="spark")
    return (
        _row("hook-q0", "a no-op hook on every message, QoS 0", "p2p", "--qos 0", PAIRS,
             group=s, mosquitto=6, flashmq=1, setting=noop, itself=PLAIN),
        _row("hook-q1", "a no-op hook on every message, QoS 1", "p2p", "--qos 1", PAIRS,
             group=s, mosquitto=5, flashmq=1, setting=noop, itself=PLAIN),
        _row("log-q0", "every message in the event log, QoS 0", "p2p", "--qos 0", PAIRS,
             group=s, mosquitto=4, flashmq=1, setting=log, itself=PLAIN, itself_bound=0.25),
        _row("log-q1", "every message in the event log, QoS 1", "p2p", "--qos 1", PAIRS,
             group=s, mosquitto=4, flashmq=1, setting=log, itself=PLAIN, itself_bound=0.5),
        _row("held-q1", "acknowledgements held, QoS 1", "p2p", "--qos 1", PAIRS, group=s,
             setting=Setting(plugin="held"), itself=PLAIN, itself_bound=round(1 / 1.3, 2)),
    )  # fmt: skip


def _bursts() -> tuple[Workload, ...]:
    b = BURSTS
    return (
        _row("p2p-q0", "50 pairs, QoS 0", "p2p", "--qos 0", PAIRS, group=b, mosquitto=12,
             flashmq=1, pure=PURE),
        _row("p2p-q1", "50 pairs, QoS 1", "p2p", "--qos 1", PAIRS, group=b, mosquitto=8,
             flashmq=1, pure=PURE_PIPELINED),
        _row("p2p-q2", "50 pairs, QoS 2", "p2p", "--qos 2", PAIRS, group=b, mosquitto=7,
             pure=PURE),
        _row("p2p-q0-1k", "50 pairs, 1 KiB, QoS 0", "p2p", "--qos 0 --payload 1024", PAIRS,
             group=b, mosquitto=6, pure=PURE),
        _row("fanin-q0", "fan-in 100 -> 1, QoS 0", "fanin", "--qos 0", FANIN, group=b,
             mosquitto=12, pure=PURE),
        _row("fanin-q1", "fan-in 100 -> 1, QoS 1", "fanin", "--qos 1", FANIN, group=b,
             mosquitto=8, pure=PURE_PIPELINED, may_queue=True),
        _row("fanout-q0", "fan-out 1 -> 1,000, QoS 0", "fanout", "--qos 0", FANOUT, group=b,
             mosquitto=15, pure=PURE),
        _row("fanout-q1", "fan-out 1 -> 1,000, QoS 1", "fanout", "--qos 1", FANOUT, group=b,
             mosquitto=8, pure=PURE_PIPELINED),
        _row("fanout-q0-1k", "fan-out 1 -> 1,000, 1 KiB, QoS 0", "fanout",
             "--qos 0 --payload 1024", FANOUT, group=b, mosquitto=7, pure=PURE),
        _row("wildcard", "wildcards, 100,000 filters, QoS 0", "wildcard",
             "--qos 0 --filters 100000", group=b, mosquitto=8, pure=PURE),
        _row("mqtt5", "5.0, alias, the same properties, QoS 1", "p2p",
             "--qos 1 --alias --user-props 2", PAIRS, group=b, mosquitto=5, pure=PURE_PIPELINED),
    )  # fmt: skip


def _rest() -> tuple[Workload, ...]:
    latency = ("--qos", "1", "--pubs", "100", "--rate", "1000")
    dense = ("--qos", "0", "--pubs", "10", "--rate", "40000")
    return (
        _row("retained", "100,000 retained to one `#`", "retained", "--count 100000", group=REST,
             mosquitto=2.5, flashmq=1, pure=PURE),
        _row("connstorm", "10,000 connections", "connstorm",
             "--conns 10000 --concurrency 100 --hold", group=REST, mosquitto=1.2, flashmq=1,
             pure=PURE),
        Workload("latency", "latency at 1,000/s, QoS 1, p50", "latency", latency, REST, LATENCY,
                 {"mosquitto": 1.6}, rounds=5),
        # Small packets, a few with each read: here the engine rests between its turns.
        Workload("latency-rests", "latency at 40,000/s over 10 pairs, p50", "latency", dense, REST,
                 LATENCY, itself=Setting(gather=False), rounds=5),
        Workload("idle", "RSS, idle connection", "idle", IDLE, REST, MEMORY),
        Workload("idle-sub", "RSS, idle, one subscription", "idle", (*IDLE, "--subscribe"), REST,
                 MEMORY, {"mosquitto": 512}),
        Workload("idle-echo", "RSS, published, received, quiet", "idle", (*IDLE, "--echo"), REST,
                 MEMORY),
    )  # fmt: skip


def _visits() -> tuple[Workload, ...]:
    v, kept, two = VISITS, Setting(store="os"), Setting(workers=2)
    said, willed = "--say --qos 1", "--will --qos 1"
    return (
        _row("visit", "connect and leave", "connstorm", "", VISIT, group=v),
        _row("visit-sub", "connect, subscribe and leave", "connstorm", "--subscribe", VISIT,
             group=v),
        _row("visit-say", "connect, publish (QoS 1) and leave", "connstorm", said, VISIT, group=v),
        _row("visit-will", "connect and break off, a will (QoS 1)", "connstorm", willed, VISIT,
             group=v),
        _row("visit-kept", "sessions that come back, subscribe and leave, os", "connstorm",
             "--persistent --subscribe --sub-qos 1", AGAIN, group=v, setting=kept),
        _row("visit-kept-v5", "the same, 5.0", "connstorm",
             "--mqtt5 --persistent --subscribe --sub-qos 1", AGAIN, group=v, setting=kept),
        _row("visit-retain", "connect, change what is retained (QoS 1) and leave, os",
             "connstorm", f"{said} --retain", AGAIN, group=v, setting=kept),
        _row("visit-2", "two workers: connect and leave", "connstorm", "", VISIT, group=v,
             setting=two),
        _row("visit-say-2", "two workers: connect, publish (QoS 1) and leave", "connstorm", said,
             VISIT, group=v, setting=two),
        _row("visit-will-2", "two workers: connect and break off, a will (QoS 1)", "connstorm",
             willed, VISIT, group=v, setting=two),
        _row("retain-os-q1", "50 pairs, RETAIN set, os, QoS 1", "p2p", "--retain --qos 1", PAIRS,
             group=v, setting=kept),
        _row("retain-2-q1", "two workers: 50 pairs, RETAIN set, QoS 1", "p2p",
             "--retain --qos 1", PAIRS, group=v, setting=two),
    )  # fmt: skip


def _stored() -> tuple[Workload, ...]:
    def row(name: str, title: str, store: Store, mosquitto: float | None = None) -> Workload:
        return _row(name, title, "offline", "--qos 1 --count 3000", AWAY, group=STORED,
                    mosquitto=mosquitto, setting=Setting(store=store))  # fmt: skip

    return (
        row("stored-os-q1", "10 publishers to 100 sessions away, os, QoS 1", "os", 0.83),
        row("stored-fsync-q1", "the same, fsync", "fsync"),
        row("queued-q1", "the same, in memory alone", ""),
    )


WORKLOADS: Final = (
    *_varied(), *_seen(), *_single(), *_bursts(), *_rest(), *_visits(), *_stored(),
)  # fmt: skip


#: Payloads that differ in length from message to message, around those at which lengths, the
#: remaining length first, take a byte more.
SIZES: Final = {"127": "40-200", "16k": "16200-16500"}


def _twins(workload: Workload) -> Iterator[Workload]:
    """The same load with payloads of such lengths; mqttload looks at each byte that arrives."""
    fixed = workload.measure != COST or workload.companion or "--payload" in workload.args
    if fixed or workload.scenario not in ("p2p", "fanin", "fanout", "wildcard", "latency"):
        return
    for size, lengths in SIZES.items():
        yield replace(
            workload,
            name=f"{workload.name}/{size}",
            title=f"{workload.title}, {lengths} bytes",
            args=(*workload.args, "--vary", lengths),
            bounds={},
            pure_bound=None,
        )


#: Measured where their names say so: `p2p-q1/127`, `*/16k`.
TWINS: Final = tuple(twin for workload in WORKLOADS for twin in _twins(workload))


def selected(names: str | None) -> tuple[Workload, ...]:
    """The workloads named, as in `p2p-q0,fan*`; all without names. Those of `TWINS` have a `/`.

    Raises ValueError for a name that is none.
    """
    if not names:
        return WORKLOADS
    chosen = []
    for name in names.split(","):
        among = TWINS if "/" in name else WORKLOADS
        found = [workload for workload in among if fnmatchcase(workload.name, name)]
        if not found:
            known = ", ".join(w.name for w in among)
            raise ValueError(f"no workload {name!r}; there are: {known}")
        chosen += [w for w in found if w not in chosen]
    return tuple(chosen)
