"""What is looked at a few times a second: the clocks of broker and engine, and all that waits.

Promise: a round that raises is told of like a fault of a turn, and the next one comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from twisted.internet import task

__all__ = ["Rounds", "monotonic_ms"]

#: Seconds.
_INTERVAL: Final = 0.25


def monotonic_ms() -> int:
    """The broker's clock: milliseconds, monotonic."""
    return time.monotonic_ns() // 1_000_000


class Rounds:
    """Calls `look` with the time in milliseconds, and `failed` with what it raises and 1.

    reactor: whose clock says when.
    """

    def __init__(
        self,
        reactor: Any,
        look: Callable[[int], object],
        failed: Callable[[BaseException, int], object],
    ) -> None:
        self._look = look
        self._failed = failed
        self._calls = task.LoopingCall(self._round)
        self._calls.clock = reactor

    def start(self) -> None:
        """Go round from now on."""
        self._calls.start(_INTERVAL, now=False)

    def stop(self) -> None:
        """Go round no more."""
        if self._calls.running:
            self._calls.stop()

    def _round(self) -> None:
        try:
            self._look(monotonic_ms())
        except BaseException as error:
            # A LoopingCall that raises is over, and with it every timer.
            self._failed(error, 1)
