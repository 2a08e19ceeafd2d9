"""Messages to more receivers than one step is for: in slices, in order, acknowledged at the end."""

from __future__ import annotations

import pytest

from mqttd.broker.publish.local import LocalSession, publish, subscribe
from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Subscribe,
    Subscription,
    Will,
)
from mqttd.session.ground.message import Message
from mqttd.session.routes.route import WIDE
from mqttd.types import OK
from tests.support.account import audit
from tests.support.memory import MemoryBroker, MemoryClient

#: Shared groups that are more than a step.
GROUPS = 5000


@pytest.fixture
def node() -> MemoryBroker:
    return MemoryBroker()


def member(node: MemoryBroker, count: int = GROUPS) -> MemoryClient:
    """A client in so many groups of one topic."""
    client = node.connect("member", 5, room=1 << 30)
    for at in range(0, count, 500):
        filters = [Subscription(f"$share/g{at + n}/t", 0) for n in range(500)]
        client.send(Subscribe(1, filters))
        node.run_soon()
    client.take()
    return client


def everybody(node: MemoryBroker, heard: dict[int, list[bytes]], count: int) -> list[LocalSession]:
    """So many receivers of one topic."""

    def hear(number: int) -> LocalSession:
        heard[number] = []
        return subscribe(
            node.broker, f"r{number}", "t", lambda message: heard[number].append(message.payload)
        )

    return [hear(number) for number in range(count)]


def turns(node: MemoryBroker) -> int:
    """How many turns go by until nothing is left to do."""
    count = 0
    while node.tasks:
        count += 1
        due, node.tasks = node.tasks, []
        for task in due:
            task()
    return count


def said(client: MemoryClient, kind: type = Publish) -> list[object]:
    return [packet for packet in client.take() if isinstance(packet, kind)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_many_groups_get_a_message_in_slices_and_then_it_is_acknowledged(
    node: MemoryBroker, qos: int
) -> None:
    receiver = member(node)
    publisher = node.connect("publisher", 5)
    other = node.connect("other", 5)
    assert node.broker.router.of("t").gear & WIDE
    publisher.send(Publish("t", b"x", qos, packet_id=1 if qos else 0), Pingreq())
    first = len(said(receiver))
    assert 0 < first < GROUPS and publisher.take() == []
    assert node.broker.fans.bytes
    other.send(Pingreq())
    assert [type(packet) for packet in other.take()] == [Pingresp]
    assert turns(node) > 1
    assert first + len(said(receiver)) == GROUPS
    answers = [type(packet) for packet in publisher.take()]
    assert answers == [*([Puback, Pubrec][qos - 1 : qos] if qos else []), Pingresp]
    assert not node.broker.fans.bytes and not node.broker.fans.lines
    audit(node.broker, [client.channel for client in (receiver, publisher, other)])


def test_messages_of_one_client_come_in_their_order(node: MemoryBroker) -> None:
    heard: dict[int, list[bytes]] = {}
    everybody(node, heard, 9000)
    publisher = node.connect("publisher", 5)
    publisher.send(*(Publish("t", b"%d" % i, 1, packet_id=i + 1) for i in range(3)))
    turns(node)
    assert set(map(tuple, heard.values())) == {(b"0", b"1", b"2")}
    assert [packet.packet_id for packet in publisher.take() if isinstance(packet, Puback)] == [
        1,
        2,
        3,
    ]


def test_messages_of_this_process_and_wills_come_in_their_order(node: MemoryBroker) -> None:
    heard: dict[int, list[bytes]] = {}
    everybody(node, heard, 9000)
    for i in range(3):
        assert publish(node.broker, "t", b"%d" % i) == 9000
    turns(node)
    assert set(map(tuple, heard.values())) == {(b"0", b"1", b"2")}
    client = node.connect("c", 5, will=Will("t", b"will", 0, False, None))
    client.send(Publish("t", b"message"))
    client.drop()
    turns(node)
    assert set(map(tuple, heard.values())) == {(b"0", b"1", b"2", b"message", b"will")}


def test_a_publisher_that_goes_has_published_all_the_same(node: MemoryBroker) -> None:
    receiver = member(node)
    publisher = node.connect("publisher", 5)
    publisher.send(Publish("t", b"x", 1, packet_id=1))
    publisher.drop()
    turns(node)
    assert len(said(receiver)) == GROUPS
    assert not node.broker.fans.bytes
    again = node.connect("publisher", 5)
    again.send(Publish("free", b"x", 1, packet_id=1))
    assert len(said(again, Puback)) == 1


def test_a_receiver_that_goes_meanwhile_is_passed_over(node: MemoryBroker) -> None:
    heard: dict[int, list[bytes]] = {}
    all_of_them = everybody(node, heard, 9000)
    publisher = node.connect("publisher", 5)
    publisher.send(Publish("t", b"x", 1, packet_id=1))
    for session in all_of_them[8000:]:
        session.close()
    turns(node)
    assert all(heard[number] == [b"x"] for number in range(8000))
    assert all(heard[number] == [] for number in range(8000, 9000))
    assert len(said(publisher, Puback)) == 1


def test_a_large_message_in_many_shapes_is_more_than_a_step(node: MemoryBroker) -> None:
    """As many copies as there are identifiers: weighed by their bytes."""
    receiver = node.connect("member", 5, room=1 << 30)
    receiver.channel.limit = 1 << 30
    for i in range(60):
        receiver.send(
            Subscribe(
                1, [Subscription(f"$share/g{i}/t", 0)], {prop.SUBSCRIPTION_IDENTIFIER: [i + 1]}
            )
        )
    receiver.take()
    publisher = node.connect("publisher", 5)
    publisher.send(Publish("t", b"small", 1, packet_id=1))
    assert len(said(publisher, Puback)) == 1 and len(said(receiver)) == 60
    publisher.send(Publish("t", bytes(900_000), 1, packet_id=2))
    first = said(receiver)
    assert 0 < len(first) < 60 and not publisher.take()
    turns(node)
    assert len(first) + len(said(receiver)) == 60
    assert len(said(publisher, Puback)) == 1


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_is_many_bytes_for_all_is_more_than_a_step(
    node: MemoryBroker, qos: int, version: int
) -> None:
    """Few receivers, and one shape: what is written to them takes its time all the same."""
    receivers = [node.connect(f"r{n}", 4 + n % 2, room=1 << 30) for n in range(40)]
    for receiver in receivers:
        receiver.send(Subscribe(1, [Subscription("t", 2)]))
        receiver.take()
    publisher, other = node.connect("publisher", version), node.connect("other", 5)
    packet_id = 1 if qos else 0
    publisher.send(Publish("t", bytes(900_000), qos, packet_id=packet_id), Pingreq())
    count = sum(len(said(receiver)) for receiver in receivers)
    assert 0 < count <= (8 << 20) // 900_000 + 4
    assert publisher.take() == []
    other.send(Pingreq())
    assert [type(packet) for packet in other.take()] == [Pingresp]
    assert turns(node) >= 3
    assert count + sum(len(said(receiver)) for receiver in receivers) == 40
    answers = [type(packet) for packet in publisher.take()]
    assert answers == [*([Puback, Pubrec][qos - 1 : qos] if qos else []), Pingresp]
    audit(node.broker, [client.channel for client in (*receivers, publisher, other)])


@pytest.mark.parametrize("same", [True, False])
def test_small_messages_count_what_is_written_of_them(node: MemoryBroker, same: bool) -> None:
    """Those of one read to hundreds: a turn has its fill of them, and nothing is lost."""
    receivers = [node.connect(f"r{n}", 5, room=1 << 30) for n in range(600)]
    for receiver in receivers:
        receiver.send(Subscribe(1, [Subscription("t", 0)]))
        receiver.take()
    publisher = node.connect("publisher", 5)
    payloads = [b"%3d" % n + bytes(1990 if same else 1890 + n) for n in range(100)]
    publisher.send(*(Publish("t", payload) for payload in payloads), Pingreq())
    assert publisher.take() == []  # the rest is for another turn
    got = [[packet.payload for packet in receiver.published()] for receiver in receivers]
    assert 0 < len(got[0]) < 100
    node.run_soon()
    for mine, receiver in zip(got, receivers, strict=True):
        mine += [packet.payload for packet in receiver.published()]
        assert mine == payloads
    assert [type(packet) for packet in publisher.take()] == [Pingresp]


def test_what_hooks_have_changed_goes_in_slices_too(node: MemoryBroker) -> None:
    receiver = member(node)
    node.hooks.hook(
        "message.publish", lambda message: OK(message.replace(payload=b"changed")), topic_filter="t"
    )
    node.broker.hooks_changed("message.publish", True)
    publisher = node.connect("publisher", 5)
    publisher.send(Publish("t", b"x", 1, packet_id=1))
    assert publisher.take() == []
    turns(node)
    payloads = {packet.payload for packet in receiver.take() if isinstance(packet, Publish)}
    assert payloads == {b"changed"} and len(said(publisher, Puback)) == 1


def test_a_fault_ends_its_publisher_and_nothing_else(node: MemoryBroker) -> None:
    member(node)
    publisher = node.connect("publisher", 5)
    publisher.send(
        Publish("t", b"1", 1, packet_id=1),
    )
    fan = node.broker.fans.lines["publisher"][0]
    fan.route.groups = None
    fan.route.sessions = [None] * 10_000  # type: ignore[list-item]
    fan.at = 0
    turns(node)
    assert publisher.closed and len(said(publisher, Disconnect)) == 1
    assert node.broker.metrics.crashes == 1
    assert not node.broker.fans.lines and not node.broker.fans.bytes
    other = node.connect("other", 5)
    assert node.broker.publish(Message(1, "t", b"x")) == GROUPS
    turns(node)
    other.send(Pingreq())
    assert [type(packet) for packet in other.take()] == [Pingresp]
