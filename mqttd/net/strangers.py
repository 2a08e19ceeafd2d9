"""Who has come through a door and has not said yet who he is: so many in all, and of one house.

    accept --> admits? --> enter --> says who he is, or is gone --> leave
                 | no: closed before anything is done for him

At a house that has its strangers (`house_of`), and where there are too many in all, the one who is
there for longest makes room, if that is longer than `MOMENT`. Too many in all do so at once where
they come from one house: the oldest of the house with the most goes. Houses that are `known` do not
count among all: who comes from there finds a place whoever else stands at the door.

Promise: sans-I/O; at most `most` strangers, and `each` of one house; a look costs as much as those
who are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Final, Generic, Protocol, TypeVar

__all__ = ["MOMENT", "Stranger", "Strangers"]

#: Seconds that everybody has to say who he is, whoever else wants to.
MOMENT: Final = 1.0


class Stranger(Protocol):
    """One connection."""

    def close(self) -> object:
        """It makes room for another."""


S = TypeVar("S", bound=Stranger)


class Strangers(Generic[S]):
    """At most `most` strangers in all, but for those of `known` houses, and `each` of one house."""

    def __init__(self, most: int, each: int, known: Container[str] = ()) -> None:
        self.most = most
        self.each = each
        self.known = known
        #: Those who were turned away, and those who had to make room.
        self.refused = self.ended = 0
        #: Who is there, of the longest ago first: his house, and since when.
        self._there: dict[S, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._there)

    def admits(self, house: str, now: float) -> bool:
        """Whether one more of this house may come; somebody may have gone for it."""
        count = Counter(each for each, _ in self._there.values())
        if count[house] >= self.each:
            return self._make_room({house}, now)
        if house in self.known:
            return True
        others = {each for each in count if each not in self.known}
        if sum(count[each] for each in others) < self.most:
            return True
        largest = max(others, key=lambda each: count[each])
        if count[largest] > count[house] + 1:
            return self._make_room({largest}, now, 0.0)
        return self._make_room(others, now)

    def _make_room(self, houses: set[str], now: float, moment: float = MOMENT) -> bool:
        """Whether the one of these houses who is there for longest has gone."""
        for stranger, (house, since) in self._there.items():
            if house in houses:
                if now - since < moment:
                    break
                self.ended += 1
                self.leave(stranger)
                stranger.close()
                return True
        self.refused += 1
        return False

    def enter(self, stranger: S, house: str, now: float) -> None:
        """He has come."""
        self._there[stranger] = (house, now)

    def leave(self, stranger: S) -> None:
        """He is none any more, or is gone."""
        self._there.pop(stranger, None)
