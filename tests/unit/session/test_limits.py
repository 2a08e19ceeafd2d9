"""Rate limits: what may pass when, that nothing is lost, and that the others go on."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttd.codec import properties as prop
from mqttd.codec.packets import Connect, Pingreq, Puback, Publish, Subscribe, Subscription
from mqttd.codec.properties import Properties
from mqttd.codec.serializer import serialize
from mqttd.session.channel.limits import Bucket, Limits
from mqttd.session.channel.listener import Listener
from tests.support.account import audit
from tests.support.memory import MemoryBroker, MemoryClient

SIZE = 100  # bytes of a message


def limited(**rates: float) -> MemoryBroker:
    """A broker whose clients are all limited."""
    node = MemoryBroker()
    limits = Limits(node.broker.now, **rates)  # type: ignore[arg-type]
    node.broker.listeners["memory"] = Listener("memory", limits=limits)
    return node


def message(number: int, size: int = SIZE, qos: int = 0) -> bytes:
    payload = b"%06d" % number
    short = Publish("t", payload, qos, packet_id=number % 65535 + 1 if qos else 0)
    missing = size - len(serialize(short, 4))
    return serialize(Publish("t", payload + b"x" * missing, qos, packet_id=short.packet_id), 4)


def numbers(watcher: MemoryClient) -> list[int]:
    """The messages that came, by number; those of QoS 1 are acknowledged."""
    packets = watcher.published()
    if acks := [Puback(packet.packet_id) for packet in packets if packet.qos]:
        watcher.send(*acks)
    return [int(packet.payload[:6]) for packet in packets]


def watch(node: MemoryBroker) -> MemoryClient:
    watcher = node.connect("watcher")
    watcher.send(Subscribe(1, [Subscription("t", 0)]))
    watcher.take()
    return watcher


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    bucket = Bucket(10, 2.0, 0)
    bucket.level -= 20
    assert bucket.wait() > 0
    assert bucket.fill(500) == pytest.approx(5)
    bucket.level -= 15
    assert bucket.wait() == 1001
    assert bucket.fill(1_000_000) == 20


def test_messages_beyond_the_burst_come_at_the_rate_and_none_is_lost() -> None:
    node = limited(messages_rate=10)
    watcher = watch(node)
    sender = node.connect("sender")
    sender.feed(b"".join(message(n) for n in range(30)))
    got = numbers(watcher)
    assert len(got) == 10
    assert not sender.wire.reading
    for second in (1, 2):
        node.advance(1000)
        got += numbers(watcher)
        assert abs(len(got) - 10 * (second + 1)) <= 3
    node.advance(2000)
    got += numbers(watcher)
    assert got == list(range(30))
    assert sender.wire.reading
    assert node.broker.metrics.rate_limited >= 1


def test_bytes_are_limited_in_the_same_way() -> None:
    node = limited(bytes_rate=10 * SIZE)
    watcher = watch(node)
    sender = node.connect("sender")
    sender.feed(b"".join(message(n) for n in range(20)))
    assert len(numbers(watcher)) in (9, 10)
    node.advance(2000)
    assert len(numbers(watcher)) in (10, 11)


@pytest.mark.parametrize("at_once", [1, 3, 500])
def test_what_an_alias_stands_for_is_paid_for_as_if_it_were_sent(at_once: int) -> None:
    """7.8 MB a second went into the store for 1.4 kB a second."""
    node = limited(bytes_rate=65_000)
    sender = node.connect("sender", 5, keep_alive=0)
    alias: Properties = {prop.TOPIC_ALIAS: 1}
    sender.send(Publish("x" * 65_000, b"", properties=alias))
    short = serialize(Publish("", b"", properties=alias), 5) * at_once
    metrics = node.broker.metrics
    for _ in range(120):
        if sender.wire.reading:
            sender.feed(short)
        node.advance(250)
    # As many in half a minute, the burst, and what is left as a debt.
    assert 28 <= metrics.messages_received_qos0 <= 36
    assert metrics.rate_limited >= 1


def test_a_packet_larger_than_the_burst_passes_and_is_paid_for_later() -> None:
    node = limited(bytes_rate=1000)
    watcher = watch(node)
    sender = node.connect("sender")
    sender.feed(message(1, 5000) + message(2))
    assert numbers(watcher) == [1]
    node.advance(3000)
    assert numbers(watcher) == []
    node.advance(2000)
    assert numbers(watcher) == [2]


def test_packets_behind_a_connect_are_limited_too() -> None:
    node = limited(messages_rate=5)
    watcher = watch(node)
    sender = node.client()
    hello = serialize(Connect("sender"), 4)
    sender.feed(hello + b"".join(message(n) for n in range(20)))
    assert len(numbers(watcher)) == 5
    node.advance(10_000)
    assert len(numbers(watcher)) == 15
    assert sender.wire.reading


def test_the_connections_of_a_listener_share_its_rate() -> None:
    node = limited(all_messages_rate=10)
    watcher = watch(node)
    senders = [node.connect(f"s{n}") for n in range(4)]
    for at, sender in enumerate(senders):
        sender.feed(b"".join(message(100 * at + n) for n in range(10)))
    got = numbers(watcher)
    assert len(got) == 10
    node.advance(5000)
    got += numbers(watcher)
    assert sorted(got) == sorted(100 * at + n for at in range(4) for n in range(10))


def test_a_limited_client_is_not_taken_for_dead() -> None:
    node = limited(bytes_rate=1000)
    sender = node.connect("sender", keep_alive=2)
    sender.feed(message(1, 20_000))
    node.advance(15_000)
    assert not sender.wire.closed
    node.advance(10_000)
    assert sender.wire.closed  # now it is silent


def test_other_packets_are_not_counted_as_messages() -> None:
    node = limited(messages_rate=1)
    sender = node.connect("sender")
    sender.feed(serialize(Pingreq(), 4) * 50)
    assert len(sender.take()) == 50


def test_what_is_wrong_is_told_as_without_limits() -> None:
    node = limited(messages_rate=10)
    sender = node.connect("sender")
    sender.feed(b"\x30\xff\xff\xff\xff\x7f")
    assert sender.wire.closed


def test_a_limited_connection_that_ends_leaves_nothing_behind() -> None:
    node = limited(messages_rate=1)
    sender = node.connect("sender")
    sender.feed(b"".join(message(n) for n in range(10)))
    channel = sender.channel
    sender.drop()
    assert channel.intake is None
    node.advance(5000)
    assert node.broker.metrics.messages_received_qos0 <= 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(200, 4000))
def test_any_cut_and_any_rate_give_the_same_messages(
    seed: int, messages_rate: int, bytes_rate: int
) -> None:
    chance = random.Random(seed)
    node = limited(messages_rate=messages_rate, bytes_rate=bytes_rate)
    watcher = watch(node)
    sender = node.connect("sender")
    data = b"".join(message(n, chance.randrange(20, 400)) for n in range(60))
    got: list[int] = []
    while data or len(got) < 60:
        if data and sender.wire.reading or chance.random() < 0.1:  # a transport's last words
            cut = chance.randrange(1, 2000)
            sender.feed(data[:cut])
            data = data[cut:]
        node.advance(chance.randrange(1, 2000))
        got += numbers(watcher)
    assert got == list(range(60))


def test_output_goes_at_its_rate_and_nothing_of_qos_1_is_lost() -> None:
    node = limited(send_rate=10 * SIZE)
    receiver = node.connect("receiver")
    receiver.send(Subscribe(1, [Subscription("t", 1)]))
    receiver.take()
    node.broker.listeners.clear()
    sender = node.connect("sender")
    for n in range(50):
        sender.feed(message(n, qos=1))
    got = numbers(receiver)
    assert len(got) < 15
    node.advance(1000)
    second = numbers(receiver)
    assert 5 <= len(second) <= 15
    got += second
    node.advance(6000)
    got += numbers(receiver)
    assert got == list(range(50))
    assert node.broker.backlog == 0
    assert node.broker.metrics.rate_limited_out >= 1


def test_qos_0_beyond_the_watermark_of_a_limited_output_is_dropped_and_counted() -> None:
    node = limited(send_rate=1000)
    node.broker.settings.high_watermark = 4096
    receiver = watch(node)
    node.broker.listeners.clear()
    sender = node.connect("sender")
    for n in range(200):
        sender.feed(message(n))
    assert receiver.channel.out_bytes <= 4096
    dropped = node.broker.metrics.dropped_slow_consumer
    assert dropped > 100
    node.advance(60_000)
    assert len(numbers(receiver)) == 200 - dropped


def test_the_disconnect_of_a_limited_output_is_written() -> None:
    node = limited(send_rate=10)
    receiver = node.connect("receiver", version=5)
    receiver.send(Subscribe(1, [Subscription("t", 0)]))
    receiver.wire.read()
    sender = node.connect("sender")
    for n in range(10):
        sender.feed(message(n))
    node.broker.kick("receiver")
    assert b"\xe0" in bytes(receiver.wire.waiting)
    assert receiver.wire.closed


def test_a_listener_has_its_own_largest_packet() -> None:
    node = limited(largest=2048)
    client = node.connect("c", version=5)
    assert client.connack is not None and client.connack.properties is not None
    assert 2048 in client.connack.properties.values()
    client.send(Publish("t", b"x" * 3000))
    assert client.wire.closed


@pytest.mark.parametrize("rates", [{"messages_rate": 100}, {"bytes_rate": 100 * SIZE}])
@pytest.mark.parametrize("room", [1, 40, 10_000])
def test_what_waits_for_a_later_turn_keeps_its_place(rates: dict[str, int], room: int) -> None:
    node = limited(**rates)
    watcher = watch(node)
    sender = node.connect("sender")
    # Its many filters take more than a turn, while what is behind it is limited too.
    filters = [Subscription(f"f/{number}", 0) for number in range(300)]
    stream = serialize(Subscribe(1, filters), 4)
    stream += b"".join(message(number) for number in range(150))
    for at in range(0, len(stream), len(stream) // room + 1):
        sender.feed(stream[at : at + len(stream) // room + 1])
    got = numbers(watcher)
    for _ in range(160):
        node.advance(250)
        got += numbers(watcher)
    assert got == list(range(150))
    assert sender.wire.reading


def test_what_waits_for_a_later_turn_is_paid_for_once() -> None:
    node = limited(messages_rate=200)
    watcher = watch(node)
    sender = node.connect("sender")
    filters = [Subscription(f"f/{number}", 0) for number in range(300)]
    stream = serialize(Subscribe(1, filters), 4)
    sender.feed(stream + b"".join(message(number) for number in range(150)))
    got = numbers(watcher)
    for _ in range(4):
        node.run_soon()
        got += numbers(watcher)
    assert got == list(range(150))


def test_what_has_passed_is_charged_for_no_longer() -> None:
    """It was until the client sent something again, or had gone."""
    node = limited(messages_rate=10)
    sender = node.connect("sender")
    sender.feed(b"".join(message(number) for number in range(30)))
    assert node.broker.account.unfinished >= 20 * SIZE
    node.advance(4000)
    assert sender.wire.reading
    assert sender.channel.unfinished() == node.broker.account.unfinished == 0
    audit(node.broker, [sender.channel])
