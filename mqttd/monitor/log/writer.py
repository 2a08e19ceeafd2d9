"""The queue of the log, bounded in bytes, and the thread that empties it.

    put --> room? --> queue ==thread==> target       many lines a write, at most 50 writes a second
              '-- no: dropped, counted; told with the first line that finds room again

Before `start` and after `stop` there is no thread, and a line is written at once.

Promise: `put` never waits for the reader of the log, from whatever thread or signal handler it is
called. A target that takes nothing (a pipe that nobody reads, a full disk, a reader that is gone)
costs the lines that do not fit, and at the end of the process two seconds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from mqttd.monitor.log.targets import Target

__all__ = ["Writer"]

#: Seconds between two writes, so that a flood of lines is few system calls and few thread switches.
_REST: Final = 0.02
#: Seconds that the end of the process waits for a reader, and that a line without a thread does.
_FAREWELL: Final = 2.0
_AT_ONCE: Final = 0.2
#: Bytes of lines in one write.
_BATCH: Final = 65536


class Writer:
    """Writes lines to a target.

    Arguments: the target; the most bytes that wait; `told(count)`, which makes the line that says
    how many were dropped.
    """

    def __init__(self, target: Target, limit: int, told: Callable[[int], bytes]) -> None:
        self.target = target
        self.limit = limit
        self.told = told
        #: Lines written and dropped since the start, bytes that wait.
        self.written = 0
        self.dropped = 0
        self.waiting = 0
        #: Why the last write failed, "" when it did not.
        self.fault = ""
        self._untold = 0
        self._lines: deque[bytes] = deque()
        # A signal handler may log while its own thread is in here.
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._late = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, line: bytes) -> None:
        """Write a line soon, or count it as dropped."""
        with self._lock:
            if self._thread is None:
                self._at_once(line)
                return
            size = len(line)
            if self.waiting + size > self.limit:
                self.dropped += 1
                self._untold += 1
                return
            if self._untold:
                told = self.told(self._untold)
                self._untold = 0
                self._lines.append(told)
                self.waiting += len(told)
            self._lines.append(line)
            self.waiting += size
        if not self._wake.is_set():
            self._wake.set()

    def start(self) -> None:
        """Have a thread write from here on."""
        self._ending.clear()
        self._late.clear()
        self._thread = threading.Thread(target=self._run, name="mqttd-log", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, as far as somebody takes it, and end the thread."""
        thread = self._thread
        if thread is None:
            return
        self._ending.set()
        self._wake.set()
        thread.join(_FAREWELL)
        self._late.set()
        with self._lock:
            self._thread = None
            self.dropped += len(self._lines)
            self._lines.clear()
            self.waiting = 0

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while True:
                batch = self._take()
                if not batch:
                    break
                self._write(batch, None)
            if self._ending.is_set():
                return
            self._ending.wait(_REST)

    def _take(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        with self._lock:
            while self._lines and size < _BATCH:
                line = self._lines.popleft()
                size += len(line)
                batch.append(line)
        return batch

    def _write(self, batch: list[bytes], seconds: float | None) -> None:
        try:
            self.target.write(batch, self._late.is_set, seconds)
        except Exception as error:  # whatever it is, the log goes on with the next line
            self.fault = getattr(error, "strerror", None) or str(error) or type(error).__name__
            lost = len(batch)
        else:
            self.fault = ""
            lost = 0
        with self._lock:
            self.written += len(batch) - lost
            self.dropped += lost
            self._untold += lost
            # It counts while it is written: a reader that takes nothing holds it.
            self.waiting = max(0, self.waiting - sum(map(len, batch)))

    def _at_once(self, line: bytes) -> None:
        self.waiting += len(line)
        self._write([line], _AT_ONCE)
