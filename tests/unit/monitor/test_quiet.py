"""Memory goes back to the system when a broker is quiet, and only then."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from mqttd.monitor.quiet import INTERVAL, LITTLE, Quiet


class Rig:
    def __init__(self) -> None:
        self.now = 0.0
        self.received = 0
        self.takes = 0.0
        self.given = 0
        self.quiet = Quiet(lambda: self.received, lambda: self.now, self.give_back)

    def give_back(self) -> None:
        self.given += 1
        self.now += self.takes

    def pass_by(self, seconds: float, received: int = 0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            self.received += int(received / seconds / 4)
            self.quiet.tick()


@pytest.fixture
def rig() -> Iterator[Rig]:
    yield Rig()
    gc.unfreeze()
    gc.freeze()  # what lives besides is no work for the collector in the tests behind this one


def test_a_quiet_broker_gives_back_at_each_look(rig: Rig) -> None:
    rig.pass_by(INTERVAL)
    assert rig.given == 1
    rig.pass_by(2 * INTERVAL, LITTLE)
    assert rig.given == rig.quiet.times == 3


def test_one_at_work_does_not_until_it_rests(rig: Rig) -> None:
    rig.pass_by(5 * INTERVAL, 10 * LITTLE)
    assert rig.given == 0
    rig.pass_by(2 * INTERVAL)
    assert rig.given >= 1


def test_what_takes_long_is_done_seldom(rig: Rig) -> None:
    rig.takes = 0.5
    rig.pass_by(INTERVAL)
    assert rig.given == 1
    rig.pass_by(400)
    assert rig.given == 1
    rig.pass_by(120)
    assert rig.given == 2


def test_free_lists_are_emptied_and_what_lives_is_frozen(rig: Rig) -> None:
    kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    before = gc.get_freeze_count()
    rig.pass_by(INTERVAL)
    assert gc.get_freeze_count() >= before + len(kept)
