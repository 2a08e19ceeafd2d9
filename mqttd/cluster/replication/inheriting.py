"""What nodes have kept for one that is gone goes to its heir, parted from what follows by a mark.

    heir  filters of the sessions are in all tables, then `all/heir/<node>` says: marks
    x     sees that: what it has kept for the node so far      --KEPT ...--> heir
          and what it has claimed of it, and waits for         --MARK------> heir
          and keeps nothing more: what follows goes to the heir, as all of its filters do
    heir  what x has sent before its mark, it has twice: what was KEPT counts; behind it, the other

The filters are seen before the mark is asked for, in etcd's order, so nothing is in neither. Each
of the two lanes of a link has a mark.

What the node itself was about to send to others, QoS 2 that its store had with the packet ids of
its publishers, the heir hands out: each takes what it has not had (`mqttd.mesh.ferry`), as that was
when the node was gone: what that sends in its next life, or as a member anew, has later numbers.
LEFT with no messages is the end of it: sessions on their way, those that the heir sends on, too,
wait for it. What was for a node that is gone itself, or goes before it has taken it, waits with
what is kept for that: for its heir, or until it is back. So an heir waits until others that are
taken over as well have handed out what they had, before it has sessions: what they had for that
node is with what was kept for it, and what they had for the heir is not for its sessions, which may
have had it. Where they are gone when it is done what they had for that node is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from twisted.internet.task import deferLater
from twisted.logger import Logger

from mqttd.cluster.links.nodes import Node
from mqttd.cluster.replication.share import Share
from mqttd.mesh.arriving import Arriving
from mqttd.mesh.ferry import LastingFerry
from mqttd.mesh.frames import STATE, frame, number_of, packed, unpacked
from mqttd.mesh.landing import Control
from mqttd.mesh.link import Link, Nowhere

__all__ = ["Inheriting", "Kept", "Wanted"]

KEPT: Final = b"kept"
MARK: Final = b"inherited"
LANE_MARK: Final = b"inherited, lane"
LEFT: Final = b"left"
#: Bytes of what was kept in one frame.
_FRAME: Final = 256 << 10
#: Seconds for others to hand out what they had, and between two looks at that.
_LATE: Final = 10.0
_SOON: Final = 0.05

#: A message that was kept: its stream and its number there, 0: it was never sent; its book and its
#: number in that.
Kept = tuple[int, int, bytes]
#: One with its number.
Numbered = tuple[int, bytes]
#: Nobody's link: what it has brought is before all marks.
_NOBODY: Final = -(1 << 40)
#: Client ids that a node has claimed, and in which revision.
Wanted = list[tuple[str, int]]


class Inheriting:
    """Both ends of it, for the node of `cluster`."""

    def __init__(self, cluster: Share, log: Logger) -> None:
        self.cluster = cluster
        self.log = log
        #: What has come for heirs that are here: node -> from whom, link of it -> what was kept.
        self._coming: dict[str, dict[str, list[Kept]]] = {}
        #: Told when a node has given all: its name, its link (0: this one), what it had and wants.
        self.heirs: dict[str, Callable[[str, int, list[Kept], Wanted], object]] = {}
        #: Which takings over were given what there is: (node, revision).
        self._given: dict[str, int] = {}
        #: Of nodes that are awaited: what those that were taken over were about to send them.
        self._behind: dict[str, dict[str, list[Kept]]] = {}
        #: What those have been sent of it that are there, and may not have taken; the last frame.
        self._sent: dict[str, dict[str, list[Kept]]] = {}
        self._last: dict[str, bytes] = {}
        #: Nodes of which all is handed out since they were gone.
        self._handed: set[str] = set()
        #: The number of the last message that had come from a node when it was gone, and its book.
        self._had: dict[str, tuple[int, int]] = {}

    def left(self, name: str) -> None:
        """A node is gone; while it is taken over that may be its next life."""
        self._handed.discard(name)
        ferry = self.cluster.mesh.ferries.get(name)
        if ferry is not None and not (name in self._had and self.cluster.view.is_taken_over(name)):
            self._had[name] = ferry.have, ferry.theirs
        # Of what it has taken it, or its heir, knows that.
        self._last.pop(name, None)
        for gone, kept in self._sent.pop(name, {}).items():
            self._behind.setdefault(name, {}).setdefault(gone, []).extend(kept)

    def forget(self, name: str) -> None:
        """Nobody here is the heir of this node any more."""
        self.heirs.pop(name, None)
        self._coming.pop(name, None)

    def look(self) -> None:
        """Give what we have for those whose heirs ask for it; once."""
        heirs = self.cluster.view.heirs
        for name in list(self._behind):
            self._look_behind(name)
        for name in list(self._sent):
            node, last = self.cluster.mesh.nodes.get(name), self._last[name]
            if node is not None and not any(data is last for _, data in node.ferry.kept):
                del self._sent[name], self._last[name]
        for name in self._given.keys() - heirs.keys():
            del self._given[name]
        for name, heir in heirs.items():
            if heir.stage != "marks" or self._given.get(name) == heir.changed:
                continue
            target = self.cluster.mesh.nodes.get(heir.by)
            if target is None and heir.by != self.cluster.name:
                continue
            self._given[name] = heir.changed
            # What was under way to thousands, as the heir was not known, is part of it.
            self.cluster.broker.fans.after_all(partial(self._give, name, target))

    def _give(self, name: str, target: Node | None) -> None:
        kept = [one for some in self._behind.pop(name, {}).values() for one in some]
        kept += self.cluster.view.absent.take(name)
        wanted = self.cluster.moves.arrivals.awaited_of(name)
        if target is None:
            if name in self.heirs:
                self.heirs[name](self.cluster.name, 0, kept, wanted)
            return
        at = 0
        while at < len(kept):
            fields, size = [KEPT, name.encode()], 0
            while at < len(kept) and size < _FRAME:
                stream, number, data = kept[at]
                fields.append(stream.to_bytes(8, "big") + number.to_bytes(8, "big") + data)
                size += len(data)
                at += 1
            target.ferry.keep(frame(STATE, packed(fields)))
        claimed = [number.to_bytes(8, "big") + each.encode() for each, number in wanted]
        target.ferry.keep(frame(STATE, packed([MARK, name.encode(), *claimed])))
        target.once.keep(frame(STATE, packed([LANE_MARK, name.encode()])))
        self.cluster.broker.perform_later()

    def hand_out(self, name: str, book: int, under_way: dict[str, list[Numbered]]) -> None:
        """To each node what one that is gone was about to send it, numbered by `book`."""
        cluster = self.cluster
        for to, messages in under_way.items():
            if to == cluster.name:
                self._take(name, book, messages)
            else:
                kept = [(book, number, data) for number, data in messages]
                self._behind.setdefault(to, {}).setdefault(name, []).extend(kept)
                self._look_behind(to)
        for target in cluster.mesh.nodes.values():
            end = [LEFT, name.encode(), book.to_bytes(8, "big")]
            target.ferry.keep(frame(STATE, packed(end)))
        self._over(name)
        cluster.broker.perform_later()

    def _look_behind(self, name: str) -> None:
        """A node is to be sent that: it is there, or back, or awaited no more; else it waits."""
        view, target = self.cluster.view, self.cluster.mesh.nodes.get(name)
        if view.is_taken_over(name) or name in view.absent.nodes:
            heir = view.heirs.get(name)
            to = None if heir is None else self.cluster.mesh.nodes.get(heir.by)
            if heir is not None and to is not None and self._given.get(name) == heir.changed:
                self._give(name, to)  # it waits for that
            return
        for gone, kept in self._behind.pop(name).items():
            if target is None:
                text = "{count} messages of node {node} for {to}, which is not there, are lost"
                self.log.warn(text, count=len(kept), node=gone, to=name)
                continue
            self._sent.setdefault(name, {}).setdefault(gone, []).extend(kept)
            for book, number, data in kept:
                fields = [book.to_bytes(8, "big"), number.to_bytes(8, "big") + data]
                self._last[name] = frame(STATE, packed([LEFT, gone.encode(), *fields]))
                target.ferry.keep(self._last[name])

    async def handed_to(self, name: str, check: Callable[[], None]) -> list[Kept]:
        """What others that are gone, too, had for one whose heir we are, when all of it is handed
        out; `check` raises where we are the heir no more."""
        reactor = self.cluster.reactor
        end = reactor.seconds() + _LATE
        while reactor.seconds() < end and any(
            each != name and self._is_awaited(each) for each in self.cluster.view.names()
        ):
            check()
            self.look()
            await deferLater(reactor, _SOON)
        return [one for some in self._behind.pop(name, {}).values() for one in some]

    def _is_awaited(self, name: str) -> bool:
        """Whether it is about to be handed out what a node had."""
        view = self.cluster.view
        left = view.is_taken_over(name) or (view.is_left(name) and view.home_of(name) >= 0)
        return left and name not in self._handed

    def _over(self, name: str) -> None:
        self._handed.add(name)
        self._had.pop(name, None)
        self.cluster.moves.handed_out(name)

    def _take(self, name: str, book: int, messages: list[Numbered]) -> None:
        """What has not come of these is for the sessions here."""
        broker, choice = self.cluster.broker, self.cluster.mesh.choice
        ferry = self.cluster.mesh.ferry_for(name)
        before = choice.link
        choice.link = _NOBODY
        try:
            for number, data in messages:
                if self._lacks(ferry, number, book):
                    Arriving(broker, Link(broker, Nowhere(), 0), Control(), choice).take(data)
        finally:
            choice.link = before

    def _lacks(self, ferry: LastingFerry, number: int, book: int) -> bool:
        """Whether this has not come of what a node was before; it has now."""
        had = self._had.get(ferry.label)
        if had is None or had == (ferry.have, ferry.theirs):
            lacks = ferry.inherits(number, book)  # it has sent nothing since
            if had is not None:
                self._had[ferry.label] = ferry.have, ferry.theirs
            return lacks
        if had[1] == book and number <= had[0]:
            return False
        self._had[ferry.label] = number, book
        return True

    def told(self, node: Node, body: bytes) -> bool:
        """A frame of another node; whether it is one of these."""
        what, name, *fields = unpacked(body)
        if what not in (KEPT, MARK, LANE_MARK, LEFT):
            return False
        gone = name.decode()
        if what == LEFT:
            messages = [(number_of(each), each[8:]) for each in fields[1:]]
            if messages:
                self._take(gone, number_of(fields[0]), messages)
            else:
                self._over(gone)
            return True
        if what == LANE_MARK:
            if gone in self.heirs:
                self.heirs[gone](node.name, -node.number, [], [])
            return True
        coming = self._coming.setdefault(gone, {})
        if what == KEPT:
            coming.setdefault(node.name, []).extend(
                (number_of(each), number_of(each[8:]), each[16:]) for each in fields
            )
        else:
            kept = coming.pop(node.name, [])
            wanted = [(each[8:].decode(), number_of(each)) for each in fields]
            if gone in self.heirs:
                self.heirs[gone](node.name, node.number, kept, wanted)
                if node.version < 2:
                    self.heirs[gone](node.name, -node.number, [], [])
        return True
