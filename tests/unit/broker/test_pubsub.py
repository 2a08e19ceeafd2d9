"""What a subscriber gets, and what a broker says to one who asks for more than it offers."""

from __future__ import annotations

import pytest

from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import (
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from mqttd.session.ground.settings import Settings
from tests.support.memory import MemoryBroker, MemoryClient

RETAINED = 100_000


@pytest.fixture(scope="module")
def retaining() -> MemoryBroker:
    """A broker with 100,000 retained messages and little output for each client."""
    settings = Settings()
    settings.high_watermark = 16_384
    settings.low_watermark = 4_096
    node = MemoryBroker(settings)
    for number in range(RETAINED):
        topic = f"store/{number // 1000}/{number % 1000}"
        node.broker.publish_text(topic, b"%d" % number, 1, True)
    return node


def read_slowly(node: MemoryBroker, client: MemoryClient, live: bytes) -> list[Publish]:
    """A reader that takes a few kilobytes at a time, acknowledges, and lets turns pass between."""
    got: list[Publish] = []
    idle = 0
    published = False
    while idle < 3:
        packets = [p for p in client.take(6000) if isinstance(p, Publish)]
        got += packets
        idle = 0 if packets else idle + 1
        answers: list[Packet] = [Puback(p.packet_id) for p in packets if p.qos]
        if answers:
            client.send(*answers)
        if len(got) > RETAINED // 2 and not published:
            published = True
            for number in range(20):  # live messages come between, and none pushes one out
                node.broker.publish_text("store/live", live + b"%d" % number, 1)
        node.run_soon()
        node.broker.perform()
    return got


@pytest.mark.slow
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", [4, 5])
def test_a_slow_subscriber_gets_all_retained_messages(
    retaining: MemoryBroker, qos: int, version: int
) -> None:
    client = retaining.connect(f"slow-{qos}-{version}", version, room=8_192)
    client.send(Subscribe(1, [Subscription("store/#", qos)]))
    got = read_slowly(retaining, client, b"live")
    replayed = [int(p.payload) for p in got if p.retain]
    assert len(replayed) == RETAINED and set(replayed) == set(range(RETAINED))
    assert {p.qos for p in got} == {qos}
    if qos:
        assert [p.payload for p in got if not p.retain] == [b"live%d" % n for n in range(20)]
    # Paced: what waits for one client stays near its watermarks, whatever there is to send.
    assert client.wire.peak < 4 * 16_384
    assert not client.closed
    client.drop()


@pytest.mark.slow
def test_many_retained_messages_make_no_queue(retaining: MemoryBroker) -> None:
    """They are taken from the store as the window opens: the queue's limit loses none of them."""
    client = retaining.connect("window", 4)
    client.send(Subscribe(1, [Subscription("store/#", 1)]))
    assert len(client.published()) == retaining.settings.max_inflight
    assert client.session.mqueue is None and client.session.replays
    client.drop()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_retained_message_that_has_no_room_waits_and_the_others_behind_it(qos: int) -> None:
    """Its place in the queue is new to the replay under way (compiled, that was a crash)."""
    node = node_with(high_watermark=500, low_watermark=400)
    for name in "abcdef":
        node.broker.publish_text(f"r/{name}", bytes(300), 2, True)
    client = node.connect("c", room=0)
    client.send(Subscribe(1, [Subscription("r/+", qos)]))
    assert client.session.mqueue is not None and client.session.replays
    got: list[str] = []
    for _ in range(20):
        got += [packet.topic for packet in client.published()]
    assert sorted(got) == ["r/a", "r/b", "r/c", "r/d", "r/e", "r/f"]


def node_with(**settings: object) -> MemoryBroker:
    offered = Settings()
    for name, value in settings.items():
        setattr(offered, name, value)
    return MemoryBroker(offered)


def answered(client: MemoryClient, *filters: str) -> list[int]:
    client.send(Subscribe(1, [Subscription(f, 2) for f in filters]))
    (suback,) = client.take()
    assert isinstance(suback, Suback)
    return suback.reason_codes


@pytest.mark.parametrize(("version", "code"), [(3, 0x80), (4, 0x80), (5, 0xA2)])
def test_wildcards_that_are_not_offered(version: int, code: int) -> None:
    client = node_with(wildcard_subscription=False).connect("c", version)
    if version == 5:
        assert told(client)[prop.WILDCARD_SUBSCRIPTION_AVAILABLE] == 0
    assert answered(client, "a/+", "#", "a/b", "$share/g/a/+", "$share/g/a") == [
        code,
        code,
        2,
        code,
        2,
    ]
    assert not client.closed


@pytest.mark.parametrize(("version", "code"), [(4, 0x80), (5, 0x9E)])
def test_shared_subscriptions_that_are_not_offered(version: int, code: int) -> None:
    client = node_with(shared_subscription=False).connect("c", version)
    if version == 5:
        assert told(client)[prop.SHARED_SUBSCRIPTION_AVAILABLE] == 0
    assert answered(client, "$share/g/a", "$queue/a", "a/#") == [code, code, 2]
    assert not client.closed


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_messages_that_are_not_offered(version: int, qos: int) -> None:
    node = node_with(retain_available=False)
    client = node.connect("c", version)
    if version == 5:
        assert told(client)[prop.RETAIN_AVAILABLE] == 0
    client.send(Publish("a", b"x", qos, True, packet_id=1 if qos else 0))
    assert refused(client, version) == (reasons.RETAIN_NOT_SUPPORTED if version == 5 else None)
    assert len(node.broker.retainer) == 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("most", "qos"), [(0, 1), (0, 2), (1, 2)])
def test_a_qos_that_is_not_offered(version: int, most: int, qos: int) -> None:
    node = node_with(max_qos=most)
    client = node.connect("c", version)
    if version == 5:
        assert told(client)[prop.MAXIMUM_QOS] == most
    # Asked for more, it grants what it has (MQTT-3.2.2-9, 3.9.3).
    assert answered(client, "a") == [most]
    client.send(Publish("a", b"x", most, packet_id=1 if most else 0))
    assert [p.qos for p in client.published()] == [most]
    client.send(Publish("a", b"x", qos, packet_id=2))
    assert refused(client, version) == (reasons.QOS_NOT_SUPPORTED if version == 5 else None)


@pytest.mark.parametrize(
    ("settings", "will", "code"),
    [
        ({"max_qos": 1}, Will("w", b"", 2), 0x9B),
        ({"retain_available": False}, Will("w", b"", 0, True), 0x9A),
    ],
)
def test_a_will_that_is_not_offered(settings: dict[str, object], will: Will, code: int) -> None:
    client = node_with(**settings).connect("c", 5, will=will)
    assert client.connack is not None and client.connack.reason_code == code
    assert client.closed


def told(client: MemoryClient) -> dict[int, object]:
    assert client.connack is not None and client.connack.properties is not None
    return dict(client.connack.properties)


def refused(client: MemoryClient, version: int) -> int | None:
    """The reason the connection ended with; 3.x has no way to tell one."""
    assert client.closed
    packets = client.take()
    if version < 5:
        assert packets == []
        return None
    (last,) = packets
    assert isinstance(last, Disconnect)
    return last.reason_code
