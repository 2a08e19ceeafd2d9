"""One worker's view of all others: what it tells them, and how it waits until they have taken it.

When two workers meet each tells the other all of its filters; after that the first subscriber of a
filter and the last are told, and a SUBACK waits until the others have taken that. A worker that
dies keeps its place in the tables: what is for it is kept until it is back (`mqttd.mesh.peer`),
and the filters that it does not tell again go. Messages go when it has said which it has already
(`mqttd.mesh.ferry`). Retained messages that change when the links have ended, as by the wills of a
broker that is stopped, are told when all are back.

Promise: what a filter costs does not depend on how many subscribe to it; MQTT 5.0, 4.6.
"""

from __future__ import annotations

from typing import Final

from mqttd.broker.broker import Broker
from mqttd.broker.ground.drawers import Drawer
from mqttd.broker.routing.abroad import Taken
from mqttd.mesh.ferry import ROOM, LastingFerry, fails, opened
from mqttd.mesh.frames import ADD, AT, END, HAVE, REMOVE, STUCK, frame, number_of, packed
from mqttd.mesh.landing import Control
from mqttd.mesh.link import Link
from mqttd.mesh.mesh import Frames, Mesh
from mqttd.mesh.neighbour import Neighbour
from mqttd.session.routes.route import Route
from mqttd.storage.journal import StoreJournal
from mqttd.types import StoreFull

__all__ = ["UNDER_WAY", "WorkerMesh", "left_in"]

#: The drawer of what is under way.
UNDER_WAY: Final = "$workers"
#: Filters of a frame.
_FILTERS: Final = 500
#: Rows of what has changed since the links ended: when, and the topic.
_LEFT: Final = "left "


def left_in(key: str, row: bytes) -> tuple[str, int]:
    """The topic that this row says has changed, and when; "" for a row about something else."""
    return (row[8:].decode(), number_of(row)) if key.startswith(_LEFT) else ("", 0)


class WorkerMesh(Mesh):
    """The other workers of `broker`, which is worker `number` of `count`."""

    def __init__(self, broker: Broker, number: int, count: int) -> None:
        super().__init__(broker, number)
        self.count = count
        broker.has_workers = True
        self.ferries: dict[int, LastingFerry] = {}
        #: Those whose store takes nothing, as they have said, and those who were told so of ours.
        self.stuck: set[int] = set()
        self.told: set[int] = set()
        #: Where it is kept what has changed since the links ended, and whether they have.
        self.left: Drawer | None = None
        self.leaves: bool = False
        for other in range(1, count + 1):
            if other != number:
                ferry = LastingFerry(broker, str(other))
                self.ferries[other] = ferry
                self.neighbours[other] = Neighbour(broker, other, f"worker {other}", ferry)

    def begin(self) -> None:
        """Our store is read, if there is one: go on with what it has kept for the others."""
        drawer = None
        if isinstance(self.broker.journal, StoreJournal):
            drawer = self.broker.drawers.open(UNDER_WAY, ROOM)
        start, book = opened(drawer)
        for ferry in self.ferries.values():
            ferry.begin(drawer, start, book)
        self.recall(drawer)

    def recall(self, drawer: Drawer | None) -> None:
        """What changed when the links had ended before is told on each that there is now."""
        self.left = drawer
        if drawer is None:
            return
        for key in drawer.keys(_LEFT):
            self.changes.remember(*left_in(key, drawer.get(key) or b""))
            drawer.delete(key)

    def leave(self) -> None:
        """The links end before the clients do, whose wills may be retained."""
        self.leaves = True

    def _stamp(self, topic: str) -> int:
        stamp = super()._stamp(topic)
        if self.leaves and self.left is not None and not topic.startswith("$SYS/"):
            try:
                self.left.put(f"{_LEFT}{stamp}", stamp.to_bytes(8, "big") + topic.encode())
            except StoreFull:
                pass  # then it is as one that the others have not heard of
        return stamp

    def introduce(self, neighbour: Neighbour, link: Link) -> None:
        """See `Mesh.introduce`: all filters."""
        filters = list(self.filters)
        for at in range(0, len(filters), _FILTERS):
            some = [topic_filter.encode() for topic_filter in filters[at : at + _FILTERS]]
            neighbour.ferry.posted += 1
            link.send(frame(ADD, packed(some)))

    def introduced(self, neighbour: Neighbour, link: Link) -> None:
        """See `Mesh.introduced`: that is all, and clients may be let in."""
        link.send(frame(END, b"\x00"))

    def rise(self, neighbour: Neighbour, link: Link) -> None:
        """See `Mesh.rise`: when it has said what it has."""
        if neighbour.arriving is not None:
            self.ferries[neighbour.number].greet(neighbour.arriving, link)

    def frames(self, neighbour: Neighbour) -> Control:
        """See `Mesh.frames`."""
        return _WorkerFrames(self, neighbour, self.ferries[neighbour.number])

    def added(self, full_filter: str) -> None:
        """See `Abroad.added`."""
        count = self.filters.get(full_filter, 0)
        self.filters[full_filter] = count + 1
        if not count:
            self._tell(frame(ADD, packed([full_filter.encode()])))

    def removed(self, full_filter: str) -> None:
        """See `Abroad.removed`."""
        count = self.filters.get(full_filter, 0)
        if count > 1:
            self.filters[full_filter] = count - 1
        elif count:
            del self.filters[full_filter]
            self._tell(frame(REMOVE, packed([full_filter.encode()])))

    def waits(self, taken: Taken) -> bool:
        """See `Abroad.waits`: filters go the way of messages."""
        return self.arrives(taken)

    def _tell(self, data: bytes) -> None:
        for neighbour in self.neighbours.values():
            neighbour.ferry.tell(data)

    # -- stores that take nothing --------------------------------------------------------------

    def cannot_keep(self, route: Route, first: int) -> bool:
        """See `Abroad.cannot_keep`: retained messages go to all."""
        if not first & 7:
            return False
        for number in self.stuck:
            if first & 1 or self.neighbours[number].peer.is_on(route):
                return True
        return False

    def is_stuck(self, number: int, stuck: bool) -> None:
        """A worker says so, or is gone: who publishes to it is refused, and does not wait."""
        if stuck != (number in self.stuck):
            if stuck:
                self.stuck.add(number)
            else:
                self.stuck.discard(number)
            self.broker.refuse("workers", len(self.stuck) > 0)

    def unlinked(self, link: Link) -> None:
        """See `Mesh.unlinked`."""
        if self.neighbours[link.number].link is link:
            self.told.discard(link.number)
            self.is_stuck(link.number, False)
        super().unlinked(link)

    def _tell_stuck(self, link: Link, failing: bool) -> None:
        """While nothing of it waits here for the store, what need not be kept goes on."""
        holds = failing and self.broker.journal.holds(link)
        if holds != (link.number in self.told):
            if holds:
                self.told.add(link.number)
            else:
                self.told.discard(link.number)
            link.send(frame(STUCK, b"\x01" if holds else b"\x00"))
            self.broker.perform_later()

    def tick(self, now: int) -> None:
        """See `Mesh.tick`; a disk that takes nothing keeps nothing from the others."""
        super().tick(now)
        failing = fails(self.broker)
        for neighbour in self.neighbours.values():
            link = neighbour.link
            if link is not None:
                if failing:
                    link.let_go()
                self._tell_stuck(link, failing)


class _WorkerFrames(Frames):
    """What another worker says that is no message."""

    def __init__(self, mesh: WorkerMesh, neighbour: Neighbour, ferry: LastingFerry) -> None:
        super().__init__(mesh, neighbour)
        self.workers = mesh
        self.ferry = ferry

    def control(self, link: Link, kind: int, body: bytes) -> None:
        """See `Control.control`."""
        if kind == HAVE:
            self.ferry.met(link, body)
        elif kind == AT:
            arriving = self.neighbour.arriving
            if arriving is not None:
                self.ferry.goes_on(arriving, body)
        elif kind == STUCK:
            self.workers.is_stuck(self.neighbour.number, body != b"\x00")
        else:
            super().control(link, kind, body)

    def taken(self, carried: int, touched: bool) -> None:
        """See `Control.taken`."""
        self.ferry.came(carried, touched)
