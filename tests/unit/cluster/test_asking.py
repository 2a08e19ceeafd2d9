"""What one node asks another, as frames of a link in memory: pieces, limits, time, ends."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqttd.cluster.admin.asking import HELD, LONGEST, MOST, PIECE, ROOM, TIME, Asking, Unanswered
from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.mesh.frames import ANSWER, ASK, numbered, split
from mqttd.mesh.link import Link
from tests.support.memory import MemoryBroker


class Side:
    """A node and the other as it sees it."""

    def __init__(self, clock: Clock, name: str, other: str) -> None:
        self.memory = MemoryBroker()
        self.mesh = NodeMesh(
            self.memory.broker, lambda full_filter: None, lambda taken, last: None,
            lambda node, kind, body: self.asking.told(node, kind, body),
        )  # fmt: skip
        self.asking = Asking(self.mesh, clock)
        self.clock = clock
        self.other: Node = self.mesh.join(other, 1)
        self.link()

    def link(self) -> None:
        edge = self.memory.connect(f"link-{self.clock.seconds()}").channel.edge
        self.other.link = Link(self.memory.broker, edge, self.other.number)

    def sent(self) -> list[tuple[int, bytes]]:
        """The frames that were put to the link since the last call, which has room again."""
        link = self.other.link
        assert link is not None
        data, link.out, link.out_bytes = b"".join(link.out or []), None, 0
        found = []
        at = 0
        while at < len(data):
            body, end = split(data, at)
            found.append((data[at], data[body:end]))
            at = end
        return found

    def take(self, frames: list[tuple[int, bytes]]) -> None:
        link = self.other.link
        assert link is not None
        frames_of = self.mesh.frames(self.other)
        for kind, body in frames:
            frames_of.control(link, kind, body)

    def part(self) -> None:
        link = self.other.link
        assert link is not None
        self.mesh.unlinked(link)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def a(clock: Clock) -> Side:
    return Side(clock, "a", "b")


@pytest.fixture
def b(clock: Clock) -> Side:
    return Side(clock, "b", "a")


def heard(waiting: Deferred[bytes]) -> list[bytes | str]:
    """What has come of a question so far."""
    found: list[bytes | str] = []

    def failed(failure: object) -> None:
        error = getattr(failure, "value", None)
        assert isinstance(error, Unanswered)
        found.append(str(error))

    waiting.addCallbacks(found.append, failed)
    return found


def test_an_answer_comes_in_pieces_while_the_link_has_room(clock: Clock, a: Side, b: Side) -> None:
    text = bytes(range(256)) * (5 * PIECE // 256) + b"end"
    asked: list[tuple[bytes, str]] = []
    b.asking.serve = lambda question, by: asked.append((question, by)) or succeed(text)
    found = heard(a.asking.ask(a.other, b"what?"))
    b.take(a.sent())
    assert asked == [(b"what?", "a")]
    b.other.link.out_bytes += ROOM + 1 - b.other.link.out_bytes  # type: ignore[union-attr]
    clock.advance(0.1)
    first = b.sent()
    assert [len(body) for _, body in first] == [8 + 1 + PIECE]
    a.take(first)
    assert not found and a.asking.held() == PIECE and b.asking.held() == len(text)
    for _ in range(5):
        clock.advance(0.1)
        frames = b.sent()
        assert len(frames) <= 1 + ROOM // PIECE
        a.take(frames)
    assert found == [text]
    assert a.asking.held() == b.asking.held() == 0 and not clock.getDelayedCalls()
    assert a.asking.unanswered == 0


def test_who_does_not_answer_is_waited_for_so_long(clock: Clock, a: Side, b: Side) -> None:
    later: Deferred[bytes] = Deferred()
    b.asking.serve = lambda question, by: later
    found = heard(a.asking.ask(a.other, b"x"))
    b.take(a.sent())
    clock.advance(TIME - 0.1)
    assert not found
    clock.advance(0.2)
    assert found == ["it has not answered in 5 s"]
    assert a.asking.unanswered == 1
    assert a.memory.events[-1][0] == "node has not answered"
    later.callback(b"late")
    assert not b.sent() and b.asking.held() == 0  # nobody waits for it
    a.take([(ANSWER, (1).to_bytes(8, "big") + b"\1late")])
    assert len(found) == 1


def test_the_end_of_the_link_is_the_end_of_what_is_asked(clock: Clock, a: Side, b: Side) -> None:
    later: Deferred[bytes] = Deferred()
    b.asking.serve = lambda question, by: later
    found = heard(a.asking.ask(a.other, b"x"))
    b.take(a.sent())
    for side in (a, b):
        side.part()
    assert found == ["the link to it is gone"]
    assert heard(a.asking.ask(a.other, b"x")) == ["there is no link to it"]
    clock.advance(0.5)
    for side in (a, b):
        side.link()
    later.callback(b"old")
    clock.advance(1.0)
    assert not b.sent() and b.asking.held() == 0
    b.asking.serve = lambda question, by: succeed(b"new")
    again = heard(a.asking.ask(a.other, b"x"))
    b.take(a.sent())
    a.take(b.sent())
    assert again == [b"new"]


def test_so_many_questions_are_under_way_and_no_more(a: Side, b: Side) -> None:
    waiting: list[Deferred[bytes]] = []

    def serve(question: bytes, by: str) -> Deferred[bytes]:
        waiting.append(Deferred())
        return waiting[-1]

    b.asking.serve = serve
    found = [heard(a.asking.ask(a.other, b"x")) for _ in range(MOST + 1)]
    assert found[-1] == ["it is asked too much at once"]
    b.take(a.sent())
    # One that does not hold to it is told so by the other.
    b.take([(ASK, (99).to_bytes(8, "big") + b"x")])
    assert len(waiting) == MOST
    assert b.sent() == [(ANSWER, (99).to_bytes(8, "big") + b"\2")]
    waiting[0].callback(b"1")
    a.take(b.sent())
    assert found[0] == [b"1"] and not found[1]
    more = heard(a.asking.ask(a.other, b"x"))
    b.take(a.sent())
    assert len(waiting) == MOST + 1 and not more


def test_what_is_too_long_is_not_sent_and_not_taken(a: Side, b: Side) -> None:
    b.asking.serve = lambda question, by: succeed(b"x" * (LONGEST + 1))
    found = heard(a.asking.ask(a.other, b"x"))
    b.take(a.sent())
    frames = b.sent()
    assert len(frames) == 1
    a.take(frames)
    assert found == ["its answer has more than 8 MiB: ask for less, or ask it itself"]
    other = heard(a.asking.ask(a.other, b"x"))
    a.take([(ANSWER, (2).to_bytes(8, "big") + b"\0" + b"x" * (LONGEST + 1))])
    assert other == found and a.asking.held() == 0


def test_all_that_comes_is_bounded(a: Side) -> None:
    found = [heard(a.asking.ask(a.other, b"x")) for _ in range(MOST)]
    piece = b"\0" + b"x" * LONGEST
    for number in range(1, HELD // LONGEST + 1):
        a.take([(ANSWER, number.to_bytes(8, "big") + piece)])
    assert not any(found) and a.asking.held() == HELD
    a.take([(ANSWER, (12).to_bytes(8, "big") + b"\0x")])
    assert found[11] == ["too much is asked for at once"] and a.asking.held() == HELD
    a.part()
    assert a.asking.held() == 0 and all(found)


@pytest.mark.parametrize("said", [b"", b"\4", b"\xff"])
def test_what_makes_no_sense_is_no_answer(a: Side, said: bytes) -> None:
    found = heard(a.asking.ask(a.other, b"x"))
    a.take([(ANSWER, (1).to_bytes(8, "big") + said)])
    assert found == ["it has failed; see its log"]


def test_a_fault_of_who_serves_is_told(a: Side, b: Side) -> None:
    broken: Deferred[bytes] = Deferred()
    b.asking.serve = lambda question, by: broken
    found = heard(a.asking.ask(a.other, b"x"))
    b.take(a.sent())
    broken.errback(RuntimeError("of the test"))
    a.take(b.sent())
    assert found == ["it has failed; see its log"]


def test_a_node_that_serves_nothing_says_nothing(b: Side) -> None:
    b.take([(ASK, (1).to_bytes(8, "big") + b"x")])
    assert not b.sent()
    assert numbered(ASK, 1)[0] == ASK


def test_who_is_too_old_to_answer_is_not_asked(clock: Clock, a: Side) -> None:
    a.other.version = 1
    assert heard(a.asking.ask(a.other, b"what?")) == [
        "it is of an older version, which answers no questions"
    ]
    assert a.sent() == [] and clock.getDelayedCalls() == []
    assert a.asking.unanswered == 1
