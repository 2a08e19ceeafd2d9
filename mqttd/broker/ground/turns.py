"""Work that takes more than a turn: slices of it, in turn, with clients served in between.

    long SUBSCRIBE, end of a session, bans, ... --add--> Turns    o o o o
                                                          |  a few slices a turn, each job once
                                                          '--> those that have more go behind,
                                                               or wait for the link they fill

Promise: a job that is alone costs a turn of the loop per slice and nothing else; of many each waits
for as many slices as there are jobs, and no turn has more than `SLICES` of them. A job that
fills the way to another process waits for room there, and no client waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mqttd.session.ground.connection import Turn

__all__ = ["SLICES", "Job", "Turns"]

#: Slices of one turn; one is some milliseconds at most.
SLICES: Final = 2


class Job:
    """Something that is done in slices."""

    def slice(self) -> bool:
        """Do a part; whether more is left. It sees to what it raises itself."""
        raise NotImplementedError


class Turns:
    """The jobs of one broker. `soon` runs something in a later turn, `done` ends one.

    `broker` knows which way to another process a job has filled.
    """

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        done: Callable[[], None],
        broker: Turn | None = None,
    ) -> None:
        self._soon = soon
        self._done = done
        self._broker = broker
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
            if job.slice() and not self._waits(job):
                self._jobs.append(job)
            if self._broker is not None:
                self._broker.clogged = None
        if self._jobs and not self._scheduled:
            self._scheduled = True
            self._soon(self.turn)
        self._done()

    def _waits(self, job: Job) -> bool:
        """Whether it has filled the way to another process; it goes on when there is room."""
        full = None if self._broker is None else self._broker.clogged
        if full is None or not full.is_full():
            return False
        full.line_up(_Again(self, job))
        return True


class _Again:
    """Callback that has a job go on."""

    def __init__(self, turns: Turns, job: Job) -> None:
        self.turns = turns
        self.job = job

    def __call__(self) -> None:
        self.turns.add(self.job)
