"""What happens in a broker as it happens: one bounded ring, and readers that have a place in it.

    the log's events, alarms ----.
    figures, once a second -------> ring: (number, kind, bytes)  --Reader.take--> server-sent events
                                     at most BYTES and EVENTS      lost(n) where it was overtaken

A reader is a number: a hundred of them cost no more memory than one, and one that does not read is
overtaken and told by how much. Its last number lets it go on where its connection broke.

Promise: while nobody reads, an event costs one look at an empty list, and nothing runs.
Source: HTML Living Standard, 9.2 (server-sent events).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, Protocol

from mqttd.net.clock import day
from mqttd.readmodel.figures import Reading

__all__ = ["KINDS", "PIECE", "Feed", "Reader"]

#: Events and their bytes that are kept.
EVENTS: Final = 4096
BYTES: Final = 1 << 20
#: Bytes that a reader is given at once: hundreds of them may take them slowly.
PIECE: Final = 128 << 10
#: Seconds between two readings of the figures.
EVERY: Final = 1.0

#: What a reader may ask for, and the broker's events that are of that kind.
KINDS: Final[dict[str, frozenset[str]]] = {
    "clients": frozenset(
        ("connected", "disconnected", "disconnected by client", "connect refused")
    ),
    "alarms": frozenset(("alarm raised", "alarm cleared")),
    "denials": frozenset(("denied",)),
    "faults": frozenset(("protocol fault", "connection refused", "internal error", "overload")),
    "counters": frozenset(),
}
_KIND_OF: Final = {event: kind for kind, events in KINDS.items() for event in events}


class Figures(Protocol):
    """Whose counters and gauges are told."""

    def read(self) -> Reading:
        """All of them now."""


class Feed:
    """The ring of one broker.

    Arguments: its figures; `listen(callback)` and `unlisten(callback)` begin and end that
    ``callback(event, fields)`` is told of the broker's events; the reactor, whose clock is read.
    """

    def __init__(
        self,
        figures: Figures,
        listen: Callable[[Any], None],
        unlisten: Callable[[Any], None],
        reactor: Any,
    ) -> None:
        self.figures = figures
        self.reactor = reactor
        self._listen = listen
        self._unlisten = unlisten
        self._ring: deque[tuple[int, str, bytes]] = deque()
        self._bytes = 0
        #: Number of the next event; begins with the time, so that a restart repeats none.
        self._next = self.first = int(day(reactor) * 1000)
        self._readers: set[Reader] = set()
        self._call: Any = None

    def __len__(self) -> int:
        """Return how many read."""
        return len(self._readers)

    def read(self, kinds: frozenset[str], after: int | None = None) -> Reader:
        """A reader of these kinds, from now on or from behind the event numbered `after`."""
        if not self._readers:
            self._listen(self.say)
            self._tick()
        reader = Reader(self, kinds, self._next - 1 if after is None else after)
        self._readers.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        """A reader has gone."""
        self._readers.discard(reader)
        if not self._readers:
            self._unlisten(self.say)
            if self._call is not None and self._call.active():
                self._call.cancel()
            self._call = None
            self._ring.clear()
            self._bytes = 0

    def say(self, event: str, fields: Mapping[str, object]) -> None:
        """The broker tells of an event; those that nobody could ask for are left out."""
        kind = _KIND_OF.get(event)
        if kind is not None:
            told = {name: value for name, value in fields.items() if name != "traceback"}
            self._put(kind, {"event": event, **told})

    def after(self, number: int) -> tuple[int, list[tuple[int, str, bytes]]]:
        """How many events behind this number are lost, and those that are there."""
        ring = self._ring
        if not ring:
            return max(0, self._next - 1 - number), []
        first = ring[0][0]
        start = number + 1 - first
        if start >= 0:
            return 0, list(islice(ring, start, None))
        return -start, list(ring)

    @property
    def last(self) -> int:
        """Number of the last event."""
        return self._next - 1

    def _put(self, kind: str, told: Mapping[str, object]) -> None:
        number = self._next
        self._next += 1
        data = json.dumps(told, default=str, separators=(",", ":"))
        entry = f"id: {number}\nevent: {kind}\ndata: {data}\n\n".encode("utf-8", "replace")
        self._ring.append((number, kind, entry))
        self._bytes += len(entry)
        while self._bytes > BYTES or len(self._ring) > EVENTS:
            self._bytes -= len(self._ring.popleft()[2])

    def _tick(self) -> None:
        if any("counters" in reader.kinds for reader in self._readers):
            found = self.figures.read()
            self._put(
                "counters",
                {
                    "at": round(day(self.reactor), 3),
                    "counters": found.counters,
                    "gauges": found.gauges,
                },
            )
        self._call = self.reactor.callLater(EVERY, self._tick)


class Reader:
    """One place in a feed."""

    def __init__(self, feed: Feed, kinds: frozenset[str], place: int) -> None:
        self.feed = feed
        self.kinds = kinds
        self.place = max(feed.first - 1, min(place, feed.last))
        #: It goes on behind an event of before this process: nobody knows how many it has missed.
        self.late = place < feed.first - 1

    def take(self) -> bytes:
        """What came since the last call, as server-sent events; b"" if nothing did.

        Of more than `PIECE` bytes the rest comes with the next call.
        """
        lost, found = self.feed.after(self.place)
        pieces = [b'event: lost\ndata: {"events":%d}\n\n' % lost] if lost else []
        if self.late:
            self.late = False
            pieces = [b'event: lost\ndata: {"events":null}\n\n']
        size = 0
        for number, kind, entry in found:
            if kind in self.kinds:
                size += len(entry)
                if size > PIECE and pieces:
                    self.place = number - 1
                    break
                pieces.append(entry)
        else:
            self.place = self.feed.last
        return b"".join(pieces)

    def close(self) -> None:
        """It reads no more."""
        self.feed.leave(self)
