"""What a benchmark's message carries, and the check of what arrives.

::

    payload:  run 4 | publisher 4 | number 8 | sent, ns 8 | filler ...

Numbers count from 0 for each publisher and topic. A subscriber sees for each of them one unbroken
row: a number that is missing was lost, one that comes again is a duplicate, one that comes late is
out of order. Cost: a dict look-up per message.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["HEADER", "Arrivals", "percentile", "stamp"]

_STAMP: Final = struct.Struct(">IIQQ")
#: Bytes of a payload that the check needs.
HEADER: Final = _STAMP.size


def stamp(run: int, publisher: int, number: int, now: int, size: int) -> bytes:
    """A payload of `size` bytes, at least `HEADER`; `now` in nanoseconds."""
    return _STAMP.pack(run, publisher, number, now).ljust(size, b"x")


class Arrivals:
    """Counts what one subscriber receives.

    :ivar late_us: latencies in microseconds, at most `SAMPLES` of them.
    """

    SAMPLES = 200_000

    def __init__(self, run: int | None = None) -> None:
        self.run = run
        self.received = 0
        self.duplicates = 0
        self.out_of_order = 0
        self.foreign = 0
        self.late_us: list[int] = []
        #: publisher -> the number expected next
        self._next: dict[int, int] = {}
        #: publisher -> numbers that were passed over and have not come yet
        self._holes: dict[int, set[int]] = {}

    def message(self, payload: bytes, now: int) -> None:
        """Take a message; `now` in nanoseconds of the same clock."""
        if len(payload) < HEADER:
            self.foreign += 1
            return
        run, publisher, number, sent = _STAMP.unpack_from(payload)
        if self.run is not None and run != self.run:
            self.foreign += 1
            return
        self.received += 1
        if len(self.late_us) < self.SAMPLES:
            self.late_us.append((now - sent) // 1000)
        expected = self._next.get(publisher)
        if expected is None:
            # A subscriber that came later starts where it came in.
            expected = number
        if number == expected:
            self._next[publisher] = number + 1
            return
        holes = self._holes.setdefault(publisher, set())
        if number > expected:
            holes.update(range(expected, min(number, expected + 1_000_000)))
            self._next[publisher] = number + 1
        elif number in holes:
            holes.remove(number)
            self.out_of_order += 1
        else:
            self.duplicates += 1

    @property
    def lost(self) -> int:
        """Numbers that were passed over and never came."""
        return sum(len(holes) for holes in self._holes.values())


def percentile(values: list[int], share: float) -> int:
    """The value below which `share` (0 to 1) of `values` lie; 0 of none."""
    if not values:
        return 0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
