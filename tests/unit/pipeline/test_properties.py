"""Properties of messages as columns: what is only cut out is what the codec reads."""

from __future__ import annotations

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packet_types import PUBLISH
from mqttd.codec.properties import Properties, decode_properties, encode_properties
from mqttd.pipeline.spark.columns import properties_of

PAIRS = [("a", "1"), ("a", ""), ("", "\u00e9" * 100), ("b", "x" * 300)]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {prop.USER_PROPERTY: PAIRS},
        {prop.CONTENT_TYPE: "text/plain", prop.USER_PROPERTY: PAIRS[:1]},
        {prop.CONTENT_TYPE: "", prop.RESPONSE_TOPIC: "a/b"},
        {prop.CORRELATION_DATA: b"\0\xff", prop.USER_PROPERTY: PAIRS},
        {prop.MESSAGE_EXPIRY_INTERVAL: 60, prop.PAYLOAD_FORMAT_INDICATOR: 1},
    ],
)
def test_a_property_block_is_what_the_codec_says(given: Properties) -> None:
    block = encode_properties(given)
    assert properties_of(block) == decode_properties(block, 0, len(block), PUBLISH)[0] == given
