"""What all groups of a handle share: whose it is, calls on its budget, and the end.

    group --+-- _guard(what, f, args) --> Account.call, on the plugin's Budget
            '-- _at_end(f): `revoke` calls f, the last one first

Promise: after `revoke` nothing is called any more, and a part that cannot be taken back does not
keep the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred, succeed
from twisted.logger import Logger

from mqttd.net.clock import day
from mqttd.net.wake import Watcher
from mqttd.plugins.calls.budget import Budget

__all__ = ["SEGMENT", "HandleBase", "Host", "check_message"]

#: Calls whose Deferred nobody but the handle looks at.
_WATCHED: Final = frozenset({"timer", "subscription"})

#: What names of routes and listeners look like.
SEGMENT: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_message(topic: object, payload: object) -> None:
    """Raise TypeError for what cannot be published, before the broker stumbles over it."""
    if not isinstance(topic, str):
        raise TypeError(f"topic {topic!r}: expected text, got {type(topic).__name__}")
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        how = "; text becomes bytes with payload.encode()" if isinstance(payload, str) else ""
        raise TypeError(f"payload: expected bytes, got {type(payload).__name__}{how}")


class Host:
    """What handles are made of: the broker's parts, given once by the service.

    `make_factory(name)` makes the Twisted factory of a listener that a plugin adds; `worker` is the
    number of this process among `workers`, 0 where it is the only one.
    """

    def __init__(
        self,
        broker: Any,
        reactor: Any,
        make_factory: Callable[[str], Any] | None = None,
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        self.broker = broker
        self.reactor = reactor
        self.make_factory = make_factory
        self.worker = worker
        self.workers = workers
        #: The metrics of all plugins; `Plugins` knows them.
        self.metrics: Callable[[], list[tuple[str, str, float]]] = list
        #: Who polls for descriptors, where there is one.
        self.engine: Watcher | None = None
        #: Clients are let in, what was kept is there.
        self.opened = True
        self.opening: list[Callable[[], None]] = []

    def let_in(self) -> None:
        """Clients are let in from now on."""
        self.opened = True
        opening, self.opening = self.opening, []
        for told in opening:
            told()


class HandleBase:
    """Name, directories, log and clock of one load of one plugin, and its budget."""

    def __init__(
        self, host: Host, name: str, data_dir: str, config_dir: str, budget: Budget
    ) -> None:
        self.name = name
        self.node: str = host.broker.name
        self.worker = host.worker
        self.workers = host.workers
        self.log = Logger(namespace=f"mqttd.plugin.{name}")
        self.clock = host.reactor
        self.config_dir = config_dir
        self.revoked = False
        self.budget = budget
        self._host = host
        self._data_dir = data_dir
        self._ends: list[Callable[[], object]] = []
        host.broker.hooks.adopt(budget)
        self._at_end(lambda: host.broker.hooks.disown(budget))

    def time(self) -> float:
        """See `IPluginHandle.time`."""
        return day(self.clock)

    @property
    def data_dir(self) -> str:
        """The plugin's own directory, made when it is first asked for."""
        os.makedirs(self._data_dir, mode=0o700, exist_ok=True)
        return self._data_dir

    def describe(self) -> dict[str, Any]:
        """What is registered now, for `mqttd-ctl plugins info`."""
        return {}

    def read(self, what: str, read: Callable[[], Any]) -> Any:
        """The value of a metric or a topic; None when it cannot be had."""
        return self._guard(what, read, ())

    def revoke(self) -> Deferred[Any]:
        """Take everything back; fires when services and listeners have stopped."""
        if self.revoked:
            return succeed(None)
        self.revoked = True
        stopping = []
        while self._ends:
            stopping.append(self._ended(self._ends.pop()))
        return DeferredList(stopping)

    # -- for the groups --------------------------------------------------------------------------

    def _at_end(self, f: Callable[[], object]) -> None:
        """Have `f` called by `revoke`; it may answer with a Deferred."""
        self._ends.append(f)

    def _ended(self, f: Callable[[], object]) -> Deferred[Any]:
        """Call `f`, which ends something; it never fails, and is logged if it does."""
        waiting: Deferred[Any] = maybeDeferred(f)
        return waiting.addErrback(lambda failure: self.log.failure("cannot be stopped", failure))

    def _guard(self, what: str, f: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call ``f(*args)`` on the budget; None when it failed, a Deferred never fails unseen."""
        if self.revoked:
            return None
        result = self._host.broker.hooks.call(self.budget, what, f, args)
        if isinstance(result, Coroutine):
            result = Deferred.fromCoroutine(result)
        if isinstance(result, Deferred) and what in _WATCHED:
            result.addErrback(self._late, what)
        return result

    def _late(self, failure: Any, what: str) -> None:
        """A Deferred has failed that nobody else waits for."""
        if not self.revoked:
            text = f"{what}: {failure.type.__name__}: {failure.value}"
            self.log.failure("its {what} failed", failure, what=what)
            self.budget.failed("raised", text[:500], monotonic())

    def _quietly(self, f: Callable[..., Any], *args: Any) -> None:
        """One that fails must not keep the others."""
        try:
            f(*args)
        except Exception:
            self.log.failure("{f!r} failed", f=f)

    def _check(self) -> None:
        if self.revoked:
            raise RuntimeError(f"plugin {self.name} is unloaded: its handle is dead")

    def _new(
        self,
        name: str,
        held: Mapping[str, Any],
        pattern: re.Pattern[str] | None,
        what: str,
        of: str,
    ) -> None:
        self._check()
        if pattern is not None and not pattern.fullmatch(name):
            raise ValueError(f"{what} = {name!r}: expected up to 64 of {of}")
        if name in held:
            raise ValueError(f"{what} = {name!r} is in use")
