"""Whether this machine stood still: a seed that was judged over a pause tells nothing of a broker.

beat . . . . . . .                    . . .
                  |---- longest ------|
"""

from __future__ import annotations

import threading
import time
from typing import Final

__all__ = ["Pulse"]

_BEAT: Final = 0.1


class Pulse:
    """Beats in a thread of its own, and keeps the longest time between two beats."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._last = time.monotonic()
        threading.Thread(target=self._run, daemon=True).start()

    def longest(self) -> float:
        """Seconds of the longest pause since this was asked last."""
        longest = max(self._longest, time.monotonic() - self._last)
        self._longest = 0.0
        return longest

    def _run(self) -> None:
        while True:
            time.sleep(_BEAT)
            now = time.monotonic()
            self._longest = max(self._longest, now - self._last)
            self._last = now
