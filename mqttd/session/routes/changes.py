"""Which topics a change of subscriptions can touch: stamps to compare, filters to match.

    filter   a/b/+       -> mark of its first literal words ("a/b")
             +/+/x       -> mark of its deepest literal word ("x" on level 3)
             #           -> the mark of everything
    topic    a/b/c       -> six marks, one of which every filter that matches it has

Throwing routes away when a wildcard filter comes or goes costs as much as there are routes (30 ms
with 190,000). Instead a change puts its number on one mark and on a short list; a route that is
used compares its six marks with the change it is good for, and only if one is newer does it match
its topic against the changes since, or is built anew when they are too many.

Promise: a change costs O(levels), catching up eight comparisons where nothing touches it. Marks are
shared by hash, so a route may look in vain, never too seldom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqttd.session.routes.route import Route

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["Changes"]

_MARKS: Final = 8192
_MASK: Final = _MARKS - 1
#: Changes that are remembered as filters.
_RECENT: Final = 32
_RECENT_MASK: Final = _RECENT - 1


#: By which the marks of a word on one level, and of several words, differ.
_STEP: Final = 0x9E3779B1


def _on_level(level: int, word: str) -> int:
    """The mark of a word on a level."""
    seen: i64 = hash(word)
    step: i64 = level
    return int((seen + step * _STEP) & _MASK)


def _of_words(words: list[str], count: int) -> int:
    """The mark of the first two words, or three: of those that begin a filter or a topic."""
    seen: i64 = hash(words[0])
    seen = seen * _STEP + hash(words[1])
    if count > 2:
        seen = seen * _STEP + hash(words[2])
    return int(seen & _MASK)


class Changes:
    """The latest changes of wildcard subscriptions; `seq` is the number of the last one."""

    __slots__ = ("_all", "_recent", "_stamps", "seq")

    def __init__(self) -> None:
        self.seq: int = 0
        self._all: int = 0
        self._stamps: list[int] = [0] * _MARKS
        self._recent: list[list[str]] = [[] for _ in range(_RECENT)]

    def note(self, words: list[str]) -> None:
        """A wildcard filter of these words came, went or has other options."""
        seq = self.seq + 1
        self.seq = seq
        self._recent[seq & _RECENT_MASK] = words
        literal = 0
        for word in words:
            if word == "+" or word == "#":
                break
            literal += 1
        if literal >= 2:
            self._stamps[_of_words(words, literal)] = seq
            return
        depth = 4 if len(words) > 4 else len(words)
        while depth > 1:
            word = words[depth - 1]
            if word != "+" and word != "#":
                self._stamps[_on_level(depth, word)] = seq
                return
            depth -= 1
        if literal:
            self._stamps[_on_level(1, words[0])] = seq
        else:
            self._all = seq

    def note_all(self) -> None:
        """Everything may have changed."""
        self.note(["#"])
        self._recent[self.seq & _RECENT_MASK] = []

    def touch(self, route: Route) -> bool:
        """Whether a change since `route.seq` can have touched it: then it must be built anew."""
        since = route.seq
        words: list[str] | None = None
        if route.mark1 < 0:
            words = route.topic.split("/")
            self._set_marks(route, words)
        stamps = self._stamps
        if not (
            self._all > since
            or stamps[route.mark1] > since
            or stamps[route.mark2] > since
            or stamps[route.mark3] > since
            or stamps[route.mark4] > since
            or stamps[route.mark5] > since
            or stamps[route.mark6] > since
        ):
            return False
        seq = self.seq
        if seq - since > _RECENT:
            return True
        if words is None:
            words = route.topic.split("/")
        while since < seq:
            since += 1
            if _matches(self._recent[since & _RECENT_MASK], words):
                return True
        return False

    def _set_marks(self, route: Route, words: list[str]) -> None:
        n = len(words)
        first = _on_level(1, words[0])
        route.mark1 = first
        route.mark2 = _of_words(words, 2) if n > 1 else first
        route.mark3 = _on_level(2, words[1]) if n > 1 else first
        route.mark4 = _of_words(words, 3) if n > 2 else first
        route.mark5 = _on_level(3, words[2]) if n > 2 else first
        route.mark6 = _on_level(4, words[3]) if n > 3 else first


def _matches(words: list[str], topic: list[str]) -> bool:
    """Does a filter match a topic, both by their words? No words: anything."""
    if not words:
        return True
    n = len(topic)
    i = 0
    for word in words:
        if word == "#":
            return i > 0 or not topic[0].startswith("$")
        if i >= n:
            return False
        if word == "+":
            if i == 0 and topic[0].startswith("$"):
                return False
        elif word != topic[i]:
            return False
        i += 1
    return i == n
