"""A long queue that leaves this node is read a part at a time, and forgotten so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.broker.ground.losses import LOST
from mqttd.broker.sessions.records import Record, restore
from mqttd.cluster.sessions import packets
from mqttd.cluster.sessions.arrivals import ENTERS
from mqttd.cluster.sessions.packets import Packets, joined, size_of
from mqttd.cluster.sessions.transit import DONE, MORE, TAIL, WHOLE, with_sending
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.codec.serializer import serialize
from mqttd.storage.fetching import read as payloads
from mqttd.types import SessionState
from tests.support.account import audit
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


class Arriving:
    """So many messages of a session come from `a`, all but TAIL."""

    def __init__(self, path: Path, count: int = COUNT) -> None:
        self.node = Node(path)
        kept = self.node.kept
        kept.journal.read = lambda pieces: payloads(kept.base, pieces)
        self.node.broker.settings.mqueue_max_length = 0
        self.coming = Coming(self.node)
        self.count = count
        packets = [serialize(Publish("t", n.to_bytes(4, "big"), 1, packet_id=1), 5)
                   for n in range(count)]  # fmt: skip
        for at in range(0, count, PART):
            self.node.says("a", MORE, 7, b"12345678", *packets[at : at + PART])

    def end(self) -> SessionState:
        self.node.says("a", TAIL, 7)
        marks(self.node, 7)
        (state,) = self.coming.given
        assert state is not None
        return state

    def enter(self, state: SessionState) -> list[bytes]:
        """What waits for it then."""
        self.node.broker.registry.keep("s", 7, state)
        self.node.broker.perform()
        self.node.kept.settle()
        return [each.wire[-4:] for each in self.node.broker.sessions["s"].queued()]


@pytest.fixture
def arriving(tmp_path: Path) -> Iterator[Arriving]:
    made = Arriving(tmp_path)
    yield made
    made.node.kept.base.close()


WANTED = [number.to_bytes(4, "big") for number in range(COUNT)]


def test_what_comes_is_queued_as_it_comes(arriving: Arriving) -> None:
    """All of it was in the turn in which the session was entered."""
    node = arriving.node
    assert node.broker.metrics.messages_queued == COUNT
    state = arriving.end()
    assert len(state.queue) == COUNT + 2
    assert arriving.enter(state) == WANTED
    assert node.broker.metrics.messages_queued == COUNT
    assert node.after_a_crash() == {"s": COUNT} and (DONE in [what for _, what, _ in node.said])
    node.broker.registry.end_session("s", 0x98, "test")
    while len(node.broker.turns):
        node.broker.turns.turn()
        node.kept.settle()
    assert node.rows() == [0, 0, 0]


def test_what_has_come_of_one_is_nobodys_after_a_crash(arriving: Arriving) -> None:
    """Who had it has it until then, and sends it again."""
    assert arriving.node.rows()[:2] == [0, 0]
    arriving.end()
    assert arriving.node.rows() == [0, 0, 0]


def test_nothing_is_left_of_one_that_nobody_enters(arriving: Arriving) -> None:
    state = arriving.end()
    clock: Any = arriving.node.moves.transit.reactor
    clock.advance(ENTERS)
    while len(arriving.node.broker.turns):
        arriving.node.broker.turns.turn()
        arriving.node.kept.settle()
    audit(arriving.node.broker, [arriving.node.publisher.channel])
    assert arriving.enter(state) == WANTED, "of its packets, after all"


def test_one_that_another_has_claimed_meanwhile_goes_on_as_it_came(arriving: Arriving) -> None:
    node = arriving.node
    comes = node.moves.arrivals.find("s", 7)
    assert comes is not None and comes.waits is not None
    comes.waits.addErrback(lambda _: None)
    node.moves.hand("s", "b", 9, None)
    node.says("a", TAIL, 7)
    marks(node, 7)
    marks(node, 9)
    while len(node.broker.turns):
        node.broker.turns.turn()
        node.kept.settle()
    assert numbers(node)[2:] == list(range(COUNT))
    assert {to for to, what, _ in node.said if what in (MORE, TAIL)} == {"b"}
    node.says("b", DONE, 9)
    audit(node.broker, [node.publisher.channel])


def test_what_was_in_flight_is_so_again_in_whichever_part_it_comes(tmp_path: Path) -> None:
    node = Node(tmp_path)
    coming = Coming(node)
    record = {**json.loads(coming.record[:-1] + b"}"), "window": [5, -7, 6, -8, 9], "incoming": [3]}
    node.moves.arrivals.find("s", 7).again = True  # type: ignore[union-attr]
    wires = [serialize(Publish("t", b"%d" % n, 2, packet_id=1), 5) for n in range(3)]
    node.says("a", WHOLE, 7, with_sending(json.dumps(record).encode(), b"87654321"))
    for wire in wires[:2]:
        node.says("a", MORE, 7, b"87654321", wire)
    node.says("a", TAIL, 7)
    marks(node, 7)
    (state,) = coming.given
    assert state is not None
    node.broker.registry.keep("s", 7, state)
    session = node.broker.sessions["s"]
    assert list(session.inflight or ()) == [5, 7, 6, 8] and list(session.awaiting_rel or ()) == [3]
    assert [each.wire[-1:] for each in session.pending_in_flight()] == [b"0", b"1"]
    node.kept.base.close()


def test_what_expires_does_as_it_would_have_at_once(tmp_path: Path) -> None:
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
    assert state is not None and state.queue == (b"1", b"2", *wires)
    plain = SessionState(state.record, state.queue, 7)
    told = []
    for one in (state, plain):
        session = restore(node.broker, "s", one, Record(one.record))
        told.append([(each.wire, each.expires_at) for each in session.queued()])
    assert told[0] == told[1] and len(told[0]) == len(wires)
    node.broker.now += 10_000
    session = restore(node.broker, "s", plain, Record(plain.record))
    assert session.dropped == 2
    node.kept.base.close()
