"""The watchdog: breaks off a callback that keeps the reactor, from outside.

    Hooks.run_hooks     callback runs, and runs, and runs
                            ^       ^       ^
    timer (SIGALRM):  look -+- look +- look +-- raise PluginTimeout there

A timer of the kernel signals the process while callbacks are called. Its handler runs in the
reactor's thread, in the middle of whatever runs there, and finds the callback by its frame: the one
below a frame of `GUARDS`. A look that finds the same call again counts it, and when there were as
many looks as fit into the budget of a call, the handler raises `PluginTimeout`. It does so only in
the callback's own code and in what it has called (`interruptible`): broker code is left to finish.
There the handler sets a trap: it has the callback's frame traced, so that the exception comes up
with the first step it takes when the broker returns to it. Looks are counted, not seconds: a
process that did not get the processor had no look, and what the thread has waited for it since the
look before (Linux says so) makes a look count for less, and so does a look that was late: the next
one follows it sooner than a tick.

Seconds count where a call comes back that no look has found too long: what it took, less what the
thread has waited for a processor since the look before it began (`Watch.spent`).

A callback is charged with the looks at what it does, at the broker code it has called, and at the
callbacks of its own plugin that this calls; those of other plugins have a count of their own, but
all together may take no more than `NESTED` times its budget.

A blocking system call comes back with EINTR and Python runs the handler before it would repeat it;
C code that asks for signals (regular expressions, large integers) is broken off too. What does
neither is reported: by a thread while it goes on, if it has let go of the interpreter's lock, and
by `Hooks` when it comes back. Code that catches the exception gets another one.

Python runs handlers in the main thread only: a reactor in another thread gets reports and no more,
and so does one in a program whose signals are its own (`interrupts`).
Twisted's wake-up descriptor sees a byte per look, and no other handler changes.

Promise: a call within its time costs one look at a flag. While callbacks are called there is a look
every `TICK` seconds, and none any more when `IDLE` of them in a row have found no callback.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from time import monotonic
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Final, cast

from mqttd.plugins.calls.callback import Callback, HookCallable

__all__ = [
    "GUARDS",
    "STEPS",
    "TICK",
    "PluginTimeout",
    "Watch",
    "Watchdog",
    "framed",
    "interruptible",
    "where",
]

#: Seconds between two looks, and before another one at broker code that should soon be left.
TICK: Final = 0.01
SOON: Final = 0.001
#: Looks without any call before there are no more.
IDLE: Final = 50
#: A callback that calls others (by publishing) may take this many times its budget in all.
NESTED: Final = 2
#: Seconds after which a callback that cannot be broken off is reported.
STUCK: Final = 1.0

#: The code objects whose calls may be broken off, and a step between them and the callback.
GUARDS: Final[set[CodeType]] = set()
STEPS: Final[set[CodeType]] = set()

#: Modules of ours that hold no state of the broker: a callback may be broken off in them.
_HARMLESS: Final = ("mqttd.types", "mqttd.codec.", "mqttd.session.ground.message", "mqttd.testing")
#: Whose code is not the plugin's: ours, and what we ask whether a module provides its interface.
_NOT_ITS_OWN: Final = ("mqttd.", "zope.interface.")
#: Looks for which Twisted's own code is left to finish what it does.
_PATIENCE: Final = 20
#: Of a look, what is lost to the moments for which every thread waits now and then.
_JITTER: Final = 0.25
#: Looks that are remembered: a call may be so many long.
_MARKS: Final = 256
#: What Linux says of a thread: nanoseconds that it ran, and that it waited for a processor.
_SCHEDSTAT: Final = "/proc/thread-self/schedstat"


class PluginTimeout(BaseException):
    """Raised inside a callback that has overstayed its time.

    No `Exception`, so that a plugin's ``except Exception`` does not swallow it.
    """


class Watch:
    """What `Hooks` and a `Watchdog` tell one another.

    `armed`: there are looks; always, without a watchdog, so that nobody calls `arm`. `stuck`: the
    guard's frame whose call a look found too long, until it is back. `inner`: seconds that timed
    calls have taken in all, so that nested ones are charged once. `waits`: how many seconds the
    thread has waited for a processor since about this time (`time.monotonic`).
    """

    __slots__ = ("arm", "armed", "inner", "stuck", "waits")

    def __init__(self) -> None:
        self.armed: bool = True
        self.arm: Callable[[], None] = lambda: None
        self.stuck: FrameType | None = None
        self.inner: float = 0.0
        self.waits: Callable[[float], float] = _never

    def spent(self, start: float, taken: float) -> float:
        """Of `taken` seconds since `start`, those in which others did not have the processor.

        To be asked of what took longer than a `TICK`: it is a system call.
        """
        return max(0.0, taken - self.waits(start))


class Watchdog:
    """Looks after the calls of one `Watch`; `start` and `stop` in the reactor's thread.

    `report(entry, seconds, stack)` is called in a thread, once per call, when a callback could not
    be broken off. Without `interrupts` no signal and no timer is touched, and it is all there is.
    """

    def __init__(
        self,
        watch: Watch,
        report: Callable[[Callback, float, str], None] | None = None,
        interrupts: bool = True,
    ) -> None:
        self.watch = watch
        self.report = report
        self.interrupts = interrupts
        #: Looks, and exceptions raised.
        self.looks: int = 0
        self.raised: int = 0
        self._running: bool = False
        self._interrupts: bool = False
        self._former: Any = None
        self._reactor_thread: int = 0
        # What the last look saw, and how many looks saw the same: call, outermost call, nothing.
        self._call: _Call = _NOTHING
        self._outer: _Call = _NOTHING
        self._same: float = 0
        self._same_outer: float = 0
        #: Looks at the outermost call that are charged to its own plugin.
        self._own: float = 0
        #: Seconds that the reactor's thread has waited for a processor, and until the last look.
        self.waited: Callable[[], float] = lambda: 0.0
        self._waited: float = 0.0
        #: When the last look was, by this clock.
        self.now: Callable[[], float] = monotonic
        self._looked: float = 0.0
        #: When the last looks were, and what it had waited by then.
        self._marks: deque[tuple[float, float]] = deque(maxlen=_MARKS)
        self._schedstat: int = -1
        self._idle: int = 0
        self._bell = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look; takes SIGALRM and the real interval timer, in the main thread."""
        if self._running:
            return
        self._running = True
        self._reactor_thread = threading.get_ident()
        main = threading.current_thread() is threading.main_thread()
        self._interrupts = self.interrupts and main
        if self._interrupts:
            self._former = signal.signal(signal.SIGALRM, self._look)
            self._open_schedstat()
            self.watch.waits = self._waits
        self._bell.clear()
        self._stopped.clear()
        self._thread = threading.Thread(target=self._reports, name="mqttd-watchdog", daemon=True)
        self._thread.start()
        self.watch.arm = self._arm
        self.watch.armed = False

    def stop(self) -> None:
        """End the looks and give SIGALRM back."""
        if not self._running:
            return
        self._running = False
        self.watch.armed = True
        self.watch.arm = lambda: None
        self.watch.waits = _never
        if self._interrupts:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._former or signal.SIG_DFL)
            self._close_schedstat()
        self._stopped.set()
        self._bell.set()
        if self._thread is not None:
            self._thread.join()

    def _arm(self) -> None:
        self.watch.armed = True
        self._idle = 0
        if self._interrupts:
            self._counts()
            signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
        self._bell.set()

    # -- in the reactor's thread, inside whatever it does --------------------------------------

    def _look(self, number: int, frame: FrameType | None) -> None:
        self.looks += 1
        call, outer = calls(frame)
        counts = self._counts()
        self._same = self._same + counts if _same(call, self._call) else 0
        if not _same(outer, self._outer):
            self._same_outer = self._own = 0
        else:
            self._same_outer += counts
            if call[1].budget is outer[1].budget:  # type: ignore[union-attr]
                self._own += counts
        self._call, self._outer = call, outer
        if call[1] is None or frame is None:
            self._idle += 1
            if self._idle >= IDLE and self._running:
                self.watch.armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            return
        self._idle = 0
        late = self._late()
        if late is None:
            return
        guard, entry = late
        assert guard is not None and entry is not None
        self.watch.stuck = guard
        innermost = guard is call[0]
        if innermost and interruptible(frame, self._same > _looks(entry) + _PATIENCE):
            self.raised += 1
            raise _timeout(entry)
        self._trap(frame, guard, entry)
        if innermost:
            signal.setitimer(signal.ITIMER_REAL, SOON, TICK)

    def _counts(self) -> float:
        """What this look counts: less, as the one before was late or the thread could not run."""
        before, self._waited = self._waited, self.waited()
        last, self._looked = self._looked, self.now()
        self._marks.append((self._looked, self._waited))
        return max(0.0, min(1.0, (self._looked - last - self._waited + before) / TICK))

    def _waits(self, since: float) -> float:
        """See `Watch.waits`: since the last look before that."""
        found = self.waited()
        before = found
        # A copy, made in one step: a look may come in between and append.
        for at, waited in reversed(tuple(self._marks)):
            before = waited
            if at <= since:
                break
        return found - before

    def _open_schedstat(self) -> None:
        try:
            self._schedstat = file = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
            self.waited = lambda: int(os.pread(file, 100, 0).split()[1]) / 1e9
            self._waited = self.waited()
        except (OSError, ValueError, IndexError):  # another system: all looks count
            self._close_schedstat()

    def _close_schedstat(self) -> None:
        self.waited = lambda: 0.0
        self._waited = 0.0
        file, self._schedstat = self._schedstat, -1
        if file >= 0:
            os.close(file)

    def _late(self) -> _Call | None:
        """The call that has taken too long, of those that the last looks saw."""
        inner, outer = self._call[1], self._outer[1]
        assert inner is not None and outer is not None
        if self._same >= _looks(inner):
            return self._call
        most = _looks(outer)
        return self._outer if self._own >= most or self._same_outer >= NESTED * most else None

    def _trap(self, frame: FrameType, guard: FrameType, entry: Callback) -> None:
        """Have PluginTimeout raised when the broker returns to the callback below `guard`.

        Not while something else traces, such as a debugger.
        """
        landing = own_code(frame, guard)
        if landing is None or sys.gettrace() is not None:
            return

        def spring(frame: FrameType, event: str, arg: object) -> None:
            sys.settrace(None)
            frame.f_trace = None
            frame.f_trace_opcodes = False
            if event in ("line", "opcode"):  # else it has ended by itself
                self.raised += 1
                raise _timeout(entry)

        landing.f_trace = spring
        landing.f_trace_opcodes = True
        sys.settrace(_untraced)

    # -- in a thread of its own ------------------------------------------------------------------

    def _reports(self) -> None:
        """Look slowly, to tell of what the reactor's thread cannot tell of itself."""
        seen = reported = _NOTHING
        while not self._stopped.is_set():
            self._bell.wait()
            self._stopped.wait(STUCK)
            frame = sys._current_frames().get(self._reactor_thread)
            call, _ = calls(frame)
            if call[1] is None:
                self._rest()
            elif _same(call, seen) and not _same(call, reported):
                reported = call
                self._report(call[1], "".join(traceback.format_stack(frame)[-5:]))
            seen = call
            del frame, call

    def _rest(self) -> None:
        """Nothing to look at: wait until `arm`, unless it was called just now."""
        self._bell.clear()
        if self.watch.armed:
            self._bell.set()

    def _report(self, entry: Callback, stack: str) -> None:
        if self.report is not None:
            try:
                self.report(entry, STUCK, stack)
            except Exception:
                traceback.print_exc()


#: A guard's frame and the callback that it has called: what makes a call this one.
_Call = tuple["FrameType | None", "Callback | None"]
_NOTHING: Final[_Call] = (None, None)


def calls(frame: FrameType | None) -> tuple[_Call, _Call]:
    """The innermost and the outermost call of a callback that `frame` is part of."""
    inner = outer = _NOTHING
    at = frame.f_back if frame is not None else None
    while at is not None:
        if at.f_code in GUARDS:
            entry = at.f_locals.get("entry")
            if entry is not None:  # else it has called nobody itself
                outer = (at, entry)
                if inner is _NOTHING:
                    inner = outer
        at = at.f_back
    return inner, outer


def _same(one: _Call, other: _Call) -> bool:
    return one[0] is other[0] and one[1] is other[1] is not None


def own_code(frame: FrameType, guard: FrameType) -> FrameType | None:
    """The innermost frame of the callback below `guard`, or of what it called, that is neither the
    broker's nor Twisted's; `frame` is the innermost of all.
    """
    found: FrameType | None = None
    at: FrameType | None = frame
    while at is not None and at is not guard:
        name = str(at.f_globals.get("__name__", ""))
        if at.f_code in GUARDS or _is_broker(at, name):
            found = None
        elif found is None and at.f_code not in STEPS and not name.startswith("twisted."):
            found = at
        at = at.f_back
    return found


def interruptible(frame: FrameType, impatient: bool = False) -> bool:
    """Is `frame` a callback's own code, or code it has called that is not the broker's?

    Twisted's own code is not, unless `impatient`.
    """
    if not impatient and str(frame.f_globals.get("__name__", "")).startswith("twisted."):
        return False
    at: FrameType | None = frame
    while at is not None:
        if at.f_code in GUARDS:
            return at is not frame
        if _is_broker(at, str(at.f_globals.get("__name__", ""))):
            return False
        at = at.f_back
    return False


def _is_broker(frame: FrameType, module: str) -> bool:
    """May no exception come up in this frame?"""
    ours = module.startswith("mqttd.") and not module.startswith(_HARMLESS)
    return ours and frame.f_code not in STEPS


def _never(since: float) -> float:
    """Nobody knows how long the thread has waited."""
    return 0.0


def _looks(entry: Callback) -> float:
    """How many looks fit into the budget of a call."""
    return entry.budget.per_call / TICK - _JITTER


def _timeout(entry: Callback) -> PluginTimeout:
    budget = entry.budget
    text = f"{budget.name} kept the reactor for more than"
    if budget.per_call < 1:
        return PluginTimeout(f"{text} {budget.per_call * 1000:g} ms")
    return PluginTimeout(
        f"{text} {budget.per_call:g} s, in which nobody was served; what blocks belongs into"
        " handle.in_thread"
    )


def _untraced(frame: FrameType, event: str, arg: object) -> None:
    """What is called meanwhile is not traced."""


def framed(callback: HookCallable) -> HookCallable:
    """`callback`, as something with a Python frame for the watchdog to find."""
    function = callback.__func__ if isinstance(callback, MethodType) else callback
    if isinstance(function, FunctionType):
        return callback

    def call(*args: Any) -> Any:
        return callback(*args)

    STEPS.add(call.__code__)
    return cast(HookCallable, call)


def where(error: BaseException) -> str:
    """`` (file:line)`` of the plugin's code that `error` came from, or nothing.

    Where it has called the broker, which refused, that is the line of the call.
    """
    place = ours = ""
    at = error.__traceback__
    while at is not None:
        code, names = at.tb_frame.f_code, at.tb_frame.f_globals
        if code not in GUARDS and code not in STEPS and names is not globals():
            line = f" ({code.co_filename}:{at.tb_lineno})"
            if str(names.get("__name__")).startswith(_NOT_ITS_OWN):
                ours = line
            else:
                place = line
        at = at.tb_next
    return place or ours
