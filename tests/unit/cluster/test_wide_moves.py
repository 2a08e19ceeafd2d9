"""A session that moves while messages to thousands are under way, in many turns, has each once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.broker.publish.local import subscribe
from mqttd.cluster.sessions.transit import MARKED, TAIL, WHOLE
from mqttd.session.routes.route import WIDE
from tests.unit.cluster.test_on_its_way import Arriving, marks
from tests.unit.cluster.test_remains import Node
from tests.unit.storage.test_journal import publish

#: More than a slice, and with the others more than a step.
OTHERS = 9000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.kept.base.close()


def crowd(node: Node) -> None:
    """Receivers before the session, if that is here: it is in the last slice."""
    for n in range(OTHERS):
        subscribe(node.broker, f"other-{n}", "t", lambda message: None)
    session = node.kept.node.session("s")
    if session is not None:
        assert node.broker.router.unsubscribe(session, "t")
        node.broker.router.subscribe(session, "t", 1)
    assert node.broker.router.of("t").gear & WIDE


def begin(node: Node) -> None:
    """A message is under way; nobody is answered yet."""
    node.sent += 1
    publish(node.publisher, "t", 1, node.sent)
    assert node.broker.fans.lines
    assert node.publisher.take() == []


def end(node: Node, count: int = 1) -> None:
    """All that was under way is with its receivers, and acknowledged."""
    node.kept.node.run_soon()
    node.kept.settle()
    assert not node.broker.fans.lines
    assert not node.broker.fans.instead
    assert len(node.publisher.take()) == count


def waiting(node: Node) -> int:
    """How many messages the session has, which is here."""
    session = node.kept.node.session("s")
    assert session is not None
    assert session.mqueue is not None
    return len(session.mqueue)


def tails(node: Node) -> list[int]:
    """How many messages each TAIL had."""
    return [
        len(fields)
        for (_, what, _), fields in zip(node.said, node.fields, strict=True)
        if what == TAIL
    ]


def test_what_is_under_way_goes_along(node: Node) -> None:
    crowd(node)
    begin(node)
    node.hand("a", 5)
    marks(node, 5)
    assert tails(node) == []
    end(node)
    assert tails(node) == [1]


def test_what_begins_behind_the_mark_is_for_the_other_node(node: Node) -> None:
    crowd(node)
    begin(node)
    node.hand("a", 5)
    marks(node, 5)
    begin(node)
    end(node, 2)
    assert tails(node) == [1]


def test_what_has_come_by_a_link_is_before_the_mark_that_follows(node: Node) -> None:
    crowd(node)
    begin(node)
    (fan,) = node.broker.fans.lines["publisher"]
    fan.link = node.nodes["b"].number
    node.hand("a", 5)
    marks(node, 5)
    end(node)
    assert tails(node) == [1]


def test_it_is_for_whom_it_goes_to_in_the_end(node: Node) -> None:
    """Claimed by another node meanwhile; and here again, after all."""
    crowd(node)
    begin(node)
    node.hand("a", 5)
    node.hand("b", 6)
    marks(node, 6)
    end(node)
    assert tails(node) == [1]
    begin(node)
    leaves = node.moves.departures.of["s"]
    state = leaves.state
    node.broker.registry.keep("s", 7, state)
    end(node)
    assert waiting(node) == 2


def test_no_mark_is_given_while_what_does_not_know_the_filters_is_under_way(node: Node) -> None:
    crowd(node)
    begin(node)
    known = bytes(8)
    node.moves._asked.append((0, "s", 7, "a", "b", known))
    node.moves.seen()
    assert not [what for _, what, _ in node.said if what == MARKED]
    end(node)
    assert [to for to, what, _ in node.said if what == MARKED] == ["a", "b"]


def test_who_comes_has_what_began_behind_the_mark_and_nothing_else(node: Node) -> None:
    """Entered while it is under way: the session has it from the one that caught for it."""
    crowd(node)
    other = node.kept.client("other", kept=False)
    arriving = Arriving(node, before=lambda: begin(node))
    publish(other, "t", 1, 1)  # our mark waits for the first, and is behind this
    assert len(node.broker.fans.lines) == 2
    node.says("a", TAIL, 7)
    marks(node, 7, "b")
    assert not arriving.given
    end(node)
    marks(node, 7, "a")
    assert arriving.given
    begin(node)
    assert arriving.waiting() == 1
    end(node)
    assert waiting(node) == 2


def test_nothing_comes_to_who_begins_afresh(node: Node) -> None:
    """Its end is no move."""
    crowd(node)
    begin(node)
    client = node.kept.node.connect("s", 5)
    end(node)
    client.take()
    assert client.session.mqueue is None
    assert [what for _, what, _ in node.said if what == WHOLE] == []


def test_what_was_under_way_has_a_packet_id_where_its_client_is_back(node: Node) -> None:
    """It went out as a PUBLISH of QoS 1 or 2 with packet id 0 (MQTT-2.2.1-4)."""
    crowd(node)
    begin(node)
    gone = node.kept.node.session("s")
    assert gone is not None
    back = node.kept.client("back", kept=False)
    node.broker.fans.replace(gone, back.session)
    node.broker.registry.hand_over("s", 5)
    end(node)
    (packet,) = back.published()
    assert packet.qos == 1 and packet.packet_id
