"""A small pool of threads for one plugin, which can be left behind.

    call(f, args) --> queue (at most `most_waiting`) --> up to `size` threads --> the reactor

Twisted's pool waits for its threads when it stops; a plugin's thread may never end. So these
are daemon threads: `stop` tells them to go when they are done, and what they bring afterwards
is thrown away.

Promise: `call` never blocks; after `stop` nothing reaches the reactor any more, and idle threads
are gone at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqttd.types import QueueFull

__all__ = ["Threads"]

Task = tuple[Callable[..., Any], Sequence[Any], "Deferred[Any]"]


class Threads:
    """The pool.

    `reactor` brings results back with ``callFromThread``; a test's clock, which has none, has
    the function called at once, in the caller's thread.
    """

    def __init__(self, name: str, reactor: Any, size: int = 4, most_waiting: int = 1000) -> None:
        self.name = name
        self.reactor = reactor
        self.size = size
        self.most_waiting = most_waiting
        self.stopped = False
        #: Threads that exist, calls that wait or run.
        self.threads = 0
        self.waiting = 0
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()

    def call(self, f: Callable[..., Any], args: Sequence[Any]) -> Deferred[Any]:
        """Call ``f(*args)`` in a thread; the Deferred fires in the reactor thread."""
        done: Deferred[Any] = Deferred()
        if not hasattr(self.reactor, "callFromThread"):
            ok, result = _run(f, args)
            (done.callback if ok else done.errback)(result)
            return done
        if self.waiting >= self.most_waiting:
            done.errback(QueueFull(f"{self.waiting} calls wait for a thread of {self.name}"))
            return done
        self.waiting += 1
        self._tasks.put((f, args, done))
        if self.threads < min(self.size, self.waiting):
            self.threads += 1
            threading.Thread(target=self._work, name=f"mqttd {self.name}", daemon=True).start()
        return done

    def stop(self) -> None:
        """Take no more; nothing is delivered from here on. Does not wait."""
        self.stopped = True
        for _ in range(self.threads):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None and not self.stopped:
            f, args, done = task
            ok, result = _run(f, args)
            if self.stopped:
                break  # type: ignore[unreachable]  # another thread sets it
            self.reactor.callFromThread(self._deliver, done, ok, result)
            del task, f, args, done, result

    def _deliver(self, done: Deferred[Any], ok: bool, result: Any) -> None:
        self.waiting -= 1
        if self.stopped or done.called:
            return
        if ok:
            done.callback(result)
        else:
            done.errback(result)


def _run(f: Callable[..., Any], args: Sequence[Any]) -> tuple[bool, Any]:
    try:
        return True, f(*args)
    except BaseException:
        return False, Failure()
