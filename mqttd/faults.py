"""What plugins get wrong, in the log: each line names the plugin and says where."""

from __future__ import annotations

import traceback
from typing import Any, Protocol

from twisted.logger import Logger

from mqttd.monitor.log.lines import plain
from mqttd.plugins.calls.account import is_of_one
from mqttd.plugins.calls.budget import UNBOUNDED, Budget
from mqttd.plugins.calls.callback import DENIED, Callback
from mqttd.plugins.calls.watchdog import PluginTimeout, where
from mqttd.plugins.handle.access import PluginFailed
from mqttd.types import PluginError

__all__ = ["Faults"]


class _Events(Protocol):
    def __call__(self, event: str, fields: dict[str, object]) -> None: ...

    def error(self, event: str, fields: dict[str, object]) -> None: ...


class Faults:
    """Writes them to `events`, the log of what happens in the broker."""

    def __init__(self, events: _Events) -> None:
        self.events = events
        self.log = Logger(namespace="mqttd")

    def module(self, kind: str, name: str, error: BaseException, then: str = "") -> None:
        """A module of access control has failed; what happens to the client then."""
        told: dict[str, object] = {"module": f"{kind} {name}", "error": error}
        if then:
            told["then"] = then
        # OSError and TimeoutError are its back end's, a plugin's callback has been told of.
        if not isinstance(error, (OSError, PluginFailed)):
            told["traceback"] = "".join(traceback.format_exception(error))
        self.events("module failed", told)

    def callback(self, point: str, callback: Any, error: BaseException, owner: Budget) -> None:
        """A callback has failed; as `Account.on_error`."""
        if point == "load" and isinstance(error, PluginError):
            return  # an answer in one line, which who asked for the plugin gets and tells
        told: dict[str, object] = {
            "plugin": owner.name,
            "point": point,
            "callback": callback,
            "error": error,
            "where": where(error).strip(" ()"),
            "errors": _count(point, error, owner),
        }
        if point in DENIED:
            told["policy"] = owner.policy
        told["traceback"] = "".join(traceback.format_exception(error))
        self.events.error("callback failed", told)

    def stuck(self, entry: Callback, seconds: float, stack: str) -> None:
        """A callback cannot be broken off; as the watchdog tells it."""
        self.log.critical(
            "{plugin}: {callback} has kept the reactor for {seconds:.1f} s and cannot be broken"
            ' off (stuck in C code?); run such a plugin with isolation = "process"\n{stack}',
            plugin=entry.budget.name,
            callback=plain(entry.callback),
            seconds=seconds,
            stack=stack,
        )


def _count(point: str, error: BaseException, owner: Budget) -> str:
    """How many errors there are with this one, and how many lead to quarantine."""
    number = sum(owner.faults.values()) + 1
    if owner.error_limit >= UNBOUNDED:
        return str(number)
    if is_of_one(point) and not isinstance(error, (TimeoutError, PluginTimeout)):
        return f"{number}, not counted against the limit"
    return f"{owner.errors + 1} of {owner.error_limit}"
