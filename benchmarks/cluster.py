"""Three nodes of a cluster on one machine: claims at once, routes, and a rolling restart.

    python -m benchmarks.cluster races [--rounds 1000]       one client id at three nodes at once
    python -m benchmarks.cluster routes [--rounds 10000]     SUBACK, then a publish at another node
    python -m benchmarks.cluster filters [--rounds 100000]   so many filters of one node
    python -m benchmarks.cluster rolling [--clients 3000]    each node leaves and comes back
        [--upgrade CHECKOUT]                                 which it was begun from, as this one

The last line is a JSON object; the status is 1 if something was wrong. An etcd of three members and
all nodes are on loopback, and share the machine with their clients.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.client import cpu_of
from mqttd.admin.ctl.client import Client
from tests.faults.roamers import Roamer
from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.etcd import start_etcd
from tests.support.nodes import Nodes, asked, start_node, start_nodes

NAMES = "abc"
_STAYS = [(mq.SESSION_EXPIRY, 600)]
#: Lanes side by side, seconds for a message, filters of a SUBSCRIBE, and for a client to be back.
LANES, PATIENCE, FILTERS, BACK = 4, 5.0, 1000, 5.0
#: How often a node is asked to leave before it is given up.
LEAVES = 10
#: What the command line says: seconds of a lease, and where logs are kept.
LEASE = "5s"
FOLDER: Path | None = None


class Peer:
    """One connection."""

    def __init__(self, port: int, name: str) -> None:
        self.port = port
        self.name = name
        self.code = -1
        self.number = 0

    async def begin(self, props: Any = ()) -> Peer:
        """Connect; `code` is what the broker says."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(mq.connect(self.name, mq.V5, clean=False, props=props))
        try:
            self.code = (await self.receive()).reason
        except asyncio.IncompleteReadError:
            self.code = 0x80
        return self

    async def receive(self) -> mq.Packet:
        """The next packet."""
        return await mq.receive(self.reader)

    async def until(self, kind: int) -> mq.Packet:
        """The next packet of this type."""
        while True:
            packet = await asyncio.wait_for(self.receive(), PATIENCE)
            if packet.type == kind:
                return packet

    def next(self) -> int:
        """A packet id."""
        self.number = self.number % 60_000 + 1
        return self.number

    async def ended(self, seconds: float) -> bool:
        """Whether the broker ends the connection within this time."""
        try:
            while True:
                await asyncio.wait_for(self.receive(), seconds)
        except TimeoutError:
            return False
        except (OSError, asyncio.IncompleteReadError):
            return True

    def close(self) -> None:
        """The end."""
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def cluster(**settings: Any) -> AsyncIterator[tuple[Path, Any, Nodes]]:
    """An etcd of three, and three nodes; `FOLDER` is kept, with their logs."""
    with contextlib.ExitStack() as stack:
        path = (
            FOLDER
            if FOLDER is not None
            else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        )
        etcd = await asyncio.to_thread(start_etcd, path / "etcd", 3)
        nodes: Nodes = {}
        try:
            wanted: dict[str, dict[str, Any]] = {name: {"lease": LEASE} for name in NAMES}
            nodes.update(
                await asyncio.to_thread(
                    start_nodes, path, etcd, wanted, store={"kind": "sqlite"}, **settings
                )
            )
            await asyncio.to_thread(_linked, path)
            yield path, etcd, nodes
        finally:
            for name, node in nodes.items():
                await asyncio.to_thread(node.stop, hard=True)
                _keep_log(path, name, node)
            etcd.stop()


def _keep_log(path: Path, name: str, node: Any) -> None:
    with open(path / f"{name}.log", "a", encoding="utf-8") as file:
        file.write(node.output + "\n")


def _at(path: Path, name: str, what: str) -> Any:
    return Client(str(path / name / "data" / "mqttd.sock")).get(what)


def _linked(path: Path) -> None:
    """All nodes have links to each other."""
    while True:
        views = [_at(path, name, "/cluster")["nodes"] for name in NAMES]
        if all(
            len(each) == len(NAMES) and all(one["linked"] or one["here"] for one in each)
            for each in views
        ):
            return
        time.sleep(0.1)


def _cpu(nodes: Nodes, etcd: Any) -> dict[str, float]:
    """Seconds of CPU that each node and all of etcd have had."""
    found = {}
    for name, node in nodes.items():
        assert node.process is not None
        found[name] = cpu_of(node.process.pid)
    found["etcd"] = sum(cpu_of(member.process.pid) for member in etcd.members)
    return found


def _used(nodes: Nodes, etcd: Any, before: dict[str, float]) -> dict[str, float]:
    return {name: round(now - before[name], 2) for name, now in _cpu(nodes, etcd).items()}


def _owners(path: Path, client_id: str) -> list[str]:
    """The nodes that have a session of this client id."""
    found = []
    for name in NAMES:
        for each in _at(path, name, "/sessions?limit=1000")["clients"]:
            if each["client_id"] == client_id and each.get("node", name) == name:
                found.append(name)
    return found


async def races(rounds: int) -> dict[str, Any]:
    """One client id at all nodes at once: one session is left, and one connection."""
    wrong: list[str] = []
    won = dict.fromkeys(NAMES, 0)
    async with cluster() as (path, _, nodes):
        began = time.monotonic()
        for number in range(rounds):
            client_id = f"race{number % 50}"  # new at first, then one that is somewhere
            peers = {name: Peer(nodes[name].port, client_id) for name in NAMES}
            await asyncio.gather(*(peer.begin(_STAYS) for peer in peers.values()))
            end = time.monotonic() + 10.0
            while True:
                over = {n: p.code != 0 or await p.ended(0.02) for n, p in peers.items()}
                alive = [name for name, each in over.items() if not each]
                owners = await asyncio.to_thread(_owners, path, client_id)
                if len(owners) == 1 and (alive == owners or not alive):
                    break
                if time.monotonic() > end:
                    wrong.append(f"round {number}: at {owners}, connected at {alive}")
                    break
            for name in owners:
                won[name] += 1
            for peer in peers.values():
                peer.close()
        seconds = time.monotonic() - began
    return {"rounds": rounds, "wrong": wrong, "owner": won, "seconds": round(seconds)}


async def routes(rounds: int) -> dict[str, Any]:
    """Subscribe at one node, publish at another as soon as the SUBACK is there."""
    took: list[float] = []
    missed: list[str] = []

    async def lane(number: int, nodes: Nodes, alone: bool) -> None:
        dice = random.Random(number)
        here = {n: await Peer(nodes[n].port, f"s{number}{n}").begin() for n in NAMES}
        there = {n: await Peer(nodes[n].port, f"p{number}{n}").begin() for n in NAMES}
        for turn in range(number, rounds, LANES):
            at, to = dice.sample(NAMES, 2)
            topic = f"route/{turn}"
            began = time.monotonic()
            here[at].writer.write(mq.subscribe([(topic, 1)], here[at].next(), version=mq.V5))
            answer = await here[at].until(mq.SUBACK)
            if alone:
                took.append(time.monotonic() - began)
            packet_id = there[to].next()
            there[to].writer.write(mq.publish(topic, b"%d" % turn, 1, packet_id, version=mq.V5))
            try:
                came = await here[at].until(mq.PUBLISH)
                if came.topic != topic or answer.reasons != [1]:
                    missed.append(f"{topic}: {answer.reasons}, {came.topic}")
                here[at].writer.write(mq.puback(came.packet_id, mq.V5))
            except TimeoutError:
                missed.append(f"{topic} from {to} to {at}")
            await there[to].until(mq.PUBACK)
            here[at].writer.write(mq.unsubscribe([topic], here[at].next(), version=mq.V5))
            await here[at].until(mq.UNSUBACK)
        for peer in (*here.values(), *there.values()):
            peer.close()

    async with cluster() as (path, etcd, nodes):
        before = _cpu(nodes, etcd)
        began = time.monotonic()
        # The first lane alone for how long it takes, then the others side by side.
        await lane(0, nodes, True)
        await asyncio.gather(*(lane(number, nodes, False) for number in range(1, LANES)))
        seconds = time.monotonic() - began
        used = _used(nodes, etcd, before)
        unseen = {name: _unseen(path, name) for name in NAMES}
    cuts = statistics.quantiles(took, n=100)
    return {
        "rounds": rounds, "missed": missed, "unseen": unseen, "seconds": round(seconds),
        "suback_ms": {"median": round(cuts[49] * 1000, 1), "p99": round(cuts[98] * 1000, 1)},
        "cpu_s": used, "wrong": missed,
    }  # fmt: skip


def _unseen(path: Path, name: str) -> int:
    """Filters of which a node has sent SUBACK while another had been silent for a second."""
    found: dict[str, int] = _at(path, name, "/metrics")["gauges"]
    return found["cluster_filters_unseen"]


async def filters(count: int) -> dict[str, Any]:
    """So many filters of one client, until the last SUBACK: all nodes have them then."""
    async with cluster(session={"max_subscriptions": 1_000_000}) as (path, etcd, nodes):
        peer = await Peer(nodes["a"].port, "many").begin()
        packets = []
        for start in range(0, count, FILTERS):
            some = [(f"many/{n}/+", 0) for n in range(start, min(count, start + FILTERS))]
            packets.append(mq.subscribe(some, peer.next(), version=mq.V5))
        before = _cpu(nodes, etcd)
        began = time.monotonic()
        peer.writer.write(b"".join(packets))
        granted = 0
        for _ in packets:
            granted += (await asyncio.wait_for(peer.until(mq.SUBACK), 60)).reasons.count(0)
        seconds = time.monotonic() - began
        used = _used(nodes, etcd, before)
        known = [
            next(each["filters"] for each in _at(path, name, "/cluster")["nodes"]
                 if each["node"] == "a")
            for name in "bc"
        ]  # fmt: skip
        peer.close()
    wrong = [] if granted == count and known == [count, count] else [f"{granted}, {known}"]
    return {"filters": count, "seconds": round(seconds, 2),
            "per_second": round(count / seconds), "cpu_s": used, "wrong": wrong}  # fmt: skip


class Member(Roamer):
    """One of a ring: has a topic of its own, and publishes to that of the next one."""

    def __init__(self, number: int, count: int, ports: dict[str, int], every: float) -> None:
        super().__init__(f"m{number}", ports, random.Random(number))
        self.topic = f"ring/{number}"
        self.to = f"ring/{(number + 1) % count}"
        self.every = every
        self.next = 0
        #: What is not acknowledged; numbers that were, and that have come.
        self.open: int | None = None
        self.acked: set[int] = set()
        self.seen: set[int] = set()
        self.goes = True
        self._subscribed = False

    async def began(self, resumed: bool) -> None:
        """Subscribe, until that is acknowledged; send again what was not acknowledged."""
        if self._known and not resumed:
            at = time.strftime("%H:%M:%S")
            print(f"{at} {self.name}: its session is lost, now at {self.at}", file=sys.stderr)
        await super().began(resumed)
        if not resumed or not self._subscribed:
            await self._subscribe()
        if self.open is not None:
            self._send(self.open, resumed)

    async def _subscribe(self) -> None:
        """Once this is done others may publish to it: before its SUBACK nothing is for a filter."""
        self._subscribed = False
        self.send(mq.subscribe([(self.topic, 1)], 1, version=mq.V5))
        while (packet := await asyncio.wait_for(self.receive(), PATIENCE)).type != mq.SUBACK:
            self.take(packet)
        if packet.reasons != [1]:
            raise OSError("not subscribed")
        self._subscribed = True

    def _send(self, number: int, dup: bool) -> None:
        data = mq.publish(self.to, b"%d" % number, 1, number % 60_000 + 2, dup=dup, version=mq.V5)
        self.send(data)

    async def talk(self) -> None:
        """Publish now and then."""
        await asyncio.sleep(self.dice.uniform(0, self.every))
        while True:
            if self.goes and self.open is None and self.connected.is_set():
                self.open, self.next = self.next, self.next + 1
                self._send(self.open, False)
            await asyncio.sleep(self.every)

    def take(self, packet: mq.Packet) -> None:
        """A message, or an acknowledgement."""
        if packet.type == mq.PUBACK and self.open is not None:
            self.acked.add(self.open)
            self.open = None
        elif packet.type == mq.PUBLISH:
            self.seen.add(int(packet.payload))
            self.send(mq.puback(packet.packet_id, mq.V5))


def leave(node: Broker) -> int:
    """Have it leave, as an operator does: again where no answer comes. How often again."""
    for again in range(LEAVES):
        try:
            asked(node, "cluster", "leave", "--rate", "200")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            print(f"{time.strftime('%H:%M:%S')} leave: {error}", file=sys.stderr)
            if node.process is not None and node.process.poll() is None:
                continue
        return again
    raise RuntimeError(f"a node does not leave, asked {LEAVES} times")


async def rolling(clients: int, rate: int, before: Path | None) -> dict[str, Any]:
    """Each node leaves (`mqttd-ctl cluster leave`) and is started again, under load."""
    more: dict[str, Any] = {"session": {"max_expiry_interval": "1h"}}
    async with cluster(checkout=before, **more) as (path, etcd, nodes):
        ports = {name: node.port for name, node in nodes.items()}
        ring = [Member(n, clients, ports, clients / rate) for n in range(clients)]
        tasks = []
        for at, member in enumerate(ring):
            tasks.append(asyncio.create_task(member.run()))
            if at % 50 == 49:
                await asyncio.sleep(0.1)
        while not all(member.connected.is_set() for member in ring):
            await asyncio.sleep(0.1)
        tasks += [asyncio.create_task(member.talk()) for member in ring]
        unseen = {name: _unseen(path, name) for name in NAMES}
        for member in ring:
            member.away.clear()
        await asyncio.sleep(5)
        seconds, again = [], 0
        for name in NAMES:
            began = time.monotonic()
            del ports[name]
            again += await asyncio.to_thread(leave, nodes[name])
            process = nodes[name].process
            assert process is not None
            await asyncio.to_thread(process.wait, 120)
            _keep_log(path, name, nodes[name])
            nodes[name] = await asyncio.to_thread(
                start_node, path, etcd, name, store={"kind": "sqlite"},
                cluster={"lease": LEASE}, **more
            )  # fmt: skip
            ports[name] = nodes[name].port
            await asyncio.to_thread(_linked, path)
            seconds.append(round(time.monotonic() - began, 1))
            await asyncio.sleep(2)
        for member in ring:
            member.goes = False
        end = time.monotonic() + 20

        def missing() -> list[str]:
            return [
                f"{n} of {member.name}"
                for at, member in enumerate(ring)
                for n in member.acked - ring[(at + 1) % clients].seen
            ]

        while time.monotonic() < end and (missing() or any(m.open is not None for m in ring)):
            await asyncio.sleep(0.2)
        lost, gone = missing(), sum(member.sessions_lost for member in ring)
        away = sorted(each for member in ring for each in member.away)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    wrong = lost[:20] + ([f"{gone} sessions lost"] if gone else [])
    if away[-1] > BACK:
        wrong.append(f"{sum(each > BACK for each in away)} were away for longer than {BACK} s")
    return {
        "clients": clients, "acknowledged": sum(len(m.acked) for m in ring), "moves": len(away),
        "lost": len(lost), "sessions_lost": gone, "node_seconds": seconds,
        "left_again": again, "unseen": unseen,
        "away_s": {"median": round(statistics.median(away), 2),
                   "p99": round(away[len(away) * 99 // 100], 2), "max": round(away[-1], 2)},
        "wrong": wrong,
    }  # fmt: skip


def _set(lease: str, folder: Path | None) -> None:
    global LEASE, FOLDER
    LEASE, FOLDER = lease, folder


def main() -> int:
    """One of them; the status is 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("races", "routes", "filters", "rolling"))
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--clients", type=int, default=3000)
    parser.add_argument("--rate", type=int, default=200, help="messages a second of all clients")
    parser.add_argument("--upgrade", type=Path, metavar="CHECKOUT", help="what nodes are at first")
    parser.add_argument("--lease", default=LEASE)
    parser.add_argument("--folder", type=Path, help="an empty one, kept with the nodes' logs")
    options = parser.parse_args()
    _set(options.lease, options.folder)
    if options.what == "races":
        told = asyncio.run(races(options.rounds or 1000))
    elif options.what == "routes":
        told = asyncio.run(routes(options.rounds or 10_000))
    elif options.what == "filters":
        told = asyncio.run(filters(options.rounds or 100_000))
    else:
        told = asyncio.run(rolling(options.clients, options.rate, options.upgrade))
    print(json.dumps(told))
    return 1 if told["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
