"""When retained messages changed, of those that did lately: of two changes the later one stays.

    change here --> stamp --> remembered, told --> there: later than what is remembered, or late

Two halves, of which the older one is forgotten at a turn (`mqttd.mesh.mesh` says when).
"""

from __future__ import annotations

from typing import Final

__all__ = ["Changes"]

#: Bytes that half of them may weigh, whatever their age; and what one does beside its topic.
_MOST: Final = 16 << 20
_ENTRY: Final = 160
#: A process makes one change in so many microseconds: that of its number. Nodes all have the same.
_SLOTS: Final = 64


class Changes:
    """Those that the process `number` remembers."""

    def __init__(self, number: int, now: int) -> None:
        self.number = number
        #: Topic -> the stamp of its last change.
        self.recent: dict[str, int] = {}
        self.older: dict[str, int] = {}
        #: What the recent ones weigh.
        self.weight: int = 0
        #: When the last turn was.
        self.turned: int = now
        self._last: int = 0

    def stamp(self, now: int) -> int:
        """A time in microseconds: about `now`, later than any before, and of no other number."""
        if now <= self._last:
            now = self._last + 1
        now += (self.number - 1 - now) % _SLOTS
        self._last = now
        return now

    def remember(self, topic: str, stamp: int) -> None:
        """The last change of a topic."""
        recent = self.recent
        before = len(recent)
        recent[topic] = stamp
        if len(recent) > before:
            self.weight += len(topic) + _ENTRY
        if stamp > self._last:
            self._last = stamp

    def of(self, topic: str) -> int:
        """The stamp of the last change of a topic; 0: none is remembered."""
        return self.recent.get(topic, 0) or self.older.get(topic, 0)

    def all(self) -> dict[str, int]:
        """Topic -> stamp of all that are remembered, the older ones first."""
        changes = dict(self.older)
        changes.update(self.recent)
        return changes

    def is_full(self) -> bool:
        """It is time for a turn, whatever the age of these."""
        return self.weight > _MOST

    def turn(self, now: int) -> None:
        """Forget the older half."""
        self.turned = now
        self.older = self.recent
        self.recent = {}
        self.weight = 0
