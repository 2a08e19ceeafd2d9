"""The line of those whose large messages wait for memory, while there is little of it.

    memory scarce --> wait(session)        its next large message, out of queue, window or retainer
                      see, four times a second: a few go on all the same
    not any more  --> two a turn, in the order in which they came

Nothing that waits is lost, and most of it makes room elsewhere when it is acknowledged. A few go on
in any case: where nobody acknowledges, what is held grows slowly until the memory is full, and then
those who hold most make room (`mqttd.broker.memory.memory`), not those who wait.

Promise: what is looked at in a turn does not depend on how many wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mqttd.broker.ground.seams import Log
from mqttd.broker.ground.turns import SLICES
from mqttd.session.channel.channel import Server
from mqttd.session.state import State

__all__ = ["Room"]

#: Sessions, and as many that are read for, that go on at each look while memory is scarce.
_LET: Final = 2
#: Sessions of clients that have left, which are passed over in a turn.
_PASSED: Final = 64
#: Milliseconds between two lines that memory is scarce.
_TELL: Final = 10_000


class Room:
    """The line of one broker.

    `soon` runs something in a later turn; `go_on` gives a session a slice.
    """

    def __init__(
        self,
        server: Server,
        soon: Callable[[Callable[[], None]], object],
        go_on: Callable[[State], None],
        log: Log,
    ) -> None:
        self._server = server
        self._soon = soon
        self._go_on = go_on
        self._log = log
        self._told_at: int = -_TELL
        self._line: deque[State] = deque()
        #: How many go on though memory is scarce.
        self._let: int = 0
        self._scheduled: bool = False

    def __len__(self) -> int:
        return len(self._line)

    def wait(self, session: State) -> None:
        """Have a session go on when it is its turn."""
        self._server.metrics.memory_waited += 1
        self._line.append(session)

    def see(self, scarce: bool, look: bool) -> None:
        """Whether memory is scarce, after each turn; look: some may go on all the same."""
        server = self._server
        if scarce:
            if not server.scarce and server.now - self._told_at >= _TELL:
                self._told_at = server.now
                self._log("memory scarce", {"waited": server.metrics.memory_waited})
            if look:
                self._let = _LET
                server.journal.read_on(_LET)
        elif server.scarce:
            server.journal.read_on(0)
            server.perform_later()
        server.scarce = scarce
        self._schedule()

    def _schedule(self) -> None:
        if self._line and (self._let or not self._server.scarce) and not self._scheduled:
            self._scheduled = True
            self._soon(self._turn)

    def _turn(self) -> None:
        """The next ones."""
        self._scheduled = False
        server = self._server
        scarce = server.scarce
        left: int = self._let if scarce else SLICES
        self._let = 0
        for _ in range(min(len(self._line), _PASSED)):
            session = self._line.popleft()
            if session.channel is not None:
                left -= 1
            server.scarce = False
            self._go_on(session)
            server.scarce = scarce
            if left <= 0:
                break
        server.perform()
