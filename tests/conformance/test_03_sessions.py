"""Chapter 3: sessions (checklist rows 35 to 42)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.conformance.conftest import Bench
from tests.conformance.rows import row
from tests.support import packets as mq
from tests.support.broker import Broker


@row(35)
def test_mqtt_3_1_2_5_resumes_subscriptions(bench: Bench) -> None:
    """A stored session's subscriptions are at work again without a SUBSCRIBE."""
    first = bench.durable("s")
    first.subscribe(bench.topic("a"), qos=1)
    first.subscribe((bench.topic("b/#"), 2))
    first.drop()
    again = bench.durable("s")
    assert again.resumed
    publisher = bench.connect()
    publisher.publish(bench.topic("a"), b"a", 2)
    publisher.publish(bench.topic("b/c"), b"b", 2)
    publisher.publish(bench.topic("c"), b"c", 2)
    again.message(topic=bench.topic("a"), payload=b"a", qos=1)
    again.message(topic=bench.topic("b/c"), payload=b"b", qos=2)
    again.expect_nothing()


@row(35)
def test_mqtt_3_1_2_5_resumes_queued_and_in_flight(bench: Bench) -> None:
    """What was in flight comes first, with its old id; what was queued follows."""
    first = bench.durable("s")
    first.subscribe(bench.topic(), qos=2)
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"one", 1)
    publisher.publish(bench.topic(), b"two", 2)
    in_flight = [first.message(ack=False) for _ in range(2)]
    first.drop()
    publisher.publish(bench.topic(), b"three", 1)
    publisher.publish(bench.topic(), b"four", 2)
    again = bench.durable("s")
    for old in in_flight:
        again.message(payload=old.payload, packet_id=old.packet_id, dup=True, qos=old.qos)
    again.message(payload=b"three", qos=1, dup=False)
    again.message(payload=b"four", qos=2, dup=False)
    again.expect_nothing()


@row(35)
def test_mqtt_3_1_2_5_resumes_in_another_version(bench: Bench) -> None:
    """A session that 3.1.1 left can be taken up by 5.0, and the other way round."""
    first = bench.durable("s")
    first.subscribe(bench.topic(), qos=1)
    first.drop()
    bench.connect().publish(bench.topic(), b"x", 1)
    other = mq.V5 if bench.version == mq.V311 else mq.V311
    again = bench.durable("s", version=other)
    assert again.resumed
    again.message(payload=b"x")


@row(36)
def test_mqtt_3_1_2_23_keeps_messages_in_order(bench: Bench) -> None:
    """QoS 1 and 2 messages for an absent client wait for it, in order."""
    first = bench.durable("s")
    first.subscribe(bench.topic("#"), qos=2)
    first.disconnect()
    publisher = bench.connect()
    for number in range(200):
        publisher.publish(bench.topic(), b"%d" % number, 1 + number % 2)
    again = bench.durable("s", props=[(mq.RECEIVE_MAXIMUM, 7)] if bench.version == 5 else [])
    got = [again.message(dup=False) for _ in range(200)]
    for qos in (1, 2):
        numbers = [int(p.payload) for p in got if p.qos == qos]
        assert numbers == list(range(qos - 1, 200, 2))
    again.expect_nothing()


@row(36)
def test_mqtt_3_1_2_23_up_to_the_configured_limit(bench: Bench, small: Broker) -> None:
    """The queue is bounded (mqueue.max_length, 10 here); what it keeps stays in order."""
    bench = bench.at(small)
    first = bench.durable("s")
    first.subscribe(bench.topic(), qos=1)
    first.disconnect()
    publisher = bench.connect()
    for number in range(25):
        assert publisher.publish(bench.topic(), b"%d" % number, 1).type == mq.PUBACK
    again = bench.durable("s")
    numbers = []
    again.send(mq.pingreq())
    while (packet := again.receive()) and packet.type == mq.PUBLISH:
        numbers.append(int(packet.payload))
        again.send(mq.puback(packet.packet_id, bench.version))
    again.ping()
    while True:  # the window has opened: the rest comes without being asked for
        again.send(mq.pingreq())
        packet = again.receive()
        if packet is None or packet.type == mq.PINGRESP:
            break
        numbers.append(int(packet.payload))
        again.send(mq.puback(packet.packet_id, bench.version))
        again.wait_for(mq.PINGRESP)
    assert len(numbers) == 10
    assert numbers == sorted(numbers)


@row(37)
def test_mqtt_3_1_2_4_clean_start_forgets_everything(bench: Bench) -> None:
    """Clean session/clean start 1 ends subscriptions, queue and in-flight state alike."""
    first = bench.durable("s")
    first.subscribe(bench.topic("#"), qos=2)
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"in flight", 1)
    publisher.publish(bench.topic(), b"received", 2)
    first.message(payload=b"in flight", ack=False)
    received = first.message(payload=b"received", ack=False)
    first.send(mq.pubrec(received.packet_id, bench.version))
    first.expect(mq.PUBREL)
    first.send(mq.publish(bench.topic(), b"inbound", 2, 99, version=bench.version))
    first.wait_for(mq.PUBREC)
    first.drop()
    publisher.publish(bench.topic(), b"queued", 1)
    clean = bench.connect("s", clean=True)
    assert not clean.resumed
    clean.expect_nothing()
    publisher.publish(bench.topic(), b"later", 1)
    clean.expect_nothing()
    watcher = bench.subscriber(bench.topic(), qos=2)
    clean.publish(bench.topic(), b"99 is new", 2, packet_id=99)
    watcher.message(payload=b"99 is new")
    clean.drop()
    assert not bench.connect("s", clean=False).resumed


@row(38)
def test_mqtt_3_1_2_4_retained_messages_outlive_the_session(bench: Bench) -> None:
    """A retained message belongs to its topic, not to the session that published it."""
    publisher = bench.connect("p", clean=True)
    publisher.publish(bench.topic(), b"stays", 1, retain=True)
    publisher.disconnect()
    bench.connect("p", clean=True).disconnect()
    reader = bench.subscriber(bench.topic())
    reader.message(payload=b"stays", retain=True)
    reader.publish(bench.topic(), b"", retain=True)


@row(39)
def test_mqtt_4_1_0_1_keeps_state_while_connected(bench: Bench) -> None:
    """A session without a future is still whole as long as its connection lives."""
    client = bench.subscriber(bench.topic(), qos=1)
    publisher = bench.connect()
    for number in range(5):
        publisher.publish(bench.topic(), b"%d" % number, 1)
    assert client.payloads(5) == [b"0", b"1", b"2", b"3", b"4"]


@row(39)
@pytest.mark.parametrize("ending", ["disconnect", "drop"])
def test_mqtt_4_1_0_2_drops_state_without_expiry(bench: Bench, ending: str) -> None:
    """Clean session 1, or Session Expiry Interval 0: the state ends with the connection."""
    client = bench.connect("s", clean=True)
    client.subscribe(bench.topic(), qos=1)
    getattr(client, ending)()
    bench.connect().publish(bench.topic(), b"x", 1)
    again = bench.connect("s", clean=False)
    assert not again.resumed
    again.expect_nothing()


@row(39, mq.V311)
def test_mqtt_4_1_0_2_clean_session_0_is_kept(bench: Bench) -> None:
    """Clean session 0: the state is kept, however the connection ends."""
    for ending in ("disconnect", "drop", "reset"):
        client = bench.connect("s", clean=False)
        client.subscribe(bench.topic(), qos=1)
        getattr(client, ending)()
        assert bench.connect("s", clean=False).resumed


@row(39, mq.V5)
def test_mqtt_4_1_0_2_session_expiry_interval(bench: Bench) -> None:
    """State goes when the interval has run out since the close; FFFFFFFF keeps it."""
    clients = {name: bench.durable(name, expiry=1) for name in ("a", "b", "c")}
    forever = bench.durable("f", expiry=0xFFFFFFFF)
    clients["a"].drop()
    clients["b"].disconnect()
    forever.drop()
    assert bench.durable("a", expiry=300).resumed  # a comes back in time, and for longer
    bench.let_pass(2)
    assert bench.durable("c", expiry=1).resumed  # connected all the while
    assert not bench.durable("b", expiry=1).resumed
    assert bench.durable("a", expiry=1).resumed
    assert bench.durable("f", expiry=1).resumed


@row(39, mq.V5)
def test_mqtt_4_1_0_2_disconnect_changes_expiry(bench: Bench) -> None:
    """DISCONNECT may set the interval anew: to 0, or from something to more."""
    client = bench.durable("a", expiry=300)
    client.disconnect(props=[(mq.SESSION_EXPIRY, 0)])
    assert not bench.durable("a", expiry=1).resumed
    client = bench.durable("b", expiry=1)
    client.disconnect(props=[(mq.SESSION_EXPIRY, 300)])
    bench.let_pass(2)
    assert bench.durable("b").resumed


@row(39, mq.V5)
def test_mqtt_4_1_0_2_expiry_cannot_come_from_0(bench: Bench) -> None:
    """DISCONNECT with an interval where CONNECT had none: 0x82, and no session stays."""
    for props in ([], [(mq.SESSION_EXPIRY, 0)]):
        client = bench.connect("a", props=props)
        client.send(mq.disconnect(5, 0, [(mq.SESSION_EXPIRY, 60)]))
        client.expect_close(0x82)
        assert not bench.connect("a", clean=False).resumed


@row(40)
def test_mqtt_4_4_0_1_resends_what_is_unacknowledged(bench: Bench) -> None:
    """PUBLISH with DUP 1 and PUBREL again, with the old ids, in the old order."""
    first = bench.durable("s")
    first.subscribe(bench.topic(), qos=2)
    publisher = bench.connect()
    for number in range(6):
        publisher.publish(bench.topic(), b"%d" % number, 1 + number % 2)
    sent = [first.message(payload=b"%d" % n, qos=1 + n % 2, ack=False) for n in range(6)]
    for index in (1, 3):  # these two go on to PUBREL, unanswered
        first.send(mq.pubrec(sent[index].packet_id, bench.version))
        first.expect(mq.PUBREL, packet_id=sent[index].packet_id)
    first.drop()
    for _ in range(2):  # and once more when even the repetition is lost
        again = bench.durable("s")
        seen = [again.receive() for _ in range(6)]
        again.expect_nothing()
        again.drop()
        assert all(seen)
        published = [p for p in seen if p and p.type == mq.PUBLISH]
        released = [p.packet_id for p in seen if p and p.type == mq.PUBREL]
        assert [p.payload for p in published] == [b"0", b"2", b"4", b"5"]
        assert all(p.dup for p in published)
        assert [p.packet_id for p in published] == [sent[n].packet_id for n in (0, 2, 4, 5)]
        assert released == [sent[1].packet_id, sent[3].packet_id]
    again = bench.durable("s")
    for packet in [again.receive() for _ in range(6)]:
        assert packet is not None
        if packet.type == mq.PUBREL:
            again.send(mq.pubcomp(packet.packet_id, bench.version))
        elif packet.qos == 1:
            again.send(mq.puback(packet.packet_id, bench.version))
        else:
            again.send(mq.pubrec(packet.packet_id, bench.version))
    for index in (1, 5):
        if index == 5:
            again.send(mq.pubcomp(again.expect(mq.PUBREL).packet_id, bench.version))
    again.expect_nothing()
    again.drop()
    bench.durable("s").expect_nothing()


@row(40, mq.V5)
def test_mqtt_4_4_0_1_never_resends_on_a_live_connection(bench: Bench, impatient: Broker) -> None:
    """5.0: as long as the connection lives nothing is sent again, whatever retry_interval says."""
    bench = bench.at(impatient)
    five = bench.subscriber(bench.topic(), qos=2)
    three = bench.subscriber(bench.topic(), qos=2, version=mq.V311)
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"one", 1)
    publisher.publish(bench.topic(), b"two", 2)
    for client in (five, three):
        client.message(payload=b"one", ack=False)
        client.message(payload=b"two", ack=False)
    for payload in (b"one", b"two"):  # the retry of the 3.1.1 client tells the time
        three.message(payload=payload, dup=True)
    five.expect_nothing()


@row(40, mq.V311)
def test_mqtt_4_4_0_1_retries_after_the_interval(bench: Bench, impatient: Broker) -> None:
    """3.1.1 with a retry_interval: unacknowledged packets come again with DUP 1 and the old id."""
    bench = bench.at(impatient)
    client = bench.subscriber(bench.topic(), qos=2)
    start = time.monotonic()
    bench.connect().publish(bench.topic(), b"x", 2)
    first = client.message(dup=False, ack=False)
    again = client.message(dup=True, ack=False)
    assert time.monotonic() - start >= 0.9
    assert (again.payload, again.packet_id) == (first.payload, first.packet_id)
    client.send(mq.pubrec(first.packet_id))
    client.expect(mq.PUBREL, packet_id=first.packet_id)
    client.expect(mq.PUBREL, packet_id=first.packet_id)
    client.send(mq.pubcomp(first.packet_id))


@row(41)
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_4_5_0_1_stores_before_it_acknowledges(bench: Bench, qos: int) -> None:
    """The acknowledgement means: the message is in every matching session, absent ones too."""
    for name in ("a", "b"):
        client = bench.durable(name)
        client.subscribe(bench.topic(), qos=2)
        client.disconnect()
    online = [bench.subscriber(bench.topic("#"), qos=2) for _ in range(3)]
    publisher = bench.connect()
    publisher.send(mq.publish(bench.topic(), b"x", qos, 5, version=bench.version))
    publisher.expect(mq.PUBACK if qos == 1 else mq.PUBREC, packet_id=5)
    if qos == 2:  # a broker may wait with the delivery for PUBREL, not with the storing
        publisher.send(mq.pubrel(5, bench.version))
        publisher.expect(mq.PUBCOMP, packet_id=5)
    for name in ("a", "b"):
        bench.durable(name).message(payload=b"x", qos=qos)
    for client in online:
        client.message(payload=b"x", qos=qos)


@row(42)
@pytest.mark.parametrize("reason", [0x00, 0x04])
def test_mqtt_3_14_4_3_disconnect_and_the_will(bench: Bench, reason: int) -> None:
    """A normal DISCONNECT drops the will; 0x04 asks for it."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    client = bench.connect(will=mq.Will(topic, b"w"))
    client.send(mq.disconnect(5, reason))
    assert client.receive() is None
    if reason:
        watcher.message(payload=b"w")
    watcher.expect_nothing()


@row(42)
@pytest.mark.parametrize("reason", [0x80, 0x81, 0x82, 0x83, 0x93, 0x97])
def test_mqtt_3_1_2_10_other_reasons_publish_the_will(bench: Bench, reason: int) -> None:
    """Any other reason code is no normal disconnection."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    client = bench.connect(will=mq.Will(topic, b"w"))
    client.disconnect(reason)
    watcher.message(payload=b"w")
    watcher.expect_nothing()


@row(39, mq.V311)
def test_mqtt_4_1_0_2_documented_expiry_of_clean_session_0(
    bench: Bench, broker_with: Callable[..., Broker]
) -> None:
    """Ours: a clean session 0 is kept for session.expiry_interval after its last connection."""
    bench = bench.at(broker_with(session={"expiry_interval": "1s"}))
    bench.connect("s", clean=False).drop()
    bench.let_pass(2)
    assert not bench.connect("s", clean=False).resumed
