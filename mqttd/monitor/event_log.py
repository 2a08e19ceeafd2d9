"""The log of what happens to clients: one line an event, so many a second of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.logger import Logger, LogLevel

__all__ = ["EventLog"]


class EventLog:
    """Structured events with a rate limit per kind: a flood of faults stays a few lines."""

    PER_SECOND = 20

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._log = Logger(namespace="mqttd")
        self._seconds = seconds
        self._second: dict[str, tuple[int, int]] = {}

    def error(self, event: str, fields: dict[str, object]) -> None:
        """As a call, at level `error`."""
        self(event, fields, LogLevel.error)

    def __call__(self, event: str, fields: dict[str, object], level: Any = LogLevel.info) -> None:
        """Log `event` with its fields, or count it as suppressed."""
        now = int(self._seconds())
        second, count = self._second.get(event, (now, 0))
        if second != now:
            if count > self.PER_SECOND:
                self._log.info(
                    "{event}: {count} more in one second",
                    event=event,
                    count=count - self.PER_SECOND,
                )
            count = 0
        self._second[event] = (now, count + 1)
        if count < self.PER_SECOND:
            text = " ".join(f"{key}={value!r}" for key, value in fields.items())
            self._log.emit(level, "{event}: {text}", event=event, text=text, fields=fields)
