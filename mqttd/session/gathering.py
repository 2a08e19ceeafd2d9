"""Acknowledgements that one keeper keeps group by group: it is asked once a turn, whoever sent.

    a turn: wait, wait, ... --its end--> brought()          the keeper has a group closed, or waits
    close(end)    what waits now is kept when all before `end` is
    keep(upto)    it is: acknowledgements of a connection go together

The slow way is to be called for each client (`Holder.hold`); `careful` has that done.

Promise: a promise costs an append here and a call when it is kept, nothing of it interpreted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mqttd.session.ground.connection import Ending, Turn
from mqttd.session.promise import Promise

__all__ = ["Gathering"]


class Gathering(Ending):
    """What waits for one keeper; `brought` says False where it could not be asked: `refused` then
    has the promises of the turn, which nobody has taken.
    """

    __slots__ = ("_closed", "_fresh", "_turn", "_waiting", "brought", "careful", "holder",
                 "refused")  # fmt: skip

    def __init__(
        self,
        turn: Turn,
        brought: Callable[[], bool],
        refused: Callable[[list[Promise]], None],
    ) -> None:
        #: Under which name promises wait (`Promise.keep`).
        self.holder: object = self
        self.brought = brought
        self.refused = refused
        #: It has to be asked about each client.
        self.careful: bool = False
        self._turn = turn
        #: What this turn has brought; what waits for the group that is open; for those closed.
        self._fresh: list[Promise] = []
        self._waiting: list[Promise] = []
        self._closed: deque[tuple[int, list[Promise]]] = deque()

    def __len__(self) -> int:
        count = len(self._waiting)
        for _, waiting in self._closed:
            count += len(waiting)
        return count

    def wait(self, promise: Promise) -> None:
        """Keep this with the group that is open."""
        self._waiting.append(promise)
        if not self._fresh:
            self._turn.endings.append(self)
        self._fresh.append(promise)

    def end_turn(self) -> None:
        """Ask once about what the turn has brought."""
        fresh = self._fresh
        self._fresh = []
        if not self.brought():
            self.refused(fresh)

    def waits(self) -> bool:
        """Whether something waits for the group that is open."""
        return len(self._waiting) > 0

    def acknowledgements(self) -> int:
        """How many they are."""
        count = 0
        for promise in self._waiting:
            count += promise.count
        return count

    def close(self, end: int) -> None:
        """What waits now is kept when everything before `end` is."""
        if self._waiting:
            self._closed.append((end, self._waiting))
            self._waiting = []

    def release(self, upto: int) -> None:
        """As `keep`, between two turns: what goes is written."""
        if self.keep(upto):
            self._turn.perform()

    def keep_soon(self, upto: int) -> None:
        """As `keep`, maybe within a turn: what goes is written at its end, or in the next one."""
        if self.keep(upto):
            self._turn.perform_later()

    def keep(self, upto: int) -> bool:
        """Everything before `upto` is kept; whether somebody waited for that."""
        closed = self._closed
        holder = self.holder
        kept = False
        while closed and closed[0][0] <= upto:
            _, waiting = closed.popleft()
            kept = True
            for promise in waiting:
                promise.keep(holder)
        return kept
