"""What may be under way to another worker is what it handles in some milliseconds."""

from __future__ import annotations

from mqttd.mesh.flight import FIRST, FULL, TOLD, Flight


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
