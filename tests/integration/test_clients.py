"""Clients of other people work with the broker: mosquitto's, paho-mqtt, aiomqtt, gmqtt, mqtt.js."""

from __future__ import annotations

import queue
from collections.abc import Callable
from uuid import uuid4

import pytest

from tests.integration.clients import CLIENTS, Client, Mosquitto, Received

Connect = Callable[..., Client]

VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5.0"}
CASES = [
    pytest.param((kind, version), id=f"{name}-{VERSIONS[version]}")
    for name, kind in CLIENTS.items()
    for version in kind.versions
]


@pytest.fixture
def tag() -> str:
    """A first topic level, and start of client ids, of this test alone."""
    return uuid4().hex[:12]


@pytest.fixture(params=CASES)
def client(request: pytest.FixtureRequest, port: int) -> Connect:
    kind, version = request.param
    kind.require()

    def make(client_id: str, durable: bool = False) -> Client:
        made: Client = kind(port, version, client_id, durable)
        return made

    return make


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_wildcard_subscriber_gets_each_message_once(client: Connect, tag: str, qos: int) -> None:
    with client(f"{tag}sub") as subscriber, client(f"{tag}pub") as publisher:
        subscriber.subscribe(f"{tag}/+/temperature/#", qos)
        publisher.publish(f"{tag}/kitchen/humidity", b"another topic", qos)
        publisher.publish(f"{tag}/kitchen/temperature", b"20.5", qos)
        publisher.publish(f"{tag}/hall/temperature/max", b"23", qos)
        assert subscriber.receive() == Received(f"{tag}/kitchen/temperature", b"20.5", qos)
        assert subscriber.receive() == Received(f"{tag}/hall/temperature/max", b"23", qos)
        assert subscriber.inbox.empty()


def test_the_members_of_a_shared_subscription_share_the_messages(client: Connect, tag: str) -> None:
    inbox: queue.Queue[Received] = queue.Queue()
    first, second = client(f"{tag}one"), client(f"{tag}two")
    first.inbox = second.inbox = inbox
    with first, second, client(f"{tag}pub") as publisher:
        first.subscribe(f"$share/group/{tag}/jobs", 1)
        second.subscribe(f"$share/group/{tag}/jobs", 1)
        payloads = [b"%d" % number for number in range(6)]
        for payload in payloads:
            publisher.publish(f"{tag}/jobs", payload, 1)
        received = [first.receive().payload for _ in payloads]
        assert sorted(received) == payloads
        assert inbox.empty()


def test_a_durable_session_keeps_what_was_published_meanwhile(client: Connect, tag: str) -> None:
    topic = f"{tag}/news"
    with client(f"{tag}sub", durable=True) as subscriber:
        assert not subscriber.session_present
        subscriber.subscribe(topic, 1)
    with client(f"{tag}pub") as publisher:
        publisher.publish(topic, b"while you were away", 1)
        returning = client(f"{tag}sub", durable=True)
        with returning:
            if isinstance(returning, Mosquitto):
                returning.subscribe(topic, 1)  # mosquitto_sub connects only to subscribe
            elif returning.version != 3:  # a 3.1 CONNACK has no such flag
                assert returning.session_present in {True, None}
            assert returning.receive() == Received(topic, b"while you were away", 1)
            publisher.publish(topic, b"and now", 1)
            assert returning.receive() == Received(topic, b"and now", 1)
