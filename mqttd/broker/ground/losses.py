"""What sessions that are over leave in the journal, let go of in as many turns as it takes.

    session ends --> its row goes at once: that is what a restart knows it by
                '--> the numbers of its messages: as long as a turn has time for that, then in line,
                     some with each group; their blocks go with the last of them

Promise: `LOST` numbers a turn and group, however many sessions with full queues end in one.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mqttd.broker.ground.turns import Job, Turns
from mqttd.session.state import Keeper

__all__ = ["LOST", "Losses"]

#: Numbers of a turn: a millisecond or two, and as many rows at most.
LOST: Final = 2048


class Losses(Job):
    """Those of one broker."""

    def __init__(self, server: Keeper, turns: Turns) -> None:
        self.server = server
        self.turns = turns
        self.line: deque[list[int]] = deque()
        #: Numbers of this turn, where nobody is in line.
        self._spent: int = 0
        self._at: int = 0

    def add(self, numbers: list[int]) -> None:
        """Nobody needs these any more."""
        now = self.server.now
        if self._at != now:
            self._at = now
            self._spent = 0
        self._spent += len(numbers)
        if not self.line:
            if self._spent <= LOST:
                self._lose(numbers)
                return
            self.turns.add(self)
        self.line.append(numbers)

    def slice(self) -> bool:
        """See `Job.slice`; it goes on when the disk has this, or groups would become long."""
        room = LOST
        while self.line and room > 0:
            numbers = self.line[0]
            some = numbers[-room:]
            del numbers[-room:]
            if not numbers:
                self.line.popleft()
            self._lose(some)
            room -= len(some)
        if self.line:
            self.server.journal.when_kept(self._go_on)
        return False

    def _go_on(self) -> None:
        self.turns.add(self)

    def _lose(self, numbers: list[int]) -> None:
        journal = self.server.journal
        for number in numbers:
            journal.lost(number)
