"""Whether a machine had time for a broker: an answer that did not come otherwise says nothing.

beat . . . . . . .                    . . .        this process stood still
                  |---- longest ------|
/proc/PID/schedstat: run, waited, ...              the broker waited for a processor
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

__all__ = ["Pulse"]

_BEAT: Final = 0.1


class Pulse:
    """Beats in a thread of its own, and keeps the longest time between two beats."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._last = time.monotonic()
        self._pid = 0
        self._waited = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, pid: int) -> None:
        """From now on, for this process."""
        self._longest = 0.0
        self._pid = pid
        self._waited = _waited(pid)

    def missing(self) -> float:
        """Seconds that were not there since `begin`: the longest pause, the waits for a core."""
        pause = max(self._longest, time.monotonic() - self._last)
        return max(pause, _waited(self._pid) - self._waited)

    def _run(self) -> None:
        while True:
            time.sleep(_BEAT)
            now = time.monotonic()
            self._longest = max(self._longest, now - self._last)
            self._last = now


def _waited(pid: int) -> float:
    """Seconds that the main thread of a process has waited for a processor; 0: nobody knows."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
