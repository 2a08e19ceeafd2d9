"""Sessions on their way from one node to another: nothing is lost on it, and nothing comes twice.

    b has claimed what a has:

    a   its client is sent away; a `Catcher` in its place           --STATE record, queue--> b
    b   a `Catcher` with its filters; when all have these in their tables:  --MARK--> everybody
    x   knows b's filters: what it sends from now on reaches b too  --MARKED--> a, b
    a   has the marks of all: what came before them                 --TAIL--> b
    b   has TAIL and the marks of all, too: STATE, TAIL, what came behind the marks: the session

A mark goes the way of the messages, so it parts them: a has what x sent before it, b what x sent
behind it. Before x's mark has come to b, what x sent before it may be on its way there, too, and is
in TAIL already: b goes on when nothing of it can come any more. All of these are kept until they
are taken, as messages are: a link that breaks delays them. When a is gone before TAIL, b goes on
with what it has; when b is gone, a takes it back.

Promise: QoS 1 and 2 in the order of each publisher. A message to thousands, which is handed out in
many turns, is attributed to this node. MQTT 5.0, 4.1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from mqttd.broker.broker import Broker
from mqttd.broker.endings import Burial
from mqttd.broker.records import Record, queue_more, queue_of, subscribe_all
from mqttd.cluster.catcher import Catcher
from mqttd.cluster.etcd import EtcdError
from mqttd.cluster.nodes import Node, NodeMesh, Settling
from mqttd.mesh.frames import STATE, frame, number_of, packed, unpacked
from mqttd.session.session import Session
from mqttd.types import SessionState

__all__ = ["Moves"]

#: Seconds that the old node waits for the marks of nodes that are there, whatever keeps them: their
#: links or etcd may be away. The new one when it has the rest, and for the session to be entered.
MARKS: Final = 30.0
LATE: Final = 5.0
ENTERS: Final = 10.0

_STATE: Final = b"state"
_MARK: Final = b"mark"
_MARKED: Final = b"marked"
_TAIL: Final = b"tail"
_DONE: Final = b"done"
_GIVE: Final = b"give"


class _Leaving:
    """A session that another node has claimed."""

    def __init__(self, to: Node, revision: int, state: SessionState, catcher: Catcher) -> None:
        self.to = to
        self.revision = revision
        self.state = state
        self.catcher: Catcher | None = catcher
        self.sent = False
        self.tail: tuple[bytes, ...] = ()
        self.late: Any = None


class _Coming:
    """A session that this node has claimed."""

    def __init__(self, origin: str, revision: int) -> None:
        self.origin = origin
        self.revision = revision
        self.state: SessionState | None = None
        self.catcher: Catcher | None = None
        #: What others are to know before they give their marks: a revision of etcd.
        self.known = 0
        #: What the old node has caught is here; all of it is here that will ever be; and somebody
        #: was given it.
        self.has_tail = False
        self.whole = False
        self.taken = False
        #: Who has claimed it meanwhile, and when.
        self.next: tuple[str, int] | None = None
        self.waits: Deferred[SessionState | None] | None = None
        self.late: Any = None


class _Promised:
    """So many other nodes have to take what was sent to them; then `then` is called."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.then = then
        self.count = 0

    def taken(self) -> None:
        """One has."""
        self.count -= 1
        if not self.count:
            self.then()


def _cancel(each: _Leaving | _Coming) -> None:
    late, each.late = each.late, None
    if late is not None and late.active():
        late.cancel()


class Moves:
    """The sessions that come to this node and leave it.

    `settled` waits until other nodes know filters; `at` says the revision of etcd in which this
    node's own were written last; `unclaimed` is given what comes when nobody waits for it.
    """

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
        self.reactor = reactor
        self.name = name
        self.settled = settled
        self.at = at
        self.log = Logger(namespace="mqttd.cluster")
        self.unclaimed: Callable[[str, int, SessionState | None], object] = lambda *_: None
        #: Whether we have claimed a session that comes, as far as we know, and as etcd does.
        self.expects: Callable[[str, int], bool] = lambda *_: True
        self.is_ours: Callable[[str, int], Awaitable[bool]]
        #: Another node wants us to claim a client id of its own.
        self.given: Callable[[str], object] = lambda client_id: None
        self.leaving: dict[str, _Leaving] = {}
        self.coming: dict[str, _Coming] = {}
        #: Marks that are asked for by nodes whose filters are not in our tables yet.
        self._asked: list[tuple[int, str, int, str, str]] = []
        broker.registry.entered = self._entered

    # -- it leaves -----------------------------------------------------------------------------

    def hand(self, client_id: str, by: str, revision: int, state: SessionState | None) -> None:
        """Send a session, which has just ended here, to the node that has claimed it."""
        came = self.coming.get(client_id)
        if came is not None and not came.whole:
            came.next = (by, revision)
            return
        if came is not None:
            catcher, state = self._end(client_id, came), state or came.state
            if catcher is not None:
                if state is not None:
                    more = (*state.queue, *self._caught(catcher))
                    state = SessionState(state.record, more, state.epoch)
                self._bury(catcher)
        to = self.mesh.nodes.get(by)
        if to is None:
            if state is not None:
                line = "session of {client_id} is lost: node {node} has claimed it and is gone"
                self.log.error(line, client_id=client_id, node=by)
            return
        self._send_state(to, client_id, revision, state)

    def _send_state(
        self, to: Node, client_id: str, revision: int, state: SessionState | None
    ) -> None:
        if state is None:
            self._say(to, _STATE, client_id, revision)
            return
        catcher = self._catch(client_id, state, False)
        if catcher is None:
            self._say(to, _STATE, client_id, revision, state.record, *state.queue)
            return
        leaves = self.leaving[client_id] = _Leaving(to, revision, state, catcher)
        waits = _Promised(lambda: self._go(client_id, leaves))
        if Record(state.record).incoming:
            for node in self.mesh.nodes.values():
                waits.count += node.ferry.call(Settling([], waits.taken))
        if waits.count:
            leaves.late = self.reactor.callLater(MARKS, self._go, client_id, leaves)
        else:
            self._go(client_id, leaves)

    def _go(self, client_id: str, leaves: _Leaving) -> None:
        """All that its client has published here is where it is wanted."""
        state = leaves.state
        if self.leaving.get(client_id) is leaves and not leaves.sent:
            leaves.sent = True
            _cancel(leaves)
            self._say(leaves.to, _STATE, client_id, leaves.revision, state.record, *state.queue)

    def _marks(self, client_id: str, revision: int, link: int) -> None:
        """A mark has come on a link (0: all that we publish goes there from now on)."""
        leaves = self.leaving.get(client_id)
        if leaves is not None and leaves.revision == revision and leaves.catcher is not None:
            leaves.catcher.marked.add(link)
            if self._has_all(leaves.catcher):
                self._send_tail(client_id, leaves)
            elif leaves.late is None:
                leaves.late = self.reactor.callLater(MARKS, self._send_tail, client_id, leaves)
        comes = self.coming.get(client_id)
        if comes is not None and comes.revision == revision and comes.catcher is not None:
            comes.catcher.marked.add(link)
            self._complete(client_id, comes)

    def _has_all(self, catcher: Catcher) -> bool:
        marked = catcher.marked
        return 0 in marked and all(node.number in marked for node in self.mesh.nodes.values())

    def _send_tail(self, client_id: str, leaves: _Leaving) -> None:
        _cancel(leaves)
        catcher, leaves.catcher = leaves.catcher, None
        if catcher is not None and self.leaving.get(client_id) is leaves:
            leaves.tail = self._caught(catcher)
            self._bury(catcher)
            self._say(leaves.to, _TAIL, client_id, leaves.revision, *leaves.tail)

    def give(self, client_id: str, to: Node) -> None:
        """Have another node claim a client id of ours."""
        self._say(to, _GIVE, client_id, 0)

    # -- it comes ------------------------------------------------------------------------------

    def origin_of(self, client_id: str) -> str:
        """From where a session comes that we have claimed and that is not here yet; else empty."""
        comes = self.coming.get(client_id)
        return "" if comes is None or comes.taken else comes.origin

    def wanted(self, client_id: str, origin: str, revision: int) -> Deferred[SessionState | None]:
        """The state of a session that we have claimed, when all of it is here; None for none."""
        comes = self._comes(client_id, origin, revision)
        if comes.whole:
            return succeed(self._taken(client_id, comes))
        comes.waits = Deferred()
        return comes.waits

    def unwanted(self, client_id: str) -> None:
        """Nobody waits for it any more; it comes all the same."""
        comes = self.coming.get(client_id)
        if comes is not None:
            comes.waits = None

    def left_over(self, client_id: str) -> tuple[int, SessionState | None]:
        """What has come and nobody has taken: its revision, 0 for nothing, and its state."""
        comes = self.coming.get(client_id)
        if comes is None or not comes.whole or comes.taken:
            return 0, None
        return comes.revision, self._taken(client_id, comes)

    def _comes(self, client_id: str, origin: str, revision: int) -> _Coming:
        comes = self.coming.get(client_id)
        if comes is None or comes.revision < revision:
            if comes is not None and comes.catcher is not None:
                _cancel(comes)
                self._bury(comes.catcher)
            comes = self.coming[client_id] = _Coming(origin, revision)
        return comes

    async def _asked_for(
        self, node: Node, client_id: str, revision: int, fields: list[bytes]
    ) -> None:
        if await self.is_ours(client_id, revision):
            self._state(node, client_id, revision, fields)
        else:
            self._refuse(node, client_id, revision)

    def _refuse(self, node: Node, client_id: str, revision: int) -> None:
        line = "a session of {client_id} that node {node} had kept is dropped: there is a newer one"
        self.log.warn(line, client_id=client_id, node=node.name)
        self._say(node, _DONE, client_id, revision)

    def _state(self, node: Node, client_id: str, revision: int, fields: list[bytes]) -> None:
        if client_id in self.broker.sessions and client_id not in self.coming:
            self._refuse(node, client_id, revision)
            return
        comes = self._comes(client_id, node.name, revision)
        if comes.revision != revision:
            return
        if not fields:
            self._whole(client_id, comes)
            return
        comes.state = SessionState(fields[0], tuple(fields[1:]), revision)
        comes.catcher = self._catch(client_id, comes.state, True)
        if comes.catcher is None:
            self._whole(client_id, comes)
            return
        filters = list(comes.catcher.subscriptions or ())
        done = Deferred.fromCoroutine(self._meet(client_id, comes, filters))
        done.addErrback(lambda failure: self.log.failure("a session that comes", failure))

    async def _meet(self, client_id: str, comes: _Coming, filters: list[str]) -> None:
        await self.settled(filters)
        while any(self.mesh.lacks(each) for each in filters):
            await self.settled(filters)  # etcd has not answered
        if self.coming.get(client_id) is not comes or comes.whole or comes.catcher is None:
            return
        comes.known = self.at()
        for node in self.mesh.nodes.values():
            self._ask(node, client_id, comes)
        self._marks(client_id, comes.revision, 0)
        self.broker.perform_later()

    def _ask(self, node: Node, client_id: str, comes: _Coming) -> None:
        ends = [comes.known.to_bytes(8, "big"), comes.origin.encode(), self.name.encode()]
        self._say(node, _MARK, client_id, comes.revision, *ends)

    def _tail(self, client_id: str, revision: int, packets: list[bytes]) -> None:
        comes = self.coming.get(client_id)
        if comes is not None and comes.revision == revision and comes.state is not None:
            state = comes.state
            comes.state = SessionState(state.record, (*state.queue, *packets), revision)
            comes.has_tail = True
            self._complete(client_id, comes)

    def _complete(self, client_id: str, comes: _Coming) -> None:
        """Go on, if nothing can come any more that the old node has caught."""
        if not comes.has_tail or comes.whole or comes.catcher is None:
            return
        if self._has_all(comes.catcher):
            self._whole(client_id, comes)
        elif comes.late is None:
            comes.late = self.reactor.callLater(LATE, self._whole, client_id, comes)

    def _whole(self, client_id: str, comes: _Coming) -> None:
        comes.whole = True
        _cancel(comes)
        origin = self.mesh.nodes.get(comes.origin)
        if origin is not None and comes.state is not None:
            self._say(origin, _DONE, client_id, comes.revision)
        waits, comes.waits = comes.waits, None
        if comes.next is not None:
            self.hand(client_id, *comes.next, comes.state)
            if waits is not None:
                waits.errback(EtcdError(f"node {comes.next[0]!r} has claimed it after this one"))
        elif waits is not None:
            waits.callback(self._taken(client_id, comes))
        else:
            self.unclaimed(client_id, comes.revision, None)

    def _taken(self, client_id: str, comes: _Coming) -> SessionState | None:
        """Its state is about to be entered, as far as its client still wants it."""
        comes.taken = True
        if comes.catcher is None:
            self.coming.pop(client_id, None)
        elif comes.late is None:
            comes.late = self.reactor.callLater(ENTERS, self._not_entered, client_id, comes)
        return comes.state

    def _entered(self, session: Session, with_state: bool) -> None:
        """A session is here: what came for it meanwhile waits behind what came with it."""
        comes = self.coming.get(session.client_id)
        if comes is None or not comes.taken:
            return
        catcher = self._end(session.client_id, comes)
        if catcher is not None:
            if with_state:
                queue_more(self.broker, session, self._caught(catcher), 0)
            self._bury(catcher)

    def _not_entered(self, client_id: str, comes: _Coming) -> None:
        """Nobody has entered it."""
        if self.coming.get(client_id) is comes:
            catcher = self._end(client_id, comes)
            if catcher is not None:
                self._bury(catcher)

    def _end(self, client_id: str, comes: _Coming) -> Catcher | None:
        del self.coming[client_id]
        _cancel(comes)
        return comes.catcher

    # -- what nodes say ------------------------------------------------------------------------

    def told(self, node: Node, body: bytes) -> None:
        """A frame of another node."""
        what, name, number, *fields = unpacked(body)
        client_id, revision = name.decode(), number_of(number)
        if what == _STATE:
            if self.expects(client_id, revision):
                self._state(node, client_id, revision, fields)
            else:
                done = Deferred.fromCoroutine(self._asked_for(node, client_id, revision, fields))
                done.addErrback(lambda failure: self.log.failure("a session that comes", failure))
        elif what == _MARK:
            known, origin, to = fields
            self._asked.append((number_of(known), client_id, revision, origin.decode(),
                                to.decode()))  # fmt: skip
            self._marks(client_id, revision, node.number)
            self.seen()
        elif what == _MARKED:
            self._marks(client_id, revision, node.number)
        elif what == _GIVE:
            self.given(client_id)
        elif what == _TAIL:
            self._tail(client_id, revision, fields)
        elif what == _DONE:
            leaves = self.leaving.get(client_id)
            if leaves is not None and leaves.revision == revision:
                self._forget(client_id, leaves)

    def seen(self) -> None:
        """More of what etcd says is in our tables: give the marks that have waited for it."""
        if not self._asked:
            return
        asked, self._asked = self._asked, []
        for each in asked:
            known, client_id, revision, origin, to = each
            if known > self.mesh.applied:
                self._asked.append(each)
                continue
            for name in (origin, to):
                node = self.mesh.nodes.get(name)
                if node is not None:
                    self._say(node, _MARKED, client_id, revision)
            if origin == self.name:
                self._marks(client_id, revision, 0)
        self.broker.perform_later()

    def joined(self, node: Node) -> None:
        """A node is there: its mark is wanted, too."""
        for client_id, comes in self.coming.items():
            if comes.known and not comes.whole:
                self._ask(node, client_id, comes)

    def left(self, name: str) -> None:
        """A node is gone, with what it had not sent; what it had not taken stays here."""
        for client_id, comes in list(self.coming.items()):
            if comes.origin == name and not comes.whole:
                self._whole(client_id, comes)
            else:
                self._complete(client_id, comes)
        for client_id, leaves in list(self.leaving.items()):
            if leaves.to.name == name:
                tail = leaves.tail if leaves.catcher is None else self._caught(leaves.catcher)
                self._forget(client_id, leaves)
                state = leaves.state
                back = SessionState(state.record, (*state.queue, *tail), state.epoch)
                self.unclaimed(client_id, 0, back)
            elif leaves.catcher is not None:
                self._marks(client_id, leaves.revision, 0 if 0 in leaves.catcher.marked else -1)

    # -- the parts -----------------------------------------------------------------------------

    def _say(self, to: Node, what: bytes, client_id: str, revision: int, *fields: bytes) -> None:
        start = [what, client_id.encode(), revision.to_bytes(8, "big")]
        to.ferry.keep(frame(STATE, packed([*start, *fields])))

    def _catch(self, client_id: str, state: SessionState, behind: bool) -> Catcher | None:
        try:
            record = Record(state.record)
        except ValueError:
            return None  # the registry says so
        catcher = Catcher(self.broker, client_id, record.username, self.mesh.choice, behind)
        subscribe_all(self.broker, catcher, record)
        return catcher

    def _caught(self, catcher: Catcher) -> tuple[bytes, ...]:
        return tuple(queue_of(self.broker, catcher))

    def _forget(self, client_id: str, leaves: _Leaving) -> None:
        del self.leaving[client_id]
        _cancel(leaves)
        if leaves.catcher is not None:
            self._bury(leaves.catcher)

    def _bury(self, catcher: Catcher) -> None:
        """Take its filters out of the router, if they are many bit by bit."""
        catcher.ended = True
        burial = Burial(self.broker, catcher)
        if burial.slice():
            self.broker.turns.add(burial)
        catcher.forget()
