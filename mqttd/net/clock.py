"""The reactor's time, which nobody sets, and the time of day, which is set now and then.

    Twisted         reactor.seconds() is the time of day: set an hour forth it ends every wait at
                    once, set back an hour it ends none for an hour
    steady(reactor) it begins with the time of day, and goes on evenly from there
    day(clock)      the time of day, for what is kept or shown

Promise: a test's clock stays the only one there is for who is given it.
"""

from __future__ import annotations

import time
from typing import Any

__all__ = ["day", "steady"]


def steady(reactor: Any) -> None:
    """Have a reactor that is this process's own wait by a clock that nobody sets.

    What waits already stays as it is: the time does not jump here.
    """
    ahead = reactor.seconds() - time.monotonic()
    reactor.seconds = lambda: ahead + time.monotonic()


def day(clock: Any) -> float:
    """Seconds since 1970; those of `clock` where it is a test's."""
    return float(clock.seconds()) if hasattr(clock, "advance") else time.time()
