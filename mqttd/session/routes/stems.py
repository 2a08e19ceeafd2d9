"""The words of topics that decide: all topics that have those have one route.

    filters  #   plant/+/t/#   plant/7/x

    (start) --plant--> . --7-----> . --x------> (#  plant/7/x)    where it ends here
                       |           `-others-> [#]
                       |     ----> . --t-----> [#  plant/+/t/#]   whatever follows
                       |             `-others-> [#]
            --others-> [#]

With more topics in use than the processor's cache holds, a look-up of the whole topic is mostly
waiting for memory, and a topic that was never seen has to be walked through the filters. But words
that no filter names change nothing: all `plant/8/t/...` lead to the same receivers. `Stems` is that
walk, done once for the words that filters tell apart (an automaton that is made as topics come),
and checks the topic on the way. Where no filter goes on it need not look at words any more.

Only for what needs nothing but its bytes, or is kept whatever its topic, of clients that may
publish anywhere, or below their realms (`dev/7/`): what does not begin so is looked up. `Topics` is
the slow twin (tests/unit/session/test_stems.py). Promise: one pass over the topic; bounded in
stems, which are thrown away when a subscription changes that may concern them, and rest where they
bring nothing. MQTT 5.0, 4.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqttd.codec.scan import is_utf8
from mqttd.session.routes.route import KEPT, Route

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["LOST", "PENDING", "Stem", "Stems"]

#: What stems have brought, in topics that they have led: below `_LOSS` they rest for `_REST`
#: chunks. So it is where subscriptions change all the time, or topics are looked up all the same.
_GAIN: Final = 4096
_LOSS: Final = -4096
_REST: Final = 4096


class Stem:
    """Where a topic is that has begun with some words, and goes on, or ends."""

    __slots__ = ("below", "end", "others", "route")

    def __init__(self) -> None:
        #: Of all topics that go on from here, once nothing that follows can change it.
        self.route: Route | None = None
        #: Of those that end here, once one has; its messages may need more than their bytes.
        self.end: Route | None = None
        #: By the next word, for those that a filter names; and what any other word leads to.
        self.below: dict[bytes, Stem] = {}
        self.others: Stem | None = None


#: Topics that begin so are looked up.
LOST: Final = Stem()
#: A filter names this word, and no topic has come that has it.
PENDING: Final = Stem()


class Stems:
    """All of them, by the root, and whose topics are looked at now."""

    def __init__(self) -> None:
        self.root: Stem | None = None
        #: Of a topic.
        self.most_levels: int = 0
        self.most_bytes: int = 0
        self.worth: int = 0
        #: What the routes are told of who publishes: see `Route.right`.
        self.right: int = -2
        self.epoch: int = -1
        #: Beginnings of topics, with their last `/`, that this client may publish to; None: all.
        self.realms: list[bytes] | None = None
        self._rest: int = 0

    def begin(self) -> Stem | None:
        """The stem of all topics but those that begin with `$`; None: there can be none now."""
        raise NotImplementedError

    def step(self, stem: Stem, word: bytes) -> Stem:
        """The stem behind one more word, which leads on from `stem` for the first time."""
        raise NotImplementedError

    def finish(self, stem: Stem) -> Route:
        """The route of all topics that end at `stem`, asked for by the first of them."""
        raise NotImplementedError

    def forget(self) -> None:
        """What they were made of has changed; they are made anew when they are needed."""
        self.root = None

    def serve(
        self,
        right: int,
        epoch: int,
        most_levels: int,
        most_bytes: int,
        realms: list[bytes] | None = None,
    ) -> bool:
        """Whether there are any for a chunk of a client of the class `right`.

        most_levels, most_bytes: of a topic; realms: below which alone it may publish anything.
        """
        if self._rest:
            self._rest -= 1
            return False
        if self.worth < _LOSS:
            self.worth = 0
            self._rest = _REST
            return False
        if self.worth > _GAIN:
            self.worth = _GAIN
        if self.root is None:
            self.root = self.begin()
        self.right = right
        self.epoch = epoch
        self.most_levels = most_levels
        self.most_bytes = most_bytes
        self.realms = realms
        return self.root is not None and self.root is not LOST

    def along(self, data: bytes, start: int, end: int) -> Route | None:
        """The route of the topic from `start` to `end`; None where it has to be looked up.

        What is no valid topic name is left to the look-up, which says so.
        """
        i: i64 = start
        stop: i64 = end
        stem = self.root
        if stem is None or i == stop or end - start > self.most_bytes or data[i] == 0x24:
            return None
        if self.realms is not None and not _begins(data, start, end, self.realms):
            return None
        self.worth -= 1
        route = stem.route
        at: i64 = i
        levels: i64 = 1
        seen: i64 = 0
        while i < stop:
            b: i64 = data[i]
            if b <= 0x2F:
                if b == 0x2F:
                    levels += 1
                    if route is None:
                        stem = self._below(stem, data, at, i)
                        if stem is LOST:
                            return None
                        route = stem.route
                        at = i + 1
                elif b == 0x2B or b == 0x23 or b == 0:
                    return None
            seen |= b
            i += 1
        if levels > self.most_levels:
            return None
        if route is None:
            stem = self._below(stem, data, at, stop)
            if stem is LOST:
                return None
            route = stem.end
            if route is None:
                route = self.finish(stem)
            if route.gear & ~KEPT:
                return None
        if seen >= 0x80 and not is_utf8(data[start:end]):
            return None
        self.worth += 2
        route.right = self.right
        route.epoch = self.epoch
        return route

    def _below(self, stem: Stem, data: bytes, at: i64, end: i64) -> Stem:
        """The stem behind the next word, from `at` to `end`; many a stem tells none apart."""
        below = stem.others
        if stem.below:
            named = stem.below.get(data[at:end])
            if named is not None:
                below = named
        if below is None or below is PENDING:
            below = self.step(stem, data[at:end])
        return below


def _begins(data: bytes, start: int, end: int, realms: list[bytes]) -> bool:
    """Whether the topic from `start` to `end` begins with one of these."""
    for realm in realms:
        stop = start + len(realm)
        if stop <= end and data[start:stop] == realm:
            return True
    return False
