"""What a turn of the engine does first, where one client has two connections in it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.codec.serializer import serialize
from mqttd.transports.engine import Engine
from mqttd.types import ClientInfo
from tests.support import packets as mq
from tests.support.memory import MemoryBroker
from tests.support.waiting import Patience, readable

Knock = Callable[..., socket.socket]

WILL = mq.Will("gone", b"without a word")


@pytest.fixture(params=[0, 1], ids=["plain", "deferred"])
def door(request: pytest.FixtureRequest) -> Iterator[tuple[MemoryBroker, Engine, Knock]]:
    """A broker, its engine, and what connects a client with a will to it."""
    node = MemoryBroker()
    engine = Engine(node.broker)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, request.param)
    engine.listen("tcp:door", listening, 0)
    peers: list[socket.socket] = []

    def knock(client_id: str, will: mq.Will = WILL) -> socket.socket:
        peers.append(socket.create_connection(listening.getsockname(), timeout=10))
        peers[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peers[-1].sendall(mq.connect(client_id, will=will))
        return peers[-1]

    yield node, engine, knock
    for peer in peers:
        peer.close()
    engine.doRead()
    engine.close_all()


def answered(engine: Engine, peer: socket.socket) -> None:
    """Turns until the peer can read something: a busy kernel takes its time, on loopback too."""
    patience = Patience(30.0)
    while not readable(peer.fileno()) and patience.left():
        engine.doRead()


@pytest.mark.parametrize("farewell", [mq.disconnect(), b""], ids=["DISCONNECT", "closed"])
def test_the_end_of_a_connection_is_heard_before_the_next_begins(
    door: tuple[MemoryBroker, Engine, Knock], farewell: bytes
) -> None:
    node, engine, knock = door
    ends: list[tuple[str, str]] = []

    def disconnected(client: ClientInfo, reason: str, properties: object) -> None:
        ends.append((client.client_id, reason))

    node.hooks.hook("client.disconnected", disconnected)
    watcher = node.connect("watcher")
    watcher.feed(mq.subscribe([("gone", 0)]))
    watcher.take()
    first = knock("c")
    answered(engine, first)
    assert first.recv(4)[:1] == b"\x20"
    knock("other")  # so that the listener is the first of the kernel's events
    first.sendall(farewell)
    first.close()
    second = knock("c")
    answered(engine, second)
    assert second.recv(4)[:1] == b"\x20"
    node.run_soon()
    assert [client_id for client_id, _ in ends] == ["c"]
    assert ends[0][1] != "taken over"
    assert len(watcher.published()) == (0 if farewell else 1)


def test_a_turn_takes_in_so_much_of_those_who_connect(
    door: tuple[MemoryBroker, Engine, Knock],
) -> None:
    """CONNECTs of 60,000 bytes, 60 at once: 3.6 MB were read in the turn that accepted them."""
    node, engine, knock = door
    will = mq.Will("gone", bytes(60_000))
    peers = [knock(f"c{number}", will) for number in range(60)]
    most = 0
    patience = Patience(30.0)
    while node.broker.metrics.connections_accepted < len(peers) and patience.left():
        before = node.broker.metrics.bytes_received
        engine.doRead()
        most = max(most, node.broker.metrics.bytes_received - before)
    for peer in peers:
        answered(engine, peer)
        assert peer.recv(4)[:1] == b"\x20"
    assert most < 2 << 20


def test_what_aliases_stand_for_counts_as_read(
    door: tuple[MemoryBroker, Engine, Knock],
) -> None:
    """30 connections, 60 bytes of each: 8 MB of topics in the one turn."""
    node, engine, knock = door
    topic = "x" * 65_000
    publisher = knock("c0")
    answered(engine, publisher)
    assert publisher.recv(4)[:1] == b"\x20"
    peers = [socket.create_connection(publisher.getpeername(), timeout=10) for _ in range(30)]
    for number, peer in enumerate(peers, 1):
        peer.sendall(mq.connect(f"c{number}", mq.V5))
        answered(engine, peer)
        assert peer.recv(100)[:1] == b"\x20"
        first = serialize(Publish(topic, b"", 1, packet_id=1, properties={prop.TOPIC_ALIAS: 1}), 5)
        peer.sendall(first)
        answered(engine, peer)
        assert peer.recv(100)[:1] == b"\x40"
    topics = node.broker.topics
    assert topics.named == 0
    for peer in peers:
        peer.sendall(serialize(Publish("", b"", 0, properties={prop.TOPIC_ALIAS: 1}), 5) * 4)
        peer.sendall(mq.pingreq())
    most = 0
    patience = Patience(30.0)
    while topics.named < len(peers) * 4 * 65_000 and patience.left():
        before = topics.named
        engine.doRead()
        most = max(most, topics.named - before)
    assert most <= (4 << 20) + 5 * 65_000
    for peer in peers:
        answered(engine, peer)
        assert peer.recv(100)[-2:] == b"\xd0\0"
        peer.close()
