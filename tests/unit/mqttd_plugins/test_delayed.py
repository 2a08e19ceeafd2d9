"""delayed: messages wait for their time, within bounds, under the rights of their real topic."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import Will
from mqttd.plugins.calls.watchdog import PluginTimeout
from mqttd.session.ground.message import Message
from mqttd.testing import HookRecorder, MemoryBroker, PluginConformance
from mqttd_plugins.delayed import delayed
from mqttd_plugins.delayed.plugin import BATCH, parse


class TestConformance(PluginConformance):
    plugin = delayed


@pytest.fixture
def node() -> MemoryBroker:
    return MemoryBroker()


@pytest.mark.parametrize(
    ("topic", "parsed"),
    [
        ("$delayed/5/a", (5, "a")),
        ("$delayed/0/a/b", (0, "a/b")),
        ("$delayed/4294967//a", (4294967, "/a")),
        ("$delayed/5/", None),
        ("$delayed/5", None),
        ("$delayed//a", None),
        ("$delayed/-1/a", None),
        ("$delayed/1.5/a", None),
        ("$delayed/٣/a", None),
        ("$delayed/99999999/a", None),
        ("$delayed/1/$delayed/1/a", None),
        ("$delayed/1/$SYS/broker/version", None),
    ],
)
def test_topics(topic: str, parsed: tuple[int, str] | None) -> None:
    assert parse(topic) == parsed


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_comes_when_it_is_time(node: MemoryBroker, qos: int) -> None:
    loaded = node.load(delayed)
    bob = node.connect("bob")
    bob.subscribe("lamp/#", "$delayed/#", qos=2)
    node.connect("alice").publish(
        "$delayed/10/lamp/off", b"x", qos, properties={prop.CONTENT_TYPE: "text/plain"}
    )
    seen = HookRecorder(node.hooks, "message.publish")
    node.advance(9.5)
    assert not bob.messages()
    assert loaded.metrics()["waiting"] == 1
    assert "1 messages wait" in loaded.command("status")
    node.advance(1)
    (message,) = bob.messages()
    assert (message.topic, message.payload, message.qos) == ("lamp/off", b"x", qos)
    assert message.properties == {prop.CONTENT_TYPE: "text/plain"}
    assert seen.only("message.publish").acc.client_id == "alice"
    metrics = loaded.metrics()
    assert (metrics["waiting"], metrics["waiting_bytes"], metrics["published_total"]) == (0, 0, 1)


def test_order_is_by_time_then_arrival(node: MemoryBroker) -> None:
    node.load(delayed)
    heard = node.subscribe("#")
    alice = node.connect("alice")
    for seconds, name in ((3, "c"), (1, "a"), (3, "d"), (2, "b"), (0, "now")):
        alice.publish(f"$delayed/{seconds}/{name}", b"", 1)
    node.advance(5)
    assert [message.topic for message in heard] == ["now", "a", "b", "c", "d"]


def test_many_at_once_come_in_batches(node: MemoryBroker) -> None:
    node.load(delayed)
    heard = node.subscribe("t")
    alice = node.connect("alice")
    for number in range(3 * BATCH):
        alice.publish("$delayed/1/t", b"%d" % number)
    node.advance(2)
    assert [message.payload for message in heard] == [b"%d" % n for n in range(3 * BATCH)]


def test_the_right_is_that_to_the_real_topic(node: MemoryBroker) -> None:
    node.deny("secret")
    node.load(delayed, {"max_delay": 100})
    alice = node.connect("alice")
    assert alice.publish("$delayed/1/secret", b"x", 1) == 0x87
    assert alice.publish("$delayed/1/public", b"x", 1) != 0x87
    assert alice.publish("$delayed/101/public", b"x", 1) == 0x87
    assert alice.publish("$delayed/x/public", b"x", 1) == 0x87
    will = node.connect("bob", will=Will("$delayed/1/secret", b"x"))
    assert will.closed
    heard = node.subscribe("#")
    node.advance(3)
    assert [message.topic for message in heard] == ["public"]


def test_bounds_hold_and_refusals_are_counted(node: MemoryBroker) -> None:
    mine = {"max_per_user": 0, "max_bytes_per_user": 0}  # all of it may be of one
    loaded = node.load(delayed, {"max_messages": 3, "max_bytes": 2000, **mine})
    alice = node.connect("alice")
    alice.publish("$delayed/1/t", bytes(2000))
    for _ in range(5):
        alice.publish("$delayed/1/t", b"x")
    metrics = loaded.metrics()
    assert (metrics["waiting"], metrics["refused_total"]) == (3, 3)
    assert metrics["waiting_bytes"] <= 2000
    node.advance(2)
    alice.publish("$delayed/1/t", b"x")
    assert loaded.metrics()["waiting"] == 1


def test_one_user_takes_no_more_than_its_part(node: MemoryBroker) -> None:
    loaded = node.load(delayed, {"max_messages": 10, "max_per_user": 3})
    alice = node.connect("alice", username="alice")
    answers = [alice.publish("$delayed/5/t", b"x", 1) for _ in range(5)]
    assert [answer == 0x97 for answer in answers] == [False, False, False, True, True]
    bob = node.connect("bob", username="bob")
    assert bob.publish("$delayed/5/t", b"x", 1) < 0x80
    loaded.unload()
    loaded = node.load(delayed, {"max_messages": 10, "max_per_user": 3})
    assert alice.publish("$delayed/5/t", b"x", 1) == 0x97
    node.advance(6)
    assert loaded.metrics()["waiting"] == 0
    assert alice.publish("$delayed/5/t", b"x", 1) < 0x80
    node.advance(6)
    loaded.unload()
    bytes_too = node.load(delayed, {"max_bytes_per_user": 1000})
    assert alice.publish("$delayed/5/t", bytes(600), 1) < 0x80
    assert alice.publish("$delayed/5/t", bytes(600), 1) == 0x97
    assert bob.publish("$delayed/5/t", bytes(600), 1) < 0x80
    assert bytes_too.metrics()["waiting"] == 2


def test_no_few_users_take_it_all(node: MemoryBroker) -> None:
    node.load(delayed, {"max_messages": 60, "max_per_user": 30, "max_bytes_per_user": 20_000})
    greedy = [node.connect(f"m{n}", username=f"mallory-{n}") for n in range(3)]
    for _ in range(40):
        for one in greedy:
            one.publish("$delayed/4294967/t", b"x", 1)
    bob = node.connect("bob", username="bob")
    assert [bob.publish("$delayed/5/t", b"x", 1) < 0x80 for _ in range(5)] == [True] * 5


def test_no_few_users_take_all_bytes(node: MemoryBroker) -> None:
    node.load(delayed, {"max_bytes": 100_000, "max_bytes_per_user": 50_000})
    greedy = [node.connect(f"m{n}", username=f"mallory-{n}") for n in range(2)]
    for _ in range(60):
        for one in greedy:
            one.publish("$delayed/4294967/t", bytes(1000), 1)
    bob = node.connect("bob", username="bob")
    assert [bob.publish("$delayed/5/t", bytes(1000), 1) < 0x80 for _ in range(5)] == [True] * 5


def test_a_message_that_is_broken_off_keeps_no_other_from_coming(
    node: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer was not set again, and the message came once more with the next start."""
    loaded = node.load(delayed)
    alice = node.connect("alice")
    for name in ("long", "short"):
        alice.publish(f"$delayed/1/{name}", b"x")
    handle = loaded.plugin.handle
    whole = type(handle).republish

    def long(self: Any, message: Any) -> int:
        code = whole(self, message)
        if message.topic == "long":
            raise PluginTimeout("kept the reactor for more than 20 ms")
        return code

    monkeypatch.setattr(type(handle), "republish", long)
    heard = node.subscribe("#")
    node.advance(3)
    assert [message.topic for message in heard] == ["long", "short"]
    assert loaded.metrics()["waiting_bytes"] == 0


def test_what_is_refused_when_it_is_due_is_lost_and_said_to_be(node: MemoryBroker) -> None:
    """It counted as published."""
    loaded = node.load(delayed)
    alice = node.connect("alice")
    for payload in (b"large", b"x"):
        alice.publish(f"$delayed/5/{payload.decode()}", payload, 1, True)
    node.broker.retainer.max_payload = 1
    node.advance(6)
    metrics = loaded.metrics()
    assert (metrics["lost_total"], metrics["published_total"], metrics["waiting"]) == (1, 1, 0)


def test_retained_and_expiring_messages_stay_so(node: MemoryBroker) -> None:
    node.load(delayed)
    alice = node.connect("alice")
    alice.publish("$delayed/5/kept", b"x", 1, True)
    expiry = {prop.MESSAGE_EXPIRY_INTERVAL: 3}
    alice.publish("$delayed/5/old", b"x", 1, properties=expiry)
    old = node.connect("bob")
    old.subscribe("old", qos=1)
    node.advance(6)
    assert [message.topic for message in node.subscribe("kept")] == ["kept"]
    assert not old.messages(), "it expired while it waited"


def test_unloading_keeps_what_waits(node: MemoryBroker) -> None:
    loaded = node.load(delayed)
    heard = node.subscribe("#")
    alice = node.connect("alice")
    for seconds, topic in ((2, "b"), (1, "a"), (2, "c"), (20, "d")):
        alice.publish(f"$delayed/{seconds}/{topic}", b"x")
    loaded.unload()
    node.advance(5)
    assert not heard
    again = node.load(delayed)
    alice.publish("$delayed/1/e", b"x")
    node.advance(0.5)
    assert [message.topic for message in heard] == ["a", "b", "c"], "those that were due, in order"
    node.advance(20)
    assert [message.topic for message in heard] == ["a", "b", "c", "e", "d"]
    assert again.metrics()["waiting_bytes"] == 0


def test_a_message_keeps_who_sent_it_and_when_it_expires(node: MemoryBroker) -> None:
    loaded = node.load(delayed)
    expiry = {prop.MESSAGE_EXPIRY_INTERVAL: 30, prop.CONTENT_TYPE: "x"}
    node.connect("alice", username="al").publish("$delayed/10/t", b"x", 1, properties=expiry)
    loaded.unload()
    node.load(delayed)
    seen = HookRecorder(node.hooks, "message.publish")
    node.connect("bob").subscribe("t", qos=1)
    node.advance(11)
    message = seen.only("message.publish").acc
    assert (message.client_id, message.username, message.qos) == ("alice", "al", 1)
    assert message.properties == {prop.CONTENT_TYPE: "x"}
    assert 18_000 < message.expires_at - node.now <= 20_000


def test_what_does_not_fit_is_refused_by_its_reason_code(node: MemoryBroker) -> None:
    node.broker.drawers.most = 1000
    loaded = node.load(delayed)
    alice = node.connect("alice")
    assert alice.publish("$delayed/1/t", b"x", 1) < 0x80
    assert alice.publish("$delayed/1/t", bytes(1000), 1) == 0x97
    assert loaded.metrics()["refused_total"] == 1


def test_bytes_that_are_no_message_are_passed_over(node: MemoryBroker) -> None:
    node.broker.drawers.open("delayed").put("1700000000000-000000000001", b"rubbish")
    loaded = node.load(delayed)
    node.advance(1)
    assert loaded.metrics()["waiting_bytes"] == 0


def test_a_right_that_was_taken_back_meanwhile_counts_when_it_is_due(node: MemoryBroker) -> None:
    loaded = node.load(delayed)
    heard = node.subscribe("#")
    alice, bob = node.connect("alice"), node.connect("bob")
    alice.publish("$delayed/10/secret", b"connected", 1)
    bob.publish("$delayed/10/secret", b"gone", 1)
    bob.publish("$delayed/10/public", b"x", 1)
    bob.disconnect()
    loaded.unload()
    node.deny("secret")
    again = node.load(delayed)
    node.advance(11)
    assert [message.topic for message in heard] == ["public"]
    assert again.metrics()["revoked_total"] == 2


def test_a_publisher_that_has_gone_is_asked_about_by_its_address(node: MemoryBroker) -> None:
    node.load(delayed)
    heard = node.subscribe("#")
    alice = node.connect("alice", username="al")
    alice.publish("$delayed/10/t", b"x", 1)
    alice.disconnect()
    seen = HookRecorder(node.hooks, "client.authorize")
    node.advance(11)
    assert [message.topic for message in heard] == ["t"]
    client = seen.only("client.authorize").args[0]
    assert (client.client_id, client.username, client.peerhost) == ("alice", "al", "127.0.0.1")


def test_a_will_is_asked_about_too_and_what_is_the_brokers_own_is_not(node: MemoryBroker) -> None:
    node.load(delayed)
    heard = node.subscribe("#")
    node.connect("alice", will=Will("$delayed/10/secret", b"x")).drop()
    node.broker.publish(Message(1, "$delayed/10/secret", b"own", 0, False, None, "", None, 0))
    node.deny("secret")
    node.advance(11)
    assert [message.payload for message in heard] == [b"own"]


def test_what_an_earlier_version_has_kept_is_published(node: MemoryBroker) -> None:
    loaded = node.load(delayed)
    message = Message(1, "t", b"x", 1, False, None, "alice", None, 0)
    data = loaded.plugin.handle.dump_message(message)
    loaded.unload()
    node.broker.drawers.open("delayed").put("1700000000000-000000000001", data)
    heard = node.subscribe("#")
    node.load(delayed)
    node.advance(1)
    assert [message.topic for message in heard] == ["t"]


def test_long_user_names_are_not_remembered() -> None:
    node = MemoryBroker()
    node.load(delayed)
    held = 0
    tracemalloc.start()
    try:
        for number in range(60):
            if number == 10:
                gc.collect()
                held = tracemalloc.get_traced_memory()[0]
            client = node.connect("alice", username=f"{number}" + "x" * 60_000)
            client.publish("$delayed/1/t", b"", 1)
            client.disconnect()
            node.advance(2)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - held < 1_000_000
    finally:
        tracemalloc.stop()
