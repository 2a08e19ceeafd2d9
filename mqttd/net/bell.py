"""Wakes the loop from any thread: by the engine's poll where there is one, else by the reactor.

    ring() --eventfd--> the engine's poll --> then()
        '--without an engine, or once it is closed: reactor.callFromThread

Promise: no ring is lost, several may be one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mqttd.net.wake import Wake, Watcher

__all__ = ["Bell"]


class Bell:
    """Has `then` called in the reactor's thread; a test's clock is no reactor for threads."""

    def __init__(self, then: Callable[[], None], reactor: Any, engine: Watcher | None) -> None:
        self._then = then
        found = getattr(reactor, "callFromThread", None)
        self._call: Callable[[Callable[[], None]], object]
        self._call = found or (lambda f: reactor.callLater(0, f))
        #: Held while the descriptor is written to, or closed.
        self._lock = threading.Lock()
        self._wake: Wake | None = None
        if engine is not None:
            self._wake = Wake(then)
            self._wake.start(reactor, engine)

    def ring(self) -> None:
        """Have it called."""
        with self._lock:
            if self._wake is not None:
                self._wake.wake()
                return
        self._call(self._then)

    def close(self) -> None:
        """Go without the engine from now on; one more call makes up for what has just been rung."""
        with self._lock:
            wake, self._wake = self._wake, None
            if wake is not None:
                wake.stop()
        if wake is not None:
            self._call(self._then)
