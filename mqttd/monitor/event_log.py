"""The log of what happens to clients: one line an event, so many a second of each kind.

    broker, access, transports --> event, fields --> [so many a second] --> level --> the log

Each kind of event has a module and a level, by which it can be switched on and off. What is too
much of one kind in a second is counted, and told in the next one.

Promise: an event that is not written costs two look-ups (`admits` says so before its fields are
collected), however many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.logger import Logger, LogLevel

from mqttd.config.schema import Log as Settings
from mqttd.monitor.log.lines import pairs
from mqttd.monitor.log.service import Log

__all__ = ["KINDS", "EventLog"]

#: Event -> module and level, where these are not `mqttd.broker` and `info`.
KINDS: Final[dict[str, tuple[str, str]]] = {
    "accept paused": ("mqttd.transports", "warn"),
    "accept resumed": ("mqttd.transports", "info"),
    "alarm raised": ("mqttd.broker", "warn"),
    "auth breaker opened": ("mqttd.access", "error"),
    "auth breaker closed": ("mqttd.access", "info"),
    "callback failed": ("mqttd.plugins", "error"),
    "certificate loaded": ("mqttd.transports", "info"),
    "certificate refused": ("mqttd.transports", "error"),
    "clock was set": ("mqttd.storage", "warn"),
    "configuration refused": ("mqttd", "error"),
    "connection refused": ("mqttd.transports", "info"),
    "denied": ("mqttd.access", "info"),
    "empty password": ("mqttd.access", "warn"),
    "garbage collector paused": ("mqttd", "warn"),
    "internal error": ("mqttd.broker", "error"),
    "key set not read": ("mqttd.access", "error"),
    "listener differs from the configuration": ("mqttd.transports", "warn"),
    "local subscriber failed": ("mqttd.broker", "error"),
    "log-ins barred": ("mqttd.access", "warn"),
    "module failed": ("mqttd.access", "error"),
    "node has not answered": ("mqttd.cluster", "warn"),
    "node link failed": ("mqttd.cluster", "warn"),
    "node not reached": ("mqttd.cluster", "warn"),
    "node strangers refused": ("mqttd.cluster", "warn"),
    "overload": ("mqttd", "warn"),
    "session lost": ("mqttd.broker", "error"),
    "session not inherited": ("mqttd.cluster", "warn"),
    "session store failed": ("mqttd.broker", "error"),
    "disk has room": ("mqttd.storage", "info"),
    "disk low": ("mqttd.storage", "warn"),
    "store damaged": ("mqttd.storage", "error"),
    "store failed": ("mqttd.storage", "error"),
    "store full": ("mqttd.storage", "warn"),
    "store has room": ("mqttd.storage", "info"),
    "store not used": ("mqttd.storage", "warn"),
    "store ready": ("mqttd.storage", "info"),
    "store row dropped": ("mqttd.storage", "warn"),
    "store works again": ("mqttd.storage", "info"),
    "user file not taken": ("mqttd.access", "error"),
    "user file taken again": ("mqttd.access", "info"),
    "users changed": ("mqttd.access", "info"),
}
_PLAIN: Final = ("mqttd.broker", "info")


class EventLog:
    """Structured events with a rate limit per kind: a flood of faults stays a few lines.

    Arguments: a clock, the table `[log]`.
    """

    def __init__(self, seconds: Callable[[], float], settings: Settings | None = None) -> None:
        self.rate = 0
        #: Levels other than those of `KINDS`, "off" for none.
        self.levels: dict[str, str] = {}
        #: Events that were not written for want of room in their second.
        self.suppressed = 0
        self._seconds = seconds
        #: Told of each event, whatever its level and however many there are.
        self.listeners: list[Callable[[str, dict[str, object]], None]] = []
        self._log: Log | None = None
        self._loggers: dict[str, Logger] = {}
        self._second = 0
        #: Event -> how many there were in this second.
        self._counts: dict[str, int] = {}
        #: Event -> how many more there were that were not offered, which take nobody's room.
        self._passed: dict[str, int] = {}
        #: Event -> whether its level is written, as far as that was asked.
        self._on: dict[str, bool] = {}
        self.take_over(settings or Settings())

    def write_to(self, log: Log) -> None:
        """Have a log of our own write them, past Twisted's."""
        self._log = log
        log.changed.append(self._on.clear)
        self._on.clear()

    def take_over(self, settings: Settings) -> None:
        """Another rate, and other levels."""
        self.rate = settings.rate
        self.levels = {
            **dict.fromkeys(("connected", "disconnected by client"), settings.connections),
            **dict.fromkeys(("subscribed", "unsubscribed"), settings.subscriptions),
        }
        self._on.clear()

    def admits(self, event: str) -> bool:
        """Whether an event of this kind would be written now, or heard; if not, it is counted."""
        if self.listeners:
            return True
        on = self._on.get(event)
        if on is None:
            on = self._on[event] = self._is_on(event)
        if not on:
            return False
        count = self._counts.get(event, 0)
        if count < self.rate:
            return True
        self._counts[event] = count + 1  # until `tick` begins another second
        return False

    def passed_over(self, event: str, count: int) -> None:
        """So many more events of a kind were not even offered, as `admits` has said.

        They may be those of the second before: of this one they take no line.
        """
        if self._is_on(event):
            self._passed[event] = self._passed.get(event, 0) + count

    def error(self, event: str, fields: dict[str, object]) -> None:
        """As a call, at level `error` whatever its kind."""
        self(event, fields, "error")

    def __call__(self, event: str, fields: dict[str, object], level: str = "") -> None:
        """Log `event` with its fields, or count it as suppressed."""
        for listener in self.listeners:
            listener(event, fields)
        on = self._on.get(event)
        if on is None:
            on = self._on[event] = self._is_on(event)
        if not on and not level:
            return
        self.tick()
        count = self._counts.get(event, 0)
        self._counts[event] = count + 1
        if count < self.rate:
            self._write(event, fields, level)

    def tick(self) -> None:
        """A new second may have begun: tell what was too much in the last one."""
        now = int(self._seconds())
        if now == self._second:
            return
        self._second = now
        self.tell_suppressed()

    def tell_suppressed(self) -> None:
        """Tell what was too much until now; at the end nothing else would."""
        counts, self._counts = self._counts, {}
        passed, self._passed = self._passed, {}
        for event in counts | passed:
            more = max(counts.get(event, 0) - self.rate, 0) + passed.get(event, 0)
            if more > 0:
                self.suppressed += more
                self._write(event, {"more_in_one_second": more})

    def counters(self) -> dict[str, float]:
        """What became of the lines, for the metrics."""
        found: dict[str, float] = {"log_suppressed_total": self.suppressed}
        if self._log is not None:
            found["log_lines_total"] = self._log.writer.written
            found["log_dropped_total"] = self._log.writer.dropped
        return found

    def _is_on(self, event: str) -> bool:
        module, level = self._kind(event)
        if level == "off":
            return False
        return self._log is None or self._log.admits(module, level)

    def _kind(self, event: str) -> tuple[str, str]:
        module, level = KINDS.get(event, _PLAIN)
        return module, self.levels.get(event, level)

    def _write(self, event: str, fields: dict[str, object], level: str = "") -> None:
        module, usual = self._kind(event)
        level = level or usual
        if self._log is not None:
            self._log.say(level, module, event, fields)
            return
        logger = self._loggers.get(module)
        if logger is None:
            logger = self._loggers[module] = Logger(namespace=module)
        told = dict(fields)
        traceback = told.pop("traceback", None)
        logger.emit(
            LogLevel.levelWithName(level),
            "{event}: {text}" if traceback is None else "{event}: {text}\n{traceback}",
            event=event,
            text=pairs(told),
            traceback=traceback,
            fields=fields,
        )
