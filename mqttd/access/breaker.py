"""A circuit breaker: after failures in a row nothing is tried for a while, then one at a time.

::

              failures in a row                 time is over
    CLOSED -----------------------> OPEN -----------------------> HALF_OPEN
       ^                             ^                                |
       |                             '---- fails: twice the time -----+
       '------------------------------------ succeeds ----------------'

Promise: constant cost; at most one trial at a time while it is not closed.  Times are seconds of
any clock that the caller reads; no clock, no log here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

__all__ = ["CLOSED", "HALF_OPEN", "OPEN", "Breaker"]

CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half-open"


class Breaker:
    """Opens after `failures` in a row (0: never); first tried again after `retry` seconds.

    The time between two trials doubles up to `max_retry`; up to a tenth is added at random, so that
    several brokers do not try a back end at the same moment.
    """

    def __init__(
        self,
        failures: int,
        retry: float,
        max_retry: float,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.limit = failures
        self.retry = retry
        self.max_retry = max(retry, max_retry)
        self._chance = chance
        self.state = CLOSED
        #: failures since the last success
        self.failures = 0
        #: when the next trial may be made
        self.retry_at = 0.0
        #: times it went from closed to open
        self.opened = 0
        self._pause = retry

    def allows(self, now: float) -> bool:
        """May something be tried at `now`?  Whoever is told yes tells how it went."""
        if self.state == CLOSED:
            return True
        if self.state == OPEN and now >= self.retry_at:
            self.state = HALF_OPEN
            return True
        return False

    def succeeded(self) -> bool:
        """It went well; True if that closed the breaker."""
        closed = self.state == HALF_OPEN
        if closed or self.state == CLOSED:
            self.state = CLOSED
            self.failures = 0
            self._pause = self.retry
        return closed

    def failed(self, now: float) -> bool:
        """It failed; True if that opened the breaker (again, after a trial)."""
        self.failures += 1
        if self.state == OPEN or not self.limit:
            return False
        if self.state == CLOSED:
            if self.failures < self.limit:
                return False
            self.opened += 1
        else:
            self._pause = min(2 * self._pause, self.max_retry)
        self.state = OPEN
        self.retry_at = now + self._pause * (1 + 0.1 * self._chance())
        return True

    def untried(self) -> None:
        """What was allowed did not reach the back end: the next one is the trial."""
        if self.state == HALF_OPEN:
            self.state = OPEN
