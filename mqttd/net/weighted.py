"""Who waits, by address and by how much each asks for: each address gets as much as any other.

    10.0.0.7   40,000  40,000  40,000     the next: 300 of .8, 300 and 300 of .9, then the long ones
    10.0.0.8   300
    10.0.0.9   300     300

An item is due when its house (`mqttd.net.fair`) has had what it and those before it weigh, counted
from where the last one to go was due. So who asks for little waits for nobody who asks for much,
and who asks for much only until each of the others has had as much.

Promise: to join and to be the next cost a heap's logarithm; nothing is kept of a house of which
nobody waits.
"""

from __future__ import annotations

from collections.abc import Container
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

__all__ = ["WeightedQueue"]

T = TypeVar("T")


class WeightedQueue(Generic[T]):
    """Those who wait, in the order in which they are due; among equals who came first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str, T]] = []
        #: When the last one of a house is due.
        self._last: dict[str, int] = {}
        #: When the last one that has gone was.
        self._at = 0
        self._joined = 0

    def __len__(self) -> int:
        return len(self._heap)

    def join(self, house: str, weight: int, item: T) -> None:
        """Stand in line, behind others of the same house."""
        due = self._last[house] = self._last.get(house, self._at) + weight
        self._joined += 1
        heappush(self._heap, (due, self._joined, house, item))

    def first(self) -> T:
        """Whose turn it is; raises IndexError where nobody waits."""
        return self._heap[0][3]

    def next(self) -> T:
        """The same, who waits no longer."""
        due, _, house, item = heappop(self._heap)
        self._at = due
        if self._last[house] == due:
            del self._last[house]
        return item

    def keep(self, those: Container[T]) -> None:
        """All others wait no longer."""
        self._heap = [each for each in self._heap if each[3] in those]
        heapify(self._heap)
        self._last = {}
        for due, _, house, _ in self._heap:
            self._last[house] = max(due, self._last.get(house, 0))
