"""The configured level of the log: what matters less is not written.

    loggers --> publisher of Twisted --> [this filter] --> what twistd writes to (stdout, file)

It holds for the whole process, Twisted's own lines included, from the start of the service to its
end. Only `twistd mqttd` adds it: a program that embeds the broker keeps its own log.
"""

from __future__ import annotations

from typing import Any

from twisted.application.service import Service
from twisted.logger import (
    FilteringLogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    LogPublisher,
    globalLogPublisher,
)

from mqttd.config.schema import Log

__all__ = ["LogLevelFilter"]


class LogLevelFilter(Service):
    """Puts itself before every observer that `publisher` has when the service starts.

    Arguments: the least important level that is written ("debug", "info", "warn", "error" or
    "critical"), the publisher.
    """

    def __init__(self, level: str, publisher: LogPublisher = globalLogPublisher) -> None:
        self.level = level
        self._predicate = LogLevelFilterPredicate(LogLevel.levelWithName(level))
        self._publisher = publisher
        self._replaced: list[tuple[Any, Any]] = []

    def take_over(self, settings: Log) -> None:
        """Write from another level on."""
        self.level = settings.level
        self._predicate.setLogLevelForNamespace("", LogLevel.levelWithName(settings.level))
        self._predicate.defaultLogLevel = LogLevel.levelWithName(settings.level)

    def startService(self) -> None:
        """Filter from here on."""
        super().startService()  # type: ignore[no-untyped-call]
        # Twisted makes its observer after the service and has no public way to ask for it.
        for observer in list(self._publisher._observers):
            self._replaced.append((observer, FilteringLogObserver(observer, [self._predicate])))
        for observer, filtered in self._replaced:
            self._publisher.removeObserver(observer)
            self._publisher.addObserver(filtered)

    def stopService(self) -> None:
        """What comes from here on is Twisted's farewell: everything is written."""
        super().stopService()  # type: ignore[no-untyped-call]
        for observer, filtered in self._replaced:
            self._publisher.removeObserver(filtered)
            self._publisher.addObserver(observer)
        self._replaced.clear()
