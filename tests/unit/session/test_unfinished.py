"""What is kept of a packet that is not complete: never more than a few times what has come."""

from __future__ import annotations

import random
import sys

import pytest

from mqttd.codec.packets import Publish, Subscribe, Subscription
from mqttd.codec.serializer import serialize
from mqttd.session.ground.unfinished import READ, Unfinished
from tests.support.memory import MemoryBroker

ANNOUNCED = 256_000_000


def fill(kept: Unfinished, data: bytes) -> bytes:
    """As a read of the socket does; gives what `came` gave."""
    with kept.room() as room:
        count = min(len(room), len(data))
        room[:count] = data[:count]
    return kept.came(count)


def real_size(kept: Unfinished) -> int:
    return sys.getsizeof(kept.start) + (0 if kept.buffer is None else sys.getsizeof(kept.buffer))


@pytest.mark.parametrize("chunk", [1, 100, 60_000, 1_000_000])
def test_memory_follows_what_arrives_not_what_is_announced(chunk: int) -> None:
    kept = Unfinished(b"\x30", ANNOUNCED)
    for _ in range(min(200, 8_000_000 // chunk)):
        data = bytes(chunk)
        if kept.direct():
            assert not fill(kept, data)
        else:
            assert not kept.add(data, False)
        assert kept.size <= 4 * kept.arrived
        assert real_size(kept) <= kept.size * 9 // 8 + 1000
        assert kept.arrived == len(kept) == len(kept.whole())


def test_who_announces_much_and_sends_little_gets_no_buffer() -> None:
    kept = Unfinished(b"\x30\xff\xff\xff\x7f", ANNOUNCED)
    assert not kept.direct()
    assert kept.size == 5
    node = MemoryBroker()
    node.settings.max_packet_size = ANNOUNCED * 2
    client = node.connect("c")
    client.feed(b"\x30\xff\xff\xff\x7f")
    assert client.channel.unfinished() == 5
    assert not client.closed


def test_who_has_sent_much_gets_room_for_a_packet_at_once() -> None:
    wire = random.Random(4).randbytes(1 << 20)
    kept = Unfinished(wire[:READ], len(wire), 8 << 20)
    with kept.room() as room:
        assert len(room) == len(wire) - READ
        room[:] = wire[READ:]
    assert kept.came(len(wire) - READ) == wire
    node = MemoryBroker()
    sender = node.connect("sender")
    small = serialize(Publish("t", bytes(1000)), 4)
    large = serialize(Publish("t", bytes(1_000_000)), 4)
    for round_ in range(3):
        sender.feed(large[: READ // 2])
        rest = sender.channel.rest
        assert rest is not None and rest.direct()
        with rest.room() as room:
            # Never more than an eighth of all that has come, or four times what has of the packet.
            most = max(sender.channel.bytes_received // 8, READ * 2)
            assert len(room) + READ // 2 == min(most, len(large))
        sender.feed(large[READ // 2 :])
        for _ in range(4_000):
            sender.feed(small)
        assert sender.channel.rest is None
        assert round_ < 2 or sender.channel.bytes_received // 8 > len(large)


@pytest.mark.parametrize("seed", range(40))
def test_bytes_come_out_as_they_went_in(seed: int) -> None:
    rnd = random.Random(seed)
    need = rnd.choice([2, 5_000, READ, 200_000, 1_000_000])
    wire = rnd.randbytes(need + rnd.choice([0, 1, 70_000]))
    at = rnd.randrange(1, min(need, READ))
    kept = Unfinished(wire[:at], need)
    exact = need <= READ and rnd.random() < 0.3
    most = rnd.choice([3_000, 70_000, 300_000])
    got = b""
    while not got:
        chunk = wire[at : at + rnd.randrange(1, most)]
        if not exact and kept.direct():
            before = kept.arrived
            got = fill(kept, chunk)
            at += kept.arrived - before
        else:
            got = kept.add(chunk, exact)
            at += len(chunk)
        if not got:
            assert kept.whole() == wire[:at]
            assert not exact or kept.size == at
    assert at >= need
    assert got == wire[:at]


def test_a_large_packet_is_handed_out_without_a_copy() -> None:
    wire = random.Random(3).randbytes(1 << 20)
    kept = Unfinished(wire[:READ], len(wire))
    reads = 0
    got = b""
    while not got:
        got = fill(kept, wire[kept.arrived :])
        reads += 1
    assert reads <= 4
    assert kept.buffer is not None and kept.buffer.getvalue() is got


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_large_message_read_in_place_is_delivered(version: int, qos: int) -> None:
    node = MemoryBroker()
    reader = node.connect("reader", version)
    reader.send(Subscribe(1, [Subscription("t", qos)]))
    reader.take()
    sender = node.connect("sender", version)
    payload = random.Random(qos).randbytes(900_000)
    wire = serialize(Publish("t", payload, qos, packet_id=7 if qos else 0), version)
    before = node.broker.metrics.bytes_received
    sender.feed(wire[:READ])
    at = READ
    while at < len(wire):
        rest = sender.channel.rest
        assert rest is not None and rest.direct()
        assert sender.channel.unfinished() == rest.size
        with rest.room() as room:
            count = min(len(room), len(wire) - at)
            room[:count] = wire[at : at + count]
        sender.channel.came(count)
        at += count
    node.broker.perform()
    assert sender.channel.unfinished() == 0
    assert node.broker.metrics.bytes_received - before == len(wire)
    assert [packet.payload for packet in reader.published()] == [payload]
