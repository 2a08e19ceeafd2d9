"""Chapter 7: PINGREQ and DISCONNECT (checklist rows 96 to 100)."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Bench
from tests.conformance.rows import row
from tests.support import packets as mq


@row(96)
def test_mqtt_3_12_4_1_answers_pingreq(bench: Bench) -> None:
    """Each PINGREQ has its PINGRESP, a hundred in one segment too."""
    client = bench.connect()
    client.send(mq.pingreq())
    assert client.expect(mq.PINGRESP).raw == b"\xd0\x00"
    client.send(mq.pingreq() * 100)
    for _ in range(100):
        client.expect(mq.PINGRESP)


@row(96)
def test_mqtt_3_12_4_1_closes_on_flags_or_body(bench: Bench) -> None:
    """A PINGREQ is two bytes, and no others."""
    for packet in (b"\xc1\x00", b"\xc2\x00", b"\xcf\x00", b"\xc0\x01\x00", b"\xc0\x02\x00\x01"):
        client = bench.connect()
        client.send(packet)
        client.expect_close()


@row(97)
def test_mqtt_3_14_1_1_closes_on_disconnect_with_flags(bench: Bench) -> None:
    """DISCONNECT with flags is malformed: an abnormal end, with will."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    for flags in (1, 2, 4, 8, 15):
        client = bench.connect(will=mq.Will(topic, b"%d" % flags))
        client.send(bytes([0xE0 | flags, 0]))
        client.expect_close()
        watcher.message(payload=b"%d" % flags)


@row(97)
def test_mqtt_3_14_1_1_closes_on_disconnect_with_wrong_body(bench: Bench) -> None:
    """So is one with a body it may not have."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    bodies = [b"\0", b"\0\0"] if bench.version == 4 else [b"\0\0\0", b"\0\1", b"\1", b"\0\2\x11\0"]
    for body in bodies:
        client = bench.connect(will=mq.Will(topic, body))
        client.send(mq.fixed(0xE0, body))
        client.expect_close()
        watcher.message(payload=body)


@row(98)
def test_mqtt_3_14_4_1_handles_nothing_after_disconnect(bench: Bench) -> None:
    """What follows a DISCONNECT in the same segment is not done."""
    v, topic = bench.version, bench.topic()
    watcher = bench.subscriber(topic, bench.topic("will"))
    client = bench.durable("s", will=mq.Will(bench.topic("will")))
    client.send(
        mq.publish(topic, b"before", version=v),
        mq.disconnect(v),
        mq.publish(topic, b"after", version=v),
        mq.subscribe([(topic, 1)], version=v),
        b"\xff\xff\xff",
    )
    assert client.drain() == []
    watcher.message(payload=b"before")
    watcher.expect_nothing()
    watcher.publish(topic, b"later", 1)
    watcher.message(payload=b"later")
    again = bench.durable("s")
    assert again.resumed
    again.expect_nothing()


@row(99)
def test_mqtt_3_14_0_1_no_disconnect_before_connack(bench: Bench) -> None:
    """Before a successful CONNACK there is no DISCONNECT, only CONNACK or the bare close."""
    for packet in (
        b"\x00\x00",
        mq.pingreq(),
        mq.publish("a", b"x", version=5),
        mq.connect(bench.client_id("a"), 5, flags=0x03),
        mq.connect(bench.client_id("a"), 5, props=b"\x7f\x00"),
        mq.connect(bench.client_id("a"), 5, props=[(mq.RECEIVE_MAXIMUM, 0)]),
        mq.connect(bench.client_id("a"), 5, props=[(mq.AUTH_METHOD, "NO-SUCH-METHOD")]),
        mq.connect(bench.client_id("a"), 5, tail=b"\0"),
        mq.connect(bench.client_id("a"), 5) + b"\x00\x00",
    ):
        client = bench.open()
        client.send(packet)
        seen = client.drain()
        if packet.endswith(b"\x00\x00") and seen and seen[0].reason == 0:
            continue  # this one was accepted first
        assert all(p.type == mq.CONNACK and p.reason >= 0x80 for p in seen)


@row(99)
def test_mqtt_3_14_2_2_no_session_expiry_in_disconnect(bench: Bench) -> None:
    """A DISCONNECT of the broker never has a Session Expiry Interval (the reader checks)."""
    for bad in (b"\x00\x00", mq.connect("x", 5), mq.publish("a/+", version=5), mq.auth()):
        client = bench.durable("s")
        client.send(bad)
        last = client.expect_close()
        assert last is None or last.prop(mq.SESSION_EXPIRY) is None
    older, _ = bench.durable("s"), bench.durable("s")
    last = older.expect_close(0x8E)
    assert last is not None and last.prop(mq.SESSION_EXPIRY) is None


FROM_SERVERS = {
    "CONNACK": b"\x20\x03\x00\x00\x00",
    "SUBACK": b"\x90\x04\x00\x01\x00\x00",
    "UNSUBACK": b"\xb0\x04\x00\x01\x00\x00",
    "PINGRESP": b"\xd0\x00",
}
FROM_SERVERS_V311 = {
    "CONNACK": b"\x20\x02\x00\x00",
    "SUBACK": b"\x90\x03\x00\x01\x00",
    "UNSUBACK": b"\xb0\x02\x00\x01",
    "PINGRESP": b"\xd0\x00",
}


@row(100, mq.V311, mq.V5)
@pytest.mark.parametrize("name", FROM_SERVERS)
def test_mqtt_4_13_closes_on_packets_of_servers(bench: Bench, name: str) -> None:
    """CONNACK, SUBACK, UNSUBACK and PINGRESP come from servers only."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    client = bench.connect(will=mq.Will(topic, b"w"))
    client.send((FROM_SERVERS if bench.version == 5 else FROM_SERVERS_V311)[name])
    client.expect_close()
    watcher.message(payload=b"w")
