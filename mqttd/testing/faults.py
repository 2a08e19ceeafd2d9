"""A fault injector: makes a callback or a provider fail the ways plugins and back ends do.

    faults = FaultInjector(node.clock)
    hooks.hook("message.publish", faults.wrap(callback))
    store = faults.around(MyStore())            # every method of it

    faults.healthy()               as if it were not there
    faults.raises(OSError("gone")) each call raises
    faults.slow(2.0)               each answer comes 2 s later on the clock, as a Deferred
    faults.blocks(0.5)             each call holds the thread for 0.5 s of real time, then answers
    faults.never()                 each answer is a Deferred that never fires
    faults.only(3)                 ... for the next three calls, then healthy again

Promise: what is wrapped is called once for each call that has an answer (`raises` and `never` do
not call it), and `calls` counts them all.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from zope.interface import directlyProvides, providedBy

__all__ = ["FaultInjector"]

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


class FaultInjector:
    """One switch for everything that it wraps.

    clock: the IReactorTime that `slow` waits on. Attributes: `calls`, how often something wrapped
    was called; `hung`, the Deferreds of `never` (a test may still fire them).
    """

    def __init__(self, clock: Any = None) -> None:
        self.clock = clock
        self.calls = 0
        self.hung: list[Deferred[Any]] = []
        self._fault: Callable[[Callable[[], Any]], Any] = _call
        self._left = -1

    # -- what happens --------------------------------------------------------------------------

    def healthy(self) -> FaultInjector:
        """Calls go through."""
        return self._set(_call)

    def raises(self, error: Exception) -> FaultInjector:
        """Each call raises `error`."""

        def fail(call: Callable[[], Any]) -> Any:
            raise error

        return self._set(fail)

    def fails(self, error: Exception) -> FaultInjector:
        """Each call answers with a Deferred that fails with `error`, at once."""

        def fail(call: Callable[[], Any]) -> Any:
            failed: Deferred[Any] = Deferred()
            failed.errback(error)
            return failed

        return self._set(fail)

    def slow(self, seconds: float) -> FaultInjector:
        """Each answer comes `seconds` later; raises ValueError without a clock."""
        if self.clock is None:
            raise ValueError("a slow answer needs a clock: FaultInjector(clock)")
        return self._set(lambda call: deferLater(self.clock, seconds, call))

    def blocks(self, seconds: float) -> FaultInjector:
        """Each call sleeps `seconds` of real time in the caller's thread, then goes through."""

        def block(call: Callable[[], Any]) -> Any:
            time.sleep(seconds)
            return call()

        return self._set(block)

    def never(self) -> FaultInjector:
        """Each answer is a Deferred that does not fire."""

        def hang(call: Callable[[], Any]) -> Any:
            hung: Deferred[Any] = Deferred()
            self.hung.append(hung)
            return hung

        return self._set(hang)

    def only(self, count: int) -> FaultInjector:
        """The fault lasts for `count` more calls."""
        self._left = count
        return self

    def _set(self, fault: Callable[[Callable[[], Any]], Any]) -> FaultInjector:
        self._fault = fault
        self._left = -1
        return self

    # -- to whom -------------------------------------------------------------------------------

    def wrap(self, function: Function) -> Function:
        """`function`, with the fault before it."""

        @functools.wraps(function)
        def faulty(*args: Any, **named: Any) -> Any:
            self.calls += 1
            if self._left == 0:
                self.healthy()
            self._left -= self._left > 0
            return self._fault(functools.partial(function, *args, **named))

        return cast(Function, faulty)

    def around(self, provider: T, *methods: str) -> T:
        """`provider`, with the fault before `methods` (all public ones, if none is named).

        What it gives provides the same interfaces.
        """
        return cast(T, _Around(provider, self, methods))


class _Around:
    """Another object, seen through a fault injector."""

    def __init__(self, provider: Any, faults: FaultInjector, methods: tuple[str, ...]) -> None:
        self._provider = provider
        self._faults = faults
        self._methods = methods
        directlyProvides(self, providedBy(provider))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._provider, name)
        if name.startswith("_") or not callable(value):
            return value
        return self._faults.wrap(value) if not self._methods or name in self._methods else value


def _call(call: Callable[[], Any]) -> Any:
    return call()
