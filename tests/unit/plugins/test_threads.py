"""The pool of threads of a plugin: bounded, and left behind without waiting for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

from twisted.python.failure import Failure

from mqttd.plugins.calls.threads import Threads
from mqttd.types import QueueFull


class Reactor:
    """Keeps what threads bring until the test takes it."""

    def __init__(self) -> None:
        self.brought: Queue[tuple[Callable[..., None], tuple[Any, ...]]] = Queue()

    def callFromThread(self, f: Callable[..., None], *args: Any) -> None:
        self.brought.put((f, args))

    def take(self) -> None:
        f, args = self.brought.get(timeout=20)
        f(*args)


def test_results_and_failures_come_back_in_the_reactor_thread() -> None:
    reactor = Reactor()
    threads = Threads("acme", reactor)
    results: list[object] = []
    threads.call(threading.get_ident, ()).addCallback(results.append)
    reactor.take()
    assert results and results[0] != threading.get_ident()
    threads.call(int, ("x",)).addErrback(lambda failure: results.append(failure.type))
    reactor.take()
    assert results[1] is ValueError
    assert threads.waiting == 0
    threads.stop()


def test_it_takes_as_many_threads_as_it_may_and_no_more_calls_than_it_may() -> None:
    reactor, go = Reactor(), threading.Event()
    threads = Threads("acme", reactor, size=2, most_waiting=5)
    results: list[object] = []
    for _ in range(5):
        threads.call(go.wait, (20,)).addCallback(results.append)
    assert threads.threads == 2
    failed: list[Failure] = []
    threads.call(go.wait, ()).addErrback(failed.append)
    assert failed[0].check(QueueFull)
    go.set()
    for _ in range(5):
        reactor.take()
    assert results == [True] * 5
    threads.stop()


def test_a_busy_thread_is_left_behind_and_an_idle_one_ends() -> None:
    reactor, go, busy = Reactor(), threading.Event(), threading.Event()
    threads = Threads("left behind", reactor, size=2)
    results: list[object] = []

    def work() -> None:
        busy.set()
        go.wait(20)

    threads.call(work, ()).addBoth(results.append)
    assert busy.wait(20)
    threads.stop()
    go.set()
    until = time.monotonic() + 20
    while any("left behind" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.001)
    assert reactor.brought.empty() and not results
