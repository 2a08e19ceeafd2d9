"""Packets to bytes: what each version leaves out, and what has no form on the wire."""

from __future__ import annotations

import pytest

from mqttd.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttd.codec.properties import Properties, decode_varint, encode_properties
from mqttd.codec.reasons import MalformedPacket
from mqttd.codec.serializer import serialize, utf8, varint

LONG = "x" * 65536


@pytest.mark.parametrize(
    ("number", "wire"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2097151, "ffff7f"),
        (2097152, "80808001"),
        (268435455, "ffffff7f"),
    ],
)
def test_varint_is_the_table_of_the_standard(number: int, wire: str) -> None:
    """Table 2-4 of 3.1.1, 1-1 of 5.0."""
    assert varint(number).hex() == wire
    assert decode_varint(bytes.fromhex(wire), 0, len(wire) // 2) == (number, len(wire) // 2)


@pytest.mark.parametrize("number", [-1, 268435456, 1 << 64])
def test_varint_has_limits(number: int) -> None:
    with pytest.raises(MalformedPacket):
        varint(number)


def test_utf8_has_a_length_before_it() -> None:
    assert utf8("") == b"\x00\x00"
    assert utf8("é") == b"\x00\x02\xc3\xa9"
    assert utf8("x" * 65535)[:2] == b"\xff\xff"


@pytest.mark.parametrize("text", [LONG, "é" * 32768, "\ud800", "a\0b"])
def test_utf8_refuses_what_the_standard_forbids(text: str) -> None:
    with pytest.raises(MalformedPacket):
        utf8(text)


@pytest.mark.parametrize("version", [3, 4])
def test_below_5_properties_and_codes_are_left_out(version: int) -> None:
    props: Properties = {0x1F: "why"}
    assert serialize(Puback(1, 0x87, props), version) == b"\x40\x02\x00\x01"
    assert serialize(Pubrel(1, 0x92), version) == b"\x62\x02\x00\x01"
    assert serialize(Disconnect(0x81, props), version) == b"\xe0\x00"
    assert serialize(Unsuback(1, [0x11], props), version) == b"\xb0\x02\x00\x01"
    assert serialize(Publish("t", b"p", properties={2: 1}), version) == b"\x30\x04\x00\x01tp"
    subscription = Subscription("a", 1, True, True, 2)
    wire = serialize(Subscribe(1, [subscription], {0x0B: [1]}), version)
    assert wire == b"\x82\x06\x00\x01\x00\x01a\x01"
    wire = serialize(Unsubscribe(1, ["a"], {0x26: [("a", "b")]}), version)
    assert wire == b"\xa2\x05\x00\x01\x00\x01a"


@pytest.mark.parametrize("version", [3, 4])
def test_below_5_codes_are_translated(version: int) -> None:
    assert serialize(Connack(False, 0x87), version) == b"\x20\x02\x00\x05"
    assert serialize(Connack(False, 0x85), version) == b"\x20\x02\x00\x02"
    assert serialize(Connack(False, 2), version) == b"\x20\x02\x00\x02"
    wire = serialize(Suback(1, [2, 0x87, 0x80, 0xA2]), version)
    assert wire == b"\x90\x06\x00\x01\x02\x80\x80\x80"


def test_session_present_came_with_3_1_1() -> None:
    assert serialize(Connack(True), 3) == b"\x20\x02\x00\x00"
    assert serialize(Connack(True), 4) == b"\x20\x02\x01\x00"
    assert serialize(Connack(True), 5) == b"\x20\x03\x01\x00\x00"


@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (Publish(LONG, b""), 4),
        (Publish("t", b"", 3), 4),
        (Publish("t", b"", -1), 4),
        (Publish("t", b"", 1), 4),
        (Publish("t", b"", 1, packet_id=65536), 4),
        (Publish("\udfff", b""), 4),
        (Puback(0), 4),
        (Puback(65536), 5),
        (Puback(1, 256), 5),
        (Puback(1, -1), 5),
        (Pubrel(-1), 4),
        (Connect("c", keep_alive=65536), 4),
        (Connect("c", keep_alive=-1), 4),
        (Connect("c", password=b"p"), 4),
        (Connect("c", username="u", password=bytes(65536)), 4),
        (Connect("c", will=Will("t", b"", 3)), 4),
        (Connect("c", will=Will("t", bytes(65536))), 4),
        (Connect("c", version=256), 4),
        (Connack(False, 256), 5),
        (Connack(False, -1), 4),
        (Subscribe(0, [Subscription("a")]), 4),
        (Subscribe(1, [Subscription("a", 3)]), 4),
        (Subscribe(1, [Subscription("a", 0, retain_handling=3)]), 5),
        (Suback(0, [0]), 4),
        (Suback(1, [-1]), 4),
        (Suback(1, [256]), 5),
        (Unsubscribe(70000, ["a"]), 4),
        (Unsuback(0, []), 4),
        (Unsuback(1, [256]), 5),
        (Disconnect(256), 5),
        (Auth(256, {0x15: "m"}), 5),
        (Auth(0), 4),
        (Packet(), 4),
    ],
    ids=repr,
)
def test_what_has_no_form_on_the_wire_is_refused(packet: Packet, version: int) -> None:
    with pytest.raises(MalformedPacket):
        serialize(packet, version)


@pytest.mark.parametrize(
    "props",
    [
        {0x7F: 1},
        {-1: 1},
        {0x2B: "x"},
        {0x01: "text"},
        {0x01: 256},
        {0x01: -1},
        {0x21: 65536},
        {0x11: 1 << 32},
        {0x03: 1},
        {0x03: b"bytes"},
        {0x09: "text"},
        {0x09: bytes(65536)},
        {0x03: LONG},
        {0x0B: [0, 268435456]},
        {0x0B: [("a", "b")]},
        {0x26: [1]},
        {0x26: "text"},
        {0x26: [("a", "\ud800")]},
    ],
    ids=lambda props: repr(props)[:30],
)
def test_a_property_that_does_not_fit_is_refused(props: Properties) -> None:
    with pytest.raises(MalformedPacket):
        encode_properties(props)


def test_no_properties_are_one_zero() -> None:
    assert encode_properties(None) == encode_properties({}) == b"\x00"


def test_an_identifier_may_be_given_without_a_list() -> None:
    assert encode_properties({0x0B: 300}) == b"\x03\x0b\xac\x02"
