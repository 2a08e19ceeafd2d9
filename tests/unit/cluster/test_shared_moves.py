"""A session that moves says which of its messages came through a shared group. 4.8.2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.cluster.sessions.transit import MORE, TAIL, WHOLE, with_sending
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.storage.fetching import read as payloads
from mqttd.types import SessionState
from tests.support.memory import MemoryBroker
from tests.unit.cluster.test_on_its_way import marks
from tests.unit.cluster.test_remains import Node

GROUP = "$share/g/for/+"
#: Messages through the group; as many come beside them, half of which expire.
COUNT = 1_000


@pytest.fixture(params=["memory", "disk"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    made = Node(tmp_path)
    made.broker.settings.mqueue_max_length = 0
    made.kept.journal.read = lambda pieces: payloads(made.kept.base, pieces)
    made.broker.settings.mqueue_in_memory = 1000 if request.param == "disk" else 1 << 30
    for each in ("$share/h/other/+", GROUP):
        made.broker.pubsub.put_back(made.broker.sessions["s"], each, 1, 0)
    yield made
    made.kept.base.close()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "there").mkdir()
    made = Node(tmp_path / "there")
    made.broker.settings.mqueue_max_length = 0
    made.hand("b", 5)  # the session is elsewhere
    made.says("b", b"done", 5)
    yield made
    made.kept.base.close()


def fill(node: Node) -> None:
    for n in range(COUNT):
        node.broker.publish_text("for/us", b"%d" % n, 1)
        node.publisher.send(
            Publish("t", b"own", 1, packet_id=n + 1,
                    properties={prop.MESSAGE_EXPIRY_INTERVAL: 5} if n % 2 else None)
        )  # fmt: skip
        node.kept.settle()
    node.kept.node.run_soon()
    node.kept.settle()


def leaves(node: Node) -> list[tuple[bytes, tuple[bytes, ...]]]:
    """What is said of the session as it leaves, with one message caught meanwhile."""
    node.hand("a", 6)
    node.broker.publish_text("for/us", b"caught", 1)
    marks(node, 6)
    while len(node.broker.turns):
        node.broker.turns.turn()
        node.kept.settle()
    said = zip(node.said, node.fields, strict=True)
    return [(what, fields) for (_, what, _), fields in said if what in (WHOLE, MORE, TAIL)]


def other_of(node: MemoryBroker) -> list[bytes]:
    """What another member of the group gets as the session ends."""
    other = node.connect("other", 5)
    other.send(Subscribe(1, [Subscription(GROUP, 1)]))
    node.broker.registry.end_session("s", 0x98, "it is over")
    while len(node.broker.turns):
        node.broker.turns.turn()
    node.run_soon()
    found = other.published()
    assert {(each.topic, each.qos, each.dup) for each in found} == {("for/us", 1, False)}
    return [each.payload for each in found]


def test_it_goes_to_another_member_where_the_session_is_then(node: Node, there: Node) -> None:
    """Read in parts, with what has expired between, what was caught here, and what was there."""
    fill(node)
    node.broker.now += 10_000
    there.broker.settings.max_inflight = 2 * COUNT
    there.moves.arrivals.expect("s", "a", 6)
    given: list[SessionState | None] = []
    there.moves.arrivals.wanted("s", 6).addCallback(given.append)
    said = leaves(node)
    assert [what for what, _ in said].count(MORE) >= 2
    for what, fields in said:
        if what == TAIL:
            marks(there, 6)
            there.broker.publish_text("for/us", b"there", 1)
        there.says("a", what, 6, *fields)
    (state,) = given
    assert state is not None
    assert len(state.queue) == COUNT + COUNT // 2 + 1
    there.broker.registry.keep("s", 6, state)
    wanted = [b"%d" % n for n in range(COUNT)]
    assert other_of(there.kept.node) == [*wanted, b"caught", b"there"]


def test_what_does_not_name_a_group_of_the_record_is_a_message_as_any(there: Node) -> None:
    """As of a node of before, which says nothing."""
    there.moves.arrivals.expect("s", "a", 6)
    given: list[SessionState | None] = []
    there.moves.arrivals.wanted("s", 6).addCallback(given.append)
    node = MemoryBroker()
    client = node.connect("s", 5, properties={prop.SESSION_EXPIRY_INTERVAL: 600})
    client.send(Subscribe(1, [Subscription(GROUP, 1)]))
    client.drop()
    for n in range(3):
        node.broker.publish_text("for/us", b"%d" % n, 1)
    state = node.broker.registry.hand_over("s", 2)
    assert state is not None
    first, second, third = state.queue
    assert [wire[0] for wire in state.queue] == [0x3A] * 3
    plain = b"\x32" + second[1:]
    unknown = third.replace(b"us\x00\x01", b"us\x00\x02")
    assert unknown != third
    record = with_sending(state.record, b"12345678")
    there.says("a", WHOLE, 6, record, first, plain, unknown)
    marks(there, 6)
    there.says("a", TAIL, 6)
    assert given[0] is not None
    there.broker.registry.keep("s", 6, given[0])
    assert [each.wire[0] for each in there.broker.sessions["s"].queued()] == [0x32] * 3
    assert other_of(there.kept.node) == [b"0"]
