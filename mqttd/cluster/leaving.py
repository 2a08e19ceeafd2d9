"""A node goes: by itself, drained, or put out by others.

    drain, leave --> no member that takes sessions --> clients sent away at a rate (`broker.drain`)
                 --> each session that is left is offered to another node, which claims it
                 --> leave: the process ends; drain: it stays, and lets nobody in
    force-leave  --> out/<node>, its lease revoked: it is no member until `join`

Promise: at most `_AT_ONCE` sessions are on offer; a node waits for their takers `_PATIENCE` seconds
beyond the last that has gone, and keeps what nobody takes: so it says before it ends.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final, Protocol

from twisted.logger import Logger

from mqttd.broker.broker import Broker
from mqttd.broker.drain import Drain
from mqttd.cluster.etcd.client import Etcd, get, put, remove
from mqttd.cluster.etcd.keys import Keys
from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.cluster.routes.view import View
from mqttd.cluster.sessions.moves import Moves
from mqttd.storage.journal import StoreJournal

__all__ = ["Leaving"]

#: Sessions on offer, seconds until one is offered again, and for the next to go.
_AT_ONCE: Final = 100
_AGAIN: Final = 5.0
#: Milliseconds that a client has for coming to another node by itself, with its session.
_BACK: Final = 2000
_PATIENCE: Final = 15.0
#: Seconds that it stays for who asks how many sessions stay.
_TELLS: Final = 3.0


class Share(Protocol):
    """A node's share in its cluster, as far as it is needed here."""

    name: str
    broker: Broker
    etcd: Etcd
    keys: Keys
    mesh: NodeMesh
    moves: Moves
    view: View

    def takes(self, ready: bool) -> None:
        """Whether other nodes may give their sessions to this one."""


class Leaving:
    """What takes the node of `cluster` out of service."""

    def __init__(self, cluster: Share) -> None:
        self.cluster = cluster
        self.log = Logger(namespace="mqttd.cluster")
        self.drain: Drain
        self.parts: Any = None
        self.draining = False
        #: Sessions that nobody takes of a node that is about to end.
        self.stays = 0
        self._ends_at = 0.0
        self._offered: dict[str, float] = {}
        self._left = 0
        self._since = 0.0
        self._turn = 0

    def serve(self, drain: Drain, parts: Any) -> None:
        """By this the clients are sent away."""
        self.drain, self.parts = drain, parts
        drain.told, drain.waits = self._told, self.waits

    def begin(self, rate: float, to: str, ends: bool) -> None:
        """Drain this node; the process is to end after it."""
        self.parts.exit_when_drained = ends
        self.drain.begin(rate, to)

    def asked(self, what: dict[str, Any]) -> None:
        """Another node wants it."""
        if what.get("what") == "drain":
            self.begin(float(what["rate"]), str(what["to"]), False)
        elif what.get("what") == "named":
            text = "another node calls itself {node}, too, and was refused: at {at}, its id is {id}"
            self.log.warn(text, node=self.cluster.name, at=what.get("at"), id=what.get("id"))

    def _told(self, begins: bool) -> None:
        self.draining = begins
        self._since = time.monotonic()
        self._offered.clear()
        self.cluster.takes(not begins)

    # -- sessions ------------------------------------------------------------------------------

    def waits(self) -> bool:
        """Whether sessions are still to go, and somebody takes them."""
        cluster = self.cluster
        moves = cluster.moves
        left = len(cluster.broker.sessions) + len(moves.departures.of) + len(moves.arrivals.of)
        now = time.monotonic()
        if left != self._left:
            self._left, self._since = left, now
        if left and not (now - self._since < _PATIENCE and self._takers()):
            return self.parts.exit_when_drained and self._tells(left, now)
        self.stays = 0
        return left > 0

    def _tells(self, left: int, now: float) -> bool:
        """Whether it is still to be said, before the end, that so many sessions stay."""
        if not self.stays:
            self._ends_at = now + _TELLS
            kept = isinstance(self.cluster.broker.journal, StoreJournal)
            text = "no other node has taken {count} sessions: they {stay}"
            stay = "stay in the store of this one" if kept else "end with this one, without a store"
            self.log.warn(text, count=left, stay=stay)
        self.stays = left
        return now < self._ends_at

    def returns(self) -> bool:
        """Whether others are to wait for this node: it keeps sessions, or what was on its way."""
        return bool(self.cluster.broker.sessions or self.cluster.moves.departures.of)

    def _takers(self) -> list[Node]:
        cluster = self.cluster
        nodes = (cluster.mesh.nodes.get(each.name) for each in cluster.view.members.values()
                 if each.ready)  # fmt: skip
        return [node for node in nodes if node is not None and node.link is not None]

    def tick(self) -> None:
        """A few times a second."""
        if not self.draining:
            return
        broker, now = self.cluster.broker, time.monotonic()
        sessions = broker.sessions
        for client_id, since in list(self._offered.items()):
            if client_id not in sessions or now - since > _AGAIN:
                del self._offered[client_id]
        takers = self._takers()
        if not takers:
            return
        for client_id, session in list(sessions.items()):
            if len(self._offered) >= _AT_ONCE:
                break
            away = broker.now - session.away_since
            if session.channel is None and away >= _BACK and client_id not in self._offered:
                self._offered[client_id] = now
                self._turn += 1
                self.cluster.moves.give(client_id, takers[self._turn % len(takers)])
        self.cluster.broker.perform_later()

    async def forget(self) -> None:
        """Who leaves is not waited for by those who read its event log; raises EtcdError."""
        if self.draining and self.parts.exit_when_drained:
            keys = self.cluster.keys
            await self.cluster.etcd.transaction([], [remove(keys.export(self.cluster.name))])

    # -- members -------------------------------------------------------------------------------

    async def ask(self, name: str, what: dict[str, Any]) -> None:
        """Have a node do something. Raises EtcdError."""
        cluster = self.cluster
        await cluster.etcd.transaction([], [put(cluster.keys.ask(name), json.dumps(what).encode())])

    async def put_out(self, name: str, anyway: bool) -> bool | None:
        """Have a node be no member until it joins; whether it is there, or waited for, now.

        None: no node is known by this name, and nothing is done, unless `anyway`. Raises EtcdError.
        """
        etcd, keys = self.cluster.etcd, self.cluster.keys
        asked = [get(keys.node(name)), get(keys.home(name))]
        found = (await etcd.transaction([], asked)).found
        if not (found or anyway or name in self.cluster.view.names()):
            return None
        await etcd.transaction([], [put(keys.out(name), b"1"), remove(keys.export(name))])
        for kv in found:
            await etcd.lease_revoke(kv.lease)
        return bool(found)

    async def let_in(self, name: str) -> bool:
        """The end of that; False if it was not out. Raises EtcdError."""
        etcd, keys = self.cluster.etcd, self.cluster.keys
        answer = await etcd.transaction([], [get(keys.out(name)), remove(keys.out(name))])
        return bool(answer.found)
