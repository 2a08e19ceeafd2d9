"""A few thousand executions of the channel fuzzer, with a fixed seed, in every test run."""

from __future__ import annotations

import pytest

from fuzz.channel import Access, main, run


def test_nothing_a_peer_sends_harms_the_broker() -> None:
    done, counts = run(seed=20, executions=2000)
    assert done == 2000
    for reached in (
        "messages_sent",
        "messages_acked",
        "messages_retransmitted",
        "sessions_resumed",
        "sessions_takenover",
        "wills_published",
        "dropped_queue_full",
        "malformed_packets",
    ):
        assert counts[reached] > 10, f"the fuzzer hardly reaches {reached}"


def test_the_same_seed_plays_the_same_rounds() -> None:
    assert run(seed=3, executions=300) == run(seed=3, executions=300)


def test_a_fault_is_found_and_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fuzzer that cannot fail proves nothing."""

    def broken(*args: object) -> bool:
        raise IndexError("found by nobody")

    monkeypatch.setattr(Access, "authorize", broken)
    assert main(["--executions", "500", "--seed", "9"]) == 1
    told = capsys.readouterr()
    assert "FAULT" in told.out and "--seed 9 --round 0" in told.err
