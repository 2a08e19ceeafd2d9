"""When batches go out: of a query one at a time, of all queries one slice, as receivers take it.

    batch --its query's turn--> slice --everybody's turn--> receivers have room: it goes out
                                  ^                     '-> somebody's queue is full
                                  '--------a moment later------'

Those at other workers and nodes are asked for (`mqttd.pipeline.stage_room`), when what they had
room for is used up: once in a thousand messages or so.

Nobody waits for a receiver that is away, or takes nothing (`IPluginHandle.room`), nor for longer
than `HELD` in a batch: then it goes on, and what a queue has no room for is dropped, counted, and
told in the log.

Promise: a batch that waits for receivers holds no other query, and takes no turn of the loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredLock, DeferredSemaphore, TimeoutError

from mqttd.codec.packets import Publish
from mqttd.pipeline.stage_room import WAIT, Room

__all__ = ["HELD", "SLICE", "Pace", "Turns"]

#: Batches under way; each has a chunk in memory.
MOST: Final = 64
#: Messages published before clients have their turn.
SLICE: Final = 64
#: Seconds that a batch waits for receivers in all; its sink waits for two minutes (`RELEASE`).
HELD: Final = 30.0
#: Messages after which those who had room for more are asked again.
AGAIN: Final = 4096
#: Seconds between two looks at their queues.
LOOK: Final = 0.01
#: Seconds between two lines that messages were dropped.
_TELL: Final = 60.0


class Turns:
    """Who publishes; `handle` is the plugin's."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        #: Messages of batches that queues had no room for, and seconds that batches waited for it.
        self.dropped = 0
        self.held = 0.0
        #: Everybody's turn.
        self.one = DeferredLock()
        self.afar = Room(handle)
        self._some = DeferredSemaphore(MOST)
        self._queries: dict[tuple[str, str], DeferredLock] = {}
        self._told_at = -_TELL

    @asynccontextmanager
    async def of(self, owner: str, query: str) -> AsyncIterator[None]:
        """The turn of a query."""
        key = owner, query
        own = self._queries.setdefault(key, DeferredLock())
        await own.acquire()
        try:
            async with self._some:
                yield
        finally:
            own.release()
            if not own.locked and self._queries.get(key) is own:
                del self._queries[key]

    async def rest(self, seconds: float) -> None:
        """Clients have their turn."""
        rested: Deferred[None] = Deferred()
        self.handle.call_later(seconds, rested.callback, None)
        await rested

    def tell(self, what: str, dropped: int) -> None:
        """So many messages of a batch found a queue full."""
        now = self.handle.clock.seconds()
        if dropped and now - self._told_at >= _TELL:
            self._told_at = now
            self.handle.log.warn(
                "{what}: {dropped} deliveries were dropped, queues of their receivers are full"
                " (mqueue.max_length, mqueue.max_bytes)", what=what, dropped=dropped,
            )  # fmt: skip


class Pace:
    """How fast one batch goes out; `client_id` is whose messages they are."""

    def __init__(self, turns: Turns, client_id: str = "") -> None:
        self._turns = turns
        self._handle = turns.handle
        self._left = HELD
        self._waited = False
        self._full = 0
        self._client_id = client_id
        #: Messages to these topics that receivers elsewhere have room for.
        self._afar = 0
        self._topics: set[str] = set()
        self._size = 0
        #: Its messages that queues had no room for.
        self.dropped = 0

    def chunk(self, rows: list[Publish]) -> None:
        """These follow."""
        topics = {row.topic for row in rows if row.qos}
        if not topics <= self._topics:
            self._topics, self._afar = topics, 0
        self._size = max((len(row.topic) + len(row.payload) for row in rows), default=0)

    async def look(self, routed: bool) -> None:
        """Ask how much room there is elsewhere, where that is not known.

        What was published before has to be there first, or it would not be seen.
        """
        if self._afar >= SLICE or self._left <= 0 or routed or not self._topics:
            return
        since = self._handle.clock.seconds()
        there = self._handle.arrived(self._client_id)
        there.addTimeout(WAIT, self._handle.clock)
        with suppress(TimeoutError):
            await there
        self._afar = min(await self._turns.afar.of(self._topics, self._size), AGAIN)
        self._left -= self._handle.clock.seconds() - since

    def end(self, rows: list[Publish], begin: int, end: int, routed: bool) -> int:
        """Where the slice ends that begins here; at once where it is to `wait`.

        routed: its receivers have it.
        """
        kept = [row for row in rows[begin:end] if row.qos and not routed]
        if kept and self._left > 0:
            size = max(len(row.topic) + len(row.payload) for row in kept)
            room = min(self._afar, self._handle.room({row.topic for row in kept}, size))
            if room < end - begin:
                # Not one by one, where there is always room for one.
                end = begin + room if self._waited else begin
            self._afar -= end - begin
        self._waited = False
        self._full = self._count()
        return end

    async def wait(self) -> None:
        """Until receivers may have taken something."""
        since = self._handle.clock.seconds()
        await self._turns.rest(LOOK)
        waited = self._handle.clock.seconds() - since
        self._left -= waited
        self._turns.held += waited
        self._waited = True

    def gone(self) -> None:
        """The slice is published, in the turn in which its end was asked for."""
        dropped = self._count() - self._full
        self.dropped += dropped
        self._turns.dropped += dropped

    def _count(self) -> int:
        return int(self._handle.counter("dropped_queue_full"))
