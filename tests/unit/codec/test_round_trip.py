"""What is written is read back the same: every packet and property of each version."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec.packets import TYPE_NAMES, Packet
from mqttd.codec.parser import Parser, parse_packet
from mqttd.codec.properties import decode_properties, encode_properties
from mqttd.codec.serializer import serialize
from tests.cases.packets import connect
from tests.unit.codec.strategies import (
    acknowledgements,
    connects,
    others,
    packets,
    properties,
    publishes,
)

TO_CLIENT = {"CONNACK", "SUBACK", "UNSUBACK", "PINGRESP"}


def again(packet: Packet, version: int) -> Packet:
    wire = serialize(packet, version)
    start = 2
    while wire[start - 1] & 0x80:
        start += 1
    return parse_packet(wire[0], wire[start:], version)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("kind", [connects, publishes, acknowledgements, others])
@given(data=st.data())
def test_a_packet_comes_back_as_it_went(
    kind: Callable[[int], st.SearchStrategy[Packet]], version: int, data: st.DataObject
) -> None:
    packet = data.draw(kind(version))
    assert again(packet, version) == packet


@pytest.mark.parametrize("packet_type", range(16), ids=TYPE_NAMES)
@given(data=st.data())
def test_properties_come_back_in_their_order(packet_type: int, data: st.DataObject) -> None:
    if packet_type in (12, 13):
        return
    props = data.draw(properties(packet_type, 5))
    wire = b"before" + encode_properties(props) + b"behind"
    read, end = decode_properties(wire, 6, len(wire), packet_type)
    assert read == (props or {})
    assert list(read) == list(props or {})
    assert end == len(wire) - 6


@pytest.mark.parametrize("version", [3, 4, 5])
@given(data=st.data())
def test_two_parsers_understand_each_other(version: int, data: st.DataObject) -> None:
    """A stream of packets in either direction, cut at random."""
    said = [p for p in data.draw(st.lists(packets(version), max_size=8)) if p.type != 1]
    for role in ("server", "client"):
        mine = [p for p in said if belongs(p, role, version)]
        stream = b"".join([serialize(packet, version) for packet in mine])
        parser = Parser(version, role=role)
        if role == "server":
            parser.feed(connect(version))
        size = data.draw(st.integers(1, 50))
        read: list[Packet] = []
        for position in range(0, len(stream), size):
            read += parser.feed(stream[position : position + size])
        assert read == mine


def belongs(packet: Packet, role: str, version: int) -> bool:
    """May be read by that side in the middle of a stream."""
    name = TYPE_NAMES[packet.type]
    if name in ("DISCONNECT", "AUTH"):
        return False
    if name == "PUBLISH":
        props = getattr(packet, "properties", None) or {}
        return role == "client" or 0x0B not in props
    if name in TO_CLIENT:
        return role == "client"
    return role == "server" or name not in ("SUBSCRIBE", "UNSUBSCRIBE", "PINGREQ")
