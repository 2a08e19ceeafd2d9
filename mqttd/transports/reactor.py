"""The engine's epoll as the reactor itself: one poll for its sockets and for all of Twisted's.

    any reactor     epoll_wait (Twisted's) -> "the engine is readable" -> epoll_wait (the engine's)
    this one        epoll_wait (both) -> Engine.turn -> what is left -> Twisted's descriptors

It is Twisted's own epoll reactor with another `doPoll`. Where each message wakes the broker up by
itself that saves a fifth of its cost, and a fifth of what crosses from one worker to another. The
broker's own processes run on it unless `twistd --reactor` names another; any other serves as well.
While only the engine has something to do, and nothing is due or was asked for from a thread, it
polls again without going through Twisted's loop.

Promise: delayed calls, threads, signals and descriptors of Twisted are served as by Twisted's: the
loop here ends as soon as there is anything but messages.
"""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.epollreactor import EPollReactor
from twisted.python.log import callWithLogger

if TYPE_CHECKING:
    from mqttd.transports.engine import Engine

__all__ = ["EngineReactor", "epoll_of", "install", "prefer", "start_reading", "stop_reading"]

#: Events of one poll, as the engine takes them.
_EVENTS: Final = 512
#: What of Twisted's is used here without being promised to anybody.
_PRIVATE: Final = (
    "_poller", "_selectables", "_doReadOrWrite", "threadCallQueue", "_newTimedCalls", "_stopped",
)  # fmt: skip


class EngineReactor(EPollReactor):
    """Twisted's epoll reactor, which calls an engine with the events of its descriptors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        #: Mostly one; where several brokers live in a process each takes what is its own.
        self.engines: list[Engine] = []

    @property
    def epoll(self) -> select.epoll:
        """Where an engine is to register its descriptors."""
        poller: select.epoll = self._poller
        return poller

    def doPoll(self, timeout: float | None) -> None:
        """Poll, and serve who has something, the engines first."""
        if not self.engines:
            super().doPoll(timeout)  # type: ignore[no-untyped-call]
            return
        poll = self._poller.poll
        while True:
            events = left = poll(-1 if timeout is None else timeout, _EVENTS)
            for engine in self.engines:
                left = engine.serve(left)
            if left:
                self._serve(left)
                return
            if not events or self._asked():
                return
            timeout = self.timeout()
            if timeout == 0:
                return

    doIteration = doPoll

    def _asked(self) -> bool:
        """Whether Twisted's loop has something to do but wait."""
        return bool(
            self.threadCallQueue or self._newTimedCalls or self._stopped or not self.engines
        )

    def _serve(self, events: list[tuple[int, int]]) -> None:
        """Twisted's own descriptors, in Twisted's own way."""
        selectables = self._selectables
        for fd, event in events:
            selectable = selectables.get(fd)
            if selectable is not None:
                callWithLogger(selectable, self._doReadOrWrite, selectable, fd, event)


def epoll_of(reactor: Any) -> select.epoll | None:
    """The epoll object an engine shares with this reactor; None where it has its own."""
    return reactor.epoll if isinstance(reactor, EngineReactor) else None


def start_reading(reactor: Any, engine: Engine) -> None:
    """Have the reactor serve the engine, whichever reactor it is."""
    if engine.shared:
        reactor.engines.append(engine)
    else:
        reactor.addReader(engine)


def stop_reading(reactor: Any, engine: Engine) -> None:
    """The end of that."""
    engine.leave()
    if not engine.shared:
        reactor.removeReader(engine)
    elif engine in reactor.engines:
        reactor.engines.remove(engine)


def install() -> None:
    """Install this reactor (called by `twistd --reactor mqttd`)."""
    from twisted.internet.main import installReactor

    installReactor(EngineReactor())


def prefer() -> None:
    """Install it where no reactor is installed, and Twisted is as it leans on."""
    if "twisted.internet.reactor" in sys.modules:
        return
    made = EngineReactor()
    if all(hasattr(made, name) for name in _PRIVATE):
        from twisted.internet.main import installReactor

        installReactor(made)
