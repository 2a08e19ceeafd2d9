"""Many replays of one session that wait: what they cost who publishes, and what comes of them."""

from __future__ import annotations

import random
from itertools import product

import pytest

from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.codec.topic import match
from mqttd.session.replays import Replays
from tests.support.memory import MemoryBroker, MemoryClient
from tests.unit.broker.test_replays import NARROW, read

PARTS = [f"a{number}" for number in range(10)]
DEEP = "/".join(PARTS)


def blocked(node: MemoryBroker) -> MemoryClient:
    """A client whose window is full of a message that it does not acknowledge."""
    client = node.connect("c", 5, clean=False, properties={**NARROW})
    client.send(Subscribe(1, [Subscription("full", 1)]))
    node.broker.publish_text("full", b"", 1)
    return client


def subscribe(client: MemoryClient, *filters: str) -> None:
    for at in range(0, len(filters), 1000):
        client.send(Subscribe(2, [Subscription(each, 1) for each in filters[at : at + 1000]]))
    while client.channel.intake is not None:
        client.node.run_soon()
    client.node.run_soon()


def replays(client: MemoryClient) -> Replays:
    found = client.session.replays
    assert found is not None
    return found


def shapes(topic: str) -> list[str]:
    """All filters of the depth of a topic that match it."""
    return ["/".join(words) for words in product(*((word, "+") for word in topic.split("/")))]


def looks(node: MemoryBroker, client: MemoryClient, topic: str) -> tuple[int, int]:
    """Filters looked up, and replays asked, for one message of this topic."""
    found = replays(client)
    found.looked = found.asked = 0
    node.broker.publish_text(topic, b"new", 1)
    return found.looked, found.asked


def test_who_publishes_does_not_look_at_all_that_wait() -> None:
    """1,024 waited, and each message of anybody to this session asked all of them."""
    node = MemoryBroker()
    node.broker.publish_text(DEEP, b"old", 1, True)
    node.broker.publish_text("v/x", b"old", 1, True)
    client = blocked(node)
    client.send(Subscribe(2, [Subscription("v/#", 1, retain_handling=2)]))
    subscribe(client, *shapes(DEEP))
    assert len(client.session.all_replays()) == 1024
    assert looks(node, client, "v/y") == (0, 0), "nothing of it is retained"
    looked, asked = looks(node, client, "v/x")
    assert looked <= 65 and asked == 0
    assert looks(node, client, "v/x") == (0, 0), "it has had its turn"
    looked, asked = looks(node, client, DEEP)
    assert looked <= 65 and 0 < asked <= 64
    assert looks(node, client, DEEP) == (0, 0)
    # What is retained of it now came as a message.
    node.broker.publish_text(DEEP, b"new", 1, True)
    assert looks(node, client, DEEP) == (0, 0)
    # Of another SUBSCRIBE no more than that is looked up.
    subscribe(client, *shapes(DEEP)[:2])
    assert looks(node, client, DEEP) == (2, 2)
    account = client.session.account
    client.drop()
    assert node.broker.registry.end_session("c", 0x98, "kicked")
    assert account.replays == 0


def test_one_message_has_few_copies_go_ahead_of_it_and_none_comes_later() -> None:
    node = MemoryBroker()
    node.settings.mqueue_max_length = 5000
    for topic in (DEEP, "a0/b"):
        node.broker.publish_text(topic, b"old", 1, True)
    client = blocked(node)
    subscribe(client, *shapes(DEEP), "a0/b")
    node.broker.publish_text(DEEP, b"new", 1)
    got = [(p.topic, p.payload) for p in read(client)]
    of_deep = [payload for topic, payload in got if topic == DEEP]
    assert of_deep.pop() == b"new"
    assert 0 < len(of_deep) <= 64 and set(of_deep) == {b"old"}
    assert got.count(("a0/b", b"old")) == 1
    assert client.session.replays is None and client.session.account.replays == 0


@pytest.mark.parametrize("again", [False, True])
def test_of_more_kinds_than_are_told_apart_one_copy_goes_for_all_others(again: bool) -> None:
    """It would be missed, or come after what is newer."""
    node = MemoryBroker()
    for topic in (DEEP, "v/x"):
        node.broker.publish_text(topic, b"old", 1, True)
    client = blocked(node)
    subscribe(client, *shapes(DEEP)[:100], *(["+/x", "v/+"] if again else ["+/x"]))
    for number in range(3):
        node.broker.publish_text("v/x", b"new%d" % number, 1)
    got = [p.payload for p in read(client) if p.topic == "v/x"]
    assert got == [b"old", b"new0", b"new1", b"new2"]


def test_a_client_with_many_filters_gets_each_retained_message_once() -> None:
    """Those of one kind are told apart, however many they are; so are those without wildcards."""
    node = MemoryBroker()
    node.settings.mqueue_max_length = 5000
    filters = []
    for number in range(300):
        filters += [f"x/{number}", f"y/+/{number}"]
        node.broker.publish_text(f"x/{number}", b"old", 2, True)
        node.broker.publish_text(f"y/z/{number}", b"old", 2, True)
    client = blocked(node)
    subscribe(client, *filters)
    live = [f"x/{number}" for number in range(0, 300, 3)]
    live += [f"y/z/{number}" for number in range(0, 300, 5)]
    for topic in live:
        node.broker.publish_text(topic, b"new", 1)
        assert replays(client).looked <= 2 and replays(client).asked <= 1
    came: dict[str, list[bytes]] = {}
    for packet in read(client):
        came.setdefault(packet.topic, []).append(packet.payload)
    del came["full"]
    assert len(came) == 600
    for topic, payloads in came.items():
        assert payloads == ([b"old", b"new"] if topic in live else [b"old"])


@pytest.mark.parametrize("seed", range(12))
def test_what_goes_ahead_is_what_each_of_them_would_still_have_sent(seed: int) -> None:
    """Few filters, that match each other's topics, beside what the standard says of each."""
    chance = random.Random(seed)
    node = MemoryBroker()
    topics = ["/".join(words) for n in (1, 2, 3) for words in product("ab", repeat=n)]
    for topic in topics:
        if chance.random() < 0.7:
            node.broker.publish_text(topic, b"old", 1, True)
    kept = {topic for topic in topics if topic in node.broker.retainer.topics}
    client = blocked(node)
    due: dict[str, int] = dict.fromkeys(topics, 0)
    expected: dict[str, list[bytes]] = {topic: [] for topic in topics}
    for number in range(40):
        if chance.random() < 0.4:
            words = chance.choices("ab+", k=chance.randrange(1, 4))
            if chance.random() < 0.3:
                words[-1] = "#"
            subscribe(client, "/".join(words))
            for topic in kept:
                if match(topic, "/".join(words)):
                    due[topic] += 1
            continue
        topic = chance.choice(topics)
        payload = b"%d" % number
        if any(match(topic, each) for each in client.session.subscriptions or ()):
            expected[topic] += [b"old"] * due[topic] + [payload]
            due[topic] = 0
        node.broker.publish_text(topic, payload, 1)
    for topic in topics:
        expected[topic] += [b"old"] * due[topic]
    came: dict[str, list[bytes]] = {topic: [] for topic in topics}
    for packet in read(client):
        if isinstance(packet, Publish) and packet.topic != "full":
            came[packet.topic].append(packet.payload)
    assert came == expected


def test_a_subscribe_sees_to_its_own_filters_alone() -> None:
    """It had each replay that waited begin once more."""
    node = MemoryBroker()
    node.broker.publish_text(DEEP, b"old", 1, True)
    client = blocked(node)
    subscribe(client, *shapes(DEEP)[:100])
    assert replays(client).fresh == [] and replays(client).begun == 100
    subscribe(client, "a0/#")
    assert replays(client).fresh == [] and replays(client).begun == 101
