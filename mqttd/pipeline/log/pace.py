"""When a group of acknowledgements goes to the log: soon, but not each message by itself.

    a turn has brought some --> nothing is being written, the last was a while ago: closed at once
                                else: when that is written, and those it lets go had time to go on

What a group costs does not depend on what is in it: a hand-over to another thread and back, a block
and its header, a mark. So the next one is not closed sooner than `GAP` after the last, nor than
`REST` after that was written: clients with a window, who go on when they are answered, are in it
all together. Behind one of few, each of which has cost much, it is `LONG`.

Promise: what waits is handed over within that of the group before it; behind a pause, at once.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from mqttd.session.gathering import Gathering

__all__ = ["FEW", "GAP", "LONG", "REST", "Pace", "Pausing"]

#: Seconds from a group that is closed, and from one that is written, to the next.
GAP: Final = 0.0008
REST: Final = 0.0003
#: And from one with fewer acknowledgements than these.
LONG: Final = 0.002
FEW: Final = 16


class Pausing(Protocol):
    """See `mqttd.net.pause.Pause`."""

    def begin(self, seconds: float) -> None:
        """Have `Pace.over` called in so many seconds."""


class Pace:
    """Closes groups; `idle` says that nothing is being written, `flush` closes one."""

    def __init__(
        self, gathering: Gathering, idle: Callable[[], bool], flush: Callable[[], None]
    ) -> None:
        self.gathering = gathering
        self.pause: Pausing | None = None
        self._idle = idle
        self._flush = flush
        self._next_at = 0.0
        self._free_at = 0.0

    def brought(self) -> None:
        """A turn ends that has brought something to wait for."""
        if not self._idle():
            return  # `written` goes on
        left = self._free_at - monotonic()
        if left <= 0 or self.pause is None:
            self._close()
        else:
            self.pause.begin(left)

    def written(self) -> None:
        """What was handed over is written, or some of it."""
        if not self._idle():
            return
        now = monotonic()
        self._free_at = max(self._next_at, now + REST)
        if self.gathering.waits() and self.pause is not None:
            self.pause.begin(self._free_at - now)

    def over(self) -> None:
        """A pause is over."""
        if self._idle() and self.gathering.waits():
            self._close()

    def _close(self) -> None:
        few = self.gathering.acknowledgements() < FEW
        self._next_at = monotonic() + (LONG if few else GAP)
        self._flush()
