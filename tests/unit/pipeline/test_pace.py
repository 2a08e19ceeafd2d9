"""When a group of acknowledgements goes to the log."""

from __future__ import annotations

from typing import Any

import pytest

from mqttd.pipeline.log import pace
from mqttd.pipeline.log.pace import FEW, GAP, LONG, REST, Pace


class Bench:
    """A log, what waits for it, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.idle = True
        self.waiting = 0
        self.closed: list[tuple[float, int]] = []
        self.pauses: list[float] = []
        monkeypatch.setattr(pace, "monotonic", lambda: self.now)
        gathering: Any = self
        self.pace = Pace(gathering, lambda: self.idle, self.flush)
        self.pace.pause = self

    def waits(self) -> bool:
        return self.waiting > 0

    def acknowledgements(self) -> int:
        return self.waiting

    def begin(self, seconds: float) -> None:
        if not self.pauses:
            self.pauses.append(self.now + seconds)

    def flush(self) -> None:
        self.closed.append((self.now, self.waiting))
        self.waiting = 0
        self.idle = False

    def bring(self, count: int = 1) -> None:
        self.waiting += count
        self.pace.brought()

    def written(self) -> None:
        self.idle = True
        self.pace.written()

    def over(self) -> None:
        self.now = self.pauses.pop()
        self.pace.over()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_one_that_comes_alone_waits_for_nothing(bench: Bench) -> None:
    for _ in range(3):
        bench.bring()
        assert bench.closed[-1] == (bench.now, 1)
        bench.now += 0.0002
        bench.written()
        bench.now += LONG
    assert not bench.pauses


def test_those_that_come_while_a_group_is_written_and_a_little_later_are_the_next(
    bench: Bench,
) -> None:
    bench.bring(FEW)
    bench.bring(3)
    bench.now += GAP
    bench.written()
    assert bench.pauses == [pytest.approx(bench.now + REST)]
    bench.now += REST / 2
    bench.bring(4)
    assert len(bench.closed) == 1
    bench.over()
    assert bench.closed[1] == (pytest.approx(100 + GAP + REST), 7)


@pytest.mark.parametrize(("count", "gap"), [(FEW, GAP), (FEW - 1, LONG), (1, LONG)])
def test_groups_that_are_written_quickly_are_not_closed_sooner_than_the_gap(
    bench: Bench, count: int, gap: float
) -> None:
    bench.bring(count)
    bench.now += 0.0001
    bench.written()
    assert not bench.pauses  # nobody waits
    bench.bring(2)
    bench.over()
    assert bench.closed[1] == (pytest.approx(100 + gap), 2)


def test_what_another_has_handed_over_is_waited_for_when_a_pause_is_over(bench: Bench) -> None:
    bench.bring()
    bench.written()
    bench.bring(2)
    bench.idle = False  # the log's own timer
    bench.over()
    assert len(bench.closed) == 1
    bench.written()
    assert bench.pauses
    bench.over()
    assert bench.closed[1][1] == 2
