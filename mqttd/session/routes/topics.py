"""All topics in use on this node: from their bytes to their route, looked up once for everybody.

    PUBLISH bytes --slice--> key --table--> Route   valid name, receivers, gear, who may
                                      |
                                      +-- behind the changes? caught up with, or built in place
                                      +-- full? the clock's hand takes what was not used lately

A publisher pays one dict look-up per message, whoever else publishes there; a topic is validated,
walked through the trie and judged by the rules once. Changes of subscriptions touch no route: each
looks for itself when it is used next (`mqttd.session.routes.changes`). A `Route` is rebuilt in
place, so whoever holds it holds the current one.

Promise: bounded in entries and in bytes, the weight of a route counted when it enters and when its
receivers change; a topic that nobody uses is gone two minutes later. A cyclic set that is larger
than the cache costs what missing costs (a trie walk), not more.
"""

from __future__ import annotations

from typing import Final

from mqttd.session.routes.ahead import Ahead
from mqttd.session.routes.changes import Changes
from mqttd.session.routes.route import KEPT, Route
from mqttd.session.routes.sights import Sights
from mqttd.session.routes.stems import Stems

__all__ = ["Topics"]

#: Bytes that a route without receivers takes beside its name: the object, its key, the entries in
#: table and ring (measured of RSS, topic of 20 bytes: 467 B, with a receiver of its own 90 more).
_ENTRY: Final = 500
#: Bytes per receiver in the lists of a route.
_RECEIVER: Final = 18
#: More than a cache may have: what a route is counted with has 32 bits.
_HEAVIEST: Final = 1 << 30
#: Bytes put into outputs that are a unit of work, as a power of two: a thousand receivers have 40
#: messages of 1 KiB a turn.
_POURED: Final = 13
#: Units of work of a route that is built, beside its receivers.
_BUILD: Final = 10
#: A table that has had so many times as many routes is copied to a smaller one: a millisecond for
#: 10,000 of them.
_SPARSE: Final = 8
#: Milliseconds in which the hand goes round once where nobody publishes.
_ROUND: Final = 60_000


class Topics:
    """The cache of routes; `max_bytes` and `max_entries` bound it.

    selective: routes from which on one is kept only when its topic is seen for the second time.
    """

    def __init__(self, max_bytes: int, max_entries: int, selective: int = 65_536) -> None:
        self.table: dict[bytes, Route] = {}
        self.changes = Changes()
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self.selective = selective
        #: What the routes weigh, in bytes.
        self.bytes: int = 0
        self.evicted: int = 0
        #: Units of work that the connection in turn has caused: routes built, deliveries.
        self.work: int = 0
        #: Bytes that it has put into the output of others: each of them is copied for each.
        self.poured: int = 0
        #: Bytes of topics for which aliases have stood so far: nobody has sent them.
        self.named: int = 0
        #: The routes of the chunk that is being handled, if they were looked up together.
        self.ahead: Ahead | None = None
        #: Of topics whose first words decide; None: all are looked up.
        self.stems: Stems | None = None
        #: That of the last message of QoS 0: what follows may be of it, too.
        self.latest: Route | None = None
        #: The routes, without holes: where one goes, the last one takes its place.
        self._ring: list[Route] = []
        #: Topics that were seen once, where there are many; and the route of the last of them.
        self._sights: Sights | None = None
        self._passing = Route("")
        #: The most routes that the table has had room for since it was made.
        self._room: int = 0
        self._hand: int = 0
        #: Routes when the hand last came by the first: a step drops one, or goes on by one.
        self._lap: int = 0
        self._swept: int = 0
        #: Steps of the hand that are due, in parts of `_ROUND`.
        self._due: int = 0

    def build(self, route: Route) -> None:
        """Collect the receivers of `route.topic` anew, and what its messages need."""
        raise NotImplementedError

    # -- use -----------------------------------------------------------------------------------

    def meet(self, key: bytes, topic: str) -> Route:
        """The route of a valid topic that is not in the table, until the next one is asked for.

        Among many it enters when it is seen for the second time, or needs more than its bytes.
        """
        if len(self.table) < self.selective:
            return self.enter(key, topic)
        sights = self._sights
        if sights is None:
            sights = Sights()
            self._sights = sights
        if sights.again(key):
            return self.enter(key, topic)
        route = self._passing
        route.rename(topic, key)
        self._build(route)
        if route.gear & ~KEPT:
            self._passing = Route("")
            self._keep(route)
        return route

    def enter(self, key: bytes, topic: str) -> Route:
        """A valid topic that is not in the table, and is from now on."""
        route = Route(topic, key)
        self._build(route)
        self._keep(route)
        return route

    def _keep(self, route: Route) -> None:
        self._weigh(route)
        while self.table and (self.bytes > self.max_bytes or len(self.table) >= self.max_entries):
            self._evict()
        route.place = len(self._ring)
        self._ring.append(route)
        self.table[route.key] = route
        if len(self._ring) > self._room:
            self._room = len(self._ring)

    def name_of(self, route: Route, data: bytes, start: int, end: int) -> bytes:
        """The topic for those who keep messages, which lies in `data` from `start` to `end`.

        The same object for all messages, as long as the table has the route (`Route.name`): a queue
        of thousands holds it once, and whoever compares sees that at once.
        """
        name = data[start:end]
        if route.place >= 0:
            route.name = name
            self._weigh(route)
        return name

    def pour(self, size: int, receivers: int) -> None:
        """So many bytes go to so many receivers."""
        size *= receivers
        self.poured += size
        self.work += size >> _POURED

    def send_on(self, size: int, receivers: int, light: int) -> None:
        """So many bytes go to so many receivers as they came (light: `LIGHT0`, `LIGHT1`)."""
        self.work += receivers >> light
        self.pour(size, receivers)

    def catch_up(self, route: Route) -> None:
        """Subscriptions have changed since this route was good: does it concern it?"""
        if route.seq < 0 or self.changes.touch(route):
            self._rebuild(route)
            if route.place >= 0:
                self._weigh(route)
        else:
            route.seq = self.changes.seq

    def of(self, topic: str) -> Route:
        """The current route of a valid topic name."""
        raw = topic.encode()
        return self.at(len(raw).to_bytes(2, "big") + raw, topic)

    def at(self, key: bytes, topic: str = "") -> Route:
        """The same by the topic's bytes, with their two of length; `topic`: if it is known."""
        route = self.table.get(key)
        if route is None:
            return self.enter(key, topic or key[2:].decode())
        if route.seq != self.changes.seq:
            self.catch_up(route)
        route.seen = True
        return route

    def _rebuild(self, route: Route) -> None:
        route.clear()
        self._build(route)

    def _build(self, route: Route) -> None:
        self.build(route)
        self.work += _BUILD + len(route.sessions)
        route.seq = self.changes.seq

    def _weigh(self, route: Route) -> None:
        weight = _ENTRY + 2 * len(route.key) + len(route.name) + _RECEIVER * len(route.sessions)
        if route.heft:
            weight += min(route.heft, _HEAVIEST)
        before: int = route.weight
        self.bytes += weight - before
        route.weight = weight

    # -- changes -------------------------------------------------------------------------------

    def wildcard_changed(self, words: list[str]) -> None:
        """A subscription to a wildcard filter of these words came, went or has other options."""
        self.forget_stems()
        self.changes.note(words)

    def literal_changed(self, topic_filter: str) -> None:
        """A subscription to a filter without wildcards came, went or has other options."""
        if self.table:
            raw = topic_filter.encode()
            route = self.table.get(len(raw).to_bytes(2, "big") + raw)
            if route is not None:
                route.seq = -1

    def all_changed(self) -> None:
        """What the messages of any topic need may have changed."""
        self.forget_stems()
        self.changes.note_all()

    def forget_stems(self) -> None:
        """What stems were made of has changed."""
        if self.stems is not None:
            self.stems.forget()
            self.ahead = None  # it may hold some of them

    # -- room ----------------------------------------------------------------------------------

    def _evict(self) -> None:
        """Second chance: drop the first that was not used since the hand came by."""
        ring = self._ring
        hand = self._hand
        while True:
            if hand >= len(ring):
                hand = 0
            route = ring[hand]
            if not route.seen:
                self._drop(route)
                break
            route.seen = False
            hand += 1
        self._hand = hand
        self.evicted += 1

    def _drop(self, route: Route) -> None:
        last = self._ring.pop()
        if last is not route:
            self._ring[route.place] = last
            last.place = route.place
        del self.table[route.key]
        weight: int = route.weight
        self.bytes -= weight
        route.weight = 0
        # Whoever still holds it has to look: nobody tells it of changes any more.
        route.place = -1
        route.seq = -1

    def drop_cache(self) -> None:
        """Forget all topics: memory is short."""
        self.forget_stems()
        while self._ring:
            self._drop(self._ring[-1])
        self._shrink()

    def sweep(self, now: int) -> None:
        """Called a few times a second: move the hand on, and drop what was not used for a round."""
        since = now - self._swept
        self._swept = now
        self._passing.clear()
        self.forget_stems()
        if not self._ring:
            return
        n = len(self._ring)
        if n < self._lap:
            n = self._lap
        self._due += n * (since if since < 1000 else 1000)
        steps = self._due // _ROUND
        self._due -= steps * _ROUND
        hand = self._hand if self._hand < len(self._ring) else 0
        while steps > 0:
            steps -= 1
            route = self._ring[hand]
            if route.seen:
                route.seen = False
                hand += 1
            else:
                self._drop(route)
            if hand >= len(self._ring):
                hand = 0
                self._lap = len(self._ring)
                break  # whoever was looked at has until the next time at least
        self._hand = hand
        if len(self.table) * _SPARSE < self._room:
            self._shrink()

    def _shrink(self) -> None:
        """A dict keeps the room that it once had; there are always some topics, those of $SYS."""
        self.table = dict(self.table)
        self._room = len(self.table)
