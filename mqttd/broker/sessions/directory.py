"""The client ids of a broker in order, for whoever turns the pages of a list.

    registry --add--> fresh --some are there, or somebody asks--> in order --after, before--> ids

Who connects and leaves again is gone before anybody has asked: a client id gets its place in the
order when somebody asks, or when `_FRESH` have none.

Promise: `add` and `remove` cost a few microseconds among 200,000 ids, and a tenth of one for who
leaves soon; `after` and `before` cost what they return, and half a millisecond at most for those
without a place. Ids come and go between two calls without one being missed or told twice.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from sortedcontainers import SortedList

__all__ = ["Directory"]

#: Client ids without a place in the order, at most.
_FRESH: Final = 256


class Directory:
    """An ordered set of client ids."""

    __slots__ = ("_fresh", "_ids")

    def __init__(self) -> None:
        self._fresh: set[str] = set()
        self._ids: SortedList[str] = SortedList()

    def __len__(self) -> int:
        return len(self._ids) + len(self._fresh)

    def add(self, client_id: str) -> None:
        """A client id that is not there yet."""
        self._fresh.add(client_id)
        if len(self._fresh) >= _FRESH:
            self._place()

    def remove(self, client_id: str) -> None:
        """A client id that is there."""
        if client_id in self._fresh:
            self._fresh.discard(client_id)
        else:
            self._ids.discard(client_id)

    def _place(self) -> None:
        """Give each its place in the order."""
        self._ids.update(self._fresh)
        self._fresh.clear()

    def after(self, client_id: str | None, count: int, inclusive: bool = False) -> list[str]:
        """At most `count` ids behind this one in order; None begins with the first."""
        self._place()
        return list(islice(self._ids.irange(minimum=client_id, inclusive=(inclusive, True)), count))

    def before(self, client_id: str | None, count: int) -> list[str]:
        """At most `count` ids before this one, the nearest first; None begins with the last."""
        self._place()
        found = self._ids.irange(maximum=client_id, inclusive=(True, False), reverse=True)
        return list(islice(found, count))
