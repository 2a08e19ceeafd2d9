"""Beyond the numbered statements: memory, time, isolation, and bytes made to hurt."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.conftest import Bench
from tests.conformance.test_02_connect import wait_closed
from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.waiting import Patience


@pytest.fixture(scope="module")
def own_broker(external_port: int, broker_with: Callable[..., Broker]) -> Iterator[Broker]:
    """A broker no other chapter uses: what is sent here may leave subscriptions and worse."""
    if external_port:
        yield Broker(external_port)
        return
    # No password file: hashing is slow on purpose, and thousands of CONNECTs are coming.
    broker = broker_with(mqtt={"connect_timeout": "2s"}, auth={"chain": ["anonymous"]})
    yield broker
    assert broker.process is not None and broker.process.poll() is None, broker.output[-2000:]


@pytest.fixture
def place(bench: Bench, own_broker: Broker) -> Bench:
    """The bench at that broker."""
    return bench.at(own_broker)


def serves(bench: Bench) -> None:
    """A fresh client is served as if nothing had happened."""
    client = bench.subscriber(bench.topic("fresh"), qos=1)
    assert client.publish(bench.topic("fresh"), b"x", 1)
    client.message(topic=bench.topic("fresh"), payload=b"x")
    client.disconnect()


def memory(broker: Broker) -> int:
    return broker.resident_kib() if broker.process else 0


def cpu_seconds(broker: Broker) -> float:
    return broker.cpu_seconds() if broker.process else 0.0


# -- memory ------------------------------------------------------------------------------------


def test_announced_size_is_not_allocated(place: Bench) -> None:
    """Peers that announce 256 MB and send little cost what they send, or are closed."""
    before = memory(place.broker)
    for first in (0x10, 0x30, 0x82):
        clients = []
        for _ in range(20):
            client = place.open() if first == 0x10 else place.connect()
            client.send(bytes([first]) + b"\xff\xff\xff\x7f" + b"\0\4MQTT")
            clients.append(client)
        serves(place)
        assert memory(place.broker) - before < 32 << 10
        for client in clients:
            client.close()


def test_slow_large_packets_cost_what_arrived(place: Bench) -> None:
    """Twenty peers half-way through a packet of the largest size: their bytes, not more."""
    before = memory(place.broker)
    clients = [place.connect() for _ in range(20)]
    packet = mq.publish(place.topic(), bytes(1_000_000), 1, version=place.version)
    for client in clients:
        client.send(packet[:500_000])
    serves(place)
    assert memory(place.broker) - before < 40 << 10
    for client in clients:
        client.send(packet[500_000:])
        client.expect(mq.PUBACK)


@pytest.mark.parametrize("qos", [0, 1])
def test_peer_that_never_reads(place: Bench, qos: int) -> None:
    """A subscriber that does not read costs no more than its limits; its neighbour gets all."""
    deaf = place.open()
    deaf.send(
        mq.connect(place.client_id("deaf"), place.version),
        mq.subscribe([(place.topic(), qos)], 1, version=place.version),
    )
    deaf.expect(mq.CONNACK, reason=0)
    deaf.expect(mq.SUBACK)
    reader = place.subscriber(place.topic(), qos=qos)
    publisher = place.connect()
    payload = bytes(20_000)
    before = memory(place.broker)
    for _ in range(60):  # 60 MB in all
        for _ in range(50):
            publisher.send(mq.publish(place.topic(), payload, 0, version=place.version))
        publisher.ping()
        reader.collect(50)
    assert memory(place.broker) - before < 64 << 10
    reader.expect_nothing()
    serves(place)


def test_publisher_that_never_reads_its_acknowledgements(place: Bench) -> None:
    """Pings and publishes whose answers nobody reads do not grow the broker for ever."""
    client = place.connect()
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.sock.settimeout(0.5)
    before = memory(place.broker)
    burst = mq.pingreq() * 50_000
    for _ in range(240):  # 24 MB of PINGREQ, more than the kernel's buffers take
        try:
            client.sock.sendall(burst)
        except OSError:
            break  # it no longer reads from us, or has closed
    serves(place)
    assert memory(place.broker) - before < 32 << 10


def test_qos_2_ids_are_bounded(place: Bench) -> None:
    """A 3.1.1 client that never releases its QoS 2 messages meets a limit, and we survive."""
    client = place.connect(version=mq.V311)
    for first in range(1, 65_536, 1_000):
        client.send(
            *(
                mq.publish(place.topic(), bytes(100), 2, packet_id)
                for packet_id in range(first, min(first + 1_000, 65_536))
            )
        )
        try:
            client.ping()
        except AssertionError:
            break  # closed: that is the limit
    serves(place)


# -- time --------------------------------------------------------------------------------------


def test_no_connect_in_time(bench: Bench, small: Broker) -> None:
    """Who sends no CONNECT, or half of one, is closed after mqtt.connect_timeout (1 s)."""
    bench = bench.at(small)
    start = time.monotonic()
    clients = {"silent": bench.open(), "half": bench.open(), "drip": bench.open()}
    clients["half"].send(mq.connect(bench.client_id("h"), bench.version)[:-1])
    clients["drip"].send(b"\x10")
    connected = bench.connect()
    closed = wait_closed(clients, Patience(3.5))
    assert set(closed) == set(clients)
    assert all(0.9 <= when - start for when in closed.values())
    connected.expect_nothing()


def test_stops_in_time(bench: Bench, broker_with: Callable[..., Broker], version: int) -> None:
    """SIGTERM ends the broker at once, whoever is connected and however many passwords wait."""
    bench = bench.at(broker_with(node={"name": f"stops{version}"}))
    connected = bench.connect()
    for number in range(200):
        client = bench.open()
        name = f"user{number}"
        client.send(mq.connect(bench.client_id(name), version, username=name, password=b"p"))
    connected.ping()
    assert bench.broker.process is not None
    bench.broker.process.terminate()
    patience = Patience(3.0)
    while bench.broker.process.poll() is None:
        assert patience.left()
        time.sleep(0.02)
    assert all(p.type == mq.DISCONNECT and p.reason == 0x8B for p in connected.drain())


# -- isolation ---------------------------------------------------------------------------------


def test_no_tracebacks(bench: Bench, broker: Broker) -> None:
    """All that the other chapters did wrong on purpose left no unhandled error in the log."""
    if broker.process is None:
        pytest.skip("the output of a foreign broker")
    bench.connect().ping()
    before, traceback, after = broker.output.partition("Traceback")
    assert not traceback, before[-300:] + traceback + after[:3000]


def test_reset_storm(place: Bench) -> None:
    """Connections that are reset at every stage harm nobody."""
    for _ in range(50):
        place.open().reset()
        client = place.open()
        client.send(mq.connect(place.client_id("r"), place.version)[:8])
        client.reset()
        client = place.open()
        client.send(
            mq.connect(place.client_id("r"), place.version, will=mq.Will(place.topic("w"))),
            mq.subscribe([(place.topic("w"), 1)], version=place.version),
            mq.publish(place.topic("w"), b"x", 1, version=place.version),
        )
        client.reset()
    serves(place)


def test_same_client_id_again_and_again(place: Bench) -> None:
    """A hundred takeovers in a row leave one connection, and it works."""
    older: list[RawClient] = []
    for _ in range(100):
        older.append(place.durable("twin"))
    for client in older[:-1]:
        client.expect_close(0x8E)
    older[-1].expect_nothing()
    serves(place)


# -- bytes -------------------------------------------------------------------------------------


def every_packet(bench: Bench) -> dict[str, bytes]:
    """One valid packet of each kind a client may send, with every field in use."""
    v, topic = bench.version, bench.topic("fuzz")
    v5 = v == mq.V5
    user = [(mq.USER_PROPERTY, ("k", "v"))] if v5 else []
    will = mq.Will(topic, b"w", 1, props=[(mq.WILL_DELAY, 0), *user] if v5 else ())
    return {
        "CONNECT": mq.connect(
            bench.client_id("fuzz"),
            v,
            keep_alive=60,
            will=will,
            username="u",
            password=b"p",
            props=[(mq.SESSION_EXPIRY, 1), (mq.RECEIVE_MAXIMUM, 9), *user] if v5 else (),
        ),
        "PUBLISH": mq.publish(topic, b"x", 0, version=v, props=user),
        "PUBLISH 1": mq.publish(topic, b"x", 1, 1, version=v, props=[(mq.TOPIC_ALIAS, 1)] * v5),
        "PUBLISH 2": mq.publish(topic, b"x", 2, 2, version=v, props=[(mq.CONTENT_TYPE, "t")] * v5),
        "PUBACK": mq.puback(1, v, 0x10 * v5, user),
        "PUBREC": mq.pubrec(1, v, 0x10 * v5, user),
        "PUBREL": mq.pubrel(1, v, 0x92 * v5, user),
        "PUBCOMP": mq.pubcomp(1, v, 0x92 * v5, user),
        "SUBSCRIBE": mq.subscribe(
            [(topic, 1), (topic + "/+", 0)], 3, version=v, props=[(mq.SUBSCRIPTION_ID, 300)] * v5
        ),
        "UNSUBSCRIBE": mq.unsubscribe([topic, topic + "/#"], 4, version=v, props=user),
        "PINGREQ": mq.pingreq(),
        "DISCONNECT": mq.disconnect(v, 0x04 * v5, user),
    }


KINDS = ["CONNECT", "PUBLISH", "PUBLISH 1", "PUBLISH 2", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"]
KINDS += ["SUBSCRIBE", "UNSUBSCRIBE", "PINGREQ", "DISCONNECT"]


def offer(bench: Bench, data: bytes, first: bool) -> None:
    """Send the bytes to the broker and end the connection, whatever comes back."""
    client = bench.open()
    if not first:
        client.send(mq.connect(bench.client_id("f"), bench.version))
    client.send(data)
    try:
        client.drop()
    except AssertionError as error:
        if isinstance(error, mq.WireError):
            raise
    finally:
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_prefix(place: Bench, kind: str) -> None:
    """Every prefix of every valid packet: the broker stays, and answers no nonsense."""
    packet = every_packet(place)[kind]
    for length in range(len(packet)):
        offer(place, packet[:length], kind == "CONNECT")
    serves(place)


@pytest.mark.parametrize("kind", KINDS)
def test_one_byte_changed(place: Bench, kind: str) -> None:
    """Every valid packet with one byte changed, several ways: the same."""
    packet = every_packet(place)[kind]
    rng = random.Random(kind)
    for index in range(len(packet)):
        for change in (0x01, 0x80, 0xFF, rng.randrange(1, 256)):
            bad = bytearray(packet)
            bad[index] ^= change
            if index == 0 and bad[0] >> 4 == mq.CONNECT and kind != "CONNECT":
                continue
            offer(place, bytes(bad), kind == "CONNECT")
    serves(place)


def test_random_bytes(place: Bench) -> None:
    """Noise, before and after CONNECT, from a fixed seed."""
    rng = random.Random(1883)
    for _ in range(150):
        offer(place, rng.randbytes(rng.randrange(1, 200)), rng.random() < 0.5)
    serves(place)


def test_random_streams_of_good_packets(place: Bench) -> None:
    """Valid packets in any order and cut anywhere: closed or served, never broken."""
    rng = random.Random(8883)
    packets = list(every_packet(place).values())[1:]
    for _ in range(60):
        stream = b"".join(rng.choices(packets, k=rng.randrange(1, 30)))
        client = place.open()
        client.send(mq.connect(place.client_id("f"), place.version))
        while stream:
            cut = rng.randrange(1, 60)
            client.send(stream[:cut])
            stream = stream[cut:]
        client.drop()
    serves(place)


def test_user_properties_by_the_thousand(place: Bench) -> None:
    """A packet full of properties costs time in proportion to its size, or is refused."""
    if place.version != mq.V5:
        pytest.skip("5.0 only")
    props = [(mq.USER_PROPERTY, ("k", "v"))] * 100_000
    client = place.connect()
    before = cpu_seconds(place.broker)
    client.send(mq.publish(place.topic(), b"x", 1, version=5, props=props))
    packet = client.receive()
    assert packet is None or packet.type in (mq.PUBACK, mq.DISCONNECT)
    assert cpu_seconds(place.broker) - before < 2
    serves(place)
