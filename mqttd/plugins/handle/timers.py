"""The handle's timers and threads: calls later, again and again, and beside the reactor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.interfaces import IRepeating
from mqttd.net.bell import Bell
from mqttd.net.pause import Pause
from mqttd.plugins.calls.signatures import numbered, verify_function
from mqttd.plugins.calls.threads import Threads
from mqttd.plugins.handle.base import HandleBase

__all__ = ["Timers"]


class _Timer:
    """A call that is due: the plugin's own or one round of `call_every`."""

    __slots__ = ("args", "call", "f", "handle")

    def __init__(self, handle: Timers, f: Callable[..., object], args: tuple[Any, ...]):
        self.handle = handle
        self.f = f
        self.args = args
        self.call: Any = None

    def __call__(self) -> None:
        self.handle._timers.pop(self, None)
        self.handle._guard("timer", self.f, self.args)


@implementer(IRepeating)
class _Repeating:
    """What `call_every` gives: waits for a Deferred, and skips what falls due meanwhile."""

    def __init__(
        self, handle: Timers, seconds: float, f: Callable[..., object], args: tuple[Any, ...]
    ):
        self.handle: Timers | None = handle
        self.seconds = seconds
        self.f: Callable[..., object] | None = f
        self.args = args
        self.next_at: float = handle.clock.seconds()
        self.call: Any = None
        self._again(None)

    def stop(self) -> None:
        """Call it no more."""
        handle, self.handle, self.f, self.args = self.handle, None, None, ()
        if handle is not None:
            handle._timers.pop(self, None)
        if self.call is not None and self.call.active():
            self.call.cancel()
        self.call = None

    def _run(self) -> None:
        if self.handle is None or self.f is None:
            return
        result = self.handle._guard("timer", self.f, self.args)
        if isinstance(result, Deferred):
            result.addBoth(self._again)
        else:
            self._again(None)

    def _again(self, result: object) -> None:
        if self.handle is None:
            return
        now = self.handle.clock.seconds()
        self.next_at += self.seconds
        if self.next_at <= now:
            missed = int((now - self.next_at) // self.seconds) + 1
            self.next_at += missed * self.seconds
        self.call = self.handle.clock.callLater(max(self.next_at - now, 0), self._run)


class Timers(HandleBase):
    """Calls in a later turn, and in a thread."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._timers: dict[Any, None] = {}
        self._sweep_at = 16
        self._threads: Threads | None = None
        self._at_end(self._stop_all)

    def call_later(self, seconds: float, f: Callable[..., object], *args: Any) -> Any:
        """See `IPluginHandle.call_later`."""
        self._check()
        timer = _Timer(self, f, args)
        timer.call = self.clock.callLater(seconds, timer)
        self._timers[timer] = None
        if len(self._timers) > self._sweep_at:  # now and then, forget those that were cancelled
            for other in [t for t in self._timers if t.call is not None and not t.call.active()]:
                self._timers.pop(other)
            self._sweep_at = 2 * len(self._timers) + 16
        return timer.call

    def call_every(self, seconds: float, f: Callable[..., object], *args: Any) -> Any:
        """See `IPluginHandle.call_every`."""
        self._check()
        if not seconds > 0:
            raise ValueError(f"seconds = {seconds!r}: expected more than 0")
        verify_function(f, numbered(args))
        repeating = _Repeating(self, seconds, f, args)
        self._timers[repeating] = None
        return repeating

    def in_thread(self, f: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """See `IPluginHandle.in_thread`."""
        self._check()
        if self._threads is None:
            self._threads = Threads(
                f"plugin {self.name}", self._host.reactor, most_waiting=self.budget.queue
            )
        return self._threads.call(f, args)

    def bell(self, f: Callable[[], object]) -> Callable[[], None]:
        """See `IPluginHandle.bell`."""
        self._check()
        bell = Bell(lambda: self._quietly(f), self.clock, self._host.engine)
        self._at_end(bell.close)
        return bell.ring

    def pause(self, f: Callable[[], object]) -> Pause:
        """See `IPluginHandle.pause`."""
        self._check()
        pause = Pause(lambda: self._quietly(f), self.clock.callLater)
        pause.start(self._host.engine)
        self._at_end(pause.stop)
        return pause

    def describe(self) -> dict[str, Any]:
        """See `HandleBase.describe`."""
        timers = [timer for timer in self._timers if timer.call is not None and timer.call.active()]
        threads = self._threads.threads if self._threads is not None else 0
        return {"timers": len(timers), "threads": threads, **super().describe()}

    def _stop_all(self) -> None:
        for timer in list(self._timers):
            if isinstance(timer, _Repeating):
                timer.stop()
            elif timer.call is not None and timer.call.active():
                timer.call.cancel()
        self._timers.clear()
        if self._threads is not None:
            self._threads.stop()
            self._threads = None
