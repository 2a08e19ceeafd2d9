"""How much may be under way to a neighbour: as much as it handles in some milliseconds.

    put --> written --> [ under way: at most `room` ] --> handled --TAKEN--> here
                                                             ^
                                 TELL, when somebody waits --'

Others wait behind what is under way, and few bytes may be much work: 64 KiB of short messages to
150 subscribers each are a second. So what counts is how long the other end takes for it. Where that
was long, less may be under way from now on, in one step; where it was short and somebody waited,
twice as much. Who begins after a rest begins small.

To another node the way itself takes time, there and back, which is nobody's fault, and what is on
it is under way besides: the shortest that was seen (`far`), and a quarter, since ways differ, is
taken off. It is seen from here: what the other end could say is when it has read something, not
when that had come. A way that gets longer looks like an end that is slow, until next to nothing
may be under way and it still takes as long: then it is the way.

Promise: one entry for each write that is under way, and nothing that asks for the time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["FAR", "FULL", "TOLD", "Flight"]

#: Bytes that may be under way: at most (more where the way is long), at first and after a rest, at
#: least.
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
#: Bytes of a link that a neighbour handles before it says so (`TAKEN`) without being asked.
TOLD: Final = 16 << 10
#: Milliseconds of a way that nobody has seen yet.
FAR: Final = 1 << 24
#: Nothing is under way that has to be told of.
_NEVER: Final = 1 << 60


class Flight:
    """The bytes of one link; times in milliseconds."""

    __slots__ = (
        "asked",
        "due",
        "far",
        "forgotten",
        "handled",
        "marks",
        "put_in",
        "room",
        "seen",
        "widened",
        "written",
    )

    def __init__(self) -> None:
        self.room: int = FIRST
        #: There and back, with nothing else: 0 on one machine, which is not looked at.
        self.far: int = 0
        #: Of all bytes of the link, those that were written, and put in when that was looked at.
        self.written: int = 0
        self.put_in: int = 0
        #: Those that are known to be handled; when something was put in, or told, last.
        self.handled: int = 0
        self.seen: int = 0
        #: Of what is not: so many had been put in when, and so many of them were under way.
        self.marks: deque[tuple[int, int, int]] = deque()
        #: Those before have no mark, since there was a rest behind them.
        self.forgotten: int = 0
        #: When the first of it was put in of which it would be told if it was handled.
        self.due: int = _NEVER
        #: What is to be handled when the other end answers; 0: it was not asked.
        self.asked: int = 0
        #: What was put in when more was allowed last: what that does is seen behind it.
        self.widened: int = 0

    def left(self) -> int:
        """Bytes that may be put in."""
        left = self.room - (self.written - self.handled)
        return left if left > 0 else 0

    def sent(self, written: int, waiting: int, now: int) -> None:
        """So many bytes were written, and so many wait."""
        marks = self.marks
        if not self.asked and now - self.seen > _REST:
            # Of the last bytes it is not told: they would be as old as the rest.
            marks.clear()
            self.forgotten = self.put_in
            self.due = _NEVER
            if self.room > FIRST:
                self.room = FIRST
        self.seen = now
        self.written += written
        put_in = self.written + waiting
        if put_in > self.put_in:
            self.put_in = put_in
            if marks and marks[-1][1] == now:
                marks.pop()
            marks.append((put_in, now, put_in - self.handled))
            if self.due == _NEVER and put_in > self.handled + TOLD:
                self.due = now

    def taken(self, handled: int, now: int, waited: bool) -> None:
        """So many are handled; whether somebody waits for that."""
        marks = self.marks
        self.handled = handled
        self.seen = now
        if handled >= self.asked:
            self.asked = 0
        self.due = _NEVER
        while marks and marks[0][0] < handled:
            marks.popleft()
        if not marks or handled <= self.forgotten:
            return
        # Those before may have been handled long ago: this is what was handled last.
        put_in, at, under_way = marks[0]
        if put_in == handled:
            marks.popleft()
        for mark in marks:
            if mark[0] > handled + TOLD:
                self.due = mark[1]
                break
        self._judge(under_way, now - at, waited)

    def _judge(self, under_way: int, took: int, waited: bool) -> None:
        """What was put in when so many were under way took so long."""
        far = self.far
        if took < far or (far and self.room <= _LEAST):
            self.far = took if took else 1
        usual = self._usual()
        if took > usual + _LONG:
            room = under_way * (usual + _LONG) // took
            if room < self.room:
                self.room = room if room > _LEAST else _LEAST
        elif waited and self.handled > self.widened and self.room < self._most(usual):
            if took < usual + _SHORT:
                self.room *= 2
            elif far:  # it may be the way
                self.room += self.room >> 3
            self.widened = self.put_in

    def _most(self, usual: int) -> int:
        """Bytes that may be under way: beside what is handled, what is on its way."""
        return FULL * (usual + _LONG) // _LONG if usual < _LONG * 3 else FULL * 4

    def _usual(self) -> int:
        """Milliseconds that are nobody's fault."""
        return self.far + (self.far >> 2)

    def is_far(self) -> bool:
        """Whether an answer is long in coming, however quick the other end is."""
        return self.far > _LATE

    def is_late(self, now: int) -> bool:
        """Whether what is put in now is handled late."""
        if self.put_in - self.handled <= TOLD * 2:
            return False
        return now - self.due > self._usual() + (_LONG if self.is_far() else _LATE)
