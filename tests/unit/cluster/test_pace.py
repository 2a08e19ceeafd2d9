"""Sessions that move again and again are charged for what they weigh."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttd.cluster.etcd.pace import BURST, Pace
from mqttd.cluster.sessions.packets import weight_of
from mqttd.types import SessionState

RATE = 1 << 20


def test_a_large_session_may_move_a_few_times_at_once_and_then_at_its_rate() -> None:
    pace = Pace(RATE)
    for _ in range(3):
        assert not pace.wait("s", 0.0)
        pace.charge("s", 8 << 20, 0.0)
    assert pace.wait("s", 0.0) == 8.0
    assert not pace.wait("other", 0.0)
    assert pace.wait("s", 7.0) == 1.0
    assert not pace.wait("s", 8.0)


def test_small_ones_are_never_refused_and_leave_nothing() -> None:
    """However many there are: ten thousand of a node that has died, all at once."""
    pace = Pace(RATE)
    for number in range(10_000):
        now = number / 1000
        assert not pace.wait(f"s{number}", now)
        pace.charge(f"s{number}", 10_000, now)
        assert len(pace._paid) <= 1026


def test_no_limit_remembers_nothing() -> None:
    pace = Pace()
    pace.charge("s", 1 << 40, 0.0)
    assert not pace.wait("s", 0.0)
    assert not pace._paid


def test_filters_weigh_as_what_waits() -> None:
    assert weight_of(SessionState(b"x" * 100, (b"y" * 50, b"z" * 50), 1)) == 1700


@given(st.lists(st.tuples(st.integers(0, 32 << 20), st.floats(0.0, 60.0)), max_size=50))
def test_no_more_comes_than_its_rate_and_what_may_at_once(moves: list[tuple[int, float]]) -> None:
    pace, now, came, last = Pace(RATE), 0.0, 0, 0
    for weight, pause in moves:
        now += pause
        if not pace.wait("s", now):
            pace.charge("s", weight, now)
            came += weight
            last = weight
            assert came - last <= BURST + RATE * now + 1
