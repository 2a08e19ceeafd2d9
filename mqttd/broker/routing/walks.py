"""Stems made of the filters: the walk of `Trie.match`, a word at a time, for all topics at once.

    levels that the words so far lead to --word--> those below it and below `+`
       |         `-- none of them leads on: what was matched by `#` is all there will be
       `-- the topic ends: what was matched by `#`, and those of them that end a filter

A literal filter is in no trie: topics whose first word some literal filter has are looked up. Those
below a mountpoint are where its clients' wildcards do not match every word.

Promise: stems and their words are `_MOST` at most, about a megabyte, half of them of one stem; the
first words of literal filters are counted up to `_HEADS`, beyond that there are no stems until the
literal filters have gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqttd.broker.routing.gears import Gears
from mqttd.broker.routing.mounts import Mounts
from mqttd.broker.routing.trie import Level, Trie
from mqttd.session.routes.route import KEPT, Route
from mqttd.session.routes.stems import LOST, PENDING, Stem, Stems

__all__ = ["Walk", "Walks"]

_MOST: Final = 8192
_HEADS: Final = 1024
#: What a stem costs besides its words, in topics that have to be led: each of them saves 0.2
#: microseconds, and one to three where it was never seen before.
_PRICE: Final = 8


class Walk(Stem):
    """A stem with the levels that it leads to, and the filters that match whatever follows."""

    __slots__ = ("levels", "matched")

    def __init__(self, levels: list[Level], matched: list[Level]) -> None:
        super().__init__()
        self.levels = levels
        self.matched = matched


class Walks(Stems):
    """The stems of a router.

    lead: makes a route to the receivers of some filters.
    """

    def __init__(
        self, trie: Trie, gears: Gears, mounts: Mounts, lead: Callable[[list[Level]], Route]
    ) -> None:
        super().__init__()
        self._trie = trie
        self._gears = gears
        self._mounts = mounts
        self._lead = lead
        #: First words of literal filters and how many have each; None: too many words.
        self.heads: dict[str, int] | None = {}
        #: Stems and their words.
        self.size: int = 0

    def literal_came(self, topic_filter: str) -> bool:
        """A literal filter has its first subscriber; whether topics were led that are not now."""
        heads = self.heads
        if heads is None:
            return False
        head = _head(topic_filter)
        known = heads.get(head, 0)
        heads[head] = known + 1
        if not known and len(heads) > _HEADS:
            self.heads = None
        return not known

    def literal_went(self, topic_filter: str, left: int) -> None:
        """A literal filter has lost its last one; so many literal filters are left."""
        heads = self.heads
        if not left:
            self.heads = {}
        elif heads is not None:
            head = _head(topic_filter)
            known = heads.get(head, 0)
            if known > 1:
                heads[head] = known - 1
            else:
                heads.pop(head, None)

    def begin(self) -> Stem | None:
        """See `Stems.begin`."""
        heads = self.heads
        if heads is None or self._gears.alike() < 0:
            return None
        self.size = 0
        made = self._made([self._trie.root], [], list(heads))
        if made is not LOST:
            for head in heads:
                made.below[head.encode()] = LOST
        return made

    def step(self, stem: Stem, word: bytes) -> Stem:
        """See `Stems.step`."""
        assert isinstance(stem, Walk)
        if self.size >= _MOST:
            return LOST
        try:
            text = word.decode()
        except UnicodeDecodeError:
            return LOST
        levels: list[Level] = []
        for level in stem.levels:
            below = level.below(text)
            if below is not None:
                levels.append(below)
            if level.plus is not None:
                levels.append(level.plus)
        made = LOST
        if not self._mounts.begin_at(levels):
            made = self._made(levels, stem.matched, [])
        if word in stem.below:
            stem.below[word] = made
        else:
            stem.others = made
        return made

    def finish(self, stem: Stem) -> Route:
        """See `Stems.finish`."""
        assert isinstance(stem, Walk)
        ends = [level for level in stem.levels if level.held is not None]
        route = stem.route
        if ends or route is None:
            route = self._lead([*stem.matched, *ends])
        stem.end = route
        return route

    def _made(self, levels: list[Level], before: list[Level], names: list[str]) -> Stem:
        """The stem that leads to these levels; it has these names besides those of filters."""
        matched = list(before)
        leads_on = bool(names)
        count = len(names)
        for level in levels:
            if level.hash is not None:
                matched.append(level.hash)
            literal = level.literal
            if isinstance(literal, dict):
                count += len(literal)
            elif literal is not None:
                count += 1
            leads_on = leads_on or level.plus is not None
        self.worth -= _PRICE + count
        if count > _MOST // 2 or self.size + count >= _MOST:
            return LOST
        self.size += 1 + count
        made = Walk(levels, matched)
        for level in levels:
            literal = level.literal
            if isinstance(literal, dict):
                for name in literal:
                    made.below[name.encode()] = PENDING
            elif literal is not None:
                made.below[literal.word.encode()] = PENDING
        if not leads_on and not count:
            route = self._lead(matched)
            if route.gear & ~KEPT:
                return LOST
            made.route = route
        return made


def _head(topic_filter: str) -> str:
    return topic_filter.split("/", 1)[0]
