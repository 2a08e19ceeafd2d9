"""Alarms: what an operator should know now, and for as long as it lasts.

    activate(name, text) --> active --> clear(name) --> history (the last `HISTORY`)

An alarm has a name, so that raising it again changes its text and nothing else. Each change is one
line in the log. Promise: at most `MOST` alarms and `HISTORY` past ones are kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["HISTORY", "MOST", "Alarm", "Alarms"]

MOST: Final = 1000
HISTORY: Final = 100


@dataclass(slots=True)
class Alarm:
    """One alarm; times are seconds since 1970, `cleared_at` is 0 while it is active."""

    name: str
    text: str
    raised_at: float
    cleared_at: float = 0.0
    count: int = 1

    def describe(self) -> dict[str, object]:
        """The alarm as the API shows it."""
        return {
            "name": self.name,
            "text": self.text,
            "active": not self.cleared_at,
            "raised_at": self.raised_at,
            "cleared_at": self.cleared_at or None,
            "count": self.count,
        }


class Alarms:
    """The alarms of one broker. `log(event, fields)` gets each one raised and cleared."""

    def __init__(
        self,
        log: Callable[[str, dict[str, object]], None] | None = None,
        seconds: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._seconds = seconds
        #: Told of each that is raised and cleared, as the log is.
        self.listeners: list[Callable[[str, dict[str, object]], None]] = []
        self._active: dict[str, Alarm] = {}
        self._past: deque[Alarm] = deque(maxlen=HISTORY)

    def __len__(self) -> int:
        return len(self._active)

    def activate(self, name: str, text: str) -> None:
        """Raise the alarm `name`; if it is raised already, only its text is new."""
        alarm = self._active.get(name)
        if alarm is not None:
            alarm.text = text
            alarm.count += 1
            return
        if len(self._active) >= MOST:
            self.clear(next(iter(self._active)))
        self._active[name] = Alarm(name, text, self._seconds())
        self._tell("alarm raised", name, text)

    def clear(self, name: str) -> bool:
        """The cause is gone; False if there was no such alarm."""
        alarm = self._active.pop(name, None)
        if alarm is None:
            return False
        alarm.cleared_at = self._seconds()
        self._past.append(alarm)
        self._tell("alarm cleared", name, alarm.text)
        return True

    def _tell(self, event: str, name: str, text: str) -> None:
        fields: dict[str, object] = {"alarm": name, "text": text}
        if self._log is not None:
            self._log(event, fields)
        for listener in self.listeners:
            listener(event, fields)

    def active(self) -> list[Alarm]:
        """The alarms that are raised, the oldest first."""
        return list(self._active.values())

    def past(self) -> list[Alarm]:
        """The last ones that were cleared, the oldest first."""
        return list(self._past)
