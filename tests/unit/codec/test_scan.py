"""What a scan of properties, or of a filter, accepts is what decoding it accepts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttd.codec import properties as prop
from mqttd.codec.packet_types import PUBLISH
from mqttd.codec.properties import Properties, decode_properties, encode_properties
from mqttd.codec.reasons import MqttError, TopicFilterInvalid
from mqttd.codec.scan import (
    ALIAS_SHIFT,
    END_MASK,
    EXPIRY_SHIFT,
    OFFSET_MASK,
    is_filter,
    is_utf8,
    scan_publish,
)
from mqttd.codec.topic import validate_topic_filter
from tests.cases.packets import BAD_FILTERS, GOOD_FILTERS
from tests.support import sizes

texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
    st.sampled_from(["", "a/b", "é", *map(sizes.text, sizes.TEXT_LENGTHS)]),
)
blocks = st.fixed_dictionaries(
    {},
    optional={
        prop.PAYLOAD_FORMAT_INDICATOR: st.integers(0, 1),
        prop.MESSAGE_EXPIRY_INTERVAL: st.sampled_from([0, 1, 255, 0xFFFFFFFF]),
        prop.CONTENT_TYPE: texts,
        prop.RESPONSE_TOPIC: texts,
        prop.CORRELATION_DATA: st.one_of(
            st.binary(max_size=9), sizes.near().map(lambda length: bytes(length - 3))
        ),
        prop.TOPIC_ALIAS: st.sampled_from([1, 256, 65535]),
        prop.SUBSCRIPTION_IDENTIFIER: st.just([3]),
        prop.USER_PROPERTY: st.lists(st.tuples(texts, texts), min_size=1, max_size=3),
    },
)


def check(data: bytes, start: int, limit: int) -> bool:
    """Whether the scan accepts; asserts that decoding agrees then."""
    answer = scan_publish(data, start, limit)
    if answer < 0:
        return False
    end = answer & END_MASK
    found, decoded_end = decode_properties(data, start, limit, PUBLISH)
    assert decoded_end == end
    assert prop.SUBSCRIPTION_IDENTIFIER not in found
    at = answer >> EXPIRY_SHIFT & OFFSET_MASK
    expiry = int.from_bytes(data[start + at : start + at + 4], "big") if at else None
    assert found.get(prop.MESSAGE_EXPIRY_INTERVAL) == expiry
    at = answer >> ALIAS_SHIFT & OFFSET_MASK
    alias = int.from_bytes(data[start + at : start + at + 2], "big") if at else None
    assert found.get(prop.TOPIC_ALIAS) == alias
    return True


def usual(properties: Properties) -> bool:
    topic = properties.get(prop.RESPONSE_TOPIC, "t")
    return (
        prop.SUBSCRIPTION_IDENTIFIER not in properties
        and properties.get(prop.MESSAGE_EXPIRY_INTERVAL) != 0
        and bool(topic)
        and "+" not in str(topic)
        and "#" not in str(topic)
    )


@pytest.mark.slow
@settings(max_examples=500)
@given(blocks, st.binary(max_size=3), st.binary(max_size=3))
def test_every_usual_block_is_accepted_and_means_the_same(
    properties: Properties, before: bytes, behind: bytes
) -> None:
    data = before + encode_properties(properties) + behind
    assert check(data, len(before), len(data)) == usual(properties)


@settings(max_examples=2000)
@given(blocks, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3), st.data())
@pytest.mark.slow
def test_nothing_wrong_is_accepted(
    properties: Properties, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    raw = bytearray(encode_properties(properties))
    for at, value in changes:
        raw[at % len(raw)] = value
    cut = data.draw(st.integers(0, len(raw)))
    try:
        check(bytes(raw), 0, cut)
    except MqttError as error:
        raise AssertionError("accepted, but decoding refuses it") from error


@given(st.binary(max_size=40))
def test_random_bytes_are_never_accepted_wrongly(raw: bytes) -> None:
    check(raw, 0, len(raw))


@pytest.mark.parametrize(
    ("data", "is_text"),
    [(b"", True), (b"a\0", True), ("é\U0001f41e".encode(), True), (b"\xff", False),
     (b"\xe2\x82", False), (b"\xc0\x80", False), (b"\xed\xa0\x80", False)],
)  # fmt: skip
def test_what_is_utf_8(data: bytes, is_text: bool) -> None:
    """No half of a character, none longer than it needs to be, no surrogate."""
    assert is_utf8(data) is is_text


def valid(topic_filter: str) -> bool:
    try:
        validate_topic_filter(topic_filter, 0)
    except TopicFilterInvalid:
        return False
    return True


@given(st.text("a/+#$\0\x7fé", max_size=6), st.binary(max_size=3), st.binary(max_size=3))
def test_a_filter_is_known_by_its_bytes(text: str, before: bytes, behind: bytes) -> None:
    raw = text.encode()
    usual = text.isascii() and not text.startswith("$")
    found = is_filter(before + raw + behind, len(before), len(before) + len(raw))
    assert found is (usual and valid(text))


@pytest.mark.parametrize("text", [*GOOD_FILTERS, *BAD_FILTERS])
def test_what_a_filter_is_known_by_is_what_makes_it_valid(text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")[:65535]
    usual = raw.isascii() and not raw.startswith(b"$")
    assert is_filter(raw, 0, len(raw)) is (usual and valid(raw.decode("latin-1")))
