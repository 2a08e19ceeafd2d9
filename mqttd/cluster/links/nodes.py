"""The other nodes as this one's tables know them; how it is told of theirs, and they of ours.

    etcd's order --> View --add, remove--> the tables: a peer at each filter that a node wants
    first, last subscriber of a filter --> `changed` --> Routes --> etcd
    SUBSCRIBE --> `waits` --> settled: etcd has the filter, and the nodes there are have seen it

Retained messages and what is carried go over the links, as between workers (`mqttd.mesh.mesh`);
while some node that is there has no link, what changes is remembered, and told when there is one.
How much of a stream was taken is kept with what the sessions have of it, in one group of the store,
and said when the next stream begins: so a node that was killed is sent what it lacks, and no more.
QoS 2 has a lane of its own (`mqttd.mesh.lane`), in which a message goes when it is in the store
with its publisher's packet id (`mqttd.mesh.ferry`): that no death of its own node repeats or loses.

Promise: a SUBACK does not wait where its filters are known already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.broker.ground.drawers import Drawer
from mqttd.broker.routing.abroad import Taken
from mqttd.cluster.links.hello import SPEAKS
from mqttd.codec.frame import ONE_BYTE
from mqttd.codec.topic import is_shared, split_shared
from mqttd.mesh.arriving import Arriving
from mqttd.mesh.ferry import ROOM, LastingFerry, fails, opened
from mqttd.mesh.frames import (
    ACK,
    ANSWER,
    ASK,
    AT,
    BEGIN,
    END,
    FIGURES,
    HAVE,
    HELLO,
    LANE,
    SEEN,
    STATE,
    STUCK,
    frame,
    number_of,
    numbered,
)
from mqttd.mesh.landing import Control
from mqttd.mesh.lane import Lane
from mqttd.mesh.link import Link
from mqttd.mesh.lost import tell_lost
from mqttd.mesh.mesh import Frames, Mesh
from mqttd.mesh.neighbour import Neighbour
from mqttd.mesh.retained import FOLLOWED
from mqttd.session.routes.route import Route
from mqttd.storage.journal import StoreJournal
from mqttd.types import StoreFull

__all__ = ["ONCE", "TAKEN", "Node", "NodeMesh", "Settling"]

#: The drawer of how much was taken, by the names of nodes; and what it may weigh.
TAKEN: Final = "$nodes"
_WEIGHT: Final = 1 << 20
#: Frames that are for others than the mesh.
_SAID: Final = frozenset((STATE, HELLO, FIGURES, ASK, ANSWER))
#: That of QoS 2 under way.
ONCE: Final = "$once"


class Node(Neighbour):
    """One other node."""

    def __init__(
        self, broker: Broker, number: int, name: str, epoch: int, once: LastingFerry
    ) -> None:
        super().__init__(broker, number, f"node {name}", None, once)
        self.name = name
        #: What must arrive there once: it outlasts this, as the node does. The lane of that, and
        #: what takes the other's.
        self.once = once
        self.lane: Lane | None = None
        self.lane_arriving: Arriving | None = None
        self.epoch = epoch
        #: The version of the frames that both speak, as far as is known.
        self.version: int = SPEAKS[1]
        #: Of which QoS messages wait there for its store, as it has said (`STUCK`), and here of it.
        self.stuck: int = 0
        self.holds: int = 0
        #: The revision of etcd up to which it has all routes in its tables.
        self.seen: int = 0
        #: So many counted frames of it were taken on that stream, the last that brought any.
        self.had: int = 0
        self.of: int = 0
        #: The stream that there is, or was last.
        self.stream: int = 0


class Settling(Taken):
    """Waits until these filters are settled, or are not in time; then calls `then`."""

    def __init__(self, filters: list[str], then: Callable[[], object]) -> None:
        self.names = filters
        self.then = then

    def taken(self) -> None:
        """See `Taken.taken`."""
        self.then()

    def refused(self) -> None:
        """See `Taken.refused`."""
        self.then()

    def filters(self) -> list[str]:
        """See `Taken.filters`."""
        return self.names


class NodeMesh(Mesh):
    """The other nodes of `broker`.

    `changed` is called with each filter that gets a first subscriber or loses its last, `holds`
    with who waits for filters that are not settled and the last coming of those, `said` with
    frames that are not for us.
    """

    def __init__(
        self,
        broker: Broker,
        changed: Callable[[str], object],
        holds: Callable[[Taken, int], object],
        said: Callable[[Node, int, bytes], object],
    ) -> None:
        super().__init__(broker, 1)
        self.changed = changed
        self.holds = holds
        self.said = said
        self.nodes: dict[str, Node] = {}
        #: Filters that have come, and that the others do not have yet: the how manieth coming of a
        #: filter that was, so that one which has gone and come again is not taken for the first;
        #: and how many have come.
        self.unsettled: dict[str, int] = {}
        self.came: int = 0
        #: The revision of etcd up to which all routes are in our tables.
        self.applied: int = 0
        #: Called when another has said what it has seen.
        self.saw: Callable[[], object] | None = None
        #: Called with a node that there is no link to any more.
        self.parted: Callable[[Node], object] | None = None
        #: Name of a node -> the last stream of it that brought anything, and how many counted
        #: frames of that were taken; and where that is kept.
        self.heard: dict[str, tuple[int, int]] = {}
        self.drawer: Drawer | None = None
        #: Name of a node -> what must arrive there once; where that is kept, since which start.
        self.ferries: dict[str, LastingFerry] = {}
        self._once: Drawer | None = None
        self._start: int = 1
        self._book: int = 0
        self._numbers: int = 0

    def begin(self) -> None:
        """Our store is read, if there is one."""
        if isinstance(self.broker.journal, StoreJournal):
            self.read(self.broker.drawers.open(TAKEN, _WEIGHT))
            self.go_on_with(self.broker.drawers.open(ONCE, ROOM))
        else:
            self.go_on_with(None)

    def go_on_with(self, drawer: Drawer | None) -> None:
        """What is kept there for other nodes is theirs when they are there, or back."""
        self._once = drawer
        self._start, self._book = opened(drawer)
        for key in () if drawer is None else drawer.keys("for "):
            self.ferry_for(key.split(" ")[1])

    def ferry_for(self, name: str) -> LastingFerry:
        """What must arrive at this node once."""
        ferry = self.ferries.get(name)
        if ferry is None:
            ferry = LastingFerry(self.broker, name)
            ferry.begin(self._once, self._start, self._book)
            self.ferries[name] = ferry
        return ferry

    def forget(self, name: str) -> int:
        """A node that is not there is not awaited: how many messages were kept for it."""
        ferry = self.ferries.get(name)
        kept = [] if ferry is None else ferry.drop()
        tell_lost(self.broker, kept, "node_gone", f"node {name}")
        return len(kept)

    def forget_all(self) -> None:
        """What is kept for others is not this node's any more: its heir has it, but for marks."""
        for ferry in self.ferries.values():
            for data in ferry.drop():
                if data[0] == STATE:
                    ferry.keep(data)

    def read(self, drawer: Drawer) -> None:
        """Go on with what is kept there of how much was taken."""
        self.drawer = drawer
        for name in drawer.keys(""):
            known = drawer.get(name)
            if known is not None:
                self.heard[name] = (number_of(known), number_of(known[8:]))

    def note(self, node: Node, count: int) -> None:
        """What our sessions keep of so many counted frames is about to be written."""
        if self.drawer is not None:
            try:
                self.drawer.put(
                    node.name, node.stream.to_bytes(8, "big") + count.to_bytes(8, "big")
                )
            except StoreFull:
                pass  # nor is there what it speaks of

    # -- nodes come and go ---------------------------------------------------------------------

    def join(self, name: str, epoch: int) -> Node:
        """A node is there."""
        self._numbers += 1
        node = Node(self.broker, self._numbers, name, epoch, self.ferry_for(name))
        node.of, node.had = self.heard.get(name, (0, 0))
        self.neighbours[node.number] = node
        self.nodes[name] = node
        return node

    def leave(self, node: Node) -> int:
        """A node is there no more: how many messages were kept for it."""
        if node.link is not None:
            self.unlinked(node.link)
        for full_filter in list(node.peer.filters):
            self.remove(node, full_filter)
        self.neighbours.pop(node.number, None)
        if self.nodes.get(node.name) is node:
            del self.nodes[node.name]
        kept = node.ferry.drop()
        known = self.nodes.get(node.name)
        if known is None or known.once is not node.once:  # else that goes on with it
            kept += node.once.drop()
        tell_lost(self.broker, kept, "node_gone", node.peer.place)
        return len(kept)

    def unlinked(self, link: Link) -> None:
        """See `Mesh.unlinked`."""
        node = self.neighbours.get(link.number)
        if node is None or node.link is not link:
            return
        assert isinstance(node, Node)
        if node.arriving is not None and node.arriving.count:
            node.had = node.arriving.count
            node.of = node.stream
            self.heard[node.name] = (node.of, node.had)
        lane = node.lane
        node.lane = node.lane_arriving = None
        node.holds = 0
        self.is_stuck(node, 0)
        super().unlinked(link)
        node.once.down()
        if lane is not None:
            lane.lost()
        if self.parted is not None:
            self.parted(node)

    def rise(self, neighbour: Neighbour, link: Link) -> None:
        """See `Mesh.rise`: QoS 2 goes when the other has said how much of it that has."""
        super().rise(neighbour, link)
        assert isinstance(neighbour, Node)
        if neighbour.version < 2:
            self._without_lane(neighbour)
            return
        neighbour.peer.once = neighbour.once
        lane = Lane(link)
        neighbour.lane = lane
        neighbour.once.posted = neighbour.once.taken = 0
        neighbour.once.meets = True  # who has an acknowledgement may go there, and publish more
        arriving = Arriving(self.broker, lane, _LaneFrames(self, neighbour), self.choice)
        neighbour.lane_arriving = arriving
        neighbour.once.greet(arriving, lane)

    def _without_lane(self, node: Node) -> None:
        """It is older: QoS 2 goes as QoS 1 does, and with it what was kept meanwhile."""
        node.peer.once = node.ferry
        for data in node.once.drop():
            if data[0] != STATE:
                node.ferry.keep(data)

    def introduce(self, neighbour: Neighbour, link: Link) -> None:
        """See `Mesh.introduce`: how far we are."""
        link.send(numbered(SEEN, self.applied))

    def frames(self, neighbour: Neighbour) -> Control:
        """See `Mesh.frames`."""
        assert isinstance(neighbour, Node)
        return _NodeFrames(self, neighbour)

    def tell_seen(self, node: Node) -> None:
        """Say how far we are to a node that waits for that."""
        if node.link is not None:
            node.link.send(numbered(SEEN, self.applied))

    def has_seen(self) -> int:
        """The revision up to which all nodes that we have links to have seen all routes."""
        least = -1
        for node in self.nodes.values():
            if node.link is not None and (least < 0 or node.seen < least):
                least = node.seen
        return least

    # -- filters -------------------------------------------------------------------------------

    def added(self, full_filter: str) -> None:
        """See `Abroad.added`."""
        if _is_own(full_filter):
            return
        count = self.filters.get(full_filter, 0)
        self.filters[full_filter] = count + 1
        if not count:
            self.came += 1
            self.unsettled[full_filter] = self.came
            self.changed(full_filter)

    def removed(self, full_filter: str) -> None:
        """See `Abroad.removed`."""
        if _is_own(full_filter):
            return
        count = self.filters.get(full_filter, 0)
        if count > 1:
            self.filters[full_filter] = count - 1
        elif count:
            del self.filters[full_filter]
            self.unsettled.pop(full_filter, None)
            self.changed(full_filter)

    def waits(self, taken: Taken) -> bool:
        """See `Abroad.waits`."""
        unsettled = self.unsettled
        if not unsettled:
            return False
        last = 0
        for full_filter in taken.filters():
            coming = unsettled.get(full_filter, 0)
            if coming > last:
                last = coming
        if not last:
            return False
        self.holds(taken, last)
        return True

    def lacks(self, full_filter: str) -> bool:
        """See `Abroad.lacks`."""
        return full_filter in self.unsettled

    # -- retained messages ---------------------------------------------------------------------

    def retained(self, topic: str, kept: object) -> None:
        """See `Abroad.retained`."""
        if not topic.startswith("$SYS/"):
            super().retained(topic, kept)

    def deleted(self, topic: str, qos: int) -> None:
        """See `Abroad.deleted`."""
        if not topic.startswith("$SYS/"):
            super().deleted(topic, qos)

    def follows(self, neighbour: Neighbour, key: bytes, qos: int) -> int:
        """See `Mesh.follows`."""
        assert isinstance(neighbour, Node)
        return FOLLOWED if neighbour.version < 2 else super().follows(neighbour, key, qos)

    # -- stores that take nothing --------------------------------------------------------------

    def cannot_keep(self, route: Route, first: int) -> bool:
        """See `Abroad.cannot_keep`: retained messages go to all, by the lane of QoS 1."""
        qos = first >> 1 & 3
        for node in self.nodes.values():
            if node.stuck & first & 1 or (node.stuck & qos and node.peer.is_on(route)):
                return True
        return False

    def is_stuck(self, node: Node, stuck: int) -> None:
        """A node says so, or is gone: who publishes to it is refused, and does not wait with it."""
        if stuck != node.stuck:
            node.stuck = stuck
            some = any(other.stuck for other in self.nodes.values())
            self.broker.refuse("nodes", some)

    def _tell_stuck(self, node: Node, failing: bool) -> None:
        """While nothing of it waits here for the store, what need not be kept goes on."""
        link = node.link
        if link is None or node.version < 3:
            return
        holds = 0
        if failing:
            journal = self.broker.journal
            holds = 1 if journal.holds(link) else 0
            if node.lane is not None and journal.holds(node.lane):
                holds |= 2
        if holds != node.holds:
            node.holds = holds
            link.send(frame(STUCK, ONE_BYTE[holds]))
            self.broker.perform_later()

    # -- time ----------------------------------------------------------------------------------

    def microseconds(self) -> int:
        """See `Mesh.microseconds`: whatever a node's clock says, after all that it has heard of."""
        return time.time_ns() // 1000

    def tick(self, now: int) -> None:
        """See `Mesh.tick`; a disk that takes nothing keeps nothing from the others."""
        failing = fails(self.broker)
        for node in self.nodes.values():
            if failing and node.lane is not None:
                node.lane.let_go()
            self._tell_stuck(node, failing)
        super().tick(now)


def _is_own(full_filter: str) -> bool:
    """What a node says of itself is for those who ask it; no wildcard matches `$SYS`."""
    if is_shared(full_filter):
        full_filter = split_shared(full_filter)[1]
    return full_filter.startswith("$SYS/")


class _NodeFrames(Frames):
    """What one node says that is no message: its filters come from etcd."""

    def __init__(self, mesh: NodeMesh, node: Node) -> None:
        super().__init__(mesh, node)
        self.nodes = mesh
        self.node = node

    def control(self, link: Link, kind: int, body: bytes) -> None:
        """See `Control.control`."""
        nodes = self.nodes
        node = self.node
        if kind == SEEN:
            node.seen = number_of(body)
            if nodes.saw is not None:
                nodes.saw()
        elif kind == BEGIN:
            if body == b"\x01":
                nodes.give(node)
        elif kind == END:
            nodes.taken_over(node)
            nodes.welcome(node)
        elif kind == STUCK:
            nodes.is_stuck(node, body[0])
        elif kind == LANE:
            self._lane(body)
        elif kind in _SAID:
            nodes.said(node, kind, body)
        else:
            super().control(link, kind, body)

    def taken(self, carried: int, touched: bool) -> None:
        """See `Control.taken`."""
        arriving = self.node.arriving
        if touched and arriving is not None:
            self.nodes.note(self.node, arriving.count)

    def _lane(self, body: bytes) -> None:
        arriving = self.node.lane_arriving
        if arriving is not None:
            choice = self.nodes.choice
            before = choice.link
            choice.link = -self.node.number
            try:
                arriving.take(body)
            finally:
                choice.link = before


class _LaneFrames(Control):
    """The same of its lane for QoS 2; marks of sessions that move come here, too."""

    def __init__(self, mesh: NodeMesh, node: Node) -> None:
        self.nodes = mesh
        self.node = node

    def control(self, link: Link, kind: int, body: bytes) -> None:
        """See `Control.control`."""
        node = self.node
        if kind == ACK:
            node.once.acknowledge(number_of(body))
        elif kind == HAVE:
            node.once.met(link, body)
        elif kind == AT:
            if node.lane_arriving is not None:
                node.once.goes_on(node.lane_arriving, body)
        elif kind == STATE:
            self.nodes.said(node, kind, body)

    def taken(self, carried: int, touched: bool) -> None:
        """See `Control.taken`."""
        self.node.once.came(carried, touched)
