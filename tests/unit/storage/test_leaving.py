"""The end right behind what is to be answered: the answers go first, as far as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttd.codec.serializer import serialize
from mqttd.session.channel.leaving import PATIENCE
from mqttd.session.ground.message import Message
from mqttd.storage.durability import OS
from mqttd.types import OK, STOP
from tests.support.memory import MemoryClient
from tests.unit.storage.test_journal import Kept, kinds, make

STAYS = {prop.SESSION_EXPIRY_INTERVAL: 1000}
ENDS = {prop.SESSION_EXPIRY_INTERVAL: 0}
WILL = Will("will", b"gone", 1, False)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = make(tmp_path, OS)
    yield made
    made.base.close()


def write(client: MemoryClient, *packets: Packet) -> None:
    """All of them in one write."""
    client.feed(b"".join(serialize(packet, client.parser.version) for packet in packets))


ASKED = {
    "subscribe": ([Subscribe(1, [Subscription("a", 1)])], {Suback}),
    "unsubscribe": ([Unsubscribe(1, ["a"])], {Unsuback}),
    "qos1": ([Publish("kept", b"1", 1, False, False, 1)], {Puback}),
    "qos2": ([Publish("kept", b"1", 2, False, False, 1)], {Pubrec}),
    "qos2 whole": ([Publish("kept", b"1", 2, False, False, 1), Pubrel(1)], {Pubrec, Pubcomp}),
    "all": (
        [
            Publish("kept", b"1", 1, False, False, 1),
            Subscribe(2, [Subscription("a", 1)]),
            Unsubscribe(3, ["a"]),
            Pingreq(),
            Publish("kept", b"1", 2, False, False, 4),
        ],
        {Puback, Suback, Unsuback, Pingresp, Pubrec},
    ),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("how", ["open", "with connect", "expiry 0 at last"])
@pytest.mark.parametrize("stays", [True, False])
def test_answers_come_before_the_end(kept: Kept, asked: str, how: str, stays: bool) -> None:
    kept.subscriber("away", "kept", 2, kept=True).drop()
    kept.settle()
    packets, answers = ASKED[asked]
    properties = STAYS if stays else None
    last = Disconnect(0, ENDS if how == "expiry 0 at last" else None)
    if how == "with connect":
        client = kept.node.client(5)
        connect = Connect("c", version=5, clean_start=False, properties=properties, will=WILL)
        write(client, connect, *packets, last)
        answers = answers | {Connack}
    else:
        client = kept.node.connect("c", 5, False, properties=properties, will=WILL)
        kept.settle()
        write(client, *packets, last)
    kept.settle()
    assert set(kinds(client.take())) == answers
    assert client.wire.closed
    session = kept.node.broker.sessions.get("c")
    assert (session is not None) == (stays and how != "expiry 0 at last")
    assert session is None or session.channel is None and session.will is None
    assert kept.node.broker.stats()["connections"] == 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("asked", ASKED)
def test_answers_come_before_the_end_that_a_fault_brings(
    kept: Kept, asked: str, version: int
) -> None:
    kept.subscriber("away", "kept", 2, kept=True).drop()
    heard = kept.subscriber("heard", "#", 0, kept=False)
    properties = STAYS if version == 5 else None
    client = kept.node.connect("c", version, False, properties=properties, will=WILL)
    kept.settle()
    packets, answers = ASKED[asked]
    write(client, *packets, Connect("c", version=version), Publish("late", b"1", 0))
    kept.settle()
    came = client.take()
    if version == 5:
        last = came.pop()
        assert isinstance(last, Disconnect) and last.reason_code == 0x82
    assert set(kinds(came)) == answers
    assert client.wire.closed
    topics = [packet.topic for packet in heard.published()]
    assert "will" in topics and "late" not in topics
    assert kept.node.broker.sessions["c"].last_reason == "a second CONNECT"


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("how", ["open", "with connect"])
@pytest.mark.parametrize("stays", [True, False])
def test_answers_come_before_the_end_of_who_closes_its_half(
    kept: Kept, asked: str, how: str, stays: bool
) -> None:
    kept.subscriber("away", "kept", 2, kept=True).drop()
    heard = kept.subscriber("heard", "will", 0, kept=False)
    packets, answers = ASKED[asked]
    properties = STAYS if stays else None
    if how == "with connect":
        client = kept.node.client(5)
        connect = Connect("c", version=5, clean_start=False, properties=properties, will=WILL)
        write(client, connect, *packets)
        answers = answers | {Connack}
    else:
        client = kept.node.connect("c", 5, False, properties=properties, will=WILL)
        kept.settle()
        write(client, *packets)
    client.channel.input_ended("closed by the client")
    kept.node.broker.perform()
    kept.settle()
    assert set(kinds(client.take())) == answers
    assert client.wire.closed
    assert [packet.payload for packet in heard.published()] == [b"gone"]
    session = kept.node.broker.sessions.get("c")
    assert (session is not None) == stays
    assert session is None or session.last_reason == "closed by the client"


def test_who_says_disconnect_and_closes_its_half_is_answered(kept: Kept) -> None:
    """As TLS brings both in one read."""
    client = kept.client("c", kept=True)
    write(client, Subscribe(1, [Subscription("a", 1)]), Disconnect(0))
    client.channel.input_ended("closed by the client")
    kept.settle()
    assert kinds(client.take()) == [Suback]
    assert kept.node.broker.sessions["c"].last_reason == "client disconnected"


def test_who_has_closed_its_half_and_is_owed_nothing_ends_at_once(kept: Kept) -> None:
    client = kept.client("c", kept=True)
    client.channel.input_ended("closed by the client")
    kept.node.broker.perform()
    assert client.wire.closed


def test_who_has_closed_its_half_may_break_before_it_is_answered(kept: Kept) -> None:
    heard = kept.subscriber("heard", "will", 0, kept=False)
    client = kept.node.connect("c", 5, False, properties=STAYS, will=WILL)
    kept.settle()
    write(client, Subscribe(1, [Subscription("a", 1)]))
    client.channel.input_ended("closed by the client")
    client.drop()
    assert [packet.payload for packet in heard.published()] == [b"gone"]
    kept.settle()
    assert client.take() == []


DENIED = {
    "publish": Publish("denied", b"1", 1, False, False, 9),
    "publish 2": Publish("denied", b"1", 2, False, False, 9),
    "subscribe": Subscribe(9, [Subscription("denied", 1)]),
}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("how", DENIED)
def test_answers_come_before_the_end_of_who_may_not(
    kept: Kept, asked: str, how: str, version: int
) -> None:
    if how == "subscribe" and version == 4:
        pytest.skip("3.1.1 has a code for it, and no end")
    kept.node.settings.deny_disconnect = True
    kept.node.access.denied.add("denied")
    kept.subscriber("away", "kept", 2, kept=True).drop()
    heard = kept.subscriber("heard", "late", 0, kept=False)
    properties = STAYS if version == 5 else None
    client = kept.node.connect("c", version, False, properties=properties)
    kept.settle()
    packets, answers = ASKED[asked]
    write(client, *packets, DENIED[how], Publish("late", b"1", 0))
    kept.settle()
    came = client.take()
    if version == 5:
        last = came.pop()
        assert isinstance(last, Disconnect) and last.reason_code == 0x87
    if how == "subscribe":
        (denied,) = [one for one in came if isinstance(one, Suback) and one.packet_id == 9]
        assert denied.reason_codes == [0x87]
        came.remove(denied)
    assert set(kinds(came)) == answers
    assert client.wire.closed
    assert heard.take() == []


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("asked", ASKED)
def test_answers_come_before_the_end_of_whom_a_hook_refuses(
    kept: Kept, asked: str, qos: int
) -> None:
    """Before MQTT 5.0 the end is all that can be said; each time that it is sent."""

    def refused(message: Message) -> object:
        return STOP(0x97) if message.topic == "refused" else OK

    kept.node.hooks.hook("message.publish", refused)
    kept.node.broker.hooks_changed("message.publish", True)
    kept.subscriber("away", "kept", 2, kept=True).drop()
    heard = kept.subscriber("heard", "late", 0, kept=False)
    packets, answers = ASKED[asked]
    again = False
    for _ in range(2):
        client = kept.node.connect("c", 4, False)
        kept.settle()
        client.take()
        one = Publish("refused", b"1", qos, False, again, 9)
        write(client, *packets, one, Publish("late", b"1", 0))
        kept.settle()
        assert set(kinds(client.take())) == answers
        assert client.wire.closed
        again = True
    assert heard.take() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_answers_come_before_the_end_of_who_sends_what_cannot_be_kept(kept: Kept, qos: int) -> None:
    kept.subscriber("away", "kept", 2, kept=True).drop()
    heard = kept.subscriber("heard", "late", 0, kept=False)
    client = kept.node.connect("c", 4, False)
    kept.settle()
    write(client, Publish("kept", b"1", qos, False, False, 1))
    kept.node.broker.set_stuck(True)
    write(client, Publish("kept", b"2", qos, False, False, 2), Publish("late", b"1", 0))
    assert not client.wire.closed
    kept.settle()
    assert [packet.packet_id for packet in client.take()] == [1]
    assert client.wire.closed
    assert heard.take() == []


def test_a_store_that_is_stuck_is_not_waited_for_for_ever(kept: Kept) -> None:
    kept.subscriber("away", "kept", 1, kept=True).drop()
    client = kept.node.connect("c", 4, False)
    kept.settle()
    write(client, Publish("kept", b"1", 1, False, False, 1))
    kept.node.broker.set_stuck(True)
    write(client, Publish("kept", b"2", 1, False, False, 2))
    kept.node.advance(PATIENCE + 1000)
    assert client.wire.closed
    assert client.take() == []


def test_who_is_owed_nothing_ends_at_once(kept: Kept) -> None:
    client = kept.client("c", kept=True)
    client.send(Subscribe(1, [Subscription("a", 1)]))
    kept.settle()
    client.send(Disconnect(0))
    assert client.wire.closed


def test_what_it_says_holds_at_once(kept: Kept) -> None:
    """Its will is gone though the connection breaks before it is answered."""
    heard = kept.subscriber("heard", "will", 0, kept=False)
    client = kept.node.connect("c", 5, False, properties=STAYS, will=WILL)
    kept.settle()
    write(client, Subscribe(1, [Subscription("a", 1)]), Disconnect(0))
    client.drop()
    kept.settle()
    assert heard.take() == []
    assert kept.node.broker.sessions["c"].last_reason == "client disconnected"


def test_the_will_of_one_that_asks_for_it_comes(kept: Kept) -> None:
    heard = kept.subscriber("heard", "will", 0, kept=False)
    client = kept.node.connect("c", 5, False, properties=STAYS, will=WILL)
    kept.settle()
    write(client, Subscribe(1, [Subscription("a", 1)]), Disconnect(4))
    kept.settle()
    assert kinds(client.take()) == [Suback]
    assert [packet.payload for packet in heard.published()] == [b"gone"]


def test_nothing_behind_it_is_read(kept: Kept) -> None:
    heard = kept.subscriber("heard", "#", 0, kept=False)
    client = kept.client("c", kept=True)
    write(client, Subscribe(1, [Subscription("a", 1)]), Disconnect(0), Publish("x", b"1", 0))
    client.send(Publish("x", b"2", 0))
    kept.settle()
    assert kinds(client.take()) == [Suback]
    assert heard.published() == []


def test_what_is_retained_goes_with_it(kept: Kept) -> None:
    kept.node.broker.publish_text("r", b"old", 1, True)
    kept.settle()
    client = kept.client("c", kept=True)
    write(client, Subscribe(1, [Subscription("r", 1)]), Disconnect(0))
    kept.settle()
    assert kinds(client.take()) == [Suback, Publish]


def test_nobody_is_waited_for_for_ever(kept: Kept) -> None:
    client = kept.client("c", kept=True)
    write(client, Subscribe(1, [Subscription("a", 1)]), Disconnect(0))
    assert not client.wire.closed
    kept.node.advance(PATIENCE + 1000)
    assert client.wire.closed
    assert client.take() == []
    kept.settle()
    assert kept.node.broker.sessions["c"].subscribed() == 1


def test_it_is_taken_over_without_a_word(kept: Kept) -> None:
    client = kept.client("c", kept=True)
    write(client, Subscribe(1, [Subscription("a", 1)]), Disconnect(0))
    again = kept.node.connect("c", 5, False, properties=STAYS)
    kept.settle()
    assert client.take() == []
    assert client.wire.closed
    assert again.connack is not None
    assert again.session.subscribed() == 1
