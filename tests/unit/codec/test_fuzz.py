"""A few thousand executions of each fuzz target, with a fixed seed, in every test run."""

from __future__ import annotations

from collections import Counter

import pytest

from fuzz.codec import TARGETS, Inputs, Oracle, main, run
from mqttd.codec.topic import match


@pytest.mark.parametrize("target", TARGETS)
def test_the_codec_only_says_no(target: str) -> None:
    done, counts = run(target, seed=20, executions=5000, deadline=float("inf"))
    assert done == sum(counts.values()) == 5000
    assert len(counts) >= 2, "all inputs fared alike: the fuzzer reaches nothing"


def test_the_same_seed_makes_the_same_inputs() -> None:
    first, again = Inputs(7), Inputs(7)
    assert [first.data(5) for _ in range(50)] == [again.data(5) for _ in range(50)]


def test_a_fault_is_found_and_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fuzzer that cannot fail proves nothing."""

    def broken(name: str, topic_filter: str) -> bool:
        return match(name, topic_filter) or topic_filter == "#"

    monkeypatch.setattr("fuzz.codec.match", broken)
    with pytest.raises(Oracle, match="match says True"):
        TARGETS["topic"](Always("$a", "#"), Counter())
    monkeypatch.setattr("fuzz.codec.match", crash)
    assert main(["--target", "topic", "--executions", "2000"]) == 1
    assert "FAULT" in capsys.readouterr().out


class Always(Inputs):
    def __init__(self, *texts: str) -> None:
        super().__init__(0)
        self.texts = list(texts)

    def text(self) -> str:
        return self.texts.pop(0)


def crash(name: str, topic_filter: str) -> bool:
    raise IndexError("found by nobody")


def test_the_count_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", "packet", "--executions", "1500", "--seed", "3"]) == 0
    assert "1500 executions, 0 faults" in capsys.readouterr().out
