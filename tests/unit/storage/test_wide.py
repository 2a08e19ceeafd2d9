"""A message to thousands, which goes out in many turns, when the broker dies in one of them.

Of QoS 2 the store has its packet id and what all receivers have of it, or nothing: its publisher
sends it again, and is told that it is known.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from mqttd.broker.publish.local import publish as publish_here
from mqttd.broker.publish.local import subscribe as subscribe_here
from mqttd.codec.packets import Puback, Publish, Pubrec, Subscribe, Subscription
from mqttd.codec.serializer import serialize
from mqttd.mesh.frames import ACK, numbered
from mqttd.mesh.link import Link, Stream
from mqttd.storage.ledger import RECEIVED, Ledger
from mqttd.storage.recovery import read
from mqttd.workers.mesh import WorkerMesh
from tests.support.memory import MemoryBroker
from tests.unit.storage.test_journal import Kept, kinds, make, publish
from tests.unit.workers.test_ferry import Pipe

#: Shared groups that are more than a step.
GROUPS = 5000
#: And receivers.
MANY = 8500


def step(node: MemoryBroker) -> bool:
    """One turn; whether anything was left to do."""
    due, node.tasks = node.tasks, []
    for task in due:
        task()
    return bool(due)


def everywhere(path: Path) -> Kept:
    """A broker with a session that is in so many groups of one topic, and away."""
    kept = make(path)
    kept.node.broker.settings.mqueue_max_length = 100_000
    reader = kept.client("reader", kept=True)
    for at in range(0, GROUPS, 500):
        filters = [Subscription(f"$share/g{at + n}/t", 2) for n in range(500)]
        reader.send(Subscribe(1, filters))
        while step(kept.node):
            kept.settle()
    reader.drop()
    kept.settle()
    return kept


def on_disk(kept: Kept) -> tuple[int, int]:
    """What a broker that begins now would have: messages for the reader, received QoS 2 ids."""
    records = read(kept.base, Ledger()).records
    received = sum(each.kind == RECEIVED for each in records.get(2, []))
    return len(records.get(1, [])), received


@pytest.mark.parametrize("another", [False, True], ids=["alone", "beside another"])
def test_qos_2_is_kept_for_all_receivers_or_for_none(tmp_path: Path, another: bool) -> None:
    kept = everywhere(tmp_path)
    publisher = kept.client("publisher", kept=True)
    if another:
        publish_here(kept.node.broker, "t", b"another", 1)
    publish(publisher, "t", 2, 7)
    seen = set()
    wanted = GROUPS * (2 if another else 1)
    while True:
        kept.settle()
        messages, received = on_disk(kept)
        assert messages == wanted or not received
        seen.add(received)
        told = publisher.take()
        assert kinds(told) == ([Pubrec] if told else [])
        if told:
            assert received
        if not step(kept.node):
            break
    kept.settle()
    assert seen == {0, 1}
    assert on_disk(kept) == (wanted, 1)
    assert not kept.node.broker.fans.gate.held
    kept.base.close()


def test_acknowledgements_of_others_wait_no_longer_than_that(tmp_path: Path) -> None:
    kept = everywhere(tmp_path)
    kept.subscriber("away", "kept", 1, kept=True).drop()
    kept.settle()
    other = kept.client("other", kept=False)
    publisher = kept.client("publisher", kept=True)
    publish(publisher, "t", 2, 7)
    publish(other, "kept", 1, 1)
    kept.settle()
    assert other.take() == []
    while step(kept.node):
        kept.settle()
    kept.settle()
    assert kinds(other.take()) == [Puback]
    assert kinds(publisher.take()) == [Pubrec]
    kept.base.close()


def test_11_publishers_whose_messages_overlap_do_not_keep_others_waiting(tmp_path: Path) -> None:
    """Each sends its next one as soon as it has its answer: one after the other they go out."""
    kept = everywhere(tmp_path)
    kept.subscriber("away", "kept", 1, kept=True).drop()
    kept.settle()
    other = kept.client("other", kept=False)
    publishers = [kept.client(f"publisher-{n}", kept=n % 2 == 0) for n in range(6)]
    for publisher in publishers:
        publish(publisher, "t", 2, 1)
        publisher.send(Publish("behind", b"x", 1, False, False, 100, None))
    publish(other, "kept", 1, 1)
    answers = 0
    acknowledged: list[int] = []
    while answers < 12:
        assert step(kept.node)
        kept.settle()
        if kinds(other.take()) == [Puback]:
            acknowledged.append(answers)
            publish(other, "kept", 1, 1)
        for publisher in publishers:
            told = kinds(publisher.take())
            assert told in ([], [Pubrec, Puback], [Pubrec])
            if told:
                answers += 1
                publish(publisher, "t", 2, 1 + answers)
    # Whoever waits does so for the one that is under way, and for one more at most.
    assert acknowledged and acknowledged[0] <= 2
    assert all(after - before <= 2 for before, after in pairwise([*acknowledged, answers]))
    while step(kept.node):
        kept.settle()
    kept.settle()
    assert all(kinds(publisher.take())[:1] in ([], [Pubrec]) for publisher in publishers)
    assert not kept.node.broker.fans.gate.held
    kept.base.close()


def test_11_who_waits_in_line_and_goes_leaves_it_to_the_others(tmp_path: Path) -> None:
    kept = everywhere(tmp_path)
    publishers = [kept.client(f"publisher-{n}", kept=False) for n in range(5)]
    for publisher in publishers:
        publish(publisher, "t", 2, 1)
    for publisher in publishers[1:4]:
        publisher.drop()
    while step(kept.node):
        kept.settle()
    kept.settle()
    assert [kinds(publishers[n].take()) for n in (0, 4)] == [[Pubrec], [Pubrec]]
    assert not kept.node.broker.fans.gate.line
    kept.base.close()


def test_11_while_the_disk_takes_nothing_nobody_waits_in_line(tmp_path: Path) -> None:
    kept = everywhere(tmp_path)
    publishers = [kept.client(f"publisher-{n}", kept=False) for n in range(3)]
    publish(publishers[0], "t", 2, 1)
    publish(publishers[1], "t", 2, 1)
    gate = kept.node.broker.fans.gate
    assert len(gate.line) == 1
    kept.journal.fail(True)
    publish(publishers[2], "t", 2, 1)
    assert len(gate.line) == 1
    kept.journal.fail(False)
    while step(kept.node):
        kept.settle()
    kept.settle()
    assert [kinds(each.take()) for each in publishers] == [[Pubrec]] * 3
    kept.base.close()


def test_qos_1_is_acknowledged_when_all_receivers_have_it_and_nobody_waits(tmp_path: Path) -> None:
    kept = everywhere(tmp_path)
    kept.subscriber("away", "kept", 1, kept=True).drop()
    kept.settle()
    other = kept.client("other", kept=False)
    publisher = kept.client("publisher", kept=False)
    publisher.send(Publish("t", b"x", 1, False, False, 7, None))
    publish(other, "kept", 1, 1)
    kept.settle()
    assert kinds(other.take()) == [Puback]
    told = publisher.take()
    assert told == []
    while step(kept.node):
        kept.settle()
    kept.settle()
    assert kinds(publisher.take()) == [Puback]
    kept.base.close()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_another_worker_has_sent_is_acknowledged_when_all_have_it(
    tmp_path: Path, qos: int
) -> None:
    """Else it would not be sent again to who is killed in the midst of it."""
    kept = make(tmp_path)
    broker = kept.node.broker
    mesh = WorkerMesh(broker, 2, 2)
    mesh.ferries[1].begin(broker.drawers.open("$workers"), 1)
    pipe = Pipe()
    arriving = mesh.linked(1, Link(broker, Stream(pipe), 1), False)
    readers = [kept.client("first", kept=True)]
    session = kept.node.session("first")
    assert session is not None
    broker.pubsub.subscribe(session, Subscription("t", 2), 2, 0)
    for number in range(MANY):
        subscribe_here(broker, f"r{number}", "t", lambda message: None)
    readers.append(kept.client("last", kept=True))
    session = kept.node.session("last")
    assert session is not None
    broker.pubsub.subscribe(session, Subscription("t", 2), 2, 0)
    for reader in readers:
        reader.drop()
    while step(kept.node):
        kept.settle()
    before = arriving.count
    pipe.take()
    arriving.take(serialize(Publish("t", b"x", qos, packet_id=7), 5))
    broker.perform()
    states, said = set(), b""
    while True:
        kept.settle()
        records = read(kept.base, Ledger()).records
        states.add(tuple(len(records.get(owner, [])) for owner in (1, 2)))
        said += pipe.take()
        if numbered(ACK, before + 1) in said:
            break
        assert step(kept.node) or kept.waiting, "it is not acknowledged"
    assert states == {(0, 0), (1, 1)}
    kept.base.close()
