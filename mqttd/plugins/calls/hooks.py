"""Hooks: a chain of responsibility at each point where a plugin may look or change.

::

              --------  OK | OK(acc)    --------  OK | OK(acc)    --------
 (args, acc)->| fun1 | ---------------> | fun2 | ---------------> | fun3 | -> (OK|STOP, acc)
              --------                  --------                  --------
                 | STOP | STOP(acc)        | STOP | STOP(acc)        | STOP | STOP(acc)
                 `-----------------------> (STOP, acc) <-------------'

A callback is called as ``callback(*args, acc, *init_args)``, as in the design documents:
first what happened, then the accumulator, last what was given at registration.

Promise: order is priority (higher first), then registration.  A chain is an immutable tuple,
replaced on each change: a callback may hook and unhook while the chain runs, which the
running call does not see.  A point that nobody uses costs one dict look-up, or nothing to
a caller that keeps a flag up to date through `Hooks.listeners_changed`.

Callbacks run in the reactor thread and must not block.  Each belongs to a `Budget`: what it takes
is charged, what goes wrong counted (`Account`), and the `Watchdog` breaks off one that overstays.
This module is not compiled, because the watchdog finds a callback by its Python frames.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from time import monotonic
from types import FrameType
from typing import Any, Final

from twisted.internet.defer import Deferred

from mqttd.broker.hooks.points import MESSAGE_PUBLISH, POINTS
from mqttd.plugins.calls.account import Account, OnError
from mqttd.plugins.calls.budget import QUARANTINED, UNBOUNDED, Budget
from mqttd.plugins.calls.callback import DENIED, Callback, HookCallable, meant, name_of, no_result
from mqttd.plugins.calls.filters import HookFilter, Patterns, hook_filter
from mqttd.plugins.calls.signatures import no_point
from mqttd.plugins.calls.waiting import Asking, Ended
from mqttd.plugins.calls.watchdog import GUARDS, TICK, framed
from mqttd.types import OK, STOP, HookError, HookResult

__all__ = ["Hooks"]

ListenersChanged = Callable[[str, bool], None]

_Running = tuple[Callback, Budget, HookCallable, tuple[Any, ...], HookFilter | None]


class Hooks(Account):
    """The callbacks of every point.

    ``on_error(point, callback, exception, budget)`` is told of each callback that raised, was
    broken off, did not answer in time or answered with something that is no hook result; the chain
    goes on with the accumulator as it was, or ends with a refusal (`Budget.policy`).  ``clock`` is
    the `IReactorTime` for the deadlines of Deferreds; without one no callback may wait.
    """

    __slots__ = (
        "_chains",
        "_lone",
        "_number",
        "_resting",
        "_running",
        "_stopped",
        "_told",
        "clock",
        "listeners_changed",
    )

    def __init__(self, on_error: OnError | None = None, clock: Any = None) -> None:
        super().__init__(on_error)
        self._chains: dict[str, tuple[Callback, ...]] = {}
        #: The same as tuples, for `run_hooks`.
        self._running: dict[str, tuple[_Running, ...]] = {}
        #: The callback of message.publish, if it is the only one and for every message.
        self._lone: tuple[Callback, Budget, HookCallable] | None = None
        #: What `topic_filters` answers, as it was last told.
        self._told: dict[str, list[str] | None] = {}
        #: Those in quarantine that nobody calls before it has lasted long enough.
        self._resting: set[Budget] = set()
        self._number = 0
        #: Whose callback has ended a chain last.
        self._stopped: Budget | None = None
        self.clock = clock
        #: called with (point, listening) after each change of a chain or of `topic_filters`
        self.listeners_changed: list[ListenersChanged] = []

    def hook(
        self,
        point: str,
        callback: HookCallable,
        init_args: Sequence[Any] = (),
        priority: int = 0,
        owner: Budget | None = None,
        topic_filter: Patterns = None,
        client: Patterns = None,
    ) -> None:
        """Call `callback` at `point`; `HookError` if it is hooked there already, or is an async
        function and the point waits for nobody.

        With filters (`mqttd.plugins.calls.filters`) for those messages and clients only.  Its time
        and errors are charged to `owner`; without one it has a budget to itself, of its own name
        and the default limits.
        """
        chain = self.lookup(point)
        if any(entry.callback == callback for entry in chain):
            raise HookError(f"{callback!r} is hooked at {point} already")
        if iscoroutinefunction(callback) and not POINTS[point].waits:
            those = ", ".join(name for name, each in POINTS.items() if each.waits)
            raise HookError(
                f"{name_of(callback)} is async, and {point} waits for no answer: a plain function"
                f" that begins what takes long; those that wait: {those}"
            )
        only = hook_filter(POINTS[point], topic_filter, client)
        self._number += 1
        budget = Budget(name_of(callback)) if owner is None else owner
        self.adopt(budget)
        entry = Callback(
            callback=callback,
            init_args=tuple(init_args),
            priority=priority,
            number=self._number,
            budget=budget,
            call=framed(callback),
            only=only,
        )
        self._replace(point, (*chain, entry))

    def unhook(self, point: str, callback: HookCallable) -> None:
        """Call `callback` at `point` no longer; `HookError` if it is not hooked there."""
        chain = self.lookup(point)
        rest = tuple(entry for entry in chain if entry.callback != callback)
        if len(rest) == len(chain):
            raise HookError(f"{callback!r} is not hooked at {point}")
        self._replace(point, rest)
        for entry in chain:
            if entry.callback == callback:
                self.disown(entry.budget)

    def lookup(self, point: str) -> tuple[Callback, ...]:
        """The callbacks of `point` in the order they run; `HookError` if there is no such point."""
        if point not in POINTS:
            raise HookError(no_point(point))
        return self._chains.get(point, ())

    def listening(self, point: str) -> bool:
        """True if anything is hooked at `point`."""
        return bool(self.lookup(point))

    def topic_filters(self, point: str) -> list[str] | None:
        """What topics the callbacks of `point` are for: None if one of them takes every topic.

        An owner in quarantine wants nothing, unless its policy is to refuse.
        """
        found: dict[str, None] = {}
        for entry in self.lookup(point):
            refuses = entry.budget.policy == "deny" and point in DENIED
            if entry.budget in self._resting and not refuses:
                continue
            if not entry.topic_filters:
                return None
            found.update(dict.fromkeys(entry.topic_filters))
        return list(found)

    # -- running ---------------------------------------------------------------------------------

    def run_hooks(
        self,
        point: str,
        args: Sequence[Any],
        acc: Any = None,
        part: tuple[_Running, ...] | None = None,
    ) -> tuple[HookResult, Any]:
        """Run the chain of `point`: ``(OK, acc)`` when it came to its end, else ``(STOP, acc)``.

        The first item is the very object `OK` or `STOP`.  Raises nothing but `HookError` for
        an unknown point.  A callback that answers with a Deferred has failed here: see `ask_hooks`.
        part: that part of the chain alone, for `tell_hooks`.
        """
        chain = self._running.get(point) if part is None else part
        if chain is None:
            if point not in POINTS:
                self.lookup(point)
            return OK, acc
        # This loop is the cost of every hooked message: nothing is set for the watchdog, which
        # knows the local name `entry`, and the clock is read as seldom as a busy owner allows.
        watch = self.watch
        if not watch.armed:
            watch.arm()
        for entry, budget, call, init_args, only in chain:
            if only is not None and not only.takes(args, acc):
                continue
            if budget.shut and not budget.admits(monotonic()):
                if budget.policy == "deny" and point in DENIED:
                    budget.denied += 1
                    self._stopped = budget
                    return STOP, DENIED[point](budget)
                continue
            count = budget.calls
            budget.calls = count + 1
            timed = not count & budget.mask
            if timed:
                inner = watch.inner
                start = monotonic()
            error: BaseException | None = None
            try:
                if args or init_args:
                    result = call(*args, acc, *init_args)
                else:
                    result = call(acc)
            except KeyboardInterrupt:
                raise
            except BaseException as raised:  # a plugin's fault must never stop the broker
                error = raised
                result = None
            if result is None and error is None and not timed and watch.stuck is None:
                if not budget.shut:
                    continue
            taken = 0.0
            if timed:
                passed = monotonic() - start
                taken = passed - (watch.inner - inner)
                watch.inner = inner + passed
                if taken > TICK:
                    taken = watch.spent(start, taken)
                self.spent(budget, taken)
            ended, acc = self._answered(point, entry, acc, result, error, taken, sys._getframe())
            if ended:
                return STOP, acc
        return OK, acc

    def ask_publish(self, message: Any) -> Any:
        """What the chain of message.publish makes of a message: `run_hooks`, its accumulator alone.

        The short way of most messages: one callback that lets them pass and is not timed this time
        costs 0.13 us instead of 0.22.
        """
        lone = self._lone
        if lone is not None:
            budget, call = lone[1], lone[2]
            count = budget.calls
            watch = self.watch
            if count & budget.mask and watch.armed and not budget.shut:
                entry = lone[0]  # by which the watchdog knows this frame
                budget.calls = count + 1
                error: BaseException | None = None
                try:
                    result = call(message)
                except KeyboardInterrupt:
                    raise
                except BaseException as raised:  # as in `run_hooks`
                    error = raised
                    result = None
                if result is None and error is None and watch.stuck is None and not budget.shut:
                    return message
                return self._answered(
                    MESSAGE_PUBLISH, entry, message, result, error, 0.0, sys._getframe()
                )[1]
        return self.run_hooks(MESSAGE_PUBLISH, (), message)[1]

    def _answered(
        self,
        point: str,
        entry: Callback,
        acc: Any,
        answer: object,
        error: BaseException | None,
        taken: float,
        guard: FrameType,
    ) -> tuple[bool, Any]:
        """Whether an answer, or an error, ends the chain of `point`, and the accumulator after it.

        taken: seconds, where the call was timed; guard: the frame that has called.
        """
        budget = entry.budget
        result = answer if isinstance(answer, HookResult) else None
        if answer is not None and result is None:
            error = no_result(answer)
            result = meant(point, answer)
        if result is not None:
            acc = result.accumulate(acc)
        if (
            error is not None
            or self.watch.stuck is not None
            or taken > budget.per_call
            or budget.shut
        ):
            self.returned(point, entry, error, taken, guard=guard)
            if error is not None and budget.policy == "deny" and point in DENIED:
                budget.denied += 1
                self._stopped = budget
                return True, DENIED[point](budget)
        if result is not None and result.stop:
            self._stopped = budget
            return True, acc
        return False, acc

    def tell_hooks(
        self, point: str, args: Sequence[Any], acc: Any, told: list[tuple[str, str]]
    ) -> tuple[HookResult, Any]:
        """As `run_hooks`; puts the owner of each callback into `told`, and what it has said."""
        for one in self._running.get(point, ()):
            entry, budget, _, _, only = one
            if only is not None and not only.takes(args, acc):
                continue
            before, failed = acc, entry.errors
            if budget.shut:
                said = "quarantined"
            result, acc = self.run_hooks(point, args, acc, (one,))
            if entry.errors > failed:
                said = "failed"
            elif not budget.shut:
                said = "changed it" if acc is not before and acc is not None else "let it pass"
            if result.stop:
                told.append((budget.name, f"{said}, and ended the chain" if acc else "stopped it"))
                return result, acc
            told.append((budget.name, said))
        return OK, acc

    def stopped_by(self) -> str:
        """Whose callback has ended a chain last."""
        return "" if self._stopped is None else f"hook of {self._stopped.name}"

    def ask_hooks(
        self, point: str, args: Sequence[Any], acc: Any = None
    ) -> Ended | Deferred[Ended]:
        """As `run_hooks`, for the points that wait (`Point.waits`).

        Returns a Deferred of the same pair if a callback answered with a Deferred or a coroutine;
        it always fires, and never fails: a callback that has not answered within the `deadline` of
        its budget has failed.
        """
        return Asking(self, self.clock, point, self.lookup(point), tuple(args)).run(acc)

    def unusable(self, point: str, answer: object) -> None:
        """A chain ended with an accumulator that the broker cannot use: count and tell it."""
        error = TypeError(f"the accumulator cannot be used: {answer!r}"[:500])
        chain = self._chains.get(point)
        if chain:
            # Whose it is cannot be told when there are several.
            owner = chain[0].budget if len(chain) == 1 else _ANYBODY
            self.failed(point, chain[0], error, owner, "raised")

    # -- what the broker is told of ----------------------------------------------------------------

    def disown(self, owner: Budget) -> None:
        """Undo one `adopt`."""
        super().disown(owner)
        if owner not in self._budgets:
            self._resting.discard(owner)

    def tick(self) -> None:
        """As `Account.tick`; and a quarantine that has lasted long enough lets a call through."""
        super().tick()
        now = monotonic()
        for owner in [each for each in self._resting if now >= each.retry_at]:
            self._resting.discard(owner)
            self._tell(owner)

    def _changed(self, budget: Budget) -> None:
        super()._changed(budget)
        if budget.state == QUARANTINED:
            self._resting.add(budget)
        else:
            self._resting.discard(budget)
        self._tell(budget)

    def _tell(self, owner: Budget) -> None:
        """Tell of the points where `owner` changes what `topic_filters` answers."""
        for point, chain in tuple(self._chains.items()):
            if any(entry.budget is owner for entry in chain):
                topic_filters = self.topic_filters(point)
                if topic_filters != self._told.get(point, []):
                    self._told[point] = topic_filters
                    self._call_listeners(point)

    def _call_listeners(self, point: str) -> None:
        for changed in tuple(self.listeners_changed):
            changed(point, point in self._chains)

    def _replace(self, point: str, chain: tuple[Callback, ...]) -> None:
        if chain:
            chain = tuple(sorted(chain, key=lambda entry: (-entry.priority, entry.number)))
            self._chains[point] = chain
            self._running[point] = tuple(
                (entry, entry.budget, entry.call, entry.init_args, entry.only) for entry in chain
            )
        else:
            self._chains.pop(point, None)
            self._running.pop(point, None)
        if point == MESSAGE_PUBLISH:
            self._lone = None
            if len(chain) == 1 and not chain[0].init_args and chain[0].only is None:
                self._lone = (chain[0], chain[0].budget, chain[0].call)
        self._told[point] = self.topic_filters(point)
        self._call_listeners(point)


_ANYBODY: Final = Budget("one of several callbacks", error_limit=UNBOUNDED)

GUARDS.update((Hooks.run_hooks.__code__, Hooks.ask_publish.__code__))
