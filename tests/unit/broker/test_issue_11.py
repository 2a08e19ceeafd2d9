"""Faults of the way of a message that were found from outside (issue 11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import Puback, Publish, Subscribe, Subscription, Unsubscribe
from mqttd.testing.memory import MemoryBroker
from tests.support.memory import MemoryBroker as PlainBroker

RULES = """\
{deny, all, publish, ["secret/#"]}.
{deny, all, {publish, [{retain, true}]}, ["live/#"]}.
{allow, all, publish, ["+/%c/#"]}.
{allow, all, subscribe, ["#"]}.
{deny, all}.
"""


@pytest.mark.parametrize("qos", [1, 2])
def test_issue_11_an_answer_for_one_topic_and_qos_is_no_answer_for_another(
    tmp_path: Path, qos: int
) -> None:
    """The flags of a remembered answer and the length of its topic cannot pass for one another."""
    rules = tmp_path / "acl.conf"
    rules.write_text(RULES)
    node = MemoryBroker()
    (entry,) = [one for one in node.access.authorization._modules if one.file is not None]
    entry.file.path = str(rules)
    node.access.reload_acl()
    node.broker.access_changed()
    victim = node.connect("victim")
    victim.subscribe("#", qos=2)
    mallory = node.connect("mallory")
    first = qos << 1
    topic = "secret/mallory/" + "x" * (first * 256 + first - 1 - 15)
    assert mallory.publish(topic, b"1", qos=qos) >= 0x80
    mallory.publish(chr(first - 1) + topic, b"allowed", qos=0)
    assert mallory.publish(topic, b"2", qos=qos) >= 0x80
    assert [message.payload for message in victim.messages()] == [b"allowed"]


def retained(node: PlainBroker, count: int) -> None:
    keeper = node.connect("keeper")
    for number in range(count):
        keeper.send(Publish(f"r/{number}", b"old", 1, True, packet_id=1))


def test_issue_11_a_replay_sends_nothing_that_was_replaced_or_deleted_meanwhile() -> None:
    node = PlainBroker()
    retained(node, 10)
    slow = node.connect("slow", version=5, properties={prop.RECEIVE_MAXIMUM: 1})
    slow.send(Subscribe(1, [Subscription("r/#", 1)]))
    other = node.connect("other")
    other.send(Publish("r/3", b"new", 1, True, packet_id=1))
    other.send(Publish("r/4", b"", 1, True, packet_id=2))
    last: dict[str, bytes] = {}
    while True:
        packets = slow.published()
        if not packets:
            break
        for packet in packets:
            last[packet.topic] = packet.payload
            slow.send(Puback(packet.packet_id))
    assert last["r/3"] == b"new" and last["r/4"] == b""
    assert [payload for topic, payload in last.items() if topic not in ("r/3", "r/4")] == [
        b"old"
    ] * 8


def test_issue_11_a_filter_has_one_replay_and_none_when_it_is_gone() -> None:
    node = PlainBroker()
    retained(node, 3)
    slow = node.connect("slow", version=5, properties={prop.RECEIVE_MAXIMUM: 1})
    for number in range(100):
        slow.send(Subscribe(number + 1, [Subscription("r/#", 1)]))
    session = node.session("slow")
    assert session is not None and session.replays is not None and len(session.replays) == 1
    slow.send(Unsubscribe(200, ["r/#"]))
    assert session.replays is None


def test_issue_11_who_has_too_many_acknowledgements_held_is_not_read_from() -> None:
    node = PlainBroker()
    node.settings.receive_maximum = 4
    held = []
    node.broker.add_holder(lambda release, client_id: held.append(release))
    client = node.connect("c")
    for number in range(4):
        client.send(Publish("a", b"x", 1, packet_id=number + 1))
    assert client.channel.paused
    for release in held:
        release()
    node.run_soon()
    assert not client.channel.paused


def test_issue_11_a_retained_message_keeps_no_decoded_copy_of_itself() -> None:
    node = PlainBroker()
    retained(node, 2)
    node.hooks.hook("message.delivered", lambda client, message: None)
    node.connect("s").send(Subscribe(1, [Subscription("r/#", 1)]))
    kept = [node.broker.retainer.get(f"r/{number}") for number in range(2)]
    assert all(one is not None and one.message is None for one in kept)
