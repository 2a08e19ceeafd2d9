"""A connection that was ended with a reason is half-closed, and read for a second."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator

import pytest
from twisted.internet.tcp import Connection

from mqttd.codec.packets import Connect, Subscribe, Subscription
from mqttd.codec.serializer import serialize
from mqttd.session.channel.channel import Channel
from mqttd.testing import MemoryBroker
from mqttd.transports.linger import LAST, MOST, Linger
from mqttd.transports.stream import StreamEdge

Make = Callable[[], tuple[int, socket.socket]]


@pytest.fixture
def epoll() -> Iterator[select.epoll]:
    made = select.epoll()
    yield made
    made.close()


@pytest.fixture
def make(epoll: select.epoll) -> Iterator[Make]:
    """A descriptor as the engine has it, and its peer."""
    peers: list[socket.socket] = []

    def one() -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        fd = ours.detach()
        epoll.register(fd, 1)
        peers.append(theirs)
        return fd, theirs

    yield one
    for peer in peers:
        peer.close()


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_the_peer_writes_on_and_reads_why(epoll: select.epoll, make: Make) -> None:
    linger = Linger(epoll)
    fd, peer = make()
    peer.send(b"unread")
    os.write(fd, b"why")
    linger.close(fd, 5000)
    peer.send(b"x" * 1000)  # no reset
    assert peer.recv(10) == b"why" and peer.recv(10) == b""
    for found, _ in epoll.poll(0):
        assert linger.ready(found)
    assert not epoll.poll(0), "what came was thrown away"
    peer.close()
    for found, _ in epoll.poll(0):
        assert linger.ready(found)
    assert not linger.fds and not is_open(fd)
    assert not linger.ready(fd)


def test_after_a_second_it_is_closed_whatever_comes(epoll: select.epoll, make: Make) -> None:
    linger = Linger(epoll)
    fd, _ = make()
    later, _ = make()
    linger.close(fd, 5000)
    linger.close(later, 5500)
    linger.tick(5000 + LAST - 1)
    assert list(linger.fds) == [fd, later]
    linger.tick(5000 + LAST)
    assert list(linger.fds) == [later] and not is_open(fd)
    linger.close_all()
    assert not is_open(later)


def test_of_many_the_oldest_makes_room(epoll: select.epoll, make: Make) -> None:
    linger = Linger(epoll)
    fds = [make()[0] for _ in range(MOST + 3)]
    for fd in fds:
        linger.close(fd, 0)
    assert list(linger.fds) == fds[3:]
    linger.close_all()


def test_a_descriptor_that_is_none_of_the_kernels_friends_is_closed(epoll: select.epoll) -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    linger = Linger(epoll)
    linger.close(fd, 0)
    assert not linger.fds and not is_open(fd)


class Transport(Connection):
    """Twisted's TCP connection as far as an edge sees it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def loseConnection(self, _connDone: object = None) -> None:
        self.calls.append("close")

    def loseWriteConnection(self) -> None:
        self.calls.append("half-close")

    def resumeProducing(self) -> None:
        pass

    pauseProducing = resumeProducing


@pytest.mark.parametrize("goes", [True, False])
def test_a_transport_of_twisted_is_half_closed_for_a_second(goes: bool) -> None:
    node = MemoryBroker()
    transport = Transport()
    edge = StreamEdge(node.broker, transport, "10.0.0.1", 1)
    channel = edge.channel = Channel(node.broker, edge, -1, "tcp:default")
    channel.feed(serialize(Connect("a", 5), 5))
    node.broker.perform()
    channel.feed(serialize(Subscribe(1, [Subscription("a/b", 0)]), 5)[:2] + b"\0\1\0\0\3a#b\0")
    node.broker.perform()
    assert transport.calls == ["half-close"] and transport.written[-3] == 0xE0
    if goes:
        edge.stopProducing()
    node.advance(2)
    assert transport.calls == (["half-close"] if goes else ["half-close", "close"])


def test_a_connection_may_outlive_the_engine(epoll: select.epoll, make: Make) -> None:
    """One whose CONNACK waits for the store when the broker ends, and is taken over."""
    fd, peer = make()
    epoll.close()
    Linger(epoll).close(fd, 0)
    assert not is_open(fd) and peer.recv(1) == b""


def test_a_client_that_goes_by_itself_is_not_waited_for() -> None:
    node = MemoryBroker()
    transport = Transport()
    edge = StreamEdge(node.broker, transport, "10.0.0.1", 1)
    channel = edge.channel = Channel(node.broker, edge, -1, "tcp:default")
    channel.feed(serialize(Connect("a", 5), 5) + b"\xe0\x00")
    node.broker.perform()
    assert transport.calls == ["close"]
