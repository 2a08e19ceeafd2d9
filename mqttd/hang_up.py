"""What SIGHUP does in a process that is ours: something, and at its end nothing.

By default it ends a process, and says that it has: who sends it has a configuration read again, and
must not cut the end short, up to the last moment of the interpreter.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

__all__ = ["hang_up_no_more", "on_hang_up"]


def on_hang_up(call: Callable[[], None], reactor: Any) -> Callable[[], None]:
    """Have SIGHUP make `call` in the reactor; returns what is called when it is to no more."""

    def arrived(number: int, frame: object) -> None:
        reactor.callFromThread(call)

    try:
        before = signal.signal(signal.SIGHUP, arrived)
    except ValueError:  # embedded in a thread that gets no signals
        return lambda: None
    return lambda: hang_up_no_more(before)


def hang_up_no_more(before: Any) -> None:
    """SIGHUP does what it did before, or nothing where that was to end the process."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN if before is signal.SIG_DFL else before)
