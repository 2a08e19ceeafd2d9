"""A worker whose store takes nothing: who publishes to its sessions at another one is told, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec.packets import Puback, Publish, Pubrec
from mqttd.codec.reasons import NO_MATCHING_SUBSCRIBERS, QUOTA_EXCEEDED
from mqttd.mesh.link import Link, Stream
from mqttd.workers.mesh import WorkerMesh
from tests.support.memory import MemoryClient
from tests.unit.storage.test_journal import make
from tests.unit.workers.test_ferry import Pipe


class Side:
    """One of two workers, with a store."""

    def __init__(self, path: Path, number: int) -> None:
        path.mkdir()
        self.kept = make(path)
        self.broker = self.kept.node.broker
        self.mesh = WorkerMesh(self.broker, number, 2)
        self.mesh.begin()
        self.other = 3 - number

    def link(self) -> None:
        self.pipe = Pipe()
        link = Link(self.broker, Stream(self.pipe), self.other)
        link.wraps = True
        link.bound(0)
        self.arriving = self.mesh.linked(self.other, link, False)

    def turn(self) -> bytes:
        self.broker.perform()
        self.kept.node.run_soon()
        self.broker.perform()
        return self.pipe.take()


class Pair:
    """Publishers at `here`, a subscriber with a session that is kept at `there`."""

    def __init__(self, path: Path) -> None:
        self.number = 0
        self.here, self.there = Side(path / "here", 1), Side(path / "there", 2)
        for side in (self.here, self.there):
            side.link()
        self.go()
        self.reader = self.there.kept.subscriber("s", "t", 2, kept=True)
        self.first = self.here.kept.client("p", kept=False)
        self.second = self.here.kept.client("q", kept=False)
        self.go()
        self.there.kept.settle()
        self.go()

    def go(self) -> None:
        """All goes that can without another row of the store there."""
        for _ in range(6):
            self.here.kept.settle()
            for one, other in ((self.here, self.there), (self.there, self.here)):
                if data := one.turn():
                    other.arriving.take(data)

    def fails(self, failing: bool = True) -> None:
        self.there.kept.journal.fail(failing)
        self.there.broker.set_stuck(failing)
        if not failing:
            self.there.kept.settle()
        self.there.mesh.tick(self.there.broker.now)
        self.go()

    def send(self, by: MemoryClient, qos: int, topic: str = "t", retain: bool = False) -> list[int]:
        self.number += 1
        by.send(Publish(topic, b"x", qos, retain, packet_id=self.number))
        self.go()
        said = [each for each in by.take() if isinstance(each, Puback | Pubrec)]
        return [each.reason_code for each in said]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    for side in (made.here, made.there):
        side.kept.base.close()


@pytest.mark.parametrize("qos", [1, 2])
def test_who_publishes_behind_what_waits_at_another_worker_is_refused(pair: Pair, qos: int) -> None:
    assert pair.send(pair.first, qos) == []
    pair.fails()
    assert pair.send(pair.second, qos) == [QUOTA_EXCEEDED]
    assert pair.here.broker.metrics.dropped_not_kept == 1
    assert pair.send(pair.second, qos, "other", retain=True) == [QUOTA_EXCEEDED]
    assert pair.send(pair.second, qos, "elsewhere") == [NO_MATCHING_SUBSCRIBERS]
    pair.fails(False)
    said = pair.first.take()
    assert [each.reason_code for each in said if isinstance(each, Puback | Pubrec)] == [0]
    assert pair.send(pair.second, qos) == []  # waits for its row, and no more
    pair.there.kept.settle()
    pair.go()
    assert [type(each) for each in pair.second.take()] == [Puback if qos == 1 else Pubrec]


def test_while_nothing_waits_or_the_worker_is_gone_nobody_is_refused(pair: Pair) -> None:
    pair.fails()
    assert pair.send(pair.first, 1) == []  # it is the first that waits
    pair.there.mesh.tick(pair.there.broker.now)
    pair.go()
    assert pair.here.mesh.stuck == {2}
    link = pair.here.mesh.neighbours[2].link
    assert link is not None
    pair.here.mesh.unlinked(link)
    assert not pair.here.mesh.stuck
