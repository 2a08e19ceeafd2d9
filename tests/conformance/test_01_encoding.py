"""Chapter 1: encoding and fixed header (checklist rows 1 to 11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from tests.conformance.conftest import Bench
from tests.conformance.rows import row
from tests.support import packets as mq
from tests.support.client import RawClient

ILL_FORMED = {
    "lone continuation": b"a\x80",
    "cut sequence": b"a\xe2\x82",
    "wrong continuation": b"\xc3\x28",
    "over-long slash": b"\xc0\xaf",
    "D800": b"\xed\xa0\x80",
    "DFFF": b"\xed\xbf\xbf",
    "surrogate pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "above 10FFFF": b"\xf4\x90\x80\x80",
    "FF": b"\xff",
}


def with_string(place: str, text: bytes, version: int) -> bytes:
    """A packet that is right but for `text` in the string at `place`."""
    if place == "topic":
        return mq.publish(text, b"x", version=version)
    if place == "filter":
        return mq.subscribe([(b"a/" + text, 0)], version=version)
    if place == "unsubscribe":
        return mq.unsubscribe([b"a/" + text], version=version)
    if place == "client id":
        return mq.connect(text, version)
    if place == "user name":
        return mq.connect("a", version, username=text)
    if place == "will topic":
        return mq.connect("a", version, will=mq.Will(text))
    if place == "content type":
        return mq.publish("a", version=version, props=[(mq.CONTENT_TYPE, text)])
    if place == "response topic":
        return mq.publish("a", version=version, props=[(mq.RESPONSE_TOPIC, text)])
    if place == "user property name":
        return mq.publish("a", version=version, props=[(mq.USER_PROPERTY, (text, b""))])
    if place == "user property value":
        return mq.subscribe([("a", 0)], version=version, props=[(mq.USER_PROPERTY, (b"", text))])
    assert place == "reason string"
    return mq.puback(1, version, 0x80, [(mq.REASON_STRING, text)])


STRINGS = ["topic", "filter", "unsubscribe", "client id", "user name", "will topic"]
STRINGS_V5 = [
    "content type",
    "response topic",
    "user property name",
    "user property value",
    "reason string",
]


def closes_on(bench: Bench, packet: bytes) -> None:
    """The broker closes a connection that sends `packet` (as its first one, if a CONNECT)."""
    client = bench.open()
    if packet[0] >> 4 != mq.CONNECT:
        client.connect(bench.client_id("x"))
    client.send(packet)
    client.expect_close()
    client.close()


@row(1)
@pytest.mark.parametrize("place", STRINGS + STRINGS_V5)
def test_mqtt_1_5_4_1_closes_on_ill_formed_utf8(bench: Bench, place: str) -> None:
    """Bytes that are not UTF-8, surrogates included, end the connection, in any string."""
    if place in STRINGS_V5 and bench.version != mq.V5:
        pytest.skip("a 5.0 property")
    for text in ILL_FORMED.values():
        closes_on(bench, with_string(place, text, bench.version))


@row(1)
def test_mqtt_1_5_4_1_takes_any_well_formed_utf8(bench: Bench) -> None:
    """Strings of two, three and four byte characters arrive as they were sent."""
    topic = bench.topic("\u00e9/\u20ac/\U0001f600/\U0010fffd/\ud7ff/\ue000")
    client = bench.subscriber(topic)
    client.publish(topic, b"x")
    client.message(topic=topic, payload=b"x")


@row(2)
@pytest.mark.parametrize("place", STRINGS + STRINGS_V5)
def test_mqtt_1_5_4_2_closes_on_null_character(bench: Bench, place: str) -> None:
    """U+0000 ends the connection, in any string."""
    if place in STRINGS_V5 and bench.version != mq.V5:
        pytest.skip("a 5.0 property")
    for text in (b"a\0b", b"\0", b"a\0"):
        closes_on(bench, with_string(place, text, bench.version))


@row(3, mq.V311, mq.V5)
def test_mqtt_1_5_3_3_keeps_byte_order_mark(bench: Bench) -> None:
    """EF BB BF is a character like any other: with it, a topic is another topic."""
    marked = "\ufeff" + bench.topic()
    client = bench.subscriber(marked)
    client.publish(bench.topic(), b"plain")
    client.publish(marked, b"marked")
    client.message(topic=marked, payload=b"marked")
    client.expect_nothing()


@row(4, mq.V311, mq.V5)
@pytest.mark.parametrize("first", [0x30, 0x82, 0xC0])
def test_mqtt_1_5_5_1_closes_on_fifth_length_byte(bench: Bench, first: int) -> None:
    """A remaining length that goes on after four bytes ends the connection."""
    client = bench.connect()
    client.send(bytes([first]) + b"\x80\x80\x80\x80\x01")
    client.expect_close()
    client = bench.open()
    client.send(b"\x10\xff\xff\xff\xff\x01")
    client.expect_close()


OVER_LONG = {
    "remaining length": b"\xc0\x80\x00",
    "properties of PUBLISH": mq.fixed(0x30, mq.utf8("long"), b"\x80\x00", b"x"),
    "properties of SUBSCRIBE": mq.fixed(0x82, b"\0\1\x82\0\x0b\1", mq.utf8("long"), b"\0"),
    "identifier": mq.fixed(0x82, b"\0\1\x03\x0b\x81\0", mq.utf8("long"), b"\0"),
    "five bytes": mq.fixed(0x82, b"\0\1\x06\x0b\x81\x80\x80\x80\x01", mq.utf8("long"), b"\0"),
}


@row(4)
@pytest.mark.parametrize("place", OVER_LONG)
def test_mqtt_1_5_5_1_closes_on_over_long_integer(bench: Bench, place: str) -> None:
    """A variable byte integer with needless bytes is malformed, wherever it stands."""
    client = bench.connect()
    client.send(OVER_LONG[place])
    client.expect_close()


BODIES: dict[int, Callable[[int], bytes]] = {
    mq.CONNECT: lambda v: mq.connect("x", v),
    mq.CONNACK: lambda v: mq.fixed(0x20, b"\0\0" + b"\0" * (v == 5)),
    mq.PUBACK: lambda v: mq.puback(1, v),
    mq.PUBREC: lambda v: mq.pubrec(1, v),
    mq.PUBREL: lambda v: mq.pubrel(1, v),
    mq.PUBCOMP: lambda v: mq.pubcomp(1, v),
    mq.SUBSCRIBE: lambda v: mq.subscribe([("flags/a", 0)], version=v),
    mq.SUBACK: lambda v: mq.fixed(0x90, b"\0\1" + b"\0" * (v == 5) + b"\0"),
    mq.UNSUBSCRIBE: lambda v: mq.unsubscribe(["flags/a"], version=v),
    mq.UNSUBACK: lambda v: mq.fixed(0xB0, b"\0\1" + b"\0\0" * (v == 5)),
    mq.PINGREQ: lambda v: mq.pingreq(),
    mq.PINGRESP: lambda v: b"\xd0\x00",
    mq.DISCONNECT: lambda v: mq.disconnect(v),
    mq.AUTH: lambda v: mq.auth(),
}


@row(5)
@pytest.mark.parametrize("kind", range(16))
def test_mqtt_2_1_3_1_closes_on_wrong_flags(bench: Bench, kind: int) -> None:
    """All 16 flag values of each packet type: only those the standard names are taken."""
    version = bench.version
    for flags in range(16):
        first = kind << 4 | flags
        client = bench.open()
        if kind == mq.CONNECT:
            client.send(bytes([first]) + mq.connect(bench.client_id("f"), version)[1:])
            if flags == 0:
                client.expect(mq.CONNACK, reason=0)
            else:
                client.expect_close()
            client.close()
            continue
        client.connect(bench.client_id("f"))
        if kind == mq.PUBLISH:
            qos = flags >> 1 & 3
            good = qos < 3 and not (qos == 0 and flags & 8)
            packet = mq.publish(bench.topic(), b"", min(qos, 2), 1, version=version)
        else:
            good = flags == (2 if kind in (mq.PUBREL, mq.SUBSCRIBE, mq.UNSUBSCRIBE) else 0)
            good = good and kind not in (0, 2, 9, 11, 13, 14, 15)
            packet = BODIES[kind](version) if kind in BODIES else b"\0\0"
        client.send(bytes([first]) + packet[1:])
        if good and kind in (mq.PUBACK, mq.PUBREC, mq.PUBCOMP):
            pass  # of an id never sent: some brokers close, row 67 has the rest
        elif good:
            client.ping()
        elif kind == mq.DISCONNECT and flags == 0:
            assert client.receive() is None
        else:
            client.expect_close()
        client.close()


@row(6)
def test_mqtt_2_2_1_3_closes_on_packet_id_0(bench: Bench) -> None:
    """SUBSCRIBE, UNSUBSCRIBE and PUBLISH with QoS 1 or 2 need a packet id that is not 0."""
    version, topic = bench.version, bench.topic()
    for packet in (
        mq.subscribe([(topic, 0)], 0, version=version),
        mq.unsubscribe([topic], 0, version=version),
        mq.publish(topic, b"x", 1, 0, version=version),
        mq.publish(topic, b"x", 2, 0, version=version),
    ):
        client = bench.connect()
        client.send(packet)
        client.expect_close()


@row(7)
def test_mqtt_2_2_1_2_no_packet_id_with_qos_0(bench: Bench) -> None:
    """A QoS 0 PUBLISH carries no packet id: the payload arrives from its first byte on."""
    client = bench.subscriber(bench.topic(), qos=2)
    for payload in (b"\0\1", b"\0\0\0", b"\0", b""):
        client.publish(bench.topic(), payload)
        got = client.message(qos=0, payload=payload)
        assert got.raw.endswith(mq.utf8(bench.topic()) + b"\0" * (bench.version == 5) + payload)


@row(8)
def test_mqtt_2_2_1_4_packet_ids_in_flight_are_distinct(bench: Bench) -> None:
    """Two publishers with the same ids: what a receiver has in flight has ids of its own."""
    receiver = bench.subscriber(bench.topic("#"), qos=1)
    one, two = bench.connect(), bench.connect()
    for packet_id in range(1, 9):
        for qos, publisher in ((1, one), (2, two)):
            publisher.publish(bench.topic(), b"x", qos, packet_id=packet_id)
    ids = [receiver.message(qos=1, ack=False).packet_id for _ in range(16)]
    assert len(set(ids)) == 16


@row(8)
def test_mqtt_2_2_1_4_wraps_without_ids_in_flight(bench: Bench) -> None:
    """Through 66,000 messages an id that is still in flight is never given to a new one."""
    batch, rounds = 55, 1200
    receiver = bench.subscriber(bench.topic(), qos=1)
    publisher = bench.connect()
    version, topic = bench.version, bench.topic()
    burst = b"".join(
        mq.publish(topic, b"x", 1, packet_id, version=version) for packet_id in range(1, batch + 1)
    )
    held: deque[int] = deque()  # unacknowledged, in the order they came
    for turn in range(rounds):
        publisher.send(burst[: len(burst) // batch * 10] if turn == 0 else burst)
        count = 10 if turn == 0 else batch
        for _ in range(count):
            publisher.expect(mq.PUBACK)
        acks = []
        fresh: set[int] = set()
        for _ in range(count):
            packet = receiver.expect(mq.PUBLISH, qos=1, dup=False)
            assert packet.packet_id not in held and packet.packet_id not in fresh
            if turn == 0:
                held.append(packet.packet_id)  # these ten stay in flight to the end
            else:
                fresh.add(packet.packet_id)
                acks.append(mq.puback(packet.packet_id, version))
        receiver.send(*acks)
    receiver.expect_nothing()


@row(9)
def test_mqtt_2_2_1_5_answers_with_the_id_asked(bench: Bench) -> None:
    """Each answer has the id of its question, whatever ids are used and in whatever order."""
    client, v, topic = bench.connect(), bench.version, bench.topic()
    client.send(
        mq.publish(topic, b"", 1, 65535, version=v),
        mq.publish(topic, b"", 2, 258, version=v),
        mq.subscribe([("other/" + topic, 0)], 1, version=v),
        mq.publish(topic, b"", 2, 2, version=v),
        mq.unsubscribe([topic], 40000, version=v),
        mq.publish(topic, b"", 1, 7, version=v),
        mq.pubrel(2, v),
        mq.pubrel(258, v),
        mq.subscribe([("other/" + topic, 0)], 65535, version=v),
    )
    answers = [client.receive() for _ in range(9)]
    assert {(p.type, p.packet_id) for p in answers if p} == {
        (mq.PUBACK, 65535),
        (mq.PUBREC, 258),
        (mq.SUBACK, 1),
        (mq.PUBREC, 2),
        (mq.UNSUBACK, 40000),
        (mq.PUBACK, 7),
        (mq.PUBCOMP, 2),
        (mq.PUBCOMP, 258),
        (mq.SUBACK, 65535),
    }
    client.expect_nothing()


@row(10)
def test_mqtt_4_13_1_1_bad_packet_closes_one_connection_only(bench: Bench) -> None:
    """Whatever one client does wrong, its neighbour goes on undisturbed."""
    v, topic = bench.version, bench.topic()
    neighbour = bench.subscriber(topic, qos=1)
    for index, bad in enumerate(
        (
            b"\x00\x00",
            b"\xf5\x00",
            mq.connect("again", v),
            mq.publish(topic + "/#", b"x", version=v),
            mq.fixed(0x36, mq.utf8(topic), b"\0\1", b"\0" * (v == 5)),
            mq.fixed(0x30, b"\xff\xff"),
            mq.fixed(0x82, b"\0\1"),
            b"\x30\xff\xff\xff\xff\x7f",
        )
    ):
        culprit = bench.connect()
        culprit.send(bad)
        culprit.expect_close()
        neighbour.publish(topic, b"%d" % index, 1)
        neighbour.message(payload=b"%d" % index)
    neighbour.expect_nothing()


@row(11)
def test_mqtt_2_2_2_1_writes_empty_property_length(bench: Bench) -> None:
    """Where there are no properties there is a property length of zero."""
    client = bench.connect()
    topic = bench.topic()
    client.send(mq.subscribe([(topic, 0)], 3, version=5))
    assert client.expect(mq.SUBACK).raw == b"\x90\x04\0\3\0\0"
    client.publish(topic, b"x")
    assert client.message().raw == mq.publish(topic, b"x", version=5)
    client.send(mq.unsubscribe([topic], 4, version=5))
    assert client.expect(mq.UNSUBACK).raw == b"\xb0\x04\0\4\0\0"


SAMPLES = {"byte": 1, "two": 1, "four": 1, "varint": 1, "utf8": "a", "binary": b"a"}


def sample(identifier: int) -> tuple[int, object]:
    kind = mq.PROPERTIES[identifier][0]
    return identifier, ("a", "b") if kind == "pair" else SAMPLES[kind]


def with_props(place: int, props: mq.Props | bytes, bench: Bench) -> bytes:
    """A good packet of type `place` with these properties."""
    topic = bench.topic()
    if place == mq.CONNECT:
        return mq.connect(bench.client_id("p"), 5, props=props)
    if place == mq.WILL:
        return mq.connect(bench.client_id("p"), 5, will=mq.Will(topic, props=props))
    if place == mq.PUBLISH:
        return mq.publish(topic, b"1", 0, version=5, props=props)
    if place == mq.SUBSCRIBE:
        return mq.subscribe([(topic, 0)], version=5, props=props)
    if place == mq.UNSUBSCRIBE:
        return mq.unsubscribe([topic], version=5, props=props)
    if place == mq.DISCONNECT:
        return mq.fixed(0xE0, b"\0", mq.properties(props))
    first = place << 4 | (2 if place == mq.PUBREL else 0)
    return mq.fixed(first, b"\0\1", b"\0", mq.properties(props))


PLACES = [
    mq.CONNECT,
    mq.WILL,
    mq.PUBLISH,
    mq.PUBACK,
    mq.PUBREC,
    mq.PUBREL,
    mq.PUBCOMP,
    mq.SUBSCRIBE,
    mq.UNSUBSCRIBE,
    mq.DISCONNECT,
]


def malformed_property(bench: Bench, place: int, props: mq.Props | bytes) -> None:
    """The will of a watched client goes out, so DISCONNECT is judged like the rest."""
    client = bench.open()
    if place in (mq.CONNECT, mq.WILL):
        client.send(with_props(place, props, bench))
        client.expect_close()
    elif place == mq.DISCONNECT:
        will = mq.Will(bench.topic("will"))
        client.connect(bench.client_id("p"), will=will)
        watcher = bench.subscriber(will.topic)
        client.send(with_props(place, props, bench))
        client.expect_close()
        watcher.message(topic=will.topic)
        watcher.close()
    else:
        client.connect(bench.client_id("p"))
        client.send(with_props(place, props, bench))
        client.expect_close()
    client.close()


@row(11)
@pytest.mark.parametrize("place", PLACES, ids=mq.name_of)
def test_mqtt_2_2_2_1_closes_on_property_in_wrong_packet(bench: Bench, place: int) -> None:
    """Every property outside its packets, and every unknown one, ends the connection."""
    for identifier, (_, places) in mq.PROPERTIES.items():
        if place not in places:
            malformed_property(bench, place, [sample(identifier)])
    for unknown in (0x00, 0x04, 0x2B, 0x7F):
        malformed_property(bench, place, bytes([unknown, 1]))
    malformed_property(bench, place, b"\x80\x01\x01")


@row(11)
@pytest.mark.parametrize("place", PLACES, ids=mq.name_of)
def test_mqtt_2_2_2_1_closes_on_second_copy(bench: Bench, place: int) -> None:
    """A property that may stand once, given twice, ends the connection."""
    for identifier, (_, places) in mq.PROPERTIES.items():
        if place in places and identifier != mq.USER_PROPERTY:
            malformed_property(bench, place, [sample(identifier)] * 2)


@row(11)
@pytest.mark.parametrize("place", PLACES, ids=mq.name_of)
def test_mqtt_2_2_2_1_closes_on_cut_properties(bench: Bench, place: int) -> None:
    """A property block that ends inside a property, or past the packet, is malformed."""
    for block in (b"\x26", b"\x26\0\1a", b"\x26\0\1a\0\2b", b"\x26\0\1a\0"):
        malformed_property(bench, place, block)


def takes(client: RawClient, packet: bytes) -> None:
    """The connection lives after `packet`."""
    client.send(packet)
    client.ping()


@row(11)
def test_mqtt_2_2_2_1_takes_user_properties_anywhere(bench: Bench) -> None:
    """User Property may be there any number of times, the same name too."""
    twice = [(mq.USER_PROPERTY, ("a", "1")), (mq.USER_PROPERTY, ("a", "2"))]
    client = bench.open()
    client.send(with_props(mq.CONNECT, twice, bench))
    client.connack = client.expect(mq.CONNACK, reason=0)
    for place in (mq.PUBLISH, mq.SUBSCRIBE, mq.UNSUBSCRIBE, mq.PUBREL):
        takes(client, with_props(place, twice, bench))
    client.send(with_props(mq.DISCONNECT, twice, bench))
    assert [p for p in client.drain() if p.type == mq.DISCONNECT] == []
