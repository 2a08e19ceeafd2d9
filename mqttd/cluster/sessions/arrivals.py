"""Sessions that this node has claimed and another has, until they are here.

    claimed --> STATE --> a `Catcher` with its filters; when all nodes have these: MARK to everybody
            --> MORE of its queue, in its order
            --> TAIL and the marks of all --> whole --> taken --> entered: what was caught follows
                                          entered, and kept by our store --> DONE
    claimed by others meanwhile --> it goes on to them, in the order of their revisions
    its node is gone --> it waits while that node is awaited, and begins anew with what that has
                     --> else it goes on with what has come
    its node has nothing --> who had it before that node is asked: it may not have come there
                         --> then all are: who was killed since does not know whom it had asked
    another node sends it --> that may be back with an older copy: it counts if these have nothing

Promise: what has come is given to who waits for it, kept, or sent on; never dropped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from mqttd.broker.sessions.records import queue_more
from mqttd.cluster.etcd.client import EtcdError
from mqttd.cluster.links.nodes import Node
from mqttd.cluster.sessions.catcher import Catcher
from mqttd.cluster.sessions.coming import Coming
from mqttd.cluster.sessions.expected import Expected
from mqttd.cluster.sessions.packets import read
from mqttd.cluster.sessions.remains import Remains
from mqttd.cluster.sessions.transit import (
    DONE,
    LOOK,
    MARK,
    MARKS,
    WANT,
    Transit,
    cancel,
    sending_of,
)
from mqttd.session.session import Session
from mqttd.types import SessionState

__all__ = ["Arrivals"]

#: Seconds for a session to be entered that somebody was given.
ENTERS: Final = 10.0


class Arrivals(Expected):
    """Those of the node `name`.

    `settled` waits until other nodes know filters; `at` says the revision of etcd in which this
    node's own were written last.
    """

    def __init__(
        self,
        transit: Transit,
        name: str,
        settled: Callable[[list[str]], Awaitable[None]],
        at: Callable[[], int],
    ) -> None:
        super().__init__()
        self.transit = transit
        self.name = name
        self.settled = settled
        self.at = at
        self.log = Logger(namespace="mqttd.cluster")
        #: Set by who makes this: goes on to another node, and what to do when it is there; nobody
        #: waits for it; it is finished when our tables are those of its claim; one that is here is
        #: another's by now; by which lease a node's sessions wait for it, and it is there itself.
        self.goes: Callable[
            [str, tuple[str, int], SessionState | None, Remains, Catcher | None], object
        ]
        self.unclaimed: Callable[[str], object] = lambda client_id: None
        self.is_early: Callable[[str, Coming], bool] = lambda *_: False
        self.overtaken: Callable[[str, str, int], object] = lambda *_: None
        self.home_of: Callable[[str], int] = lambda name: -1
        self.brief_of: Callable[[str], int] = lambda name: 0
        #: Who had one before the node of which we may have claimed it last.
        self.before: Callable[[str, str], str] = lambda *_: ""
        #: Whether somebody takes over what a node has left, or is about to.
        self.is_left: Callable[[str], bool] = lambda name: False
        #: What was to leave this node, for who had claimed it before this revision, and has not;
        #: with who catches what comes for it from now on, and what the store keeps of both.
        self.back: Callable[[str, int], tuple[SessionState, Catcher | None, Remains | None] | None]

    # -- who waits -----------------------------------------------------------------------------

    def suppose(
        self, client_id: str, origin: str, since: int, revision: int, before: str = ""
    ) -> None:
        """One was claimed of this node in a revision that etcd has not told, this at the latest.

        So it is asked by this one: that there is nothing is for that node to say. What was claimed
        before, and may have come another way, says nothing of it.
        """
        if not any(since < each.by <= revision for each in self.line(client_id)):
            comes = self.expect(client_id, origin, revision, True)
            comes.before = before
            node = self.transit.mesh.nodes.get(origin)
            if node is not None:
                self.transit.say(node, WANT, client_id, revision)
            elif not self.is_left(origin) and self.home_of(origin) < 0:
                self.nothing(client_id, comes)

    def wanted(self, client_id: str, revision: int) -> Deferred[SessionState | None]:
        """The state of a session that is expected, when all of it is here; None for none."""
        comes = self.find(client_id, revision)
        assert comes is not None
        if comes.whole:
            return succeed(self.given(client_id, comes))
        comes.waits = Deferred()
        return comes.waits

    def unwanted(self, client_id: str, revision: int) -> None:
        """Nobody waits for it any more; it comes all the same."""
        comes = self.find(client_id, revision)
        if comes is not None:
            comes.waits = None

    def passed(self, client_id: str, by: str, revision: int) -> bool:
        """A node has claimed it in this revision, after us: it goes on when it is here.

        False where nothing comes that was claimed before.
        """
        comes = self.of.get(client_id)
        while comes is not None and comes.by >= revision:
            comes = comes.older
        if comes is None:
            return False
        before, after = sorted([comes.next or (by, revision), (by, revision)], key=lambda to: to[1])
        comes.next = after
        if before != after:
            self.transit.tell_look(before[0], client_id, before[1])  # nothing goes there
        if comes.whole and not comes.taken:
            self.goes_on(client_id, comes)
        return True

    def goes_on(self, client_id: str, comes: Coming) -> None:
        """It goes to who has claimed it after us."""
        assert comes.next is not None
        self._unlink(client_id, comes)
        comes.unmake()
        catcher = comes.catcher
        state = None if comes.state is None else self.transit.with_caught(comes.state, catcher)
        if state is not None:
            self._outlived(client_id, comes.older)
        waits, comes.waits = comes.waits, None
        # Until it is there, who had it has: a node that is killed knows nothing of it.
        kept = comes.remains or Remains(lambda numbers: self._done(client_id, comes))
        self.goes(client_id, comes.next, state, kept, catcher)
        if waits is not None:
            waits.errback(EtcdError(f"node {comes.next[0]!r} has claimed it after this one"))

    # -- it comes ------------------------------------------------------------------------------

    def state(
        self, node: Node, client_id: str, revision: int, fields: list[bytes], of: str = ""
    ) -> None:
        """What was sent of it first; nothing where there is nothing. `of`: of whom we have claimed
        it; empty: that is not known."""
        comes = self.find(client_id, revision)
        if comes is None:
            asked = self.transit.mesh.nodes.get(of)
            if asked is not None and asked is not node:
                self.transit.say(asked, WANT, client_id, revision)  # we, or it, may be here anew
            comes = self.expect(client_id, of or node.name, revision, True)  # as far as is known
            comes.before = self.before(client_id, comes.origin)
        if comes.is_nothing and fields:
            comes.whole, comes.origin = False, node.name  # it had not come to who has said so
        new = comes.state is None or comes.again
        known = node.name in (comes.origin, comes.owner)
        if comes.whole or not (new or (fields and known)):
            if fields and not known:
                self.transit.say(node, DONE, client_id, revision)  # what is here is newer
            return
        if not fields and node.name == comes.origin:  # else it has said so before
            self.nothing(client_id, comes)
        elif fields and not known and self._may_send(comes):
            comes.offer = node, revision, fields
        elif fields:
            self._take(node, client_id, comes, revision, fields)

    def _may_send(self, comes: Coming) -> bool:
        """Whether who has it is to say what it has, and nobody in its place.

        What another has, that is back, may be older: it had not heard that it went on from there.
        """
        is_there = comes.origin in self.transit.mesh.nodes or self._awaits(comes, comes.origin)
        return is_there and not self.is_left(comes.origin)

    def decline(self, client_id: str, comes: Coming, why: bytes = DONE) -> None:
        """What another has offered is not wanted."""
        offer, comes.offer = comes.offer, None
        if offer is not None:
            self.transit.say(offer[0], why, client_id, offer[1])

    def _take(
        self, node: Node, client_id: str, comes: Coming, revision: int, fields: list[bytes]
    ) -> None:
        """This is what there is of it."""
        self.decline(client_id, comes)
        new = comes.state is None or comes.again
        before = self.transit.mesh.nodes.get(comes.origin)
        if not new and before is not None and before is not node:
            self.transit.say(before, DONE, client_id, revision)  # it has begun anew, and is older
        comes.origin = node.name  # who had it may have died before it came to him
        comes.revision = revision
        # Sent again it is in place of what was sent before, with what was caught since.
        state = SessionState(fields[0], tuple(fields[1:]), revision)
        catcher = self.transit.catch(client_id, state, True)
        self._begin(comes, state, catcher)
        comes.make(self.transit.broker, client_id)
        if catcher is None:
            self.finish(client_id, comes)
            return
        done = Deferred.fromCoroutine(self._meet(client_id, comes, catcher))
        done.addErrback(lambda failure: self.log.failure("a session that comes", failure))

    def _begin(self, comes: Coming, state: SessionState, catcher: Catcher | None) -> None:
        """This is what there is of it; of what had come before, its node had all."""
        if comes.catcher is not None:
            self.transit.bury(comes.catcher)
        cancel(comes.late)
        comes.late = None
        comes.state, comes.more, comes.catcher = state, [], catcher
        comes.unmake()
        comes.again, comes.known, comes.has_tail = False, -1, False
        comes.sending = sending_of(state.record)

    def inherited(
        self, client_id: str, revision: int, state: SessionState, catcher: Catcher
    ) -> None:
        """Its node is gone, and has left this where others find it; who catches what follows."""
        comes = self.find(client_id, revision)
        if comes is None or comes.whole or (comes.state is not None and not comes.again):
            self.transit.bury(catcher)
            return
        self.decline(client_id, comes)
        self._begin(comes, state, catcher)
        self.finish(client_id, comes)

    def nothing(self, client_id: str, comes: Coming) -> None:
        """Its node has nothing of it."""
        if comes.state is not None:
            self.decline(client_id, comes)
            self.finish(client_id, comes)  # any more
            return
        before = comes.asked_next(self.name)
        node = self.transit.mesh.nodes.get(before)
        if node is not None:
            self.transit.say(node, WANT, client_id, comes.revision)
        if node is not None or (before not in ("", self.name) and self._awaits(comes, before)):
            comes.origin = before
            return
        if comes.offer is not None:
            offer, comes.offer = comes.offer, None
            self._take(offer[0], client_id, comes, *offer[1:])
            return
        found = self.back(client_id, comes.revision)  # it may be on its way from here
        if found is not None:
            comes.state, comes.catcher, comes.remains = found
            comes.was_here = True
        elif comes.older is not None and not comes.older.taken:
            self._succeeds(client_id, comes, comes.older)
            return
        elif comes.asks_all(self.transit.mesh.nodes):
            self.nothing(client_id, comes)
            return
        self.finish(client_id, comes)

    def _succeeds(self, client_id: str, comes: Coming, older: Coming) -> None:
        """What was claimed before this one, and is still awaited, is all that there may be."""
        self._unlink(client_id, comes)
        if older.next is not None and older.next != comes.next:
            self.transit.tell_look(older.next[0], client_id, older.next[1])  # nothing goes there
        older.is_for(comes)
        if older.whole:
            self._over(client_id, older)

    def drop(self, client_id: str, comes: Coming, found: tuple[str, str, int]) -> None:
        """It is not ours by etcd, and who had it sends it to who has it by now, as was `found`."""
        if comes.taken or all(each is not comes for each in self.line(client_id)):
            return
        if comes.was_here:  # nobody else has it: who it was for has us look for who is to
            comes.next = comes.next or (comes.origin, comes.revision)
            self.goes_on(client_id, comes)
            return
        if found[1] == self.name:  # of us, and we have not heard so
            comes.next = comes.next or (found[0], found[2])
        self._forget(client_id, comes)
        waits, comes.waits = comes.waits, None
        if waits is not None:
            waits.errback(EtcdError("another node has claimed it after this one"))
        left = self.of.get(client_id)
        if left is not None and left.state is not None and left.whole and not left.taken:
            self.unclaimed(client_id)  # it has waited for what comes of a later claim

    def _forget(self, client_id: str, comes: Coming) -> None:
        self._unlink(client_id, comes)
        of = [comes.origin, *([] if comes.offer is None else [comes.offer[0].name]), *comes.asks]
        self.decline(client_id, comes, LOOK)
        comes.unmake()
        if comes.catcher is not None:
            self.transit.bury(comes.catcher)
        if comes.next is not None:
            self.transit.tell_look(comes.next[0], client_id, comes.next[1], *dict.fromkeys(of))
        elif client_id in self.of:
            self.of[client_id].asks.extend(of)  # it is for a later one of ours

    def brought_back(self, client_id: str, revision: int) -> None:
        """The node that it was claimed of is gone, and had not had all of it from here."""
        comes = self.find(client_id, revision)
        if comes is not None and not comes.whole and comes.state is None:
            comes.before, comes.asks = "", []
            self.nothing(client_id, comes)

    async def _meet(self, client_id: str, comes: Coming, catcher: Catcher) -> None:
        mesh = self.transit.mesh
        filters = list(catcher.subscriptions or ())
        await self.settled(filters)
        while any(mesh.lacks(each) for each in filters):
            await self.settled(filters)  # etcd has not answered
        # What was under way to thousands, and was not for these filters, comes before our mark.
        past: Deferred[None] = Deferred()
        self.transit.broker.fans.after_all(lambda: past.callback(None))
        await past
        if not self._is_coming(client_id, comes) or comes.catcher is not catcher:
            return
        origin = mesh.nodes.get(comes.origin)  # who does not know it yet has no mark for it
        comes.known = max(self.at(), 0 if origin is None else origin.epoch)
        for node in mesh.nodes.values():
            self._ask(node, client_id, comes)
        self.marked(client_id, comes.revision, 0, comes.sending)
        self.transit.broker.perform_later()

    def _ask(self, node: Node, client_id: str, comes: Coming) -> None:
        known = comes.known.to_bytes(8, "big") + comes.sending
        ends = [known, comes.origin.encode(), self.name.encode()]
        self.transit.say(node, MARK, client_id, comes.revision, *ends)
        self.transit.mark(node, client_id, comes.revision, comes.sending)

    def marked(self, client_id: str, revision: int, link: int, sending: bytes = b"") -> None:
        """A mark has come on a link (0: all that we publish goes there from now on)."""
        comes = self.find(client_id, revision)
        if comes is None or comes.catcher is None or sending not in (b"", comes.sending):
            return
        comes.catcher.marks.add(link, lambda: self._complete(client_id, comes))

    def more(self, node: Node, client_id: str, revision: int, fields: list[bytes]) -> None:
        """More of the queue, of the sending that is named first."""
        comes = self.find(client_id, revision)
        if comes is None or comes.state is None or node.name != comes.origin:
            return
        if not comes.has_tail and not comes.whole and fields[0] == comes.sending:
            comes.more.extend(fields[1:])
            comes.take(fields[1:])

    def tail(self, node: Node, client_id: str, revision: int, packets: list[bytes]) -> None:
        """What the old node has caught."""
        comes = self.find(client_id, revision)
        if comes is None or comes.state is None or node.name != comes.origin:
            return
        if not comes.has_tail:
            comes.more.extend(packets)
            comes.take(packets)
            comes.has_tail = True
            self._complete(client_id, comes)

    def _complete(self, client_id: str, comes: Coming) -> None:
        """Go on, if nothing can come any more that the old node has caught."""
        if not comes.has_tail or comes.catcher is None or not self._is_coming(client_id, comes):
            return
        if self.transit.has_all(comes.catcher):
            self.finish(client_id, comes)
        elif comes.late is None:
            comes.late = self.transit.reactor.callLater(MARKS, self.finish, client_id, comes)

    def look(self) -> None:
        """There may be nothing more to wait for."""
        for client_id, comes in self._all():
            self._complete(client_id, comes)

    def finish(self, client_id: str, comes: Coming) -> None:
        """All of it is here that will ever be."""
        if not self._is_coming(client_id, comes) or self.is_early(client_id, comes):
            return
        comes.whole = True
        if comes.state is not None and (comes.more or comes.making is not None):
            record, queue = comes.state.record, (*comes.state.queue, *comes.more)
            comes.state = SessionState(record, queue, comes.revision, comes.making)
            comes.more = []
        cancel(comes.late)
        comes.late = None
        self._over(client_id, comes)

    def _over(self, client_id: str, comes: Coming) -> None:
        if comes.next is not None:
            self.goes_on(client_id, comes)
            return
        waits, comes.waits = comes.waits, None
        if waits is not None:
            waits.callback(self.given(client_id, comes))
        else:
            self.unclaimed(client_id)
            if comes.is_nothing and self.of.get(client_id) is not comes:
                self._unlink(client_id, comes)  # a later one is on its way

    # -- it is entered -------------------------------------------------------------------------

    def given(self, client_id: str, comes: Coming) -> SessionState | None:
        """Its state is about to be entered, as far as its client still wants it."""
        comes.taken = True
        if comes.catcher is None:
            self._unlink(client_id, comes)
            self._done(client_id, comes)
        elif comes.late is None:
            call = self.transit.reactor.callLater
            comes.late = call(ENTERS, self._not_entered, client_id, comes)
        return None if comes.state is None else read(comes.state)

    def entered(self, session: Session, with_state: bool) -> None:
        """A session is here: what came for it meanwhile waits behind what came with it."""
        client_id = session.client_id
        # Another may be asked for it since, for who has claimed it of us.
        if (comes := next((each for each in self.line(client_id) if each.taken), None)) is None:
            return
        self._unlink(client_id, comes)
        comes.unmake()  # unless it is this session
        if comes.state is not None:
            self._outlived(client_id, comes.older)
        if comes.catcher is not None:
            if with_state:
                queue_more(self.transit.broker, session, self.transit.caught(comes.catcher), 0)
                self.transit.broker.fans.replace(comes.catcher, session)
            self.transit.bury(comes.catcher)
        if comes.remains is not None:
            comes.remains.end()  # in the turn in which the store is told of the session
        # Until our store has it, who had it before has: a node that is killed knows nothing of it.
        self.transit.broker.journal.when_kept(lambda: self._done(client_id, comes))
        if comes.next is not None:
            self.transit.reactor.callLater(0, self.overtaken, client_id, *comes.next)

    def _outlived(self, client_id: str, older: Coming | None) -> None:
        """One that was claimed after these is here: it has been where they were to go."""
        while older is not None:
            self._forget(client_id, older)
            self._done(client_id, older)
            older = older.older

    def _done(self, client_id: str, comes: Coming) -> None:
        """Who had it need not keep it any longer; that may be our own store."""
        if comes.remains is not None:
            comes.remains.end()
        if comes.state is not None:
            self.transit.tell_done(comes.origin, client_id, comes.revision)

    def _not_entered(self, client_id: str, comes: Coming) -> None:
        """Nobody has entered it: its client does not want it, or is not let in."""
        if self.find(client_id, comes.revision) is not comes:
            return
        if comes.next is not None:
            self.goes_on(client_id, comes)
            return
        self._forget(client_id, comes)
        self._done(client_id, comes)

    # -- nodes come and go ---------------------------------------------------------------------

    def joined(self, node: Node) -> None:
        """A node is there: its mark is wanted, too, and what it may have in its store."""
        for client_id, comes in self._all():
            if comes.whole:
                continue
            wanted = comes.state is None or comes.again
            if wanted and comes.origin == node.name and comes.revision:
                self.transit.say(node, WANT, client_id, comes.revision)
            elif comes.known >= 0:
                self._ask(node, client_id, comes)

    def _awaits(self, comes: Coming, name: str) -> bool:
        """Whether one waits for what this node, which is not there, has of it."""
        return self.is_left(name) or (comes.lasts and self.home_of(name) >= 0)

    def left(self, name: str) -> None:
        """A node is gone, with what it had not sent."""
        for client_id, comes in list(self._all()):
            if comes.offer is not None and comes.offer[0].name == name:
                comes.offer, comes.asks = None, [*comes.asks, name]
            if comes.origin != name or comes.whole or comes.has_tail:
                self._complete(client_id, comes)
            elif self._awaits(comes, name):
                comes.again = comes.state is not None
            else:
                self.nothing(client_id, comes)
