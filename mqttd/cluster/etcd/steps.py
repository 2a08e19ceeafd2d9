"""Long work of a coroutine, done in as many turns of the loop as it takes.

steps --> as many as `TURN` has room for --> others are served --> the next ones
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from twisted.internet.task import deferLater

__all__ = ["TURN", "in_turns"]

#: Seconds of a turn, and one step more.
TURN: Final = 0.004


async def in_turns(
    steps: Iterable[None], reactor: Any, clock: Callable[[], float] = time.monotonic
) -> None:
    """Do all of these."""
    end = clock() + TURN
    for _ in steps:
        if clock() >= end:
            await deferLater(reactor, 0)
            end = clock() + TURN
