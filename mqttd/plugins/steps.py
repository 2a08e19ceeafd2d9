"""What a plugin may take its time for while it is loaded and unloaded, and how long.

    imported(work)       code is imported beside the reactor, within `DEADLINE`
    call(name, what, f)  `load`, `unload`, a command: may block `MOST_BLOCKED`, and wait `DEADLINE`

Promise: either ends in that time, with a result or with an error that an operator can read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeadlineError
from twisted.python.failure import Failure
from zope.interface import Invalid

from mqttd.plugins.calls.budget import UNBOUNDED, Budget
from mqttd.plugins.handle.handle import Host
from mqttd.plugins.pipe import RemoteError
from mqttd.types import PluginError

__all__ = ["DEADLINE", "MOST_BLOCKED", "DeadlineError", "Steps", "text_of"]

#: Seconds that a plugin's Deferreds of `load` and `unload` may take.
DEADLINE: Final = 10.0
#: Seconds after which a step that blocks the reactor is broken off; nobody is served until then.
MOST_BLOCKED: Final = 2.0


class Steps:
    """Takes the steps; `threaded` says whether code is imported in a thread."""

    def __init__(self, host: Host, threaded: Callable[[], bool]) -> None:
        self.host = host
        self.threaded = threaded

    async def imported(self, work: Callable[[], Any]) -> Any:
        """Do `work`, which imports code, beside the reactor while it runs."""
        if not self.threaded():
            return work()
        done: Deferred[Any] = Deferred()
        call = self.host.reactor.callFromThread

        def run() -> None:
            try:
                call(_fire, done, work())
            except BaseException:
                call(_fire, done, Failure())

        # A daemon: an import that never ends must not keep the broker from ending.
        threading.Thread(target=run, name="mqttd import", daemon=True).start()
        try:
            return await done.addTimeout(DEADLINE, self.host.reactor)
        except DeadlineError:
            raise PluginError(f"its code was not imported within {DEADLINE:g} s") from None

    async def call(self, name: str, what: str, f: Callable[..., Any], *args: Any) -> Any:
        """Call what a plugin may take its time for; broken off after `MOST_BLOCKED` seconds.

        Raises PluginError, DeadlineError, or what its Deferred failed with.
        """
        trial = Budget(f"{name} {what}", per_call=MOST_BLOCKED, error_limit=UNBOUNDED)
        result = self.host.broker.hooks.call(trial, what, f, args)
        if trial.faults:
            raise PluginError(trial.last_error.removeprefix(f"{what}: "))
        if isinstance(result, Coroutine):
            result = Deferred.fromCoroutine(result)
        if isinstance(result, Deferred):
            result = await result.addTimeout(DEADLINE, self.host.reactor)
        return result


def text_of(error: BaseException, what: str, settings: str = "") -> str:
    """An error of a step, as the line that an operator sees.

    settings: the file that may be at fault where a value is.
    """
    if isinstance(error, DeadlineError):
        return f"its {what} did not finish within {DEADLINE:g} s"
    if isinstance(error, Invalid):
        return " ".join(str(error).split())
    if isinstance(error, (PluginError, RemoteError)):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    if settings and (isinstance(error, ValueError) or text.startswith("ValueError: ")):
        text += f"; its settings are those of {settings}"
        text += "" if os.path.exists(settings) else ", which is not there"
    return text


def _fire(done: Deferred[Any], result: Any) -> None:
    if done.called:
        return
    if isinstance(result, Failure):
        done.errback(result)
    else:
        done.callback(result)
