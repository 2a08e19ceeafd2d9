"""Two workers in memory: what crosses, by the fast way and the slow one, and over deaths."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqttd.broker.ground.drawers import Drawer, Drawers
from mqttd.codec.packets import Puback, Publish, Subscribe, Subscription, Will
from mqttd.mesh.ferry import opened, taken_of
from mqttd.mesh.frames import ABOUT, AT, HAVE, frame, number_of, packed
from mqttd.mesh.link import Link, Stream
from mqttd.session.channel.listener import Listener
from mqttd.session.ground.message import Message
from mqttd.session.journal import Journal
from mqttd.workers.mesh import WorkerMesh
from tests.support.memory import MemoryBroker, MemoryClient


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


class Worker:
    """One of two, with the drawer that would be in its store."""

    def __init__(self, number: int, drawers: Drawers | None = None, start: int = 1) -> None:
        self.node = MemoryBroker()
        self.mesh = WorkerMesh(self.node.broker, number, 2)
        self.other = 3 - number
        self.drawers = drawers or Drawers(self)
        self.ferry = self.mesh.ferries[self.other]
        self.ferry.begin(self.drawer, start)

    @property
    def journal(self) -> Journal:
        return self.node.broker.journal

    @property
    def drawer(self) -> Drawer:
        return self.drawers.open("$workers")

    def link(self, takes: bool = False) -> None:
        self.pipe = Pipe()
        link = Link(self.node.broker, Stream(self.pipe), self.other)
        link.wraps = True
        link.bound(0)
        self.arriving = self.mesh.linked(self.other, link, takes)

    def turn(self) -> bytes:
        self.node.broker.perform()
        self.node.run_soon()
        self.node.broker.perform()
        return self.pipe.take()


def pump(one: Worker, other: Worker) -> None:
    """Let both hear each other until nothing is said any more."""
    while True:
        to_other, to_one = one.turn(), other.turn()
        if not to_other and not to_one:
            return
        if to_other:
            other.arriving.take(to_other)
        if to_one:
            one.arriving.take(to_one)


def joined(one: Worker, other: Worker) -> None:
    one.link()
    other.link()
    pump(one, other)


def subscriber(worker: Worker, version: int, clean: bool = True) -> MemoryClient:
    client = worker.node.connect(f"s{version}", version, clean)
    client.send(Subscribe(1, [Subscription("a/#", 2)]))
    return client


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_every_way_across_gives_the_same_bytes(version: int, qos: int) -> None:
    """A client's run, and the same with its publisher named, which goes the slow way."""
    here, there = Worker(1), Worker(2)
    joined(here, there)
    clients = [subscriber(there, 4), subscriber(there, 5)]
    pump(here, there)
    for client in clients:
        client.take()
    publisher = here.node.connect("p", version)
    packets = [Publish("a/b", b"%d" % n, qos, packet_id=n if qos else 0) for n in range(1, 6)]
    publisher.send(*packets)
    crossed = here.turn()
    there.arriving.take(crossed)
    there.turn()
    fast = [client.published() for client in clients]
    assert [[p.payload for p in each] for each in fast] == [[b"1", b"2", b"3", b"4", b"5"]] * 2
    for number in range(1, 6):
        packet = Publish("a/b", b"%d" % number, qos, packet_id=number + 100 if qos else 0)
        about = frame(ABOUT, packed([b"p", b"\0", bytes(16)]))
        there.arriving.take(about + _wire(packet))
    there.turn()
    for client, known in zip(clients, fast, strict=True):
        slow = client.published()
        assert [_shape(p) for p in slow] == [_shape(p) for p in known]


def _wire(packet: Publish) -> bytes:
    from mqttd.codec.serializer import serialize

    return serialize(packet, 5)


def _shape(packet: Publish) -> tuple[object, ...]:
    return packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, packet.properties


def test_what_the_other_has_is_not_sent_again() -> None:
    here, there = Worker(1), Worker(2)
    joined(here, there)
    subscriber(there, 5, clean=False)
    pump(here, there)
    publisher = here.node.connect("p", 5)
    publisher.send(Publish("a/b", b"taken", 2, packet_id=1))
    there.arriving.take(here.turn())  # and its acknowledgement is lost with it
    have = there.ferry.have
    assert have == here.ferry.seq
    here.mesh.unlinked(here.mesh.neighbours[2].link)
    publisher.send(Publish("a/b", b"kept", 1, packet_id=2))
    here.turn()
    reborn = Worker(2, there.drawers, 2)
    reborn.ferry.have = have  # as its store has it
    client = subscriber(reborn, 5)
    joined(here, reborn)
    assert [packet.payload for packet in client.published()] == [b"kept"]


def test_who_is_born_again_hands_over_what_it_had_kept_once() -> None:
    here, there = Worker(1), Worker(2)
    joined(here, there)
    client = subscriber(there, 5)
    pump(here, there)
    client.take()
    publisher = here.node.connect("p", 5)
    here.node.broker.sessions["p"].owner = 7  # a store keeps it
    for number, said in enumerate((b"taken", b"lost on its way"), 1):
        publisher.send(Publish("a/b", said, 2, packet_id=number))
        crossed = here.turn()
        if number == 1:
            there.arriving.take(crossed)
            there.turn()
    assert [packet.payload for packet in client.published()] == [b"taken"]
    reborn = Worker(1, here.drawers, 2)
    assert [data[-5:] for _, data in reborn.ferry.kept] == [b"taken", b"s way"]
    there.mesh.unlinked(there.mesh.neighbours[1].link)
    joined(reborn, there)
    assert [packet.payload for packet in client.published()] == [b"lost on its way"]
    assert not reborn.ferry.kept
    assert not reborn.drawer.keys("for")


@pytest.mark.parametrize("topic_filter", ["a/#", "$share/g/a/#"])
def test_what_nobody_sends_again_is_kept_at_qos_1_too(topic_filter: str) -> None:
    """A will, for whoever has it now and for the next life, together with its end."""
    here, there = Worker(1), Worker(2)
    joined(here, there)
    client = there.node.connect("s", 5)
    client.send(Subscribe(1, [Subscription(topic_filter, 1)]))
    pump(here, there)
    client.take()
    will = Will("a/b", b"gone", 1, False, {})
    willed = here.node.connect("p", 5, will=will)
    here.journal.once = True  # as a store has it while the will is published
    willed.drop()
    here.journal.once = False
    here.turn()  # and what crosses is lost
    reborn = Worker(1, here.drawers, 2)
    there.mesh.unlinked(there.mesh.neighbours[1].link)
    joined(reborn, there)
    assert [packet.payload for packet in client.published()] == [b"gone"]
    assert not reborn.drawer.keys("for")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("owner", [0, 7])
@pytest.mark.parametrize("topic_filter", ["a/#", "$share/g/a/#", "+/b"])
def test_of_a_publisher_whose_session_goes_with_its_connection_nothing_is_kept(
    topic_filter: str, owner: int, version: int
) -> None:
    """It can send nothing again as the same message, so nothing waits for a row."""
    here, there = Worker(1), Worker(2)
    joined(here, there)
    client = there.node.connect("s", version)
    client.send(Subscribe(1, [Subscription(topic_filter, 2)]))
    pump(here, there)
    client.take()
    publisher = here.node.connect("p", 5)
    here.node.broker.sessions["p"].owner = owner
    publisher.send(Publish("a/b", b"x", 2, packet_id=1))
    crossed = here.turn()
    assert len(here.drawer.keys("for")) == (1 if owner else 0)
    assert len(here.ferry.kept) == 1
    there.arriving.take(crossed)
    pump(here, there)
    assert [packet.payload for packet in client.published()] == [b"x"]
    assert not here.ferry.kept
    # What nobody sends, a will or a plugin's, is kept with what it comes from.
    here.node.broker.publish(Message(9, "a/b", b"y", 2))
    crossed = here.turn()
    assert len(here.drawer.keys("for")) == 1


@pytest.mark.parametrize(("book", "left"), [(5, 1), (4, 3), (0, 3)])
def test_numbers_are_those_of_one_store(book: int, left: int) -> None:
    """Two of three are taken, if the other means ours."""
    worker = Worker(1)
    worker.ferry.begin(None, 1, 5)
    first = worker.ferry.seq
    for number in (1, 2, 3):
        worker.ferry.carry(_wire(Publish("a", b"x", 2, packet_id=number)), True)
    worker.ferry.continue_from(first + 2, book)
    assert len(worker.ferry.kept) == left


def test_a_store_from_before_there_were_books_goes_on_without_one() -> None:
    drawers = Drawers(MemoryBroker().broker)
    old, new = drawers.open("old"), drawers.open("new")
    old.put("start", b"3")
    assert opened(old) == (4, 0)
    start, book = opened(new)
    assert (start, book > 0) == (1, True)
    assert opened(new) == (2, book)
    assert taken_of((7).to_bytes(8, "big")) == (7, 0)


def test_what_may_come_once_goes_when_it_is_kept_and_all_behind_it_waits() -> None:
    here, there = Worker(1), Worker(2)
    joined(here, there)
    subscriber(there, 5)
    pump(here, there)
    kept: list[Callable[[], None]] = []
    link = here.mesh.neighbours[2].link
    assert link is not None
    one, other = link.shut(), link.shut()
    link.send(b"\x30b")
    kept += [other.open, one.open]
    kept[0]()
    assert here.turn() == b""
    kept[1]()
    assert here.turn() == b"\x30b"
    assert not link.gates
    assert not link.special


def test_frames_of_numbers() -> None:
    assert (HAVE, AT) == (0x17, 0x18)
    assert number_of((7).to_bytes(8, "big")) == 7


@pytest.mark.parametrize("published", [0, 1, 2])
def test_with_upgrade_qos_the_worker_of_the_subscriber_raises_it(published: int) -> None:
    here, there = Worker(1), Worker(2)
    for worker in (here, there):
        worker.node.settings.upgrade_qos = True
        worker.node.broker.access_changed()
    joined(here, there)
    client = subscriber(there, 5)
    lower = there.node.connect("lower", 4)
    lower.send(Subscribe(1, [Subscription("a/#", 1)]))
    pump(here, there)
    client.take(), lower.take()
    publisher = here.node.connect("p", 4)
    publisher.send(Publish("a/b", b"x", published, packet_id=7 if published else 0))
    pump(here, there)
    assert [packet.qos for packet in client.published()] == [2]
    assert [packet.qos for packet in lower.published()] == [max(1, published)]


@pytest.mark.parametrize("topic_filter", ["#", "$share/g/#"])
@pytest.mark.parametrize("both", [False, True])
def test_what_a_mountpoint_hides_does_not_go_back_and_forth(topic_filter: str, both: bool) -> None:
    """The other is not told where the members of a group live."""
    here, there = Worker(1), Worker(2)
    joined(here, there)
    members = []
    for worker in (here, there) if both else (there,):
        worker.node.broker.listeners["memory"] = Listener("memory", mountpoint="a/")
        member = worker.node.connect("s", 5)
        member.send(Subscribe(1, [Subscription(topic_filter, 1)]))
        del worker.node.broker.listeners["memory"]
        members.append(member)
    pump(here, there)
    for member in members:
        member.take()
    publisher = here.node.connect("p", 5)
    publisher.send(Publish("a/$b", b"x", 1, packet_id=1))
    pump(here, there)
    assert [len(member.published()) for member in members] == [0] * len(members)
    assert any(isinstance(packet, Puback) for packet in publisher.take())
    publisher.send(Publish("a/b", b"y", 1, packet_id=2))
    pump(here, there)
    came = [packet.topic for member in members for packet in member.published()]
    assert came == ["b"] * (2 if both and topic_filter == "#" else 1)
