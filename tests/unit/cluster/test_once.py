"""QoS 2 between nodes: when it goes, what a death of either node repeats or loses, and its lane."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.logger import Logger

from mqttd.cluster.links.nodes import ONCE, Node, NodeMesh, Settling
from mqttd.cluster.replication.inheriting import Inheriting
from mqttd.cluster.routes.absent import Absent
from mqttd.codec.packets import Publish, Pubrec, Subscribe, Subscription
from mqttd.mesh.ferry import kept_rows
from mqttd.mesh.flight import FAR
from mqttd.mesh.frames import LANE, STATE, frame, split
from mqttd.mesh.link import Link, Stream
from mqttd.storage.recovery import read
from mqttd.storage.restore import restore
from tests.support.memory import MemoryClient
from tests.unit.storage.test_journal import Kept, make


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def take(self) -> bytes:
        data, self.data = self.data, b""
        return data

    def abortConnection(self) -> None:
        pass


class Side:
    """One of two nodes, and the other in its tables; `life`: how often it has begun."""

    def __init__(self, path: Path, name: str, other: str, life: int = 1) -> None:
        path.mkdir(exist_ok=True)
        self.path, self.name, self.life = path, name, life
        self.kept: Kept = make(path)
        self.broker = self.kept.node.broker
        self.mesh = NodeMesh(self.broker, self._changed, lambda *_: None, self._said)
        self.said: list[bytes] = []
        contents = read(self.kept.base, self.kept.ledger)
        restore(self.broker, self.kept.journal, self.kept.base, contents)
        drawer = self.broker.drawers.open(ONCE)
        rows = self.kept.base.execute("SELECT key, value FROM kept WHERE plugin = ?", (ONCE,))
        for key, value in rows.fetchall():
            drawer.take_in(key, value)
        self.mesh.go_on_with(drawer)
        self.settle()
        self.other: Node = self.mesh.join(other, life)
        self.pipe = Pipe()

    def _changed(self, full_filter: str) -> None:
        self.mesh.unsettled.clear()  # the other has it

    def _said(self, node: Node, kind: int, body: bytes) -> None:
        self.said.append(body)

    def settle(self) -> None:
        """All turns are over, and all of them written."""
        self.broker.perform()
        self.kept.settle()
        self.broker.perform()

    def link(self) -> None:
        """There is a stream."""
        self.pipe = Pipe()
        link = Link(self.broker, Stream(self.pipe), self.other.number)
        if self.other.version >= 4:
            link.bound(FAR)
        self.arriving = self.mesh.linked(self.other.number, link, False)

    def cut(self) -> None:
        """There is none."""
        if self.other.link is not None:
            self.mesh.unlinked(self.other.link)
        self.broker.perform()

    def turn(self) -> bytes:
        """What goes, the store being slow."""
        self.broker.perform()
        self.kept.node.run_soon()
        self.broker.perform()
        return self.pipe.take()

    def take(self, data: bytes) -> None:
        """What comes."""
        self.mesh.choice.link = self.other.number
        self.arriving.take(data)
        self.mesh.choice.link = 0
        self.settle()

    def killed(self) -> Side:
        """Its next life: it has what was written, the other knows it as another."""
        self.kept.base.close()
        return Side(self.path, self.name, self.other.name, self.life + 1)

    def under_way(self) -> list[bytes]:
        """The payloads of what its store has for the other."""
        query = "SELECT value FROM kept WHERE plugin = ? AND key LIKE 'for %'"
        rows = [value for (value,) in self.kept.base.execute(query, (ONCE,))]
        return [data[-1:] for _, data in kept_rows(rows)]


def pump(one: Side, other: Side) -> None:
    """Let both hear each other until nothing is said any more."""
    while True:
        one.settle(), other.settle()
        to_other, to_one = one.turn(), other.turn()
        if not to_other and not to_one:
            return
        if to_other:
            other.take(to_other)
        if to_one:
            one.take(to_one)


def joined(one: Side, other: Side) -> None:
    one.link()
    other.link()
    pump(one, other)


class Pair:
    """A publisher at `here`, a subscriber at `there`."""

    def __init__(self, path: Path) -> None:
        self.here = Side(path / "here", "here", "there")
        self.there = Side(path / "there", "there", "here")
        self.wanted()
        joined(self.here, self.there)
        self.publisher = self.here.kept.client("p", kept=True)
        self.subscribe()

    def subscribe(self) -> None:
        self.reader: MemoryClient = self.there.kept.subscriber("s", "t", 2, kept=True)

    def wanted(self) -> None:
        self.here.mesh.add(self.here.other, "t")

    def publish(self, said: bytes, qos: int = 2, *, retain: bool = False) -> None:
        number = said[0]
        self.publisher.send(Publish("t", said, qos, retain, packet_id=number if qos else 0))

    def received(self) -> list[bytes]:
        return [packet.payload for packet in self.reader.published()]

    def here_is_killed(self, *heard: Settling) -> None:
        """It is there again, with its store, and linked; these wait for what it has to send."""
        self.there.cut()
        absent = Absent(self.there.mesh)
        absent.begin(self.there.other)
        self.here = self.here.killed()
        self.there.other = self.there.mesh.join("here", self.here.life)
        absent.back(self.there.other)
        self.wanted()
        self.here.link()
        assert all(self.here.other.once.call(each) for each in heard)
        self.there.link()
        pump(self.here, self.there)

    def end(self) -> None:
        self.here.kept.base.close()
        self.there.kept.base.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.end()


def test_it_goes_when_its_packet_id_is_written_and_nothing_else_waits_for_it(pair: Pair) -> None:
    pair.publish(b"a")
    assert pair.here.turn() == b""
    for said, qos in ((b"b", 1), (b"c", 0)):
        pair.publish(said, qos)
    pair.there.take(pair.here.turn())
    assert pair.received() == [b"b", b"c"]
    assert pair.here.under_way() == []
    pair.here.kept.write()
    assert pair.here.under_way() == [b"a"]
    assert pair.here.kept.living() >= 1
    crossed = pair.here.turn()
    assert crossed[0] == LANE
    pair.there.take(crossed)
    assert pair.received() == [b"a"]
    pump(pair.here, pair.there)
    assert [type(each) for each in pair.publisher.take()].count(Pubrec) == 1
    assert pair.here.under_way() == []


def test_of_what_was_not_written_nothing_has_gone(pair: Pair) -> None:
    """Its publisher sends it again, as it has no PUBREC; it comes once."""
    pair.publish(b"a")
    crossed = pair.here.turn()
    assert crossed == b""
    pair.here_is_killed()
    assert pair.received() == []
    pair.publisher = pair.here.kept.client("p", kept=True)
    pair.publish(b"a")
    pump(pair.here, pair.there)
    assert pair.received() == [b"a"]


@pytest.mark.parametrize("taken", [False, True])
def test_what_was_written_is_there_once_after_its_node_was_killed(pair: Pair, taken: bool) -> None:
    """Taken or not: what its publisher will not have published again is handed over."""
    pair.publish(b"a")
    pair.here.turn()
    pair.here.kept.write()
    crossed = pair.here.turn()
    if taken:
        pair.there.take(crossed)  # and here never hears of it
    pair.here_is_killed()
    assert pair.received() == [b"a"]
    assert pair.here.under_way() == []
    pair.publisher = pair.here.kept.client("p", kept=True)
    pair.publish(b"a")  # again
    pair.publish(b"b")
    pump(pair.here, pair.there)
    assert pair.received() == [b"b"]
    assert [type(each) for each in pair.publisher.take()].count(Pubrec) == 2


@pytest.mark.parametrize("taken", [False, True])
def test_who_waits_for_what_is_to_be_sent_waits_no_longer_where_the_other_has_it(
    pair: Pair, taken: bool
) -> None:
    """A session on its way waited for the next message of QoS 2, or half a minute."""
    pair.publish(b"a")
    pair.here.turn()
    pair.here.kept.write()
    crossed = pair.here.turn()
    if taken:
        pair.there.take(crossed)  # and here never hears of it
    heard: list[str] = []
    pair.here_is_killed(Settling([], lambda: heard.append("taken")))
    assert heard == ["taken"] and pair.here.under_way() == []


@pytest.mark.parametrize("written", [False, True])
def test_what_its_taker_has_written_is_not_sent_again(pair: Pair, written: bool) -> None:
    """The node of the subscriber is killed: how much it had is with what its sessions have."""
    pair.publish(b"a")
    pair.here.settle()
    crossed = pair.here.turn()
    pair.there.mesh.choice.link = pair.there.other.number
    pair.there.arriving.take(crossed)
    pair.there.broker.perform()
    if written:
        pair.there.kept.settle()
    pair.here.cut()
    absent = Absent(pair.here.mesh)
    absent.begin(pair.here.other)
    pair.publish(b"b")
    pair.here.settle()
    pair.there = pair.there.killed()
    pair.there.kept.subscriber("s2", "t", 2, kept=False)
    pair.subscribe()
    pair.here.other = pair.here.mesh.join("there", 2)
    absent.back(pair.here.other)
    joined(pair.here, pair.there)
    assert pair.received() == ([b"b"] if written else [b"a", b"b"])


def test_what_waits_for_a_node_that_is_away_outlives_this_one(pair: Pair) -> None:
    """And when that is awaited no more nothing is left of it."""
    pair.here.cut()
    absent = Absent(pair.here.mesh)
    absent.begin(pair.here.other)
    pair.publish(b"a")
    pair.here.settle()
    assert Pubrec in [type(each) for each in pair.publisher.take()]
    assert pair.here.under_way() == [b"a"]
    pair.here_is_killed()
    assert pair.received() == [b"a"]
    pair.publish(b"b")
    pair.here.cut()
    pair.here.mesh.forget("there")
    pair.here.settle()
    assert pair.here.under_way() == []


def test_numbers_of_another_store_say_nothing(pair: Pair, tmp_path: Path) -> None:
    """A node that begins with an empty directory counts from the beginning."""
    for said in (b"a", b"b", b"c"):
        pair.publish(said)
        pump(pair.here, pair.there)
    assert pair.received() == [b"a", b"b", b"c"]
    pair.here.kept.base.close()
    pair.there.cut()
    pair.here = Side(tmp_path / "empty", "here", "there")
    pair.wanted()
    pair.publisher = pair.here.kept.client("p", kept=True)
    for said in (b"d", b"e"):
        pair.publish(said)
    joined(pair.here, pair.there)
    assert pair.received() == [b"d", b"e"]


def test_retain_as_published_is_known_on_its_lane(pair: Pair) -> None:
    reader = pair.there.kept.client("r", kept=False)
    reader.send(Subscribe(1, [Subscription("t", 2, retain_as_published=True)]))
    reader.take()
    pair.publish(b"a", retain=True)
    pair.publish(b"b", 1)
    pump(pair.here, pair.there)
    pair.publish(b"c")
    pump(pair.here, pair.there)
    assert [(p.payload, p.retain) for p in reader.published()] == [
        (b"b", False), (b"a", True), (b"c", False)]  # fmt: skip


def test_a_mark_waits_for_what_was_sent_before_it(pair: Pair) -> None:
    """By each lane: QoS 2 that came before a mark is before it at all nodes."""
    pair.publish(b"a")
    pair.here.other.once.keep(frame(STATE, b"mark"))
    assert pair.here.turn() == b""
    pair.here.kept.settle()
    crossed = pair.here.turn()
    first, end = split(crossed, 0)
    assert (crossed[0], end) == (LANE, len(crossed))
    _, second = split(crossed, first)
    assert (crossed[first] >> 4, crossed[second]) == (3, STATE)
    pair.there.take(crossed)
    assert pair.there.said == [b"mark"]
    assert pair.received() == [b"a"]


def test_marks_are_of_one_life_and_messages_are_not(pair: Pair) -> None:
    pair.here.cut()
    absent = Absent(pair.here.mesh)
    absent.begin(pair.here.other)
    pair.publish(b"a")
    pair.here.other.once.keep(frame(STATE, b"mark"))
    pair.publish(b"b")
    pair.here.settle()
    assert pair.here.under_way() == [b"a", b"b"]
    pair.here.other = pair.here.mesh.join("there", 2)
    absent.back(pair.here.other)
    pair.there.cut()
    joined(pair.here, pair.there)
    assert pair.there.said == []
    assert pair.received() == [b"a", b"b"]


def test_what_was_kept_for_a_node_goes_to_its_heir_with_the_numbers_it_had(pair: Pair) -> None:
    """Also where it is back before that: what is kept from then on is its own."""
    pair.publish(b"a")
    pair.here.settle()
    pair.here.turn()
    pair.here.cut()
    absent = Absent(pair.here.mesh)
    absent.begin(pair.here.other)
    pair.publish(b"b")
    pair.here.settle()
    back = pair.here.mesh.join("there", 2)
    absent.part("there")
    once = pair.here.mesh.ferries["there"]
    assert back.once is once and not once.kept
    pair.publish(b"c")  # its filters are those of before, for whom it is kept yet
    pair.here.settle()
    assert pair.here.under_way() == []
    kept = absent.take("there")
    assert [data[-1:] for _, _, data in kept] == [b"a", b"b", b"c"]
    assert {book for book, _, _ in kept} == {once.book}
    numbers = [number for _, number, _ in kept]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert pair.here.mesh.nodes["there"] is back


@pytest.mark.parametrize("linked", [True, False])
def test_what_no_heir_has_taken_is_for_the_node_itself(pair: Pair, linked: bool) -> None:
    """There was nothing whole to take: what was kept for it before it was back comes once."""
    pair.publish(b"a")
    pair.here.settle()
    pair.there.take(pair.here.turn())  # and here does not hear of it
    pair.here.cut(), pair.there.cut()
    absent = Absent(pair.here.mesh)
    absent.begin(pair.here.other)
    pair.publish(b"b")
    pair.here.settle()
    pair.here.other = pair.here.mesh.join("there", 2)
    absent.part("there")
    if linked:
        joined(pair.here, pair.there)
    assert pair.received() == [b"a"]
    absent.back(pair.here.other)
    if not linked:
        pair.here.settle()
        assert pair.here.under_way() == [b"a", b"b"]
        joined(pair.here, pair.there)
    pump(pair.here, pair.there)
    assert pair.received() == [b"b"]
    assert pair.here.under_way() == []


def test_a_node_of_the_version_before_has_one_lane(pair: Pair) -> None:
    pair.here.cut(), pair.there.cut()
    pair.publish(b"a")
    pair.here.other.once.keep(frame(STATE, b"mark"))
    pair.here.settle()
    pair.here.other.version = pair.there.other.version = 1
    pair.here.link(), pair.there.link()
    crossed = pair.here.turn()
    assert LANE not in _kinds(crossed)
    pair.there.take(crossed)
    assert pair.received() == [b"a"]
    pair.publish(b"b")
    crossed = pair.here.turn()
    assert crossed[0] >> 4 == 3
    pair.there.take(crossed)
    assert pair.received() == [b"b"]
    pair.here.settle()
    assert pair.here.under_way() == []
    assert pair.there.said == []


def _kinds(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        found.append(data[at])
        at = split(data, at)[1]
    return found


def test_an_heir_hands_out_what_each_has_not_had(pair: Pair) -> None:
    """Of two messages one has come already; who dies in its midst leaves it to be done again."""
    pair.publish(b"a")
    pump(pair.here, pair.there)
    assert pair.received() == [b"a"]
    book = pair.here.other.once.book
    last = pair.there.other.once.have
    wire = [Publish("t", said, 2, packet_id=7) for said in (b"a", b"b")]
    messages = [(last + at, _wire(packet)) for at, packet in enumerate(wire)]
    mesh = pair.there.mesh
    over: list[str] = []
    moves = SimpleNamespace(handed_out=over.append)
    view = SimpleNamespace(is_taken_over=lambda name: False, absent=SimpleNamespace(nodes={}))
    cluster: Any = SimpleNamespace(
        name="there", mesh=mesh, broker=pair.there.broker, moves=moves, view=view
    )
    heir = Inheriting(cluster, Logger())
    pair.there.cut()
    for _ in range(2):
        heir.hand_out("here", book, {"there": messages, "nobody": messages})
        pair.there.settle()
    assert pair.received() == [b"b"]
    third = mesh.join("third", 1)
    heir.hand_out("here", book, {"third": messages})
    told: list[bytes] = [data for _, data in third.ferry.kept]
    pair.reader.take()
    for data in told:
        body, _ = split(data, 0)
        assert over == ["here"] * 3
        assert heir.told(third, data[body:])
    assert over == ["here"] * 4, "the last frame is the end"
    assert pair.received() == []


def test_17_what_it_sends_as_a_member_anew_is_not_what_its_heir_has(pair: Pair) -> None:
    """Its lease had ended, it lives, and what it had for others its heir hands out: what it says in
    its lane meanwhile has later numbers."""
    pair.publish(b"a")
    pump(pair.here, pair.there)
    assert pair.received() == [b"a"]
    pair.here.cut(), pair.there.cut()
    book, last = pair.here.other.once.book, pair.there.other.once.have
    mesh, taken_over = pair.there.mesh, [False]
    view = SimpleNamespace(is_taken_over=lambda name: taken_over[0])
    moves = SimpleNamespace(handed_out=lambda name: None)
    cluster: Any = SimpleNamespace(
        name="there", mesh=mesh, broker=pair.there.broker, moves=moves, view=view
    )
    heir = Inheriting(cluster, Logger())
    for taken_over[0] in (False, True):
        pair.publish(b"b")
        heir.left("here")
        pair.here.mesh.forget_all()
        joined(pair.here, pair.there)
        pair.here.other.once.keep(frame(STATE, b"mark"))
        pump(pair.here, pair.there)
        assert pair.there.other.once.have > last + 1
        pair.here.cut(), pair.there.cut()
    messages = [
        (last + at, _wire(Publish("t", b"ab"[at : at + 1], 2, packet_id=7))) for at in (0, 1)
    ]
    for _ in range(2):
        heir._take("here", book, messages)
        pair.there.settle()
    assert pair.received() == [b"b"]
    heir.hand_out("here", book, {})
    assert not heir._had


def test_17_marks_that_it_has_given_go_though_its_heir_has_all_else(pair: Pair) -> None:
    """Nodes waited for them for as long as there is patience, one behind the other."""
    pair.publish(b"a")
    pair.here.other.once.keep(frame(STATE, b"mark"))
    pair.here.settle()
    pair.here.mesh.forget_all()
    joined(pair.here, pair.there)
    pump(pair.here, pair.there)
    assert pair.there.said == [b"mark"] and pair.received() == []


def _wire(packet: Publish) -> bytes:
    from mqttd.codec.serializer import serialize

    return serialize(packet, 5)
