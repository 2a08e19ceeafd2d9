"""A node whose store takes nothing: who publishes to its sessions elsewhere is told, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec.packets import Puback, Publish, Pubrec
from mqttd.codec.reasons import NO_MATCHING_SUBSCRIBERS, QUOTA_EXCEEDED
from tests.support.memory import MemoryClient
from tests.unit.cluster.test_once import Pair, joined


class Stuck(Pair):
    """The store there takes no group, as one whose copies NATS servers do not take."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.number = 0
        #: Of `publisher` something waits, and what it is answered waits behind that.
        self.another = self.here.kept.client("another", kept=False)

    def fails(self) -> None:
        self.there.kept.journal.fail(True)
        self.there.broker.set_stuck(True)
        self.tick()

    def works(self) -> None:
        self.there.kept.journal.fail(False)
        self.there.broker.set_stuck(False)
        self.there.settle()
        self.tick()

    def tick(self) -> None:
        """It is looked there, and heard here."""
        self.there.mesh.tick(self.there.broker.now)
        self.go()

    def go(self) -> None:
        """All goes that can without the store there."""
        for _ in range(4):
            self.there.arriving.take(self.here.turn())
            self.here.take(self.there.turn())

    def waits(self, qos: int) -> None:
        """Something is there, and is not written."""
        assert self.send(qos, by=self.publisher) == []

    def send(
        self, qos: int, topic: str = "t", *, by: MemoryClient | None = None, retain: bool = False
    ) -> list[int]:
        """A message is published here; the answers."""
        publisher = self.another if by is None else by
        self.number += 1
        number = self.number if qos else 0
        publisher.send(Publish(topic, b"%d" % self.number, qos, retain, packet_id=number))
        self.here.settle()
        self.go()
        return answers(publisher)


def answers(publisher: MemoryClient) -> list[int]:
    said = [each for each in publisher.take() if isinstance(each, Puback | Pubrec)]
    return [each.reason_code for each in said]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Stuck]:
    made = Stuck(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("qos", [1, 2])
def test_who_publishes_behind_what_waits_at_another_node_is_refused(pair: Stuck, qos: int) -> None:
    pair.waits(qos)
    pair.fails()
    dropped = pair.here.broker.metrics.dropped_not_kept
    assert pair.send(qos) == [QUOTA_EXCEEDED]
    assert pair.here.broker.metrics.dropped_not_kept == dropped + 1
    older = pair.here.kept.node.connect("older", 4)
    assert pair.send(qos, by=older) == [] and older.closed
    assert pair.send(qos, "elsewhere") == [NO_MATCHING_SUBSCRIBERS]
    received = pair.received()
    pair.works()
    assert answers(pair.publisher) == [0]
    assert pair.send(qos) == []
    pair.there.settle()
    pair.go()
    assert answers(pair.another) == [0]
    assert received + pair.received() == [b"1", b"5"]


def test_each_lane_is_by_itself(pair: Stuck) -> None:
    pair.waits(1)
    pair.fails()
    pair.waits(2)
    pair.tick()
    assert pair.send(2) == [QUOTA_EXCEEDED]


def test_while_nothing_waits_nobody_is_refused(pair: Stuck) -> None:
    """The other's store has failed with messages of its own."""
    pair.there.kept.subscriber("clean", "u", 1, kept=False)
    pair.here.mesh.add(pair.here.other, "u")
    pair.fails()
    assert pair.send(1, "u") == [0]
    assert pair.send(2, "u") == [0]
    pair.waits(1)
    pair.tick()
    assert pair.send(1, "u") == [QUOTA_EXCEEDED]  # it would wait behind the one before


def test_a_retained_message_would_wait_too(pair: Stuck) -> None:
    pair.waits(1)
    pair.fails()
    assert pair.send(1, "other", retain=True) == [QUOTA_EXCEEDED]
    assert pair.send(2, "other", retain=True) == [QUOTA_EXCEEDED]
    pair.send(0, retain=True)
    assert pair.received() == [b"1", b"4"]


def test_a_member_of_a_shared_group_is_one_who_waits(pair: Stuck) -> None:
    pair.here.mesh.add(pair.here.other, "$share/g/u")
    pair.waits(1)
    pair.fails()
    assert pair.send(1, "u") == [QUOTA_EXCEEDED]


def test_a_link_that_breaks_ends_it(pair: Stuck) -> None:
    """What is for a node that is away is kept for it."""
    pair.waits(1)
    pair.fails()
    pair.here.cut()
    pair.there.cut()
    pair.here.settle()
    assert answers(pair.publisher) == [0]
    pair.another.send(Publish("t", b"later", 1, packet_id=9))
    pair.here.settle()
    assert answers(pair.another) == [0]
    joined(pair.here, pair.there)
    assert pair.received()[-1] == b"later"


def test_an_older_node_hears_nothing_of_it(pair: Stuck) -> None:
    pair.there.other.version = 2
    pair.waits(1)
    pair.fails()
    assert pair.send(1) == []
