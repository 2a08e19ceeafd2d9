"""A session that leaves stays in the store, with what is caught for it, until it has arrived."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import succeed
from twisted.internet.task import Clock

from mqttd.cluster.leaving import Leaving
from mqttd.cluster.links.nodes import NodeMesh
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.transit import DONE, TAIL, WHOLE
from mqttd.mesh.frames import packed
from mqttd.storage.durability import OS, Durability
from mqttd.storage.journal import StoreJournal
from mqttd.storage.ledger import Ledger
from mqttd.storage.recovery import read
from mqttd.storage.restore import restore
from tests.support.account import audit
from tests.support.memory import MemoryBroker
from tests.unit.storage.test_journal import Kept, make, publish


class Node:
    """The node `c` with a store, and `a` and `b`, which are there."""

    def __init__(self, path: Path) -> None:
        self.kept: Kept = make(path)
        self.broker = self.kept.node.broker
        self.kept.subscriber("s", "t", 1, kept=True).drop()
        self.publisher = self.kept.client("publisher", kept=False)
        self.mesh = NodeMesh(self.broker, lambda _: None, lambda _: None, lambda *_: None)
        self.mesh.applied = 1 << 40  # etcd has said all
        self.moves = Moves(self.broker, self.mesh, Clock(), "c", self._settled, lambda: 0)
        self.nodes = {name: self.mesh.join(name, 1) for name in "ab"}
        self.sent = 0
        #: To whom, what, of which revision.
        self.said: list[tuple[str, bytes, int]] = []
        self.fields: list[tuple[bytes, ...]] = []
        say = self.moves.transit.say

        def heard(to: Any, what: bytes, client_id: str, revision: int, *fields: bytes) -> None:
            self.said.append((to.name, what, revision))
            self.fields.append(fields)
            say(to, what, client_id, revision, *fields)

        self.moves.transit.say = heard  # type: ignore[method-assign]

    def links(self, *names: str) -> list[int]:
        """Where marks come from: this node, and both lanes of these, or of all."""
        numbers = [self.nodes[name].number for name in names or self.nodes]
        return [0, *numbers, *(-number for number in numbers)]

    def _settled(self, filters: list[str]) -> Any:
        self.mesh.unsettled.clear()
        return succeed(None)

    def publish(self, count: int) -> None:
        """So many messages for it, acknowledged."""
        for _ in range(count):
            self.sent += 1
            publish(self.publisher, "t", 1, self.sent)
        self.kept.settle()
        assert len(self.publisher.take()) == count

    def hand(self, by: str, revision: int) -> None:
        """A node has claimed it."""
        state = self.broker.registry.hand_over("s", revision, self.moves.leaves)
        self.moves.hand("s", by, revision, state)
        self.broker.perform()
        self.kept.settle()

    def says(self, node: str, what: bytes, revision: int, *fields: bytes) -> None:
        """What a node says of it."""
        body = packed([what, b"s", revision.to_bytes(8, "big"), *fields])
        self.moves.told(self.nodes[node], body)
        self.broker.perform()
        self.kept.settle()

    def after_a_crash(self) -> dict[str, int]:
        """The session of a broker that begins with this store, and how many messages wait."""
        node = MemoryBroker()
        node.broker.journal = StoreJournal(
            Ledger(), node.broker, lambda group: None, lambda: 1000, 0, Durability(OS, {})
        )
        contents = read(self.kept.base, Ledger())
        restored = restore(node.broker, node.broker.journal, self.kept.base, contents)
        assert not restored.unreadable
        (client_id,) = node.broker.sessions
        return {client_id: restored.messages}

    def rows(self) -> list[int]:
        """Of sessions, of subscriptions and of messages in the store."""
        tables = ("session", "subscription")
        found = [self.kept.base.execute(f"SELECT count(*) FROM {each}") for each in tables]
        records = sum(map(len, read(self.kept.base, Ledger()).records.values()))
        return [*(each.fetchone()[0] for each in found), records]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.kept.base.close()


def test_what_leaves_and_what_is_caught_for_it_outlasts_a_crash(node: Node) -> None:
    node.publish(2)
    node.hand("a", 5)
    assert node.kept.node.session("s") is None
    node.publish(3)
    assert node.after_a_crash() == {"s": 5}
    node.says("a", DONE, 4)
    assert node.after_a_crash() == {"s": 5}


def test_nothing_of_it_is_left_when_the_other_node_has_it(node: Node) -> None:
    node.publish(2)
    node.hand("a", 5)
    node.publish(3)
    node.says("a", DONE, 5)
    assert node.rows() == [0, 0, 0]
    audit(node.broker, [node.publisher.channel])


def test_it_is_kept_while_it_goes_to_another_than_at_first(node: Node) -> None:
    node.publish(1)
    node.hand("a", 5)
    node.publish(1)
    node.hand("b", 6)
    node.publish(1)
    node.says("a", DONE, 5)
    assert node.after_a_crash() == {"s": 3}
    node.says("b", DONE, 6)
    assert node.rows() == [0, 0, 0]


def test_what_is_caught_after_the_rest_was_sent_is_kept_too(node: Node) -> None:
    """A catcher follows the first one when that has all; both are of one session."""
    node.publish(1)
    node.hand("a", 5)
    node.publish(1)
    for link in node.links():
        node.moves.departures.marked("s", 5, link)
    assert node.moves.departures.of["s"].whole
    node.publish(1)
    assert node.after_a_crash() == {"s": 3}
    node.mesh.leave(node.nodes["a"])
    node.moves.left("a")
    node.publish(1)
    assert node.after_a_crash() == {"s": 4}
    node.moves.departures.done("s", 5)
    node.broker.perform()
    node.kept.settle()
    assert node.rows() == [0, 0, 0]


def test_when_it_is_here_again_the_store_has_it_once(node: Node) -> None:
    node.publish(1)
    node.hand("a", 5)
    node.publish(1)
    state = node.moves.departures.of["s"].state
    node.broker.registry.keep("s", 6, state)
    node.kept.settle()
    assert node.rows()[:2] == [1, 1]
    assert "s" not in node.moves.departures.of


def test_what_is_not_kept_leaves_nothing_behind(node: Node) -> None:
    """Who asks for no owner in the journal has none, before and after."""
    live = node.kept.client("s2", kept=False)
    state = node.broker.registry.hand_over("s2", 5, node.moves.leaves)
    node.moves.hand("s2", "a", 5, state)
    assert live.closed
    node.kept.settle()
    assert node.after_a_crash() == {"s": 0}


def test_who_had_it_keeps_it_until_it_is_where_it_goes_on_to(node: Node) -> None:
    """Claimed by `b` before it was entered here: killed now, this node has no copy of it."""
    node.hand("a", 5)
    state = node.moves.departures.of["s"].state
    node.says("a", DONE, 5)
    arrivals = node.moves.arrivals
    arrivals.expect("s", "a", 7)
    assert arrivals.passed("s", "b", 8)
    node.says("a", WHOLE, 7, state.record)
    node.says("a", TAIL, 7)
    for link in node.links():
        arrivals.marked("s", 7, link)
    assert node.moves.departures.of["s"].to == "b"
    assert ("a", DONE, 7) not in node.said
    node.says("b", DONE, 8)
    assert node.said[-1] == ("a", DONE, 7)
    assert node.said.count(("a", DONE, 7)) == 1


def test_a_node_that_ends_with_what_was_on_its_way_is_awaited(node: Node) -> None:
    """Its store has that: its home was given up, and who had claimed it had a new session."""
    node.publisher.drop()
    cluster: Any = SimpleNamespace(broker=node.broker, moves=node.moves)
    leaves = Leaving(cluster)
    assert leaves.returns()
    node.hand("a", 5)
    assert not node.broker.sessions
    assert leaves.returns()
    node.says("a", DONE, 5)
    assert not leaves.returns()
