"""Chapter 2: CONNECT and CONNACK (checklist rows 12 to 34)."""

from __future__ import annotations

import select
import string
import time

import pytest

from tests.conformance.conftest import Bench
from tests.conformance.rows import row
from tests.conformance.test_01_encoding import BODIES
from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.waiting import Patience

DEADLINE_KEEP_ALIVE = 1.5 + 1.0 + 0.5  # keep alive of 1 s, the clock's tick, slack for the machine
OLD_REFUSAL = b"\x20\x02\x00\x01"


def read_all(client: RawClient) -> bytes:
    """Everything to the end of the stream, as bytes."""
    data = b""
    client.sock.settimeout(client.deadline)
    try:
        while piece := client.sock.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def refused(bench: Bench, packet: bytes) -> None:
    """The broker closes on `packet` as first packet, and never says it accepted it."""
    client = bench.open()
    client.send(packet)
    client.expect_close()
    client.close()


@row(12)
@pytest.mark.parametrize("kind", [k for k in range(16) if k != mq.CONNECT])
def test_mqtt_3_1_0_1_first_packet_must_be_connect(bench: Bench, kind: int) -> None:
    """Any other first packet ends the connection, unanswered and without effect."""
    topic = bench.topic()
    watcher = bench.subscriber(topic)
    client = bench.open()
    if kind == mq.PUBLISH:
        client.send(mq.publish(topic, b"x", version=bench.version))
    else:
        client.send(BODIES[kind](bench.version) if kind in BODIES else bytes([kind << 4, 0]))
    client.send(mq.publish(topic, b"y", version=bench.version))
    assert read_all(client) == b""
    watcher.expect_nothing()


@row(13)
def test_mqtt_3_1_0_2_closes_on_second_connect(bench: Bench) -> None:
    """A second CONNECT on a connection ends it, the same one or another."""
    for name in ("a", "b"):
        client = bench.connect("a")
        client.send(mq.connect(bench.client_id(name), bench.version))
        client.expect_close()


@row(14)
def test_mqtt_3_1_2_1_closes_on_another_protocol_name(bench: Bench) -> None:
    """Only MQTT is taken, in this spelling."""
    for name in ("", "mqtt", "MQT", "MQTTT", "MQTx", "MQIsdp", "AMQP", "HTTP", b"MQTT\xc3\xa9"):
        refused(bench, mq.connect(bench.client_id("a"), bench.version, name=name))


@row(14)
def test_mqtt_3_1_2_1_mqisdp_is_level_3(bench: Bench) -> None:
    """MQTT 3.1 is served under its own name, or refused like any unknown level."""
    client = bench.open(mq.V31)
    client.send(mq.connect(bench.client_id("a"), mq.V31))
    connack = client.expect(mq.CONNACK)
    if connack.reason:
        assert connack.reason == 1
        assert client.receive() is None
    else:
        client.expect_nothing()


@row(15)
def test_mqtt_3_1_2_2_refuses_unknown_level(bench: Bench) -> None:
    """A level the broker does not speak gets CONNACK 0x01, or 0x84 in the 5.0 form; then close."""
    for level in (0, 1, 2, 3, 6, 7, 100, 127):
        client = bench.open()
        client.send(mq.connect(bench.client_id("a"), bench.version, level=level))
        answer = read_all(client)
        new_form = answer[:1] == b"\x20" and answer[2:4] == b"\0\x84"
        assert answer == OLD_REFUSAL or new_form, f"level {level}: {answer.hex(' ')}"


@row(16)
def test_mqtt_3_1_2_3_closes_on_reserved_connect_flag(bench: Bench) -> None:
    """Bit 0 of the connect flags must be 0."""
    for flags in (0x01, 0x03):
        refused(bench, mq.connect(bench.client_id("a"), bench.version, flags=flags))


@row(17)
def test_mqtt_3_1_2_12_closes_on_bad_will_flags(bench: Bench) -> None:
    """Will QoS 3, and will QoS or will retain without a will, are malformed."""
    will = mq.Will(bench.topic(), qos=3)
    refused(bench, mq.connect(bench.client_id("a"), bench.version, will=will))
    for flags in (0x08, 0x10, 0x18, 0x20, 0x38):
        refused(bench, mq.connect(bench.client_id("a"), bench.version, flags=0x02 | flags))


@row(18)
def test_mqtt_3_1_2_16_closes_when_payload_and_flags_differ(bench: Bench) -> None:
    """User name and password are there exactly when their flags are, and nothing follows."""
    v, client_id = bench.version, bench.client_id("a")
    for packet in (
        mq.connect(client_id, v, flags=0x82),  # user name missing
        mq.connect(client_id, v, flags=0x42),  # password missing
        mq.connect(client_id, v, flags=0xC2),
        mq.connect(client_id, v, username="u", flags=0xC2),
        mq.connect(client_id, v, username="u", flags=0x02),  # user name without its flag
        mq.connect(client_id, v, username="u", password=b"p", flags=0x82),
        mq.connect(client_id, v, username="u", password=b"p", flags=0x02),
        mq.connect(client_id, v, flags=0x06),  # will missing
        mq.connect(client_id, v, will=mq.Will("t"), flags=0x02),
        mq.connect(client_id, v, tail=b"\0"),
        mq.connect(client_id, v, tail=b"\0\1a"),
    ):
        refused(bench, packet)


@row(19)
def test_mqtt_3_1_2_22_closes_on_password_without_user_name(bench: Bench) -> None:
    """3.1.1 has no password without a user name."""
    refused(bench, mq.connect(bench.client_id("a"), 4, password=b"p"))


@row(19, mq.V5)
def test_mqtt_3_1_2_22_is_gone_in_5(bench: Bench) -> None:
    """5.0 allows a password without a user name: whether it helps is for the access rules."""
    client = bench.open()
    client.send(mq.connect(bench.client_id("a"), 5, password=b"p"))
    assert client.expect(mq.CONNACK).reason in (0x00, 0x86, 0x87)


@row(20)
def test_mqtt_3_1_3_5_accepts_simple_client_ids(bench: Bench) -> None:
    """Letters and digits, 1 to 23 of them."""
    alphabet = string.digits + string.ascii_uppercase + string.ascii_lowercase
    ids = [alphabet[i : i + 23] for i in range(0, len(alphabet), 23)] + list(alphabet)
    ids += [bench.client_id("Z" * 23)[:n] for n in range(1, 24)]
    for client_id in ids:
        client = bench.open().connect(client_id)
        assert client.connack and client.connack.prop(mq.ASSIGNED_CLIENT_ID) is None
        client.close()


@row(20)
def test_mqtt_3_1_3_5_beyond_23_characters(bench: Bench, ours: None) -> None:
    """Ours: up to 256 bytes, of any characters; longer ids are refused."""
    for client_id in ("x" * 256, "a b/c-d_e:f", "\u00e9\u20ac\U0001f600"):
        bench.open().connect(bench.client_id(client_id)[:256]).close()
    client = bench.open()
    client.send(mq.connect(bench.client_id("x" * 257), bench.version))
    refusal = client.expect(mq.CONNACK)
    assert refusal.reason == (0x85 if bench.version == 5 else 0x02)
    assert client.receive() is None


@row(21)
def test_mqtt_3_1_3_6_empty_client_id_gets_a_unique_one(bench: Bench) -> None:
    """Clients without an id are different clients."""
    clients = [bench.open().connect("") for _ in range(3)]
    for client in clients:
        client.expect_nothing()
    if bench.version == mq.V5:
        ids = [c.connack.prop(mq.ASSIGNED_CLIENT_ID) for c in clients if c.connack]
        assert all(ids) and len(set(ids)) == 3


@row(21, mq.V5)
def test_mqtt_3_1_3_7_assigned_client_id_works_later(bench: Bench) -> None:
    """The id the broker made up names the session from then on."""
    props = [(mq.SESSION_EXPIRY, 60)]
    first = bench.open().connect("", clean=False, props=props)
    assert first.connack is not None and not first.resumed
    assigned = first.connack.prop(mq.ASSIGNED_CLIENT_ID)
    first.disconnect()
    again = bench.open().connect(assigned, clean=False)
    assert again.resumed
    assert again.connack and again.connack.prop(mq.ASSIGNED_CLIENT_ID) is None


@row(22)
def test_mqtt_3_1_3_8_refuses_empty_id_with_clean_session_0(bench: Bench) -> None:
    """3.1.1: a session to keep needs a name; return code 0x02."""
    client = bench.open()
    client.connect("", clean=False, reason=2)
    assert client.receive() is None


def full_connect(bench: Bench, name: str) -> bytes:
    """A CONNECT with every field in use."""
    props = [(mq.SESSION_EXPIRY, 60), (mq.USER_PROPERTY, ("k", "v")), (mq.RECEIVE_MAXIMUM, 10)]
    will = mq.Will("cut/will", b"gone", 1, props=[(mq.WILL_DELAY, 0)] if bench.version == 5 else ())
    return mq.connect(
        bench.client_id(name),
        bench.version,
        clean=False,
        keep_alive=30,
        will=will,
        username="user",
        password=b"password",
        props=props,
    )


@row(23)
def test_mqtt_3_1_4_1_closes_on_cut_connect(bench: Bench) -> None:
    """A CONNECT cut anywhere is malformed and leaves no session and no will."""
    watcher = bench.subscriber("cut/will")
    whole = full_connect(bench, "cut")
    body = whole[2:]
    for length in range(len(body)):
        client = bench.open()
        client.send(mq.fixed(0x10, body[:length]))
        client.expect_close()
        client.close()
    for length in range(1, len(whole)):  # the peer goes away in the middle
        client = bench.open()
        client.send(whole[:length])
        client.drop()
    assert not bench.connect("cut", clean=False).resumed
    watcher.expect_nothing()


@row(23)
def test_mqtt_3_1_4_1_closes_on_length_too_long(bench: Bench) -> None:
    """Each length field of the CONNECT, one too long."""
    whole = full_connect(bench, "len")
    v5 = bench.version == mq.V5
    fields = [whole.index(mq.utf8(s)) + 1 for s in ("MQTT", bench.client_id("len"), "cut/will")]
    fields += [whole.index(mq.utf8(s)) + 1 for s in ("gone", "user", "password")]
    if v5:
        fields += [12, whole.index(mq.utf8("cut/will")) - 6]
        fields += [whole.index(mq.utf8("k")) + 1, whole.index(mq.utf8("v")) + 1]
    for pos in fields:
        bad = bytearray(whole)
        bad[pos] += 1
        refused(bench, bytes(bad))
    assert not bench.connect("len", clean=False).resumed


@row(24)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kept"])
def test_mqtt_3_1_4_3_ends_the_older_connection(bench: Bench, clean: bool) -> None:
    """The same client id again: the older connection ends (5.0: 0x8E), its will is published."""
    topic = bench.topic("will")
    watcher = bench.subscriber(topic)
    older = bench.durable("twin", will=mq.Will(topic, b"taken over"))
    newer = bench.connect("twin", clean=clean)
    assert newer.resumed is not clean
    older.expect_close(0x8E)
    watcher.message(payload=b"taken over")
    watcher.expect_nothing()
    newer.expect_nothing()


@row(25)
def test_mqtt_3_1_4_6_refused_connect_ends_processing(bench: Bench, guarded: Broker) -> None:
    """CONNECT with a wrong password and a PUBLISH in one segment: nothing is published."""
    bench = bench.at(guarded)
    good = {"username": "alice", "password": b"wonder"}
    watcher = bench.subscriber(bench.topic("#"), qos=2, **good)
    for bad in ({}, {"username": "alice", "password": b"wrong"}, {"username": "mallory"}):
        client = bench.open()
        client.send(
            mq.connect(bench.client_id("m"), bench.version, **bad),
            *(mq.publish(bench.topic(), b"x", q, 1, version=bench.version) for q in (0, 1, 2)),
            mq.subscribe([("#", 0)], version=bench.version),
            mq.pingreq(),
        )
        refusal = client.expect(mq.CONNACK)
        assert refusal.reason in ((0x86, 0x87) if bench.version == 5 else (4, 5))
        assert client.receive() is None
    watcher.expect_nothing()


@row(25)
def test_mqtt_3_1_4_6_unknown_level_ends_processing(bench: Bench) -> None:
    """The same behind a CONNECT of an unknown protocol level."""
    watcher = bench.subscriber(bench.topic())
    client = bench.open()
    client.send(
        mq.connect(bench.client_id("m"), bench.version, level=6),
        mq.publish(bench.topic(), b"x", version=bench.version),
    )
    read_all(client)
    watcher.expect_nothing()


@row(26)
def test_mqtt_3_2_0_1_connack_comes_first_and_once(bench: Bench) -> None:
    """CONNECT, SUBSCRIBE and PUBLISH in one segment: one CONNACK, before everything else."""
    client, v, topic = bench.open(), bench.version, bench.topic()
    client.send(
        mq.connect(bench.client_id("a"), v),
        mq.subscribe([(topic, 1)], 1, version=v),
        mq.publish(topic, b"x", 1, 2, version=v),
        mq.pingreq(),
    )
    client.expect(mq.CONNACK, reason=0, session_present=False)
    seen = [client.receive() for _ in range(4)]
    kinds = [p.type for p in seen if p]
    assert sorted(kinds) == sorted([mq.SUBACK, mq.PUBLISH, mq.PUBACK, mq.PINGRESP])
    assert kinds[0] == mq.SUBACK
    client.expect_nothing()


@row(26)
def test_mqtt_3_2_0_1_connack_precedes_queued_messages(bench: Bench) -> None:
    """A resumed session's messages wait for the CONNACK."""
    first = bench.durable("q")
    first.subscribe(bench.topic(), qos=1)
    first.disconnect()
    bench.connect().publish(bench.topic(), b"x", 1)
    again = bench.durable("q")
    assert again.resumed
    again.message(payload=b"x")


@row(27)
def test_mqtt_3_2_2_2_session_present_when_resumed(bench: Bench) -> None:
    """Session Present is 1 exactly when stored state goes on."""
    assert not bench.durable("a").resumed
    assert bench.durable("a").resumed  # while the older connection is still there
    assert bench.durable("a").resumed
    assert not bench.connect("a", clean=True).resumed
    bench.connect("a", clean=True).disconnect()
    again = bench.durable("a")
    assert not again.resumed
    again.disconnect()
    assert bench.durable("a").resumed


@row(28)
def test_mqtt_3_2_2_6_refusal_has_session_present_0(bench: Bench) -> None:
    """A refused CONNECT says Session Present 0 although there is a session, then closes."""
    bench.durable("a").disconnect()
    client = bench.open()
    client.send(mq.connect(bench.client_id("a"), bench.version, clean=False, level=6))
    assert read_all(client)[2:3] == b"\0"
    assert bench.durable("a").resumed


@row(28)
def test_mqtt_3_2_2_7_wrong_password_has_session_present_0(bench: Bench, guarded: Broker) -> None:
    """The same for a wrong password; the session is still there for its owner."""
    bench = bench.at(guarded)
    bench.durable("a", username="alice", password=b"wonder").disconnect()
    client = bench.open()
    client.send(mq.connect(bench.client_id("a"), bench.version, clean=False, username="alice"))
    refusal = client.expect(mq.CONNACK, session_present=False)
    assert refusal.reason in ((0x86, 0x87) if bench.version == 5 else (4, 5))
    assert client.receive() is None
    assert bench.durable("a", username="alice", password=b"wonder").resumed


def wait_closed(clients: dict[str, RawClient], patience: Patience) -> dict[str, float]:
    """When each of the clients was closed (monotonic seconds), up to the end of the patience."""
    closed: dict[str, float] = {}
    while len(closed) < len(clients) and patience.left():
        open_socks = {c.sock: name for name, c in clients.items() if name not in closed}
        readable, _, _ = select.select(list(open_socks), [], [], min(patience.seconds, 0.1))
        for sock in readable:
            try:
                data = sock.recv(4096)
            except ConnectionResetError:
                data = b""
            if not data:
                closed[open_socks[sock]] = time.monotonic()
    return closed


@row(29)
def test_mqtt_3_1_2_22_closes_silent_clients(bench: Bench) -> None:
    """Silence for 1.5 times the keep alive ends the connection and publishes the will.

    Any packet counts as life, a packet that never ends does not, and 0 means for ever. The
    broker's clock ticks in seconds, so it may be one second late.
    """
    while not keeps_alive(bench):
        pass  # who is kept from sending is silent, too: nothing was measured


def keeps_alive(bench: Bench) -> bool:
    """Whether this process was never kept from sending in time; if not, nothing else is told."""
    v, topic = bench.version, bench.topic("will")
    watcher = bench.subscriber(topic, keep_alive=0)
    start = time.monotonic()
    silent = {
        "silent": bench.connect(keep_alive=1, will=mq.Will(topic, b"silent")),
        "drips": bench.connect(keep_alive=1, will=mq.Will(topic, b"drips")),
    }
    lively = {
        "pings": (bench.connect(keep_alive=1), mq.pingreq()),
        "publishes": (bench.connect(keep_alive=1), mq.publish(bench.topic(), version=v)),
        "acknowledges": (bench.connect(keep_alive=1), mq.pubrel(9, v)),
        "never": (bench.connect(keep_alive=0), b""),
    }
    silent["drips"].send(b"\x30\x7f")
    closed: dict[str, float] = {}
    patience = Patience(DEADLINE_KEEP_ALIVE)
    while len(closed) < 2 and patience.left():
        for client, packet in lively.values():
            client.send(packet)
        silent["drips"].send(b"\0")
        waiting = {n: c for n, c in silent.items() if n not in closed}
        closed.update(wait_closed(waiting, Patience(min(patience.seconds, 0.4))))
    assert set(closed) == set(silent)
    for name, when in closed.items():
        assert 1.45 <= when - start, f"{name} after {when - start:.2f} s"
    wills = {watcher.message(topic=topic).payload for _ in silent}
    assert wills == {b"silent", b"drips"}
    for client, _ in lively.values():
        client.send(mq.pingreq())
    if not patience.left() or patience.missed > 0.4:
        return False
    for client, _ in lively.values():
        client.wait_for(mq.PINGRESP)
    return True


@row(30)
def test_mqtt_3_2_2_21_server_keep_alive_rules(bench: Bench, server_kept: Broker) -> None:
    """A broker with its own Server Keep Alive announces it, and goes by it."""
    bench = bench.at(server_kept)
    start = time.monotonic()
    clients = {}
    for asked in (0, 60):
        clients[str(asked)] = client = bench.connect(keep_alive=asked)
        assert client.connack and client.connack.prop(mq.SERVER_KEEP_ALIVE) == 1
    closed = wait_closed(clients, Patience(DEADLINE_KEEP_ALIVE))
    assert set(closed) == set(clients)
    assert all(when - start >= 1.45 for when in closed.values())


@row(30)
def test_mqtt_3_2_2_22_client_keep_alive_rules_otherwise(bench: Bench) -> None:
    """Without a Server Keep Alive the client's own value counts, and none is announced."""
    client = bench.connect(keep_alive=1)
    start = time.monotonic()
    assert client.connack and client.connack.prop(mq.SERVER_KEEP_ALIVE) is None
    closed = wait_closed({"a": client}, Patience(DEADLINE_KEEP_ALIVE))
    assert closed and closed["a"] - start >= 1.4


@row(31)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_1_2_24_keeps_to_the_clients_packet_size(bench: Bench, qos: int) -> None:
    """A message too large for the client is dropped as if delivered: the next one comes."""
    topic = bench.topic()
    empty = len(mq.publish(topic, b"", qos, 1, version=5))
    limit = 100
    props = [(mq.MAXIMUM_PACKET_SIZE, limit), (mq.RECEIVE_MAXIMUM, 1)]
    client = bench.subscriber(topic, qos=qos, props=props)
    other = bench.subscriber(topic, qos=qos)
    publisher = bench.connect()
    for size in (limit - empty + 1, 5000, limit - empty, 1):
        publisher.publish(topic, b"x" * size, qos)
        assert len(other.message().payload) == size
    assert len(client.message().payload) == limit - empty
    assert client.message().payload == b"x"
    client.expect_nothing()


@row(31)
def test_mqtt_3_1_2_25_keeps_to_it_for_queued_and_retained(bench: Bench) -> None:
    """The same for messages that were stored before the client named its limit."""
    live, kept = bench.topic("live"), bench.topic("kept")
    publisher = bench.connect()
    bench_client = bench.durable("s")
    bench_client.subscribe(live, qos=1)
    bench_client.disconnect()
    publisher.publish(live, b"x" * 500, 1)
    publisher.publish(live, b"small", 1)
    publisher.publish(kept + "/large", b"x" * 500, 1, retain=True)
    publisher.publish(kept + "/small", b"small", 1, retain=True)
    client = bench.durable("s", props=[(mq.MAXIMUM_PACKET_SIZE, 100)])
    client.message(topic=live, payload=b"small")
    client.subscribe(kept + "/#", qos=1)
    client.message(topic=kept + "/small", payload=b"small")
    client.expect_nothing()


@row(31)
def test_mqtt_3_1_2_25_keeps_to_it_for_what_is_in_flight(bench: Bench) -> None:
    """And for messages that an earlier connection, with other limits, had in flight."""
    client = bench.durable("s")
    client.subscribe(bench.topic(), qos=2)
    publisher = bench.connect()
    for qos in (1, 2):
        publisher.publish(bench.topic(), b"x" * 500, qos)
        publisher.publish(bench.topic(), b"small", qos)
    for _ in range(4):
        client.message(ack=False)
    client.drop()
    client = bench.durable("s", props=[(mq.MAXIMUM_PACKET_SIZE, 100), (mq.RECEIVE_MAXIMUM, 1)])
    client.message(payload=b"small", qos=1, dup=True)
    client.message(payload=b"small", qos=2, dup=True)
    client.expect_nothing()


@row(31)
def test_mqtt_3_1_2_24_packet_size_0_is_a_protocol_error(bench: Bench) -> None:
    """A Maximum Packet Size of 0 is refused."""
    refused(bench, mq.connect(bench.client_id("a"), 5, props=[(mq.MAXIMUM_PACKET_SIZE, 0)]))


@row(31)
def test_mqtt_3_1_2_24_answers_keep_to_it(bench: Bench) -> None:
    """SUBACK and UNSUBACK too: 0x95, and nothing was done of what could not be answered."""
    for size, fits in ((39, True), (38, False)):
        filters = [(bench.topic(f"{n}"), 1) for n in range(34)]
        client = bench.connect(f"s{size}", props=[(mq.MAXIMUM_PACKET_SIZE, size)])
        client.send(mq.subscribe(filters, 7, version=5))
        if fits:
            client.expect(mq.SUBACK, packet_id=7)
        else:
            client.expect_close(0x95)
        client = bench.connect(f"u{size}", props=[(mq.MAXIMUM_PACKET_SIZE, size)])
        client.send(mq.unsubscribe([name for name, _ in filters], 8, version=5))
        if fits:
            client.expect(mq.UNSUBACK, packet_id=8)
        else:
            client.expect_close(0x95)


@row(31)
def test_mqtt_3_1_2_24_connack_keeps_to_it(bench: Bench) -> None:
    """A client that takes less than CONNACK has to say is refused, as far as it takes that."""
    for size in (1, 4, 5, 8, 12):
        client = bench.open()
        props = [(mq.MAXIMUM_PACKET_SIZE, size)]
        client.send(mq.connect("", 5, props=props))
        answer = read_all(client)
        assert answer == (b"\x20\x03\x00\x95\x00" if size >= 5 else b"")
    client = bench.connect(props=[(mq.MAXIMUM_PACKET_SIZE, 64)])
    client.expect_nothing()
    assert client.connack is not None


@row(14)
def test_mqtt_3_1_2_1_level_3_knows_fewer_bits(bench: Bench, ours: None) -> None:
    """MQTT 3.1: unused connect flags are ignored, the byte before CONNACK's code is 0."""
    for flags in (0x00, 0x01, 0x19, 0x38):
        client = bench.open(mq.V31)
        client.send(mq.connect(bench.client_id("old"), mq.V31, flags=flags))
        client.sock.settimeout(client.deadline)
        assert client.sock.recv(100) == b"\x20\x02\x00\x00"
        client.expect_nothing()
        client.disconnect()


@row(32)
def test_mqtt_3_2_2_15_announces_packet_size(bench: Bench, ours: None) -> None:
    """CONNACK names the limit (1 MiB unless configured), and a larger packet is not awaited."""
    client = bench.connect()
    assert client.connack and client.connack.prop(mq.MAXIMUM_PACKET_SIZE) == 1 << 20
    client.send(mq.fixed(0x30, bytes(3 << 20))[:20])
    client.expect_close(0x95)


@row(32)
def test_mqtt_3_2_2_15_limit_is_exact(bench: Bench, small: Broker) -> None:
    """A packet of the announced size passes, one byte more ends the connection."""
    bench = bench.at(small)
    topic = bench.topic()
    empty = len(mq.publish(topic, b"x" * 1000, version=5)) - 1000
    client = bench.subscriber(topic)
    assert client.connack and client.connack.prop(mq.MAXIMUM_PACKET_SIZE) == 4096
    client.publish(topic, b"x" * (4096 - empty))
    assert len(client.message().raw) == 4096
    client.send(mq.publish(topic, b"x" * (4097 - empty), version=5))
    client.expect_close(0x95)
    refused(bench, mq.connect(bench.client_id("y" * 4096), 5))


@row(33)
@pytest.mark.parametrize("wanted", [0, 1])
def test_mqtt_3_1_2_29_no_problem_information(bench: Bench, guarded: Broker, wanted: int) -> None:
    """With Request Problem Information 0 acknowledgements carry no explanations."""
    bench = bench.at(guarded)
    client = bench.connect(
        props=[(mq.REQUEST_PROBLEM_INFO, wanted)], username="alice", password=b"wonder"
    )
    client.send(
        mq.subscribe([("secret/a", 1)], 1, version=5),
        mq.unsubscribe(["never/was"], 2, version=5),
        mq.publish("denied/a", b"x", 1, 3, version=5),
        mq.publish("denied/a", b"x", 2, 4, version=5),
        mq.pubrel(77, 5),
    )
    for _ in range(5):
        packet = client.receive()
        assert packet is not None
        if not wanted:
            assert packet.prop(mq.REASON_STRING) is None and not packet.all(mq.USER_PROPERTY)
    client.expect_nothing()


@row(34)
def test_mqtt_4_12_0_1_refuses_unknown_authentication_method(bench: Bench) -> None:
    """A method the broker does not know: CONNACK 0x8C, then close."""
    for props in (
        [(mq.AUTH_METHOD, "NO-SUCH-METHOD")],
        [(mq.AUTH_METHOD, "NO-SUCH-METHOD"), (mq.AUTH_DATA, b"data")],
    ):
        client = bench.open().connect(bench.client_id("a"), props=props, reason=0x8C)
        assert client.receive() is None


@row(34)
def test_mqtt_4_12_0_6_no_auth_without_method(bench: Bench) -> None:
    """A client that named no method sees no AUTH, and its own AUTH is a protocol error."""
    client = bench.connect()
    assert client.connack and client.connack.prop(mq.AUTH_METHOD) is None
    client.expect_nothing()
    client.send(mq.auth(0x18, [(mq.AUTH_METHOD, "m")]))
    client.expect_close()
    refused(bench, mq.connect(bench.client_id("a"), 5, props=[(mq.AUTH_DATA, b"data")]))
