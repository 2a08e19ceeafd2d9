"""Writes the filters that are wanted here to etcd, many in a chunk, and says when others have them.

    changed --> one chunk at a time, what has come meanwhile in the next (`Chunks`) --> accepted
    accepted, and seen by all nodes that have a link to us --> settled --> SUBACK
                   '-- not within `UNSEEN` s: they are slow, and hear of it later
    not settled within `MOST_WAIT` s --> refused, 0x83 or 0x80

Promise: one writer, one order; a chunk is written again until etcd has said that it has it, if it
has not: what was asked in vain may come there later, behind others, and is not done then, since who
watches would take it for the last word. Filters are settled in the order in which they came, so who
waits for many waits for the last of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from mqttd.broker.routing.abroad import Taken
from mqttd.cluster.etcd.client import (
    Answer,
    Etcd,
    EtcdError,
    Json,
    absent,
    created,
    equals,
    get,
    put,
    remove_below,
)
from mqttd.cluster.etcd.filling import FilterPace
from mqttd.cluster.etcd.keys import Keys
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.cluster.routes.chunks import Change, Chunks

__all__ = ["MOST_WAIT", "Routes"]

#: Seconds that a SUBACK waits for etcd, and for other nodes after that.
MOST_WAIT: Final = 5.0
UNSEEN: Final = 1.0
#: Seconds before a chunk is written again, doubled each time.
_FIRST: Final = 0.1
_LONGEST: Final = 1.0


class _Held:
    """One SUBACK that waits."""

    __slots__ = ("done", "due", "taken")

    def __init__(self, taken: Taken, due: float) -> None:
        self.taken = taken
        self.due = due
        self.done = False


class _Accepted:
    """A chunk that etcd has: since when, the revision, its filters, and the last that had come."""

    __slots__ = ("came", "filters", "revision", "since")

    def __init__(self, since: float, revision: int, change: Change) -> None:
        self.since = since
        self.revision = revision
        self.filters = change.came
        self.came = change.settled


class Routes:
    """The filters of `mesh`, as etcd has them."""

    def __init__(self, etcd: Etcd, keys: Keys, name: str, reactor: Any) -> None:
        self.etcd = etcd
        self.keys = keys
        self.name = name
        self.reactor = reactor
        self.pacer = FilterPace(reactor)
        #: Set by who makes both.
        self.mesh: NodeMesh
        self.chunks = Chunks({})
        self._epoch = 0
        self._lease = 0
        #: The revision of the last chunk, and that it is there.
        self.revision = 0
        self._before: list[Json] = []
        self._busy = False
        #: Not seen by all yet; up to which coming they are settled.
        self._accepted: deque[_Accepted] = deque()
        self._settled = 0
        #: Who waits: by the coming they wait for, the first to wait first; and since when.
        self._waiting: list[tuple[int, int, _Held]] = []
        self._held: deque[_Held] = deque()
        self._holds = 0
        #: Filters that others have not seen in time, and that were refused.
        self.unseen = 0
        self.refused = 0
        self.failed: Callable[[str], object] = lambda text: None

    # -- what there is to write ----------------------------------------------------------------

    def begin(self, epoch: int, lease: int) -> None:
        """We are a member, with keys under this lease: nothing is written yet."""
        self._epoch, self._lease, self._before = epoch, lease, []
        unsettled = self.mesh.unsettled
        self.chunks = Chunks({each: unsettled.get(each, 0) for each in self.mesh.filters})
        self._go()

    def end(self) -> None:
        """We are no member any more."""
        self._lease = 0

    def changed(self, full_filter: str) -> None:
        """A filter has a first subscriber, or lost its last."""
        wanted = full_filter in self.mesh.filters
        self.chunks.changed(full_filter, wanted, self.mesh.came)
        if wanted:
            self.pacer.added(full_filter)
        self._go()

    def _go(self) -> None:
        if not self._busy and self._lease:
            self._busy = True
            self.reactor.callLater(0, self._start)

    def _start(self) -> None:
        Deferred.fromCoroutine(self._write()).addErrback(self._broken)

    def _broken(self, failure: Any) -> None:
        self._busy = False
        self.failed(failure.getErrorMessage())

    async def _write(self) -> None:
        pause = _FIRST
        while self._lease and self.chunks:
            lease, epoch, chunks = self._lease, self._epoch, self.chunks
            change = chunks.next(self.mesh.came)
            if not change.value:
                self._take(self.revision, change)
                continue
            key = self.keys.route(self.name, epoch, chunks.number)
            then = [put(key, change.value, lease)]
            if change.below:
                start = self.keys.route(self.name, epoch, 0)
                then.append(remove_below(start, self.keys.route(self.name, epoch, change.below)))
            while True:
                try:
                    answer = await self._put(key, then, epoch)
                    break
                except EtcdError as error:
                    self.failed(str(error))
                    await deferLater(self.reactor, pause)
                    pause = min(pause * 2, _LONGEST)
                    if self._lease != lease:
                        break
            if self._lease != lease:
                continue  # it all begins anew, or has ended
            if not answer.done:
                self.failed("this node is out of the cluster")
                self._lease = 0
                break
            pause = _FIRST
            chunks.done(change)
            self.revision, self._before = answer.revision, [equals(key, answer.revision)]
            self._take(answer.revision, change)
        self._busy = False

    async def _put(self, key: bytes, then: list[Json], epoch: int) -> Answer:
        """Write a chunk behind the last one, unless it is there; in which revision."""
        node = self.keys.node(self.name)
        when, read = [created(node, epoch), absent(key)], [get(node), get(key)]
        for before in (self._before, []):  # somebody may have taken the last one away
            answer = await self.etcd.transaction([*when, *before], then, read)
            found = {kv.key: kv for kv in answer.found}
            if not answer.done and key in found:
                return Answer(True, found[key].changed)
            if answer.done or node not in found or found[node].created != epoch:
                break
        return answer

    # -- who waits -----------------------------------------------------------------------------

    def hold(self, taken: Taken, coming: int) -> None:
        """Call `taken` when what has come up to this one is settled, or after a while."""
        held = _Held(taken, self.reactor.seconds() + MOST_WAIT)
        self._holds += 1
        heappush(self._waiting, (coming, self._holds, held))
        self._held.append(held)

    def _take(self, revision: int, change: Change) -> None:
        if change.settled > self._settled:
            self._accepted.append(_Accepted(self.reactor.seconds(), revision, change))
            self.look()

    def look(self) -> None:
        """Settle what others have seen by now."""
        seen = self.mesh.has_seen()
        now = self.reactor.seconds()
        while self._accepted:
            first = self._accepted[0]
            if 0 <= seen < first.revision:
                if now - first.since < UNSEEN:
                    break
                self.unseen += len(first.filters)
            self._accepted.popleft()
            self._settle(first)
        told = False
        while self._waiting and self._waiting[0][0] <= self._settled:
            held = heappop(self._waiting)[2]
            if not held.done:
                held.done = told = True
                held.taken.taken()
        if told:
            self.mesh.broker.perform_later()

    def _settle(self, accepted: _Accepted) -> None:
        self._settled = settled = max(self._settled, accepted.came)
        unsettled = self.mesh.unsettled
        for full_filter in accepted.filters:
            # One that has gone since, and has come again, is not settled.
            if unsettled.get(full_filter, settled + 1) <= settled:
                del unsettled[full_filter]

    def tick(self) -> None:
        """A few times a second: nobody waits for ever."""
        self.look()
        now = self.reactor.seconds()
        told = False
        while self._held and (self._held[0].done or self._held[0].due <= now):
            held = self._held.popleft()
            if held.done:
                continue
            held.done = told = True
            unsettled = self.mesh.unsettled
            self.refused += sum(1 for each in held.taken.filters() if each in unsettled)
            held.taken.refused()
        if told:
            # As long as etcd is away nothing is settled, and who was refused asks again.
            self._waiting = [each for each in self._waiting if not each[2].done]
            heapify(self._waiting)
            self.mesh.broker.perform_later()
