"""Properties of messages as columns: what is cut out by offsets is what the codec reads."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packet_types import PUBLISH
from mqttd.codec.properties import Properties, decode_properties, encode_properties
from mqttd.pipeline.log.blocks import Corrupt
from mqttd.pipeline.log.schema import COLUMNS
from mqttd.pipeline.spark.arrow import ARROW_TYPES
from mqttd.pipeline.spark.properties import PROPERTIES, MessageProperties

PAIRS = [("a", "1"), ("a", ""), ("", "\u00e9" * 100), ("b", "x" * 300)]
GIVEN: list[Properties] = [
    {},
    {prop.USER_PROPERTY: PAIRS},
    {prop.CONTENT_TYPE: "text/plain", prop.USER_PROPERTY: PAIRS[:1]},
    {prop.CONTENT_TYPE: "", prop.RESPONSE_TOPIC: "a/b"},
    {prop.CORRELATION_DATA: b"\0\xff", prop.USER_PROPERTY: PAIRS},
    {prop.CORRELATION_DATA: b"", prop.USER_PROPERTY: [("", "")]},
    {prop.MESSAGE_EXPIRY_INTERVAL: 60, prop.PAYLOAD_FORMAT_INDICATOR: 1},
    {prop.MESSAGE_EXPIRY_INTERVAL: 0xFFFFFFFF, prop.TOPIC_ALIAS: 7},
    {prop.SUBSCRIPTION_IDENTIFIER: [1, 300, 268_435_455], prop.USER_PROPERTY: [("b", "c")]},
    {prop.USER_PROPERTY: [(f"k{i % 7}", "v" * i) for i in range(150)]},
    {prop.USER_PROPERTY: [("many", str(i)) for i in range(20_000)], prop.RESPONSE_TOPIC: "r"},
]


def said_of(blocks: list[bytes]) -> list[dict[str, Any]]:
    """What the codec reads."""
    found = []
    for block in blocks:
        given: Any = decode_properties(block, 0, len(block), PUBLISH)[0] if block else {}
        pairs = given.get(prop.USER_PROPERTY, [])
        seconds = given.get(prop.MESSAGE_EXPIRY_INTERVAL)
        found.append(
            {
                "content_type": given.get(prop.CONTENT_TYPE),
                "response_topic": given.get(prop.RESPONSE_TOPIC),
                "correlation_data": given.get(prop.CORRELATION_DATA),
                "message_expiry": None if seconds is None else min(seconds, 0x7FFFFFFF),
                "headers": [{"key": key, "value": value} for key, value in pairs] or None,
                "user_properties": list(dict(pairs).items()) or None,
            }
        )
    return found


def read(blocks: list[bytes], counts: list[int] | None = None) -> list[dict[str, Any]]:
    """What the columns hold."""
    lengths = np.array([len(block) for block in blocks], np.uint32)
    data = np.frombuffer(b"".join(blocks), np.uint8)
    given = MessageProperties(lengths, data, None if counts is None else np.array(counts))
    columns = {}
    for name in PROPERTIES:
        array = given.column(name, ARROW_TYPES[COLUMNS[name][0]])
        array.validate(full=True)
        columns[name] = array.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("given", GIVEN, ids=range(len(GIVEN)))
def test_a_property_block_is_what_the_codec_says(given: Properties) -> None:
    blocks = [b"", encode_properties(given)]
    assert read(blocks) == said_of(blocks)


@pytest.mark.parametrize("seed", range(5))
def test_so_are_many_of_all_kinds(seed: int) -> None:
    chance = random.Random(seed)
    blocks = [encode_properties(chance.choice(GIVEN[:-1])) for _ in range(60)]
    blocks += [encode_properties({prop.USER_PROPERTY: [("n", str(i))]}) for i in range(100)]
    blocks += [b""] * 20
    chance.shuffle(blocks)
    assert read(blocks) == said_of(blocks)
    counts = [chance.randrange(1, 4) for _ in blocks]
    spread = [block for block, count in zip(blocks, counts, strict=True) for _ in range(count)]
    assert read(blocks, counts) == said_of(spread)


@pytest.mark.parametrize("copies", [1, 100])
@pytest.mark.parametrize(
    "block", [b"\x03\x26\0\x05", b"\x08\x03\0\x01a\x26\0\x01k", b"\x02\x7f\0", b"\x05\x03\0\x09ab"]
)
def test_what_ends_within_a_property_is_told(block: bytes, copies: int) -> None:
    # They differ, so that each of them is looked at.
    ahead = [encode_properties({prop.USER_PROPERTY: [(str(i), "")]}) for i in range(copies)]
    with pytest.raises(Corrupt, match="propert"):
        read([*ahead, block])
