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
is charged, what goes wrong counted, and the `Watchdog` breaks off one that overstays.  This module
is not compiled, because the watchdog finds a callback by its Python frames.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from types import FunctionType, MethodType
from typing import Any, Final, cast

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqttd.broker import watchdog
from mqttd.broker.budget import Budget
from mqttd.broker.watchdog import GUARDS, STEPS, PluginTimeout, Watch
from mqttd.types import OK, STOP, AuthError, HookResult, Verdict

__all__ = ["POINTS", "Budget", "Callback", "HookError", "Hooks", "PluginTimeout", "Point"]

CLIENT_CONNECT: Final = "client.connect"
CLIENT_CONNACK: Final = "client.connack"
CLIENT_CONNECTED: Final = "client.connected"
CLIENT_DISCONNECTED: Final = "client.disconnected"
CLIENT_AUTHENTICATE: Final = "client.authenticate"
CLIENT_AUTHORIZE: Final = "client.authorize"
CLIENT_DENIED: Final = "client.denied"
CLIENT_SUBSCRIBE: Final = "client.subscribe"
CLIENT_SUBSCRIBE_AFTER: Final = "client.subscribe.after"
CLIENT_UNSUBSCRIBE: Final = "client.unsubscribe"
CLIENT_HANDLE_INFO: Final = "client.handle_info"
SESSION_CREATED: Final = "session.created"
SESSION_SUBSCRIBED: Final = "session.subscribed"
SESSION_UNSUBSCRIBED: Final = "session.unsubscribed"
SESSION_RESUMED: Final = "session.resumed"
SESSION_DISCONNECTED: Final = "session.disconnected"
SESSION_DISCARDED: Final = "session.discarded"
SESSION_TAKENOVER: Final = "session.takenover"
SESSION_TERMINATED: Final = "session.terminated"
MESSAGE_PUBLISH: Final = "message.publish"
MESSAGE_DELIVERED: Final = "message.delivered"
MESSAGE_ACKED: Final = "message.acked"
MESSAGE_NACK: Final = "message.nack"
MESSAGE_DROPPED: Final = "message.dropped"
DELIVERY_COMPLETED: Final = "delivery.completed"
DELIVERY_DROPPED: Final = "delivery.dropped"


@dataclass(slots=True, frozen=True)
class Point:
    """One hook point: when it runs, what a callback gets, and what STOP means."""

    name: str
    when: str
    args: tuple[str, ...]
    acc: str
    stop: str = "later callbacks are not told"
    #: A callback may answer with a Deferred, or be a coroutine.
    waits: bool = False


_CLIENT: Final = ("client: ClientInfo",)

POINTS: Final[dict[str, Point]] = {
    point.name: point
    for point in (
        Point(
            CLIENT_CONNECT,
            "a valid CONNECT has arrived, before authentication",
            _CLIENT,
            "properties of CONNECT: dict | None; an AuthError refuses the client",
            "the accumulator is what the client has asked for, or its refusal",
            waits=True,
        ),
        Point(
            CLIENT_CONNACK,
            "before CONNACK is sent, also one that refuses a client",
            (*_CLIENT, "reason_code: int"),
            "properties of CONNACK: dict | None; MQTT 5.0 sends them",
            "the accumulator is sent as it is",
        ),
        Point(CLIENT_CONNECTED, "after CONNACK with success", _CLIENT, "None"),
        Point(
            CLIENT_DISCONNECTED, "a connected client has gone", (*_CLIENT, "reason: str"), "None"
        ),
        Point(
            CLIENT_AUTHENTICATE,
            "before the authentication chain",
            (*_CLIENT, "password: bytes | None"),
            "AuthVerdict; AUTH_IGNORE asks the chain",
            "the accumulator is the verdict",
            waits=True,
        ),
        Point(
            CLIENT_AUTHORIZE,
            "before the access-control chain; the answer is kept for this client, action and topic"
            " until access rules or hooks change",
            (*_CLIENT, "action: Action", "topic: str"),
            "Verdict; IGNORE asks the chain",
            "the accumulator is the verdict",
        ),
        Point(
            CLIENT_DENIED,
            "client.authorize or the chain has said no; once per decision, not per message",
            (*_CLIENT, "action: Action", "topic: str"),
            "None",
        ),
        Point(
            CLIENT_SUBSCRIBE,
            "a SUBSCRIBE has arrived, before the access check",
            (*_CLIENT, "properties: dict | None"),
            "list[Subscription]",
            "the accumulator is subscribed as it is",
        ),
        Point(
            CLIENT_SUBSCRIBE_AFTER,
            "after SUBACK is decided",
            _CLIENT,
            "list[Subscription] that were granted",
        ),
        Point(
            CLIENT_UNSUBSCRIBE,
            "an UNSUBSCRIBE has arrived",
            (*_CLIENT, "properties: dict | None"),
            "topic filters: list[str]",
            "the accumulator is unsubscribed as it is",
        ),
        Point(
            CLIENT_HANDLE_INFO,
            "`send_info` of its channel, or of the broker, was called for a connected client",
            (*_CLIENT, "info: object"),
            "list[Message] to deliver",
            "the accumulator is delivered as it is",
        ),
        Point(SESSION_CREATED, "a new session exists", _CLIENT, "None"),
        Point(
            SESSION_SUBSCRIBED,
            "a subscription was added or replaced",
            (*_CLIENT, "subscription: Subscription"),
            "None",
        ),
        Point(
            SESSION_UNSUBSCRIBED,
            "a subscription was removed",
            (*_CLIENT, "topic_filter: str"),
            "None",
        ),
        Point(SESSION_RESUMED, "a client came back to its session", _CLIENT, "None"),
        Point(SESSION_DISCONNECTED, "the session stays, its client has gone", _CLIENT, "None"),
        Point(SESSION_DISCARDED, "a clean start threw the old session away", _CLIENT, "None"),
        Point(SESSION_TAKENOVER, "another connection took the session over", _CLIENT, "None"),
        Point(SESSION_TERMINATED, "the session has ended", (*_CLIENT, "reason: str"), "None"),
        Point(
            MESSAGE_PUBLISH,
            "a message enters the broker, before retain and routing; all but the broker's own"
            " `$SYS/`",
            (),
            "Message; None drops it, a reason code from 0x80 refuses it",
            "the accumulator is routed as it is",
        ),
        Point(MESSAGE_DELIVERED, "a message is written to a subscriber", _CLIENT, "Message"),
        Point(
            MESSAGE_ACKED, "a subscriber acknowledged: PUBACK, for QoS 2 PUBREC", _CLIENT, "Message"
        ),
        Point(
            MESSAGE_NACK,
            "a subscriber answered PUBACK or PUBREC with a reason code of 0x80 or more",
            (*_CLIENT, "reason_code: int"),
            "Message",
        ),
        Point(
            MESSAGE_DROPPED,
            "a message reached nobody: no_subscriber, hook, denied, retained_full",
            ("client: ClientInfo | None", "reason: str"),
            "Message",
        ),
        Point(
            DELIVERY_COMPLETED,
            "all steps of one delivery are done: written (QoS 0), PUBACK (1), PUBCOMP (2)",
            _CLIENT,
            "Message",
        ),
        Point(
            DELIVERY_DROPPED,
            "a message was not delivered to one subscriber, for one of the reasons in metrics.md",
            (*_CLIENT, "reason: str"),
            "Message",
        ),
    )
}


class HookError(ValueError):
    """An unknown point, a callback hooked twice, or one that was never hooked."""


HookCallable = Callable[..., "HookResult | Deferred[HookResult | None] | None"]
OnError = Callable[[str, HookCallable, BaseException, Budget], None]
ListenersChanged = Callable[[str, bool], None]

#: What stands for the answer of a call that went wrong.
FAILED: Final = object()

_SERVER_UNAVAILABLE: Final = 0x88


@dataclass(slots=True, frozen=True)
class Callback:
    """One registered callback; ``number`` is its place in the order of registration."""

    callback: HookCallable
    init_args: tuple[Any, ...]
    priority: int
    number: int
    budget: Budget = field(default_factory=lambda: Budget("?"))
    #: What is called: `callback`, or a Python function around one written in C.
    call: HookCallable = field(default=lambda *args: None, repr=False)


_Running = tuple[Callback, Budget, HookCallable, tuple[Any, ...]]


class Hooks:
    """The callbacks of every point.

    ``on_error(point, callback, exception, budget)`` is told of each callback that raised, was
    broken off, did not answer in time or answered with something that is no hook result; the chain
    goes on with the accumulator as it was, or ends with a refusal (`Budget.policy`).  ``clock`` is
    the `IReactorTime` for the deadlines of Deferreds; without one no callback may wait.
    """

    __slots__ = (
        "_budgets",
        "_chains",
        "_number",
        "_running",
        "alarms",
        "clock",
        "errors",
        "listeners_changed",
        "on_error",
        "watch",
    )

    def __init__(self, on_error: OnError | None = None, clock: Any = None) -> None:
        self._chains: dict[str, tuple[Callback, ...]] = {}
        #: The same as tuples, for `run_hooks`.
        self._running: dict[str, tuple[_Running, ...]] = {}
        self._budgets: dict[Budget, int] = {}
        self._number = 0
        self.on_error = on_error
        self.clock = clock
        #: Where quarantines are told (`mqttd.broker.alarms.Alarms`), once there is a broker.
        self.alarms: Any = None
        #: What is being called now, for the watchdog.
        self.watch = Watch()
        #: errors by point
        self.errors: dict[str, int] = {}
        #: called with (point, listening) after each change of a chain
        self.listeners_changed: list[ListenersChanged] = []

    def hook(
        self,
        point: str,
        callback: HookCallable,
        init_args: Sequence[Any] = (),
        priority: int = 0,
        owner: Budget | None = None,
    ) -> None:
        """Call `callback` at `point`; `HookError` if it is hooked there already.

        Its time and errors are charged to `owner`; without one it has a budget to itself, of its
        own name and the default limits.
        """
        chain = self.lookup(point)
        if any(entry.callback == callback for entry in chain):
            raise HookError(f"{callback!r} is hooked at {point} already")
        self._number += 1
        budget = Budget(_name_of(callback)) if owner is None else owner
        self.adopt(budget)
        entry = Callback(
            callback, tuple(init_args), priority, self._number, budget, _framed(callback)
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
            raise HookError(f"no hook point {point!r}; there are: {', '.join(POINTS)}")
        return self._chains.get(point, ())

    def listening(self, point: str) -> bool:
        """True if anything is hooked at `point`."""
        return bool(self.lookup(point))

    # -- running ---------------------------------------------------------------------------------

    def run_hooks(self, point: str, args: Sequence[Any], acc: Any = None) -> tuple[HookResult, Any]:
        """Run the chain of `point`: ``(OK, acc)`` when it came to its end, else ``(STOP, acc)``.

        The first item is the very object `OK` or `STOP`.  Raises nothing but `HookError` for
        an unknown point.  A callback that answers with a Deferred has failed here: see `ask_hooks`.
        """
        chain = self._running.get(point)
        if chain is None:
            if point not in POINTS:
                self.lookup(point)
            return OK, acc
        # This loop is the cost of every hooked message: nothing is set for the watchdog, which
        # knows the local name `entry`, and the clock is read as seldom as a busy owner allows.
        watch = self.watch
        if not watch.armed:
            watch.arm()
        for entry, budget, call, init_args in chain:
            if budget.shut and not budget.admits(monotonic()):
                if budget.policy == "deny" and point in DENIED:
                    budget.denied += 1
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
            if result is not None:
                if isinstance(result, HookResult):
                    acc = result.accumulate(acc)
                else:
                    error = _no_result(result)
                    result = None
            taken = 0.0
            if timed:
                passed = monotonic() - start
                taken = passed - (watch.inner - inner)
                watch.inner = inner + passed
                budget.time += taken * (budget.mask + 1)
            if (
                error is not None
                or watch.stuck is not None
                or taken > budget.per_call
                or budget.shut
            ):
                self._returned(point, entry, error, taken)
                if error is not None and budget.policy == "deny" and point in DENIED:
                    budget.denied += 1
                    return STOP, DENIED[point](budget)
            if result is not None and result.stop:
                return STOP, acc
        return OK, acc

    def ask_hooks(
        self, point: str, args: Sequence[Any], acc: Any = None
    ) -> tuple[HookResult, Any] | Deferred[tuple[HookResult, Any]]:
        """As `run_hooks`, for the points that wait (`Point.waits`).

        Returns a Deferred of the same pair if a callback answered with a Deferred or a coroutine;
        it always fires, and never fails: a callback that has not answered within the `deadline` of
        its budget has failed.
        """
        return self._ask(point, self.lookup(point), 0, tuple(args), acc)

    def _ask(
        self, point: str, chain: tuple[Callback, ...], start: int, args: tuple[Any, ...], acc: Any
    ) -> tuple[HookResult, Any] | Deferred[tuple[HookResult, Any]]:
        for i in range(start, len(chain)):
            entry = chain[i]
            budget = entry.budget
            if budget.admits(monotonic()):
                answer = self._call(point, entry, (*args, acc, *entry.init_args), True)
                if isinstance(answer, Deferred):
                    return self._wait(point, chain, i, args, acc, answer)
            else:
                answer = FAILED
            ended = self._answered(point, entry, answer, acc)
            if ended[0] is STOP:
                return ended
            acc = ended[1]
        return OK, acc

    def _wait(
        self,
        point: str,
        chain: tuple[Callback, ...],
        i: int,
        args: tuple[Any, ...],
        acc: Any,
        waiting: Deferred[Any],
    ) -> tuple[HookResult, Any] | Deferred[tuple[HookResult, Any]]:
        entry = chain[i]
        budget = entry.budget
        if self.clock is None or budget.waiting >= budget.queue:
            why = "needs a reactor" if self.clock is None else "is one too many that wait"
            waiting.addErrback(lambda failure: None)
            waiting.cancel()
            self._returned(point, entry, RuntimeError(f"its Deferred {why}"), 0.0)
            ended = self._answered(point, entry, FAILED, acc)
            return ended if ended[0] is STOP else self._ask(point, chain, i + 1, args, ended[1])
        budget.waiting += 1
        done: Deferred[tuple[HookResult, Any]] = Deferred()
        late = self.clock.callLater(budget.deadline, waiting.cancel)

        def fired(answer: Any) -> None:
            budget.waiting -= 1
            error: BaseException | None = None
            if isinstance(answer, Failure):
                error = answer.value
                if not late.active():
                    error = TimeoutError(f"no answer within {budget.deadline:g} s")
            elif answer is not None and not isinstance(answer, HookResult):
                error = _no_result(answer)
            if late.active():
                late.cancel()
            if error is not None:
                self._returned(point, entry, error, 0.0)
                answer = FAILED
            else:
                budget.succeeded()
            ended = self._answered(point, entry, answer, acc)
            if ended[0] is not STOP:
                rest = self._ask(point, chain, i + 1, args, ended[1])
                if isinstance(rest, Deferred):
                    rest.addCallback(done.callback)
                    return
                ended = rest
            done.callback(ended)

        waiting.addBoth(fired)
        return done

    def _answered(
        self, point: str, entry: Callback, answer: Any, acc: Any
    ) -> tuple[HookResult, Any]:
        """What an answer makes of the accumulator; FAILED is answered by the owner's policy."""
        if answer is FAILED:
            if entry.budget.policy == "deny" and point in DENIED:
                entry.budget.denied += 1
                return STOP, DENIED[point](entry.budget)
            return OK, acc
        if answer is None:
            return OK, acc
        return (STOP if answer.stop else OK), answer.accumulate(acc)

    def call(
        self, owner: Budget, what: str, function: Callable[..., Any], args: Sequence[Any] = ()
    ) -> Any:
        """Call anything of a plugin under its budget: a timer, a route, a command.

        `what` names it in the log.  Returns its result; None if it raised, was broken off, or
        was not called because its owner is quarantined.  Never raises.
        """
        if not owner.admits(monotonic()):
            return None
        entry = Callback(function, (), 0, 0, owner, _framed(function))
        result = self._call(what, entry, tuple(args), False)
        return None if result is FAILED else result

    def _call(self, point: str, entry: Callback, args: tuple[Any, ...], judged: bool) -> Any:
        """One call under the watch: its result, or FAILED; `judged` wants a hook's answer."""
        watch = self.watch
        if not watch.armed:
            watch.arm()
        entry.budget.calls += 1
        error: BaseException | None = None
        result: Any = None
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
        entry.budget.time += taken
        if error is None and judged:
            if isinstance(result, Coroutine):
                result = Deferred.fromCoroutine(result)
            elif result is not None and not isinstance(result, (HookResult, Deferred)):
                error = _no_result(result)
        waiting = judged and isinstance(result, Deferred) and error is None
        self._returned(point, entry, error, taken, waiting)
        return result if error is None else FAILED

    def unusable(self, point: str, answer: object) -> None:
        """A chain ended with an accumulator that the broker cannot use: count and tell it."""
        error = TypeError(f"the accumulator cannot be used: {answer!r}"[:500])
        for entry in self._chains.get(point, ()):
            # Whose it is cannot be told when there are several.
            owner = entry.budget if len(self._chains[point]) == 1 else _ANYBODY
            self._failed(point, entry.callback, error, owner, "raised", monotonic())
            break

    # -- the account -----------------------------------------------------------------------------

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
                self._failed("", budget.tick, TimeoutError(text), budget, "share", now)

    def _returned(
        self,
        point: str,
        entry: Callback,
        error: BaseException | None,
        taken: float,
        waiting: bool = False,
    ) -> None:
        """Account for a call that was not a plain success, or on trial."""
        budget = entry.budget
        budget.longest = max(budget.longest, taken)
        kind = "late" if isinstance(error, TimeoutError) else "raised"
        stuck = self.watch.stuck is not None and self.watch.stuck is sys._getframe(1)
        if stuck:
            self.watch.stuck = None
        # Counted only if the watchdog found it, or nobody could overlook it: a process that did
        # not get the processor for a moment is not the callback's fault.
        if isinstance(error, PluginTimeout):
            kind = "blocked"
        elif error is None and (stuck or taken > 5 * budget.per_call):
            kind, error = "blocked", TimeoutError(f"took {taken * 1000:.0f} ms")
        if error is not None:
            self._failed(point, entry.callback, error, budget, kind, monotonic())
        elif budget.shut and not waiting:
            budget.succeeded()

    def _failed(
        self,
        point: str,
        callback: HookCallable | Callable[..., Any],
        error: BaseException,
        budget: Budget,
        kind: str,
        now: float,
    ) -> None:
        if point:
            self.errors[point] = self.errors.get(point, 0) + 1
        text = f"{point or 'all calls'}: {type(error).__name__}: {error}{where(error)}"[:500]
        if self.on_error is not None:
            with suppress(Exception):  # a fault in the report must not stop the broker either
                self.on_error(point, callback, error, budget)
        budget.failed(kind, text, now)

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

    def _replace(self, point: str, chain: tuple[Callback, ...]) -> None:
        if chain:
            chain = tuple(sorted(chain, key=lambda entry: (-entry.priority, entry.number)))
            self._chains[point] = chain
            self._running[point] = tuple(
                (entry, entry.budget, entry.call, entry.init_args) for entry in chain
            )
        else:
            self._chains.pop(point, None)
            self._running.pop(point, None)
        for changed in tuple(self.listeners_changed):
            changed(point, bool(chain))


#: What a point that gives a verdict answers for an owner whose policy is ``deny``.
DENIED: Final[dict[str, Callable[[Budget], Any]]] = {
    CLIENT_CONNECT: lambda owner: _unavailable(owner),
    CLIENT_AUTHENTICATE: lambda owner: _unavailable(owner),
    CLIENT_AUTHORIZE: lambda owner: Verdict.DENY,
    MESSAGE_PUBLISH: lambda owner: None,
}

_ANYBODY: Final = Budget("one of several callbacks", error_limit=1 << 62)

_WATCHDOG: Final = vars(watchdog)

GUARDS.update((Hooks.run_hooks.__code__, Hooks._call.__code__))


def where(error: BaseException) -> str:
    """`` (file:line)`` of the plugin's code that `error` came from, or nothing."""
    place = ""
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        if code not in GUARDS and code not in STEPS and at.tb_frame.f_globals is not _WATCHDOG:
            place = f" ({code.co_filename}:{at.tb_lineno})"
        at = at.tb_next
    return place


def _unavailable(owner: Budget) -> AuthError:
    return AuthError(f"plugin {owner.name} is {owner.state} or has failed", _SERVER_UNAVAILABLE)


def _alarm_of(owner: Budget) -> str:
    return f"quarantine.{owner.name}"


def _name_of(callback: HookCallable) -> str:
    module = getattr(callback, "__module__", None) or type(callback).__module__
    name = getattr(callback, "__qualname__", None) or type(callback).__qualname__
    return f"{module}.{name}"


def _framed(callback: HookCallable) -> HookCallable:
    """`callback`, as something with a Python frame for the watchdog to find."""
    function = callback.__func__ if isinstance(callback, MethodType) else callback
    if isinstance(function, FunctionType):
        return callback

    def call(*args: Any) -> Any:
        return callback(*args)

    STEPS.add(call.__code__)
    return cast(HookCallable, call)


def _no_result(result: object) -> BaseException:
    """The error of an answer that cannot be used; it is let go of without a trace in the log."""
    if isinstance(result, Deferred):
        result.addErrback(lambda failure: None)
        result.cancel()
        return TypeError("this point does not wait: expected OK, STOP or None, got a Deferred")
    if isinstance(result, Coroutine):
        result.close()
        return TypeError("this point does not wait: expected OK, STOP or None, got a coroutine")
    return TypeError(f"expected OK, STOP or None, got {result!r}")
