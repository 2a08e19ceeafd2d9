"""The watchdog: breaks off a callback that keeps the reactor, from outside.

    reactor thread                                watchdog thread
      Hooks: watch.entry, watch.since = ...   <-- looks every `TICK`, while callbacks are called
      callback runs, and runs, and runs           has seen this call before, and it is over its
      SIGURG: `_signalled` raises             <-- time: pthread_kill(reactor thread, SIGURG)
      PluginTimeout inside the callback

The handler decides, not the thread: it raises only if the code that the signal has stopped lies
below a callback's frame (`_interruptible`) whose time is really over. Broker code that a callback
has called is never broken off; the thread asks again until the callback is back in its own code.
Code that catches the exception gets another one; code stuck in C hears of it when C returns, and
is reported meanwhile.

SIGURG, because it is ignored by default and hardly ever means anything; Twisted's wake-up
descriptor sees one byte for it, and no other handler changes. A blocking system call comes back
with EINTR, and Python runs the handler before it would repeat it. Python runs handlers in the main
thread only: a reactor anywhere else gets reports and no more.

Promise: a callback within its time costs nothing here; while callbacks are called the thread wakes
up every `TICK` seconds, and sleeps when for `IDLE` looks there were none.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mqttd.broker.hooks import Callback

__all__ = ["PluginTimeout", "Watch", "Watchdog"]

#: Seconds between two looks, and looks without any call before the thread goes to sleep.
TICK: Final = 0.01
IDLE: Final = 50
#: Seconds after which a callback that cannot be broken off is reported.
STUCK: Final = 1.0

SIGNAL: Final = signal.SIGURG

#: Modules of ours that hold no state of the broker: a callback may be broken off in them.
_HARMLESS: Final = ("mqttd.types", "mqttd.codec.", "mqttd.session.message", "mqttd.testing")
#: Twisted's own code is left to finish what it does, but not for ever: seconds.
_PATIENCE: Final = 0.2


class PluginTimeout(BaseException):
    """Raised inside a callback that has overstayed its time.

    No `Exception`, so that a plugin's ``except Exception`` does not swallow it.
    """


class Watch:
    """What is being called now: `entry` since `since` (`time.monotonic`); None when nothing is.

    `asleep` asks the caller to `wake` the watchdog; without one it stays False.
    """

    __slots__ = ("asleep", "bell", "entry", "since", "stuck")

    def __init__(self) -> None:
        self.entry: Callback | None = None
        self.since: float = 0.0
        self.asleep: bool = False
        self.bell = threading.Lock()
        #: `since` of the call that the watchdog has found too long.
        self.stuck: float = 0.0

    def wake(self) -> None:
        """Somebody is going to be called: look again."""
        self.asleep = False
        self.bell.release()


class Watchdog:
    """Looks after the calls of one `Watch`; `start` and `stop` in the reactor thread.

    `report(entry, seconds, stack)` is called in the watchdog's thread, once per call, when a
    callback could not be broken off.
    """

    def __init__(
        self, watch: Watch, report: Callable[[Callback, float, str], None] | None = None
    ) -> None:
        self.watch = watch
        self.report = report
        #: Signals sent, and exceptions raised.
        self.sent: int = 0
        self.raised: int = 0
        self._thread: threading.Thread | None = None
        self._reactor_thread: int = 0
        self._stopping: bool = False
        self._former: Any = None
        #: Whether callbacks can be broken off: only if the reactor runs in the main thread.
        self.armed: bool = False

    def start(self) -> None:
        """Begin to look; takes SIGURG if this is the main thread."""
        if self._thread is not None:
            return
        self._stopping = False
        self._reactor_thread = threading.get_ident()
        self.armed = threading.current_thread() is threading.main_thread()
        if self.armed:
            self._former = signal.signal(SIGNAL, self._signalled)
        if not self.watch.bell.locked():
            self.watch.bell.acquire()
        self._thread = threading.Thread(target=self._run, name="mqttd-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and give SIGURG back."""
        thread = self._thread
        if thread is None:
            return
        self._thread = None
        self._stopping = True
        if self.watch.asleep:
            self.watch.wake()
        thread.join()
        self.watch.asleep = False
        if self.armed:
            self.armed = False
            if signal.getsignal(SIGNAL) == self._signalled:
                signal.signal(SIGNAL, self._former or signal.SIG_DFL)

    # -- in the watchdog's thread ----------------------------------------------------------------

    def _run(self) -> None:
        watch = self.watch
        seen = 0.0
        idle = 0
        reported = 0.0
        pause = TICK
        while not self._stopping:
            time.sleep(pause)
            pause = TICK
            entry, since = watch.entry, watch.since
            if entry is None:
                idle = idle + 1 if since == seen else 0
                seen = since
                if idle >= IDLE:
                    watch.asleep = True
                    watch.bell.acquire()
                    idle = 0
                continue
            idle = 0
            if since != seen:
                seen = since
                left = since + entry.budget.per_call - time.monotonic()
                pause = min(max(left, 0.001), TICK)
                continue
            # The second look at the same call: a machine that stood still is no blocked callback.
            taken = time.monotonic() - since
            left = entry.budget.per_call - taken
            if left > 0:
                pause = min(left, TICK)
                continue
            watch.stuck = since
            if self.armed:
                self.sent += 1
                signal.pthread_kill(self._reactor_thread, SIGNAL)
            if taken > STUCK and reported != since:
                reported = since
                self._report(entry, taken)

    def _report(self, entry: Callback, taken: float) -> None:
        frame = sys._current_frames().get(self._reactor_thread)
        stack = "".join(traceback.format_stack(frame, limit=None)[-5:]) if frame else ""
        if self.report is not None:
            try:
                self.report(entry, taken, stack)
            except Exception:
                traceback.print_exc()

    # -- in the reactor thread, inside whatever it does --------------------------------------------

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        watch = self.watch
        entry = watch.entry
        if entry is None or frame is None:
            return
        taken = time.monotonic() - watch.since
        budget = entry.budget
        if taken < budget.per_call or watch.stuck != watch.since:
            return
        if _interruptible(frame, taken > budget.per_call + _PATIENCE):
            self.raised += 1
            raise PluginTimeout(
                f"{budget.name} kept the reactor for more than {budget.per_call * 1000:g} ms"
            )


#: The code objects whose calls may be broken off, and a step between them and the callback.
GUARDS: Final[set[CodeType]] = set()
STEPS: Final[set[CodeType]] = set()


def _interruptible(frame: FrameType, patient: bool) -> bool:
    """Is `frame` a callback's own code, or code it has called that is not the broker's?"""
    leaf = frame
    at: FrameType | None = frame
    if not patient and str(leaf.f_globals.get("__name__", "")).startswith("twisted."):
        return False
    while at is not None:
        code = at.f_code
        if code in GUARDS:
            return at is not leaf
        if code not in STEPS:
            name = str(at.f_globals.get("__name__", ""))
            if name.startswith("mqttd.") and not name.startswith(_HARMLESS):
                return False
        at = at.f_back
    return False
