"""Three nodes and what may happen to them, under load, again and again, with ledgers.

    python -m tests.faults.cluster ROUNDS [--seed N] [--kinds node,away,leader,etcd,answers,...]
    python -m tests.faults.cluster ROUNDS --replicate [--kinds lost,nats,all_nats,...]

A round: load, a fault in its midst, its end, and all is well again within `HEALED` seconds:
everybody is let in, everything that was acknowledged has come, QoS 2 once, each client id is at one
node. Of three nodes one's clock is 10 s ahead and one's 10 s behind, all the time, and an operator
changes what is nothing to the clients (`tests.faults.operator`): at any node, and at each that is
back before they are. Kind `answers` loses what etcd answers to one node or to all (`Wires`), kind
`leases` has no way to it for longer than the lease, and perhaps one of them killed meanwhile.

Without `--replicate` sessions are at one node: those of a node that is killed wait for it, and what
is published for them meanwhile is kept by the others. With it (`session.replicate`, three NATS
servers) kind `lost` kills a node that is back only when everybody is let in elsewhere; `nats` kills
the server that leads its stream, `all_nats` all of them. What a publisher had not been acknowledged
at QoS 2 when its node was killed counts as all else, and is told by itself, too: how often readers
have had it (`doubts`). What is not counted is the order of a publisher that has gone from one node
to another while it was away. No fault may lose a session.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mqttd.admin.ctl.client import Client, CtlError
from tests.faults.lines import Lines
from tests.faults.operator import ACL, Operator, complaints
from tests.faults.roamers import Reader, Roamer, Sender
from tests.faults.wires import Trouble, Wires
from tests.support.broker import Broker
from tests.support.etcd import start_etcd
from tests.support.nats import start_nats
from tests.support.nodes import start_node
from tests.support.servers import free_port

__all__ = ["KINDS", "REPLICATED", "Faults"]

NAMES = "abc"
KINDS = ("node", "away", "leader", "etcd", "answers", "leases", "cut", "slow")
#: Those of nodes whose sessions are replicated.
REPLICATED = ("lost", "nats", "all_nats", *KINDS)
_IDLE = 8
#: Seconds after the end of a fault.
HEALED = 10.0
#: Seconds that a node's clock is off.
CLOCKS = {"a": 0, "b": -10, "c": 10}
_CLOCK = """\
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {off}
time.time_ns = lambda: _time_ns() + {off} * 1_000_000_000
"""


class Faults:
    """Three nodes, an etcd of three, the lines between them, and their clients."""

    def __init__(
        self, path: Path, seed: int, replicate: bool = False, healed: float = HEALED
    ) -> None:
        self.path = path
        self.dice = random.Random(seed)
        #: Seconds that it may take until all is well after a fault, and that it took last.
        self.healed, self.took = healed, 0.0
        self.nats = start_nats(path / "nats", 3) if replicate else None
        self.etcd = start_etcd(path / "etcd", 3)
        self.lines = Lines(NAMES)
        members = [member.port for member in self.etcd.members]
        self.wires = Wires(NAMES, members, random.Random(f"wires {seed}"))
        self.nodes: dict[str, Broker] = {}
        #: What those said that were killed.
        self.before: dict[str, str] = {}
        #: Where each node is reached by others, and by clients.
        self.inner = {name: free_port() for name in NAMES}
        self.ports: dict[str, int] = {}
        self.operators = {name: Operator(path / name, f"{seed} {name}") for name in NAMES}
        self.everybody: list[Roamer] = []
        self.senders: list[Sender] = []
        self.readers: list[Reader] = []
        #: Sessions that nothing is sent to, and which go from node to node all the more.
        self.idle: list[Roamer] = []
        self.tasks: list[asyncio.Task[None]] = []
        #: How often readers had what was under way to a node when that was killed: times -> count.
        self.doubts: dict[int, int] = {}
        #: When a node was killed last, and was there again.
        self.killed = self.back = 0.0

    async def begin(self) -> None:
        """Start all of it."""
        await self.lines.begin()
        await self.wires.begin()
        self.lines.targets.update(self.inner)
        starts = (self._start(name) for name in NAMES)
        # All of them, though one cannot: those that have started are there to be ended.
        for error in await asyncio.gather(*starts, return_exceptions=True):
            if error is not None:
                raise error
        for n, qos in enumerate((1, 2, 2)):
            self.senders.append(Sender(f"s{n}", self.ports, self.dice, qos))
        for n in range(4):
            self.readers.append(Reader(f"r{n}", self.ports, self.dice))
        self.idle = [Roamer(f"i{n}", self.ports, self.dice) for n in range(_IDLE)]
        self.everybody = [*self.senders, *self.readers, *self.idle]
        self.tasks = [asyncio.create_task(each.run()) for each in self.everybody]
        await self._until(self._all_in, "everybody let in", 30.0)

    async def end(self) -> None:
        """Stop all of it."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.lines.end()
        self.wires.end()
        for node in self.nodes.values():
            node.stop(hard=True)
        self.etcd.stop()
        if self.nats is not None:
            self.nats.stop()

    async def _start(self, name: str) -> None:
        clock = self.path / f"clock-{name}"
        clock.mkdir(exist_ok=True)
        (clock / "sitecustomize.py").write_text(_CLOCK.format(off=CLOCKS[name]))
        port = self.lines.ports.get(name, self.inner[name])
        settings: dict[str, Any] = {
            "cluster": {
                "endpoints": self.wires.endpoints(name),
                "lease": "5s",
                "keep_sessions": "3m",  # a node is back when a busy machine has it so
                "bind": f"127.0.0.1:{self.inner[name]}",
                "advertise": f"127.0.0.1:{port}",
            },
            "session": {"max_expiry_interval": "1h"},
            # What is published while a node is away is more than a session keeps by default.
            "mqueue": {"max_length": 100_000, "max_bytes": "64MiB"},
            "environment": {
                "PYTHONPATH": os.pathsep.join((str(clock), os.environ.get("PYTHONPATH", "")))
            },
            "store": {"kind": "sqlite"},
            "acl": ACL,
        }
        if self.nats is not None:
            settings["session"]["replicate"] = "jetstream"
            settings["jetstream"] = {"servers": self.nats.addresses}
        if name in self.nodes:
            self.before[name] = self.before.get(name, "") + self.nodes[name].output
        node = await asyncio.to_thread(start_node, self.path, self.etcd, name, **settings)
        self.nodes[name] = node
        await self._change(name)
        self.ports[name] = node.port
        if self.nats is not None:
            await asyncio.to_thread(node.says, "the store is copied to")

    # -- a round -------------------------------------------------------------------------------

    async def round(self, kind: str) -> list[str]:
        """Load, a fault, and what is wrong after it."""
        lost = [each.sessions_lost for each in self.everybody]
        for sender in self.senders:
            sender.go()
        others = [asyncio.create_task(each) for each in (self._hops(), self._changes())]
        await asyncio.sleep(self.dice.uniform(0.2, 1.0))
        await getattr(self, f"_{kind}")()
        ended = time.monotonic()
        for each in others:
            each.cancel()
        wrong: list[str] = []
        try:
            await self._until(self._all_in, "everybody let in", self._healed(kind))
            for sender in self.senders:
                sender.goes = False
            await self._until(lambda: all(each.current < 0 for each in self.senders),
                              "all acknowledged", self._healed(kind))  # fmt: skip
            left = max(1.0, self._healed(kind) - (time.monotonic() - ended))
            await self._until(lambda: not self._missing(), "all received", left)
            await asyncio.to_thread(self._settled)
            self.took = time.monotonic() - ended
        except AssertionError as error:
            wrong.append(str(error))
        for reader in self.readers:
            for sender in self.senders:
                # Acknowledgements between nodes wait for the servers, too, which are slow here.
                slow = 2.0 if self.nats is not None else 0.0
                wrong += reader.faults(sender, self.killed, self.back, slow)
                for times in reader.doubts(sender):
                    self.doubts[times] = self.doubts.get(times, 0) + 1
        now = [each.sessions_lost for each in self.everybody]
        count = sum(now) - sum(lost)
        if count:
            wrong.append(f"{count} sessions lost")
        wrong += await asyncio.to_thread(self._owned_twice)
        for operator in self.operators.values():
            wrong += operator.faults
        for node in self.nodes.values():
            wrong += complaints(node.output)
        self._forget()
        return wrong

    def _healed(self, kind: str) -> float:
        """A stream without a leader has one after 4 to 10 s, when its servers are back."""
        return 3 * self.healed if kind.endswith("nats") else self.healed

    def _forget(self) -> None:
        """What is compared is not compared again."""
        for sender in self.senders:
            sender.acked.clear()
            under_way = sender.sent.get(sender.current)
            sender.sent.clear()
            if under_way is not None:
                sender.sent[sender.current] = under_way
        for reader in self.readers:
            # What is acknowledged only in the next round may have come in this one.
            for sender in self.senders:
                seen = reader.seen.pop(sender.topic, [])
                reader.seen[sender.topic] = [each for each in seen if each in sender.sent]
            del reader.gaps[:-2]

    async def _hops(self) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0.05, 0.4))
            roamer = self.dice.choice([*self.senders, *self.readers])
            rests = roamer in self.readers and self.dice.random() < 0.2
            roamer.hop(self.dice.uniform(0.5, 2.0) if rests else 0.0)

    async def _wander(self) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0.01, 0.1))
            self.dice.choice(self.idle).hop()

    async def _changes(self) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0.3, 1.5))
            await self._change(self.dice.choice(sorted(self.ports)))

    async def _change(self, name: str) -> None:
        """At a node that may be killed meanwhile, or without the others."""
        process = self.nodes[name].process
        assert process is not None
        with suppress(CtlError):
            await asyncio.to_thread(self.operators[name].act, process.pid)

    def _missing(self) -> bool:
        return any(reader.missing(sender) for reader in self.readers for sender in self.senders)

    def _all_in(self) -> bool:
        return all(each.connected.is_set() for each in self.everybody)

    async def _until(self, true: Callable[[], object], what: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                those = [each.name for each in self.everybody if not each.connected.is_set()]
                raise AssertionError(f"not in {seconds:.1f} s: {what}; away: {those}")
            await asyncio.sleep(0.02)

    def _asked(self, name: str, path: str) -> Any:
        return Client(str(self.path / name / "data" / "mqttd.sock")).get(path)

    def dropped(self, name: str) -> dict[str, float]:
        """What a node has dropped since its start, and why."""
        counted = self._asked(name, "/metrics")["counters"]
        return {key: count for key, count in counted.items() if "dropped" in key and count}

    def shown(self, name: str) -> list[Any]:
        """What a node says of the readers that are there: their sessions and filters."""
        said: list[Any] = []
        with suppress(CtlError):
            found = self._asked(name, "/sessions?limit=1000")["clients"]
            said += [each for each in found if each["node"] == name and each["client_id"] < "s"]
            asked = "/subscriptions?client_id="
            said += [self._asked(name, asked + each.name)["subscriptions"] for each in self.readers]
            said += [self._asked(name, f"/routes?topic={each.topic}") for each in self.senders]
        return said

    def _settled(self) -> None:
        """All nodes see each other, and are members."""
        end = time.monotonic() + self.healed
        while True:
            views = [self._asked(name, "/cluster") for name in NAMES]
            if all(
                view["state"] == "member"
                and len(view["nodes"]) == len(NAMES)
                and all(each["linked"] or each["here"] for each in view["nodes"])
                for view in views
            ):
                return
            assert time.monotonic() < end, f"not healed: {views}"
            time.sleep(0.1)

    def _owned_twice(self) -> list[str]:
        at: dict[str, list[str]] = {}
        for name in NAMES:
            for each in self._asked(name, "/sessions?limit=1000")["clients"]:
                if each["node"] == name:  # it shows those of the others, too
                    at.setdefault(each["client_id"], []).append(name)
        return [f"{each} is at {places}" for each, places in at.items() if len(places) != 1]

    # -- faults --------------------------------------------------------------------------------

    async def _load(self, least: float = 0.3, most: float = 2.0) -> None:
        await asyncio.sleep(self.dice.uniform(least, most))

    async def _away(self) -> None:
        """Killed, and away for longer than its lease."""
        await self._node(6.0, 14.0)

    async def _node(self, least: float = 0.3, most: float = 2.0) -> None:
        name = self.dice.choice(NAMES)
        del self.ports[name]
        self.killed = time.monotonic()
        self.nodes[name].stop(hard=True)
        for sender in self.senders:
            sender.bereft(name)
        # Sessions of whom nobody knows anything while changes are made, there and at their heirs.
        absent = [each for each in self.readers if each.at == name and self.dice.random() < 0.5]
        for reader in absent:
            reader.may_come.clear()
        await self._load(least, most)
        await self._start(name)
        for reader in absent:
            reader.may_come.set()
        self.back = time.monotonic()

    async def _lost(self) -> None:
        """Killed, and back when everybody is let in elsewhere."""
        name = self.dice.choice(NAMES)
        del self.ports[name]
        self.killed = time.monotonic()
        self.nodes[name].stop(hard=True)
        for sender in self.senders:
            sender.bereft(name)
        await self._until(lambda: all(each.at != name for each in self.everybody), "gone", 5.0)
        await self._until(self._all_in, "everybody let in while it is away", 20.0)
        await self._load()
        await self._start(name)
        self.back = time.monotonic()

    async def _nats(self) -> None:
        assert self.nats is not None
        stream = f"mqttd-mqttd-{self.dice.choice(NAMES)}-"
        number = await asyncio.to_thread(self.nats.leader, stream)
        await asyncio.to_thread(self.nats.stop, number)
        await self._load(1.0, 8.0)
        await asyncio.to_thread(self.nats.start, number)

    async def _all_nats(self) -> None:
        assert self.nats is not None
        await asyncio.to_thread(self.nats.stop)
        await self._load(0.3, 4.0)
        await asyncio.to_thread(self.nats.start)

    async def _leader(self) -> None:
        number = await asyncio.to_thread(self._leads)
        self.etcd.stop(number)
        await self._load()
        await asyncio.to_thread(self.etcd.start, number)

    def _leads(self) -> int:
        for number in range(3):
            answer = self.etcd.ask("/v3/maintenance/status", {}, number)
            if answer.get("leader") == answer["header"]["member_id"]:
                return number
        return 0

    async def _etcd(self) -> None:
        self.etcd.stop()
        await self._load()
        await asyncio.to_thread(self.etcd.start)

    async def _answers(self, least: float = 5.0, most: float = 15.0) -> None:
        names = NAMES if self.dice.random() < 0.3 else self.dice.choice(NAMES)
        numbers = range(3) if self.dice.random() < 0.9 else [self.dice.randrange(3)]
        held, late = self.dice.choice([0.0, 0.1, 0.3]), self.dice.choice([0.0, 0.2, 0.4])
        lost = self.dice.choice([0.0, 0.2, 0.5, 0.9] if held or late else [0.2, 0.5, 0.9])
        self.wires.trouble(names, numbers, Trouble(held, lost, late))
        wanders = asyncio.create_task(self._wander())
        await self._load(least, most)
        wanders.cancel()
        self.wires.trouble(names, numbers)

    async def _leases(self) -> None:
        names = NAMES if self.dice.random() < 0.7 else self.dice.choice(NAMES)
        began = time.monotonic()
        self.wires.trouble(names, range(3), Trouble(cut=True))
        wanders = asyncio.create_task(self._wander())
        await self._load(0.0, 4.0)
        kills = self.dice.random() < 0.4
        if kills:
            begins = asyncio.create_task(self._node(6.0, 9.0))
        await self._load(6.0, 10.0)
        self.wires.trouble(names, range(3))
        if kills:
            await begins
        wanders.cancel()
        # Who has no lease is away to others, as one that was killed is.
        self.killed, self.back = began, time.monotonic()

    async def _cut(self) -> None:
        gate = self.dice.choice(list(self.lines.gates.values()))
        gate.shut()
        await self._load(0.0)
        gate.open = True

    async def _slow(self) -> None:
        gate = self.dice.choice(list(self.lines.gates.values()))
        gate.delay = 0.2
        await self._load(1.0)
        gate.delay = 0.0


async def _run(asked: argparse.Namespace, path: Path) -> int:
    faults = Faults(path, asked.seed, asked.replicate, asked.healed)
    began = time.monotonic()
    wrong: list[str] = []
    try:
        await faults.begin()
        for number in range(asked.rounds):
            kind = asked.kinds[number % len(asked.kinds)]
            wrong = await faults.round(kind)
            away = [each for roamer in faults.everybody for each in roamer.away]
            told = {
                "round": number, "kind": kind, "wrong": wrong,
                "messages": sum(sender.next for sender in faults.senders),
                "moves": sum(each.moves for each in faults.everybody),
                "away_max": round(max(away, default=0.0), 2), "doubts": faults.doubts,
                "changes": sum((each.done for each in faults.operators.values()), Counter()),
                "answers": faults.wires.done, "healed": round(faults.took, 1),
            }  # fmt: skip
            for each in faults.everybody:
                each.away.clear()
            print(json.dumps(told), flush=True)
            if wrong:
                for name, node in faults.nodes.items():
                    said = faults.before.get(name, "") + node.output
                    print(f"--- {name}\n{said[-asked.tail :]}", flush=True)
                    print(json.dumps(faults.dropped(name)), flush=True)
                    print(json.dumps(faults.shown(name)), flush=True)
                if not asked.go_on:
                    break
    finally:
        await faults.end()
    print(json.dumps({"rounds": asked.rounds, "seconds": round(time.monotonic() - began)}))
    return 1 if wrong else 0


def main() -> int:
    """The command; its status is 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", type=lambda text: text.split(","))
    parser.add_argument("--replicate", action="store_true")
    parser.add_argument("--go-on", action="store_true")
    parser.add_argument("--healed", type=float, default=HEALED, help="seconds; on a busy machine")
    parser.add_argument("--tail", type=int, default=6000, help="characters of each log")
    asked = parser.parse_args()
    asked.kinds = asked.kinds or list(REPLICATED if asked.replicate else KINDS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    return asyncio.run(_run(asked, Path(tempfile.mkdtemp(prefix="cluster-"))))


if __name__ == "__main__":
    sys.exit(main())
