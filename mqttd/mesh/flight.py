"""How much may be under way to another worker: as much as it handles in some milliseconds.

    put --> written --> [ under way: at most `room` ] --> handled --TAKEN--> here
                                                             ^
                                 TELL, when somebody waits --'

Others wait behind what is under way, and few bytes may be much work: 64 KiB of short messages to
150 subscribers each are a second. So what counts is how long the other end takes for it. Where that
was long, less may be under way from now on, in one step; where it was short and somebody waited,
twice as much. Who begins after a rest begins small.

Promise: one entry for each write that is under way, and nothing that asks for the time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["FULL", "TOLD", "Flight"]

#: Bytes that may be under way: at most, at first and after a rest, at least.
FULL: Final = 4 << 20
FIRST: Final = 16 << 10
_LEAST: Final = 512
#: Milliseconds in which they should be handled: if it took longer fewer may be, if less, more.
_LONG: Final = 50
_SHORT: Final = 20
#: After so many without anything under way it has rested.
_REST: Final = 1000
#: Older than so many milliseconds, and more than has to be told of: what is put in now is late.
_LATE: Final = 10
#: Bytes of a link that a worker handles before it says so (`TAKEN`) without being asked.
TOLD: Final = 16 << 10


class Flight:
    """The bytes of one link; times in milliseconds."""

    __slots__ = ("asked", "handled", "marks", "put_in", "room", "seen", "written")

    def __init__(self) -> None:
        self.room: int = FIRST
        #: Of all bytes of the link, those that were written, and put in when that was looked at.
        self.written: int = 0
        self.put_in: int = 0
        #: Those that are known to be handled; when something was put in last.
        self.handled: int = 0
        self.seen: int = 0
        #: Of what is not: so many had been put in when, and so many of them were under way.
        self.marks: deque[tuple[int, int, int]] = deque()
        #: What is to be handled when the other end answers; 0: it was not asked.
        self.asked: int = 0

    def left(self) -> int:
        """Bytes that may be put in."""
        left = self.room - (self.written - self.handled)
        return left if left > 0 else 0

    def sent(self, written: int, waiting: int, now: int) -> None:
        """So many bytes were written, and so many wait."""
        marks = self.marks
        if not marks and now - self.seen > _REST and self.room > FIRST:
            self.room = FIRST
        self.seen = now
        self.written += written
        put_in = self.written + waiting
        if put_in > self.put_in:
            self.put_in = put_in
            if marks and marks[-1][1] == now:
                marks.pop()
            marks.append((put_in, now, put_in - self.handled))

    def taken(self, handled: int, now: int, waited: bool) -> None:
        """So many are handled; whether somebody waits for that."""
        marks = self.marks
        under_way = 0
        took = 0
        while marks and marks[0][0] <= handled:
            _, at, under_way = marks.popleft()
            took = now - at
        self.handled = handled
        if handled >= self.asked:
            self.asked = 0
        if not under_way:
            return
        if took > _LONG:
            room = under_way * _LONG // took
            if room < self.room:
                self.room = room if room > _LEAST else _LEAST
        elif waited and took < _SHORT and self.room < FULL:
            self.room *= 2

    def is_late(self, now: int) -> bool:
        """Whether what is put in now is handled late."""
        marks = self.marks
        if not marks or self.put_in - self.handled <= TOLD * 2:
            return False
        return now - marks[0][1] > _LATE
