"""What wakes the loop: pauses and bells, with an engine's poll and without one."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from twisted.internet.task import Clock

from mqttd.net.bell import Bell
from mqttd.net.pause import Pause

DEADLINE = 30.0


class Engine:
    """Polls as the engine does: for edges, and nobody reads."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.called: dict[int, Callable[[], None]] = {}
        self.gone: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, called: Callable[[], None], gone: Callable[[], None]) -> None:
        self.called[fd] = called
        self.gone[fd] = gone
        self.epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def unwatch(self, fd: int) -> None:
        if self.gone.pop(fd, None) is not None:
            del self.called[fd]
            self.epoll.unregister(fd)

    def leave(self) -> None:
        for fd, gone in list(self.gone.items()):
            self.unwatch(fd)
            gone()

    def turn(self, timeout: float = DEADLINE) -> None:
        for fd, _ in self.epoll.poll(timeout):
            self.called[fd]()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.epoll.close()


def test_a_pause_ends_when_it_is_over_and_may_begin_again(engine: Engine) -> None:
    ended: list[float] = []
    pause = Pause(lambda: ended.append(time.monotonic()), Clock().callLater)
    pause.start(engine)
    for seconds in (0.0003, 0.02, 0.0):
        began = time.monotonic()
        pause.begin(seconds)
        pause.begin(0.9)  # it has begun
        before = len(ended)
        while len(ended) == before:
            engine.turn()
        assert ended[-1] - began >= seconds
        assert not pause.on
    pause.begin(0.001)
    pause.stop()
    assert not engine.called
    engine.turn(0.01)
    assert len(ended) == 3


@pytest.mark.parametrize("polled", [True, False])
def test_the_sooner_of_two_pauses_counts_and_one_that_was_ended_calls_nothing(
    engine: Engine, polled: bool
) -> None:
    clock = Clock()
    ended: list[int] = []
    pause = Pause(lambda: ended.append(1), clock.callLater)
    if polled:
        pause.start(engine)

    def let_pass() -> None:
        if polled:
            engine.turn(0.01)
        else:
            clock.advance(0.01)

    pause.end()
    pause.begin(0.9)
    pause.begin(0.001)
    while not ended:
        let_pass()
    pause.begin(0.001)
    pause.end()
    assert not pause.on
    for _ in range(3):
        let_pass()
    assert ended == [1]
    pause.begin(0.001)
    while len(ended) == 1:
        let_pass()
    pause.stop()
    assert not clock.getDelayedCalls()


def test_a_pause_goes_on_when_the_engine_goes_and_where_there_is_none(engine: Engine) -> None:
    clock = Clock()
    ended: list[float] = []
    pause = Pause(lambda: ended.append(clock.seconds()), clock.callLater)
    pause.start(engine)
    pause.begin(0.5)
    engine.leave()
    clock.advance(0)
    assert len(ended) == 1
    pause.begin(0.5)
    clock.advance(0.4)
    assert len(ended) == 1
    clock.advance(0.2)
    assert len(ended) == 2
    pause.begin(0.5)
    pause.stop()
    assert not clock.getDelayedCalls()


class Reactor(Clock):
    """A clock that other threads may call into."""

    def callFromThread(self, f: Callable[[], None]) -> None:
        self.callLater(0, f)


def test_a_bell_is_heard_whoever_rings_it_and_after_it_was_closed(engine: Engine) -> None:
    reactor = Reactor()
    heard: list[int] = []
    bell = Bell(lambda: heard.append(1), reactor, engine)
    for count in range(1, 4):
        thread = threading.Thread(target=bell.ring)
        thread.start()
        while len(heard) < count:
            engine.turn()
        thread.join()
    bell.close()
    reactor.advance(0)
    assert len(heard) == 4  # for who has rung just before
    bell.ring()
    reactor.advance(0)
    assert len(heard) == 5
    bell.close()
    assert not reactor.getDelayedCalls()


def test_a_bell_without_an_engine_is_heard_by_the_reactor() -> None:
    heard: list[int] = []
    for reactor in (Reactor(), Clock()):
        bell = Bell(lambda: heard.append(1), reactor, None)
        bell.ring()
        reactor.advance(0)
    assert heard == [1, 1]
