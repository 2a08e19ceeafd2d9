"""A circuit breaker: after failures in a row nothing is tried for a while, then one at a time.

::

              failures in a row                 time is over
    CLOSED -----------------------> OPEN -----------------------> HALF_OPEN
       ^                             ^                                |
       |                             '---- fails: twice the time -----+
       '------------------------------------ succeeds ----------------'

`Breakers` has one for each house (`mqttd.net.fair`) that brought failures, and one for all, which
failures of a single house do not open: nobody can lock others out by what it shows.

Promise: constant cost; at most one trial at a time while it is not closed.  Times are seconds of
any clock that the caller reads; no clock, no log here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

__all__ = ["CLOSED", "HALF_OPEN", "OPEN", "Breaker", "Breakers"]

CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half-open"

#: Houses that are remembered for their failures.
_MOST: Final = 1000


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


class Breakers:
    """The breakers of one module: of each house, and of all.

    Arguments as those of `Breaker`, which each of them is made with.
    """

    def __init__(self, failures: int, retry: float, max_retry: float) -> None:
        self._made = (failures, retry, max_retry)
        self._all = Breaker(*self._made)
        self._houses: dict[str, Breaker] = {}
        #: Those that failed since the last success of anybody.
        self._failed: set[str] = set()
        #: Times that one of them went from closed to open.
        self.opened = 0

    @property
    def state(self) -> str:
        """That of all; else the worst of a house."""
        if self._all.state != CLOSED or not self._houses:
            return self._all.state
        states = {breaker.state for breaker in self._houses.values()}
        return next(state for state in (OPEN, HALF_OPEN, CLOSED) if state in states)

    def closed(self, house: str) -> bool:
        """Whether a client of this house is let through as a matter of course."""
        own = self._houses.get(house)
        return self._all.state == CLOSED and (own is None or own.state == CLOSED)

    def allows(self, now: float, house: str) -> bool:
        """May something be tried for a house?  Whoever is told yes tells how it went."""
        own = self._houses.get(house)
        if own is not None and not own.allows(now):
            return False
        if not self._all.allows(now):
            if own is not None:
                own.untried()
            return False
        return True

    def succeeded(self, now: float, house: str) -> bool:
        """It went well; True if nothing is open any more, and something was."""
        before = self.state
        self._all.succeeded()
        self._failed.clear()
        self._houses.pop(house, None)
        for other in [name for name, breaker in self._houses.items() if breaker.retry_at <= now]:
            del self._houses[other]  # would be tried now: there is nothing wrong with the back end
        return before != CLOSED and self.state == CLOSED

    def failed(self, now: float, house: str) -> Breaker | None:
        """It failed; the breaker which that opened (again, after a trial), if any."""
        own = self._houses.get(house)
        if own is None:
            if len(self._houses) >= _MOST:
                del self._houses[next(iter(self._houses))]
            own = self._houses[house] = Breaker(*self._made)
        count = own.opened
        opened = own if own.failed(now) else None
        self.opened += own.opened - count
        if self._all.state != CLOSED or house not in self._failed:
            if len(self._failed) < _MOST:
                self._failed.add(house)
            count = self._all.opened
            if self._all.failed(now):
                opened = self._all
            self.opened += self._all.opened - count
        return opened

    def untried(self, house: str) -> None:
        """What was allowed did not reach the back end: the next one is the trial."""
        self._all.untried()
        own = self._houses.get(house)
        if own is not None:
            own.untried()
