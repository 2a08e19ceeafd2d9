"""The walk of the fixed header, and the copy of it in the channel's loop."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec.frame import (
    body_at,
    counted_run_end,
    header,
    packet_id_at,
    run_end,
    size_at,
    topic_end_at,
    with_id,
)
from mqttd.codec.packets import Publish
from mqttd.codec.reasons import MalformedPacket
from mqttd.codec.serializer import serialize, varint
from tests.support import sizes
from tests.support.memory import MemoryBroker

LENGTHS = [*sizes.LENGTHS, 300, 268_435_455]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("before", [0, 3])
def test_a_length_is_read_when_its_last_byte_is_there(length: int, before: int) -> None:
    head = b"\x30" + varint(length)
    wire = bytes(before) + head + b"\xff" * 3
    for end in range(before, before + len(head)):
        assert header(wire, before, end) == (0, 0)
        assert size_at(wire, before, end) == -1
    for end in range(before + len(head), len(wire) + 1):
        assert header(wire, before, end) == (length, before + len(head))
        assert size_at(wire, before, end) == len(head) + length
    assert body_at(head) == len(head)


def test_a_fifth_byte_of_length_is_not_waited_for() -> None:
    assert header(b"\x30\xff\xff\xff", 0, 4) == (0, 0)
    for read in (header, size_at):
        with pytest.raises(MalformedPacket):
            read(b"\x30\xff\xff\xff\xff", 0, 5)


@pytest.mark.parametrize("size", [0, 1, 100, 130, 20_000, 65_535])
@pytest.mark.parametrize("payload", [0, 5, 200, 70_000])
def test_where_the_packet_id_is(size: int, payload: int) -> None:
    topic = "t" * size or "t"
    wire = serialize(Publish(topic, bytes(payload), 1, packet_id=0xABCD), 4)
    body = body_at(wire)
    assert wire[body + 2 : topic_end_at(wire, body)] == topic.encode()
    at = packet_id_at(wire)
    assert wire[at : at + 2] == b"\xab\xcd"


@pytest.mark.parametrize("version", [4, 5])
def test_the_loop_of_the_channel_sees_the_same_packets(version: int) -> None:
    """Random lengths, some with bytes to spare or too many, cut anywhere."""
    rnd = random.Random(11)
    node = MemoryBroker()
    metrics = node.broker.metrics
    counts = {"whole": 0, "kept": 0, "refused": 0}
    for turn in range(600):
        client = node.connect(f"c{turn}", version)
        wire = b"".join([_ping_or_publish(rnd, version) for _ in range(rnd.randrange(1, 5))])
        wire = wire[: rnd.randrange(1, len(wire) + 1)]
        expected, kept, fault = _read_aloud(wire, version)
        before = metrics.packets_received
        client.channel.feed(wire)
        assert client.closed == fault, wire.hex()
        if fault:
            counts["refused"] += 1
            continue
        assert metrics.packets_received - before == expected, wire.hex()
        rest = client.channel.rest
        assert (0 if rest is None else len(rest)) == kept, wire.hex()
        counts["kept" if kept else "whole"] += 1
        client.drop()
    assert min(counts.values()) > 20, counts


def _ping_or_publish(rnd: random.Random, version: int) -> bytes:
    if rnd.random() < 0.2:
        return b"\xc0\x00"
    body = b"\x00\x01t" + (b"\x00" if version == 5 else b"") + bytes(rnd.choice([0, 3, 120, 300]))
    if rnd.random() < 0.5:
        body = body.ljust(rnd.choice(sizes.around(rnd.choice(sizes.BORDERS[:2]))), b"\0")
    length = varint(len(body))
    if rnd.random() < 0.1:
        spare = rnd.choice([1, 2, 4])
        length = length[:-1] + bytes([length[-1] | 0x80]) + b"\x80" * (spare - 1) + b"\x00"
    return b"\x30" + length + body


def _read_aloud(wire: bytes, version: int) -> tuple[int, int, bool]:
    """Whole packets, bytes behind them, and whether the header of one is a fault."""
    pos = 0
    packets = 0
    while pos < len(wire):
        try:
            length, body = header(wire, pos, len(wire))
        except MalformedPacket:
            return packets, 0, True
        if not body:
            break
        if version == 5 and body - pos > 2 and wire[body - 1] == 0:
            return packets, 0, True
        if body + length > len(wire):
            break
        packets += 1
        pos = body + length
    return packets, len(wire) - pos, False


#: So that packets with a topic of three or four bytes are on both sides of the borders.
loads = st.one_of(st.just(b"load"), sizes.near().map(lambda length: bytes(length - 5)))


@given(
    st.lists(st.sampled_from([b"a/1", b"a/2", b"b/2", b"a/22"]), min_size=1, max_size=6),
    st.integers(0, 3),
    st.booleans(),
    loads,
)
def test_a_run_ends_where_a_packet_differs_in_more_than_its_payload(
    topics: list[bytes], cut_off: int, v5: bool, load: bytes
) -> None:
    block = b"\0" if v5 else b""
    version = 5 if v5 else 4
    packets = [serialize(Publish(topic.decode(), load), version) for topic in topics]
    if len(packets) > 1:
        packets[-1] = packets[-1][: len(packets[-1]) - cut_off]
    data = b"".join(packets)
    whole = len(packets) - (cut_off > 0 and len(packets) > 1)
    run = 1
    while run < whole and topics[run] == topics[0]:
        run += 1
    topic_end = body_at(packets[0]) + 2 + len(topics[0])
    end = len(packets[0])
    assert run_end(data, 0, topic_end, topic_end + len(block), end) == run * end


@given(
    st.lists(st.tuples(st.sampled_from([b"a/1", b"b/1"]), st.integers(0, 300)), min_size=1),
    st.booleans(),
    st.integers(0, 3),
    loads,
)
def test_a_run_of_qos_1_ends_at_another_topic_another_block_or_id_0(
    named: list[tuple[bytes, int]], v5: bool, cut_off: int, load: bytes
) -> None:
    version = 5 if v5 else 4
    data = b""
    for topic, packet_id in named:
        one = serialize(Publish(topic.decode(), load, 1, packet_id=1), version)
        data += with_id(one, packet_id_at(one), packet_id)
    end = len(data) // len(named)
    whole = len(named) - (cut_off > 0 and len(named) > 1)
    data = data[: len(data) - cut_off] if len(named) > 1 else data
    run = 1
    while run < whole and named[run][0] == named[0][0] and named[run][1]:
        run += 1
    topic_end = body_at(data) + 2 + len(named[0][0])
    assert counted_run_end(data, 0, topic_end, topic_end + 2 + v5, end) == run * end


@pytest.mark.parametrize("packet_id", [*sizes.PACKET_IDS, 0xABCD])
@pytest.mark.parametrize(
    "payload", [b"", b"x" * 300, *(b"x" * (border - 7 + by) for border in (127, 16_383)
                                   for by in (0, 1))]
)  # fmt: skip
def test_a_packet_goes_on_under_another_id(packet_id: int, payload: bytes) -> None:
    wire = serialize(Publish("a/b", payload, 1, packet_id=7), 4)
    made = with_id(wire, packet_id_at(wire), packet_id)
    assert made == serialize(Publish("a/b", payload, 1, packet_id=packet_id), 4)
