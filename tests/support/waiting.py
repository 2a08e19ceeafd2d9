"""Waiting for what is sure to come: never for a fixed time."""

from __future__ import annotations

import fcntl
import select
import termios
import time
from array import array
from collections.abc import Callable
from typing import Any, Final

__all__ = ["LONG", "MOST_OF_ONE", "Patience", "arrived", "readable", "until"]

#: Seconds that one look may count: a process that was stopped meanwhile is none the wiser.
MOST_OF_ONE: Final = 0.5
#: Seconds for what is sure to come, however busy the machine: a bound of the test, not a promise.
LONG: Final = 60.0


class Patience:
    """So many seconds, counted while somebody looks.

    Time in which this process itself did not run (it was stopped, or the machine had no processor
    for it) is counted for a little only: what it waits for could not run either.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        #: Seconds that were not counted.
        self.missed = 0.0
        self._last = time.monotonic()

    def left(self) -> bool:
        """Whether there is some left; to be asked at least every half second."""
        now = time.monotonic()
        passed = now - self._last
        self.seconds -= min(passed, MOST_OF_ONE)
        self.missed += max(passed - MOST_OF_ONE, 0.0)
        self._last = now
        return self.seconds > 0


def until(true: Callable[[], Any], what: str = "it", deadline: float = LONG) -> Any:
    """What `true` gives, once it is true; AssertionError naming `what` after `deadline` seconds."""
    patience = Patience(deadline)
    while not (found := true()):
        assert patience.left(), f"not in time: {what}"
        time.sleep(0.02)
    return found


def arrived(fd: int, count: int) -> None:
    """Wait until so many bytes can be read: a busy kernel takes its time, on loopback too."""

    def there() -> bool:
        waiting = array("i", [0])
        fcntl.ioctl(fd, termios.FIONREAD, waiting)
        return waiting[0] >= count

    until(there, f"{count} bytes")


def readable(*fds: int) -> int:
    """How many of these there is something to be read from; numbers above 1,023 are, too."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return len(poll.poll(0))
