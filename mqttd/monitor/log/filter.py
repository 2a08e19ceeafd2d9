"""The configured level of the log: what matters less is not written.

    loggers --> publisher of Twisted --> [this filter] --> what somebody else writes to

For a log that is not ours (`mqttd.monitor.log`): somebody else's application, or twistd's options
`--logger` and `--syslog`. It holds for the whole process, Twisted's own lines included, from the
start of the service to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.application.service import Service
from twisted.logger import (
    FilteringLogObserver,
    ILogFilterPredicate,
    LogLevel,
    LogLevelFilterPredicate,
    LogPublisher,
    PredicateResult,
    globalLogPublisher,
)
from zope.interface import implementer

from mqttd.config.schema import Log

__all__ = ["LogLevelFilter"]


@implementer(ILogFilterPredicate)
def _always(event: Mapping[str, Any]) -> Any:
    """Lines that are written at every level: that the broker is ready."""
    return PredicateResult.yes if event.get("always") else PredicateResult.maybe


class LogLevelFilter(Service):
    """Puts itself before every observer that `publisher` has when the service starts.

    Arguments: the table `[log]`, for its levels; the publisher.
    """

    def __init__(self, settings: Log, publisher: LogPublisher = globalLogPublisher) -> None:
        self._predicate = LogLevelFilterPredicate()
        self._publisher = publisher
        self._replaced: list[tuple[Any, Any]] = []
        self.take_over(settings)

    def take_over(self, settings: Log) -> None:
        """Write from other levels on."""
        self.levels = {"": settings.level, **settings.modules}
        self._predicate.clearLogLevels()
        for module, level in self.levels.items():
            self._predicate.setLogLevelForNamespace(module, LogLevel.levelWithName(level))

    def startService(self) -> None:
        """Filter from here on."""
        super().startService()  # type: ignore[no-untyped-call]
        # Twisted makes its observer after the service and has no public way to ask for it.
        for observer in list(self._publisher._observers):
            kept = FilteringLogObserver(observer, [_always, self._predicate])
            self._replaced.append((observer, kept))
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
