"""The last lines of the log, in memory, for operators who have no shell on the machine.

    line --> ring: at most LINES and BYTES --> after(number): what is newer

Promise: a line costs an append; what was overtaken is gone, and the numbers say how many. Both may
be called from whatever thread or signal handler.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

__all__ = ["BYTES", "LINES", "LONGEST", "Tail"]

#: Lines that are kept, their bytes, and those of one of them.
LINES: Final = 1000
BYTES: Final = 256 << 10
LONGEST: Final = 8 << 10


class Tail:
    """The ring of one log."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._last = 0
        # A signal handler may log while its own thread is in here.
        self._lock = threading.RLock()

    def put(self, line: bytes) -> None:
        """Keep a line."""
        line = line[:LONGEST]
        with self._lock:
            self._last += 1
            self._lines.append((self._last, line))
            self._bytes += len(line)
            while self._bytes > BYTES or len(self._lines) > LINES:
                self._bytes -= len(self._lines.popleft()[1])

    def after(self, number: int) -> tuple[int, list[str]]:
        """The number of the last line, and the lines behind the one of this number."""
        with self._lock:
            last, kept = self._last, self._lines.copy()
        return last, [
            line.decode("utf-8", "replace").rstrip("\n") for at, line in kept if at > number
        ]
