"""Measures how late the event loop is, and says when it is too late for further clients.

    expected ----lateness----> called      four samples a second; overloaded while the least of the
                                           last four is above the threshold

The least of a second's samples: a single pause (a garbage collection, a plugin that took long) is
no overload, a loop that has more to do than it can is. It is over when a whole second stayed below
half of the threshold. While it lasts the broker refuses CONNECT (0x89, 3.x: 3) before anything else
is done for it; who is connected is served on.

Promise: four calls a second, whatever the number of clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

__all__ = ["INTERVAL", "Overload"]

INTERVAL: Final = 0.25  # seconds
_SAMPLES: Final = 4


class Overload:
    """Tells `changed` when overload begins (True) and ends.

    Arguments: a clock with `seconds` and `callLater`; `threshold` in seconds, 0 measures only.
    Attributes: `overloaded`; `lag`, the greatest lateness of the last second, in seconds.
    """

    def __init__(
        self, clock: Any, threshold: float, changed: Callable[[bool, float], None]
    ) -> None:
        self.threshold = threshold
        self.overloaded = False
        self._clock = clock
        self._changed = changed
        self._samples: deque[float] = deque([0.0] * _SAMPLES, _SAMPLES)
        self._expected = 0.0
        self._call: Any = None

    @property
    def lag(self) -> float:
        """The greatest lateness of the last second."""
        return max(self._samples)

    def take_over(self, threshold: float) -> None:
        """Refuse from another lateness on; with 0 nobody any more."""
        self.threshold = threshold
        if self.overloaded and not threshold:
            self.overloaded = False
            self._changed(False, self.lag)

    def start(self) -> None:
        """Begin to measure."""
        self._expected = self._clock.seconds() + INTERVAL
        self._call = self._clock.callLater(INTERVAL, self._sample)

    def stop(self) -> None:
        """Measure no more."""
        call, self._call = self._call, None
        if call is not None and call.active():
            call.cancel()

    def _sample(self) -> None:
        now = self._clock.seconds()
        self.add(max(now - self._expected, 0.0))
        self._expected = now + INTERVAL
        self._call = self._clock.callLater(INTERVAL, self._sample)

    def add(self, lateness: float) -> None:
        """Take one sample in (seconds)."""
        self._samples.append(lateness)
        if not self.threshold:
            return
        least, greatest = min(self._samples), max(self._samples)
        if not self.overloaded and least > self.threshold:
            self.overloaded = True
            self._changed(True, least)
        elif self.overloaded and greatest < self.threshold / 2:
            self.overloaded = False
            self._changed(False, greatest)
