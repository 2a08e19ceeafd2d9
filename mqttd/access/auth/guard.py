"""What stands between the authentication chain and one of its modules.

::

    ask --> cache --> breaker --> place free? --> module --> verdict in time and sound?
             | known    | open      | no: wait       |          | no: failed
             v          v           v (or busy)      v          v
           answer     failed      queue            answer     on_error: deny | ignore

A module may hang, fail, answer nonsense or a minute late: its clients get an answer within the
deadline (those that had to wait for their turn, within two), and nobody else notices.  A module
that answers at once pays for none of this but two readings of the clock.

What a client has shown may bring a module to raise, or to answer what is no verdict: that client is
refused, and the breaker does not hear of it, unless the back end could not be reached or was late
(`mqttd.access.auth.back_end`, or the module's own ``blames_back_end``). The queue is served network
by network and in these house by house (`mqttd.net.fair`), and a flood from one, or from a network
full of them, loses its places to others. Houses from which somebody has got in here lately and
strangers have every other turn, whatever the number of either.

Promise: at most ``concurrency`` questions under way and ``waiting`` in the queue; at most `HOUSES`
are known, in some 14 bytes each; nothing raised, no Deferred returned ever fails; a failure is
never cached.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, cast

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeadlineError
from twisted.python.failure import Failure

from mqttd.access.auth.answer_cache import AnswerCache
from mqttd.access.auth.back_end import is_of_back_end, words_of
from mqttd.access.auth.breaker import HALF_OPEN, Breakers
from mqttd.access.auth.known import Known
from mqttd.broker.ground.verdicts import fault_of, kind_of, refusal
from mqttd.config.schema import AuthBackend
from mqttd.net.fair import FairQueue, house_of, networks_of
from mqttd.types import (
    AUTH_IGNORE,
    AUTH_OK,
    AuthContinue,
    AuthError,
    AuthIgnore,
    AuthOk,
    AuthVerdict,
    ClientInfo,
)

__all__ = ["HOUSES", "Answer", "Gone", "Guard", "Latency", "OnEvent", "limits_of", "stays"]

OnEvent: TypeAlias = Callable[[str, dict[str, object]], None]
OnError: TypeAlias = Callable[[str, Exception, str], None]
Call: TypeAlias = Callable[[], object]
#: Whether the connection of who waits has come to its end.
Gone: TypeAlias = Callable[[], bool]
Recall: TypeAlias = Callable[[ClientInfo, bytes | None], "AuthOk | None"]

#: Houses from which somebody got in that are known to a module.
HOUSES: Final = 100_000

_SERVER_UNAVAILABLE: Final = 0x88
_SERVER_BUSY: Final = 0x89
_VERDICTS: Final = (AuthOk, AuthIgnore, AuthError)
_STEPS: Final = (AuthOk, AuthContinue, AuthError)
#: What happens to a client when a module has failed.
_REFUSED: Final = "the client is refused"
_PASSED: Final = "the next module is asked"
#: Those in the queue that are answered in a turn without being asked about.
_UNASKED: Final = 50
#: Seconds that a module may hold the reactor thread before the log says so.
_BLOCKS: Final = 0.1


@dataclass(slots=True, frozen=True)
class Answer:
    """A verdict, and the rules for the client that came with it, read already."""

    verdict: AuthOk | AuthIgnore | AuthError | AuthContinue
    rules: Any = None


_GONE: Final = Answer(AuthError("the client has gone", _SERVER_UNAVAILABLE))


def stays() -> bool:
    """Never gone."""
    return False


class Latency:
    """How long answers took: a histogram, their number, sum and maximum, in seconds."""

    #: Upper ends of the buckets; one more takes the rest.
    BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BUCKETS) + 1)
        self.count = 0
        self.sum = 0.0
        self.max = 0.0

    def observe(self, seconds: float) -> None:
        """Count one answer."""
        self.counts[bisect_left(self.BUCKETS, seconds)] += 1
        self.count += 1
        self.sum += seconds
        self.max = max(self.max, seconds)

    def snapshot(self) -> dict[str, object]:
        """The numbers, buckets as ``{"le": seconds or None, "count": those in it}``."""
        return {
            "count": self.count,
            "sum": round(self.sum, 6),
            "max": round(self.max, 6),
            "buckets": [
                {"le": le, "count": count}
                for le, count in zip((*self.BUCKETS, None), self.counts, strict=True)
            ],
        }


@dataclass(slots=True)
class _Waiter:
    """A question in the queue."""

    call: Call
    key: bytes | None
    takes: tuple[type, ...]
    house: str
    started: float
    gone: Gone
    answer: Deferred[Answer]


class Guard:
    """Asks one module on behalf of the chain, within `limits`.

    `reactor` is a clock with ``callLater``; without one a Deferred is a failure.
    ``on_error(name, exception, then)`` is told of each failure but those of an open breaker, and
    what happens to the client then,
    ``on_event(event, fields)`` of what the operator should know: the breaker, a module that blocks.
    """

    def __init__(
        self,
        name: str,
        limits: AuthBackend,
        reactor: Any,
        on_error: OnError,
        on_event: OnEvent,
        module: object = None,
    ) -> None:
        self.name = name
        self.limits = limits
        self.ignores_errors = limits.on_error == "ignore" or name in limits.ignore_errors_of
        self.breaker = Breakers(
            limits.breaker_failures, limits.breaker_retry, limits.breaker_max_retry
        )
        self.cache: AnswerCache[Answer] = AnswerCache()
        self.latency = Latency()
        self.hit = self.ok = self.deny = self.ignore = self.error = 0
        #: answers from the cache; refused as busy; failed at once by the breaker; too late
        self.cached = self.busy = self.rejected = self.late = 0
        #: questions under way
        self.running = 0
        self._reactor = reactor
        self._now: Callable[[], float] = time.monotonic if reactor is None else reactor.seconds
        self._on_error = on_error
        self._on_event = on_event
        self._queue: FairQueue[_Waiter] = FairQueue(limits.waiting, limits.waiting_per_address)
        #: Houses from which somebody got in, where that took a while to find out.
        self._known = Known(HOUSES)
        #: What a module knows without having to work for it.
        self._recall: Recall | None = getattr(module, "recall", None)
        self._blames = getattr(module, "blames_back_end", False) is True
        #: Told of each failure, where the module is a plugin's.
        self._charge: Callable[[str, Exception], None] | None = getattr(module, "charge", None)
        plugin = getattr(module, "plugin", None)
        self._title = name if plugin is None else f"{name} of plugin {plugin}"
        self._serving = False
        #: those in the queue have their next turn already
        self._later = False
        #: the module has answered with a Deferred: only then its answers are worth keeping
        self._waits = False

    # -- questions

    def ask(
        self, call: Call, client: ClientInfo, password: bytes | None, gone: Gone
    ) -> Answer | Deferred[Answer]:
        """Have the module's ``check`` (`call`) give its verdict on `client`, if it waits for it."""
        self.hit += 1
        if self._recall is not None:
            verdict = self._recall(client, password)
            if verdict is not None:
                self.cached += 1
                if isinstance(verdict, AuthOk):
                    self._known.add((house_of(client.peerhost),))
                return self._count(Answer(verdict))
        key: bytes | None = None
        if self._waits and (self.limits.cache_ok or self.limits.cache_denied):
            key = self.cache.key(client, password)
            known = self.cache.get(key, self._now())
            if known is not None and not _expired(known.verdict):
                self.cached += 1
                return self._count(known)
        house = house_of(client.peerhost)
        make_key = partial(self.cache.key, client, password)
        return self._enter(call, key, _VERDICTS, house, gone, make_key)

    def tell(self, verdict: AuthVerdict) -> bool:
        """Count the verdict of a module that needs no guard; True for a plain yes."""
        self.hit += 1
        if verdict is AUTH_OK:
            self.ok += 1
            return True
        self.ignore += 1
        return False

    def step(self, call: Call, client: ClientInfo) -> Answer | Deferred[Answer]:
        """Have the module take a step of an enhanced authentication."""
        self.hit += 1
        return self._enter(call, None, _STEPS, house_of(client.peerhost), stays, None)

    def _enter(
        self,
        call: Call,
        key: bytes | None,
        takes: tuple[type, ...],
        house: str,
        gone: Gone,
        make_key: Callable[[], bytes] | None,
    ) -> Answer | Deferred[Answer]:
        now = self._now()
        full = self.running >= self.limits.concurrency
        if full and self.breaker.closed(house):
            waiter = _Waiter(call, key, takes, house, now, gone, Deferred())
            rank = "known" if (house,) in self._known else "strangers"
            sent_away = self._queue.join(house, waiter, (rank, *networks_of(house)))
            if sent_away is not None:
                self.busy += 1
                text = f"too many clients wait for module {self.name}"
                sent_away.answer.callback(Answer(AuthError(text, _SERVER_BUSY)))
            return waiter.answer
        if not self.breaker.allows(now, house):
            return self._rejected()
        return self._call(call, key, takes, house, now, make_key)

    def _call(
        self,
        call: Call,
        key: bytes | None,
        takes: tuple[type, ...],
        house: str,
        started: float,
        make_key: Callable[[], bytes] | None = None,
    ) -> Answer | Deferred[Answer]:
        trial = self.breaker.state == HALF_OPEN
        began = time.perf_counter()
        try:
            verdict = call()
        except Exception as error:
            return self._failed(error, house)
        blocked = time.perf_counter() - began
        if blocked > _BLOCKS:
            self._event("auth module blocks the broker", seconds=round(blocked, 3))
        if not isinstance(verdict, Deferred):
            self.latency.observe(blocked)
            if trial and isinstance(verdict, AuthIgnore):
                self.breaker.untried(house)  # nothing was asked
                return self._count(Answer(AUTH_IGNORE))
            return self._take(verdict, None, takes, house)
        if self._reactor is None:
            verdict.addErrback(lambda failure: None)
            verdict.cancel()
            return self._failed(RuntimeError("a Deferred verdict needs a reactor"), house)
        if not self._waits:
            self._waits = True
            if key is None and make_key is not None:
                key = make_key()
        self.running += 1
        left = max(started + self.limits.deadline - self._now(), 0.0)
        verdict.addTimeout(left, self._reactor)

        def came(result: object) -> Answer:
            self._leave(started)
            if isinstance(result, Failure):
                return self._failed(_exception(result), house)
            return self._take(result, key, takes, house)

        def done(answer: Answer) -> Answer:
            self._next()
            return answer

        return cast("Deferred[Answer]", verdict.addBoth(came).addCallback(done))

    def _leave(self, started: float) -> None:
        self.running -= 1
        self.latency.observe(self._now() - started)

    def _next(self) -> None:
        """A place is free: those in the queue take it, or give up."""
        if self._serving:
            return  # a question was answered at once: the loop below goes on
        self._serving = True
        try:
            self._serve()
        finally:
            self._serving = False

    def _serve(self) -> None:
        unasked = 0
        while self._queue and self.running < self.limits.concurrency:
            if unasked == _UNASKED and self._reactor is not None:
                # Thousands who came together are too late together.
                if not self._later:
                    self._later = True
                    self._reactor.callLater(0, self._go_on)
                return
            waiter = self._queue.next()
            now = self._now()
            house = waiter.house
            if waiter.gone():
                unasked += 1
                waiter.answer.callback(_GONE)
            elif not self.breaker.allows(now, house):
                unasked += 1
                waiter.answer.callback(self._rejected())
            elif now - waiter.started >= self.limits.deadline:
                unasked += 1
                waiter.answer.callback(self._failed(DeadlineError(), house, blame=False))
            else:
                found = self._call(waiter.call, waiter.key, waiter.takes, house, waiter.started)
                if isinstance(found, Deferred):
                    found.addCallback(waiter.answer.callback)
                else:
                    waiter.answer.callback(found)

    def _go_on(self) -> None:
        self._later = False
        self._next()

    # -- answers

    def _take(
        self, verdict: object, key: bytes | None, takes: tuple[type, ...], house: str
    ) -> Answer:
        fault = fault_of(verdict, takes)
        if fault:
            refused = isinstance(verdict, AuthError) and refusal(verdict)
            return self._failed(TypeError(fault), house, refused=refused or None)
        answer = Answer(cast(AuthOk, verdict))
        if isinstance(verdict, AuthOk) and verdict.acl is not None:
            from mqttd.access.acl.rules import AclRules

            try:
                rules = AclRules.from_text(verdict.acl, f"<rules from {self.name}>")
            except ValueError as error:
                return self._failed(error, house)
            answer = Answer(verdict, rules)
        if self.breaker.succeeded(self._now(), house):
            self._event("auth breaker closed")
        if self._waits and isinstance(verdict, AuthOk):
            self._known.add((house,))
        if key is not None:
            good_for = self.limits.cache_denied
            if isinstance(verdict, AuthOk):
                good_for = self.limits.cache_ok
            if good_for:
                self.cache.put(key, answer, self._now() + good_for)
        return self._count(answer)

    def _count(self, answer: Answer) -> Answer:
        verdict = answer.verdict
        if isinstance(verdict, AuthOk):
            self.ok += 1
        elif isinstance(verdict, AuthIgnore):
            self.ignore += 1
        elif isinstance(verdict, AuthError):
            self.deny += 1
        return answer

    def _failed(
        self, error: Exception, house: str, blame: bool = True, refused: AuthError | None = None
    ) -> Answer:
        """The answer for a failure of the module; `refused`: it has said no, if badly.

        The breaker hears of what is the back end's fault, unless it is not to `blame`.
        """
        self.error += 1
        text = words_of(error)
        if isinstance(error, DeadlineError):
            self.late += 1
            text = f"no answer within {self.limits.deadline:g} s"
            error = DeadlineError(text)
        passed = self.ignores_errors and refused is None
        self._on_error(self._title, error, _PASSED if passed else _REFUSED)
        if self._charge is not None:
            self._charge(self.name, error)
        now = self._now()
        if not blame or not (self._blames or is_of_back_end(error)):
            self.breaker.untried(house)
        elif (opened := self.breaker.failed(now, house)) is not None:
            self._event(
                "auth breaker opened",
                failures=opened.failures,
                error=text,
                retry_in=round(opened.retry_at - now, 3),
            )
        return self._failure(text) if refused is None else Answer(refused)

    def _rejected(self) -> Answer:
        self.rejected += 1
        return self._failure("its circuit breaker is open")

    def _failure(self, text: str) -> Answer:
        if self.ignores_errors:
            return Answer(AUTH_IGNORE)
        return Answer(AuthError(f"module {self.name} failed: {text}", _SERVER_UNAVAILABLE))

    def _event(self, event: str, **fields: object) -> None:
        self._on_event(event, {"module": self.name, **fields})

    # -- control

    def close(self) -> None:
        """The module goes: nobody waits for it any more."""
        while self._queue:
            self._queue.next().answer.callback(self._failure("it was unregistered"))
        self.cache.clear()

    def go_on(self, before: Guard) -> None:
        """Count on from where another guard of this module was."""
        for name in ("hit", "ok", "deny", "ignore", "error", "cached", "busy", "rejected", "late"):
            setattr(self, name, getattr(before, name))
        self.latency = before.latency
        self.breaker.opened = before.breaker.opened
        self._known = before._known

    def describe(self) -> dict[str, object]:
        """Counters, latency and state."""
        return {
            "hit": self.hit,
            "ok": self.ok,
            "deny": self.deny,
            "ignore": self.ignore,
            "error": self.error,
            "late": self.late,
            "busy": self.busy,
            "cached": self.cached,
            "rejected": self.rejected,
            "running": self.running,
            "waiting": len(self._queue),
            "on_error": "ignore" if self.ignores_errors else "deny",
            "breaker": self.breaker.state,
            "breaker_opened": self.breaker.opened,
            "latency": self.latency.snapshot(),
        }


def limits_of(name: str, module: object, base: AuthBackend) -> AuthBackend:
    """`base` with what the module's attribute ``limits`` says; ValueError names a wrong key."""
    own = getattr(module, "limits", None)
    if own is None:
        return base
    if not isinstance(own, Mapping):
        raise ValueError(f"auth module {name!r}: limits: expected a mapping, got {kind_of(own)}")
    known = msgspec.structs.asdict(base)
    unknown = [key for key in own if key not in known]
    if unknown:
        raise ValueError(
            f"auth module {name!r}: limits: unknown key {unknown[0]!r}; there are:"
            f" {', '.join(known)}"
        )
    try:
        return msgspec.convert({**known, **own}, AuthBackend)
    except msgspec.ValidationError as error:
        raise ValueError(f"auth module {name!r}: limits: {error}") from None


def _expired(verdict: object) -> bool:
    """Whether a kept yes has run out meanwhile."""
    at = verdict.expires_at if isinstance(verdict, AuthOk) else None
    return at is not None and at <= time.time()


def _exception(failure: Failure) -> Exception:
    error = failure.value
    return error if isinstance(error, Exception) else RuntimeError(str(error))
