"""Three nodes of a cluster in memory, whose answers of etcd are lost or late, and watches cut.

    python -m tests.support.trio FIRST COUNT [--lasts] [--expires] [--kills] [-v]

    Trio    one etcd, one clock, the links between the nodes, and a client that goes from one to
            another; `run` does what its dice say, then nothing is wrong any more, and all has to
            be well
    Part    one node: the real owners, moves and view, over a broker in memory

The session knows which life of it is the last: its client publishes a message of QoS 2 each time it
is let in, whose packet id stays in it. A node that is killed is back with what its store had.
"""

from __future__ import annotations

import argparse
import json
import random
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqttd.cluster.etcd.client import absent, put
from mqttd.cluster.etcd.keys import Member
from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.cluster.routes.view import View
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.owners import Owners
from mqttd.codec.packets import Connack, Connect, Publish, Pubrel
from mqttd.mesh.frames import split
from tests.support.memory import MemoryBroker, MemoryClient
from tests.support.shared_etcd import KEYS, Asked, Store, kv_of

__all__ = ["Trio"]

NAMES = "abc"
#: The client, its user, and the seconds that it waits for its CONNACK.
CLIENT, USER, WAITS = "s", "alice", 6.0
#: Seconds of a step, without an answer until a node counts itself out, and for all to be well.
STEP, SILENT, HEALED = 0.05, 5.0, 55.0


class Part:
    """One node."""

    def __init__(self, trio: Trio, name: str, lasts: bool) -> None:
        self.trio, self.name, self.clock = trio, name, trio.clock
        self.dead = False
        self.etcd = Asked(trio.clock, trio.store, self._fate)
        is_there = lambda each: each in self.view.members  # noqa: E731
        self.owners = Owners(self.etcd, KEYS, name, trio.clock, is_there)
        self.owners.all_lasts = lasts
        self.memory = MemoryBroker(ownership=self.owners)
        broker = self.memory.broker
        self.mesh = NodeMesh(broker, lambda _: None, lambda _: None, lambda *_: None)
        settled: Any = lambda filters: succeed(None)  # noqa: E731
        self.moves = Moves(broker, self.mesh, trio.clock, name, settled, lambda: 0)
        self.view = View(name, KEYS, self.mesh, self)
        self.moves.arrivals.home_of = self.view.home_of
        self.moves.arrivals.brief_of = self.view.brief_of
        self.owners.serve(broker, self.moves)
        self.owners.lost = lambda *why: trio.say(name, "lost", *why)
        if trio.says is not None:
            self._trace()
        #: Where it reads the log of etcd; None: there is no watch.
        self.at: int | None = None
        self.epoch = 0
        #: Its lease has ended, or etcd has not answered: what is here is to be claimed anew.
        self.anew = self.keeping = False
        self.next_look = 0.0

    def _fate(self) -> tuple[str, float]:
        return ("gone", 0.0) if self.dead else self.trio.fate(self.name)

    def _trace(self) -> None:
        say, taken = self.moves.transit.say, self.owners.taken

        def said(to: Any, what: bytes, client_id: str, revision: int, *fields: bytes) -> None:
            self.trio.say(self.name, "says to", to.name, what.decode(), revision, len(fields))
            say(to, what, client_id, revision, *fields)

        def heard(client_id: str, by: str, revision: int) -> None:
            self.trio.say(self.name, "hears taken by", by, revision, self.state())
            taken(client_id, by, revision)

        self.moves.transit.say = said  # type: ignore[method-assign]
        self.owners.taken = heard  # type: ignore[method-assign]

    def state(self) -> str:
        """In short."""
        arrivals = [
            (each.origin, each.revision, each.by, each.state is not None, each.whole, each.next)
            for each in self.moves.arrivals.line(CLIENT)
        ]
        leaves = self.moves.departures.of.get(CLIENT)
        gone = None if leaves is None else (leaves.to, leaves.revision, leaves.sent, leaves.whole)
        tried = self.owners.tried._of.get(CLIENT)
        here = CLIENT in self.memory.broker.sessions
        owned = self.owners.owned.get(CLIENT)
        return f"here={here} owned={owned} comes={arrivals} leaves={gone} tried={tried}"

    # -- a member ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Be a member."""
        store = self.trio.store
        before = store.kept.get(b64encode(KEYS.node(self.name)).decode())
        if before is not None:
            store.end(before[3])
        lease = store.grant()
        if self.owners.home not in store.leases:
            self.owners.home = store.grant()
        member = Member(self.name, self.name, "h:1", "1", (1, 9), True)
        changes = [
            put(KEYS.node(self.name), member.dump(), lease),
            put(KEYS.home(self.name), json.dumps({"id": self.name}).encode(), self.owners.home),
        ]
        said = store.transact({"compare": [absent(KEYS.node(self.name))], "success": changes})
        assert said["succeeded"]
        self.dead = False
        self.owners.lease, self.epoch = lease, store.revision
        self.look()

    def look(self) -> None:
        """Read all, and watch from there."""
        store = self.trio.store
        before = {(each.name, each.epoch) for each in self.view.members.values()}
        for _ in self.view.reset(store.all(), store.revision):
            pass
        self.moves.seen()
        self.at = len(store.log)
        if before - {(each.name, each.epoch) for each in self.view.members.values()}:
            self.anew = True

    def watch(self) -> None:
        """One change more is heard of."""
        if self.at is not None and self.at < len(self.trio.store.log):
            revision, events = self.trio.store.log[self.at]
            self.at += 1
            self.view.apply(revision, events)
            self.moves.seen()

    def claim_anew(self) -> None:
        """What is here is ours, or goes."""
        if self.keeping:
            return
        self.keeping = True

        def over(result: Any) -> None:
            self.keeping = False
            if isinstance(result, int):
                self.anew = False

        ours = [*{*self.memory.broker.sessions, *self.owners.owned}]
        done = Deferred.fromCoroutine(self.owners.amends.claim_all(ours))
        done.addBoth(over)

    # -- see `Follower` ------------------------------------------------------------------------

    def joined(self, member: Member, node: Node | None) -> None:
        if node is not None:
            self.moves.joined(node)

    def left(self, member: Member, node: Node | None, lost: int) -> None:
        if node is not None:
            self.moves.left(member.name)
        elif member.epoch == self.epoch:
            self.owners.lease = 0

    def given_up(self, name: str, lost: int) -> None:
        self.moves.given_up(name)

    def taken(self, client_id: str, by: str, revision: int) -> None:
        self.owners.taken(client_id, by, revision)

    def everything(self, found: list[Any]) -> None:
        pass

    def other(self, said: Any) -> None:
        pass


class Trio:
    """`seed`: of its dice; `lasts`: ownerships outlast a node's lease, as where sessions are
    replicated; `expires`: leases end, of one node or of all; `kills`: nodes are killed, and back;
    `says` is told what happens."""

    def __init__(
        self,
        seed: int,
        lasts: bool = True,
        expires: bool = False,
        kills: bool = False,
        says: Callable[[str], object] | None = None,
    ) -> None:
        self.dice = random.Random(seed)
        self.says = says
        self.expires = expires
        self.clock = Clock()
        self.store = Store()
        #: By node: the chances of what becomes of a request, and of a watch that is cut.
        self.trouble: dict[str, dict[str, float]] = {name: {} for name in NAMES}
        self.lasts = lasts
        self.kills = kills
        self.parts: dict[str, Part] = {name: Part(self, name, lasts) for name in NAMES}
        for part in self.parts.values():
            part.begin()
        self.client: MemoryClient | None = None
        self.at = ""
        self.let_in = False
        self.since = 0.0
        #: The life of the session that its client knows.
        self.life = 0
        self.wrong = ""
        self.moves = 0

    def say(self, *what: object) -> None:
        """It happens."""
        if self.says is not None:
            now = f"{self.clock.seconds():7.2f} {self.store.revision}"
            self.says(" ".join(map(str, [now, *what])))

    def fate(self, name: str) -> tuple[str, float]:
        """What becomes of what this node asks."""
        dice = self.dice.random()
        for fate, chance in self.trouble[name].items():
            if fate == "cut":
                continue
            dice -= chance
            if dice < 0:
                seconds = self.dice.uniform(0.2, 6.0)
                self.say(name, "asks:", fate, f"{seconds:.1f}")
                return fate, seconds
        return "well", 0.0

    # -- what happens --------------------------------------------------------------------------

    def links(self, chance: float) -> None:
        """What was said comes there, some of it."""
        for part in self.parts.values():
            for node in list(part.mesh.nodes.values()):
                other = self.parts[node.name]
                back = other.mesh.nodes.get(part.name)
                if part.dead or other.dead or back is None:
                    continue
                if (back.epoch, node.epoch) != (part.epoch, other.epoch):
                    continue
                for ferry in (node.ferry, node.once):
                    while ferry.kept and self.dice.random() < chance:
                        _, data = ferry.kept.popleft()
                        ferry.kept_bytes -= len(data)
                        other.moves.told(back, data[split(data, 0)[0] :])
                        other.memory.broker.perform()

    def turn(self, faults: bool) -> None:
        """A step of the clock."""
        dice = self.dice
        self.links(0.7 if faults else 1.0)
        for part in self.parts.values():
            if part.dead:
                continue
            cut = self.trouble[part.name].get("cut", 0.0)
            if part.at is not None and dice.random() < cut * 0.05:
                part.at = None
                self.say(part.name, "has no watch")
            if part.at is None:
                if dice.random() < (0.03 if cut else 0.3):
                    self.say(part.name, "reads all")
                    part.look()
            while part.at is not None and part.at < len(self.store.log) and dice.random() < 0.8:
                part.watch()
            if part.owners.lease not in self.store.leases and dice.random() < 0.03:
                part.owners.lease = 0  # who keeps it is told so
            if not part.owners.lease:
                if dice.random() < 0.2:
                    self.say(part.name, "is a member anew")
                    part.begin()
                    part.moves.anew()
                    part.anew = True
            elif faults and cut and dice.random() < 0.004:
                part.anew = True  # etcd has not answered for a while
                self.say(part.name, "was in a minority")
            if part.anew and part.owners.lease and dice.random() < 0.3:
                part.claim_anew()
            part.memory.run_soon()
            part.memory.broker.tick(part.memory.broker.now + int(STEP * 1000))
            part.memory.run_soon()
        self.clock.advance(STEP)
        for part in self.parts.values():
            part.memory.run_soon()
        self.lives(0.08 if faults else 0.0)

    def lives(self, hops: float) -> None:
        """Its client goes on."""
        client, now = self.client, self.clock.seconds()
        if client is None:
            if now >= self.since:
                self.at = self.dice.choice([name for name in NAMES if not self.parts[name].dead])
                self.client = client = self.parts[self.at].memory.client(5)
                self.let_in, self.since = False, now
                client.send(_connect())
            return
        if not self.let_in:
            for packet in client.take():
                if isinstance(packet, Connack):
                    self._answered(client, packet)
                    return
            if client.closed or now - self.since > WAITS:
                self.goes(0.1)
        elif client.closed:
            self.goes(0.1)
        elif self.dice.random() < hops:
            self.goes(0.1)

    def _answered(self, client: MemoryClient, packet: Connack) -> None:
        if packet.reason_code:
            self.goes(0.1)
            return
        self.say("client is let in at", self.at, "present" if packet.session_present else "NEW")
        self.let_in = True
        self.moves += 1
        if self.life and not packet.session_present:
            self.wrong = self.wrong or f"its session is lost, at {self.at}"
            return
        session = client.channel.session
        if session is None:
            return  # it is closed already
        incoming = set(session.awaiting_rel or ())
        known = {self.life} if self.life else set()
        if incoming != known:
            self.wrong = self.wrong or f"its session is that of {incoming}, and not of {known}"
        before, self.life = self.life, self.life + 1
        client.send(Publish("x", b"", 2, packet_id=self.life))
        if before:
            client.send(Pubrel(before))
        client.take()

    def goes(self, rest: float) -> None:
        """Its client leaves."""
        if self.client is not None:
            self.client.drop()
        self.client = None
        self.let_in = False
        self.since = self.clock.seconds() + rest

    def expire(self, name: str) -> None:
        """The lease of a node ends."""
        part = self.parts[name]
        if part.owners.lease:
            self.say(name, "loses its lease")
            self.store.end(part.owners.lease)

    def kill(self, name: str) -> None:
        """A node is killed, and back after some seconds with what its store had."""
        part = self.parts[name]
        leaves = part.moves.departures.of.get(CLIENT)
        if sum(not each.dead for each in self.parts.values()) < 3 or any(
            each.state for each in part.moves.arrivals.line(CLIENT)
        ):
            return
        if leaves is not None and leaves.remains is not None:
            return
        state = part.memory.broker.registry.hand_over(CLIENT, 1 << 62)
        if state is None and leaves is not None:
            state, _ = part.moves.departures.take(CLIENT)
        self.say(name, "is killed", "with it" if state else "")
        part.dead = True
        if self.at == name:
            self.goes(0.1)
        home, lease = part.owners.home, part.owners.lease
        part.at = None
        part.owners.lease = 0  # what it has asked for is answered to nobody
        self.clock.callLater(5.0, self.store.end, lease)
        self.clock.callLater(35.0, self.store.end, home)
        new = self.parts[name] = Part(self, name, self.lasts)
        new.dead = True
        if state is not None:
            new.memory.broker.registry.recover([(CLIENT, state)])

        def back() -> None:
            self.say(name, "is back")
            new.begin()
            new.anew = True

        self.clock.callLater(self.dice.uniform(0.3, 9.0), back)

    # -- all of it -----------------------------------------------------------------------------

    def run(self, rounds: int = 3) -> str:
        """What is wrong, if something is."""
        for _ in range(rounds):
            self._trouble()
            end = self.clock.seconds() + self.dice.uniform(3.0, 15.0)
            while self.clock.seconds() < end:
                self.turn(True)
                if self.expires and self.dice.random() < 0.01:
                    for name in NAMES if self.dice.random() < 0.3 else self.dice.choice(NAMES):
                        self.expire(name)
                if self.kills and self.dice.random() < 0.005:
                    self.kill(self.dice.choice(NAMES))
                if self.wrong:
                    return self.wrong
            self.say("all is well from now on")
            self.trouble = {name: {} for name in NAMES}
            if wrong := self._heals():
                return wrong
        return ""

    def _trouble(self) -> None:
        dice = self.dice
        for name in NAMES if dice.random() < 0.6 else dice.choice(NAMES):
            chances = {
                fate: dice.choice([0.0, 0.0, 0.2, 0.4])
                for fate in ("lost", "held", "late", "gone", "hangs")
            }
            self.trouble[name] = {**chances, "cut": dice.choice([0.0, 0.5, 1.0])}

    def _heals(self) -> str:
        end = self.clock.seconds() + HEALED
        well = 0.0
        while not self.wrong:
            self.turn(False)
            now = self.clock.seconds()
            well = (well or now) if self.let_in and not self.left_over() else 0.0
            if well and now - well > 7.0:
                return self.twice()
            if now > end:
                return f"not well: {self.left_over() or 'its client is not let in'}"
        return self.wrong

    def left_over(self) -> str:
        """What is not over."""
        for name, part in self.parts.items():
            if part.dead:
                return f"{name} is not back"
            if part.moves.arrivals.of or part.moves.departures.of:
                return f"{name}: {part.state()}"
        return ""

    def twice(self) -> str:
        """Whether it is at one node."""
        at = [name for name, part in self.parts.items() if CLIENT in part.memory.broker.sessions]
        own = (
            KEYS.owner(kv_of(key, self.store.kept[key]))
            if (key := b64encode(KEYS.own(CLIENT)).decode()) in self.store.kept
            else None
        )
        if at != [self.at] or own is None or own.node != self.at:
            return f"it is at {at}, owned by {own}"
        return ""


def _connect() -> Connect:
    properties: Any = {0x11: 100_000}
    return Connect(CLIENT, 5, clean_start=False, username=USER, properties=properties)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.trio")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    for flag in ("--lasts", "--expires", "--kills", "-v"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args()
    bad = moved = 0
    for seed in range(asked.first, asked.first + asked.count):
        says = print if asked.v else None
        trio = Trio(seed, asked.lasts, asked.expires, asked.kills, says)
        wrong = trio.run()
        moved += trio.moves
        if wrong:
            bad += 1
            print(seed, wrong, flush=True)
            if says:
                for name, part in trio.parts.items():
                    says(name, part.state())
    print(f"{bad} of {asked.count} wrong, {moved} moves")


if __name__ == "__main__":
    main()
