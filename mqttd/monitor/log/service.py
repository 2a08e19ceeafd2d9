"""The log of a broker's own process: what Twisted's loggers and the broker's events say, as lines.

`twistd mqttd` makes it the application's observer before anything is logged, so that there are no
lines but its own. Until its thread starts with the service it writes by itself, and again when that
has ended. A program that embeds the broker keeps its own log.
"""

from __future__ import annotations

import atexit
import errno
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from twisted.application.service import Service
from twisted.internet.error import ReactorNotRunning
from twisted.logger import ILogObserver, formatEvent
from zope.interface import implementer

from mqttd.config.schema import Log as Settings
from mqttd.monitor.log.filter import LogLevelFilter
from mqttd.monitor.log.levels import LEVELS, Levels
from mqttd.monitor.log.lines import Journal, Json, Lines, Text
from mqttd.monitor.log.tail import Tail
from mqttd.monitor.log.targets import FileTarget, JournalTarget, StreamTarget, Target
from mqttd.monitor.log.writer import Writer

__all__ = ["Log", "LogError", "log_for", "target_of"]

#: twistd's own lines, which say what was started.
_TWISTD = "twisted.scripts._twistd_unix"
#: What the system has none left of: where that was noticed says nothing.
_SHORT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS)


class LogError(Exception):
    """The log cannot be written where the configuration says; the message names the key."""


def target_of(settings: Settings, logfile: str | None = None) -> Target:
    """What `[log]` names; `logfile` is what "auto" writes to, None for standard error.

    Raises LogError.
    """
    try:
        if settings.to == "journal":
            return JournalTarget()
        if settings.to == "file" or (settings.to == "auto" and logfile):
            path = settings.file if settings.to == "file" else str(logfile)
            return FileTarget(path, settings.rotate, settings.keep)
    except OSError as error:
        name = "file" if settings.to == "file" else f'to = "{settings.to}"'
        what = f" ({error.filename})" if error.filename else ""
        raise LogError(f"log.{name}{what}: {error.strerror or error}") from None
    return StreamTarget()


def log_for(settings: Settings, twistd: Mapping[str, Any] | None) -> Log | LogLevelFilter:
    """The log of a process whose command line `twistd` holds (None: it runs an application).

    Where twistd has a logger of somebody else's, that is given its level and nothing more. Raises
    LogError.
    """
    if twistd is None:
        foreign, logfile = settings.to == "auto", None
    else:
        foreign = bool(twistd.get("syslog") or twistd.get("logger"))
        logfile = twistd.get("logfile") or (None if twistd.get("nodaemon") else "twistd.log")
    if foreign:
        return LogLevelFilter(settings)
    return Log(settings, target_of(settings, None if logfile == "-" else logfile))


@implementer(ILogObserver)
class Log(Service):
    """An observer of Twisted's log, and what the broker's events go to (`say`).

    Arguments: the table `[log]`, the target, a clock that gives seconds since 1970.
    """

    def __init__(
        self, settings: Settings, target: Target, seconds: Callable[[], float] = time.time
    ) -> None:
        self.settings = settings
        self.levels = Levels(settings.level, settings.modules)
        self.lines: Lines = _lines_of(settings, target)
        self.writer = Writer(target, settings.queue, self._dropped)
        self.tail = Tail()
        self._text = Text()
        self._seconds = seconds
        #: Called when levels have changed.
        self.changed: list[Callable[[], None]] = []

    # -- what is said --------------------------------------------------------------------------

    def __call__(self, event: Mapping[str, Any]) -> None:
        """A line of one of Twisted's loggers."""
        level = event.get("log_level")
        name = level.name if level is not None else "info"
        module = str(event.get("log_namespace") or "")
        if module.startswith(_TWISTD):
            module = "twistd"
        if LEVELS[name] < self.levels.least(module) and not event.get("always"):
            return
        failure = event.get("log_failure")
        if failure is not None and failure.check(ReactorNotRunning):
            return  # a second signal while it stops
        if failure is not None and name == "critical" and module != "mqttd":
            name = "error"  # what `Logger.failure` says unless it is told; the process goes on
        message = formatEvent(dict(event))
        traceback = ""
        if failure is not None:
            if failure.check(OSError) and failure.value.errno in _SHORT:
                message = f"{message or 'failed'}: {failure.getErrorMessage()}"
            else:
                traceback = failure.getTraceback()
                message = message or failure.getErrorMessage()
        when = event.get("log_time", self._seconds())
        self.put(when, name, module, message, None, traceback)

    def admits(self, module: str, level: str) -> bool:
        """Whether a line of this module and level is written."""
        return LEVELS[level] >= self.levels.least(module)

    def say(self, level: str, module: str, event: str, fields: Mapping[str, object]) -> None:
        """An event of the broker; its field `traceback` goes below the line."""
        if LEVELS[level] < self.levels.least(module):
            return
        traceback = fields.get("traceback")
        if traceback is not None:
            fields = {key: value for key, value in fields.items() if key != "traceback"}
        self.put(self._seconds(), level, module, event, fields, str(traceback or ""))

    def put(
        self,
        when: float,
        level: str,
        module: str,
        message: str,
        fields: Mapping[str, object] | None,
        traceback: str,
    ) -> None:
        """Write an entry, whatever its level; `when` in seconds since 1970."""
        line = self.lines.line(when, level, module, message, fields, traceback)
        self.writer.put(line)
        if isinstance(self.lines, Journal):  # these are entries, and no lines
            line = self._text.line(when, level, module, message, fields, traceback)
        self.tail.put(line)

    def _dropped(self, count: int) -> bytes:
        fields = {"lines": count, "reader": self.writer.target.describe()}
        if self.writer.fault:
            fields["fault"] = self.writer.fault
        return self.lines.line(self._seconds(), "warn", "mqttd.log", "lines dropped", fields)

    # -- what is asked of it -------------------------------------------------------------------

    def set_level(self, module: str, level: str | None) -> None:
        """Give a module a level of its own ("" is all); None takes it back. ValueError."""
        self.levels.set(module, level)
        self._tell()

    def take_over(self, settings: Settings) -> None:
        """What another configuration says, in place of levels that were set."""
        self.settings = settings
        self.levels.replace(settings.level, settings.modules)
        self._tell()

    def _tell(self) -> None:
        for call in self.changed:
            call()

    def describe(self) -> dict[str, object]:
        """Levels, target and counts, for the control API."""
        writer = self.writer
        return {
            "level": self.levels.level,
            "modules": dict(sorted(self.levels.modules.items())),
            "to": writer.target.describe(),
            "waiting_bytes": writer.waiting,
            "lines": writer.written,
            "dropped": writer.dropped,
            "fault": writer.fault,
        }

    # -- service -------------------------------------------------------------------------------

    def startService(self) -> None:
        """Write by a thread from here on: twistd has become a daemon, if it does."""
        super().startService()  # type: ignore[no-untyped-call]
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            # Its default would end the process, whatever the log is written to.
            signal.signal(signal.SIGUSR1, self._turn)
        self.writer.start()
        # However the process ends, what waits is written.
        atexit.register(self.writer.stop)

    def _turn(self, number: int, frame: object) -> None:
        """SIGUSR1: begin a new file, where the log is one."""
        target = self.writer.target
        if isinstance(target, FileTarget):
            target.turn()
            self._from_signal("the log begins a new file", target)
        else:
            self._from_signal("SIGUSR1 begins a new file, and the log is none", target)

    def _from_signal(self, event: str, target: Target) -> None:
        """A line, which also has the target write now, said outside the handler of a signal."""
        from twisted.internet import reactor

        fields = {"to": target.describe()}
        reactor.callFromThread(self.say, "info", "mqttd.log", event, fields)  # type: ignore[attr-defined]

    def stopService(self) -> None:
        """Write what waits; what comes from here on is Twisted's farewell."""
        super().stopService()  # type: ignore[no-untyped-call]
        atexit.unregister(self.writer.stop)
        self.writer.stop()


def _lines_of(settings: Settings, target: Target) -> Lines:
    if isinstance(target, JournalTarget):
        return Journal()
    return Json() if settings.format == "json" else Text()
