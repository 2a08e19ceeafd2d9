"""Hypothesis strategies: every packet a version has, every field it may carry.

Each is made once for its arguments: making one costs more than drawing from it.
"""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st

from mqttd.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttd.codec.properties import (
    BINARY,
    BYTE,
    FOUR_BYTES,
    PROPERTIES,
    STRING,
    TWO_BYTES,
    Properties,
    PropertyValue,
)
from mqttd.codec.reasons import CODES_OF
from tests.support import sizes

__all__ = ["packets", "properties", "topic_filters", "topic_names"]

AUTHENTICATION_METHOD, AUTHENTICATION_DATA = 0x15, 0x16
RESPONSE_TOPIC, SUBSCRIPTION_IDENTIFIER = 0x08, 0x0B
NOT_ZERO = (0x21, 0x23, 0x27)

texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
    st.sampled_from(sizes.TEXT_LENGTHS).map(sizes.text),
)
levels = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), max_size=4)
packet_ids = st.integers(1, 65535) | st.sampled_from(sizes.PACKET_IDS)
qos = st.integers(0, 2)
blobs = st.binary(max_size=40) | sizes.near(sizes.BORDERS[0]).map(bytes)
#: Payloads, too, with which a packet is of a length around a border.
payloads = st.one_of(blobs, blobs, sizes.near().map(bytes))


@cache
@st.composite
def topic_names(draw: st.DrawFn) -> str:
    return "/".join(draw(st.lists(levels, min_size=1, max_size=5))) or "/"


@cache
@st.composite
def topic_filters(draw: st.DrawFn, shared: bool = True) -> str:
    words = draw(st.lists(st.one_of(levels, st.just("+")), min_size=1, max_size=5))
    if draw(st.booleans()):
        words.append("#")
    if words[0] in ("$share", "$queue"):
        words[0] = "x"
    text = "/".join(words) or "/"
    prefixes = ["", "$share/g/", "$queue/"] if shared else [""]
    return draw(st.sampled_from(prefixes)) + text


@cache
def values(identifier: int, packet_type: int) -> st.SearchStrategy[PropertyValue]:
    wire_type = PROPERTIES[identifier].wire_type
    least = 1 if identifier in NOT_ZERO else 0
    if wire_type == BYTE:
        return st.integers(0, 1)
    if wire_type == TWO_BYTES:
        return st.integers(least, 0xFFFF)
    if wire_type == FOUR_BYTES:
        return st.integers(least, 0xFFFFFFFF)
    if identifier == SUBSCRIPTION_IDENTIFIER:
        most = 1 if packet_type == 8 else 4
        numbers = st.integers(1, 268_435_455) | st.sampled_from(sizes.IDENTIFIERS)
        return st.lists(numbers, min_size=1, max_size=most)
    if identifier == RESPONSE_TOPIC:
        return topic_names()
    if wire_type == STRING:
        return texts
    if wire_type == BINARY:
        return blobs
    return st.lists(st.tuples(texts, texts), min_size=1, max_size=4)


@cache
def chosen_of(packet_type: int) -> st.SearchStrategy[list[int]]:
    allowed = sorted(i for i, info in PROPERTIES.items() if packet_type in info.packets)
    return st.lists(st.sampled_from(allowed), unique=True, max_size=6)


@cache
@st.composite
def properties(draw: st.DrawFn, packet_type: int, version: int) -> Properties | None:
    """What a packet of this type may carry; None below 5.0 and where there is nothing."""
    if version < 5:
        return None
    chosen = draw(chosen_of(packet_type))
    if AUTHENTICATION_DATA in chosen and AUTHENTICATION_METHOD not in chosen:
        chosen = [*chosen, AUTHENTICATION_METHOD]
    return {i: draw(values(i, packet_type)) for i in chosen} or None


@cache
@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    will = None
    if draw(st.booleans()):
        will = Will(
            draw(topic_names()),
            draw(blobs),
            draw(qos),
            draw(st.booleans()),
            draw(properties(0, version)),
        )
    username = draw(st.none() | texts)
    password = draw(st.none() | blobs) if version == 5 or username is not None else None
    return Connect(
        draw(texts),
        version,
        "MQIsdp" if version == 3 else "MQTT",
        draw(st.booleans()),
        draw(st.integers(0, 65535)),
        will,
        username,
        password,
        draw(properties(1, version)),
    )


@cache
@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    level = draw(qos)
    return Publish(
        draw(topic_names()),
        draw(payloads),
        level,
        draw(st.booleans()),
        draw(st.booleans()) if level else False,
        draw(packet_ids) if level else 0,
        draw(properties(3, version)),
    )


@cache
def codes(packet_type: int, version: int) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(CODES_OF[packet_type])) if version == 5 else st.just(0)


@cache
@st.composite
def acknowledgements(draw: st.DrawFn, version: int) -> Packet:
    kind, packet_type = draw(st.sampled_from([(Puback, 4), (Pubrec, 5), (Pubrel, 6), (Pubcomp, 7)]))
    return kind(
        draw(packet_ids), draw(codes(packet_type, version)), draw(properties(packet_type, version))
    )


@cache
@st.composite
def subscriptions(draw: st.DrawFn, version: int) -> Subscription:
    topic_filter = draw(topic_filters())
    if version < 5:
        return Subscription(topic_filter, draw(qos))
    shared = topic_filter.startswith(("$share/", "$queue/"))
    return Subscription(
        topic_filter,
        draw(qos),
        False if shared else draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 2)),
    )


@cache
@st.composite
def others(draw: st.DrawFn, version: int) -> Packet:
    kind = draw(st.integers(0, 9 if version == 5 else 7))
    packet_id = draw(packet_ids)
    if kind == 0:
        code = draw(codes(2, version) if version == 5 else st.integers(0, 5))
        present = draw(st.booleans()) if code == 0 and version > 3 else False
        return Connack(present, code, draw(properties(2, version)))
    if kind == 1:
        wanted = draw(st.lists(subscriptions(version), min_size=1, max_size=4))
        return Subscribe(packet_id, wanted, draw(properties(8, version)))
    if kind == 2:
        one = codes(9, 5) if version == 5 else st.sampled_from([0, 1, 2, 0x80])
        granted = draw(st.lists(one, min_size=1, max_size=4))
        return Suback(packet_id, granted, draw(properties(9, version)))
    if kind == 3:
        unwanted = draw(st.lists(topic_filters(), min_size=1, max_size=4))
        return Unsubscribe(packet_id, unwanted, draw(properties(10, version)))
    if kind == 4:
        done = draw(st.lists(codes(11, 5), min_size=1, max_size=4))
        return Unsuback(packet_id, done if version == 5 else [], draw(properties(11, version)))
    if kind == 5:
        return Pingreq()
    if kind == 6:
        return Pingresp()
    if kind == 7 or kind == 8:
        return Disconnect(draw(codes(14, version)), draw(properties(14, version)))
    own = draw(properties(15, version)) or {}
    return Auth(draw(codes(15, version)), {**own, AUTHENTICATION_METHOD: draw(texts)})


@cache
def packets(version: int) -> st.SearchStrategy[Packet]:
    """Any packet of this version that is right by itself."""
    return st.one_of(
        connects(version), publishes(version), acknowledgements(version), others(version)
    )
