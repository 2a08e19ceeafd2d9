"""Sessions on their way from one node to another: nothing is lost on it, and nothing comes twice.

    b has claimed what a has:

    a   its client is sent away; a `Catcher` in its place           --STATE record, queue--> b
    b   a `Catcher` with its filters; when all have these in their tables:  --MARK--> everybody
    x   knows b's filters: what it sends from now on reaches b too  --MARKED--> a, b
    a   what STATE had no room for                                  --MORE, MORE--> b
    a   has the marks of all: what came before them                 --TAIL--> b
    b   has TAIL and the marks of all, too: STATE, TAIL, what came behind the marks: the session
    b                                                               --DONE--> a, which forgets it

A mark goes the way of the messages, one by each of the two lanes of a link, so it parts them: a has
what x sent before it, b what x sent behind it. Before x's mark has come to b, what x sent before it
may be on its way there, too, and is in TAIL already: b goes on when nothing of it can come any
more. All of these are kept until they are taken, as messages are: a link that breaks delays them.
When x is killed and back at once it gives its mark behind what its store had for others. When a is
gone before TAIL, b waits for what a has, as long as a is awaited; when b is gone, what a has is b's
when b is back, or goes back to a.

`Departures` has a's part, `Arrivals` b's, and `Arrears` knows what a's links have still to bring of
what the client has published there; this is what nodes say to each other.

A message to thousands is handed out in many turns (`mqttd.broker.publish.fans`). A node gives its
mark when all that were under way have come to their end; of those that have begun since other
nodes have theirs at once; and a mark that comes counts when all that were under way before it are
here. What is under way to the session that ends at a, or to b's catcher, goes to who has come in
its place.

Promise: QoS 1 and 2 in the order of each publisher, but for messages to thousands. MQTT 5.0, 4.1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqttd.broker.broker import Broker
from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.cluster.sessions.arrears import Arrears
from mqttd.cluster.sessions.arrivals import Arrivals
from mqttd.cluster.sessions.catcher import Catcher
from mqttd.cluster.sessions.coming import Coming
from mqttd.cluster.sessions.departures import Departures, Leaving
from mqttd.cluster.sessions.packets import Packets
from mqttd.cluster.sessions.remains import Remains
from mqttd.cluster.sessions.transit import (
    BACK,
    DONE,
    GIVE,
    HEIR,
    LANE_MARKED,
    LOOK,
    MARK,
    MARKED,
    MORE,
    TAIL,
    WANT,
    WHOLE,
    Transit,
)
from mqttd.cluster.wills.willed import take_along
from mqttd.mesh.frames import number_of, unpacked
from mqttd.session.ground.message import Message
from mqttd.session.session import Session
from mqttd.types import SessionState

__all__ = ["Moves"]


class Moves:
    """The sessions that come to this node and leave it; see `Arrivals` for `settled` and `at`."""

    def __init__(
        self,
        broker: Broker,
        mesh: NodeMesh,
        reactor: Any,
        name: str,
        settled: Callable[[list[str]], Awaitable[None]],
        at: Callable[[], int],
    ) -> None:
        self.broker = broker
        self.mesh = mesh
        self.name = name
        self.log = Logger(namespace="mqttd.cluster")
        self.transit = Transit(broker, mesh, reactor)
        self.arrivals = Arrivals(self.transit, name, settled, at)
        self.arrivals.goes = self._goes_on
        self.arrivals.back, self.arrivals.is_early = self._back, self._is_early
        self.arrears = Arrears(mesh, self._look)
        self.departures = Departures(self.transit, self._gone, self.arrears)
        #: What the store keeps of sessions that have ended, and are about to leave.
        self._remains: dict[str, Remains] = {}
        #: Those themselves, while something is under way to them.
        self._ended: dict[str, Session] = {}
        #: A session leaves for a node that is not there.
        self.gone: Callable[[str, Leaving], object] = lambda *_: None
        #: Whether we have claimed a session that comes, as far as we know, and whose it is by etcd:
        #: owner, from whom, and since which revision; None: that is not known.
        self.expects: Callable[[str, int], bool] = lambda *_: True
        self.whose: Callable[[str], Awaitable[tuple[str, str, int] | None]]
        #: Whether we may have claimed one of a node, without an answer of etcd.
        self.tried: Callable[[str, str], bool] = lambda *_: False
        #: Of whom we may have claimed one in this revision, without an answer; empty: of nobody.
        self.claimed_of: Callable[[str, int], str] = lambda *_: ""
        #: Under which lease we are a member; 0: we are none, -1: something was missed.
        self.lease: Callable[[], int] = int
        #: Whether another takes ours over, or may have begun to, as far as we know.
        self.is_silent: Callable[[], bool] = lambda: False
        #: Another node wants us to claim a client id of its own, or asks for one it has claimed.
        self.given: Callable[[str, str], object] = lambda client_id, node: None
        self.asked: Callable[[str, str, int], object] = lambda *_: None
        #: Marks that are asked for by nodes whose filters are not in our tables yet.
        self._asked: list[tuple[int, str, int, str, str, bytes]] = []
        #: All is here of these but what etcd says up to their claims.
        self._early: list[tuple[str, Coming]] = []
        #: What was sent last of sessions of which etcd is asked first: its answers may overtake
        #: each other.
        self._asking: dict[tuple[str, str, int], list[bytes]] = {}
        #: What nodes have sent whose sessions are being taken over.
        self._late: list[tuple[Node, bytes]] = []
        #: Nodes that have no link to us yet since we are a member anew.
        self._unmet: set[str] = set()
        #: A node is gone.
        self.parted: Callable[[str], object] = lambda name: None
        #: A session is here, with a state or a new one.
        self.here: Callable[[Session, bool], object] = lambda *_: None
        broker.registry.entered = self._entered

    def _entered(self, session: Session, state: SessionState | None) -> None:
        with_state = state is not None
        self.transit.left.over(session.client_id)
        if state is not None:
            take_along(self.broker, session, state)
        self.arrivals.entered(session, with_state)
        leaves = self.departures.of.get(session.client_id)
        if leaves is not None:
            self.departures.drop(session.client_id)  # it is here again
            if with_state:
                self.transit.replace(session, leaves.catcher, leaves.since)
        self.here(session, with_state)

    def leaves(self, session: Session) -> Packets:
        """It ends here, and `hand` follows: the store keeps it until it is where it goes."""
        queue = Packets(self.broker, session)
        if session.owner:
            self._remains[session.client_id] = Remains.of(session)
        if self.broker.fans.lines:
            self._ended[session.client_id] = session
        return queue

    def willed(self, client_id: str, will: Message, delay_seconds: int) -> None:
        """The will of its client, which is away by now, goes along."""
        if client_id in self._remains:
            self._remains[client_id].keep(will, delay_seconds)

    def hand(
        self,
        client_id: str,
        by: str,
        revision: int,
        state: SessionState | None,
        catcher: Catcher | None = None,
        doubt: bool = False,
    ) -> None:
        """What there is of a session goes to the node that has claimed it in this revision.

        state: of what has just ended here; None where it is not here, or not yet. catcher: who has
        caught for it here until now. doubt: that node may have had it since, not from here.
        """
        remains = self._remains.pop(client_id, None)
        gone: list[Session | None] = [self._ended.pop(client_id, None), catcher]
        if state is None:
            if self.arrivals.passed(client_id, by, revision):
                return
            leaves = self.departures.of.get(client_id)
            if leaves is not None:
                if (leaves.revision, leaves.to) != (revision, by) and leaves.revision >= revision:
                    # It was claimed later by who it is for.
                    self.transit.tell_look(by, client_id, revision)
                    return
                if leaves.to == by and leaves.may_be_there and self._waits_for(client_id, by):
                    # He asks for what we ask him for, and may have had: here is what was before.
                    self.transit.tell_nothing(by, client_id, revision)
                    return
                # To whom it goes already, too: it asks again, since it has lost sight of us.
                gone += [leaves.catcher, leaves.since]
                state, remains = self.departures.take(client_id, by, revision)
        self.departures.begin(client_id, by, revision, state, remains, gone, doubt)

    def _goes_on(
        self,
        client_id: str,
        to: tuple[str, int],
        state: SessionState | None,
        remains: Remains,
        catcher: Catcher | None,
    ) -> None:
        if state is None and client_id in self.broker.sessions:
            self.asked(client_id, *to)  # it is here by another claim, since that was asked for
        else:
            self.departures.begin(client_id, *to, state, remains, [catcher])

    def _back(
        self, client_id: str, revision: int
    ) -> tuple[SessionState, Catcher | None, Remains | None] | None:
        leaves = self.departures.of.get(client_id)
        if leaves is None or leaves.revision > revision:
            return None
        # First who catches from now on: its filters stay, so others need not be told.
        catcher = self.transit.catch(client_id, leaves.state, False)
        state, remains = self.departures.take(client_id)
        if catcher is not None:
            catcher.belongs_to(remains)
            self.transit.replace(catcher, leaves.catcher, leaves.since)
        return state, catcher, remains

    def _gone(self, client_id: str, leaves: Leaving) -> None:
        self.gone(client_id, leaves)

    def give(self, client_id: str, to: Node) -> None:
        """Have another node claim a client id of ours."""
        self.transit.say(to, GIVE, client_id, 0)

    # -- what nodes say ------------------------------------------------------------------------

    def told(self, node: Node, body: bytes) -> None:
        """A frame of another node."""
        what, name, number, *fields = unpacked(body)
        client_id, revision = name.decode(), number_of(number)
        left = self.arrivals.is_left
        waits = left(node.name) or left(self.name) or self.is_silent()
        if what in (WHOLE, MORE, TAIL) and waits:
            self._late.append((node, body))  # what the heir has of it counts
        elif what == WHOLE:
            if self.expects(client_id, revision) and not self._went_on(client_id, revision):
                self._asking.pop((node.name, client_id, revision), None)  # this was sent later
                self._state(node, client_id, revision, fields, self.claimed_of(client_id, revision))
            else:
                done = Deferred.fromCoroutine(self._asked_for(node, client_id, revision, fields))
                done.addErrback(lambda failure: self.log.failure("a session that comes", failure))
        elif what == MARK:
            known, origin, to = fields
            sending, for_us = known[8:], origin.decode() == self.name
            if for_us and not self.departures.is_for(client_id, node.name, revision):
                self.transit.tell_look(node.name, client_id, revision)
            self._asked.append((number_of(known), client_id, revision, origin.decode(),
                                to.decode(), sending))  # fmt: skip
            self._marked_by(node, client_id, revision, sending)
            self.seen()
        elif what == MARKED:
            self._marked_by(node, client_id, revision, b"".join(fields))
        elif what == LANE_MARKED:
            self._marked(client_id, revision, -node.number, b"".join(fields))
        elif what == GIVE:
            self.given(client_id, node.name)
        elif what == WANT:
            self.asked(client_id, node.name, revision)
        elif what == MORE:
            self.arrivals.more(node, client_id, revision, fields)
        elif what == TAIL:
            self.arrivals.tail(node, client_id, revision, fields)
        elif what == DONE:
            self.departures.done(client_id, revision)
        elif what == LOOK:
            self.departures.refused(client_id, node.name, revision)
            of = [each.decode() for each in fields]
            done = Deferred.fromCoroutine(self._looked(node, client_id, revision, of))
            done.addErrback(lambda failure: self.log.failure("a session that comes", failure))

    def _marked_by(self, node: Node, client_id: str, revision: int, sending: bytes) -> None:
        self._marked(client_id, revision, node.number, sending)
        if node.version < 2:
            self._marked(client_id, revision, -node.number, sending)  # it has one lane

    def _marked(self, client_id: str, revision: int, link: int, sending: bytes) -> None:
        self.departures.marked(client_id, revision, link, sending)
        self.arrivals.marked(client_id, revision, link, sending)

    async def _asked_for(
        self, node: Node, client_id: str, revision: int, fields: list[bytes]
    ) -> None:
        sent = (node.name, client_id, revision)
        if fields:
            self._asking[sent] = fields
        found = await self.whose(client_id)
        if fields and self._asking.get(sent) is not fields:
            return  # it was sent anew meanwhile, and etcd has answered that sooner, or will
        self._asking.pop(sent, None)
        if found is None:
            return  # it is kept there, and sent again
        before, node = node, self.mesh.nodes.get(node.name, node)  # it may be a member anew
        owner, of, since = found
        is_ours = (owner, since) == (self.name, revision)
        coming = self.arrivals.line(client_id)
        for_us = is_ours or any(each.renews(node.name, revision) for each in coming)
        if for_us and fields and node is not before:
            self.transit.say(node, WANT, client_id, revision)  # what follows that is gone
        elif for_us:
            self._state(node, client_id, revision, fields, of if is_ours else "")
        elif fields and (owner, of) == (self.name, "") and since > revision:
            self.transit.tell_look(node.name, client_id, revision)  # for that claim no more
        elif owner == node.name or self._asks(client_id, node.name):
            pass  # it is its own again, or for a claim that it has not heard of yet
        elif self._has(client_id, revision):
            self._refuse(node, client_id, revision, fields)
        elif fields:
            self.transit.tell_look(node.name, client_id, revision)

    async def _looked(self, node: Node, client_id: str, revision: int, of: list[str]) -> None:
        """What we have claimed in this revision is at that node by a later claim; or it would have
        come there `of` these."""
        comes = self.arrivals.find(client_id, revision)
        if comes is not None and comes.offer is not None and comes.offer[0] is node:
            comes.offer = None
        if comes is None or comes.whole or comes.origin != node.name:
            return
        asks, later = bool(of) or comes.offer is not None, comes.succeeds
        if asks:  # also if that node says that it has nothing before etcd has answered
            comes.asks.extend([node.name, *of])  # what leaves there may be ours by now
        found = await self.whose(client_id)
        if found is not None and not comes.is_by(self.name, found):
            self.arrivals.drop(client_id, comes, found)
        elif found is not None and comes.origin == node.name and (asks or comes.succeeds != later):
            self.arrivals.nothing(client_id, comes)  # nor is there of that

    def recall(self, client_id: str, revision: int) -> SessionState | None:
        """What was to leave here, and has not: nobody had it before it was claimed here now."""
        leaves = self.departures.of.get(client_id)
        if leaves is None or leaves.revision >= revision:
            return None
        return self.departures.recall(client_id)

    def _waits_for(self, client_id: str, origin: str) -> bool:
        """Whether it is awaited of this node."""
        line = self.arrivals.line(client_id)
        return any(each.origin == origin and not each.whole for each in line)

    def has_of(self, client_id: str, by: str) -> str:
        """This node, where it has not had yet what goes there from here: what we may have claimed
        of it since is this; else empty."""
        leaves = self.departures.of.get(client_id)
        return by if leaves is not None and leaves.to == by and not leaves.may_be_there else ""

    def _went_on(self, client_id: str, revision: int) -> bool:
        """Whether what had come for this claim has left for a later one."""
        leaves = self.departures.of.get(client_id)
        went = leaves is not None and leaves.revision > revision
        return went and self.arrivals.find(client_id, revision) is None

    def _has(self, client_id: str, revision: int) -> bool:
        """Whether it is here, or comes here, or goes from here, by a later claim than this."""
        leaves = self.departures.of.get(client_id)
        return (
            client_id in self.broker.sessions
            or (leaves is not None and leaves.revision > revision)
            or any(
                each.state is not None and each.by > revision
                for each in self.arrivals.line(client_id)
            )
        )

    def _asks(self, client_id: str, origin: str) -> bool:
        """Whether we have claimed it of this node, or may have, in another revision."""
        return self.tried(client_id, origin) or self._waits_for(client_id, origin)

    def _refuse(self, node: Node, client_id: str, revision: int, fields: list[bytes]) -> None:
        if fields:
            line = "a session of {client_id} that node {node} had kept is dropped: there is a newer"
            self.log.warn(line, client_id=client_id, node=node.name)
            self.transit.tell_done(node.name, client_id, revision)

    def _state(
        self, node: Node, client_id: str, revision: int, fields: list[bytes], of: str
    ) -> None:
        if client_id in self.broker.sessions and client_id not in self.arrivals.of:
            self._refuse(node, client_id, revision, fields)
        else:
            self.arrivals.state(node, client_id, revision, fields, of)

    def _is_early(self, client_id: str, comes: Coming) -> bool:
        """Whether etcd has told us less than up to its claim, or not that it is ours still.

        What its client has published where it was went by later tables than ours, and what it would
        publish here by ours: not to where others have gone meanwhile, or before what went there.
        And when our lease has ended who had it may have had it back, and have let its client in.
        """
        unsure = comes.waits is not None and comes.lease != self.lease()
        if comes.next is not None or not (unsure or comes.claimed > self.mesh.applied):
            return False
        self._early.append((client_id, comes))
        return True

    def seen(self) -> None:
        """More of what etcd says is in our tables: give the marks that have waited for it."""
        early, self._early = self._early, []
        for client_id, comes in early:
            self.arrivals.finish(client_id, comes)
        late, self._late = self._late, []
        for sender, body in late:
            if self.mesh.nodes.get(sender.name) is sender:
                self.told(sender, body)
        if not self._asked:
            return
        asked, self._asked = self._asked, []
        for each in asked:
            if each[0] > self.mesh.applied:
                self._asked.append(each)
                continue
            # What was under way to thousands, as these filters were not known, comes before.
            self.broker.fans.after_all(partial(self._give_mark, *each[1:]))

    def _give_mark(
        self, client_id: str, revision: int, origin: str, to: str, sending: bytes
    ) -> None:
        for name in (origin, to):
            node = self.mesh.nodes.get(name)
            if node is not None:
                self.transit.say(node, MARKED, client_id, revision, sending)
                self.transit.mark(node, client_id, revision, sending)
        if origin == self.name:
            self._marked(client_id, revision, 0, sending)
        self.broker.perform_later()

    # -- nodes come and go ---------------------------------------------------------------------

    def joined(self, node: Node) -> None:
        """A node is there."""
        self.transit.joined(node)
        self.arrivals.joined(node)
        self.departures.joined(node)

    def linked(self, node: Node) -> None:
        """There is a link to it, maybe again."""
        self.arrears.linked(node)
        if node.name in self._unmet:
            self._unmet.discard(node.name)
            self.arrivals.joined(node)  # what it had said to who we were before went with that

    def anew(self) -> None:
        """We are a member anew: to others we were gone, with what they had said to us.

        To us they were not, so nothing else asks them again; once more when they have heard of it.
        They ask for what leaves here: sent unasked it would be a second sending, with what was
        caught parted by the marks of the first.
        """
        self._unmet.update(self.mesh.nodes)
        for node in list(self.mesh.nodes.values()):
            self.arrivals.joined(node)

    def left(self, name: str) -> None:
        """A node is gone."""
        self.parted(name)
        wait = HEIR if self.arrivals.is_left(name) else BACK
        self.transit.is_gone(name, wait, self._look)
        self.arrivals.left(name)
        self.departures.left(name)

    def _look(self) -> None:
        self.arrivals.look()
        self.departures.look()
        self.broker.perform_later()

    def handed_out(self, name: str) -> None:
        """All that it had for this node is here, from its heir, which may send sessions on."""
        self.transit.is_over(name)
        self._look()

    def given_up(self, name: str) -> None:
        """It is not awaited any more."""
        self.transit.given_up(name)
        self.arrivals.left(name)
        self._look()
