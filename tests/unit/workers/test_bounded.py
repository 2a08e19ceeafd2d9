"""What crosses takes no more of a turn, and of memory, than what stays: whoever sends it waits."""

from __future__ import annotations

import socket

import pytest

from mqttd.codec.packets import Pingreq, Publish, Subscribe, Subscription, Unsubscribe
from mqttd.codec.serializer import serialize
from mqttd.mesh.flight import FULL
from mqttd.mesh.frames import CALL, TAKEN, TELL, frame, number_of, split
from mqttd.mesh.link import Link, Pipe
from mqttd.session.channel.framing import ALLOWANCE
from mqttd.session.ground.unfinished import READ
from tests.support.memory import MemoryBroker, MemoryClient
from tests.unit.workers.test_ferry import Worker, joined, pump
from tests.unit.workers.test_runs import kinds

MESSAGES = 2500
SUBSCRIBERS = 160


def wires(qos: int, count: int, topic: str = "a/b", size: int = 4) -> bytes:
    """PUBLISHes whose payloads are numbers."""
    return b"".join(
        serialize(
            Publish(topic, b"%0*d" % (size, n), qos, packet_id=n % 60_000 + 1 if qos else 0), 5
        )
        for n in range(count)
    )


def across(qos: int = 0) -> tuple[Worker, Worker, Link, MemoryClient, MemoryClient]:
    """The second worker has a subscriber to `a/#`, the first a publisher and a link."""
    here, there = Worker(1), Worker(2)
    joined(here, there)
    publisher = here.node.connect("publisher", 5)
    subscriber = there.node.connect("subscriber", 5)
    subscriber.send(Subscribe(1, [Subscription("a/#", qos)]))
    pump(here, there)
    subscriber.take()
    link = here.mesh.neighbours[2].link
    assert link is not None
    return here, there, link, publisher, subscriber


def crowd(worker: Worker, qos: int) -> list[MemoryClient]:
    clients = []
    for number in range(SUBSCRIBERS):
        client = worker.node.connect(f"s{number}", 5)
        client.send(Subscribe(1, [Subscription("a/#", qos)]))
        clients.append(client)
    return clients


def overloaded(qos: int) -> tuple[Worker, Worker, list[MemoryClient], MemoryClient]:
    """The second worker has been brought more than a turn has time for."""
    here, there = Worker(1), Worker(2)
    for worker in (here, there):
        worker.node.settings.receive_maximum = 65535
        worker.node.settings.max_inflight = 65535
    joined(here, there)
    clients = crowd(there, qos)
    pump(here, there)
    for client in clients:
        client.take()
    link = here.mesh.neighbours[2].link
    assert link is not None
    link.flight.room = link.limit = FULL  # it was quick so far
    publisher = here.node.connect("p", 5)
    publisher.read()
    data = wires(qos, MESSAGES)
    if not qos:  # of other topics in turn: neither runs nor spans
        data = b"".join(serialize(Publish(f"a/{n % 7}", b"%04d" % n), 5) for n in range(MESSAGES))
    publisher.channel.feed(data)
    crossed = b""
    while True:
        more = here.turn()
        if not more:
            break
        crossed += more
    there.arriving.take(crossed)
    there.node.broker.perform()
    return here, there, clients, publisher


def payloads(client: MemoryClient) -> list[int]:
    return [int(packet.payload) for packet in client.published()]


def is_held_back(client: MemoryClient) -> bool:
    return client.channel.paused


def step(worker: Worker) -> None:
    worker.node.broker.turns.turn()


@pytest.mark.parametrize("qos", [0, 1])
def test_what_a_link_brings_takes_as_many_turns_as_it_needs(qos: int) -> None:
    here, there, clients, publisher = overloaded(qos)
    assert there.arriving.busy()
    assert there.node.broker.topics.work < 2 * ALLOWANCE
    some = payloads(clients[0])
    assert 0 < len(some) < MESSAGES
    there.arriving.take(serialize(Publish("a/last", b"%04d" % MESSAGES), 5))
    turns = 0
    while there.arriving.busy():
        step(there)
        turns += 1
    assert turns > (1 if qos else 0)
    pump(here, there)
    assert some + payloads(clients[0]) == list(range(MESSAGES + 1))
    for client in clients[1::40]:
        assert payloads(client) == list(range(MESSAGES + 1))
    if qos:
        assert not here.ferry.kept
        assert len(publisher.read()) == 4 * MESSAGES


def test_what_was_put_off_when_a_link_ends_comes_by_the_next_one_once() -> None:
    here, there, clients, _ = overloaded(1)
    some = payloads(clients[0])
    for worker, other in ((here, 2), (there, 1)):
        link = worker.mesh.neighbours[other].link
        assert link is not None
        worker.mesh.unlinked(link)
    joined(here, there)
    while there.arriving.busy():
        step(there)
        pump(here, there)
    pump(here, there)
    assert some + payloads(clients[0]) == list(range(MESSAGES))


@pytest.mark.parametrize("count", [100, 5000])
@pytest.mark.parametrize("qos", [0, 1])
def test_who_fills_a_link_by_many_groups_waits_for_room(qos: int, count: int) -> None:
    """Of the second kind one message is more than a step: it goes out in slices."""
    here, there = Worker(1), Worker(2)
    joined(here, there)
    member = there.node.connect("s", 5)
    for first in range(0, count, 100):
        member.send(
            Subscribe(1, [Subscription(f"$share/{n}/a", qos) for n in range(first, first + 100)])
        )
    pump(here, there)
    member.take()
    link = here.mesh.neighbours[2].link
    assert link is not None
    link.flight.room = link.limit = 20_000
    link.blocked = True  # the other end takes nothing
    publisher = here.node.connect("p", 5)
    innocent = here.node.connect("q", 5)
    publisher.read(), innocent.read()
    messages = 200
    publisher.channel.feed(wires(qos, messages, "a", 100))
    for _ in range(500):
        here.node.broker.turns.turn()
        here.node.run_soon()
    one = 100 * 200 if count == 100 else 2048 * 200
    assert link.out_bytes < 20_000 + 2 * one
    innocent.channel.feed(serialize(Publish("other", b"x", 1, packet_id=1), 5))
    here.node.broker.perform()
    assert innocent.read()
    # There is room again: all of it goes.
    link.blocked = False
    link.dirty = True
    here.node.broker.dirty.append(link)
    crossed = 0
    for _ in range(20_000):
        here.node.broker.turns.turn()
        more = here.turn()
        link.taken(link.flight.written)
        crossed += more.count(b"$share/")
        if crossed == messages * count:
            break
    assert crossed == messages * count
    assert not publisher.channel.paused


def test_who_sends_waits_while_the_other_end_is_late() -> None:
    """Few bytes may be much work there, and what others send comes behind it."""
    node = MemoryBroker()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        link = Link(node.broker, Pipe(ours.fileno(), lambda blocked: None), 2)
        link.wraps = True
        link.bound(0)
        link.flight.room = link.limit = 1 << 20
        went_on: list[int] = []
        data = frame(CALL, b"x" * 40_000)
        link.put(data)
        node.broker.perform()
        assert len(theirs.recv(1 << 20)) == len(data)
        assert not link.is_full()
        node.broker.now += 60
        assert link.is_full()
        sender = node.connect("p", 5).channel
        link.hold_back(sender)
        link.when_drained(lambda: went_on.append(1))
        link.drained()
        assert (sender.paused, went_on) == (True, [])
        link.taken(5_000)
        assert (sender.paused, went_on) == (True, [])
        link.taken(39_000)
        assert (sender.paused, went_on) == (False, [1])
        link.when_drained(lambda: went_on.append(2))  # it is not full: at once
        assert went_on == [1, 2]


def test_what_is_handled_is_said_in_steps() -> None:
    here, there = Worker(1), Worker(2)
    joined(here, there)
    there.turn()
    some = wires(0, 400)
    assert len(some) < 16 << 10
    there.arriving.take(some)
    assert TAKEN not in kinds(there.turn())
    there.arriving.take(wires(0, 2000)[:-1])  # the last is not whole
    said = there.turn()
    assert kinds(said).count(TAKEN) == 1
    at = 0
    while said[at] != TAKEN:
        at = split(said, at)[1]
    told = number_of(said[at + 2 :])
    assert told > 16 << 10
    here.arriving.take(said)
    link = here.mesh.neighbours[2].link
    assert link is not None
    assert link.flight.handled == told


def test_who_waits_is_let_go_on_when_what_is_under_way_is_handled() -> None:
    here, there, link, publisher, subscriber = across()
    link.flight.room = link.limit = 600
    publisher.channel.feed(b"".join(wires(0, 1, f"a/{n}") for n in range(100)))
    crossed = here.turn()
    assert is_held_back(publisher)
    assert TELL in kinds(crossed)
    assert len(crossed) < 800
    for _ in range(20):
        there.arriving.take(crossed)
        here.arriving.take(there.turn())
        here.node.broker.turns.turn()
        crossed = here.turn()
        if not crossed:
            break
    assert len(subscriber.published()) == 100
    assert not is_held_back(publisher)
    assert link.flight.room > 600


def jobs(worker: Worker) -> int:
    return len(worker.node.broker.turns)


@pytest.mark.parametrize("how", ["unsubscribes", "is gone"])
def test_filters_wait_for_room_on_a_link_and_no_other_client_does(how: str) -> None:
    """What thousands of them filled was laid to whoever sent something next."""
    here, there = Worker(1), Worker(2)
    joined(here, there)
    greedy, innocent = here.node.connect("g", 5), here.node.connect("i", 5)
    filters = [f"f/{n}/+" for n in range(3000)]
    greedy.send(Subscribe(1, [Subscription(each, 0) for each in filters]))
    pump(here, there)
    peer = here.mesh.neighbours[2]
    assert peer.link is not None
    told = there.mesh.neighbours[1].peer.filters
    assert len(told) == 3000
    peer.link.flight.room = peer.link.limit = 2000
    greedy.read(), innocent.read()
    if how == "unsubscribes":
        greedy.send(Unsubscribe(2, filters))
    else:
        greedy.drop()
    for _ in range(20):
        here.node.broker.turns.turn()
        innocent.send(Pingreq())
        assert innocent.read() and not is_held_back(innocent)
    left = len(here.node.broker.router.trie)
    assert left >= 2000 and not jobs(here)  # it waits for room
    peer.link.flight.room = 4000
    pump(here, there)
    for _ in range(500):
        here.node.broker.turns.turn()
        pump(here, there)
    assert not told and not here.mesh.filters
    if how == "unsubscribes":
        assert greedy.read()[0] == 0xB0
        assert not is_held_back(greedy)
    else:
        assert not here.node.broker.router.subscriptions


def test_who_has_waited_brings_a_read_though_the_link_is_full_again() -> None:
    """One message each time there was room: what came meanwhile waited for seconds."""
    here, there, link, publisher, subscriber = across()
    link.flight.room = link.limit = 600
    publisher.read()
    publisher.channel.feed(b"".join(wires(0, 1, f"a/{n}") for n in range(300)) + b"\xc0\0")
    assert is_held_back(publisher) and not publisher.read()
    assert link.out_bytes < 800
    # There is room, and others are quicker.
    here.node.broker.perform()
    link.flight.room = 600
    link.taken(link.flight.written)
    link.put(frame(CALL, b"x" * 5000))
    assert link.is_full()
    here.node.run_soon()
    assert publisher.read() == b"\xd0\0" and is_held_back(publisher)
    assert link.flight.written - link.flight.handled > 5000 + 2000
    # But no more than that: what is put where there is no room is work.
    publisher.channel.feed(b"".join(wires(0, 1, f"a/{n}", 5000) for n in range(1000)) + b"\xc0\0")
    link.flight.room = 600
    here.node.broker.perform()
    link.taken(link.flight.written)
    link.put(frame(CALL, b"x" * 5000))
    here.node.run_soon()
    assert not publisher.read() and is_held_back(publisher)
    assert READ < link.flight.written - link.flight.handled < 2 * READ
