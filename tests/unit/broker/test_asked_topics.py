"""client.authorize hooked for some topics: there each client is asked for, elsewhere its class."""

from __future__ import annotations

from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.types import STOP, Action, ClientInfo, HookResult, Verdict
from tests.support.memory import AllowAll, MemoryBroker, MemoryClient


class Free(AllowAll):
    """Classes that may publish anything."""

    def constant(self, number: int) -> bool:
        return True


def decided(node: MemoryBroker, writer: MemoryClient, topic: str) -> int:
    """How many decisions a message costs."""
    before = node.broker.metrics.rights_decided
    writer.send(Publish(topic, b"x", 1, packet_id=1))
    writer.take()
    return node.broker.metrics.rights_decided - before


def test_a_hook_for_some_topics_leaves_the_others_the_answers_that_clients_share() -> None:
    node = MemoryBroker()
    asked: list[tuple[str, str]] = []

    def authorize(who: ClientInfo, action: Action, topic: str, verdict: Verdict) -> HookResult:
        asked.append((who.client_id, topic))
        return STOP(Verdict.DENY if topic == "a/denied" else Verdict.IGNORE)

    node.hooks.hook("client.authorize", authorize, topic_filter="a/#")
    reader = node.connect("reader")
    reader.send(Subscribe(1, [Subscription("b/#", 1), Subscription("a/#", 1)]))
    assert asked == [("reader", "a/#")]
    reader.take()
    first, second = node.connect("first"), node.connect("second")
    asked.clear()
    assert decided(node, first, "b/1") == 1
    assert decided(node, second, "b/1") == 0
    assert asked == []
    for _ in range(2):
        for writer in (first, second):
            decided(node, writer, "a/1")
            decided(node, writer, "a/denied")
    assert asked.count(("first", "a/1")) == asked.count(("second", "a/1")) == 1
    assert asked.count(("first", "a/denied")) == 2
    assert [packet.topic for packet in reader.published()] == ["b/1", "b/1", *["a/1"] * 4]


def test_a_class_that_may_publish_anything_is_asked_on_the_topics_of_a_hook() -> None:
    node = MemoryBroker(access=Free())
    denied: list[str] = []

    def authorize(who: ClientInfo, action: Action, topic: str, verdict: Verdict) -> HookResult:
        denied.append(topic)
        return STOP(Verdict.DENY)

    for topic_filter, topics in (("$own/#", ["$own/a"]), ("a/#", ["a/b"])):
        node.hooks.hook("client.authorize", authorize, topic_filter=topic_filter)
        writer = node.connect("writer")
        for topic in ("$own/a", "a/b", "b"):
            decided(node, writer, topic)
        assert denied == topics
        denied.clear()
        node.hooks.unhook("client.authorize", authorize)


def test_a_hook_without_a_topic_filter_is_asked_for_each_client() -> None:
    node = MemoryBroker()
    asked: list[str] = []
    node.hooks.hook("client.authorize", lambda who, *_: asked.append(who.client_id), client="f*")
    for name in ("first", "second"):
        decided(node, node.connect(name), "b")
    assert asked == ["first"]
