"""Groups that wait for their copies; who waits for one waits as long, whatever the reason.

    submitted --add--> group, since when it may have gathered --there--> nobody waits for it
                                    '-- longer than `most` seconds --> late

A group gathers while the one before it waits, and is as old as that was given: so two waits of
nearly `most`, one after the other, are one that is longer.

Promise: one timer, and none while nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from mqttd.storage.blocks import Group

__all__ = ["Waits"]

#: Seconds between two looks at least.
_LOOK: Final = 0.25


class Waits:
    """They may wait for `most` seconds while somebody is `hurried`; `late` is told then."""

    def __init__(self, reactor: Any, most: float, late: Callable[[], object]) -> None:
        self.reactor = reactor
        self.most = most
        self.late = late
        self.hurried = False
        #: Since when they may have gathered, and when each was given; the oldest first.
        self._groups: dict[Group, tuple[float, float]] = {}
        #: When that was given which has just made room.
        self._before: float | None = None
        self._timer: Any = None

    def add(self, group: Group) -> None:
        """This one waits."""
        now = float(self.reactor.seconds())
        self._groups[group] = now if self._before is None else self._before, now
        if self._timer is None:
            self._again()

    def there(self, groups: Iterable[Group], then: Callable[[], object]) -> None:
        """These wait no more; what is added by `then` has gathered behind them."""
        given = [self._groups.pop(group)[1] for group in groups if group in self._groups]
        self._before = min(given, default=None)
        then()
        self._before = None

    def are_late(self) -> bool:
        """Whether the oldest has waited for too long."""
        return self._left() <= 0

    def _left(self) -> float:
        if not self.hurried or not self._groups:
            return self.most
        since, _ = next(iter(self._groups.values()))
        return since + self.most - float(self.reactor.seconds())

    def _again(self) -> None:
        self._timer = self.reactor.callLater(max(self._left(), _LOOK), self._look)

    def _look(self) -> None:
        self._timer = None
        if self.are_late():
            self.late()
        if self._groups:
            self._again()
