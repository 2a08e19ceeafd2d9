"""The circuit breaker: when it opens, when it tries again, and that it tries one at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttd.access.auth.breaker import CLOSED, HALF_OPEN, OPEN, Breaker


def breaker(failures: int = 3) -> Breaker:
    return Breaker(failures, 1.0, 8.0, chance=lambda: 0.0)


def test_it_opens_after_failures_in_a_row() -> None:
    it = breaker()
    assert [it.failed(0.0), it.failed(0.0)] == [False, False]
    it.succeeded()
    assert [it.failed(0.0), it.failed(0.0), it.failed(0.0)] == [False, False, True]
    assert (it.state, it.opened, it.allows(0.9)) == (OPEN, 1, False)


def test_one_trial_at_a_time_decides() -> None:
    it = breaker(1)
    it.failed(0.0)
    assert it.allows(1.0)
    assert not it.allows(1.0)
    assert it.succeeded()
    assert it.state == CLOSED
    assert it.allows(1.0)


def test_each_trial_that_fails_doubles_the_pause_up_to_the_longest() -> None:
    it = breaker(1)
    it.failed(0.0)
    pauses, now = [], 0.0
    for _ in range(5):
        now = it.retry_at
        assert it.allows(now)
        assert it.failed(now)
        pauses.append(it.retry_at - now)
    assert pauses == [2.0, 4.0, 8.0, 8.0, 8.0]
    assert it.opened == 1
    it.allows(it.retry_at)
    it.succeeded()
    it.failed(100.0)
    assert it.retry_at == 101.0


def test_a_trial_that_did_not_reach_the_back_end_is_given_back() -> None:
    it = breaker(1)
    it.failed(0.0)
    assert it.allows(1.0)
    it.untried()
    assert it.allows(1.0)


def test_zero_failures_never_opens_it() -> None:
    it = breaker(0)
    assert not any(it.failed(0.0) for _ in range(100))
    assert it.allows(0.0)


@given(st.lists(st.sampled_from(["ask", "ok", "fail", "late fail", "wait"]), max_size=60))
def test_it_is_never_stuck_and_never_tries_twice_at_once(steps: list[str]) -> None:
    it, now, trial = breaker(2), 0.0, False
    for step in steps:
        if step == "wait":
            now += 9.0
        elif step == "ask":
            asked = it.allows(now)
            assert not (asked and trial and it.state != CLOSED)
            trial = trial or (asked and it.state == HALF_OPEN)
        elif step == "ok" and (trial or it.state == CLOSED):
            it.succeeded()
            trial = False
        elif step == "fail" and (trial or it.state == CLOSED):
            it.failed(now)
            trial = False
        elif step == "late fail" and it.state == OPEN:
            assert not it.failed(now)  # asked before it opened
    if not trial:
        assert it.allows(now + 9.0)
