"""The requests of all connections to a door share the turns of the loop with everybody else.

    bytes --is there time left of this turn?--> the request
              '-- no --> a line --next turn, one request each, while there is time--> the request

Four hundred connections may have a request each in one turn, at half a millisecond and more.

Promise: a turn begins requests for `TURN` seconds; who waits is served in the order of coming.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["TURN", "Turns"]

#: Seconds of a turn of the loop in which requests are begun.
TURN: Final = 0.004


class Turns:
    """Who waits for a turn at a door; `reactor` has `seconds` and `callLater`."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        #: Of who waits, in the order of coming: what goes on then.
        self._line: dict[object, Callable[[], None]] = {}
        self._call: Any = None
        self._until = 0.0

    def is_there_time(self) -> bool:
        """Whether who has just come may go on in this turn."""
        if self._call is None:
            self._begin()
        return not self._line and self.reactor.seconds() < self._until

    def wait(self, who: object, go_on: Callable[[], None]) -> None:
        """Have `go_on` called in a later turn; once, however often it is asked for."""
        self._line.setdefault(who, go_on)
        if self._call is None:
            self._begin()

    def leave(self, who: object) -> None:
        """It waits no more."""
        self._line.pop(who, None)

    def _begin(self) -> None:
        self._until = self.reactor.seconds() + TURN
        self._call = self.reactor.callLater(0, self._turn)

    def _turn(self) -> None:
        self._call = None
        if not self._line:
            return
        self._begin()
        for who in list(self._line):
            go_on = self._line.pop(who, None)
            if go_on is not None:
                go_on()
            if self.reactor.seconds() >= self._until:
                break
