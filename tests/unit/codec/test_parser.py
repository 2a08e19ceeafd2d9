"""The parser as a stream: order, bounds, and what it keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Subscribe,
    Subscription,
)
from mqttd.codec.parser import MAX_PACKET_SIZE, Parser, check_direction, parse_packet
from mqttd.codec.reasons import (
    MalformedPacket,
    MqttError,
    PacketTooLarge,
    ProtocolViolation,
    UnsupportedVersion,
)
from mqttd.codec.serializer import serialize
from tests.cases.packets import VALID, Case, connect, frame, text

PING = b"\xc0\x00"


def connected(version: int = 4, max_packet_size: int = MAX_PACKET_SIZE) -> Parser:
    parser = Parser(max_packet_size=max_packet_size)
    parser.feed(connect(version))
    return parser


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_version_is_adopted_from_connect(version: int) -> None:
    parser = Parser()
    parser.feed(connect(version))
    assert parser.version == version


def test_the_version_is_known_even_if_connect_is_malformed() -> None:
    """The answer has to be in the client's version."""
    parser = Parser()
    with pytest.raises(MalformedPacket):
        parser.feed(connect(5, 0xFF))
    assert parser.version == 5


def test_an_unknown_level_is_told() -> None:
    with pytest.raises(UnsupportedVersion) as raised:
        Parser().feed(frame(0x10, b"\x00\x04MQTT\x06\x02\x00\x00\x00\x01c"))
    assert raised.value.version == 6
    assert raised.value.reason_code == 0x84


def test_connect_comes_first_and_once() -> None:
    with pytest.raises(ProtocolViolation, match="before CONNECT"):
        Parser().feed(PING)
    with pytest.raises(ProtocolViolation, match="second CONNECT"):
        connected().feed(connect(4))


def test_a_wrong_first_packet_is_refused_at_its_first_byte() -> None:
    with pytest.raises(ProtocolViolation):
        Parser().feed(b"\x30")


def test_a_client_reads_no_disconnect_before_5() -> None:
    with pytest.raises(ProtocolViolation):
        Parser(4, role="client").feed(b"\xe0\x00")
    assert Parser(5, role="client").feed(b"\xe0\x00") == [Disconnect()]


def test_nothing_is_read_behind_disconnect() -> None:
    parser = connected()
    assert parser.feed(PING + b"\xe0\x00" + PING + b"\xff\xff") == [Pingreq(), Disconnect()]
    assert parser.feed(PING) == []
    assert parser.buffered == 0


def test_a_refused_disconnect_comes_with_what_was_before() -> None:
    parser = connected(5)
    with pytest.raises(ProtocolViolation):
        parser.feed(PING + b"\xe0\x01\x8e")
    assert parser.before_fault == [Pingreq()]


def test_a_role_is_server_or_client() -> None:
    with pytest.raises(ValueError, match="'broker'"):
        Parser(role="broker")


def test_too_large_is_refused_before_the_body_comes() -> None:
    parser = connected(max_packet_size=1000)
    with pytest.raises(PacketTooLarge, match="1001 bytes"):
        parser.feed(b"\x30" + bytes([998 & 0x7F | 0x80, 998 >> 7]))
    assert parser.buffered == 0


def test_the_limit_counts_the_fixed_header_and_may_change() -> None:
    parser = connected()
    parser.max_packet_size = 10
    assert len(parser.feed(frame(0x30, text("a"), b"12345"))) == 1
    with pytest.raises(PacketTooLarge):
        parser.feed(frame(0x30, text("a"), b"123456"))


def test_the_largest_packet_of_the_standard_is_announced_without_an_error() -> None:
    parser = connected()
    assert parser.feed(b"\x30\xff\xff\xff\x7f\x00") == []
    assert parser.buffered == 6
    assert parser.max_packet_size == MAX_PACKET_SIZE == 5 + 0x0FFFFFFF


def test_a_large_packet_in_small_pieces_is_read_in_linear_time() -> None:
    """4 MiB in 64 KiB pieces behind a byte-wise header: each byte is moved a few times."""
    payload = bytes(range(256)) * (1 << 14)
    wire = serialize(Publish("t", payload), 4)
    parser = connected()
    for position in range(8):
        assert parser.feed(wire[position : position + 1]) == []
    for position in range(8, len(wire) - 65536, 65536):
        assert parser.feed(wire[position : position + 65536]) == []
        last = position + 65536
    assert parser.feed(wire[last:] + PING) == [Publish("t", payload), Pingreq()]


def test_an_empty_chunk_is_nothing() -> None:
    parser = Parser()
    assert parser.feed(b"") == []
    parser.feed(connect(4)[:5])
    assert parser.feed(b"") == []
    assert parser.buffered == 5


def test_a_password_does_not_show() -> None:
    shown = repr(Connect("c", username="u", password=b"secret"))
    assert "secret" not in shown
    assert "username='u'" in shown


def test_packets_of_different_kinds_are_not_equal() -> None:
    assert Puback(1) != Connack()
    assert Puback(1) != Puback(2)
    assert Puback(1) == Puback(1)
    assert Puback(1) != 1
    assert repr(Puback(1)) == "Puback(packet_id=1, reason_code=0, properties=None)"
    assert Subscription("a") == Subscription("a")
    with pytest.raises(TypeError):
        hash(Puback(1))


@given(
    st.lists(st.sampled_from([c for c in VALID if c.role == "server"]), max_size=12),
    st.lists(st.integers(0, 400), max_size=30),
    st.sampled_from([3, 4, 5]),
)
def test_packets_do_not_depend_on_how_the_stream_is_cut(
    cases: list[Case], cuts: list[int], version: int
) -> None:
    chosen = [
        case
        for case in cases
        if case.version == version and case.wire[0] >> 4 not in (1, 14) and len(case.wire) < 20000
    ]
    stream = connect(version) + b"".join([case.wire for case in chosen])
    expected = Parser().feed(connect(version)) + [case.packet for case in chosen if case.packet]
    places = sorted({cut for cut in cuts if cut < len(stream)} | {0, len(stream)})
    parser = Parser()
    read: list[Packet] = []
    for start, stop in zip(places, places[1:], strict=False):
        read += parser.feed(stream[start:stop])
    assert read == expected
    assert parser.buffered == 0


@given(st.integers(0, 255), st.binary(max_size=60), st.sampled_from([3, 4, 5]))
def test_any_body_is_a_packet_or_an_error(first: int, body: bytes, version: int) -> None:
    try:
        packet = parse_packet(first, body, version)
    except MqttError as error:
        assert error.reason_code >= 0x80
        return
    again = serialize(packet, version)
    start = 2
    while again[start - 1] & 0x80:
        start += 1
    assert parse_packet(again[0], again[start:], version) == packet


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_stream_is_packets_or_an_error(chunks: list[bytes]) -> None:
    for parser in (Parser(), connected(), connected(5), Parser(5, role="client")):
        try:
            for chunk in chunks:
                parser.feed(chunk)
        except MqttError:
            assert parser.buffered == 0


def test_subscriptions_keep_their_order() -> None:
    packet = Subscribe(1, [Subscription("b"), Subscription("a"), Subscription("b", 2)])
    assert parse_packet(0x82, serialize(packet, 4)[2:], 4) == packet


def test_most_packets_have_no_direction_of_their_own() -> None:
    for packet in (Puback(1), Pingreq(), Connect("c")):
        check_direction(packet, True)
        check_direction(packet, False)
