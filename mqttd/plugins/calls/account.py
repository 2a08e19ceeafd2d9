"""Who pays for a call: what plugins' callbacks take and get wrong is charged to their budgets.

    a chain, a timer, a route --> Account.perform --> the callback
                                      |-- time, errors --> Budget of its owner
                                      |-- on_error, alarms --> log, operators
                                      '-- Watch <--> Watchdog, which breaks it off

Promise: `perform` and `call` raise nothing but `KeyboardInterrupt`, whatever the callback does.
This module is not compiled, because the watchdog finds a callback by its Python frames.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from time import monotonic
from types import FrameType
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred

from mqttd.broker.ground.alarms import Alarms
from mqttd.plugins.calls.budget import Budget
from mqttd.plugins.calls.callback import FAILED, JUDGING, Callback, HookCallable, meant, no_result
from mqttd.plugins.calls.watchdog import GUARDS, TICK, PluginTimeout, Watch, framed, where
from mqttd.types import HookResult, PluginError

__all__ = ["Account", "OnError", "is_of_one"]

#: Characters of the line that tells of an error.
_MOST: Final = 500

#: A unit of a turn's work is so long, in seconds.
_UNIT: Final = 1e-6
#: What one call for a client may take without being held against its plugin.
_SHORT: Final = 1e-3

OnError = Callable[[str, HookCallable, BaseException, Budget], None]


class Turn(Protocol):
    """Who counts the work that the client in turn has caused (`Topics`)."""

    work: int


class Account:
    """The budgets of all owners, and the calls that are charged to them.

    ``on_error(point, callback, exception, budget)`` is told of each callback that raised, was
    broken off, did not answer in time or answered with something that is no hook result.
    """

    __slots__ = ("_budgets", "alarms", "errors", "on_error", "turn", "watch")

    def __init__(self, on_error: OnError | None = None) -> None:
        self._budgets: dict[Budget, int] = {}
        self.on_error = on_error
        #: Where quarantines are told, once there is a broker.
        self.alarms: Alarms | None = None
        #: Whose work it is what clients have plugins do, once there is a broker.
        self.turn: Turn | None = None
        #: What is being called now, for the watchdog.
        self.watch = Watch()
        #: errors by point
        self.errors: dict[str, int] = {}

    # -- calls -----------------------------------------------------------------------------------

    def call(
        self, owner: Budget, what: str, function: Callable[..., Any], args: Sequence[Any] = ()
    ) -> Any:
        """Call anything of a plugin under its budget: a timer, a route, a command.

        `what` names it in the log.  Returns its result; None if it raised, was broken off, or
        was not called because its owner is quarantined.  Never raises.
        """
        if not owner.admits(monotonic()):
            return None
        entry = Callback(callback=function, budget=owner, call=framed(function))
        result = self.perform(what, entry, tuple(args), False)
        return None if result is FAILED else result

    def perform(self, point: str, entry: Callback, args: tuple[Any, ...], judged: bool) -> Any:
        """One call under the watch: its result, or FAILED; `judged` wants a hook's answer."""
        watch = self.watch
        if not watch.armed:
            watch.arm()
        entry.budget.calls += 1
        error: BaseException | None = None
        result: Any = None
        said: HookResult | None = None
        inner = watch.inner
        start = monotonic()
        try:
            result = entry.call(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            error = raised
        passed = monotonic() - start
        taken = passed - (watch.inner - inner)
        watch.inner = inner + passed
        if taken > TICK:
            taken = watch.spent(start, taken)
        entry.budget.time += taken
        if error is None and judged:
            if isinstance(result, Coroutine):
                result = Deferred.fromCoroutine(result)
            elif result is not None and not isinstance(result, (HookResult, Deferred)):
                error = no_result(result)
                said = meant(point, result)
        waiting = judged and isinstance(result, Deferred) and error is None
        self.returned(point, entry, error, taken, waiting)
        if error is None:
            return result
        return FAILED if said is None else said

    def spent(self, budget: Budget, taken: float) -> None:
        """Charge so many seconds of a hook to its plugin, and as work to the client in turn."""
        every = budget.mask + 1
        budget.time += taken * every
        if taken < _SHORT:
            budget.passed_on += taken * every
        if self.turn is not None:
            self.turn.work += int(taken * every / _UNIT)
        if not budget.mask:
            budget.hurry()

    def returned(
        self,
        point: str,
        entry: Callback,
        error: BaseException | None,
        taken: float,
        waiting: bool = False,
        guard: FrameType | None = None,
    ) -> None:
        """Charge a call that was not a plain success, or on trial.

        guard: the frame that the watchdog knows it by; None: that of who asks this.
        """
        budget = entry.budget
        budget.longest = max(budget.longest, taken)
        kind = "late" if isinstance(error, TimeoutError) else "raised"
        stuck = self.watch.stuck is not None and self.watch.stuck is (guard or sys._getframe(1))
        if stuck:
            self.watch.stuck = None
        # Counted only if the watchdog found it, or nobody could overlook it.
        if isinstance(error, PluginTimeout):
            kind = "blocked"
        elif error is None and (stuck or taken > 5 * budget.per_call):
            kind, error = "blocked", TimeoutError(f"took {taken * 1000:.0f} ms")
        if error is not None:
            self.failed(point, entry, error, budget, kind)
        elif budget.shut and not waiting:
            budget.succeeded()

    def failed(
        self, point: str, entry: Callback, error: BaseException, budget: Budget, kind: str
    ) -> None:
        """Count and tell one error of `entry`, and charge `budget` with it."""
        if point:
            self.errors[point] = self.errors.get(point, 0) + 1
        if budget is entry.budget:
            entry.errors += 1
        text, place = f"{point or 'all calls'}: ", ""
        if not isinstance(error, PluginError):  # what that says is all that is to be said
            text += f"{type(error).__name__}: "
            place = where(error)
        # One line, and its end is the place: what says more than fits is cut before that.
        text += " ".join(str(error).split())
        text = text[: max(_MOST - len(place), 0)] + place[:_MOST]
        if self.on_error is not None:
            with suppress(Exception):  # a fault in the report must not stop the broker either
                self.on_error(point, entry.callback, error, budget)
        if kind == "raised" and is_of_one(point):
            budget.noted(kind, text, monotonic())
        else:
            budget.failed(kind, text, monotonic())

    # -- budgets ---------------------------------------------------------------------------------

    def adopt(self, owner: Budget) -> None:
        """Have `tick` keep the account of `owner`; once more for each call of it."""
        if owner not in self._budgets:
            self._budgets[owner] = 0
            owner.changed.append(self._changed)
        self._budgets[owner] += 1

    def disown(self, owner: Budget) -> None:
        """Undo one `adopt`."""
        left = self._budgets.get(owner, 0) - 1
        if left > 0:
            self._budgets[owner] = left
        elif self._budgets.pop(owner, None) is not None:
            owner.changed.remove(self._changed)
            if self.alarms is not None:
                self.alarms.clear(_alarm_of(owner))

    def budgets(self) -> list[Budget]:
        """Every owner of a callback, in the order they came."""
        return list(self._budgets)

    def quarantined(self) -> int:
        """How many of them are not called now because of their errors."""
        return sum(budget.shut for budget in self._budgets)

    def tick(self) -> None:
        """A few times a second: who has used more than its share of the second?"""
        now = monotonic()
        for budget in tuple(self._budgets):
            share = budget.tick(now)
            if share:
                text = (
                    f"{budget.name} used {share:.0%} of the reactor's time,"
                    f" at most {budget.per_second:.0%} is its share"
                )
                entry = Callback(callback=budget.tick, budget=budget)
                self.failed("", entry, TimeoutError(text), budget, "share")

    def _changed(self, budget: Budget) -> None:
        """A quarantine begins or ends."""
        if self.alarms is None:
            return
        if not budget.shut:
            self.alarms.clear(_alarm_of(budget))
        elif budget.state == "quarantined":
            wait = max(budget.retry_at - monotonic(), 0)
            self.alarms.activate(
                _alarm_of(budget),
                f"{budget.name} is quarantined ({budget.policy}) after {budget.errors} errors,"
                f" the last: {budget.last_error}; one call is tried in {wait:.0f} s",
            )


def is_of_one(point: str) -> bool:
    """Whether one client is judged there: what is raised is no step towards quarantine."""
    return point in JUDGING or point.startswith(("auth ", "acl "))


def _alarm_of(owner: Budget) -> str:
    return f"quarantine.{owner.name}"


GUARDS.add(Account.perform.__code__)
