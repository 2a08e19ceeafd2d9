"""Sessions that have ended here because another node has claimed them, until that node has them.

    claimed by b --> STATE --> b; a `Catcher` keeps what comes before the marks
                 --> a mark: b has STATE --> MORE of the queue, as the link has room
                 --> marks of all nodes, which have what was kept for a link that was cut
                 --> TAIL --> b: DONE --> forgotten
                     another one keeps what comes behind the marks, which is b's, for a b that is
                     killed before DONE
    claimed again meanwhile --> all of it goes to who has claimed it last
    b is gone, or says that it is not for it
                 --> the catcher goes on; who it is for is asked of etcd (`Owners.bring_back`)

Promise: what leaves is here, and in the store if it was, until somebody else says that he has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from twisted.logger import Logger

from mqttd.broker.sessions.records import Record
from mqttd.cluster.links.nodes import Node, Settling
from mqttd.cluster.sessions.arrears import Arrears
from mqttd.cluster.sessions.catcher import Catcher
from mqttd.cluster.sessions.packets import joined, read
from mqttd.cluster.sessions.parts import ONE_FRAME, PARTS, Rest, part_of
from mqttd.cluster.sessions.remains import Remains
from mqttd.cluster.sessions.transit import MARKS, MORE, TAIL, WHOLE, Transit, cancel, with_sending
from mqttd.session.session import Session
from mqttd.types import SessionState

__all__ = ["Departures", "Leaving"]


class Leaving:
    """A session that the node `to` has claimed in `revision`."""

    def __init__(
        self, to: str, revision: int, state: SessionState, remains: Remains | None
    ) -> None:
        self.to = to
        self.revision = revision
        self.state = state
        #: What the store, or the node that it has come from, keeps of it meanwhile, if it does.
        self.remains = remains
        #: Who keeps what comes before the marks, until TAIL; and what is behind them.
        self.catcher: Catcher | None = None
        self.since: Catcher | None = None
        self.sent = False
        #: What tells this sending of it from others, and the marks of this one.
        self.sending = b""
        #: What of its queue is still to be sent; and whether TAIL waits for that.
        self.rest: Rest | None = None
        self.ends = False
        #: All of it was sent; and once it was, to a node that is gone since, or had it before: that
        #: may have let the client in, and have more than we have.
        self.whole = False
        self.doubt = False
        #: That node has said that it is not for it, and that it has nothing of it.
        self.refused = False
        self.late: Any = None

    @property
    def may_be_there(self) -> bool:
        """Whether that node may have all of it, and more by now."""
        return (self.doubt or self.whole) and not self.refused


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


class Departures:
    """Those of one node; `gone(client_id, leaving)` is told of one whose taker is not there."""

    def __init__(
        self, transit: Transit, gone: Callable[[str, Leaving], object], arrears: Arrears
    ) -> None:
        self.transit = transit
        self.gone = gone
        self.arrears = arrears
        self.log = Logger(namespace="mqttd.cluster")
        self.of: dict[str, Leaving] = {}

    def begin(
        self,
        client_id: str,
        by: str,
        revision: int,
        state: SessionState | None,
        remains: Remains | None = None,
        gone: Sequence[Session | None] = (),
        doubt: bool = False,
    ) -> None:
        """This node has claimed a session: all that there is of it goes there.

        gone: whom something may be under way to that is part of it. doubt: see `Leaving`.
        """
        transit = self.transit
        to = transit.mesh.nodes.get(by)
        leaves = self.of.get(client_id)
        if state is None and leaves is not None and leaves.revision <= revision:
            # What was to come here for it is nothing, and what was here goes there; who asks may
            # have lost sight of it, or is a later one than who that was for.
            gone, doubt = [*gone, leaves.catcher, leaves.since], leaves.doubt
            state, remains = self.take(client_id, by, revision)
        elif leaves is not None and leaves.revision > revision:
            # It has been here since, and what there is of it is on its way already.
            if remains is not None:
                remains.end()
            state = None
        elif leaves is not None:
            self.drop(client_id)
        if state is None:
            if to is not None:
                transit.say(to, WHOLE, client_id, revision)
            return
        leaves = self.of[client_id] = Leaving(by, revision, state, remains)
        leaves.doubt = doubt
        if remains is not None:
            remains.leaves_for(transit.left, client_id, by, revision)
        self._catch(client_id, leaves)
        transit.replace(leaves.catcher, *gone)
        if to is None:
            leaves.doubt = True
            self.gone(client_id, leaves)
        else:
            self._send(client_id, leaves)

    def take(
        self, client_id: str, to: str = "", revision: int = 0
    ) -> tuple[SessionState, Remains | None]:
        """All that there is of a session that has not gone yet; it leaves no more.

        to, revision: who is sent it next, as claimed by then. Another one that waits for it looks.
        """
        leaves = self._end(client_id)
        if (leaves.to, leaves.revision) != (to, revision):
            self.transit.tell_look(leaves.to, client_id, leaves.revision)
        return self._all_of(leaves), leaves.remains

    def recall(self, client_id: str) -> SessionState:
        """As `take`; the store need not keep it as one that has left."""
        state, remains = self.take(client_id)
        whole = read(state)
        if remains is not None:
            remains.end()
        return whole

    def _end(self, client_id: str) -> Leaving:
        leaves = self.of.pop(client_id)
        cancel(leaves.late)
        return leaves

    def drop(self, client_id: str) -> None:
        """It leaves no more, since there is a newer one: who waits for it looks."""
        leaves = self.of[client_id]
        self.transit.tell_look(leaves.to, client_id, leaves.revision)
        self.forget(client_id)

    def forget(self, client_id: str) -> None:
        """It leaves no more, and nobody needs it."""
        leaves = self._end(client_id)
        for catcher in (leaves.catcher, leaves.since):
            if catcher is not None:
                self.transit.bury(catcher)
        if leaves.remains is not None:
            leaves.remains.end()

    def _catch(self, client_id: str, leaves: Leaving) -> None:
        """Keep what comes from now on, parted by the marks that will come."""
        before = self.transit.catch(client_id, leaves.state, False)
        # Not as a member of groups: what they give behind the marks is for the new node.
        behind = self.transit.catch(client_id, leaves.state, True, groups=False)
        for catcher in (before, behind):
            if catcher is not None:
                catcher.belongs_to(leaves.remains)
        if before is not None and behind is not None:
            behind.marks = before.marks
        leaves.catcher, leaves.since = before, behind

    def _all_of(self, leaves: Leaving) -> SessionState:
        """What there is of it by now; nobody catches any more."""
        state = self.transit.with_caught(leaves.state, leaves.catcher)
        return self.transit.with_caught(state, leaves.since)

    def done(self, client_id: str, revision: int) -> None:
        """It is where it belongs."""
        leaves = self.of.get(client_id)
        if leaves is not None and leaves.revision == revision:
            self.forget(client_id)

    def refused(self, client_id: str, by: str, revision: int) -> None:
        """It is not for who was sent it: by etcd somebody else has claimed it, or nobody."""
        leaves = self.of.get(client_id)
        if leaves is not None and self.is_for(client_id, by, revision):
            leaves.refused = True
            self.gone(client_id, leaves)

    def is_for(self, client_id: str, by: str, revision: int) -> bool:
        """Whether it goes to this node, for what that has claimed in this revision."""
        leaves = self.of.get(client_id)
        return leaves is not None and (leaves.to, leaves.revision) == (by, revision)

    # -- it goes -------------------------------------------------------------------------------

    def _send(self, client_id: str, leaves: Leaving) -> None:
        transit = self.transit
        waits = _Promised(lambda: self._go(client_id, leaves))
        leaves.sent = leaves.ends = False
        leaves.rest = None
        if leaves.catcher is not None and Record(leaves.state.record).incoming:
            for node in transit.mesh.nodes.values():
                for ferry in (node.ferry, node.once):
                    waits.count += ferry.call(Settling([], waits.taken))
        if waits.count:
            leaves.late = transit.reactor.callLater(MARKS, self._go, client_id, leaves)
        else:
            self._go(client_id, leaves)

    def _go(self, client_id: str, leaves: Leaving) -> None:
        """All that its client has published here is where it is wanted."""
        to = self.transit.mesh.nodes.get(leaves.to)
        if self.of.get(client_id) is not leaves or leaves.sent or to is None:
            return
        if not self._has_place(leaves, lambda: self._go(client_id, leaves)):
            return
        leaves.sent = True
        cancel(leaves.late)
        leaves.late = None
        record, queue = leaves.state.record, leaves.state.queue
        if leaves.since is not None:
            leaves.sending = os.urandom(8)
            record = with_sending(record, leaves.sending)
        first, at = part_of(queue, 0)
        if to.version < PARTS:
            first, at = list(filter(None, queue)), len(queue)
        if to.version < PARTS and sum(map(len, first)) > ONE_FRAME:
            line = "the session of {client_id} stays here: it is more than node {node} takes"
            self.log.error(line, client_id=client_id, node=leaves.to)
            return
        if at < len(queue):
            leaves.rest = Rest(
                queue,
                at,
                lambda rest, part: self._more(client_id, leaves, rest, part),
                lambda: self._all_sent(client_id, leaves),
                lambda rest: self._has_place(leaves, lambda: self.transit.broker.turns.add(rest)),
            )
        self.transit.say(to, WHOLE, client_id, leaves.revision, record, *first)
        if leaves.since is None:
            self.forget(client_id)  # nobody can read it

    def _has_place(self, leaves: Leaving, again: Callable[[], object]) -> bool:
        """Whether the link has place for a part; if not, `again` is called when it may have.

        Many that go together would fill it for good, and who publishes waits until it is not full.
        """
        to = self.transit.mesh.nodes.get(leaves.to)
        link = None if to is None else to.link
        if link is None or link.has_place():
            return True
        link.line_up(again)
        return False

    def _more(self, client_id: str, leaves: Leaving, rest: Rest, part: Sequence[bytes]) -> bool:
        """More of the queue, if it is still wanted where it goes."""
        to = self.transit.mesh.nodes.get(leaves.to)
        if self.of.get(client_id) is not leaves or leaves.rest is not rest or to is None:
            return False
        self.transit.say(to, MORE, client_id, leaves.revision, leaves.sending, *part)
        return True

    def _all_sent(self, client_id: str, leaves: Leaving) -> None:
        leaves.rest = None
        if leaves.ends:
            self._tail(client_id, leaves)

    def marked(self, client_id: str, revision: int, link: int, sending: bytes = b"") -> None:
        """A mark has come on a link (0: all that we publish goes there from now on)."""
        leaves = self.of.get(client_id)
        if leaves is None or leaves.revision != revision or leaves.catcher is None or leaves.whole:
            return
        if sending not in (b"", leaves.sending):
            return
        rest = leaves.rest
        if rest is not None and not rest.begun:
            rest.begun = True  # marks are given when the new node has STATE
            self.transit.broker.turns.add(rest)
        leaves.catcher.marks.add(link, lambda: self._look(client_id, leaves))

    def _look(self, client_id: str, leaves: Leaving) -> None:
        catcher = leaves.catcher
        if catcher is None or leaves.whole or not leaves.sent:
            return
        if self.of.get(client_id) is not leaves:
            return  # the mark has waited for what was under way, and it did not
        # Else its client goes on at its new node, and is heard before what it has published here.
        if self.transit.has_all(catcher) and not self.arrears.any():
            self._tail(client_id, leaves)
        elif leaves.late is None:
            call = self.transit.reactor.callLater
            leaves.late = call(MARKS, self._tail, client_id, leaves)

    def look(self) -> None:
        """There may be nothing more to wait for."""
        for client_id, leaves in list(self.of.items()):
            if leaves.catcher is not None and leaves.catcher.marks.settled:
                self._look(client_id, leaves)

    def _tail(self, client_id: str, leaves: Leaving) -> None:
        cancel(leaves.late)
        leaves.late = None
        catcher, to = leaves.catcher, self.transit.mesh.nodes.get(leaves.to)
        if self.of.get(client_id) is not leaves or catcher is None or to is None:
            return
        if leaves.rest is not None:
            leaves.ends = True
            return
        state = leaves.state
        tail = self.transit.caught(catcher)
        leaves.state = SessionState(state.record, joined(state.queue, tail), state.epoch)
        leaves.catcher = None
        if leaves.since is not None:
            leaves.since.keeps_all()
        leaves.whole = True
        self.transit.bury(catcher)
        last: Sequence[bytes] = tail
        while to.version >= PARTS and (found := part_of(last, 0))[1] < len(last):
            self.transit.say(to, MORE, client_id, leaves.revision, leaves.sending, *found[0])
            last = last[found[1] :]
        self.transit.say(to, TAIL, client_id, leaves.revision, *last)

    # -- nodes come and go ---------------------------------------------------------------------

    def joined(self, node: Node) -> None:
        """A node is there, maybe again: it has what is for it, or is sent it."""
        for client_id, leaves in list(self.of.items()):
            if leaves.to == node.name:
                self._send(client_id, leaves)

    def left(self, name: str) -> None:
        """A node is gone, with what it had not said; and so are the marks that it owed."""
        for client_id, leaves in list(self.of.items()):
            if leaves.to != name:
                if leaves.catcher is not None and leaves.catcher.marks.settled:
                    self._look(client_id, leaves)
                continue
            cancel(leaves.late)
            leaves.late = None
            # First who catches from now on: its filters stay, so others need not be told.
            caught = leaves.catcher, leaves.since
            self._catch(client_id, leaves)
            for catcher in caught:
                leaves.state = self.transit.with_caught(leaves.state, catcher)
            self.transit.replace(leaves.catcher, *caught)
            leaves.doubt = leaves.doubt or leaves.whole
            leaves.sent = leaves.whole = leaves.ends = False
            leaves.rest = None
            self.gone(client_id, leaves)
