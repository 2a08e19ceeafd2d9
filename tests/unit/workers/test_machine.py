"""Nodes of one machine: a connection goes to the node of its client, or stays where it came."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import pytest

from mqttd.transports.engine import Engine
from mqttd.workers.machine import NodeMover
from mqttd.workers.place import worker_of
from mqttd.workers.ways import Way
from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.memory import MemoryBroker

DOOR = "tcp:door"
OWN = [name for n in range(64) if worker_of(name := f"c{n}", 2) == 1]
IDS = [name for n in range(64) if worker_of(name := f"c{n}", 2) == 2]
NAMES = ["a", "a-2"]


class Member(NamedTuple):
    """What a node knows of another one."""

    ready: bool


class Reactor:
    """Reads and writes when the test says so."""

    def addReader(self, reader: object) -> None: ...

    def removeReader(self, reader: object) -> None: ...

    def removeWriter(self, writer: object) -> None: ...


class Side:
    """Node `number` of two, and its socket of the listener; `end` is its way to the other."""

    def __init__(self, number: int, end: socket.socket, door: str) -> None:
        self.node = MemoryBroker()
        self.broker = self.node.broker
        self.engine = Engine(self.broker)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.engine.listen(door, self.listening, 0)
        self.door = self.engine.by_name[door]
        self.view = self
        self.members = {name: Member(True) for name in NAMES}
        self.minority = False
        self.mover = NodeMover(self.broker, self.engine, cast(Any, self), number, NAMES)
        other = 3 - number
        self.way = Way(
            self.broker, Reactor(), other, end.detach(),
            lambda data, fd: self.mover.arrived(other, data, fd),
        )  # fmt: skip
        self.mover.ways[other] = self.way
        self.broker.connecting.mover = self.mover

    def turn(self) -> None:
        """What has come is taken, and what follows from it is done."""
        self.engine.doRead()
        self.node.run_soon()
        if self.way.fileno() >= 0:
            self.way.doRead()
        self.broker.perform()


class Pair:
    """Clients connect to the first node."""

    def __init__(self, door: str = DOOR) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.here, self.there = Side(1, ends[0], door), Side(2, ends[1], door)
        self.clients: list[RawClient] = []

    def come(self, client_id: str, *more: bytes, props: Any = ()) -> RawClient:
        """A client connects and sends CONNECT, which is read."""
        before = self.here.broker.metrics.packets_received
        self.clients.append(RawClient(self.here.listening.getsockname()[1], mq.V5))
        self.clients[-1].send(mq.connect(client_id, mq.V5, props=props), *more)
        while self.here.broker.metrics.packets_received == before:
            self.here.turn()
        return self.clients[-1]

    def settle(self) -> None:
        """Who goes is there, or back."""
        for _ in range(3):
            self.there.turn()
            self.here.turn()

    def at(self) -> list[list[str]]:
        """Whose sessions are here, and there."""
        return [sorted(side.broker.sessions) for side in (self.here, self.there)]

    def close(self) -> None:
        for side in (self.here, self.there):
            side.way.close()
            side.engine.close_all()
        for client in self.clients:
            client.sock.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_each_goes_to_its_node_with_all_it_has_sent(pair: Pair) -> None:
    pair.come(OWN[0]).expect(mq.CONNACK, reason=0)
    client = pair.come(IDS[0], mq.subscribe([("t", 0)], version=mq.V5))
    pair.settle()
    client.expect(mq.CONNACK, reason=0)
    client.expect(mq.SUBACK)
    assert pair.at() == [[OWN[0]], [IDS[0]]]
    # Each counts for itself.
    for side, accepted, closed in ((pair.here, 2, 1), (pair.there, 1, 0)):
        metrics = side.broker.metrics
        assert (metrics.connections_accepted, metrics.connections_closed) == (accepted, closed)
        assert side.door.connections == 1 and not side.mover.leaving[DOOR]


def test_an_id_that_is_assigned_belongs_where_its_client_is(pair: Pair) -> None:
    for _ in range(4):
        pair.come("").expect(mq.CONNACK, reason=0)
    assert all(worker_of(name, 2) == 1 for name in pair.here.broker.sessions)
    assert len(pair.here.broker.sessions) == 4


@pytest.mark.parametrize("how", ["gone", "not ready", "way ended", "no room"])
def test_who_belongs_to_a_node_that_takes_nobody_stays(pair: Pair, how: str) -> None:
    here, there = pair.here, pair.there
    if how == "gone":
        del here.members["a-2"]
    elif how == "not ready":
        here.members["a-2"] = Member(False)
    elif how == "way ended":
        there.way.close()
        here.turn()
    else:
        here.way.end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        while here.way.send(b"full" * 512, here.listening.fileno()):
            pass
    pair.come(IDS[0], mq.subscribe([("t", 0)], version=mq.V5))
    here.turn()
    pair.clients[-1].expect(mq.CONNACK, reason=0)
    pair.clients[-1].expect(mq.SUBACK)
    assert pair.at() == [[IDS[0]], []]


def test_who_belongs_to_a_node_that_stands_still_stays(pair: Pair) -> None:
    pair.come(IDS[0])
    pair.here.turn()
    assert pair.at() == [[], []]
    pair.here.mover.since[2] -= 1001
    pair.come(IDS[1]).expect(mq.CONNACK, reason=0)
    assert pair.at() == [[IDS[1]], []]
    pair.settle()
    pair.clients[0].expect(mq.CONNACK, reason=0)
    pair.come(IDS[2])  # it goes on, and has them again
    pair.settle()
    assert pair.at() == [[IDS[1]], sorted([IDS[0], IDS[2]])]


@pytest.mark.parametrize("how", ["drained", "listener stopped", "full"])
def test_one_that_cannot_be_taken_over_comes_back(pair: Pair, how: str) -> None:
    there = pair.there
    if how == "drained":
        there.broker.connecting.connacks.elsewhere = (0x9C, "")
    elif how == "listener stopped":
        there.engine.unlisten(DOOR)
    else:
        there.door.max_connections = 1
        busy = RawClient(there.listening.getsockname()[1], mq.V5)
        pair.clients.append(busy)
        busy.send(mq.connect(IDS[5], mq.V5))
        while not there.broker.sessions:
            there.turn()
    client = pair.come(IDS[0], mq.subscribe([("t", 0)], version=mq.V5))
    pair.settle()
    client.expect(mq.CONNACK, reason=0)
    client.expect(mq.SUBACK)
    assert IDS[0] in pair.here.broker.sessions
    assert pair.here.door.connections == 1


def test_in_a_minority_who_has_a_session_here_stays(pair: Pair) -> None:
    pair.here.members.pop("a-2")
    pair.come(IDS[0], props=[(mq.SESSION_EXPIRY, 600)]).expect(mq.CONNACK, reason=0)
    pair.here.members["a-2"] = Member(True)
    pair.here.minority = True
    pair.come(IDS[0], props=[(mq.SESSION_EXPIRY, 600)]).expect(mq.CONNACK, reason=0)
    pair.come(IDS[1])
    pair.settle()
    assert pair.at() == [[IDS[0]], [IDS[1]]]


def test_where_there_is_more_to_a_connection_than_its_descriptor_it_stays() -> None:
    pair = Pair("unix:door")
    try:
        pair.come(IDS[0]).expect(mq.CONNACK, reason=0)
        assert pair.at() == [[IDS[0]], []]
    finally:
        pair.close()
