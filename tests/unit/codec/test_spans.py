"""Spans: what of packets right behind one another goes on together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec import properties as prop
from mqttd.codec.frame import header, with_id
from mqttd.codec.packets import Publish
from mqttd.codec.properties import Properties
from mqttd.codec.serializer import serialize
from mqttd.codec.spans import ids_of, span_end
from tests.support import sizes

PROPERTIES: list[Properties | None] = [
    None,
    None,
    {prop.CORRELATION_DATA: b"1234"},
    {prop.USER_PROPERTY: [("k", "v" * 121)]},  # 127 bytes
    {prop.USER_PROPERTY: [("k", "v" * 122)]},
    {prop.MESSAGE_EXPIRY_INTERVAL: 3},
    {prop.TOPIC_ALIAS: 1},
    {prop.RESPONSE_TOPIC: "a/#"},
]
#: How many of them may be in a span: an alias and a wildcard may not.
GOOD = 6


@st.composite
def publishes(draw: st.DrawFn) -> tuple[Publish, bool]:
    """A PUBLISH, and whether it may go on with others of its topic, QoS and flags."""
    qos = draw(st.sampled_from([0, 0, 1]))
    at = draw(st.integers(0, len(PROPERTIES) - 1))
    topic = draw(st.sampled_from(["a/1", "a/1", "a/1", "a/2", "a"]))
    retain = draw(st.integers(0, 4)) == 0
    packet_id = draw(st.sampled_from([*sizes.PACKET_IDS, 0])) if qos else 0
    payload = b"x" * draw(st.sampled_from([0, 1, 400]))
    if draw(st.booleans()):
        payload = sizes.fill(
            lambda load: serialize(Publish(topic, load, qos, packet_id=1), 4), draw(sizes.near())
        )
    made = Publish(topic, payload, qos, retain, packet_id=packet_id, properties=PROPERTIES[at])
    return made, at < GOOD


def wire(publish: Publish, version: int) -> bytes:
    number = publish.packet_id
    if publish.qos and not number:
        publish = Publish(
            publish.topic, publish.payload, 1, publish.retain, False, 1, publish.properties
        )
    data = serialize(publish, version)
    if publish.qos and not number:
        data = with_id(data, header(data, 0, len(data))[1] + 2 + len(publish.topic), 0)
    return data


@given(
    st.lists(publishes(), min_size=1, max_size=6),
    st.integers(0, 3),
    st.sampled_from([4, 5]),
    st.sampled_from([100, 300, 1 << 28]),
)
def test_a_span_ends_where_a_packet_may_not_go_on_with_the_first(
    named: list[tuple[Publish, bool]], cut_off: int, version: int, most: int
) -> None:
    packets = [wire(each, version) for each, _ in named]
    first, publish = packets[0], named[0][0]
    p = header(first, 0, len(first))[1]
    topic_end = p + 2 + len(publish.topic)
    stop, count = len(first), 1
    for at in range(1, len(packets)):
        one, (each, good) = packets[at], named[at]
        whole = at < len(packets) - 1 or not cut_off
        alike = (each.topic, each.qos, each.retain) == (publish.topic, publish.qos, publish.retain)
        short = header(one, 0, len(one))[1] < 4  # a length of one or two bytes
        valid = (good or version == 4) and (not each.qos or each.packet_id > 0)
        if not (whole and alike and short and valid and len(one) <= most):
            break
        stop += len(one)
        count += 1
    data = b"".join(packets)
    data = data[: len(data) - cut_off] if len(packets) > 1 else data
    assert span_end(data, 0, p, topic_end, len(first), most, version == 5, len(data)) == (
        stop,
        count,
    )
    if publish.qos:
        ids = [each.packet_id.to_bytes(2, "big") for each, _ in named[:count]]
        assert ids_of(data, 0, stop, topic_end - p) == ids


def test_a_length_with_bytes_to_spare_ends_a_span() -> None:
    first = serialize(Publish("a", b"x"), 4)
    odd = first[:1] + bytes((first[1] | 0x80, 0)) + first[2:]
    assert span_end(first + odd, 0, 2, 5, len(first), 1000, False, len(first + odd)) == (
        len(first),
        1,
    )
