"""Groups that wait a moment: what is acknowledged meanwhile is never written, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
)
from mqttd.storage.durability import OS, Durability
from mqttd.storage.patience import ANSWERED, LAZY, PROMPT, Patience
from tests.support.memory import MemoryClient
from tests.unit.storage.test_journal import Kept, kinds, publish

MS = 1_000_000


class Patient(Kept):
    """The pauses that its groups ask for, in seconds; `over` ends one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Durability(OS, {}))
        self.pauses: list[float] = []
        self.ended = 0
        self.journal.pause = self.pauses.append
        self.journal.unpause = self.end

    def end(self) -> None:
        self.ended += 1

    def over(self) -> None:
        """What is waited for is over."""
        self.journal.patience._since = 1
        self.journal.begin()
        self.node.broker.perform()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Patient]:
    made = Patient(tmp_path / "store.db")
    yield made
    made.base.close()


def acknowledge(client: MemoryClient) -> None:
    """Answer what is there."""
    for packet in client.take():
        if isinstance(packet, Publish) and packet.qos == 1:
            client.send(Puback(packet.packet_id, 0, None))


def test_what_is_acknowledged_at_once_is_never_written(kept: Patient) -> None:
    live = kept.subscriber("live", "t", 1, kept=True)
    publisher = kept.client("publisher", kept=False)
    for number in range(1, 6):
        publish(publisher, "t", 1, number)
        assert publisher.take() == [] and kept.waiting == []
        acknowledge(live)
        assert kinds(publisher.take()) == [Puback]
    assert kept.waiting == []
    assert all(0 < pause <= 0.001 for pause in kept.pauses)
    assert kept.ended >= 5


def test_what_is_not_acknowledged_is_written_when_the_pause_is_over(kept: Patient) -> None:
    live = kept.subscriber("live", "t", 1, kept=True)
    publisher = kept.client("publisher", kept=False)
    publish(publisher, "t", 1, 1)
    assert kept.waiting == [] and publisher.take() == []
    kept.over()
    assert len(kept.waiting) == 1 and publisher.take() == []
    kept.write()
    assert kinds(publisher.take()) == [Puback]
    assert kept.living() == 1
    # What is over then nobody waits for: it is gathered.
    acknowledge(live)
    assert kept.waiting == [] and kept.pauses[-1] > 0.001
    kept.over()
    kept.settle()
    assert kept.living() == 0


@pytest.mark.parametrize("what", ["subscribe", "told", "connect"])
def test_nobody_waits_for_what_is_gathered_since_nobody_waits(kept: Patient, what: str) -> None:
    live = kept.subscriber("live", "t", 1, kept=True)
    other = kept.subscriber("other", "else", 1, kept=True)
    publish(kept.client("publisher", kept=False), "t", 1, 1)
    kept.over()
    kept.settle()
    acknowledge(live)
    assert kept.waiting == [] and not kept.ledger.group.empty()
    told: list[int] = []
    if what == "subscribe":
        other.send(Subscribe(9, [Subscription("else", 1)]))  # it has it: nothing is told
    elif what == "told":
        kept.journal.when_kept(lambda: told.append(1))
        kept.node.broker.perform()
    else:
        kept.node.connect("other", 5, False, properties={prop.SESSION_EXPIRY_INTERVAL: 1000})
    kept.settle()
    assert kept.ledger.group.empty()
    if what == "subscribe":
        assert kinds(other.take()) == [Suback]
    elif what == "told":
        assert told == [1]


def test_where_it_is_in_vain_it_is_tried_more_and_more_seldom(kept: Patient) -> None:
    kept.subscriber("live", "t", 1, kept=True)
    publisher = kept.client("publisher", kept=False)
    patient = []
    for number in range(1, 40):
        publish(publisher, "t", 1, number)
        if not kept.waiting:
            patient.append(number)
            kept.over()
        kept.settle()
        assert kinds(publisher.take()) == [Puback]
    assert patient == [1, 3, 6, 11, 20, 37]


@pytest.mark.parametrize(
    "packet", [Subscribe(9, [Subscription("else", 1)]), Publish("away", b"x", 1, packet_id=9),
               Publish("t", b"x", 2, packet_id=9), Publish("t", b"x", 1, retain=True, packet_id=9)],
    ids=["subscribe", "away", "qos2", "retain"],
)  # fmt: skip
def test_anything_else_is_written_at_once(kept: Patient, packet: object) -> None:
    live = kept.subscriber("live", "t", 2, kept=True)
    kept.subscriber("away", "away", 1, kept=True).drop()
    kept.over()
    kept.settle()
    publish(live, "t", 1, 1)
    assert kept.waiting == []
    live.send(packet)  # type: ignore[arg-type]
    assert len(kept.waiting) == 1
    kept.settle()
    live.take()


def test_what_is_over_makes_no_group_until_it_is_much(kept: Patient) -> None:
    kept.subscriber("live", "t", 1, kept=True)
    kept.journal.pause = None
    numbers = [kept.journal.sent(1, at, bytes(100), False) for at in range(1, 5001)]
    kept.node.broker.perform()
    kept.settle()
    kept.journal.pause = kept.pauses.append
    when = []
    for at, number in enumerate(numbers[1:], 1):
        kept.journal.patience._since = time.monotonic_ns()  # however slow this machine is
        kept.journal.forget(number)
        kept.node.broker.perform()
        if kept.waiting:
            when.append(at)
        kept.settle()
    assert when == [4097]


def test_a_qos_2_delivery_waits_for_no_pause(kept: Patient) -> None:
    live = kept.subscriber("live", "t", 2, kept=True)
    publisher = kept.client("publisher", kept=False)
    publish(publisher, "t", 2, 1)
    assert len(kept.waiting) == 1
    kept.settle()
    (packet,) = live.published()
    live.send(Pubrec(packet.packet_id, 0, None))
    assert len(kept.waiting) == 1
    kept.settle()
    live.send(Pubcomp(packet.packet_id, 0, None))
    kept.over()
    kept.settle()
    assert kept.living() == 0


@pytest.mark.parametrize(
    ("urge", "lives", "waits"),
    [(LAZY, False, 20 * MS), (LAZY, True, 0), (ANSWERED, True, MS), (ANSWERED, False, 0),
     (PROMPT, True, 0), (PROMPT, False, 0)],
)  # fmt: skip
def test_how_long(urge: int, lives: bool, waits: int) -> None:
    patience = Patience()
    patience.urge = urge
    assert patience.wait(lives, 5) == waits
    assert patience.wait(lives, 5 + waits // 2) == waits // 2
    assert patience.wait(lives, 6 + waits) == 0
