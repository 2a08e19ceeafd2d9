"""Who has much to do waits until the others were served: in line, for a share of each turn."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.codec.serializer import serialize
from mqttd.session.channel.channel import Channel
from mqttd.transports.engine import Engine
from tests.support import packets as mq
from tests.support.memory import MemoryBroker
from tests.support.waiting import arrived

#: Some more than a read.
MANY = b"".join(mq.publish("much/x", bytes(100), 1, number) for number in range(1, 701))


class Door:
    """A broker, its engine, and sockets that are connected to it."""

    def __init__(self) -> None:
        self.node = MemoryBroker()
        self.engine = Engine(self.node.broker)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.engine.listen("tcp:door", self.listening, 0)
        self.peers: list[socket.socket] = []

    def knock(self, client_id: str, version: int = mq.V311) -> socket.socket:
        peer = socket.create_connection(self.listening.getsockname(), timeout=10)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        peer.sendall(mq.connect(client_id, version))
        self.peers.append(peer)
        return peer

    def connect(self, client_id: str, version: int = mq.V311) -> tuple[socket.socket, Channel]:
        peer = self.knock(client_id, version)
        self.until(lambda: self.of(client_id) is not None)
        assert peer.recv(1000)[:1] == b"\x20"
        channel = self.of(client_id)
        assert channel is not None
        return peer, channel

    def of(self, client_id: str) -> Channel | None:
        session = self.node.broker.sessions.get(client_id)
        return None if session is None else self.node.broker.channel_of(session)

    def many(self) -> list[Channel]:
        """Forty who were not read from, and have sent much meanwhile."""
        connected = [self.connect(f"much{number}") for number in range(40)]
        for peer, channel in connected:
            channel.pause()
            channel.resume()
            peer.sendall(MANY)
            arrived(channel.fd, len(MANY) // 2)
        return [channel for _, channel in connected]

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.engine.doRead()

    def close(self) -> None:
        for peer in self.peers:
            peer.close()
        self.engine.doRead()
        self.engine.close_all()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


def test_who_was_not_read_from_comes_behind_the_others(door: Door) -> None:
    much, channel = door.connect("much")
    little, other = door.connect("little")
    watcher = door.node.connect("watcher")
    watcher.feed(mq.subscribe([("#", 0)]))
    watcher.take()
    channel.pause()
    channel.resume()
    much.sendall(MANY)
    little.sendall(mq.publish("little", b"x", 0))
    arrived(channel.fd, len(MANY) // 2)
    arrived(other.fd, 1)
    door.engine.turn([(channel.fd, 1), (other.fd, 1)])
    topics = [packet.topic for packet in watcher.published()]
    assert topics[0] == "little" and set(topics[1:]) == {"much/x"}


def test_the_others_are_answered_before_those_in_line_are_served(door: Door) -> None:
    much, channel = door.connect("much")
    little, other = door.connect("little")
    answered: list[bool] = []

    def published(message: object) -> None:
        if not answered:
            answered.append(len(select.select([little], [], [], 10)[0]) > 0)

    door.node.hooks.hook("message.publish", published)
    channel.pause()
    channel.resume()
    much.sendall(MANY)
    little.sendall(mq.pingreq())
    arrived(channel.fd, len(MANY) // 2)
    arrived(other.fd, 1)
    door.engine.turn([(channel.fd, 1), (other.fd, 1)])
    assert answered == [True]


def test_those_in_line_share_a_turn_and_nobody_is_left_out(door: Door) -> None:
    channels = door.many()
    metrics = door.node.broker.metrics
    before = metrics.messages_received_qos1
    door.engine.turn([(channel.fd, 1) for channel in channels])
    assert 0 < metrics.messages_received_qos1 - before < 40 * 700
    while len(door.engine.line) == 40:
        door.engine.turn([])
    assert 0 < len(door.engine.line)
    door.until(lambda: metrics.messages_received_qos1 - before == 40 * 700)
    door.until(lambda: not door.engine.line)
    assert not door.engine.resumed  # and they are as all others again


def test_packets_of_properties_do_not_add_up_in_a_turn(door: Door) -> None:
    """Each has 12,000 that are empty, which take longer than its bytes."""
    empty = {prop.USER_PROPERTY: [("", "")] * 12_000}
    packet = serialize(Publish("t", b"x", properties=empty), 5)
    connected = [door.connect(f"much{number}", mq.V5) for number in range(40)]
    for peer, channel in connected:
        peer.sendall(packet)
        arrived(channel.fd, len(packet))
    metrics = door.node.broker.metrics
    door.engine.turn([(channel.fd, 1) for _, channel in connected])
    assert 0 < metrics.messages_received_qos0 < 30
    door.until(lambda: metrics.messages_received_qos0 == 40)


def test_who_knocks_waits_for_those_that_were_in_line_before(door: Door) -> None:
    """A client that has said DISCONNECT and comes again is heard in this order."""
    channels = door.many()
    metrics = door.node.broker.metrics
    before = metrics.messages_received_qos1
    door.knock("new")
    events = [(channel.fd, 1) for channel in channels]
    door.engine.turn([*events, (door.listening.fileno(), 1)])
    assert door.engine.line and door.of("new") is None
    door.until(lambda: door.of("new") is not None)
    assert metrics.messages_received_qos1 - before >= 40 * 500


def test_a_client_that_is_sent_its_queue_comes_behind_the_others(door: Door) -> None:
    first, channel = door.connect("away")
    other, beside = door.connect("beside")
    session = door.node.broker.sessions["away"]
    session.waiting = True
    watcher = door.node.connect("watcher")
    watcher.feed(mq.subscribe([("#", 0)]))
    watcher.take()
    first.sendall(mq.publish("away", b"x", 0))
    other.sendall(mq.publish("beside", b"x", 0))
    arrived(channel.fd, 1)
    arrived(beside.fd, 1)
    door.engine.turn([(channel.fd, 1), (beside.fd, 1)])
    assert [packet.topic for packet in watcher.published()] == ["beside", "away"]
    first.close()  # one that goes while it is in line is nobody's business
    channel.end("gone")
    door.engine.turn([(channel.fd, 1)])
    assert not door.engine.line
