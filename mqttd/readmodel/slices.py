"""Work for operators beside the broker's own: a little in each turn of the event loop.

    iterator --next--> [at most SLICE seconds] --yield--> broker's turn --> next ...

Promise: what looks at many things holds the loop for `SLICE` seconds and one thing more at a time;
what is done within the first slice answers in the same turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Final, cast

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Cooperator

__all__ = ["SLICE", "Run", "Slice", "in_slices"]

#: Seconds of one slice.
SLICE: Final = 0.0005

#: Works an iterator off; the result fires when it has ended.
Run = Callable[[Iterator[None]], "Deferred[Any]"]


class Slice:
    """The time that is left of a slice: ``if slice.over(): yield``."""

    def __init__(self) -> None:
        self._until = perf_counter() + SLICE

    def over(self) -> bool:
        """Whether it is used up; then the next one begins."""
        now = perf_counter()
        if now < self._until:
            return False
        # The work goes on in a later turn: that slice is counted from then.
        self._until = now + SLICE
        return True

    def begin(self) -> None:
        """The turn after a yield has come."""
        self._until = perf_counter() + SLICE


def in_slices(work: Iterator[None]) -> Deferred[Any]:
    """Run an iterator a step a turn; fires when it has ended, at once if its first step is all."""
    try:
        next(work)
    except StopIteration:
        return succeed(None)
    return cast("Deferred[Any]", _ONE_STEP.cooperate(work).whenDone())


#: Twisted's own would go on for 10 ms.
_ONE_STEP: Final = Cooperator(terminationPredicateFactory=lambda: lambda: True)
