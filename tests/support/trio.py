"""Three nodes of a cluster in memory, whose answers of etcd are lost or late, and watches cut.

    python -m tests.support.trio FIRST COUNT [--lasts] [--expires] [--kills] [--cuts] [--more]
                                             [--audits] [-v]

    Trio        one etcd, one clock, the links between the nodes, and a client that goes from one to
                another; `run` does what its dice say, then nothing is wrong any more, and all has
                to be well
    Part        one node (`tests.support.trio_part`)
    Wanderer    a client (`tests.support.wanderer`)

A node that is killed is back with what its store had.
"""

from __future__ import annotations

import argparse
import random
from base64 import b64encode
from collections.abc import Callable

from twisted.internet.task import Clock

from mqttd.mesh.frames import split
from mqttd.types import SessionState
from tests.support.shared_etcd import KEYS, Store, kv_of
from tests.support.trio_part import Part
from tests.support.wanderer import NAMES, Wanderer

__all__ = ["Trio"]

#: Seconds of a step, without an answer until a node counts itself out, and for all to be well.
STEP, SILENT, HEALED = 0.05, 5.0, 55.0


class Trio:
    """`seed`: of its dice; `lasts`: ownerships outlast a node's lease, as where sessions are
    replicated; `expires`: leases end, of one node or of all; `kills`: nodes are killed, and back;
    `cuts`: links are cut, and what was kept for them meanwhile comes after that; `says` is told
    what happens; `more`: there are two clients, which do more; `audits`: nodes ask for what they
    have by and by, as those of a cluster do."""

    def __init__(
        self,
        seed: int,
        lasts: bool = True,
        expires: bool = False,
        kills: bool = False,
        cuts: bool = False,
        says: Callable[[str], object] | None = None,
        more: bool = False,
        audits: bool = False,
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
        self.cuts = cuts
        self.audits = audits
        #: The links that are cut, and until when.
        self.cut: dict[frozenset[str], float] = {}
        self.parts: dict[str, Part] = {name: Part(self, name, lasts) for name in NAMES}
        for part in self.parts.values():
            part.begin()
        self.clients = [Wanderer(self, name, more) for name in ("st" if more else "s")]
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
                if part.dead or other.dead or back is None or self._is_cut(part.name, node.name):
                    continue
                if (back.epoch, node.epoch) != (part.epoch, other.epoch):
                    continue
                part.links(node, back.epoch)
                for ferry in (node.ferry, node.once):
                    while ferry.kept and self.dice.random() < chance:
                        _, data = ferry.kept.popleft()
                        ferry.kept_bytes -= len(data)
                        other.moves.told(back, data[split(data, 0)[0] :])
                        other.memory.broker.perform()

    def _is_cut(self, one: str, other: str) -> bool:
        return self.cut.get(frozenset((one, other)), 0.0) > self.clock.seconds()

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
            if self.audits:
                part.owners.audit.tick(self.clock.seconds())
            part.memory.run_soon()
            part.memory.broker.tick(part.memory.broker.now + int(STEP * 1000))
            part.memory.run_soon()
        self.clock.advance(STEP)
        for part in self.parts.values():
            part.memory.run_soon()
        for client in self.clients:
            client.lives(0.08 if faults else 0.0)

    def expire(self, name: str) -> None:
        """The lease of a node ends."""
        part = self.parts[name]
        if part.owners.lease:
            self.say(name, "loses its lease")
            self.store.end(part.owners.lease)

    def cuts_link(self) -> None:
        """Two nodes have no link for some seconds: each says then what it has kept."""
        pair = self.dice.sample(NAMES, 2)
        seconds = self.dice.uniform(0.2, 12.0)
        self.say(*pair, f"have no link for {seconds:.1f}")
        self.cut[frozenset(pair)] = self.clock.seconds() + seconds

    def kill(self, name: str) -> None:
        """A node is killed, and back after some seconds with what its store had."""
        part = self.parts[name]
        departures, arrivals = part.moves.departures, part.moves.arrivals
        names = [client.name for client in self.clients]
        if sum(not each.dead for each in self.parts.values()) < 3 or any(
            each.state for client_id in names for each in arrivals.line(client_id)
        ):
            return
        if any(leaves.remains is not None for leaves in departures.of.values()):
            return
        states: list[tuple[str, SessionState]] = []
        left: dict[str, tuple[str, int]] = {}
        for client_id in names:
            state = part.memory.broker.registry.hand_over(client_id, 1 << 62)
            if state is None and client_id in departures.of:
                leaves = departures.of[client_id]
                left[client_id] = leaves.to, leaves.revision
                state, _ = departures.take(client_id)
            if state is not None:
                states.append((client_id, state))
        self.say(name, "is killed", "with", *(client_id for client_id, _ in states))
        part.dead = True
        for client in self.clients:
            if client.at == name:
                client.goes(0.1)
        home, lease = part.owners.home, part.owners.lease
        part.at = None
        part.owners.lease = 0  # what it has asked for is answered to nobody
        self.clock.callLater(5.0, self.store.end, lease)
        self.clock.callLater(35.0, self.store.end, home)
        new = self.parts[name] = Part(self, name, self.lasts)
        new.dead, new.is_open = True, False
        if states:
            new.memory.broker.registry.recover(states)
        for client_id, to in left.items():
            new.moves.transit.left.goes(client_id, *to)

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
                if self.cuts and self.dice.random() < 0.01:
                    self.cuts_link()
                if self.wrong:
                    return self.wrong
            self.say("all is well from now on")
            self.trouble = {name: {} for name in NAMES}
            self.cut.clear()
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
            is_well = all(client.is_well() for client in self.clients)
            well = (well or now) if is_well and not self.left_over() else 0.0
            if well and now - well > 7.0:
                return self.twice()
            if now > end:
                away = [
                    f"{client.name} is let in: {client.let_in}, misses {client.ledger.missing()}"
                    for client in self.clients
                    if not client.is_well()
                ]
                return f"not well: {self.left_over()} {' '.join(away)}"
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
        """Whether each is at one node."""
        for client in self.clients:
            name, parts = client.name, self.parts.items()
            at = [each for each, part in parts if name in part.memory.broker.sessions]
            key = b64encode(KEYS.own(name)).decode()
            kept = self.store.kept.get(key)
            own = None if kept is None else KEYS.owner(kv_of(key, kept))
            if at != [client.at] or own is None or own.node != client.at:
                return f"{name} is at {at}, owned by {own}"
        return ""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.trio")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    for flag in ("--lasts", "--expires", "--kills", "--cuts", "--more", "--audits", "-v"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args()
    bad = moved = 0
    for seed in range(asked.first, asked.first + asked.count):
        says = print if asked.v else None
        trio = Trio(
            seed,
            asked.lasts,
            asked.expires,
            asked.kills,
            asked.cuts,
            says,
            asked.more,
            asked.audits,
        )
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
