"""Chapter 8: WebSocket and the other transports (checklist rows 101 to 104).

Every test runs through every door of one broker: tcp, ssl, ws, wss and unix, each on the engine and
on Twisted's transports.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.conformance.conftest import Bench
from tests.conformance.rows import row
from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.doors import (
    KINDS,
    TRANSPORTS,
    Door,
    WebSocketWire,
    client_context,
    doors_of,
    start_with_doors,
)

Site = tuple[Broker, dict[str, Door]]


@pytest.fixture(scope="module")
def site(
    external_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Broker, dict[str, Door]]]:
    if external_port:
        yield Broker(external_port), {}
        return
    broker = start_with_doors(tmp_path_factory.mktemp("doors"))
    try:
        yield broker, doors_of(broker)
    finally:
        broker.stop()


@pytest.fixture(params=[f"{kind}:{transport}" for kind in KINDS for transport in TRANSPORTS])
def bench(site: Site, request: pytest.FixtureRequest, version: int) -> Iterator[Bench]:
    """A bench at each door."""
    broker, doors = site
    if not doors and request.param != "tcp:engine":
        pytest.skip("needs listeners of its own")
    made = Bench(broker, version).through(doors.get(request.param))
    yield made
    made.close()


@pytest.fixture(
    params=[f"{kind}:{transport}" for kind in ("ws", "wss") for transport in TRANSPORTS]
)
def web(site: Site, request: pytest.FixtureRequest) -> Door:
    """Each WebSocket door."""
    broker, doors = site
    if not doors:
        pytest.skip("needs listeners of its own")
    return doors[request.param]


def open_wire(site: Site, door: Door, protocols: str = "mqtt") -> WebSocketWire:
    sock = socket.create_connection((door.host, door.port), timeout=10)
    if door.kind == "wss":
        assert site[0].directory is not None
        context = client_context(site[0].directory / "etc" / "certs")
        return WebSocketWire(context.wrap_socket(sock, server_hostname="localhost"),
                             protocols=protocols)  # fmt: skip
    return WebSocketWire(sock, protocols=protocols)


def client_on(wire: WebSocketWire, version: int) -> RawClient:
    return RawClient(0, version, sock=wire)


@row(101)
def test_mqtt_6_0_0_1_closes_on_a_text_frame(site: Site, web: Door, version: int) -> None:
    """A text frame ends the connection with close code 1003, before CONNECT and after it."""
    for connected in (False, True):
        wire = open_wire(site, web)
        client = client_on(wire, version)
        if connected:
            client.connect("text")
        wire.send_frame(0x81, mq.pingreq())
        assert client.receive() is None
        assert wire.close_code == 1003


@row(102)
def test_mqtt_6_0_0_2_frames_need_not_be_packets(site: Site, web: Door, version: int) -> None:
    """Half a packet, two packets, one byte, nothing, a message in many frames: all the same."""
    wire = open_wire(site, web)
    client = client_on(wire, version)
    hello = mq.connect("frames", version)
    wire.send_frame(0x82, hello[:5])
    wire.send_frame(0x82, b"")
    wire.send_frame(0x82, hello[5:] + mq.pingreq() + mq.pingreq())
    client.expect(mq.CONNACK, reason=0)
    client.expect(mq.PINGRESP)
    client.expect(mq.PINGRESP)
    wire.send_frame(0x02, b"\xc0")  # a message of three frames, a ping between two of them
    wire.send_frame(0x89, b"still there?")
    wire.send_frame(0x00, b"")
    wire.send_frame(0x80, b"\x00")
    client.expect(mq.PINGRESP)
    assert wire.pongs == [b"still there?"]
    for byte in mq.subscribe([("a/b", 1)], 7, version=version):
        wire.send_frame(0x82, bytes((byte,)))
    client.expect(mq.SUBACK, packet_id=7)
    large = bytes(range(256)) * 400
    client.send(mq.publish("a/b", large, 1, 9, version=version))
    assert {client.receive().type for _ in range(2)} == {mq.PUBACK, mq.PUBLISH}  # type: ignore[union-attr]
    client.close()


@row(103)
def test_mqtt_6_0_0_4_selects_the_sub_protocol(site: Site, web: Door, version: int) -> None:
    """`mqtt` is chosen among those offered, in any place; without it there is no WebSocket."""
    for offered in ("mqtt", "mqttv3.1, mqtt", "chat, mqtt, soap"):
        wire = open_wire(site, web, offered)
        assert wire.headers["sec-websocket-protocol"] == "mqtt"
        client_on(wire, version).connect("sub").close()
    assert open_wire(site, web, "mqttv3.1").headers["sec-websocket-protocol"] == "mqttv3.1"
    for offered in ("", "chat"):
        with pytest.raises(ConnectionError, match="400"):
            open_wire(site, web, offered)


@pytest.mark.parametrize("broken", ["unmasked", "reserved bit", "opcode 3", "opcode 11",
                                    "long ping", "ping in pieces", "continuation", "nested",
                                    "close of one byte", "length of too many bytes"])  # fmt: skip
def test_broken_frames_end_the_connection_with_1002(site: Site, broken: str) -> None:
    """What breaks RFC 6455 is answered with a close frame; nothing of it reaches MQTT."""
    if not site[1]:
        pytest.skip("needs listeners of its own")
    wire = open_wire(site, site[1]["ws:engine"])
    client = client_on(wire, mq.V5).connect()
    if broken == "unmasked":
        wire.sock.sendall(b"\x82\x02\xc0\x00")
    elif broken == "length of too many bytes":
        wire.sock.sendall(b"\x82\xfe\x00\x02\0\0\0\0\xc0\x00")
    else:
        if broken == "nested":
            wire.send_frame(0x02, b"\xc0")
        first, payload = {
            "reserved bit": (0xC2, b"\xc0\x00"), "opcode 3": (0x83, b"\xc0\x00"),
            "opcode 11": (0x8B, b""), "long ping": (0x89, bytes(126)),
            "ping in pieces": (0x09, b""), "continuation": (0x80, b"\xc0\x00"),
            "nested": (0x82, b"\x00"), "close of one byte": (0x88, b"x"),
        }[broken]  # fmt: skip
        wire.send_frame(first, payload)
    assert client.receive() is None
    assert wire.close_code == 1002


def test_a_close_frame_is_answered(site: Site) -> None:
    """The broker echoes the code, then closes; its own end of a connection says 1000."""
    if not site[1]:
        pytest.skip("needs listeners of its own")
    wire = open_wire(site, site[1]["ws:engine"])
    wire.send_frame(0x88, (4321).to_bytes(2, "big") + b"bye")
    assert client_on(wire, mq.V5).receive() is None
    assert wire.close_code == 4321
    wire = open_wire(site, site[1]["ws:engine"])
    client = client_on(wire, mq.V5).connect()
    client.send(mq.disconnect(mq.V5))
    assert client.receive() is None
    assert wire.close_code == 1000


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
    """Two writes, cut at many places: the same."""
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


def test_a_client_in_the_middle_of_writing_reads_why_it_has_to_go(bench: Bench) -> None:
    """What it still writes is thrown away; a reset would overtake the DISCONNECT."""
    bench.version = mq.V5
    client = bench.connect()
    client.send(mq.subscribe([("a/#/b", 1)], 1, version=mq.V5))
    filler = mq.publish(bench.topic(), bytes(65_000), 0, version=mq.V5)
    for _ in range(30):
        client.send(filler)
    client.expect_close(0x8F)
    client.close()


def test_a_client_whose_connect_is_refused_reads_why(bench: Bench) -> None:
    """The same behind a CONNECT, in both versions."""
    client = bench.open()
    filler = mq.publish(bench.topic(), bytes(30_000), 0, version=bench.version)
    will = mq.Will("/" * 300)
    client.send(mq.connect(bench.client_id("a"), bench.version, will=will), filler)
    for _ in range(30):
        client.send(filler)
    client.expect(mq.CONNACK, reason=0x90 if bench.version == mq.V5 else 5)
    assert client.receive() is None
    client.close()
