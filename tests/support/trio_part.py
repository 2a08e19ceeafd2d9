"""One node of the cluster in memory of `tests.support.trio`."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, succeed

from mqttd.cluster.etcd.client import absent, created, put
from mqttd.cluster.etcd.keys import Member
from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.cluster.routes.view import View
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.owners import Owners
from tests.support.memory import MemoryBroker
from tests.support.shared_etcd import KEYS, Asked

if TYPE_CHECKING:
    from tests.support.trio import Trio

__all__ = ["Part"]


class Part:
    """The real owners, moves and view, over a broker in memory."""

    def __init__(self, trio: Trio, name: str, lasts: bool) -> None:
        self.trio, self.name, self.clock = trio, name, trio.clock
        self.dead = False
        #: Clients are let in: what its store had is claimed.
        self.is_open = True
        self.etcd = Asked(trio.clock, trio.store, self._fate)
        is_there = lambda each: each in self.view.members  # noqa: E731
        self.owners = Owners(self.etcd, KEYS, name, trio.clock, is_there)
        self.owners.all_lasts = lasts
        self.memory = MemoryBroker(ownership=self.owners)
        broker = self.memory.broker
        # Filters are known to others at once, and nothing is published for them there.
        known = lambda full_filter: self.mesh.unsettled.pop(full_filter, None)  # noqa: E731
        self.mesh = NodeMesh(broker, known, lambda *_: None, lambda *_: None)
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
        #: Of each other node that there is a link to: in which epoch of ours and of its own.
        self.linked: dict[str, tuple[int, int]] = {}

    def _fate(self) -> tuple[str, float]:
        return ("gone", 0.0) if self.dead else self.trio.fate(self.name)

    def _trace(self) -> None:
        say, taken = self.moves.transit.say, self.owners.taken

        def said(to: Any, what: bytes, client_id: str, revision: int, *fields: bytes) -> None:
            told = what.decode(), client_id, revision, len(fields)
            self.trio.say(self.name, "says to", to.name, *told)
            say(to, what, client_id, revision, *fields)

        def heard(client_id: str, by: str, revision: int) -> None:
            self.trio.say(
                self.name, "hears", client_id, "taken by", by, revision, self.state_of(client_id)
            )
            taken(client_id, by, revision)

        self.moves.transit.say = said  # type: ignore[method-assign]
        self.owners.taken = heard  # type: ignore[method-assign]

    def state(self) -> str:
        """In short."""
        return " ".join(
            f"{client.name}: {self.state_of(client.name)}" for client in self.trio.clients
        )

    def state_of(self, client_id: str) -> str:
        """Of one client."""
        arrivals = [
            (each.origin, each.revision, each.by, each.state is not None, each.whole, each.next)
            for each in self.moves.arrivals.line(client_id)
        ]
        leaves = self.moves.departures.of.get(client_id)
        gone = None if leaves is None else (leaves.to, leaves.revision, leaves.sent, leaves.whole)
        tried = self.owners.tried._of.get(client_id)
        here = client_id in self.memory.broker.sessions
        owned = self.owners.owned.get(client_id)
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
        if self.owners.all_lasts:
            self.owners.fence = [created(KEYS.node(self.name), self.epoch)]
        self.look()

    def look(self) -> None:
        """Read all, and watch from there."""
        store = self.trio.store
        for _ in self.view.reset(store.all(), store.revision):
            pass
        if self.view.missed:
            self.anew, self.owners.known = True, -1
        self.moves.seen()
        self.at = len(store.log)

    def watch(self) -> None:
        """One change more is heard of."""
        if self.at is not None and self.at < len(self.trio.store.log):
            revision, events = self.trio.store.log[self.at]
            self.at += 1
            self.view.apply(revision, events)
            self.moves.seen()

    def links(self, node: Node, epoch: int) -> None:
        """There is a link to a node that knows us in this epoch."""
        if self.linked.get(node.name) != (epoch, node.epoch):
            self.linked[node.name] = epoch, node.epoch
            self.moves.linked(node)

    def claim_anew(self) -> None:
        """What is here is ours, or goes."""
        if self.keeping:
            return
        self.keeping, lease = True, self.owners.lease
        self.anew = False  # unless more is missed meanwhile

        def over(result: Any) -> None:
            self.keeping = False
            if isinstance(result, int) and lease == self.owners.lease:
                self.is_open = True
                if not self.anew:
                    self.owners.known = lease
                self.moves.seen()
            else:
                self.anew = True

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
