"""Chapter 8: transports (checklist row 104, over TCP)."""

from __future__ import annotations

from tests.conformance.conftest import Bench
from tests.conformance.rows import row
from tests.support import packets as mq
from tests.support.client import RawClient


def conversation(bench: Bench, name: str) -> tuple[list[bytes], list[tuple[object, ...]]]:
    """A client's side of a conversation with itself, and the answers it must get."""
    v, topic = bench.version, bench.topic(name)
    said = [
        mq.connect(bench.client_id(name), v, keep_alive=60, will=mq.Will(topic + "/w", b"w", 1)),
        mq.subscribe([(topic + "/#", 2), (topic + "/+", 1)], 1, version=v),
        mq.pingreq(),
    ]
    heard: list[tuple[object, ...]] = [
        (mq.CONNACK, 0, b""),
        (mq.SUBACK, 1, b""),
        (mq.PINGRESP, 0, b""),
    ]
    for number in range(30):
        payload = b"%d" % number * (number * 20 + 1)  # past 127 bytes, so the length grows too
        said.append(mq.publish(topic + "/a/b", payload, number % 3, 10 + number, version=v))
        if number % 3:
            kind = mq.PUBACK if number % 3 == 1 else mq.PUBREC
            heard.append((kind, 10 + number, b""))
        heard.append((mq.PUBLISH, number % 3, payload))
        if number % 3 == 2:
            said.append(mq.pubrel(10 + number, v))
            heard.append((mq.PUBCOMP, 10 + number, b""))
    said += [mq.unsubscribe([topic + "/#"], 99, version=v), mq.pingreq(), mq.disconnect(v)]
    heard += [(mq.UNSUBACK, 99, b""), (mq.PINGRESP, 0, b"")]
    return said, heard


def hear(client: RawClient) -> list[tuple[object, ...]]:
    """What the broker answered, to the end, in a form that can be compared."""
    seen: list[tuple[object, ...]] = []
    while (packet := client.receive()) is not None:
        number = packet.qos if packet.type == mq.PUBLISH else packet.packet_id
        seen.append((packet.type, number, packet.payload))
    return seen


def by_kind(events: list[tuple[object, ...]]) -> dict[object, list[tuple[object, ...]]]:
    """The order within each packet type; that between an answer and a delivery is free."""
    kinds: dict[object, list[tuple[object, ...]]] = {}
    for event in events:
        kinds.setdefault(event[0], []).append(event)
    return kinds


@row(104)
def test_mqtt_4_2_0_1_one_byte_at_a_time(bench: Bench) -> None:
    """Every packet in segments of one byte: the answers are the same."""
    said, heard = conversation(bench, "slow")
    client = bench.open()
    client.send_slowly(b"".join(said))
    assert by_kind(hear(client)) == by_kind(heard)


@row(104)
def test_mqtt_4_2_0_1_everything_in_one_segment(bench: Bench) -> None:
    """The whole conversation in one write: the answers are the same."""
    said, heard = conversation(bench, "fast")
    client = bench.open()
    client.send(*said)
    assert by_kind(hear(client)) == by_kind(heard)


@row(104)
def test_mqtt_4_2_0_1_cut_anywhere(bench: Bench) -> None:
    """Two writes, cut at every place of the first 200 bytes and then at some: the same."""
    said, heard = conversation(bench, "cut")
    whole = b"".join(said)
    for place in [*range(1, 200, 7), *range(200, len(whole), len(whole) // 20)]:
        client = bench.open()
        client.send(whole[:place])
        client.send(whole[place:])
        assert by_kind(hear(client)) == by_kind(heard), f"cut at {place}"
        client.close()


@row(104)
def test_mqtt_4_2_0_1_a_hundred_packets_in_one_segment(bench: Bench) -> None:
    """A hundred messages in one write, of all QoS, are a hundred messages, in order."""
    topic, v = bench.topic(), bench.version
    reader = bench.subscriber(topic, qos=2)
    client = bench.connect()
    for qos in (0, 1, 2):
        client.send(*(mq.publish(topic, b"%d" % n, qos, n + 1, version=v) for n in range(100)))
        if qos == 1:
            assert [client.expect(mq.PUBACK).packet_id for _ in range(100)] == [*range(1, 101)]
        elif qos == 2:
            assert [client.expect(mq.PUBREC).packet_id for _ in range(100)] == [*range(1, 101)]
            client.send(*(mq.pubrel(n + 1, v) for n in range(100)))
            assert [client.expect(mq.PUBCOMP).packet_id for _ in range(100)] == [*range(1, 101)]
        got = reader.collect(100)
        assert [p.payload for p in got] == [b"%d" % n for n in range(100)]
        assert all(p.qos == qos and p.topic == topic for p in got)
    reader.expect_nothing()


@row(104)
def test_mqtt_4_2_0_1_large_packets(bench: Bench) -> None:
    """A packet of many segments arrives whole, with small ones before and behind it."""
    topic, v = bench.topic(), bench.version
    large = bytes(range(256)) * 2000
    reader = bench.subscriber(topic, qos=1)
    client = bench.connect()
    client.send(
        mq.publish(topic, b"before", 1, 1, version=v),
        mq.publish(topic, large, 1, 2, version=v),
        mq.publish(topic, b"behind", 1, 3, version=v),
    )
    assert [p.payload for p in reader.collect(3)] == [b"before", large, b"behind"]
    assert [client.expect(mq.PUBACK).packet_id for _ in range(3)] == [1, 2, 3]
