"""A wait of some microseconds that the loop is told the end of: a timerfd that the engine polls.

    begin(seconds) --timerfd--> the engine's poll (edge: it is not read) --> then()
                       '--without an engine, or that call: reactor.callLater, whole milliseconds

Promise: one that has begun ends; it costs the loop one system call, and one to end it before.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from mqttd.net.wake import Watcher

__all__ = ["Pause"]


class _Spec(ctypes.Structure):
    """struct itimerspec."""

    _fields_: ClassVar = [(name, ctypes.c_long) for name in ("every_s", "every", "s", "ns")]


def _libc() -> Any:
    """The C library, called with the interpreter's lock held: nothing of it waits."""
    try:
        found = ctypes.PyDLL(None)
        return found if hasattr(found, "timerfd_settime") else None
    except OSError:
        return None


_LIBC: Final = _libc()


#: What ends a timer.
_NEVER: Final = _Spec(0, 0, 0, 0)


class Pause:
    """Has `then` called in the reactor's thread; later: as `reactor.callLater`."""

    def __init__(self, then: Callable[[], None], later: Callable[..., Any]) -> None:
        self.then = then
        #: It has begun, and is not over.
        self.on = False
        #: When it is, in nanoseconds.
        self._until = 0
        self._later = later
        self._call: Any = None
        self._fd = -1
        self._engine: Watcher | None = None

    def start(self, engine: Watcher | None) -> None:
        """Have this one look, if there is one."""
        if engine is None or _LIBC is None:
            return
        self._fd = _LIBC.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._engine = engine
            engine.watch(self._fd, self._over, self._left)

    def begin(self, seconds: float) -> None:
        """Call `then` in so many seconds, less than one; one that is over before goes on."""
        until = time.monotonic_ns() + int(seconds * 1e9)
        if self.on and until >= self._until:
            return
        self.on = True
        self._until = until
        if self._engine is None:
            if self._call is not None:
                self._call.cancel()
            self._call = self._later(seconds, self._over)
        else:
            spec = _Spec(0, 0, 0, max(1, int(seconds * 1e9)))
            _LIBC.timerfd_settime(self._fd, 0, ctypes.byref(spec), None)

    def end(self) -> None:
        """Do not call it: what has begun, if anything, is over without that."""
        if not self.on:
            return
        self.on = False
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        elif self._fd >= 0:
            _LIBC.timerfd_settime(self._fd, 0, ctypes.byref(_NEVER), None)

    def _over(self) -> None:
        if self.on:
            self.on = False
            self._call = None
            self.then()

    def _left(self) -> None:
        """The engine comes to its end."""
        self._engine = None
        if self.on:
            self._call = self._later(0, self._over)

    def stop(self) -> None:
        """Call nothing any more."""
        self.end()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.unwatch(self._fd)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
