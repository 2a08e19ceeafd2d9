"""Acknowledgements that are held: by several, of some topics, and in order whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec.packets import Puback, Publish, Pubrec
from mqttd.codec.serializer import serialize
from mqttd.codec.topic import match
from mqttd.session.ground.connection import CLOSED
from mqttd.testing import MemoryBroker, MemoryClient
from mqttd.types import STOP

Release = Callable[[], None]


class Keeper:
    """Holds, and releases when the test says so."""

    def __init__(self, node: MemoryBroker, *topic_filters: str, required: bool = False) -> None:
        self.node = node
        self.held: list[Release] = []
        self.clients: list[str] = []
        self.token = node.broker.add_holder(self.hold, list(topic_filters) or None, required)

    def hold(self, release: Release, client_id: str) -> None:
        self.held.append(release)
        self.clients.append(client_id)

    def release(self, number: int = 0) -> None:
        self.held.pop(number)()
        self.node.settle()

    def go(self, gone: bool = False) -> None:
        self.node.broker.remove_holder(self.token, gone)
        self.node.settle()


@pytest.fixture
def node() -> Iterator[MemoryBroker]:
    node = MemoryBroker()
    yield node
    for session in node.broker.sessions.values():
        channel = node.broker.channel_of(session)
        assert channel is None or not channel.promises  # nothing is kept for nobody


def publish(client: MemoryClient, *topics: str, qos: int = 1) -> None:
    """All in one chunk, with packet ids from 1 on."""
    client.send(*(Publish(topic, b"", qos, packet_id=i) for i, topic in enumerate(topics, 1)))


def acked(client: MemoryClient) -> list[int]:
    return [packet.packet_id for packet in client.received if isinstance(packet, Puback | Pubrec)]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_more_than_receive_maximum_without_an_answer_ends_it(
    node: MemoryBroker, version: int, qos: int
) -> None:
    """MQTT 5.0, 3.3.4-9: whoever keeps to it stays; 3.1.1 has no such limit."""
    node.settings.receive_maximum = 3
    node.settings.max_awaiting_rel = 100
    keeper = Keeper(node)
    client = node.connect("a", version)
    publish(client, "t", "t", "t", qos=qos)
    assert not client.closed and acked(client) == []
    while keeper.held:
        keeper.release()
    assert acked(client) == [1, 2, 3]
    client = node.connect("b", version)
    publish(client, *"tttt", qos=qos)
    if version == 5:
        assert client.disconnect_packet is not None
        assert client.disconnect_packet.reason_code == 0x93
    else:
        assert not client.closed
        while keeper.held:
            keeper.release()


@pytest.mark.parametrize("qos", [1, 2])
def test_it_goes_when_all_have_released_it(node: MemoryBroker, qos: int) -> None:
    first, second = Keeper(node), Keeper(node)
    client = node.connect("a")
    publish(client, "t", qos=qos)
    assert (first.clients, second.clients, acked(client)) == (["a"], ["a"], [])
    first.release()
    assert acked(client) == []
    second.release()
    assert acked(client) == [1]


def test_one_who_releases_twice_has_released_for_nobody_else(node: MemoryBroker) -> None:
    first, second = Keeper(node), Keeper(node)
    client = node.connect("a")
    publish(client, "t")
    release = first.held[0]
    release()
    release()
    node.settle()
    assert acked(client) == []
    second.release()
    release()
    node.settle()
    assert acked(client) == [1]


def test_only_what_a_holder_wants_is_held(node: MemoryBroker) -> None:
    keeper = Keeper(node, "a/#", "b")
    client = node.connect("a")
    publish(client, "c", "d")
    assert acked(client) == [1, 2] and keeper.held == []
    client.received.clear()
    publish(client, "c", "a/1", "b", "d", "b", "e")
    assert acked(client) == [1] and len(keeper.held) == 2
    keeper.release()
    assert acked(client) == [1, 2, 3, 4]
    keeper.release()
    assert acked(client) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_refused_waits_for_nobody_but_those_before(
    node: MemoryBroker, qos: int, heard: bool
) -> None:
    """A refusal promises nothing; and it asks nobody early, nor ends what a turn has brought."""
    keeper = Keeper(node)
    node.deny("no")
    alice = node.connect("alice")
    if not heard:
        node.broker.nobody_hears()
    publish(alice, "no", "no", qos=qos)
    assert acked(alice) == [1, 2] and not keeper.held
    alice.received.clear()
    publish(alice, "no", "a", "no", "b", "no", qos=qos)
    assert acked(alice) == [1] and len(keeper.held) == 1
    publish(alice, "no", qos=qos)
    assert acked(alice) == [1]
    keeper.release()
    assert acked(alice) == [1, 2, 3, 4, 5, 1]


def test_a_holder_is_asked_once_for_a_turn_and_after_its_messages(node: MemoryBroker) -> None:
    seen: list[str] = []
    node.hook("message.publish", lambda message: seen.append(message.topic))
    keeper = Keeper(node)
    node.broker.add_holder(lambda release, client_id: (seen.append("hold"), release()))
    clients = [node.connect(name) for name in ("a", "b")]
    for client in clients:
        for i, topic in enumerate(("1", "2", "3"), 1):
            client.channel.feed(serialize(Publish(topic, b"", 1, packet_id=i), 5))
    assert keeper.held == [] and seen == ["1", "2", "3"] * 2
    node.broker.perform()
    assert keeper.clients == ["a", "b"] and seen[6:] == ["hold", "hold"]
    keeper.release()
    assert [acked(client) for client in clients] == [[1, 2, 3], []]
    keeper.release()
    assert acked(clients[1]) == [1, 2, 3]


def test_a_client_that_goes_in_the_turn_is_not_asked_about(node: MemoryBroker) -> None:
    keeper = Keeper(node)
    client = node.connect("a")
    client.channel.feed(serialize(Publish("t", b"", 1, packet_id=1), 5))
    client.drop()
    node.broker.perform()
    assert keeper.held == [] and acked(client) == []


def test_the_topic_is_what_the_client_has_published_to(node: MemoryBroker) -> None:
    """Also where a hook has changed it or stopped the message, and where rules deny it."""
    node.deny("secret/#")
    node.hook("message.publish", lambda message: STOP(None), topic_filter="stopped")
    keeper = Keeper(node, "secret/#", "stopped")
    client = node.connect("a")
    publish(client, "secret/1", "stopped")
    assert len(keeper.held) == 1 and acked(client) == []
    keeper.release()
    assert acked(client) == [1, 2]


def test_connections_do_not_wait_for_one_another(node: MemoryBroker) -> None:
    keeper = Keeper(node)
    clients = [node.connect(name) for name in ("a", "b")]
    for client in clients:
        publish(client, "t")
    keeper.release(1)
    assert [acked(client) for client in clients] == [[], [1]]
    keeper.release()
    assert [acked(client) for client in clients] == [[1], [1]]


def test_who_releases_at_once_holds_nothing_up(node: MemoryBroker) -> None:
    node.broker.add_holder(lambda release, client_id: release())
    client = node.connect("a")
    publish(client, "1", "2", "3")
    assert acked(client) == [1, 2, 3]


def test_what_a_removed_holder_holds_is_not_waited_for(node: MemoryBroker) -> None:
    gone, stays = Keeper(node, "gone"), Keeper(node, "stays")
    client = node.connect("a")
    publish(client, "gone", "stays", "free")
    gone.go()
    assert acked(client) == []
    stays.release()
    assert acked(client) == [2, 3]
    publish(client, "gone")
    assert acked(client) == [2, 3, 1]
    gone.release()
    assert acked(client) == [2, 3, 1, 1]
    stays.go()
    assert not node.broker.holders.holders


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_holder_holds_that_is_gone_for_good_is_acknowledged(
    node: MemoryBroker, qos: int
) -> None:
    gone, stays = Keeper(node, "gone/#", "both"), Keeper(node, "both")
    client = node.connect("a")
    publish(client, "gone/1", "gone/2", "free", "both", qos=qos)
    assert acked(client) == []
    gone.go(gone=True)
    assert acked(client) == [1, 2, 3]
    stays.release()
    assert acked(client) == [1, 2, 3, 4]
    gone.release()  # too late, and for nobody
    assert acked(client) == [1, 2, 3, 4] and not client.closed


def test_where_nothing_may_be_acknowledged_unkept_the_connections_end_that_wait(
    node: MemoryBroker,
) -> None:
    gone = Keeper(node, "gone", required=True)
    waits, done, other = (node.connect(name, 5) for name in ("a", "b", "c"))
    publish(waits, "gone")
    publish(done, "gone")
    gone.release(1)
    publish(other, "other")
    gone.go(gone=True)
    assert acked(waits) == [] and waits.closed
    assert waits.disconnect_packet is not None and waits.disconnect_packet.reason_code == 0x98
    assert (acked(done), acked(other), done.closed, other.closed) == ([1], [1], False, False)
    again = node.connect("a", 5)
    publish(again, "gone")
    assert acked(again) == [1]


def test_a_connection_that_has_gone_is_forgotten(node: MemoryBroker) -> None:
    keeper = Keeper(node)
    client = node.connect("a")
    publish(client, "1", "2")
    client.drop()
    assert client.channel.promises is None
    keeper.release()
    assert acked(client) == []


def test_a_holder_that_raises_has_promised_nothing(node: MemoryBroker) -> None:
    def hold(release: Release, client_id: str) -> None:
        raise KeyError("oops")

    node.broker.add_holder(hold)
    client = node.connect("a")
    publish(client, "t")
    assert client.channel.state == CLOSED and acked(client) == []
    assert node.broker.metrics.crashes == 1


@given(
    topics=st.lists(st.sampled_from(["a", "b", "a/b", "c"]), min_size=1, max_size=8),
    filters=st.lists(st.sampled_from(["a/#", "b", "+", "#"]), min_size=1, max_size=3),
    choices=st.lists(st.integers(0, 100)),
)
def test_the_acknowledgements_are_those_before_the_first_that_is_held(
    topics: list[str], filters: list[str], choices: list[int]
) -> None:
    node = MemoryBroker()
    held: list[tuple[int, Release]] = []
    #: Where messages in a row that the same holders want begin.
    begins: list[int] = []
    before: list[bool] = []
    for i, topic in enumerate(topics, 1):
        wanted = [match(topic, topic_filter) for topic_filter in filters]
        if wanted != before:
            begins.append(i)
        before = wanted

    def keep(topic_filter: str) -> None:
        mine = [i for i in begins if match(topics[i - 1], topic_filter)]

        def hold(release: Release, client_id: str) -> None:
            held.append((mine.pop(0), release))

        node.broker.add_holder(hold, [topic_filter])

    for topic_filter in filters:
        keep(topic_filter)
    client = node.connect("a")
    publish(client, *topics)
    for choice in [*choices, *(0 for _ in held)]:
        waiting = {number for number, _ in held}
        assert acked(client) == list(range(1, min(waiting, default=len(topics) + 1)))
        if not held:
            break
        held.pop(choice % len(held))[1]()
        node.settle()


def test_of_publishers_that_wait_none_is_kept_twice_or_after_its_end() -> None:
    """While a log could not follow, each release and each connection that had gone was one more."""
    node = MemoryBroker()
    releases: list[Callable[[], None]] = []
    node.broker.add_holder(lambda release, client_id: releases.append(release))
    node.broker.set_congested(True)
    alice = node.connect("alice")
    for i in range(10):
        alice.send(Publish("t", b"", 1, packet_id=i + 1))
        assert not alice.wire.reading
        releases.pop()()
        node.settle()
        alice.channel.resume()
    alice.send(Publish("t", b""))
    assert list(node.broker.stalled) == [alice.channel]
    for i in range(10):
        passing = node.connect(f"p{i}")
        passing.send(Publish("t", b""))
        passing.drop()
    assert list(node.broker.stalled) == [alice.channel]
    node.broker.set_congested(False)
    node.settle()
    assert alice.wire.reading
    assert not node.broker.stalled


def test_thousands_that_wait_are_acknowledged_each_once_in_their_order(node: MemoryBroker) -> None:
    """As many as gather while a disk is slow: they are joined meanwhile."""
    node.settings.receive_maximum = 2000
    keeper = Keeper(node)
    client = node.connect("a")
    publish(client, *["t"] * 1500)
    promises = client.channel.promises
    assert promises is not None and len(promises) == 1500
    keeper.release()
    assert acked(client) == list(range(1, 1501))
    assert len(promises) == 0
