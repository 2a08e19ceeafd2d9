"""Chapter 5: PUBLISH, QoS and retained messages (checklist rows 48 to 78)."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.conformance.conftest import Bench
from tests.conformance.rows import row
from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient

NO_LOCAL, AS_PUBLISHED = 0x04, 0x08
IF_NEW, NEVER = 0x10, 0x20  # Retain Handling 1 and 2

ALL_PROPS: list[tuple[int, Any]] = [
    (mq.PAYLOAD_FORMAT, 1),
    (mq.CONTENT_TYPE, "text/plain; charset=\u00e9"),
    (mq.RESPONSE_TOPIC, "answers/here"),
    (mq.CORRELATION_DATA, bytes(range(256))),
    (mq.USER_PROPERTY, ("b", "1")),
    (mq.USER_PROPERTY, ("a", "2")),
    (mq.USER_PROPERTY, ("b", "1")),
    (mq.USER_PROPERTY, ("", "")),
]


def forwarded(packet: mq.Packet) -> list[tuple[int, Any]]:
    """The publisher's properties of a message, user properties in their order."""
    users = [(mq.USER_PROPERTY, v) for v in packet.all(mq.USER_PROPERTY)]
    return sorted(p for p in packet.props if p[0] < mq.SUBSCRIPTION_ID) + users


# -- DUP, QoS ----------------------------------------------------------------------------------


@row(48)
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_3_1_1_sets_dup_on_redelivery(bench: Bench, qos: int) -> None:
    """A message that is sent again says so."""
    first = bench.durable("s")
    first.subscribe(bench.topic(), qos=2)
    bench.connect().publish(bench.topic(), b"x", qos)
    sent = first.message(dup=False, qos=qos, ack=False)
    first.drop()
    bench.durable("s").message(dup=True, qos=qos, packet_id=sent.packet_id, payload=b"x")


@row(49)
def test_mqtt_3_3_1_2_dup_with_qos_0_is_malformed(bench: Bench) -> None:
    """DUP 1 with QoS 0 ends the connection, undelivered."""
    watcher = bench.subscriber(bench.topic())
    client = bench.connect()
    client.send(mq.publish(bench.topic(), b"x", dup=True, version=bench.version))
    client.expect_close()
    watcher.expect_nothing()


@row(49)
def test_mqtt_3_3_1_2_never_sends_dup_with_qos_0(bench: Bench) -> None:
    """Not even to a QoS 0 subscriber of a message that came in as a duplicate."""
    watcher = bench.subscriber(bench.topic(), qos=0)
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"1", 1, dup=True)
    publisher.publish(bench.topic(), b"2", 2, dup=True)
    watcher.message(payload=b"1", qos=0, dup=False)
    watcher.message(payload=b"2", qos=0, dup=False)


@row(50)
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_3_1_3_does_not_pass_on_dup(bench: Bench, qos: int) -> None:
    """The publisher's DUP is the publisher's affair."""
    watcher = bench.subscriber(bench.topic(), qos=2)
    bench.connect().publish(bench.topic(), b"x", qos, dup=True)
    watcher.message(payload=b"x", qos=qos, dup=False)


@row(51)
def test_mqtt_3_3_1_4_closes_on_qos_3(bench: Bench) -> None:
    """Both QoS bits set is malformed, whatever the other flags."""
    watcher = bench.subscriber(bench.topic())
    for flags in (0x36, 0x37, 0x3E, 0x3F):
        client = bench.connect()
        good = mq.publish(bench.topic(), b"x", 1, version=bench.version)
        client.send(bytes([flags]) + good[1:])
        client.expect_close()
    watcher.expect_nothing()


# -- retained messages -------------------------------------------------------------------------


@row(52)
def test_mqtt_3_3_1_5_stores_the_newest(bench: Bench) -> None:
    """One retained message per topic, the newest, with its QoS and properties."""
    publisher = bench.connect()
    props = ALL_PROPS if bench.version == mq.V5 else ()
    publisher.publish(bench.topic(), b"old", 2, retain=True)
    publisher.publish(bench.topic(), b"new", 1, retain=True, props=props)
    reader = bench.subscriber(bench.topic(), qos=2)
    got = reader.message(payload=b"new", qos=1, retain=True, dup=False)
    if props:
        assert forwarded(got) == ALL_PROPS
    reader.expect_nothing()
    bench.subscriber(bench.topic(), qos=0).message(payload=b"new", qos=0, retain=True)
    publisher.publish(bench.topic(), b"newest", 0, retain=True)
    bench.subscriber(bench.topic(), qos=2).message(payload=b"newest", qos=0, retain=True)


@row(53)
@pytest.mark.parametrize("topic_filter", ["r/#", "r/+/x", "r/a/x", "+/a/x"])
def test_mqtt_3_3_1_9_sends_retained_to_new_subscription(bench: Bench, topic_filter: str) -> None:
    """Every matching topic's retained message, with RETAIN 1; wildcards included."""
    names = ["r", "r/a", "r/a/x", "r/b/x", "r//x", "s/a/x", "r/a/x/y"]
    matching = {
        "r/#": {"r", "r/a", "r/a/x", "r/b/x", "r//x", "r/a/x/y"},
        "r/+/x": {"r/a/x", "r/b/x", "r//x"},
        "r/a/x": {"r/a/x"},
        "+/a/x": {"r/a/x", "s/a/x"},
    }[topic_filter]
    publisher = bench.connect()
    for name in names:
        publisher.publish(bench.topic(name), name.encode(), 1, retain=True)
    reader = bench.subscriber(bench.topic(topic_filter), qos=1)
    got = [reader.message(retain=True, qos=1) for _ in matching]
    reader.expect_nothing()
    assert {p.payload.decode() for p in got} == matching
    assert all(p.topic == bench.topic(p.payload.decode()) for p in got)
    for name in names:
        publisher.publish(bench.topic(name), b"", retain=True)


@row(53)
def test_mqtt_3_3_1_9_retained_ones_outlive_the_connection(bench: Bench) -> None:
    """Those that wait for the window when the connection breaks come with the session's next."""
    publisher = bench.connect()
    names = {bench.topic(f"r/{number}") for number in range(150)}
    for name in sorted(names):
        publisher.publish(name, b"kept", 1, retain=True)
    reader = bench.durable("reader")
    assert reader.subscribe(bench.topic("r/+"), qos=1) == [1]
    got = {reader.message(payload=b"kept", retain=True).topic for _ in range(10)}
    reader.drop()
    reader = bench.durable("reader")
    assert reader.resumed
    while got < names:
        got.add(reader.message(payload=b"kept", retain=True).topic)
    reader.expect_nothing()
    assert got == names
    for name in names:
        publisher.publish(name, b"", retain=True)


@row(54)
def test_mqtt_3_3_1_12_retain_0_to_existing_subscriptions(bench: Bench) -> None:
    """A subscription that was there gets the message as it gets any other."""
    reader = bench.subscriber(bench.topic("#"), qos=1)
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"0", 0, retain=True)
    publisher.publish(bench.topic(), b"1", 1, retain=True)
    reader.message(payload=b"0", retain=False)
    reader.message(payload=b"1", retain=False)
    reader.expect_nothing()


@row(55)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_3_1_6_empty_payload_deletes(bench: Bench, qos: int) -> None:
    """An empty retained message deletes, is forwarded like any other, and is not stored."""
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"kept", 1, retain=True)
    live = bench.subscriber(bench.topic(), qos=2)
    live.message(payload=b"kept", retain=True)
    publisher.publish(bench.topic(), b"", qos, retain=True)
    live.message(payload=b"", qos=qos, retain=False)
    bench.subscriber(bench.topic(), qos=2).expect_nothing()
    publisher.publish(bench.topic(), b"", qos, retain=True)  # nothing to delete any more
    live.message(payload=b"", qos=qos, retain=False)
    bench.subscriber(bench.topic(), qos=2).expect_nothing()


@row(56)
def test_mqtt_3_3_1_8_retain_0_leaves_the_store_alone(bench: Bench) -> None:
    """Without RETAIN nothing is stored, replaced or deleted."""
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"plain", 1)
    bench.subscriber(bench.topic()).expect_nothing()
    publisher.publish(bench.topic(), b"kept", 1, retain=True)
    publisher.publish(bench.topic(), b"plain", 1)
    publisher.publish(bench.topic(), b"", 1)
    reader = bench.subscriber(bench.topic())
    reader.message(payload=b"kept", retain=True)
    reader.expect_nothing()


@row(57)
def test_mqtt_3_3_1_10_retain_handling_1(bench: Bench) -> None:
    """Retain Handling 1: for a subscription that is new, not for one that is renewed."""
    bench.connect().publish(bench.topic(), b"kept", 1, retain=True)
    reader = bench.subscriber((bench.topic(), IF_NEW))
    reader.message(payload=b"kept", retain=True)
    for options in (IF_NEW, IF_NEW | 1):
        reader.subscribe((bench.topic(), options))
        reader.expect_nothing()
    reader.subscribe((bench.topic("+"), IF_NEW))  # another filter is another subscription
    reader.message(payload=b"kept", retain=True)
    reader.unsubscribe(bench.topic())
    reader.subscribe((bench.topic(), IF_NEW))
    reader.message(payload=b"kept", retain=True)
    reader.subscribe((bench.topic(), 0))
    reader.message(payload=b"kept", retain=True)


@row(57)
def test_mqtt_3_3_1_11_retain_handling_2(bench: Bench) -> None:
    """Retain Handling 2: never."""
    bench.connect().publish(bench.topic(), b"kept", 1, retain=True)
    reader = bench.subscriber((bench.topic(), NEVER))
    reader.expect_nothing()
    reader.subscribe((bench.topic("#"), NEVER))
    reader.expect_nothing()


@row(58)
def test_mqtt_3_3_1_13_retain_as_published(bench: Bench) -> None:
    """Retain As Published 1 passes the publisher's flag on; 0 clears it."""
    as_is = bench.subscriber((bench.topic(), AS_PUBLISHED | 1))
    cleared = bench.subscriber((bench.topic(), 1))
    publisher = bench.connect()
    for qos in (0, 1):
        for retain in (True, False):
            publisher.publish(bench.topic(), b"x", qos, retain=retain)
            as_is.message(retain=retain, qos=qos)
            cleared.message(retain=False, qos=qos)
    publisher.publish(bench.topic(), b"", retain=True)
    as_is.message(retain=True, payload=b"")
    cleared.message(retain=False, payload=b"")


# -- topic names and acknowledgements ----------------------------------------------------------


@row(59)
@pytest.mark.parametrize("name", ["a/+", "+", "#", "a/#", "a/b+", "a#/b", ""])
def test_mqtt_3_3_2_2_closes_on_wildcards_in_topic_name(bench: Bench, name: str) -> None:
    """A topic name has no wildcards and is not empty."""
    for qos in (0, 1, 2):
        client = bench.connect()
        client.send(mq.publish(name, b"x", qos, version=bench.version))
        client.expect_close()


@row(60)
def test_mqtt_3_3_4_1_acknowledges_without_subscribers(bench: Bench) -> None:
    """QoS 1 gets PUBACK and QoS 2 PUBREC, also when nobody listens."""
    client = bench.connect()
    for qos in (1, 2):
        ack = client.publish(bench.topic(), b"x", qos)
        assert ack is not None and ack.reason in ((0x00, 0x10) if bench.version == 5 else (0,))
    client.expect_nothing()


@row(60, mq.V5)
def test_mqtt_3_3_4_1_success_with_subscribers(bench: Bench) -> None:
    """Where somebody listens the code is 0x00."""
    bench.subscriber(bench.topic("#"))
    client = bench.connect()
    for qos in (1, 2):
        ack = client.publish(bench.topic(), b"x", qos)
        assert ack is not None and ack.reason == 0


@row(60)
def test_mqtt_3_3_4_1_acknowledges_what_the_acl_denies(bench: Bench, guarded: Broker) -> None:
    """Denied: 5.0 says 0x87; 3.1.1 (ours) acknowledges and drops. The connection goes on."""
    bench = bench.at(guarded)
    login = {"username": "alice", "password": b"wonder"}
    watcher = bench.subscriber("denied/#", qos=2, **login)
    client = bench.connect(**login)
    v = bench.version
    client.send(mq.publish("denied/a", b"x", 0, version=v))
    client.send(mq.publish("denied/a", b"x", 1, 1, version=v, retain=True))
    client.expect(mq.PUBACK, packet_id=1, reason=0x87 if v == 5 else 0)
    client.send(mq.publish("denied/a", b"x", 2, 2, version=v))
    client.expect(mq.PUBREC, packet_id=2, reason=0x87 if v == 5 else 0)
    if v != 5:
        client.send(mq.pubrel(2, v))
        client.expect(mq.PUBCOMP, packet_id=2)
    client.expect_nothing()
    watcher.expect_nothing()
    bench.subscriber("denied/#", **login).expect_nothing()


@row(61)
def test_mqtt_3_3_4_2_overlapping_subscriptions(bench: Bench) -> None:
    """Ours: one copy of a message, with the highest QoS of all that match."""
    reader = bench.subscriber(
        (bench.topic("a/b"), 0), (bench.topic("+/b"), 2), (bench.topic("#"), 1)
    )
    publisher = bench.connect()
    publisher.publish(bench.topic("a/b"), b"2", 2)
    publisher.publish(bench.topic("a/b"), b"1", 1)
    publisher.publish(bench.topic("a/b"), b"0", 0)
    publisher.publish(bench.topic("a/c"), b"#", 2)
    for payload, qos in ((b"2", 2), (b"1", 1), (b"0", 0), (b"#", 1)):
        reader.message(payload=payload, qos=qos)
    reader.expect_nothing()


@row(61)
def test_mqtt_3_3_4_2_overlapping_while_away(bench: Bench) -> None:
    """The same for a message that waits in a session."""
    reader = bench.durable("s")
    reader.subscribe((bench.topic("a/b"), 1), (bench.topic("#"), 2), (bench.topic("a/+"), 0))
    reader.drop()
    bench.connect().publish(bench.topic("a/b"), b"x", 2)
    reader = bench.durable("s")
    reader.message(payload=b"x", qos=2)
    reader.expect_nothing()


# -- QoS 1 and 2 -------------------------------------------------------------------------------


@row(62)
def test_mqtt_4_3_2_4_qos_1_every_publish_is_acknowledged(bench: Bench) -> None:
    """After the PUBACK the same id is a new message, DUP or not."""
    reader = bench.subscriber(bench.topic(), qos=1)
    client = bench.connect()
    for number, dup in enumerate((False, True, True, False)):
        client.send(mq.publish(bench.topic(), b"%d" % number, 1, 7, version=bench.version, dup=dup))
        client.expect(mq.PUBACK, packet_id=7)
        reader.message(payload=b"%d" % number, dup=False)
    client.send(
        mq.publish(bench.topic(), b"a", 1, 8, version=bench.version),
        mq.publish(bench.topic(), b"b", 1, 8, version=bench.version),
    )
    client.expect(mq.PUBACK, packet_id=8)
    client.expect(mq.PUBACK, packet_id=8)
    assert reader.payloads(2) == [b"a", b"b"]


@row(63)
def test_mqtt_4_3_3_10_qos_2_repeated_id_is_not_delivered_again(bench: Bench) -> None:
    """Until PUBREL a repeated id gets its PUBREC and goes no further."""
    reader = bench.subscriber(bench.topic(), qos=2)
    client, v = bench.connect(), bench.version
    for dup in (False, True, True, False):
        client.send(mq.publish(bench.topic(), b"once", 2, 7, version=v, dup=dup))
        client.expect(mq.PUBREC, packet_id=7)
    client.send(mq.publish(bench.topic(), b"other", 2, 8, version=v))
    client.expect(mq.PUBREC, packet_id=8)
    for packet_id in (7, 8):
        client.send(mq.pubrel(packet_id, v))
        client.expect(mq.PUBCOMP, packet_id=packet_id, reason=0)
    assert sorted(reader.payloads(2)) == [b"once", b"other"]
    reader.expect_nothing()


@row(63)
def test_mqtt_4_3_3_10_qos_2_across_reconnections(bench: Bench) -> None:
    """The id is remembered with the session."""
    reader = bench.subscriber(bench.topic(), qos=2)
    client, v = bench.durable("p"), bench.version
    client.send(mq.publish(bench.topic(), b"once", 2, 7, version=v))
    client.expect(mq.PUBREC, packet_id=7)
    for _ in range(2):
        client.drop()
        client = bench.durable("p")
        assert client.resumed
        client.send(mq.publish(bench.topic(), b"once", 2, 7, version=v, dup=True))
        client.expect(mq.PUBREC, packet_id=7, reason=0)
    client.drop()
    client = bench.durable("p")
    client.send(mq.pubrel(7, v))
    client.expect(mq.PUBCOMP, packet_id=7, reason=0)
    reader.message(payload=b"once", qos=2)
    reader.expect_nothing()


@row(64)
def test_mqtt_4_3_3_11_answers_pubrel(bench: Bench) -> None:
    """PUBREL gets PUBCOMP, an unknown id too (5.0: 0x92); afterwards the id is new."""
    reader = bench.subscriber(bench.topic(), qos=2)
    client, v = bench.connect(), bench.version
    unknown = 0x92 if v == 5 else 0
    client.send(mq.pubrel(7, v))
    client.expect(mq.PUBCOMP, packet_id=7, reason=unknown)
    for payload in (b"first", b"second"):
        client.send(mq.publish(bench.topic(), payload, 2, 7, version=v))
        client.expect(mq.PUBREC, packet_id=7, reason=0)
        client.send(mq.pubrel(7, v))
        client.expect(mq.PUBCOMP, packet_id=7, reason=0)
        client.send(mq.pubrel(7, v))
        client.expect(mq.PUBCOMP, packet_id=7, reason=unknown)
    assert [p.payload for p in reader.collect(2)] == [b"first", b"second"]
    reader.expect_nothing()


@row(65)
def test_mqtt_4_3_3_4_qos_2_out(bench: Bench) -> None:
    """PUBREC is answered by PUBREL; after it the PUBLISH never comes again."""
    client, v = bench.durable("s"), bench.version
    client.subscribe(bench.topic(), qos=2)
    bench.connect().publish(bench.topic(), b"x", 2)
    sent = client.message(qos=2, ack=False)
    for _ in range(2):  # a repeated PUBREC too
        client.send(mq.pubrec(sent.packet_id, v))
        client.expect(mq.PUBREL, packet_id=sent.packet_id, reason=0)
    client.drop()
    client = bench.durable("s")
    client.expect(mq.PUBREL, packet_id=sent.packet_id, reason=0)
    client.expect_nothing()
    client.send(mq.pubcomp(sent.packet_id, v))
    client.expect_nothing()
    client.drop()
    bench.durable("s").expect_nothing()


@row(65, mq.V5)
def test_mqtt_4_3_3_4_pubrec_of_unknown_id(bench: Bench) -> None:
    """A PUBREC for an id that is not in flight is answered by PUBREL 0x92."""
    client = bench.connect()
    client.send(mq.pubrec(77, 5))
    client.expect(mq.PUBREL, packet_id=77, reason=0x92)
    client.expect_nothing()


@row(66)
def test_mqtt_3_6_1_1_pubrel_flags(bench: Bench) -> None:
    """PUBREL goes out with flags 0010, and comes in with nothing else."""
    client, v = bench.subscriber(bench.topic(), qos=2), bench.version
    bench.connect().publish(bench.topic(), b"x", 2)
    sent = client.message(qos=2, ack=False)
    client.send(mq.pubrec(sent.packet_id, v))
    assert client.expect(mq.PUBREL).raw[0] == 0x62
    for flags in set(range(16)) - {2}:
        client = bench.connect()
        client.send(mq.publish(bench.topic("y"), b"x", 2, 7, version=v))
        client.expect(mq.PUBREC, packet_id=7)
        client.send(bytes([0x60 | flags]) + mq.pubrel(7, v)[1:])
        client.expect_close()


@row(67)
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_4_4_0_2_failure_code_ends_the_message(bench: Bench, qos: int) -> None:
    """PUBACK or PUBREC with 0x80 or more: the message is over, its place is free."""
    client = bench.durable("s", props=[(mq.RECEIVE_MAXIMUM, 1)])
    client.subscribe(bench.topic(), qos=2)
    publisher = bench.connect()
    for number in range(4):
        publisher.publish(bench.topic(), b"%d" % number, qos)
    for number, reason in enumerate((0x80, 0x83, 0x97)):
        sent = client.message(payload=b"%d" % number, qos=qos, ack=False)
        answer = mq.puback if qos == 1 else mq.pubrec
        client.send(answer(sent.packet_id, 5, reason))
    client.message(payload=b"3", ack=False)  # no PUBREL came between
    client.drop()
    again = bench.durable("s")
    again.message(payload=b"3", dup=True)
    again.expect_nothing()


@row(68)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_4_6_0_5_keeps_the_order(bench: Bench, qos: int) -> None:
    """1,000 messages each of two publishers at full speed: each publisher's order is kept."""
    total, batch, v = 1000, 100, bench.version
    reader = bench.subscriber(bench.topic(), qos=qos)
    publishers = [bench.connect(), bench.connect()]
    got: list[mq.Packet] = []
    for start in range(0, total, batch):
        numbers = range(start, start + batch)
        for index, publisher in enumerate(publishers):
            publisher.send(
                *(mq.publish(bench.topic(), b"%d %d" % (index, n), qos, n + 1, version=v)
                  for n in numbers)
            )  # fmt: skip
        for publisher in publishers:
            finish(publisher, qos, [n + 1 for n in numbers])
        got += reader.collect(2 * batch)
    reader.expect_nothing()
    for index in range(2):
        numbers_got = [int(p.payload.split()[1]) for p in got if p.payload[0] == 48 + index]
        assert numbers_got == list(range(total))
    assert all(p.qos == qos for p in got)


def finish(publisher: RawClient, qos: int, ids: list[int]) -> None:
    """Take the acknowledgements of a burst, which come in the order of the burst."""
    if qos == 1:
        assert [publisher.expect(mq.PUBACK).packet_id for _ in ids] == ids
    elif qos == 2:
        assert [publisher.expect(mq.PUBREC).packet_id for _ in ids] == ids
        publisher.send(*(mq.pubrel(packet_id, publisher.version) for packet_id in ids))
        assert [publisher.expect(mq.PUBCOMP).packet_id for _ in ids] == ids


@row(68)
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_4_6_0_5_order_for_a_slow_reader(bench: Bench, qos: int) -> None:
    """Small messages do not overtake the large ones a slow reader has not taken yet."""
    reader = bench.connect()
    reader.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    reader.subscribe(bench.topic(), qos=qos)
    publisher = bench.connect()
    for number in range(80):
        size = 3 if number % 2 else 150_000
        publisher.publish(bench.topic(), b"%02d" % number + bytes(size), qos)
    got = reader.collect(80)
    assert [int(p.payload[:2]) for p in got] == list(range(80))
    reader.expect_nothing()


@row(68)
def test_mqtt_4_6_0_6_pubrel_in_the_order_of_pubrec(bench: Bench) -> None:
    """PUBRELs go out in the order in which the PUBRECs came."""
    client, v = bench.subscriber(bench.topic(), qos=2), bench.version
    publisher = bench.connect()
    for number in range(5):
        publisher.publish(bench.topic(), b"%d" % number, 2)
    ids = [client.message(ack=False).packet_id for _ in range(5)]
    client.send(*(mq.pubrec(packet_id, v) for packet_id in ids))
    assert [client.expect(mq.PUBREL).packet_id for _ in ids] == ids
    client.send(*(mq.pubcomp(packet_id, v) for packet_id in ids))


# -- flow control ------------------------------------------------------------------------------


@row(69)
def test_mqtt_3_3_4_9_keeps_to_the_receive_maximum(bench: Bench) -> None:
    """Never more in flight than the client allows; each acknowledgement lets one more go."""
    client = bench.connect(props=[(mq.RECEIVE_MAXIMUM, 3)])
    client.subscribe(bench.topic(), qos=2)
    publisher = bench.connect()
    for number in range(9):
        publisher.publish(bench.topic(), b"%d" % number, 1 + number % 2)
    ids = [client.message(payload=b"%d" % n, ack=False).packet_id for n in range(3)]
    client.expect_nothing()
    client.send(mq.puback(ids[0], 5))  # 0: QoS 1
    ids.append(client.message(payload=b"3", ack=False).packet_id)
    client.expect_nothing()
    client.send(mq.pubrec(ids[1], 5))  # 1: QoS 2, not over before PUBCOMP
    client.expect(mq.PUBREL, packet_id=ids[1])
    client.expect_nothing()
    client.send(mq.pubcomp(ids[1], 5))
    ids.append(client.message(payload=b"4", ack=False).packet_id)
    client.expect_nothing()
    client.send(mq.puback(ids[2], 5), mq.puback(ids[4], 5))
    client.message(payload=b"5", ack=False)
    client.message(payload=b"6", ack=False)
    client.expect_nothing()


@row(69)
def test_mqtt_4_9_0_2_stray_acknowledgements_widen_nothing(bench: Bench) -> None:
    """An acknowledgement for nothing does not raise the quota above its maximum."""
    client = bench.connect(props=[(mq.RECEIVE_MAXIMUM, 2)])
    client.subscribe(bench.topic(), qos=1)
    client.send(mq.puback(500, 5), mq.puback(501, 5), mq.pubcomp(502, 5))
    client.ping()
    publisher = bench.connect()
    for number in range(4):
        publisher.publish(bench.topic(), b"%d" % number, 1)
    one, _ = (client.message(ack=False) for _ in range(2))
    client.expect_nothing()
    client.send(mq.puback(one.packet_id, 5))
    client.message(payload=b"2", ack=False)
    client.expect_nothing()


@row(69)
def test_mqtt_3_3_4_9_on_resumption(bench: Bench) -> None:
    """The Receive Maximum of the new connection counts, for what is sent again as well."""
    first = bench.durable("s")
    first.subscribe(bench.topic(), qos=1)
    publisher = bench.connect()
    for number in range(5):
        publisher.publish(bench.topic(), b"%d" % number, 1)
        first.message(payload=b"%d" % number, ack=False)
    first.drop()
    again = bench.durable("s", props=[(mq.RECEIVE_MAXIMUM, 2)])
    sent = [again.message(payload=b"%d" % n, ack=False) for n in range(2)]
    again.expect_nothing()
    again.send(mq.puback(sent[0].packet_id, 5))
    again.message(payload=b"2", ack=False)
    again.expect_nothing()


@row(69)
def test_mqtt_3_3_4_9_receive_maximum_0_is_an_error(bench: Bench) -> None:
    """A Receive Maximum of 0 is refused."""
    client = bench.open()
    client.send(mq.connect(bench.client_id("a"), 5, props=[(mq.RECEIVE_MAXIMUM, 0)]))
    client.expect_close()


@row(70)
def test_mqtt_3_3_4_7_closes_beyond_our_receive_maximum(bench: Bench, small: Broker) -> None:
    """More unreleased QoS 2 messages than the broker announced: 0x93."""
    bench = bench.at(small)
    client = bench.connect()
    assert client.connack and client.connack.prop(mq.RECEIVE_MAXIMUM) == 5
    packets = [mq.publish(bench.topic(), b"x", 2, n, version=5) for n in range(1, 8)]
    client.send(*packets[:5])
    for packet_id in range(1, 6):
        client.expect(mq.PUBREC, packet_id=packet_id)
    client.send(mq.pubrel(1, 5))
    client.expect(mq.PUBCOMP)
    client.send(packets[5])
    client.expect(mq.PUBREC)
    client.send(packets[1])  # a repeated one takes no more room
    client.expect(mq.PUBREC)
    client.send(packets[6])
    client.expect_close(0x93)


@row(70)
def test_mqtt_3_3_4_7_announced_maximum_holds(bench: Bench) -> None:
    """As many as CONNACK says are taken, one more is too much."""
    client = bench.connect()
    assert client.connack
    maximum = client.connack.prop(mq.RECEIVE_MAXIMUM, 65535)
    client.send(*(mq.publish(bench.topic(), b"x", 2, n, version=5) for n in range(1, maximum + 1)))
    for packet_id in range(1, maximum + 1):
        client.expect(mq.PUBREC, packet_id=packet_id)
    client.send(mq.publish(bench.topic(), b"x", 2, maximum + 1, version=5))
    client.expect_close(0x93)


@row(71)
def test_mqtt_4_9_0_3_goes_on_with_the_quota_used_up(bench: Bench) -> None:
    """With no quota left everything but QoS 1 and 2 messages goes on."""
    client = bench.connect(props=[(mq.RECEIVE_MAXIMUM, 1)])
    client.subscribe(bench.topic("a"), qos=1)
    publisher = bench.connect()
    publisher.publish(bench.topic("a"), b"1", 1)
    publisher.publish(bench.topic("a"), b"2", 1)
    held = client.message(payload=b"1", ack=False)
    client.expect_nothing()
    assert client.subscribe(bench.topic("b"), qos=2) == [2]
    publisher.publish(bench.topic("b"), b"0", 0)
    client.message(payload=b"0", qos=0)
    assert client.unsubscribe(bench.topic("b")) == [0]
    assert client.publish(bench.topic("c"), b"x", 1)
    assert client.publish(bench.topic("c"), b"x", 2)
    client.expect_nothing()
    client.send(mq.puback(held.packet_id, 5))
    client.message(payload=b"2")


# -- properties --------------------------------------------------------------------------------


@row(72)
def test_mqtt_3_3_2_5_drops_what_has_expired(bench: Bench) -> None:
    """Queued, retained and will messages are gone after their interval."""
    publisher = bench.connect()
    away = bench.durable("s")
    away.subscribe(bench.topic("q"), qos=1)
    away.drop()
    for name, retain in (("q", False), ("r", True)):
        short, long = [(mq.MESSAGE_EXPIRY, 1)], [(mq.MESSAGE_EXPIRY, 60)]
        topic = bench.topic(name)
        publisher.publish(topic, b"short", 1, props=short, retain=retain)
        publisher.publish(topic if name == "q" else topic + "/l", b"long", 1, props=long,
                          retain=retain)  # fmt: skip
    publisher.publish(bench.topic("q"), b"for ever", 1)
    will = mq.Will(bench.topic("r/w"), b"will", retain=True, props=[(mq.MESSAGE_EXPIRY, 1)])
    bench.connect(will=will).drop()
    reader = bench.subscriber(bench.topic("r"), bench.topic("r/w"))
    assert {reader.message(retain=True).payload for _ in range(2)} == {b"short", b"will"}
    bench.let_pass(3)
    back = bench.durable("s")
    assert 50 <= back.message(payload=b"long").prop(mq.MESSAGE_EXPIRY) <= 58
    assert back.message(payload=b"for ever").prop(mq.MESSAGE_EXPIRY) is None
    back.expect_nothing()
    reader = bench.subscriber(bench.topic("r/#"))
    assert 50 <= reader.message(payload=b"long").prop(mq.MESSAGE_EXPIRY) <= 58
    reader.expect_nothing()
    publisher.publish(bench.topic("r/l"), b"", retain=True)


@row(72)
def test_mqtt_3_3_2_6_sends_the_interval_on(bench: Bench) -> None:
    """Delivered at once, the interval is the publisher's (or a second less)."""
    reader = bench.subscriber(bench.topic(), qos=1)
    publisher = bench.connect()
    for qos in (0, 1):
        publisher.publish(bench.topic(), b"x", qos, props=[(mq.MESSAGE_EXPIRY, 100)])
        assert reader.message().prop(mq.MESSAGE_EXPIRY) in (99, 100)


@row(73)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("way", ["live", "retained", "will", "queued"])
def test_mqtt_3_3_2_15_passes_properties_on(bench: Bench, way: str, qos: int) -> None:
    """Properties arrive unchanged and in order, duplicates too, whichever way they take."""
    topic = bench.topic()
    reader = bench.durable("s")
    old = bench.subscriber(topic, qos=2, version=mq.V311)
    if way != "retained":
        reader.subscribe(topic, qos=2)
    if way == "queued":
        reader.drop()
    if way == "will":
        bench.connect(will=mq.Will(topic, b"x", qos, props=ALL_PROPS)).drop()
    else:
        publisher = bench.connect()
        publisher.publish(topic, b"x", qos, props=ALL_PROPS, retain=way == "retained")
    if way == "retained":
        reader.subscribe(topic, qos=2)
    if way == "queued":
        reader = bench.durable("s")
        if qos == 0:  # a queue need not keep QoS 0; if it does, then whole
            reader.send(mq.pingreq())
            packet = reader.receive()
            if packet is None or packet.type == mq.PINGRESP:
                return
            assert forwarded(packet) == ALL_PROPS
            return
    packet = reader.message(payload=b"x", qos=qos)
    assert forwarded(packet) == ALL_PROPS
    assert {i for i, _ in packet.props} == {i for i, _ in ALL_PROPS}
    old.message(payload=b"x", qos=qos)


@row(73)
def test_mqtt_3_3_2_4_payload_format(bench: Bench) -> None:
    """Payload Format is passed on as it is, absent where it was absent."""
    reader = bench.subscriber(bench.topic())
    publisher = bench.connect()
    for value in (0, 1):
        publisher.publish(bench.topic(), b"x", props=[(mq.PAYLOAD_FORMAT, value)])
        assert reader.message().prop(mq.PAYLOAD_FORMAT) == value
    publisher.publish(bench.topic(), b"x")
    assert reader.message().props == []


@row(74)
@pytest.mark.parametrize("name", ["a/+", "#", "a#"])
def test_mqtt_3_3_2_14_closes_on_wildcards_in_response_topic(bench: Bench, name: str) -> None:
    """A Response Topic is a topic name, in a PUBLISH and in a will."""
    watcher = bench.subscriber(bench.topic())
    client = bench.connect()
    client.send(mq.publish(bench.topic(), b"x", version=5, props=[(mq.RESPONSE_TOPIC, name)]))
    client.expect_close()
    will = mq.Will(bench.topic(), props=[(mq.RESPONSE_TOPIC, name)])
    client = bench.open()
    client.send(mq.connect(bench.client_id("w"), 5, will=will))
    client.expect_close()
    watcher.expect_nothing()


def aliased(topic: str, payload: bytes, alias: int, qos: int = 0) -> bytes:
    return mq.publish(topic, payload, qos, 1, version=5, props=[(mq.TOPIC_ALIAS, alias)])


@row(75)
def test_mqtt_3_3_2_12_takes_aliases_up_to_its_maximum(bench: Bench, small: Broker) -> None:
    """Aliases 1 to the announced maximum are taken; 0 and more than that are 0x94."""
    bench = bench.at(small)
    reader = bench.subscriber(bench.topic("#"), qos=1)
    client = bench.connect()
    assert client.connack and client.connack.prop(mq.TOPIC_ALIAS_MAXIMUM) == 3
    for alias in (1, 2, 3):
        client.send(aliased(bench.topic(str(alias)), b"set", alias))
        client.send(aliased("", b"use", alias, qos=1))
        client.expect(mq.PUBACK)
        for payload in (b"set", b"use"):
            packet = reader.message(topic=bench.topic(str(alias)), payload=payload)
            assert packet.prop(mq.TOPIC_ALIAS) is None
    client.send(aliased(bench.topic(), b"x", 4))
    client.expect_close(0x94)
    client = bench.connect()
    client.send(aliased(bench.topic(), b"x", 0))
    client.expect_close(0x94)
    reader.expect_nothing()


@row(75)
def test_mqtt_3_3_2_9_announced_alias_maximum_holds(bench: Bench) -> None:
    """The highest alias announced works, on the default broker too."""
    reader = bench.subscriber(bench.topic())
    client = bench.connect()
    assert client.connack
    maximum = client.connack.prop(mq.TOPIC_ALIAS_MAXIMUM, 0)
    if maximum:
        client.send(aliased(bench.topic(), b"set", maximum), aliased("", b"use", maximum))
        reader.message(payload=b"set", topic=bench.topic())
        reader.message(payload=b"use", topic=bench.topic())
    if maximum < 65535:
        client.send(aliased(bench.topic(), b"x", maximum + 1))
        client.expect_close(0x94)


@row(75)
def test_mqtt_3_3_2_8_unknown_alias_is_a_protocol_error(bench: Bench) -> None:
    """An alias that was never set, with an empty topic: 0x82."""
    client = bench.connect()
    client.send(aliased("", b"x", 1))
    client.expect_close(0x82)
    client = bench.connect()
    client.send(aliased(bench.topic(), b"x", 0))
    client.expect_close(0x94)


@row(76)
def test_mqtt_3_3_2_7_aliases_end_with_the_connection(bench: Bench) -> None:
    """An alias is of its connection only, and means what it was last set to."""
    reader = bench.subscriber(bench.topic("#"))
    client = bench.durable("p")
    client.send(aliased(bench.topic("a"), b"1", 1), aliased("", b"2", 1))
    client.send(aliased(bench.topic("b"), b"3", 1), aliased("", b"4", 1))
    client.send(aliased(bench.topic("a"), b"5", 1), aliased("", b"6", 1), aliased("", b"7", 1))
    for topic, payloads in (("a", b"12"), ("b", b"34"), ("a", b"567")):
        for payload in payloads:
            reader.message(topic=bench.topic(topic), payload=bytes([payload]))
    client.drop()
    client = bench.durable("p")
    assert client.resumed
    client.send(aliased("", b"8", 1))
    client.expect_close(0x82)
    reader.expect_nothing()


@row(77)
@pytest.mark.parametrize("maximum", [None, 0, 2])
def test_mqtt_3_3_2_11_keeps_to_the_clients_alias_maximum(
    bench: Bench, maximum: int | None
) -> None:
    """No alias above the client's maximum, none without one; and each alias is right."""
    props = [] if maximum is None else [(mq.TOPIC_ALIAS_MAXIMUM, maximum)]
    reader = bench.connect(props=props)
    reader.subscribe(bench.topic("#"), qos=1)
    publisher = bench.connect()
    for turn in range(4):
        for name in "abc":
            publisher.publish(bench.topic(name), b"%d" % turn, 1)
            packet = reader.message(topic=bench.topic(name), payload=b"%d" % turn)
            alias = packet.prop(mq.TOPIC_ALIAS)
            assert alias is None or 1 <= alias <= (maximum or 0)


@row(78)
def test_mqtt_3_3_4_6_closes_on_subscription_identifier(bench: Bench) -> None:
    """A client's PUBLISH carries no Subscription Identifier."""
    watcher = bench.subscriber(bench.topic())
    client = bench.connect()
    client.send(mq.publish(bench.topic(), b"x", version=5, props=[(mq.SUBSCRIPTION_ID, 1)]))
    client.expect_close()
    watcher.expect_nothing()
