"""How often one caller may ask: so many requests a second, with some in hand.

Promise: at most `MOST` callers are remembered, those who have asked last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

__all__ = ["BURST", "RATE", "Rate"]

#: Requests a second, and those that may come at once.
RATE: Final = 100.0
BURST: Final = 500.0
MOST: Final = 1000


class Rate:
    """The buckets of all callers; `seconds` is a clock."""

    def __init__(self, seconds: Callable[[], float], rate: float = RATE) -> None:
        self._seconds = seconds
        self.rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, name: str) -> float:
        """Seconds until this caller may ask again, 0 if it may now; then it is counted."""
        now = self._seconds()
        left, at = self._buckets.pop(name, (BURST, now))
        left = min(BURST, left + (now - at) * self.rate)
        waiting = 0.0
        if left >= 1:
            left -= 1
        else:
            waiting = (1 - left) / self.rate
        self._buckets[name] = (left, now)
        if len(self._buckets) > MOST:
            self._buckets.popitem(False)
        return waiting
