"""Whose packets cost much to handle comes behind the others, user by user."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from mqttd.session.channel.channel import Channel
from mqttd.transports.costly import Costly
from mqttd.transports.engine import Engine
from mqttd.transports.layers import Stack
from tests.support import packets as mq
from tests.support.memory import MemoryBroker
from tests.support.waiting import Patience, readable

#: User properties, which take some milliseconds to read.
PROPERTIES = [(0x26, ("", ""))] * 12_000
DEAR = mq.publish("dear", version=mq.V5, props=PROPERTIES)


class Broker:
    """An engine whose clients are connected by sockets."""

    def __init__(self, layered: bool) -> None:
        self.node = MemoryBroker()
        self.engine = Engine(self.node.broker)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.engine.listen(
            "tcp:door", self.listening, 0, (lambda _: Stack([])) if layered else None
        )
        self.peers: list[socket.socket] = []

    def client(self, name: str, user: str) -> socket.socket:
        """One that has been let in."""
        peer = socket.create_connection(self.listening.getsockname(), timeout=10)
        self.peers.append(peer)
        peer.sendall(mq.connect(name, mq.V5, username=user))
        self.until(peer)
        assert peer.recv(999)[:1] == b"\x20"
        return peer

    def until(self, peer: socket.socket) -> int:
        """Turns until it is answered."""
        turns = 0
        patience = Patience(30.0)
        while not readable(peer.fileno()) and patience.left():
            self.engine.doRead()
            turns += 1
        return turns

    def channels(self) -> list[Channel]:
        """Those of the clients, in the order in which they came."""
        layered = [edge.channel for edge in self.engine.layered.values()]
        return layered or self.engine.channels.all()

    def arrived(self) -> None:
        """The kernel has something for every one of them."""
        fds = [channel.fd for channel in self.channels()]
        patience = Patience(30.0)
        while readable(*fds) < len(fds) and patience.left():
            pass

    def dear(self) -> int:
        """How many of the dear messages have come."""
        return self.node.broker.metrics.messages_received_qos0

    def close(self) -> None:
        for peer in self.peers:
            peer.close()
        self.engine.doRead()
        self.engine.close_all()


@pytest.fixture(params=[False, True], ids=["plain", "layered"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    made = Broker(request.param)
    yield made
    made.close()


def test_a_ping_waits_for_one_costly_packet_and_not_for_all(broker: Broker) -> None:
    crowd = [broker.client(f"c{number}", "crowd") for number in range(60)]
    honest = broker.client("honest", "honest")
    # In the second round they are known; compiled a turn has time for more of them.
    for most in (30, 15):
        before = broker.dear()
        for peer in crowd:
            peer.sendall(DEAR)
        honest.sendall(b"\xc0\0")
        broker.until(honest)
        assert honest.recv(99) == b"\xd0\0"
        seen = broker.dear() - before
        patience = Patience(30.0)
        while broker.dear() - before < len(crowd) and patience.left():
            broker.engine.doRead()
        assert seen <= most


def test_who_costs_little_again_waits_no_more(broker: Broker) -> None:
    peer = broker.client("c", "crowd")
    peer.sendall(DEAR)
    patience = Patience(30.0)
    while not broker.dear() and patience.left():
        broker.engine.doRead()
    costly = broker.engine.costly
    ((fd, (user, until)),) = costly.known.items()
    assert user == "user crowd" and until > broker.node.broker.now
    for past in (0, 1 + until - broker.node.broker.now):
        costly.known[fd] = (user, until - past)
        peer.sendall(b"\xc0\0")
        broker.until(peer)
        assert peer.recv(99) == b"\xd0\0"
    assert not broker.engine.costly.known and not len(broker.engine.costly)


def test_nothing_is_left_of_who_has_gone(broker: Broker) -> None:
    peer = broker.client("c", "crowd")
    peer.sendall(DEAR)
    patience = Patience(30.0)
    while not broker.dear() and patience.left():
        broker.engine.doRead()
    peer.close()
    while not broker.node.broker.metrics.connections_closed and patience.left():
        broker.engine.doRead()
    assert not broker.engine.costly.known and not len(broker.engine.costly)


def test_users_have_their_turns() -> None:
    costly = Costly()
    for fd, user in ((1, "a"), (2, "a"), (3, "a"), (4, "b")):
        costly.known[fd] = (user, 10)
        assert costly.join(fd, 10)
        assert costly.join(fd, 10)  # stands there already
    assert not costly.join(9, 10)
    assert [costly.next(costly.line, 15) for _ in range(len(costly))] == [1, 4, 2, 3]
    assert costly.known[1] == ("a", 15)  # while it waited its time stood still


def test_others_of_a_user_are_strangers_until_its_time_is_over(broker: Broker) -> None:
    for name in ("first", "second"):
        broker.client(name, "crowd")
    broker.client("honest", "honest")
    first, second, honest = broker.channels()
    costly = Costly()
    assert not costly.estrange(second, 0)
    costly.add(first, 0)
    assert costly.estrange(second, 10_000) and len(costly.strangers) == 1
    assert not costly.estrange(honest, 10_000)
    assert costly.next(costly.strangers, 10_000) == second.fd
    assert not costly.estrange(second, 10_001)


def test_users_whose_time_is_over_are_forgotten(broker: Broker) -> None:
    broker.client("c", "crowd")
    (channel,) = broker.channels()
    costly = Costly()
    costly.users = {f"user {number}": number for number in range(2000)}
    costly.add(channel, 1999)
    assert sorted(costly.users) == ["127.0.0.1", "user 1999", "user crowd"]


@pytest.mark.parametrize("count", [3, 30])
def test_who_knocks_waits_for_few_of_them_and_not_for_many(broker: Broker, count: int) -> None:
    """A client that has said DISCONNECT and comes again is heard in this order, as a rule."""
    crowd = [broker.client(f"c{number}", "crowd") for number in range(count)]
    for peer in crowd:
        peer.sendall(DEAR)
    patience = Patience(30.0)
    while broker.dear() < count and patience.left():
        broker.engine.doRead()
    for peer in crowd:
        peer.sendall(DEAR)
    broker.arrived()
    accepted = broker.node.broker.metrics.connections_accepted
    with socket.create_connection(broker.listening.getsockname(), timeout=10):
        while broker.node.broker.metrics.connections_accepted == accepted and patience.left():
            broker.engine.doRead()
        seen = broker.dear() - count
    assert seen == count if count == 3 else seen < count


def test_newcomers_that_bring_much_are_let_in_and_read_from_in_their_turn(broker: Broker) -> None:
    """Behind each other, but not before one who comes from elsewhere."""
    option = socket.TCP_DEFER_ACCEPT
    broker.listening.setsockopt(socket.IPPROTO_TCP, option, 1)
    broker.engine.by_name["tcp:door"].deferred = True
    address = broker.listening.getsockname()
    metrics = broker.node.broker.metrics
    known = broker.client("known", "crowd")
    known.sendall(DEAR)
    patience = Patience(30.0)
    while not broker.dear() and patience.left():
        broker.engine.doRead()
    for number in range(20):
        broker.peers.append(socket.create_connection(address, timeout=10))
        broker.peers[-1].sendall(mq.connect(f"c{number}", mq.V5, username="crowd") + DEAR)
    honest = socket.create_connection(address, 10, ("127.0.0.2", 0))
    broker.peers.append(honest)
    honest.sendall(mq.connect("honest", mq.V5, username="honest"))
    while metrics.connections_accepted < 22 and patience.left():
        broker.engine.doRead()
    while "honest" not in broker.node.broker.sessions and patience.left():
        broker.engine.doRead()
    assert broker.dear() < 10
    while broker.dear() < 21 and patience.left():
        broker.engine.doRead()
    assert broker.dear() == 21


def test_the_place_of_who_is_gone_is_nobodys() -> None:
    """The next connection with its descriptor stood where it had stood, in a line of thousands."""
    costly = Costly()
    for fd in (1, 2, 3):
        costly.known[fd] = ("a", 10)
        assert costly.join(fd, 10)
    costly.gone(1)
    assert len(costly) == 2 and 1 not in costly.waiting
    assert [costly.next(costly.line, 15) for _ in range(3)] == [-1, 2, 3]
    costly.known[4] = ("a", 10)
    assert costly.join(4, 10)
    costly.gone(4)
    assert not len(costly) and not len(costly.line)
