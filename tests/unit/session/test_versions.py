"""A session that speaks MQTT 3.1.1 for a while: its subscriptions keep what 5.0 has said of them.

Subscription Identifiers do not fit a PUBLISH of 3.1.1, and come with it once the session speaks 5.0
again (MQTT-3.3.4-3).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqttd.broker.publish import local
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.codec.properties import Properties
from tests.support.account import audit
from tests.support.memory import MemoryBroker, MemoryClient

LASTING: Properties = {prop.SESSION_EXPIRY_INTERVAL: 1000}
SAID: Properties = {prop.CONTENT_TYPE: "text/plain", prop.USER_PROPERTY: [("a", "b")]}
EXPIRY: Properties = {prop.MESSAGE_EXPIRY_INTERVAL: 1000}


def newer(node: MemoryBroker, client_id: str) -> MemoryClient:
    return node.connect(client_id, 5, False, properties=dict(LASTING))


def subscribe(client: MemoryClient, identifier: int, *asked: Subscription) -> None:
    client.send(Subscribe(1, list(asked), {prop.SUBSCRIPTION_IDENTIFIER: [identifier]}))
    client.take()


def identified(node: MemoryBroker, client_id: str, *identifiers: int, qos: int = 2) -> MemoryClient:
    """A client of MQTT 3.1.1 whose session has filters with these identifiers."""
    client = newer(node, client_id)
    for identifier, topic_filter in zip(identifiers, ("a", "+"), strict=False):
        subscribe(client, identifier, Subscription(topic_filter, qos))
    client.drop()
    return node.connect(client_id, 4, False)


def back(node: MemoryBroker, client_id: str) -> list[tuple[bytes, Properties | None]]:
    """What the session's client gets when it speaks 5.0 again."""
    client = newer(node, client_id)
    audit(node.broker, [client.channel])
    found = [(packet.payload, packet.properties) for packet in client.published()]
    client.drop()
    return found


def published(node: MemoryBroker, version: int, qos: int, said: Properties) -> Properties:
    publisher = node.connect("publisher", version)
    publisher.send(Publish("a", b"1", qos, packet_id=1 if qos else 0, properties=dict(said)))
    publisher.drop()
    return said


def older(node: MemoryBroker, qos: int) -> Properties:
    return published(node, 4, qos, {})


def plain(node: MemoryBroker, qos: int) -> Properties:
    return published(node, 5, qos, {})


def telling(node: MemoryBroker, qos: int) -> Properties:
    return published(node, 5, qos, {**SAID, **EXPIRY})


def plugin(node: MemoryBroker, qos: int) -> Properties:
    local.publish(node.broker, "a", b"1", qos, properties=dict(SAID))
    node.broker.perform()
    return SAID


Publisher = Callable[[MemoryBroker, int], Properties]
every_publisher = pytest.mark.parametrize("publisher", [older, plain, telling, plugin])


@every_publisher
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_what_was_queued_comes_with_its_identifiers(
    publisher: Publisher, qos: int, granted: int
) -> None:
    node = MemoryBroker()
    identified(node, "c", 127, 268_435_455, qos=granted).drop()
    identified(node, "other", 3, qos=granted).drop()
    said = publisher(node, qos)
    numbers: Properties = {prop.SUBSCRIPTION_IDENTIFIER: [127, 268_435_455]}
    assert back(node, "c") == [(b"1", {**said, **numbers})]
    assert back(node, "other") == [(b"1", {**said, prop.SUBSCRIPTION_IDENTIFIER: [3]})]


@every_publisher
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_in_flight_comes_with_its_identifiers(publisher: Publisher, qos: int) -> None:
    node = MemoryBroker()
    client = identified(node, "c", 127)
    said = publisher(node, qos)
    (sent,) = client.published()
    assert (sent.payload, sent.qos, sent.properties) == (b"1", qos, None)
    client.drop()
    assert back(node, "c") == [(b"1", {**said, prop.SUBSCRIPTION_IDENTIFIER: [127]})]


@every_publisher
def test_a_filter_that_was_subscribed_to_anew_has_none(publisher: Publisher) -> None:
    node = MemoryBroker()
    client = identified(node, "c", 127)
    client.send(Subscribe(1, [Subscription("a", 1)]))
    client.drop()
    said = publisher(node, 1)
    assert back(node, "c") == [(b"1", said or None)]


@every_publisher
def test_a_member_of_a_shared_group_gets_its_own(publisher: Publisher) -> None:
    node = MemoryBroker()
    client = newer(node, "c")
    subscribe(client, 127, Subscription("$share/g/a", 1))
    client.drop()
    client = node.connect("c", 4, False)
    said = publisher(node, 1)
    assert len(client.published()) == 1
    client.drop()
    assert back(node, "c") == [(b"1", {**said, prop.SUBSCRIPTION_IDENTIFIER: [127]})]


def test_its_own_messages_have_those_without_no_local() -> None:
    node = MemoryBroker()
    client = newer(node, "c")
    subscribe(client, 1, Subscription("a", 1, no_local=True))
    subscribe(client, 2, Subscription("+", 1))
    client.drop()
    client = node.connect("c", 4, False)
    client.send(Publish("a", b"1", 1, packet_id=1))
    assert len(client.published()) == 1
    client.drop()
    assert back(node, "c") == [(b"1", {prop.SUBSCRIPTION_IDENTIFIER: [2]})]
