"""Connections of a library that blocks, kept between questions.

    run(f) --> an idle connection, or a new one --> f(connection) --> idle again
                     |
                     '-- lost meanwhile: the idle ones are closed, once more with a new one

Promise: as many connections as threads ask at the same time; one that has failed is never used
again. A question is asked a second time only if it was lost at once on a connection that had been
idle, as it is after the server was restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Final, Generic, TypeVar

__all__ = ["Pool"]

C = TypeVar("C")
R = TypeVar("R")

#: Seconds within which a connection that was closed while idle shows it.
_AT_ONCE: Final = 0.5


class Pool(Generic[C]):
    """Connections made by `connect`, ended by `close`; its methods may be called in any thread.

    ``lost`` are the exceptions that say that a connection is of no use any more. Any other leaves
    it as it was if `keep` of the connection is true, which is asked after each exception.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        close: Callable[[C], object],
        lost: tuple[type[BaseException], ...],
        keep: Callable[[C], bool] = lambda connection: False,
    ) -> None:
        self._connect = connect
        self._close = close
        self._lost = lost
        self._keep = keep
        self._idle: list[C] = []
        self._lock = Lock()
        self._ended = False

    def run(self, f: Callable[[C], R]) -> R:
        """The result of ``f(connection)``."""
        connection = self._take()
        began = monotonic()
        if connection is not None:
            try:
                return self._use(connection, f)
            except self._lost:
                if monotonic() - began > _AT_ONCE:
                    raise  # a server that hangs
                self._close_idle()
        return self._use(self._connect(), f)

    def close(self) -> None:
        """End the idle connections now, the others when their question is answered."""
        self._ended = True
        self._close_idle()

    def _use(self, connection: C, f: Callable[[C], R]) -> R:
        try:
            result = f(connection)
        except BaseException as error:
            if isinstance(error, self._lost) or not self._keep(connection):
                self._end(connection)
            else:
                self._give(connection)
            raise
        self._give(connection)
        return result

    def _take(self) -> C | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give(self, connection: C) -> None:
        with self._lock:
            if not self._ended:
                self._idle.append(connection)
                return
        self._end(connection)

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._end(connection)

    def _end(self, connection: C) -> None:
        try:
            self._close(connection)
        except Exception:
            pass  # it is lost, which is all that is wanted
