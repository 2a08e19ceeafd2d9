"""A connection that is moved counts at its worker: for listener, house and open files."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mqttd.transports.engine import Engine
from mqttd.workers.moving import PATIENCE, Mover
from mqttd.workers.place import worker_of
from mqttd.workers.ways import received
from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.memory import MemoryBroker

DOOR = "tcp:door"
OWN = [name for n in range(64) if worker_of(name := f"c{n}", 2) == 1]
IDS = [name for n in range(64) if worker_of(name := f"c{n}", 2) == 2]
QUOTA = {mq.V311: 3, mq.V5: 0x97}


class Side:
    """Worker `number` of two, and its socket of the listener."""

    def __init__(self, number: int, way: Any) -> None:
        self.node = MemoryBroker()
        self.broker = self.node.broker
        self.engine = Engine(self.broker)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.engine.listen(DOOR, self.listening, 0)
        self.port = self.engine.by_name[DOOR]
        mesh: Any = SimpleNamespace(count=2, number=number, link_to=lambda number: self)
        relays: Any = None
        #: Those of whom the mover wants to know when they have room.
        self.awaited: list[int] = []
        self.mover = Mover(
            self.broker, self.engine, mesh, relays, lambda number: way, self.awaited.append
        )
        self.mover.listeners = [DOOR]
        self.mover.passing = 0
        self.broker.connecting.mover = self.mover

    def turn(self) -> None:
        """What has come is taken, and what follows from it is done."""
        self.engine.doRead()
        self.node.run_soon()
        self.broker.perform()


class Way:
    """The end of a way by which the first worker sends, and how often it has tried to."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.tried = 0

    def sendmsg(self, *args: Any) -> int:
        self.tried += 1
        return self.end.sendmsg(*args)


class Pair:
    """Clients connect to the first worker, and all of them belong to the second."""

    def __init__(self) -> None:
        near, self.way = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (near, self.way):
            end.setblocking(False)
        self.near, self.sent = near, Way(near)
        self.here, self.there = Side(1, self.sent), Side(2, self.way)
        self.clients: list[RawClient] = []

    def come(self, client_id: str, version: int = mq.V5) -> RawClient:
        """A client connects, sends CONNECT and is moved."""
        client = RawClient(self.here.listening.getsockname()[1], version)
        self.clients.append(client)
        client.send(mq.connect(client_id, version))
        while (found := received(self.way)) is None:
            self.here.turn()
        assert self.there.mover.adopt(*found)
        self.there.broker.perform()
        return client

    def crowd(self, count: int) -> None:
        """So many come from one address with long CONNECTs, more than the kernel has room for."""
        long = mq.connect(IDS[0], mq.V5, props=[(mq.USER_PROPERTY, ("a", "b" * 40_000))])
        come = [RawClient(self.here.listening.getsockname()[1]) for _ in range(count)]
        self.clients += come
        for client in come:
            client.send(long)
        while self.here.broker.metrics.packets_received < count or not self.here.awaited:
            self.here.turn()

    def take(self) -> list[int]:
        """The second worker takes over what is in the kernel: bytes of each."""
        taken = []
        while (found := received(self.way)) is not None:
            taken.append(len(found[0]))
            assert self.there.mover.adopt(*found)
            self.there.broker.perform()
        return taken

    def close(self) -> None:
        for side in (self.here, self.there):
            side.engine.close_all()
        for end in (self.near, self.way, *(client.sock for client in self.clients)):
            end.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.mark.parametrize("version", [mq.V311, mq.V5])
@pytest.mark.parametrize(
    ("limit", "counter"),
    [
        ("max_connections", "accepts_paused_full"),
        ("open files", "accepts_paused_full"),
        ("per address", "refused_crowded"),
    ],
)
def test_one_too_many_is_refused_where_it_belongs(
    pair: Pair, limit: str, counter: str, version: int
) -> None:
    there = pair.there
    if limit == "max_connections":
        there.port.max_connections = 3
    elif limit == "open files":
        there.engine.most = 3
    else:
        there.port.lobby.each = 3
    inside = [pair.come(name, version) for name in IDS[:3]]
    for client in inside:
        client.expect(mq.CONNACK, reason=0)
    for count, name in enumerate(IDS[3:6], 1):
        late = pair.come(name, version)
        late.expect(mq.CONNACK, reason=QUOTA[version])
        late.expect_close()
        assert there.broker.metrics.connects_refused == count
        assert there.broker.metrics.snapshot()[counter] == count
        event, told = there.node.events[-1]
        assert (event, told["client_id"]) == ("connect refused", name)
        assert told["detail"] in ("there are max_connections",
                                  "this address has max_connections_per_address")  # fmt: skip
    assert there.port.connections == 3 and there.engine.channels.count == 3
    assert [house.connections for house in there.port.lobby.houses.values()] == [3]
    assert not pair.here.port.connections
    # One leaves, and there is room.
    inside[0].send(mq.disconnect())
    inside[0].closed = True
    while there.port.connections == 3:
        there.turn()
    pair.come(IDS[6], version).expect(mq.CONNACK, reason=0)


def test_who_has_moved_counts_for_those_who_come_to_the_door(pair: Pair) -> None:
    there = pair.there
    there.port.max_connections = 1
    pair.come(IDS[0]).expect(mq.CONNACK, reason=0)
    RawClient(there.listening.getsockname()[1]).close()
    there.turn()
    assert there.broker.metrics.accepts_paused_full == 1 and there.port.connections == 1


def test_a_stranger_that_is_silent_makes_room_for_one_that_is_moved(pair: Pair) -> None:
    there = pair.there
    there.port.max_connections = 1
    silent = RawClient(there.listening.getsockname()[1])
    while not there.port.connections:
        there.turn()
    there.node.advance(1500)
    pair.come(IDS[0]).expect(mq.CONNACK, reason=0)
    silent.expect_close()
    assert there.broker.metrics.strangers_ended == 1


@pytest.mark.parametrize("limit", ["max_connections", "open files"])
@pytest.mark.parametrize("version", [mq.V311, mq.V5])
def test_a_worker_that_is_full_answers_its_own_and_sends_the_others_on(
    pair: Pair, version: int, limit: str
) -> None:
    """Nobody who comes waits for somebody to go."""
    here, clients = pair.here, pair.clients
    here.mover.passing = 8
    if limit == "max_connections":
        here.port.max_connections = 8 + 8
    else:
        here.engine.most = 8 + 8

    def comes(client_id: str) -> RawClient:
        clients.append(RawClient(here.listening.getsockname()[1], version))
        clients[-1].send(mq.connect(client_id, version))
        return clients[-1]

    inside = [comes(name) for name in OWN[:8]]
    while len(here.broker.sessions) < 8:
        here.turn()
    for client in inside:
        client.expect(mq.CONNACK, reason=0)
    # In one turn: as many as are under way, who do not count, and one too many.
    passing = [comes(name) for name in IDS[:4]]
    late = comes(OWN[8])
    moved = 0
    while moved < 4 or not here.broker.metrics.connects_refused or here.port.connections > 8:
        here.turn()
        while (found := received(pair.way)) is not None:
            assert pair.there.mover.adopt(*found)
            pair.there.broker.perform()
            moved += 1
    for client in passing:
        client.expect(mq.CONNACK, reason=0)
    late.expect(mq.CONNACK, reason=QUOTA[version])
    late.expect_close()
    assert here.broker.metrics.accepts_paused_full == here.broker.metrics.connects_refused == 1
    assert here.port.why == ""


def test_who_is_about_to_leave_takes_no_place(pair: Pair) -> None:
    here = pair.here
    here.mover.passing = 8
    here.port.max_connections = 1 + 8
    for name in (IDS[0], OWN[0]):
        pair.clients.append(RawClient(here.listening.getsockname()[1]))
        pair.clients[-1].send(mq.connect(name))
    while not here.broker.sessions or here.port.connections < 2:
        here.engine.doRead()  # and nobody is sent on
    pair.clients[-1].expect(mq.CONNACK, reason=0)


def test_a_newcomer_waits_for_what_is_in_the_kernel_and_not_for_long_connects(pair: Pair) -> None:
    here = pair.here
    pair.crowd(24)
    sock = socket.create_connection(here.listening.getsockname(), source_address=("127.0.0.9", 0))
    newcomer = RawClient(0, mq.V5, sock=sock)
    pair.clients.append(newcomer)
    newcomer.send(mq.connect(IDS[1], mq.V5))
    while here.broker.metrics.packets_received < 25:
        here.turn()
    assert len(pair.take()) < 12 and here.awaited == [2]
    here.mover.has_room(2)
    assert pair.take()[0] < 1000
    newcomer.expect(mq.CONNACK, reason=0)


def test_a_way_that_is_full_is_tried_when_it_has_room(pair: Pair) -> None:
    """Not in each turn, with each of those who wait: that took all the time of the worker."""
    here = pair.here
    pair.crowd(24)
    tried = pair.sent.tried
    for _ in range(20):
        here.turn()
        here.mover.tick()
        here.node.run_soon()
    assert pair.sent.tried == tried and here.awaited == [2]
    taken = pair.take()
    while len(taken) < 24:
        here.mover.has_room(2)
        here.node.run_soon()
        taken += pair.take()
    assert here.port.connections == here.broker.metrics.connects_refused == 0


def test_who_has_waited_too_long_for_a_full_way_is_told(pair: Pair) -> None:
    here = pair.here
    pair.crowd(24)
    here.node.advance(PATIENCE * 1000 + 1)
    here.mover.tick()
    here.broker.perform()
    refused = here.broker.metrics.connects_refused
    assert 12 < refused < 24
    assert here.node.events[-1][1]["detail"] == "worker 2 has too many others to take over"
    assert here.port.connections == 0 and refused + len(pair.take()) == 24
