"""One session that this node has claimed and another has (`mqttd.cluster.sessions.arrivals`)."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from mqttd.broker.routing.shared import Group
from mqttd.broker.sessions.records import Making
from mqttd.cluster.sessions.catcher import Catcher
from mqttd.cluster.sessions.remains import Remains
from mqttd.types import SessionState

__all__ = ["Coming"]


class Coming:
    """A session that was claimed in `revision`; `older` was claimed before and is not here yet."""

    def __init__(self, origin: str, revision: int, older: Coming | None) -> None:
        #: Where it comes from, and who it was claimed of: it may not have come there.
        self.origin = origin
        self.owner = origin
        #: Who had it before that node; empty: nobody, or that one was asked.
        self.before = ""
        #: Whose it is (`mqttd.cluster.etcd.keys.Owner`); empty: etcd does not say.
        self.user = ""
        self.revision = revision
        #: By which revision it is ours: a later one where our lease has ended since. Who sends it
        #: may know either.
        self.by = revision
        #: The first of these: others were told in it, and so are we.
        self.claimed = revision
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

    def unmake(self) -> None:
        """What was made of it is not wanted any more; its packets may be."""
        if self.making is not None:
            self.making.drop()
            self.making = None
