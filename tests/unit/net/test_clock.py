"""What is waited for while somebody sets the clock of the machine."""

from __future__ import annotations

import time
from typing import Any

import pytest
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.task import Clock

from mqttd.net.clock import day, steady


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Clock, Clock]:
    """A reactor of its own, the time of day that it goes by, and the clock that nobody sets."""
    reactor, wall, even = EPollReactor(), Clock(), Clock()
    wall.rightNow = 1_800_000_000.0
    reactor.seconds = wall.seconds
    monkeypatch.setattr(time, "monotonic", even.seconds)
    monkeypatch.setattr(time, "time", wall.seconds)
    return reactor, wall, even


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_wait_is_as_long_as_it_is_whoever_sets_the_clock(
    machine: tuple[Any, Clock, Clock], step: int
) -> None:
    reactor, wall, even = machine
    done: list[str] = []
    reactor.callLater(10, done.append, "before")
    steady(reactor)
    reactor.callLater(10, done.append, "since")
    wall.rightNow += step
    even.advance(9)
    reactor.runUntilCurrent()
    assert done == []
    even.advance(1.5)
    reactor.runUntilCurrent()
    assert done == ["before", "since"]


def test_the_time_begins_with_that_of_the_day_and_the_day_is_that_of_the_machine(
    machine: tuple[Any, Clock, Clock],
) -> None:
    reactor, wall, _ = machine
    steady(reactor)
    assert reactor.seconds() == 1_800_000_000.0
    wall.rightNow += 60
    assert (reactor.seconds(), day(reactor)) == (1_800_000_000.0, 1_800_000_060.0)


def test_who_is_given_a_clock_has_no_other_day() -> None:
    clock = Clock()
    clock.advance(5)
    assert day(clock) == 5.0
