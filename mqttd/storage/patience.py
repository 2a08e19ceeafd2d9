"""Whether a group waits a moment before it is closed, so that nothing or less of it is written.

    LAZY      it says what is over, and nobody waits for it    20 ms, for more of that
    ANSWERED  clients that are there are sent something, and   1 ms, or until all have acknowledged:
              publishers wait for it to be kept                then there is nothing to keep
    PROMPT    anything else                                    not at all

A message for somebody who is there was written when it came and deleted when it was acknowledged,
two transactions that took three times what the message did. Where acknowledgements come later than
that they are waited for seldom: after each time in vain twice as many groups are closed at once.

Promise: a publisher waits a millisecond longer at most, in one of 64 groups where that is in vain.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ANSWERED", "LAZY", "PROMPT", "Patience"]

LAZY: Final = 0
ANSWERED: Final = 1
PROMPT: Final = 2

#: Nanoseconds in which clients may acknowledge, and in which what is over is gathered.
_ANSWER: Final = 1_000_000
_GATHER: Final = 20_000_000
#: Groups that are closed at once between two for which it is tried.
_MANY: Final = 64


class Patience:
    """That of one journal."""

    __slots__ = ("_at_once", "_in_vain", "_since", "urge")

    def __init__(self) -> None:
        #: Of what has been told since the last group: one of the three.
        self.urge: int = LAZY
        #: When the group at hand was first asked for, in nanoseconds; 0: it was not.
        self._since: int = 0
        #: Groups that are closed at once from here on, and how many there were the last time.
        self._at_once: int = 0
        self._in_vain: int = 0

    def answered(self) -> None:
        """Something is sent that may be acknowledged before it is written."""
        if self.urge == LAZY:
            self.urge = ANSWERED

    def wait(self, lives: bool, now: int) -> int:
        """Nanoseconds to wait before it is closed, 0: none; lives: there is something to keep."""
        if self.urge == PROMPT:
            return 0
        answered = self.urge == ANSWERED
        if lives != answered or (answered and self._at_once):
            return 0
        if not self._since:
            self._since = now
        return max(self._since + (_ANSWER if answered else _GATHER) - now, 0)

    def closed(self, lives: bool) -> bool:
        """It is closed; whether that was waited for."""
        waited = self._since > 0
        if self.urge == ANSWERED:
            if not lives:
                self._in_vain = 0
            elif self._at_once:
                self._at_once -= 1
            elif self._since:
                self._in_vain = min(max(self._in_vain * 2, 1), _MANY)
                self._at_once = self._in_vain
        self.urge = LAZY
        self._since = 0
        return waited
