"""A queue that is more than a frame goes to another node in parts, and is whole there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.cluster.sessions.parts import PARTS
from mqttd.cluster.sessions.transit import LOOK, MORE, TAIL, WHOLE, sending_of, with_sending
from mqttd.codec.packets import Publish
from mqttd.mesh.link import Link, Stream
from mqttd.types import SessionState
from tests.unit.cluster.test_on_its_way import kill, marked, marks
from tests.unit.cluster.test_remains import Node

#: Bytes of a message, and how many there are: four parts.
SIZE = 20_000
COUNT = 50


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.kept.base.close()


def fill(node: Node, count: int = COUNT) -> None:
    """So many large messages for the session."""
    for _ in range(count):
        node.sent += 1
        payload = node.sent.to_bytes(4, "big") + bytes(SIZE)
        node.publisher.send(Publish("t", payload, 1, packet_id=node.sent))
        node.kept.settle()
    node.kept.node.run_soon()
    node.kept.settle()
    node.publisher.take()


def turns(node: Node) -> None:
    """All that was to be said is said."""
    while len(node.broker.turns):
        node.broker.turns.turn()
    node.kept.settle()


def said(node: Node, *whats: bytes) -> list[tuple[bytes, ...]]:
    return [
        fields for (_, what, _), fields in zip(node.said, node.fields, strict=True) if what in whats
    ]


def numbers(packets: tuple[bytes, ...]) -> list[int]:
    """Of these messages, in their order."""
    return [int.from_bytes(packet[-SIZE - 4 : -SIZE], "big") for packet in packets]


def sent(node: Node) -> list[int]:
    """The messages of the last sending, in the order in which they went."""
    at = max(n for n, (_, what, _) in enumerate(node.said) if what == WHOLE)
    found: list[int] = []
    for (_, what, _), fields in zip(node.said[at:], node.fields[at:], strict=True):
        if what in (WHOLE, MORE):
            found += numbers(fields[1:])
        elif what == TAIL:
            found += numbers(fields)
    return found


def test_it_goes_in_parts_once_the_other_node_has_the_first(node: Node) -> None:
    fill(node)
    node.hand("a", 5)
    turns(node)
    (first,) = said(node, WHOLE)
    assert 1 < len(first) < COUNT // 2
    assert not said(node, MORE)
    sending = sending_of(first[0])
    fill(node, 1)
    marked(node, "a", 5, sending)
    marks(node, 5)
    assert not said(node, TAIL), "not before all of the queue"
    turns(node)
    more = said(node, MORE)
    assert len(more) >= 3
    assert all(fields[0] == sending for fields in more)
    assert all(sum(map(len, fields)) < 300_000 for fields in more)
    assert len(said(node, TAIL)) == 1
    assert sent(node) == list(range(1, COUNT + 2))


def test_a_node_of_before_gets_it_in_one(node: Node) -> None:
    fill(node)
    node.nodes["a"].version = PARTS - 1
    node.hand("a", 5)
    (first,) = said(node, WHOLE)
    assert len(first) == COUNT + 1
    marks(node, 5)
    turns(node)
    assert not said(node, MORE)
    assert len(said(node, TAIL)) == 1


def test_what_is_caught_meanwhile_goes_in_parts_too(node: Node) -> None:
    node.hand("a", 5)
    fill(node)
    marks(node, 5)
    turns(node)
    assert len(said(node, MORE)) >= 3
    assert sent(node) == list(range(1, COUNT + 1))


def test_it_begins_anew_for_who_claims_it_in_the_midst(node: Node) -> None:
    fill(node)
    node.hand("a", 5)
    marks(node, 5)
    node.broker.turns.turn()
    assert 0 < len(said(node, MORE)) < 3
    had = len(node.said)
    node.hand("b", 6)
    marks(node, 6)
    turns(node)
    assert {what for to, what, _ in node.said[had:] if to != "b"} == {LOOK}
    assert sent(node) == list(range(1, COUNT + 1))
    assert node.after_a_crash() == {"s": COUNT}


def test_it_begins_anew_for_who_is_killed_in_the_midst_and_back(node: Node) -> None:
    fill(node)
    node.hand("a", 5)
    marks(node, 5)
    node.broker.turns.turn()
    kill(node, "a")
    turns(node)
    assert not said(node, TAIL)
    node.nodes["a"] = node.mesh.join("a", 2)
    node.moves.joined(node.nodes["a"])
    marks(node, 5)
    turns(node)
    assert len(said(node, TAIL)) == 1
    assert sent(node) == list(range(1, COUNT + 1))


class Transport:
    def write(self, data: bytes) -> None:
        pass

    def abortConnection(self) -> None:
        pass


def test_each_part_waits_for_room_on_the_link(node: Node) -> None:
    """As publishers do, to whom sessions that go one after the other would leave none."""
    fill(node)
    number = node.nodes["a"].number
    link = Link(node.broker, Stream(Transport()), number)
    node.mesh.linked(number, link, False)
    link.bound(0)
    node.kept.settle()
    flight = link.flight
    for part in range(4):
        link.send(bytes(flight.room + 1))
        node.broker.perform()
        node.kept.settle()
        assert not link.has_place()
        if not part:
            node.hand("a", 5)
        elif part == 1:
            marks(node, 5)
        turns(node)
        channel = node.publisher.channel
        link.hold_back(channel)
        assert channel.withheld
        assert len(said(node, WHOLE, MORE)) == part
        link.taken(flight.written)
        turns(node)
        assert len(said(node, WHOLE, MORE)) == part + 1
        assert not channel.withheld
    link.taken(flight.written)
    turns(node)
    assert sent(node) == list(range(1, COUNT + 1))


class Coming:
    """A session that comes from `a` in parts; what is given of it in the end."""

    def __init__(self, node: Node) -> None:
        self.node = node
        node.hand("b", 5)  # it is elsewhere
        state = node.moves.departures.of["s"].state
        node.says("b", b"done", 5)
        self.record = with_sending(state.record, b"12345678")
        node.moves.arrivals.expect("s", "a", 7)
        self.given: list[SessionState | None] = []
        node.moves.arrivals.wanted("s", 7).addCallback(self.given.append)
        node.says("a", WHOLE, 7, self.record, b"1", b"2")

    def queue(self) -> tuple[bytes, ...]:
        (state,) = self.given
        assert state is not None
        return state.queue


def test_the_parts_are_put_together(node: Node) -> None:
    coming = Coming(node)
    node.says("a", MORE, 7, b"of before", b"x")
    node.says("a", MORE, 7, b"12345678", b"3")
    node.says("b", MORE, 7, b"12345678", b"y")
    node.says("a", MORE, 7, b"12345678", b"4", b"5")
    marks(node, 7)
    assert not coming.given
    node.says("a", TAIL, 7, b"6")
    node.says("a", MORE, 7, b"12345678", b"z")
    assert coming.queue() == (b"1", b"2", b"3", b"4", b"5", b"6")


def test_what_is_sent_again_is_in_place_of_the_parts(node: Node) -> None:
    coming = Coming(node)
    node.says("a", MORE, 7, b"12345678", b"3")
    node.moves.arrivals.find("s", 7).again = True  # type: ignore[union-attr]
    node.says("a", WHOLE, 7, with_sending(coming.record, b"87654321"), b"1")
    node.says("a", MORE, 7, b"12345678", b"3")
    node.says("a", MORE, 7, b"87654321", b"2")
    node.says("a", TAIL, 7)
    marks(node, 7)
    assert coming.queue() == (b"1", b"2")


def test_who_gives_up_its_node_goes_on_with_what_has_come(node: Node) -> None:
    coming = Coming(node)
    node.says("a", MORE, 7, b"12345678", b"3")
    kill(node, "a")
    assert coming.queue() == (b"1", b"2", b"3")
