"""A long queue that leaves this node is read a part at a time, and forgotten so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqttd.broker.ground.losses import LOST
from mqttd.broker.sessions.records import Record, restore
from mqttd.cluster.sessions import packets
from mqttd.cluster.sessions.packets import Packets, joined, size_of
from mqttd.cluster.sessions.transit import MORE, TAIL, WHOLE
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.codec.serializer import serialize
from mqttd.session.ground.message import Delivery
from mqttd.storage.writer import read as payloads
from mqttd.types import SessionState
from tests.unit.cluster.test_on_its_way import kill, marks
from tests.unit.cluster.test_parts_of_queues import Coming, said
from tests.unit.cluster.test_remains import Node

#: Messages, and most that are made in a turn.
COUNT = 5_000
PART = 500


@pytest.fixture(params=["memory", "disk"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    made = Node(tmp_path)
    made.broker.settings.mqueue_max_length = 0
    made.kept.journal.read = lambda pieces: payloads(made.kept.base, pieces)
    on_disk = request.param == "disk"
    made.broker.settings.mqueue_in_memory = 1000 if on_disk else 1 << 30
    for number in range(COUNT):
        made.broker.publish_text("t", number.to_bytes(4, "big"), 1)
        if number % 500 == 0:
            made.kept.settle()
    made.kept.node.run_soon()
    made.kept.settle()
    mqueue = made.broker.sessions["s"].mqueue
    assert mqueue is not None and len(mqueue) == COUNT
    receipts = sum(isinstance(entry, int) for entry in mqueue.items())
    assert (receipts > COUNT // 2) == on_disk
    yield made
    made.kept.base.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many packets were made since this was asked last."""
    count = 0
    packet_of = packets.packet_of

    def counted(*args: object) -> bytes:
        nonlocal count
        count += 1
        return packet_of(*args)  # type: ignore[arg-type]

    def since() -> int:
        nonlocal count
        before, count = count, 0
        return before

    monkeypatch.setattr(packets, "packet_of", counted)
    return since


def numbers(node: Node) -> list[int]:
    """The messages of the last sending, in the order in which they went."""
    found: list[int] = []
    for (_, what, _), fields in zip(node.said, node.fields, strict=True):
        if what == WHOLE:
            found = []
        if what in (WHOLE, MORE, TAIL):
            found += [int.from_bytes(each[-4:], "big") for each in fields[what != TAIL :]]
    return found


def test_no_turn_reads_more_than_a_part(node: Node, made: Callable[[], int]) -> None:
    """All of it was, when the session was claimed: 0.1 to 0.8 s of 100,000 messages."""
    node.hand("a", 5)
    assert made() <= PART
    marks(node, 5)
    while len(node.broker.turns):
        node.broker.turns.turn()
        assert made() <= PART
        node.kept.settle()
    assert len(said(node, TAIL)) == 1
    assert numbers(node) == list(range(COUNT))
    assert node.after_a_crash() == {"s": COUNT}
    node.says("a", b"done", 5)
    assert made() == 0
    assert node.rows() == [0, 0, 0], "what is in line is nobody's"


def test_it_is_forgotten_a_part_at_a_time(node: Node) -> None:
    """All of it was in the turn in which the other node said that it has it."""
    node.hand("a", 5)
    marks(node, 5)
    while len(node.broker.turns):
        node.broker.turns.turn()
        node.kept.settle()
    line = node.broker.losses.line
    node.says("a", b"done", 5)
    lost: list[int] = []
    while len(node.broker.turns):
        before = sum(len(numbers) for numbers in line)
        node.broker.turns.turn()
        lost.append(before - sum(len(numbers) for numbers in line))
        node.kept.settle()
    assert 0 < max(lost) <= LOST and not line
    assert node.rows() == [0, 0, 0]


def test_what_is_back_is_read_before_the_store_lets_it_go(node: Node) -> None:
    node.hand("a", 5)
    marks(node, 5)
    node.broker.turns.turn()
    kill(node, "a")
    state = node.moves.departures.recall("s")
    assert [int.from_bytes(each[-4:], "big") for each in state.queue] == list(range(COUNT))
    node.broker.registry.keep("s", 6, state)
    mqueue = node.broker.sessions["s"].mqueue
    assert mqueue is not None and len(mqueue) == COUNT
    node.broker.perform()
    while len(node.broker.turns):
        node.broker.turns.turn()
        node.kept.settle()
    assert node.after_a_crash() == {"s": COUNT}


def test_a_queue_is_a_sequence_whatever_it_is_made_of(node: Node) -> None:
    session = node.broker.sessions["s"]
    queue = Packets(node.broker, session)
    whole = joined(joined(queue, (b"x", b"y")), (b"z",))
    assert len(whole) == COUNT + 3
    wanted = list(whole)
    assert wanted[-3:] == [b"x", b"y", b"z"]
    assert [whole[at] for at in (0, 1, COUNT - 1, COUNT, -1)] == [
        wanted[at] for at in (0, 1, COUNT - 1, COUNT, -1)
    ]
    assert list(whole[COUNT - 2 : COUNT + 1]) == wanted[COUNT - 2 : COUNT + 1]
    assert list(whole[:]) == wanted
    assert all(size_of(whole, at) >= 1 for at in range(0, len(whole), 100))
    assert joined(queue, ()) is queue and joined((b"a",), (b"b",)) == (b"a", b"b")


def test_what_comes_is_read_as_it_comes(tmp_path: Path) -> None:
    """It was when the session was entered: of 100,000 messages 30 to 150 ms in that turn."""
    node = Node(tmp_path)
    coming = Coming(node)
    small, large, expires = b"small", bytes(5000), {prop.MESSAGE_EXPIRY_INTERVAL: 5}
    wires = [
        serialize(Publish("t", payload, 1, packet_id=1, properties=properties), 5)
        for payload in (small, large)
        for properties in (None, expires, {prop.CONTENT_TYPE: "x"})
    ]
    node.says("a", MORE, 7, b"12345678", *wires[:2])
    node.says("a", MORE, 7, b"12345678", *wires[2:4])
    node.says("a", TAIL, 7, *wires[4:])
    marks(node, 7)
    (state,) = coming.given
    assert state is not None
    assert state.queue == (b"1", b"2", *wires)
    known = [isinstance(each, Delivery) for each in state.read]
    assert known == [False, False, *(len(wire) < 4096 for wire in wires)]
    plain = SessionState(state.record, state.queue, 7)
    for expired in (0, 2):
        told = []
        for one in (state, plain):
            session = restore(node.broker, "s", one, Record(one.record))
            told.append([(each.wire, each.expires_at) for each in session.queued()])
            assert session.dropped == expired
        assert told[0] == told[1] and len(told[0]) == len(wires) - expired
        node.broker.now += 10_000
    node.kept.base.close()
