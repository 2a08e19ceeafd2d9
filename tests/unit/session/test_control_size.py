"""How large a packet may be that is parsed in one step, whatever is allowed for a PUBLISH."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from mqttd.codec.scan import more_filters
from mqttd.codec.serializer import serialize
from mqttd.session.ground.settings import Settings
from tests.support.memory import MemoryBroker, MemoryClient

PAIRS = [("k", "v" * 10)] * 3


def body_of(packet: Subscribe | Unsubscribe, version: int) -> bytes:
    data = serialize(packet, version)
    at = 1
    while data[at] & 0x80:
        at += 1
    return data[at + 1 :]


@given(count=st.integers(1, 30), most=st.integers(0, 40), version=st.sampled_from([4, 5]))
def test_filters_are_counted(count: int, most: int, version: int) -> None:
    properties = {prop.USER_PROPERTY: PAIRS * 5} if version == 5 else None
    names = [f"{i}/+" for i in range(count)]
    asked = Subscribe(1, [Subscription(name, 1) for name in names], properties)
    assert more_filters(body_of(asked, version), version == 5, 1, most) is (count > most)
    undone = Unsubscribe(1, names, properties)
    assert more_filters(body_of(undone, version), version == 5, 0, most) is (count > most)


@given(st.binary(max_size=40), st.booleans(), st.integers(0, 1), st.integers(0, 10))
def test_any_bytes_may_be_counted(body: bytes, v5: bool, options: int, most: int) -> None:
    more_filters(body, v5, options, most)


def ended(client: MemoryClient) -> int:
    """The reason code of the DISCONNECT that came."""
    (packet,) = (packet for packet in client.take() if isinstance(packet, Disconnect))
    assert client.closed
    return packet.reason_code


@pytest.mark.parametrize("most", [5, 20_000])
def test_more_filters_than_a_session_may_have_end_the_connection_unparsed(most: int) -> None:
    settings = Settings()
    settings.max_subscriptions = most
    node = MemoryBroker(settings)
    limit = max(most, 10_000)
    client = node.connect("a", 5)
    client.send(Subscribe(1, [Subscription("t", 0)] * limit))
    node.run_soon()
    while node.tasks:
        node.run_soon()
    (answer,) = client.take()
    assert isinstance(answer, Suback) and len(answer.reason_codes) == limit
    client.send(Unsubscribe(1, ["t"] * (limit + 1)))
    assert ended(client) == 0x97
    third = node.connect("b", 4)
    third.send(Subscribe(1, [Subscription("t", 0)] * (limit + 1)))
    assert third.closed


def test_only_a_publish_may_be_larger_than_a_megabyte() -> None:
    settings = Settings()
    settings.max_packet_size = 4 << 20
    node = MemoryBroker(settings)
    client = node.connect("a", 5)
    client.send(Publish("t", bytes(2 << 20)))
    assert not client.closed
    pairs = [("k" * 1000, "v" * 1000)] * 600
    client.send(Subscribe(1, [Subscription("t", 0)], {prop.USER_PROPERTY: pairs}))
    assert ended(client) == 0x95


def test_what_has_no_filters_has_few_properties() -> None:
    node = MemoryBroker()
    properties = {prop.REASON_STRING: "r" * 60_000, prop.USER_PROPERTY: [("k", "v" * 60_000)]}
    client = node.connect("a", 5)
    client.send(Puback(1, 0, properties))
    client.send(Subscribe(1, [Subscription("t", 0)], {prop.USER_PROPERTY: [("", "")] * 26_000}))
    assert [type(each) for each in client.take()] == [Suback]
    client.send(Puback(1, 0, {prop.USER_PROPERTY: [("", "")] * 27_000}))
    assert ended(client) == 0x95
    for at, packet in enumerate((Subscribe(1, [Subscription("t", 0)]), Unsubscribe(1, ["t"]))):
        packet.properties = {prop.USER_PROPERTY: [("", "")] * 27_000}
        other = node.connect(f"b{at}", 5)
        other.send(packet)
        assert ended(other) == 0x97


@pytest.mark.parametrize("qos", [0, 1])
def test_properties_are_work_and_what_is_behind_many_waits(qos: int) -> None:
    """Whether they are scanned, or decoded since the message is retained."""
    node = MemoryBroker()
    client = node.connect("a", 5)
    many = Publish("t", b"x", qos, qos == 1, False, qos, {prop.USER_PROPERTY: [("", "")] * 40_000})
    client.feed(serialize(many, 5) + serialize(Pingreq(), 5))
    assert Pingresp not in [type(each) for each in client.take()]
    node.run_soon()
    assert Pingresp in [type(each) for each in client.take()]
