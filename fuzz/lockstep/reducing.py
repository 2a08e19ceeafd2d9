"""Makes a sequence that shows a difference as short as it gets, while it shows the same.

First runs of steps go, halves and then ever shorter ones, then parts of the steps that stay. All
that might do is played at once (the broker may have to be killed for each playing), and where
several do for themselves, they are tried together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from fuzz.lockstep.steps import Sequence

__all__ = ["AT_ONCE", "reduce"]

#: Candidates that are played together.
AT_ONCE: Final = 24
#: Which of the sequences still show it.
Shows = Callable[[list[Sequence]], list[bool]]


def reduce(sequence: Sequence, shows: Shows, seconds: float) -> Sequence:
    """The shortest that was found in this time."""
    end = time.monotonic() + seconds
    size = max(1, len(sequence.steps) // 2)
    while size and time.monotonic() < end:
        shorter = without_runs(sequence, shows, size)
        # What goes may let go what had to stay for it.
        size = size if size == 1 and shorter != sequence else size // 2
        sequence = shorter
    at = 0
    while at < len(sequence.steps) and time.monotonic() < end:
        simpler = next(simpler_ones(sequence, at, shows), None)
        sequence, at = (sequence, at + 1) if simpler is None else (simpler, at)
    return sequence


def without_runs(sequence: Sequence, shows: Shows, size: int) -> Sequence:
    """Without those of its runs of so many steps that can go."""
    steps = sequence.steps
    begins = list(range(0, len(steps), size))

    def kept(gone: list[int]) -> Sequence:
        left = [step for at, step in enumerate(steps) if at // size * size not in gone]
        return Sequence(sequence.clients, tuple(left))

    answers = shows([kept([begin]) for begin in begins])
    free = [begin for begin, fine in zip(begins, answers, strict=True) if fine]
    if not free:
        return sequence
    # All of them, or ever fewer; one does for sure.
    tried = [free[: max(1, len(free) >> n)] for n in range(len(free).bit_length())]
    shown = shows([kept(gone) for gone in tried])
    return next(
        (kept(gone) for gone, fine in zip(tried, shown, strict=True) if fine), kept(free[:1])
    )


def simpler_ones(sequence: Sequence, at: int, shows: Shows) -> Iterator[Sequence]:
    """Those with less in the step at this place that still show it."""
    candidates = sequence.simpler(at)
    while some := list(islice(candidates, AT_ONCE)):
        for candidate, fine in zip(some, shows(some), strict=True):
            if fine:
                yield candidate
