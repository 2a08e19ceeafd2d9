"""Whoever begins, or whatever breaks: what changes meanwhile is the same everywhere afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mqttd.cluster.links.nodes import NodeMesh
from mqttd.codec.packets import Publish
from mqttd.mesh.arriving import Arriving
from mqttd.mesh.changes import Changes
from mqttd.mesh.flight import FAR
from mqttd.mesh.frames import END, RETAIN, split
from mqttd.mesh.link import Link, Stream
from mqttd.mesh.mesh import RECENT, Mesh
from mqttd.mesh.neighbour import Neighbour
from mqttd.mesh.retained import delete_frame
from mqttd.workers.mesh import WorkerMesh
from tests.support.memory import MemoryBroker
from tests.unit.workers.test_ferry import Pipe

#: More than are told in a turn; so many of so many bytes, more than a link holds.
MANY = 1200
LARGE, LONG = 7, 1_000_000


class Side:
    """One of three processes; what it says to each of the others waits until that takes it."""

    far: int

    def __init__(self, number: int) -> None:
        self.number = number
        self.memory = MemoryBroker()
        self.broker = self.memory.broker
        self.mesh = self.made()
        self.pipes: dict[int, Pipe] = {}
        self.arriving: dict[int, Arriving] = {}
        self.client = self.memory.connect("p", 5)

    def made(self) -> Mesh:
        raise NotImplementedError

    def neighbour(self, other: Side) -> Neighbour:
        """The other in the tables of this one."""
        raise NotImplementedError

    def link(self, other: Side, takes: bool = False) -> None:
        neighbour = self.neighbour(other)
        pipe = self.pipes[other.number] = Pipe()
        link = Link(self.broker, Stream(pipe), neighbour.number)
        link.bound(self.far)
        self.arriving[other.number] = self.mesh.linked(neighbour.number, link, takes)

    def cut(self, other: Side) -> None:
        """The link breaks, with all that is on its way."""
        link = self.neighbour(other).link
        assert link is not None
        self.mesh.unlinked(link)

    def turn(self) -> None:
        self.broker.perform()
        self.memory.run_soon()
        self.broker.perform()

    def one_turn(self) -> None:
        """What is put off comes in the next one."""
        self.broker.perform()
        tasks, self.memory.tasks = self.memory.tasks, []
        for task in tasks:
            task()

    def says(self, other: Side) -> bytes:
        self.turn()
        return self.pipes[other.number].take()

    def hears(self, other: Side, data: bytes) -> None:
        self.arriving[other.number].take(data)
        self.turn()

    def publish(self, topic: str, payload: bytes) -> None:
        self.client.send(Publish(topic, payload, 0, True))
        self.turn()

    def age(self) -> None:
        """Time in which every change gets old."""
        for _ in range(4):
            self.broker.now += RECENT + 1
            self.mesh.tick(self.broker.now)

    def forget(self) -> None:
        """All that was so far is long ago, and everywhere."""
        for _ in range(2):
            self.mesh.turn(self.broker.now)

    def kept(self) -> dict[str, bytes]:
        topics: Any = self.broker.retainer.topics
        return {topic: level.message.wire[-1:] for topic, level in topics.items()}


class Worker(Side):
    far = 0

    def made(self) -> Mesh:
        mesh = WorkerMesh(self.broker, self.number, 3)
        for ferry in mesh.ferries.values():
            ferry.begin(None, 1, self.number)
        return mesh

    def neighbour(self, other: Side) -> Neighbour:
        return self.mesh.neighbours[other.number]


class Node(Side):
    far = FAR

    def made(self) -> Mesh:
        mesh = NodeMesh(self.broker, lambda _: None, lambda *_: None, lambda *_: None)
        mesh.go_on_with(None)
        return mesh

    def neighbour(self, other: Side) -> Neighbour:
        assert isinstance(self.mesh, NodeMesh)
        name = f"n{other.number}"
        return self.mesh.nodes.get(name) or self.mesh.join(name, 1)


def pump(one: Side, other: Side) -> None:
    """Let both hear each other until nothing is said any more."""
    while True:
        to_other, to_one = one.says(other), other.says(one)
        if not to_other and not to_one:
            return
        if to_other:
            other.hears(one, to_other)
        if to_one:
            one.hears(other, to_one)


def joined(one: Side, other: Side, takes: bool = False) -> None:
    """A link; `takes`: the first takes the set of the other."""
    one.link(other, takes)
    other.link(one)
    pump(one, other)


def frames(data: bytes) -> list[int]:
    """The kinds of these."""
    kinds, at = [], 0
    while at < len(data):
        kinds.append(data[at])
        _, at = split(data, at)
    return kinds


def new(side: Side) -> None:
    side.publish("new", b"2")


def replaced(side: Side) -> None:
    side.publish("t/1", b"2")


def deleted(side: Side) -> None:
    side.publish("t/1", b"")


@pytest.fixture(params=[Worker, Node])
def three(request: pytest.FixtureRequest) -> list[Side]:
    """The publisher's, one whose set is taken, and one that begins."""
    sides: list[Side] = [request.param(number) for number in (1, 2, 3)]
    here, giver, _ = sides
    joined(here, giver)
    for n in range(3):
        here.publish(f"t/{n}", b"1")
    pump(here, giver)
    return sides


@pytest.mark.parametrize("aged", [False, True])
@pytest.mark.parametrize("change", [new, replaced, deleted])
def test_a_change_that_reaches_the_giver_too_late(
    three: list[Side], change: Callable[[Side], None], aged: bool
) -> None:
    """Who made it tells it, though it may be long ago that it did."""
    here, giver, begins = three
    change(here)
    if aged:
        here.age()
    joined(begins, giver, takes=True)
    assert begins.kept() == {f"t/{n}": b"1" for n in range(3)}
    pump(here, giver)
    joined(here, begins)
    assert here.kept() == giver.kept() == begins.kept()


@pytest.mark.parametrize("change", [new, replaced, deleted])
def test_a_change_that_was_on_its_way_when_a_link_broke(
    three: list[Side], change: Callable[[Side], None]
) -> None:
    here, giver, begins = three
    joined(here, begins)
    change(here)
    pump(here, begins)  # which has it, and that does not count for the other
    here.age()
    here.cut(giver)
    giver.cut(here)
    here.age()
    joined(here, giver)
    assert here.kept() == giver.kept() == begins.kept()


def test_changes_that_come_while_all_are_given(three: list[Side]) -> None:
    """However long that takes: they are later than what is given."""
    here, giver, begins = three
    for n in range(MANY):
        here.publish(f"t/{n}", b"1")
    pump(here, giver)
    here.forget()
    giver.forget()
    joined(here, begins)
    begins.link(giver, takes=True)
    giver.link(begins)
    giver.hears(begins, begins.says(giver))
    given = giver.says(begins)
    begins.hears(giver, given[: len(given) // 2])
    here.publish("new", b"2")
    here.publish("t/0", b"2")
    here.publish(f"t/{MANY - 1}", b"2")
    here.publish(f"t/{MANY - 2}", b"")
    pump(here, begins)
    begins.publish("own", b"3")
    begins.age()
    begins.hears(giver, given[len(given) // 2 :])
    pump(begins, giver)
    assert begins.kept() == {**here.kept(), "own": b"3"}
    assert begins.kept()["new"] == begins.kept()["t/0"] == b"2"
    pump(here, giver)
    pump(here, begins)
    assert here.kept() == giver.kept() == begins.kept()


def test_who_has_told_much_says_so_when_all_is_told() -> None:
    """Some in each turn; who begins is not met before, and lets nobody in."""
    here, begins = Worker(1), Worker(3)
    for n in range(MANY):
        here.publish(f"t/{n}", b"1")
    here.link(begins)
    begins.link(here)
    here.broker.perform()
    first = here.pipes[3].take()
    kinds = frames(first)
    assert 0 < kinds.count(RETAIN) < MANY and END not in kinds
    begins.hears(here, first)
    assert not begins.neighbour(here).met
    pump(here, begins)
    assert begins.neighbour(here).met and begins.kept() == here.kept()
    assert len(begins.kept()) == MANY


@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("side", [Worker, Node])
def test_who_tells_much_waits_for_a_link_that_is_full(side: type[Side], takes: bool) -> None:
    """No turn is begun for it meanwhile."""
    here, begins = side(1), side(3)
    for n in range(LARGE):
        here.publish(f"t/{n}", b"1" * LONG)
    if takes:
        here.forget()  # it is given, and not told as what has changed lately
    begins.link(here, takes)
    here.link(begins)
    link = here.neighbour(begins).link
    assert link is not None and isinstance(link.edge, Stream)
    link.edge.full(link)
    here.arriving[3].take(begins.says(here))
    for _ in range(5):
        here.one_turn()
    assert not here.memory.tasks and link.limit < link.out_bytes < link.limit + (1 << 20)
    link.edge.room(link)
    pump(here, begins)
    assert begins.kept() == here.kept() and len(begins.kept()) == LARGE
    assert not begins.mesh.takes_over()


@pytest.mark.parametrize("side", [Worker, Node])
def test_a_full_link_that_breaks_is_waited_for_no_more(side: type[Side]) -> None:
    here, begins = side(1), side(3)
    for n in range(LARGE):
        here.publish(f"t/{n}", b"1" * LONG)
    here.link(begins)
    link = here.neighbour(begins).link
    assert link is not None and link.behind
    here.cut(begins)
    here.turn()
    assert not len(link.behind) and not here.broker.turns
    joined(here, begins)
    assert begins.kept() == here.kept() and len(begins.kept()) == LARGE


def test_what_is_told_again_changes_nothing(three: list[Side]) -> None:
    here, giver, _ = three
    topics: Any = giver.broker.retainer.topics
    before = {topic: level.message for topic, level in topics.items()}
    here.cut(giver)
    giver.cut(here)
    joined(here, giver)
    assert before and all(topics[topic].message is kept for topic, kept in before.items())


def test_old_changes_are_forgotten_when_all_have_them(three: list[Side]) -> None:
    here, giver, begins = three
    joined(here, begins)
    joined(giver, begins)
    here.publish("new", b"2")
    here.age()
    assert here.mesh.changes.of("new")
    pump(here, giver)
    here.age()
    assert here.mesh.changes.of("new")
    pump(here, begins)
    here.age()
    assert not here.mesh.changes.all()


def test_what_is_remembered_for_who_is_away_has_a_limit(three: list[Side]) -> None:
    """In bytes, whoever has made the changes."""
    here, giver, _ = three
    long = "x" * 60_000
    stamp = here.mesh.changes.stamp(here.mesh.microseconds())
    for n in range(2000):
        data = delete_frame(stamp + n, 0, f"{long}{n}")
        here.arriving[2].take(data)
    remembered = here.mesh.changes.all()
    assert f"{long}1999" in remembered
    assert sum(map(len, remembered)) < 34 << 20


@pytest.mark.parametrize("side", [Worker, Node])
@pytest.mark.parametrize("second", [b"1", b"2", b"3", b""])
@pytest.mark.parametrize("first", [b"1", b"2", b"3", b""])
def test_of_two_changes_of_one_moment_all_keep_the_same(
    side: type[Side], first: bytes, second: bytes
) -> None:
    """Clocks do not tell nodes apart: a message stays rather than none, of two the greater."""
    here, there, other = sides = [side(number) for number in (1, 2, 3)]
    pairs = [(here, there), (here, other), (there, other)]
    for pair in pairs:
        joined(*pair)
    here.publish("t", b"0")
    for _ in range(2):
        for pair in pairs:
            pump(*pair)
    moment = here.mesh.microseconds() + 3_600_000_000
    for each in sides:
        each.mesh.changes.number = 1  # as nodes have it
        each.mesh.changes.stamp(moment)  # what comes next is right behind it
    here.publish("t", first)
    there.publish("t", second)
    assert here.mesh.changes.of("t") == there.mesh.changes.of("t")
    for pair in pairs:
        pump(*pair)
    kept = max(first, second)
    assert all(each.kept() == ({"t": kept} if kept else {}) for each in sides)
    # What is told once more changes nothing.
    for one, two in pairs:
        one.cut(two)
        two.cut(one)
        joined(one, two)
    assert all(each.kept() == ({"t": kept} if kept else {}) for each in sides)


def test_no_two_workers_make_a_change_at_one_moment() -> None:
    """Whatever they have heard of each other."""
    one, two = Changes(1, 0), Changes(2, 0)
    for _ in range(100):
        first, second = one.stamp(1_000_000), two.stamp(1_000_000)
        assert first != second and first % 64 == 0 and second % 64 == 1
        one.remember("t", second)
        two.remember("t", first)
        assert one.stamp(0) > second and two.stamp(0) > first
