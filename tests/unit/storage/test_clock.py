"""The clock of the day is set while the broker runs: who is away went as long ago as before."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mqttd.broker.broker import Broker
from mqttd.codec.packets import Publish
from mqttd.storage import store
from tests.unit.storage.test_workers import Worker

DAY = 86_400


class Clocks:
    """The time of the day, set wrong by so many seconds; and the one that nobody sets."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    wrong = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.wrong * 1_000_000_000


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(store, "time", made)
    return made


@pytest.mark.parametrize("wrong", [-DAY, DAY])
def test_a_session_lives_as_long_as_it_may_whatever_is_set(
    clocks: Clocks, tmp_path: Path, wrong: int
) -> None:
    """It went before, while or after the clock was wrong; a restart finds all of them."""
    worker = Worker(tmp_path)
    worker.away("before", "t")
    for at in (wrong, 0):
        clocks.wrong = at
        worker.reactor.advance(10)
        worker.settle()
        worker.away(f"at {at}", "t")
    worker.stop()
    again = Worker(tmp_path)
    assert set(again.node.broker.sessions) >= {"before", f"at {wrong}", "at 0"}
    now = again.node.broker.now
    for name in ("before", f"at {wrong}", "at 0"):
        session = again.node.session(name)
        assert session is not None and 0 <= now - session.away_since < 500_000
    again.stop()


def test_a_clock_that_is_slewed_moves_nothing(clocks: Clocks, tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.away("a", "t")
    groups = worker.store.describe()["groups_written"]
    clocks.wrong = 2
    worker.reactor.advance(10)
    worker.settle()
    assert worker.store.describe()["groups_written"] == groups
    worker.stop()


def lasting(broker: Broker) -> None:
    """As `retained.expiry = "1h"`."""
    broker.settings.retained_expiry = 3_600_000


def test_a_restart_does_not_make_a_retained_message_younger(clocks: Clocks, tmp_path: Path) -> None:
    worker = Worker(tmp_path, lasting)
    # Message ids have the time of the day, as the broker's own clock says it.
    worker.node.broker.clock = lambda: clocks.time_ns() // 1000
    worker.node.connect("a", 5).send(Publish("t", b"x", 1, True, packet_id=1))
    worker.settle()
    worker.stop()
    for minutes, there in ((30, True), (59, True), (61, False)):
        clocks.wrong = minutes * 60
        worker = Worker(tmp_path, lasting)
        assert ("t" in worker.node.broker.retainer.topics) == there
        worker.stop()
