"""A session between two nodes, one of which is killed: what was acknowledged for it is not lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from mqttd.cluster.etcd.client import Answer, Kv
from mqttd.cluster.etcd.keys import Keys, claimed
from mqttd.cluster.replication.copying import PATIENCE
from mqttd.cluster.sessions.owners import PATIENCE as ASKED
from mqttd.cluster.sessions.owners import Owners
from mqttd.cluster.sessions.transit import (
    BACK,
    DONE,
    LANE_MARKED,
    MARK,
    MARKED,
    TAIL,
    WANT,
    WHOLE,
    sending_of,
    with_sending,
)
from mqttd.cluster.wills.willed import will_of
from mqttd.session.ground.message import Message
from mqttd.storage.durability import OS, Durability
from mqttd.storage.journal import StoreJournal
from mqttd.storage.ledger import Ledger
from mqttd.storage.recovery import read
from mqttd.storage.restore import restore
from mqttd.types import SessionState
from tests.support.memory import MemoryBroker
from tests.unit.cluster.test_remains import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.kept.base.close()


def kill(node: Node, name: str) -> None:
    """It is gone from the tables, and not back at once."""
    node.mesh.leave(node.nodes.pop(name))
    node.moves.left(name)
    clock: Any = node.moves.transit.reactor
    clock.advance(BACK)
    node.broker.perform()
    node.kept.settle()


def marks(node: Node, revision: int, *names: str) -> None:
    """This node, and these, have given their marks."""
    for link in node.links(*names):
        node.moves.departures.marked("s", revision, link)
        node.moves.arrivals.marked("s", revision, link)


def marked(node: Node, name: str, revision: int, sending: bytes) -> None:
    """This one has given its marks, by both lanes."""
    node.says(name, MARKED, revision, sending)
    node.says(name, LANE_MARKED, revision, sending)


def comes_back(node: Node) -> list[SessionState | None]:
    """Claimed by `a`, which is killed; claimed of it by this node, which has it still."""
    node.hand("a", 5)
    node.publish(1)
    arrivals = node.moves.arrivals
    arrivals.expect("s", "a", 6).before = "c"
    given: list[SessionState | None] = []
    arrivals.wanted("s", 6).addCallback(given.append)
    kill(node, "a")
    node.kept.settle()
    return given


def test_what_is_back_is_in_the_store_until_it_is_entered(node: Node) -> None:
    """A turn or more passes until somebody is let in with it."""
    node.publish(1)
    given = comes_back(node)
    assert given
    assert given[0] is not None
    node.publish(1)
    assert node.after_a_crash() == {"s": 3}
    node.broker.registry.keep("s", 6, given[0])
    node.kept.settle()
    assert node.after_a_crash() == {"s": 3}
    assert node.rows()[:2] == [1, 1]


def test_what_is_back_and_goes_on_is_in_the_store_until_it_is_there(node: Node) -> None:
    node.publish(1)
    node.moves.arrivals.expect("s", "a", 6)
    assert node.moves.arrivals.passed("s", "b", 7)
    node.hand("a", 5)
    node.moves.arrivals.find("s", 6).before = "c"  # type: ignore[union-attr]
    kill(node, "a")
    node.publish(1)
    assert node.moves.departures.of["s"].to == "b"
    assert node.after_a_crash() == {"s": 2}
    node.says("b", DONE, 7)
    assert node.rows() == [0, 0, 0]


def test_what_is_back_and_nobody_wants_leaves_nothing(node: Node) -> None:
    node.publish(1)
    comes_back(node)
    clock: Any = node.moves.transit.reactor
    clock.advance(10.0)
    node.broker.perform()
    node.kept.settle()
    assert node.rows() == [0, 0, 0]


def test_a_session_that_does_not_come_is_missed_once(node: Node) -> None:
    """However often its client tries."""
    clock: Any = node.moves.transit.reactor
    owners = Owners(None, Keys("t"), "c", clock, lambda name: True)  # type: ignore[arg-type]
    owners.lease, owners.moves = 1, node.moves
    failed: list[str] = []
    for revision in (6, 7):
        owners.owned["s"] = revision
        node.moves.arrivals.expect("s", "a", revision).lease = owners.lease
        for _ in range(3):
            claim: Any = owners.claim("s", None, True)
            claim.addErrback(lambda failure: failed.append(failure.getErrorMessage()))
            clock.advance(ASKED)
    assert failed == ["its session has not come from node 'a' yet"] * 6
    assert owners.without == 2


def test_it_is_kept_while_it_goes_to_who_has_claimed_it_of_a_dead_node(node: Node) -> None:
    """Given to `a`, which is killed; `b` has claimed it of that meanwhile."""
    owners = Owners(None, Keys("t"), "c", node.moves.transit.reactor, lambda name: name == "b")  # type: ignore[arg-type]
    owners.lease, owners.moves = 1, node.moves
    found = Answer(False, 9, (Kv(owners.keys.own("s"), claimed("b", "a"), 8, 8, 0),))
    many: Any = type("Many", (), {"transaction": lambda *_: succeed(found)})()
    owners.many = many
    node.moves.gone = owners.gone
    node.publish(1)
    node.hand("a", 5)
    node.publish(1)
    kill(node, "a")
    assert node.moves.departures.of["s"].to == "b"
    node.publish(1)
    assert node.after_a_crash() == {"s": 3}
    node.says("b", DONE, 8)
    assert node.rows() == [0, 0, 0]


@pytest.mark.parametrize("left", [True, False])
def test_who_asks_for_what_we_have_claimed_of_it_since_is_answered(node: Node, left: bool) -> None:
    """Given to `a`, claimed of that by `b`, `a` killed and back with nothing: `b` asks us, who have
    claimed it of `b` meanwhile. Each waited for the other."""
    owners = Owners(None, Keys("t"), "c", node.moves.transit.reactor, lambda name: True)  # type: ignore[arg-type]
    owners.moves = node.moves
    if left:
        node.publish(1)
        node.hand("a", 5)
    else:
        node.hand("a", 5)
        node.says("a", DONE, 5)
    node.said.clear()
    node.fields.clear()
    owners.owned["s"] = 9
    owners.wanted("s", "b", 7)
    told = node.fields[node.said.index(("b", WHOLE, 7))]
    assert bool(told) is left
    assert ("s" in node.moves.departures.of) is left
    if left:
        assert node.moves.departures.of["s"].to == "b"
    assert owners.owned["s"] == 9


def test_a_will_that_goes_along_is_in_the_store_until_it_is_there(node: Node) -> None:
    """Of a client that is away; what is begun anew with it sends it along, too."""
    owners = Owners(None, Keys("t"), "c", node.moves.transit.reactor, lambda name: True)  # type: ignore[arg-type]
    owners.moves, owners.sessions = node.moves, node.broker.sessions
    owners.hand_over = node.broker.registry.hand_over
    session = node.kept.node.session("s")
    assert session is not None
    session.set_will(Message(0, "w", b"gone", 1, False, None, "s", None, 0), 600)
    state = owners._hand_over("s", 5)
    assert state is not None
    node.moves.hand("s", "a", 5, state)
    node.broker.perform()
    node.kept.settle()
    wills = "SELECT client_id, delay FROM will"
    assert node.kept.base.execute(wills).fetchall() == [("s", 600)]
    again = MemoryBroker()
    again.broker.journal = StoreJournal(
        Ledger(), again.broker, lambda group: None, lambda: 1000, 0, Durability(OS, {})
    )
    contents = read(node.kept.base, Ledger())
    restore(again.broker, again.broker.journal, node.kept.base, contents)
    assert will_of(again.broker.sessions["s"]) is not None
    node.says("a", DONE, 5)
    assert node.rows() == [0, 0, 0]
    assert node.kept.base.execute(wills).fetchall() == []


def test_what_came_behind_the_marks_is_not_lost_with_the_node_it_goes_to(node: Node) -> None:
    """Kept by `a`, too, which is killed before it had TAIL; the mark of `b` has not come."""
    node.publish(1)
    node.hand("a", 5)
    node.publish(1)
    marks(node, 5, "a")
    node.publish(2)
    assert node.after_a_crash() == {"s": 4}
    kill(node, "a")
    node.publish(1)
    assert node.after_a_crash() == {"s": 5}
    assert len(node.moves.departures.recall("s").queue) == 5


def test_a_node_that_is_back_is_asked_for_its_mark_though_we_have_written_no_filter(
    node: Node,
) -> None:
    """It was taken for one that had not been asked of anybody, and the session waited in vain."""
    arriving = Arriving(node)
    assert arriving.arrivals.at() == 0
    kill(node, "b")
    node.said.clear()
    node.nodes["b"] = node.mesh.join("b", 2)
    node.moves.joined(node.nodes["b"])
    assert ("b", MARK, 7) in node.said


@pytest.mark.parametrize("back", [True, False])
def test_a_node_that_is_killed_and_back_at_once_gives_its_marks_first(
    node: Node, back: bool
) -> None:
    """What its store had for others, QoS 2, is before them: it was missed by who moved then."""
    node.hand("a", 5)
    marks(node, 5, "a")
    leaves = node.moves.departures.of["s"]
    clock: Any = node.moves.transit.reactor
    node.mesh.leave(node.nodes.pop("b"))
    node.moves.left("b")
    assert not leaves.whole
    if back:
        clock.advance(BACK / 2)
        number = node.mesh.join("b", 2).number
        clock.advance(BACK)
        assert not leaves.whole
        node.mesh.choice.link = -number
        node.publish(1)
        node.mesh.choice.link = 0
        node.moves.departures.marked("s", 5, number, leaves.sending)
        assert not leaves.whole
        node.moves.departures.marked("s", 5, -number, leaves.sending)
    else:
        clock.advance(BACK)
    assert leaves.whole
    assert len(leaves.state.queue) == back


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("ends", ["handed_out", "given_up"])
def test_17_what_a_node_had_for_others_is_awaited_while_it_is_taken_over(
    node: Node, ends: str, back: bool
) -> None:
    """Its heir hands it out before that is done; a session that moves then missed it, also where
    that node is back meanwhile."""
    node.hand("a", 5)
    marks(node, 5, "a")
    leaves = node.moves.departures.of["s"]
    clock: Any = node.moves.transit.reactor
    node.moves.arrivals.is_left = lambda name: name == "b"
    node.mesh.leave(node.nodes.pop("b"))
    node.moves.left("b")
    clock.advance(2 * BACK)
    assert not leaves.whole
    if back:
        node.moves.transit.is_taken_over = lambda name: name == "b"
        number = node.mesh.join("b", 2).number
        for link in (number, -number):
            node.moves.departures.marked("s", 5, link, leaves.sending)
        assert not leaves.whole
    node.mesh.choice.link = -(1 << 40)
    node.publish(1)
    node.mesh.choice.link = 0
    getattr(node.moves, ends)("b")
    assert leaves.whole
    assert len(leaves.state.queue) == 1


def test_a_session_waits_for_the_mark_that_waits_for_servers(node: Node) -> None:
    """What the old node has published, QoS 2, waits in its lane for its store, its mark behind it,
    and is in TAIL by then: five seconds later it came twice."""
    sending = b"\1" * 8
    arriving = Arriving(node, sending)
    clock: Any = node.moves.transit.reactor
    node.says("a", MARKED, 7, sending)
    marked(node, "b", 7, sending)
    node.says("a", TAIL, 7, *arriving.queue(2)[1:])
    clock.advance(PATIENCE + 1.0)
    assert not arriving.given
    node.mesh.choice.link = -node.nodes["a"].number
    node.publish(1)
    node.mesh.choice.link = 0
    node.says("a", LANE_MARKED, 7, sending)
    assert arriving.waiting() == 2


def test_what_came_before_the_marks_alone_is_in_the_tail(node: Node) -> None:
    node.hand("a", 5)
    node.publish(1)
    tails: list[tuple[bytes, ...]] = []
    say = node.moves.transit.say

    def heard(to: Any, what: bytes, client_id: str, revision: int, *fields: bytes) -> None:
        if what == TAIL:
            tails.append(fields)
        say(to, what, client_id, revision, *fields)

    node.moves.transit.say = heard  # type: ignore[method-assign]
    marks(node, 5, "a")
    node.publish(1)
    marks(node, 5, "b")
    assert [len(each) for each in tails] == [1]
    node.publish(1)
    kill(node, "a")
    assert len(node.moves.departures.recall("s").queue) == 3


class Arriving:
    """A session that `a` has, and this node has claimed; `a` is awaited when it is gone."""

    def __init__(
        self, node: Node, sending: bytes = b"", before: Callable[[], object] = lambda: None
    ) -> None:
        self.node = node
        self.arrivals = node.moves.arrivals
        self.record = self._record()
        before()
        if sending:
            self.record = with_sending(self.record, sending)
        comes = self.arrivals.expect("s", "a", 7)
        comes.lasts = True
        self.arrivals.home_of = lambda name: 1
        self.given: list[SessionState | None] = []
        self.arrivals.wanted("s", 7).addCallback(self.given.append)
        node.says("a", WHOLE, 7, self.record, *self.queue(1))

    def _record(self) -> bytes:
        self.node.hand("a", 5)
        record = self.node.moves.departures.of["s"].state.record
        self.node.says("a", DONE, 5)
        return record

    def queue(self, count: int) -> list[bytes]:
        """Messages as they come with a session."""
        return [b"\x32\x07\x00\x01t\x00\x01\x00%d" % n for n in range(count)]

    def back(self, name: str = "a") -> None:
        """A node is there again."""
        self.node.nodes[name] = self.node.mesh.join(name, 2)
        self.node.moves.joined(self.node.nodes[name])

    def waiting(self) -> int:
        """How many messages the session that is given has."""
        assert self.given[0] is not None
        before = len(self.given[0].queue)
        self.node.broker.registry.keep("s", 7, self.given[0])
        self.node.broker.perform()
        self.node.kept.settle()
        session = self.node.kept.node.session("s")
        assert session is not None
        assert session.mqueue is not None
        assert len(session.mqueue) >= before
        return len(session.mqueue)


def test_a_session_whose_node_is_killed_before_the_tail_begins_anew_with_what_that_has(
    node: Node,
) -> None:
    """What this node has caught meanwhile is kept for that one, too, and comes once."""
    arriving = Arriving(node)
    marks(node, 7, "b")
    node.publish(2)
    kill(node, "a")
    assert not arriving.given
    assert arriving.arrivals.awaited_of("a") == [("s", 7)]
    node.said.clear()
    arriving.back()
    assert ("a", WANT, 7) in node.said
    node.says("a", WHOLE, 7, arriving.record, *arriving.queue(3))
    node.says("a", TAIL, 7)
    node.publish(1)
    arriving.arrivals.marked("s", 7, node.nodes["b"].number)
    arriving.arrivals.marked("s", 7, -node.nodes["b"].number)
    assert not arriving.given
    arriving.arrivals.marked("s", 7, node.nodes["a"].number)
    assert not arriving.given
    arriving.arrivals.marked("s", 7, -node.nodes["a"].number)
    node.publish(1)
    assert arriving.given
    # Three, and what was published here behind our own mark.
    assert arriving.waiting() == 5


def test_a_record_says_which_sending_it_is_and_is_the_same_else() -> None:
    record = json.dumps({"a": ',"sending":"' + "0" * 16 + '"}'}).encode()
    assert sending_of(record) == b""
    first = with_sending(record, b"12345678")
    assert sending_of(first) == b"12345678"
    second = with_sending(first, b"87654321")
    assert (sending_of(second), len(second)) == (b"87654321", len(first))
    assert json.loads(second) == {**json.loads(record), "sending": b"87654321".hex()}


def test_a_mark_of_a_sending_before_does_not_count(node: Node) -> None:
    """It says where a node stood for who is dead; twice, if it counted."""
    arriving = Arriving(node, b"11111111")
    kill(node, "a")
    arriving.back()
    known: Deferred[None] = Deferred()
    arriving.arrivals.settled = lambda filters: known
    node.says("a", WHOLE, 7, with_sending(arriving.record, b"22222222"))
    node.says("a", TAIL, 7)
    marked(node, "b", 7, b"11111111")
    node.mesh.unsettled.clear()
    known.callback(None)
    marked(node, "b", 7, b"11111111")
    marked(node, "a", 7, b"22222222")
    assert not arriving.given
    marked(node, "b", 7, b"22222222")
    assert arriving.given


def test_nor_does_it_for_who_sends_it_again(node: Node) -> None:
    """`a` was gone for a moment, and so was what it had."""
    node.hand("a", 5)
    leaves = node.moves.departures.of["s"]
    first = leaves.sending
    kill(node, "a")
    node.nodes["a"] = node.mesh.join("a", 2)
    node.moves.joined(node.nodes["a"])
    assert first not in (b"", leaves.sending)
    for name in "ab":
        marked(node, name, 5, first)
    assert leaves.catcher is not None
    assert leaves.catcher.marks.settled == set()
    marked(node, "b", 5, leaves.sending)
    assert leaves.catcher.marks.settled == {node.nodes["b"].number, -node.nodes["b"].number}


def test_a_mark_says_of_which_sending_it_is(node: Node) -> None:
    node.mesh.applied = 1
    node.says("b", MARK, 9, (2).to_bytes(8, "big") + b"11111111", b"a", b"b")
    assert node.said == []
    node.mesh.applied = 2
    node.moves.seen()
    assert node.said == [("a", MARKED, 9), ("b", MARKED, 9)]
    assert node.fields[-1] == (b"11111111",)


def test_who_asks_again_for_what_is_sent_to_him_is_sent_all_of_it_again(node: Node) -> None:
    """He has lost sight of us, and of what was on its way; all of it comes in place of that."""
    node.publish(1)
    node.hand("a", 5)
    node.publish(1)
    node.moves.hand("s", "a", 5, None)
    node.broker.perform()
    assert node.said[-1] == ("a", WHOLE, 5)
    assert len(node.fields[-1]) == 3
    assert node.after_a_crash() == {"s": 2}
    node.says("a", DONE, 5)
    assert node.rows() == [0, 0, 0]


def test_what_is_sent_again_is_in_place_of_what_was_sent(node: Node) -> None:
    arriving = Arriving(node, b"11111111")
    node.says("a", WHOLE, 7, with_sending(arriving.record, b"22222222"), *arriving.queue(3))
    node.says("b", WHOLE, 7, arriving.record)
    node.says("a", TAIL, 7)
    for name in "ab":
        marked(node, name, 7, b"22222222")
    assert arriving.given
    assert arriving.waiting() == 3


@pytest.mark.parametrize("first", [True, False])
def test_an_older_copy_of_a_node_that_has_begun_anew_does_not_count(
    node: Node, first: bool
) -> None:
    """`b` had it of this node, which has not heard that; this one claims it of `a` meanwhile."""
    arriving = Arriving(node)
    node.moves.arrivals.of.clear()
    comes = node.moves.arrivals.expect("s", "a", 8)
    node.moves.arrivals.wanted("s", 8).addCallback(arriving.given.append)
    sent = [("b", arriving.queue(1)), ("a", arriving.queue(3))]
    for name, queue in sent if first else reversed(sent):
        node.says(name, WHOLE, 8, arriving.record, *queue)
    node.says("b", TAIL, 8, *arriving.queue(2))
    node.says("a", TAIL, 8)
    for link in node.links()[1:]:
        node.moves.arrivals.marked("s", 8, link)
    assert ("b", DONE, 8) in node.said
    assert ("a", DONE, 8) not in node.said
    assert comes.origin == "a"
    assert arriving.waiting() == 3
    assert node.said[-1] == ("a", DONE, 8)


@pytest.mark.parametrize("how", ["given up", "nothing"])
def test_it_goes_on_with_what_has_come_when_its_node_has_nothing(node: Node, how: str) -> None:
    arriving = Arriving(node)
    kill(node, "a")
    node.publish(1)
    if how == "nothing":
        arriving.back()
        node.says("a", WHOLE, 7)
    else:
        arriving.arrivals.home_of = lambda name: -1
        node.moves.given_up("a")
    assert arriving.given
    assert arriving.waiting() == 2


def test_what_its_node_had_sent_whole_does_not_wait_for_it(node: Node) -> None:
    """But for the marks of the others: what they sent before may be in the tail."""
    arriving = Arriving(node)
    marks(node, 7, "a")
    node.says("a", TAIL, 7, *arriving.queue(1))
    kill(node, "a")
    assert not arriving.given
    marked(node, "b", 7, b"")
    assert arriving.given
    assert arriving.waiting() == 2


def test_the_heir_of_its_node_gives_it_anew(node: Node) -> None:
    """What this node finds itself is in place of what had come."""
    arriving = Arriving(node)
    arriving.arrivals.is_left = lambda name: name == "a"
    kill(node, "a")
    state = SessionState(arriving.record, tuple(arriving.queue(2)), 7)
    catcher = node.moves.transit.catch("s", state, True)
    assert catcher is not None
    catcher.marks.add(0)
    node.publish(1)
    arriving.arrivals.inherited("s", 7, state, catcher)
    assert arriving.given
    assert arriving.waiting() == 3
    assert len(read(node.kept.base, node.kept.ledger).records) <= 1
