"""Topic aliases: both sides always mean the same topic by the same number."""

from __future__ import annotations

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.codec.parser import Parser
from mqttd.codec.reasons import ProtocolViolation, TopicAliasInvalid
from mqttd.codec.serializer import serialize
from mqttd.session.ground.aliases import Aliases

LARGE = 1 << 28


def read(wire: bytes) -> Publish:
    (packet,) = Parser(5, role="client").feed(wire)
    assert isinstance(packet, Publish)
    return packet


@pytest.mark.parametrize("qos", [0, 1])
def test_a_topic_goes_once_in_full_and_then_as_its_alias(qos: int) -> None:
    aliases = Aliases(2)
    wire = serialize(Publish("a/b", b"x", qos, packet_id=7 if qos else 0), 5)
    first, second = (read(aliases.shorten(wire, LARGE)) for _ in range(2))
    assert (first.topic, first.properties) == ("a/b", {prop.TOPIC_ALIAS: 1})
    assert (second.topic, second.properties) == ("", {prop.TOPIC_ALIAS: 1})
    assert first.payload == second.payload == b"x"
    assert first.packet_id == second.packet_id == (7 if qos else 0)


def test_other_properties_stay() -> None:
    wire = serialize(Publish("a", b"", properties={prop.USER_PROPERTY: [("k", "v" * 200)]}), 5)
    packet = read(Aliases(1).shorten(wire, LARGE))
    assert packet.properties == {prop.TOPIC_ALIAS: 1, prop.USER_PROPERTY: [("k", "v" * 200)]}


def test_topics_past_the_clients_maximum_go_in_full() -> None:
    aliases = Aliases(1)
    aliases.shorten(serialize(Publish("a", b""), 5), LARGE)
    wire = serialize(Publish("b", b""), 5)
    assert aliases.shorten(wire, LARGE) == wire


def test_no_alias_is_taken_for_a_packet_it_would_make_too_large() -> None:
    aliases = Aliases(1)
    wire = serialize(Publish("a", b"xyz"), 5)
    assert aliases.shorten(wire, len(wire)) == wire
    assert read(aliases.shorten(wire, LARGE)).topic == "a"  # still unknown to the client


def test_an_incoming_alias_keeps_the_topic_it_was_last_set_with() -> None:
    aliases = Aliases(0)
    assert aliases.resolve(3, b"\0\1a", 5) == b"\0\1a"
    assert aliases.resolve(3, b"\0\0", 5) == b"\0\1a"
    assert aliases.resolve(3, b"\0\1b", 5) == b"\0\1b"
    assert aliases.resolve(3, b"\0\0", 5) == b"\0\1b"


def test_aliases_out_of_range_or_never_set_are_refused() -> None:
    aliases = Aliases(0)
    for alias in (0, 6):
        with pytest.raises(TopicAliasInvalid):
            aliases.resolve(alias, b"\0\1a", 5)
    with pytest.raises(ProtocolViolation):
        aliases.resolve(2, b"\0\0", 5)
