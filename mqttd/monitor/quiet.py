"""Gives memory back to the system when a broker has become quiet.

    every 10 s:   more read than 64 KiB?   it is at work: what is free will be needed
                  less                     CPython's free lists emptied, malloc's holes given back

What a burst has needed is free afterwards, and its pages stay: 80 dicts and 80 lists that CPython
keeps for the next ones lie each in an arena of a megabyte, which they hold; tables that have grown
leave their smaller selves in malloc's heap. With 15,000 connections that published once and then
said nothing these were 360 of 1,500 bytes each (docs/design/scale.md).

Promise: nothing is done while there is traffic. A look that took long is not taken again before a
thousand times as long has passed. For the whole process, so it is done where that is the broker's.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

from mqttd.monitor.malloc import trim

__all__ = ["INTERVAL", "LITTLE", "Quiet"]

#: Seconds between two looks.
INTERVAL: Final = 10.0
#: Bytes that a quiet broker has read since the last look, at most.
LITTLE: Final = 65536
_RARELY: Final = 1000


class Quiet:
    """Looks whether a broker is quiet; `received()` says how many bytes it has read so far."""

    def __init__(
        self,
        received: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        give_back: Callable[[], object] = trim,
    ) -> None:
        self.received = received
        self.clock = clock
        self.give_back = give_back
        #: How often memory was given back.
        self.times: int = 0
        self._before = received()
        self._due = clock() + INTERVAL

    def tick(self) -> None:
        """Called a few times a second."""
        now = self.clock()
        if now < self._due:
            return
        self._due = now + INTERVAL
        received = self.received()
        little = received - self._before <= LITTLE
        self._before = received
        if not little:
            return
        self.times += 1
        # The oldest generation is frozen: there is little to walk, and only this empties the lists.
        gc.collect()
        gc.freeze()
        self.give_back()
        ended = self.clock()
        self._due = ended + max(INTERVAL, _RARELY * (ended - now))
