"""What may be under way to a neighbour is what it handles in some milliseconds."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from mqttd.mesh.flight import FAR, FIRST, FULL, TOLD, Flight
from mqttd.mesh.handled import Handled


def flown(flight: Flight, size: int, at: int, took: int, waited: bool = True) -> None:
    """So many bytes are put in, written, and handled so many milliseconds later."""
    flight.sent(size, 0, at)
    flight.taken(flight.written, at + took, waited)


def test_it_grows_while_somebody_waits_and_it_goes_quickly() -> None:
    flight = Flight()
    flown(flight, FIRST, 0, 1, waited=False)
    assert flight.room == FIRST
    for n in range(30):
        flown(flight, FIRST, n, 1)
    assert flight.room == FULL


def test_what_took_long_lets_less_be_under_way_at_once() -> None:
    flight = Flight()
    flight.room = 1 << 20
    flown(flight, 64 << 10, 0, 800)
    assert flight.room == (64 << 10) * 50 // 800
    assert flight.left() == flight.room
    flown(flight, 4 << 10, 900, 40)  # neither long nor short
    assert flight.room == 4 << 10
    flown(flight, 4 << 10, 1000, 10_000_000)
    assert flight.room == 512


def test_what_is_under_way_is_taken_off() -> None:
    flight = Flight()
    flight.sent(FIRST - 100, 0, 0)
    assert flight.left() == 100
    flight.sent(400, 0, 0)
    assert flight.left() == 0
    flight.taken(400, 1, waited=False)
    assert flight.left() == 100


def test_after_a_rest_it_begins_small() -> None:
    flight = Flight()
    flight.room = FULL
    flown(flight, 100, 900, 1)
    assert flight.room == FULL
    flown(flight, 100, 2000, 1, waited=False)
    assert flight.room == FIRST


def test_late_is_what_is_old_and_more_than_has_to_be_told_of() -> None:
    flight = Flight()
    flight.sent(2 * TOLD, 0, 0)
    assert not flight.is_late(1000)
    flight.sent(1, 0, 5)
    assert not flight.is_late(10)
    assert flight.is_late(11)
    flight.taken(2 * TOLD, 12, waited=True)
    assert not flight.is_late(1000)


def test_what_is_told_of_late_is_not_what_took_long() -> None:
    """Of the last bytes of a burst it is told with what comes next, however much later."""
    flight = Flight()
    flight.sent(100, 0, 0)
    flight.sent(TOLD, 0, 900)
    flight.taken(TOLD // 2, 901, waited=False)
    assert flight.room == FIRST
    flight.sent(2 * TOLD, 0, 2500)  # after a rest
    assert not flight.is_late(2505)
    flight.taken(TOLD + 200, 2501, waited=False)
    assert flight.room == FIRST


def test_it_grows_once_for_all_that_was_under_way() -> None:
    """What twice as much does is seen only behind what was put in before."""
    flight = Flight()
    flight.sent(FIRST, 0, 0)
    for handled in (FIRST // 4, FIRST // 2, FIRST):
        flight.taken(handled, 1, waited=True)
    assert flight.room == 2 * FIRST


class Way:
    """A sender who always has more, a way there and back, and who handles so many bytes a ms."""

    def __init__(self, there_and_back: int, speed: int, read: int = 1 << 16) -> None:
        self.flight, self.there = Flight(), Handled()
        self.there.gap = 4
        self.flight.far = FAR
        self.way_at: Callable[[int], int] = lambda now: there_and_back
        self.speed, self.read = speed, read
        self.now = self.handled = 0
        #: When they come: bytes and whether there is a question behind them; what is told.
        self.coming: deque[tuple[int, int, bool]] = deque()
        self.answers: deque[tuple[int, int]] = deque()
        #: The most that has waited there, in milliseconds.
        self.worst = 0.0

    def go(self, milliseconds: int) -> int:
        """So many bytes are handled meanwhile."""
        before = self.handled
        for _ in range(milliseconds):
            self.now += 1
            self._turn(self.now, self.way_at(self.now))
        return self.handled - before

    def _turn(self, now: int, way: int) -> None:
        flight, there = self.flight, self.there
        while self.answers and self.answers[0][0] <= now:
            flight.taken(self.answers.popleft()[1], now, waited=True)
        size = 0 if flight.is_late(now) or now == 1 else min(flight.left(), self.read)
        asks = not flight.asked
        if size or asks:
            flight.sent(size + 2 * asks, 0, now)
            if asks:
                flight.asked = flight.written
            self.coming.append((now + way // 2, size + 2 * asks, asks))
        while self.coming and self.coming[0][0] <= now:
            _, size, asks = self.coming.popleft()
            there.brought(size)
            if asks:
                there.ask(0)
        self.worst = max(self.worst, there.left / self.speed)
        done = min(self.speed, there.left)
        there.left -= done
        self.handled += done
        told = there.due(there.left > 0 and now % 10 == 0, now)
        if told:
            self.answers.append((now + (way + 1) // 2, told))


@pytest.mark.parametrize("there_and_back", [0, 2, 20, 100, 600])
@pytest.mark.parametrize("speed", [100, 2_000, 10_000])
def test_a_long_way_takes_little_from_what_can_go(there_and_back: int, speed: int) -> None:
    way = Way(there_and_back, speed)
    way.go(3_000 + 20 * there_and_back)
    assert way.go(8_000) > 0.6 * speed * 8_000


@pytest.mark.parametrize("there_and_back", [0, 2, 20, 100])
def test_what_waits_at_the_other_end_is_bounded_however_long_the_way_is(
    there_and_back: int,
) -> None:
    """64 bytes a millisecond: the first flights are what they are."""
    way = Way(there_and_back, 64)
    way.go(5_000)
    way.worst = 0.0
    way.go(20_000)
    assert way.worst < 85 + there_and_back // 2


def test_a_way_that_gets_longer_is_not_taken_for_an_end_that_is_slow() -> None:
    way = Way(2, 5_000)
    way.go(3_000)
    for longer in (152, 10, 80):
        way.way_at = lambda now, longer=longer: longer  # type: ignore[misc]
        way.go(5_000)
        assert way.go(5_000) > 0.6 * 5_000 * 5_000


def test_a_way_that_differs_takes_little_either() -> None:
    dice = random.Random(1)
    way = Way(0, 2_000)
    way.way_at = lambda now: 100 + dice.randrange(30)
    way.go(5_000)
    assert way.go(5_000) > 0.6 * 2_000 * 5_000
