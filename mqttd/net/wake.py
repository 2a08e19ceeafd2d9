"""How the writer's thread wakes the loop: an eventfd that the engine polls, or the reactor.

    writer: done --> wake() --eventfd--> the engine's poll (edge: it is not read) --> turn()
                                   '---> without an engine, Twisted's: read --> turn()

Promise: a wake-up is never lost; several may be one. It costs the loop no system call but its poll.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, Final, Protocol

__all__ = ["Wake", "Watcher"]


class Watcher(Protocol):
    """Who polls for descriptors (`mqttd.transports.engine`)."""

    def watch(self, fd: int, called: Callable[[], None], gone: Callable[[], None]) -> None:
        """Call this whenever the descriptor has become readable, read or not; `gone` when nobody
        polls any more.
        """

    def unwatch(self, fd: int) -> None:
        """Call neither any more."""


def _ringer() -> Callable[[int, Any], object]:
    """eventfd_write that keeps the interpreter's lock.

    `os.eventfd_write` lets go of it, and gets it back in the moment in which the loop, which it has
    woken up, wants it: then one of them waits for the other, with a system call for each time. This
    way the writer has gone to sleep before the loop is awake.
    """
    try:
        found: Callable[[int, Any], object] = ctypes.PyDLL(None).eventfd_write
    except (OSError, AttributeError):
        return lambda descriptor, once: os.eventfd_write(descriptor, once.value)
    return found


_ring: Final = _ringer()
_ONCE: Final = ctypes.c_uint64(1)


class Wake:
    """Has `turn` called in the reactor's thread."""

    def __init__(self, turn: Callable[[], None]) -> None:
        self.turn = turn
        self.descriptor = -1
        self.reactor: Any = None
        self.engine: Watcher | None = None

    def start(self, reactor: Any, engine: Watcher | None) -> None:
        """Have the one or the other look."""
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.reactor = reactor
        self.engine = engine
        if engine is not None:
            engine.watch(self.descriptor, self.turn, self._left)
        else:
            reactor.addReader(self)

    def _left(self) -> None:
        """The engine comes to its end before the store does: have the reactor look."""
        self.engine = None
        self.reactor.addReader(self)

    def stop(self) -> None:
        """Have nobody look any more."""
        if self.descriptor >= 0:
            if self.engine is not None:
                self.engine.unwatch(self.descriptor)
            else:
                self.reactor.removeReader(self)
            os.close(self.descriptor)
            self.descriptor = -1

    def wake(self) -> None:
        """Called in the writer's thread."""
        _ring(self.descriptor, _ONCE)

    def fileno(self) -> int:
        """As Twisted's IReadDescriptor."""
        return self.descriptor

    def logPrefix(self) -> str:
        """As Twisted's IReadDescriptor."""
        return "mqttd-store"

    def connectionLost(self, reason: object) -> None:
        """As Twisted's IReadDescriptor."""

    def doRead(self) -> None:
        """Something was written."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return
        self.turn()
