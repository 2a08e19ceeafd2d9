"""One session that this node has claimed and another has (`mqttd.cluster.sessions.arrivals`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from twisted.internet.defer import Deferred

from mqttd.broker.broker import Broker
from mqttd.broker.routing.shared import Group
from mqttd.broker.sessions.records import Making, groups_of
from mqttd.cluster.links.nodes import Node
from mqttd.cluster.sessions.catcher import Catcher
from mqttd.cluster.sessions.packets import head_of
from mqttd.cluster.sessions.remains import Remains
from mqttd.session.ground.wheel import milliseconds
from mqttd.types import SessionState

__all__ = ["Coming"]


class Coming:
    """A session that was claimed in `revision`; `older` was claimed before and is not here yet."""

    def __init__(self, origin: str, revision: int, older: Coming | None) -> None:
        #: Where it comes from, and who it was claimed of: it may not have come there.
        self.origin = origin
        self.owner = origin
        #: Since which revision that node had it, when it was claimed; 0: that is not known.
        self.since = 0
        #: Who had it before that node; empty: nobody, or that one was asked.
        self.before = ""
        #: Who is asked after that.
        self.asks: list[str] = []
        #: All that are there are, since these have nothing.
        self.asked_all = False
        #: What another has sent of it, in which revision: that counts if these have nothing.
        self.offer: tuple[Node, int, list[bytes]] | None = None
        #: Whose it is (`mqttd.cluster.etcd.keys.Owner`); empty: etcd does not say.
        self.user = ""
        self.revision = revision
        #: By which revision it is ours: a later one where our lease has ended since. Who sends it
        #: may know either.
        self.by = revision
        #: The first of these: others were told in it, and so are we.
        self.claimed = revision
        #: A later claim of ours that it is for since, of which there is nothing else; 0: of none.
        self.succeeds = 0
        #: Under which lease of ours etcd has said last that it is ours.
        self.lease = 0
        self.older = older
        self.state: SessionState | None = None
        #: What has come of its queue behind that.
        self.more: list[bytes] = []
        #: The session that is made of its packets as they come, when these were written, and the
        #: shared groups that they may name.
        self.making: Making | None = None
        self.written_at = 0
        self.groups: list[Group | None] = []
        self.catcher: Catcher | None = None
        #: What our own store keeps of it, where it was to leave this node and is back.
        self.remains: Remains | None = None
        #: Its node is gone before TAIL, and awaited: what it sends then is in place of this.
        self.again = False
        #: What tells this sending of it from others, and the marks of this one.
        self.sending = b""
        #: It outlasts its connection: while its node is awaited, so is it.
        self.lasts = False
        #: What others are to know before they give their marks: a revision of etcd, 0 where this
        #: node has written nothing yet; -1: they are not asked.
        self.known = -1
        #: What the old node has caught is here; all of it is here that will ever be; and somebody
        #: was given it.
        self.has_tail = False
        self.whole = False
        self.taken = False
        #: That it is ours etcd has said when all of it was here.
        self.sure = False
        #: It was to leave this node, and nobody else has it.
        self.was_here = False
        #: Who has claimed it meanwhile, and when.
        self.next: tuple[str, int] | None = None
        self.waits: Deferred[SessionState | None] | None = None
        #: Somebody has waited for it in vain.
        self.missed = False
        self.late: Any = None

    def renews(self, origin: str, revision: int) -> bool:
        """Whether this node sends it anew, for a later claim of ours, and all of it: etcd has told
        that node of one that it has not told us of."""
        gone_on = self.next is not None and self.next[1] <= revision
        if self.whole or gone_on or self.origin != origin or self.by >= revision:
            return False
        self.revision = self.by = self.claimed = revision
        self.again = self.state is not None
        return True

    def is_by(self, name: str, found: tuple[str, str, int]) -> bool:
        """Whether it is this node's by what etcd says: owner, from whom, and since when."""
        return found[0] == name and found[2] in (self.by, self.revision)

    def is_for(self, later: Coming) -> None:
        """It is what there is for a later claim of ours: of whom that was, that one has nothing."""
        self.by, self.claimed, self.lease = later.by, later.claimed, later.lease
        self.succeeds = later.by
        self.user, self.lasts = later.user, self.lasts or later.lasts
        self.next, self.waits, self.missed = later.next, later.waits, later.missed
        self.sure, later.waits = False, None

    def asked_next(self, name: str) -> str:
        """Who is asked after who has nothing, as far as is known to the node `name`; or nobody."""
        before, self.before = self.before, ""
        while before in ("", name) and self.asks:
            before = self.asks.pop(0)
        if self.offer is not None and self.offer[0].name == before:
            return ""  # he has sent it already
        return before

    def asks_all(self, nodes: Iterable[str]) -> bool:
        """Whether others of these are to be asked, before what nobody has is begun anew."""
        if self.asked_all or not self.lasts:
            return False
        self.asked_all = True
        known = self.owner, self.origin, "" if self.next is None else self.next[0]
        self.asks = [each for each in nodes if each not in known]
        return bool(self.asks)

    @property
    def is_nothing(self) -> bool:
        """Who was asked has nothing of it, and nobody was told so."""
        return self.whole and not self.taken and self.state is None

    def make(self, broker: Broker, client_id: str) -> None:
        """Make the session of what has come of it."""
        head = None if self.state is None else head_of(self.state)
        if self.state is not None and head is not None and self.catcher is not None:
            self.making = Making(broker, client_id, head.username, head.window)
            if head.expiry:
                self.making.begin()
            self.written_at, self.groups = head.written_at, groups_of(broker, self.catcher)
            self.take(self.state.queue)

    def take(self, packets: Sequence[bytes]) -> None:
        """Queue what has come now: all of a long queue is more than a turn has."""
        if self.making is not None:
            late = self.making.broker.clock() // 1_000_000 - self.written_at
            self.making.take(packets, milliseconds(max(late, 0)), self.groups)

    def unmake(self) -> None:
        """What was made of it is not wanted any more; its packets may be."""
        if self.making is not None:
            self.making.drop()
            self.making = None
