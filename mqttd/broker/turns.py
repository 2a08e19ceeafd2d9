"""Work that takes more than a turn: slices of it, in turn, with clients served in between.

    long SUBSCRIBE, end of a session, bans, ... --add--> Turns    o o o o
                                                          |  a few slices a turn, each job once
                                                          '--> those that have more go behind

Promise: a job that is alone costs a turn of the loop per slice and nothing else; of many each waits
for as many slices as there are jobs, and no turn has more than `SLICES` of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["SLICES", "Job", "Turns"]

#: Slices of one turn; one is some milliseconds at most.
SLICES: Final = 2


class Job:
    """Something that is done in slices."""

    def slice(self) -> bool:
        """Do a part; whether more is left. It sees to what it raises itself."""
        raise NotImplementedError


class Turns:
    """The jobs of one broker. `soon` runs something in a later turn, `done` ends one."""

    def __init__(
        self, soon: Callable[[Callable[[], None]], object], done: Callable[[], None]
    ) -> None:
        self._soon = soon
        self._done = done
        self._jobs: deque[Job] = deque()
        self._scheduled: bool = False

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Do the rest of this job in later turns."""
        self._jobs.append(job)
        if not self._scheduled:
            self._scheduled = True
            self._soon(self.turn)

    def turn(self) -> None:
        """The next slices."""
        self._scheduled = False
        for _ in range(SLICES if len(self._jobs) > SLICES else len(self._jobs)):
            job = self._jobs.popleft()
            if job.slice():
                self._jobs.append(job)
        if self._jobs and not self._scheduled:
            self._scheduled = True
            self._soon(self.turn)
        self._done()
