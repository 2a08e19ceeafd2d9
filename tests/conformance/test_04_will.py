"""Chapter 4: the will (checklist rows 43 to 47)."""

from __future__ import annotations

import time

import pytest

from tests.conformance.conftest import Bench
from tests.conformance.rows import row
from tests.support import packets as mq
from tests.support.broker import Broker


@row(43)
@pytest.mark.parametrize(
    "ending", ["end of stream", "reset", "keep alive", "malformed", "protocol error", "takeover"]
)
def test_mqtt_3_1_2_8_published_when_the_connection_is_lost(bench: Bench, ending: str) -> None:
    """However a connection ends other than by DISCONNECT, its will is published, once."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    keep_alive = 1 if ending == "keep alive" else 0
    client = bench.connect("w", will=mq.Will(topic, b"gone"), keep_alive=keep_alive)
    if ending == "end of stream":
        client.drop()
    elif ending == "reset":
        client.reset()
    elif ending == "malformed":
        client.send(b"\x00\x00")
    elif ending == "protocol error":
        client.send(mq.connect(bench.client_id("w"), bench.version))
    elif ending == "takeover":
        bench.connect("w")
    watcher.message(topic=topic, payload=b"gone", qos=0, retain=False)
    watcher.expect_nothing()


@row(44)
def test_mqtt_3_1_2_10_not_after_disconnect(bench: Bench) -> None:
    """DISCONNECT takes the will back: not then, and not by any later connection."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    client = bench.durable("w", will=mq.Will(topic, b"w"))
    client.disconnect()
    watcher.expect_nothing()
    bench.durable("w").drop()  # the same session, now without a will
    watcher.expect_nothing()


@row(44)
def test_mqtt_3_1_2_10_published_once(bench: Bench) -> None:
    """The will goes out once per connection that had it, not again with the session."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    bench.durable("w", will=mq.Will(topic, b"w")).drop()
    watcher.message(payload=b"w")
    bench.durable("w").drop()
    bench.connect("w", clean=True).drop()
    watcher.expect_nothing()


@row(44)
def test_mqtt_3_1_2_10_disconnect_in_the_same_segment(bench: Bench) -> None:
    """CONNECT with a will and DISCONNECT at once: no will."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    client = bench.open()
    client.send(
        mq.connect(bench.client_id("w"), bench.version, will=mq.Will(topic)),
        mq.disconnect(bench.version),
    )
    client.expect(mq.CONNACK, reason=0)
    assert client.receive() is None
    watcher.expect_nothing()


@row(45)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True], ids=["plain", "retained"])
def test_mqtt_3_1_2_14_qos_and_retain(bench: Bench, qos: int, retain: bool) -> None:
    """The will goes out with the QoS and the retain flag its client asked for."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic, qos=2)
    bench.connect(will=mq.Will(topic, b"w", qos, retain)).drop()
    watcher.message(payload=b"w", qos=qos, retain=False)
    late = bench.subscriber(topic, qos=2)
    if retain:
        late.message(payload=b"w", qos=qos, retain=True)
        late.publish(topic, b"", retain=True)
        late.message(payload=b"")
    late.expect_nothing()


@row(45)
def test_mqtt_3_1_2_15_empty_will_payload(bench: Bench) -> None:
    """A will may be empty; retained, it deletes the retained message."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    watcher.publish(topic, b"kept", retain=True)
    watcher.message(payload=b"kept")
    bench.connect(will=mq.Will(topic, b"", retain=True)).drop()
    watcher.message(payload=b"")
    bench.subscriber(topic).expect_nothing()


@row(45)
def test_mqtt_3_1_2_15_acl_of_the_client_applies(bench: Bench, guarded: Broker) -> None:
    """A will on a topic its client may not publish to is not published."""
    bench = bench.at(guarded)
    login = {"username": "alice", "password": b"wonder"}
    watcher = bench.subscriber("denied/#", bench.topic("#"), **login)
    client = bench.open()
    will = mq.Will("denied/will", b"w", 1)
    client.send(mq.connect(bench.client_id("w"), bench.version, will=will, **login))
    connack = client.expect(mq.CONNACK)  # refusing the CONNECT is as good
    if connack.reason == 0:
        client.drop()
    bench.connect(will=mq.Will(bench.topic("will"), b"allowed"), **login).drop()
    watcher.message(payload=b"allowed")
    watcher.expect_nothing()


def delayed(topic: str, payload: bytes, seconds: int) -> mq.Will:
    return mq.Will(topic, payload, props=[(mq.WILL_DELAY, seconds)])


@row(46)
def test_mqtt_3_1_3_9_waits_for_the_delay(bench: Bench) -> None:
    """The will waits for its delay, and is dropped when the session goes on in time."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    returns = bench.durable("a", will=delayed(topic, b"a", 1))
    stays_away = bench.durable("b", will=delayed(topic, b"b", 2))
    start = time.monotonic()
    returns.drop()
    stays_away.drop()
    watcher.expect_nothing()
    back = bench.durable("a")
    assert back.resumed
    watcher.message(payload=b"b")
    assert time.monotonic() - start >= 1.9
    watcher.expect_nothing()
    back.drop()
    watcher.expect_nothing()


@row(46)
def test_mqtt_3_1_3_9_published_when_the_session_ends_first(bench: Bench) -> None:
    """A session that ends before the delay is over takes its will along at once."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    start = time.monotonic()
    bench.durable("e", expiry=1, will=delayed(topic, b"expired", 60)).drop()
    bench.connect("n", will=delayed(topic, b"no session", 60)).drop()
    watcher.message(payload=b"no session")
    bench.durable("c", will=delayed(topic, b"clean start", 60)).drop()
    watcher.expect_nothing()
    bench.connect("c", clean=True)
    watcher.message(payload=b"clean start")
    bench.durable("t", will=delayed(topic, b"taken over", 60))
    bench.connect("t", clean=True)
    watcher.message(payload=b"taken over")
    watcher.message(payload=b"expired")  # not after the 60 s of its delay
    assert 0.9 <= time.monotonic() - start
    watcher.expect_nothing()


@row(46)
def test_mqtt_3_1_3_9_takeover_within_the_delay(bench: Bench) -> None:
    """Taking the session over is in time: the delayed will is dropped."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    older = bench.durable("t", will=delayed(topic, b"w", 1))
    assert bench.durable("t").resumed
    older.expect_close(0x8E)
    bench.durable("clock", will=delayed(topic, b"clock", 2)).drop()
    watcher.message(payload=b"clock")
    watcher.expect_nothing()


@row(47)
def test_mqtt_3_2_2_12_refuses_will_qos_not_on_offer(bench: Bench, modest: Broker) -> None:
    """Maximum QoS 1: announced, and a will of QoS 2 is refused with 0x9B."""
    bench = bench.at(modest)
    client = bench.connect(will=mq.Will(bench.topic(), qos=1))
    assert client.connack and client.connack.prop(mq.MAXIMUM_QOS) == 1
    client = bench.open().connect(
        bench.client_id("w"), will=mq.Will(bench.topic(), qos=2), reason=0x9B
    )
    assert client.receive() is None


@row(47)
def test_mqtt_3_2_2_13_refuses_retained_will_not_on_offer(bench: Bench, modest: Broker) -> None:
    """Retain Available 0: announced, and a retained will is refused with 0x9A."""
    bench = bench.at(modest)
    client = bench.connect()
    assert client.connack and client.connack.prop(mq.RETAIN_AVAILABLE) == 0
    will = mq.Will(bench.topic(), retain=True)
    client = bench.open().connect(bench.client_id("w"), will=will, reason=0x9A)
    assert client.receive() is None


@row(47)
def test_mqtt_3_2_2_12_publish_beyond_the_offer(bench: Bench, modest: Broker) -> None:
    """The same limits hold for PUBLISH; SUBSCRIBE may ask for any QoS and gets what there is."""
    bench = bench.at(modest)
    assert bench.connect().subscribe(bench.topic(), qos=2) == [1]
    for packet, reason in (
        (mq.publish(bench.topic(), b"x", 2, version=5), 0x9B),
        (mq.publish(bench.topic(), b"x", retain=True, version=5), 0x9A),
    ):
        client = bench.connect()
        client.send(packet)
        client.expect_close(reason)
