"""Keeps the garbage collector's pauses short, however many sessions there are.

::

    young   5,000 objects    collected as Python always does         about 1 ms
    middle  15,000 objects   the same                                about 3 ms, pure Python 8
    old     everything else  frozen as it arrives: never walked      0

With three times as many in the middle whoever allocated first after 19,000 clients had come, with
an operator's list or a message, waited 10 ms, in pure Python 25.

Nothing on the path of a message makes reference cycles, so what has grown old is in use, and a full
collection would only find that out again: 183 ms with 200,000 sessions (measured, docs/design/
scale.md). Frozen objects are freed as soon as nobody refers to them, like all others; only a cycle
that grew old stays. A broker whose old objects are few enough to be walked within the budget gives
such cycles back once in ten minutes; a larger one when asked (`Garbage.collect`).
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Garbage"]

_YOUNG: Final = 5_000
_MIDDLE: Final = 1
_NEVER: Final = 1_000_000_000

#: Objects that a full collection walks within 20 ms: 0.05 to 0.1 us each.
WALKABLE: Final = 200_000
#: Blocks of memory to each object, at most.
_BLOCKS: Final = 4
#: Seconds between full collections of a broker that is small enough.
INTERVAL: Final = 600.0


class Garbage:
    """The collector's settings for a broker, and its longest pause.

    ``clock`` gives seconds (monotonic); ``on_pause(seconds)`` is told of a pause above 20 ms.
    """

    LONG = 0.020

    def __init__(
        self,
        on_pause: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_pause = on_pause
        self.clock = clock
        #: The longest pause so far, in seconds.
        self.longest: float = 0.0
        self._began = 0.0
        self._due = 0.0
        self._before: tuple[int, int, int] | None = None

    def start(self) -> None:
        """What lives from here on to the end is no work for the collector."""
        self._before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
        gc.callbacks.append(self._timed)
        self._due = self.clock() + INTERVAL

    def stop(self) -> None:
        """Leave the collector as it was."""
        if self._before is None:
            return
        gc.callbacks.remove(self._timed)
        gc.set_threshold(*self._before)
        self._before = None
        gc.unfreeze()

    def tick(self) -> None:
        """Called a few times a second: freezes what has grown old, in O(1)."""
        if gc.get_count()[2]:
            gc.freeze()
        now = self.clock()
        if now >= self._due:
            self._due = now + INTERVAL
            if self.is_small():
                self.collect()

    def is_small(self) -> bool:
        """Whether all objects can be walked within the budget.

        Counting them walks them all: 5 ms for two million. The allocator's blocks are counted by
        the page, a hundred times as fast, and there are two to four for each object.
        """
        return sys.getallocatedblocks() < _BLOCKS * WALKABLE and gc.get_freeze_count() < WALKABLE

    def collect(self) -> int:
        """A full collection, whatever it takes; returns how many objects were unreachable."""
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        return found

    def _timed(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = self.clock()
            return
        took = self.clock() - self._began
        if took > self.longest:
            self.longest = took
        if took > self.LONG and self.on_pause is not None:
            self.on_pause(took)
