"""Subscribers inside the process: they get what a client would, in turns of their own."""

from __future__ import annotations

import pytest

from mqttd.broker.publish import local
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Suback, Subscribe, Subscription
from mqttd.codec.reasons import MqttError, TopicFilterInvalid, TopicNameInvalid
from mqttd.session.ground.message import Message
from mqttd.session.routes.route import SPREAD
from mqttd.types import OK
from tests.support.memory import MemoryBroker


class Heard(list[Message]):
    """A receiver that remembers."""

    def texts(self) -> list[str]:
        return [f"{message.topic} {message.payload.decode()}" for message in self]


@pytest.fixture
def node() -> MemoryBroker:
    return MemoryBroker()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_a_receiver_gets_what_clients_publish(node: MemoryBroker, qos: int, version: int) -> None:
    heard = Heard()
    local.subscribe(node.broker, "test", "a/+", heard.append)
    alice = node.connect("alice", version)
    alice.send(*(Publish("a/b", b"%d" % n, qos, packet_id=n if qos else 0) for n in range(1, 4)))
    assert not heard, "never in the publisher's own turn"
    node.run_soon()
    assert heard.texts() == ["a/b 1", "a/b 2", "a/b 3"]
    assert [message.qos for message in heard] == [qos] * 3
    assert [message.client_id for message in heard] == ["alice"] * 3


def test_it_leaves_the_fast_path_and_other_subscribers_alone(node: MemoryBroker) -> None:
    heard = Heard()
    bob = node.connect("bob")
    bob.send(Subscribe(1, [Subscription("a/b", 1)]))
    bob.take()
    local.subscribe(node.broker, "test", "#", heard.append)
    assert node.broker.router.of("a/b").gear == SPREAD  # no Message is made for it
    node.connect("alice").send(Publish("a/b", b"x", 1, packet_id=7))
    node.run_soon()
    assert [packet.payload for packet in bob.published()] == [b"x"]
    assert heard.texts() == ["a/b x"]


def test_what_goes_to_another_member_of_its_group_is_not_counted_as_dropped(
    node: MemoryBroker,
) -> None:
    first, heard, own = Heard(), Heard(), Heard()
    gone = local.subscribe(node.broker, "first", "$share/g/a/+", first.append)
    alone = local.subscribe(node.broker, "alone", "a/+", own.append)
    node.connect("alice").send(*(Publish("a/b", b"%d" % n, 1, packet_id=n) for n in range(1, 4)))
    local.subscribe(node.broker, "second", "$share/g/a/+", heard.append)
    gone.close()
    assert node.broker.metrics.dropped_session_ended == 0
    alone.close()
    assert node.broker.metrics.dropped_session_ended == 3
    node.run_soon()
    assert len(heard) == 3 and not first and not own


def test_retained_messages_come_first_and_in_full(node: MemoryBroker) -> None:
    alice = node.connect("alice")
    for number in range(300):
        alice.send(Publish(f"r/{number}", b"old", retain=True))
    heard = Heard()
    local.subscribe(node.broker, "test", "r/#", heard.append)
    alice.send(Publish("r/new", b"new"))
    node.run_soon()
    assert len(heard) == 301
    assert heard.texts()[-1] == "r/new new"
    assert all(message.retain for message in heard[:300])
    without = Heard()
    local.subscribe(node.broker, "test", "r/#", without.append, retain_handling=2)
    node.run_soon()
    assert not without


def test_a_paused_receiver_keeps_the_newest_and_the_drops_are_counted(node: MemoryBroker) -> None:
    heard = Heard()
    session = local.subscribe(node.broker, "slow", "#", heard.append, max_length=3)
    session.pause()
    lost: list[tuple[str, bytes]] = []
    node.hooks.hook(
        "delivery.dropped",
        lambda client, reason, message: lost.append((client.client_id, message.payload)),
    )
    for number in range(1, 6):
        local.publish(node.broker, "t", b"%d" % number, qos=1)
    node.run_soon()
    assert not heard
    assert session.waiting_messages() == 3
    assert node.broker.metrics.dropped_queue_full == 2
    assert lost == [("slow", b"1"), ("slow", b"2")]
    session.resume()
    node.run_soon()
    assert [message.payload for message in heard] == [b"3", b"4", b"5"]


def test_a_receiver_may_publish_subscribe_and_close(node: MemoryBroker) -> None:
    heard = Heard()

    def echo(message: Message) -> None:
        heard.append(message)
        if len(heard) < 3:
            local.publish(node.broker, "ping", message.payload + b"!")
        else:
            session.close()

    session = local.subscribe(node.broker, "echo", "ping", echo)
    local.publish(node.broker, "ping", b"hi")
    node.run_soon()
    assert [message.payload for message in heard] == [b"hi", b"hi!", b"hi!!"]
    assert local.publish(node.broker, "ping", b"late") == 0
    session.close()
    node.run_soon()
    assert len(heard) == 3
    assert node.broker.stats()["subscriptions"] == 0


def test_a_receiver_that_raises_is_logged_and_goes_on(node: MemoryBroker) -> None:
    heard = Heard()

    def fragile(message: Message) -> None:
        if message.payload == b"bad":
            raise ValueError("cannot read this")
        heard.append(message)

    local.subscribe(node.broker, "fragile", "t", fragile)
    local.publish(node.broker, "t", b"bad")
    local.publish(node.broker, "t", b"good")
    node.run_soon()
    assert heard.texts() == ["t good"]
    ((event, fields),) = node.events
    assert event == "local subscriber failed"
    assert (fields["name"], fields["topic"]) == ("fragile", "t")
    assert "cannot read this" in str(fields["traceback"])


def test_many_messages_are_taken_in_batches(node: MemoryBroker) -> None:
    heard = Heard()
    local.subscribe(node.broker, "test", "t", heard.append)
    for _ in range(local.BATCH + 1):
        local.publish(node.broker, "t", b"")
    (task,) = node.tasks
    node.tasks = []
    task()
    assert len(heard) == local.BATCH
    node.run_soon()
    assert len(heard) == local.BATCH + 1


def test_shared_subscriptions_count_it_as_a_member(node: MemoryBroker) -> None:
    heard = Heard()
    session = local.subscribe(node.broker, "test", "$share/g/t", heard.append)
    bob = node.connect("bob")
    bob.send(Subscribe(1, [Subscription("$share/g/t", 1)]))
    assert isinstance(bob.take()[0], Suback)
    for _ in range(10):
        local.publish(node.broker, "t", b"x", qos=1)
    node.run_soon()
    assert (len(heard), len(bob.published())) == (5, 5)
    session.close()
    local.publish(node.broker, "t", b"x")
    node.run_soon()
    assert len(bob.published()) == 1


def test_what_waits_in_a_group_goes_to_another_member_when_it_closes(node: MemoryBroker) -> None:
    heard = Heard()
    session = local.subscribe(node.broker, "test", "$share/g/t", heard.append)
    local.publish(node.broker, "t", b"x", qos=1)
    bob = node.connect("bob")
    bob.send(Subscribe(1, [Subscription("$share/g/t", 1)]))
    bob.take()
    session.close()
    node.broker.perform()
    node.run_soon()
    assert [packet.payload for packet in bob.published()] == [b"x"]
    assert not heard


def test_publish_runs_hooks_counts_receivers_and_reaches_clients(node: MemoryBroker) -> None:
    bob = node.connect("bob", 5)
    bob.send(Subscribe(1, [Subscription("t", 1)]))
    bob.take()
    node.hooks.hook("message.publish", lambda message: OK(message.replace(payload=b"hooked")))
    properties = {prop.CONTENT_TYPE: "text/plain", prop.MESSAGE_EXPIRY_INTERVAL: 60}
    assert local.publish(node.broker, "t", b"x", qos=1, properties=properties) == 1
    node.run_soon()
    (got,) = bob.published()
    assert got.payload == b"hooked"
    assert got.properties == properties
    assert properties[prop.MESSAGE_EXPIRY_INTERVAL] == 60


def test_a_message_that_expires_while_it_waits_is_not_handed_over(node: MemoryBroker) -> None:
    heard = Heard()
    session = local.subscribe(node.broker, "test", "t", heard.append)
    session.pause()
    local.publish(node.broker, "t", b"x", properties={prop.MESSAGE_EXPIRY_INTERVAL: 1})
    node.advance(2000)
    session.resume()
    node.run_soon()
    assert not heard
    assert node.broker.metrics.dropped_expired == 1


def test_bad_topics_and_qos_are_refused(node: MemoryBroker) -> None:
    with pytest.raises(TopicFilterInvalid):
        local.subscribe(node.broker, "test", "a/#/b", print)
    with pytest.raises(TopicNameInvalid):
        local.publish(node.broker, "a/#", b"")
    with pytest.raises(ValueError, match="QoS 3"):
        local.publish(node.broker, "a", b"", qos=3)
    node.settings.wildcard_subscription = False
    with pytest.raises(MqttError, match="cannot subscribe to #"):
        local.subscribe(node.broker, "test", "#", print)


def test_no_client_sees_it_or_takes_it_over(node: MemoryBroker) -> None:
    heard = Heard()
    local.subscribe(node.broker, "test", "t", heard.append)
    assert node.session("test") is None
    node.connect("test").send(Publish("t", b"x"))
    node.run_soon()
    assert heard.texts() == ["t x"]


def test_what_expired_meanwhile_is_not_routed_again(node: MemoryBroker) -> None:
    heard = Heard()
    local.subscribe(node.broker, "test", "t", heard.append)
    reasons: list[str] = []
    node.hooks.hook("message.dropped", lambda client, reason, message: reasons.append(reason))
    message = Message(1, "t", b"x", expires_at=node.now + 1000)
    assert local.republish(node.broker, message) == 1
    node.advance(2000)
    assert local.republish(node.broker, message) == 0
    assert len(heard) == 1
    assert reasons == ["expired"]
