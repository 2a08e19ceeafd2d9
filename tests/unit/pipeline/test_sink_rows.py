"""What a row of a write becomes, and what is said of one that is no message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.pipeline.spark.sink_options import id_in
from mqttd.pipeline.spark.sink_rows import SinkError, message_of


def made(**row: Any) -> Publish:
    return message_of(row, None, 1, False)


def test_columns_say_what_the_write_does_not() -> None:
    one = message_of({"payload": "x"}, "t", 2, True)
    assert (one.topic, one.payload, one.qos, one.retain) == ("t", b"x", 2, True)
    one = message_of({"topic": "a", "payload": None, "qos": 0, "retain": False}, "t", 2, True)
    assert (one.topic, one.payload, one.qos, one.retain) == ("a", b"", 0, False)
    named = {"messageExpiryInterval": "60", "payloadFormatIndicator": "1", "contentType": None,
             "correlationData": "c", "who": "me"}  # fmt: skip
    one = made(topic="a", payload=b"x", properties=named, headers=[("k", "v"), ("k", None)])
    assert one.properties == {
        prop.MESSAGE_EXPIRY_INTERVAL: 60,
        prop.PAYLOAD_FORMAT_INDICATOR: 1,
        prop.CORRELATION_DATA: b"c",
        prop.USER_PROPERTY: [("who", "me"), ("k", "v"), ("k", "")],
    }


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"topic": None}, "a row has no topic, and the write no option topic"),
        ({"topic": "a/#"}, "a row with topic 'a/#': "),
        ({"qos": 3}, "a row with topic 'a/b': qos = 3: expected 0, 1 or 2"),
        (
            {"properties": {"messageExpiryInterval": "abc"}},
            "column properties: messageExpiryInterval = 'abc': expected a whole number from 0 to"
            " 4294967295",
        ),
        ({"properties": {"messageExpiryInterval": "-5"}}, "= '-5': expected a whole number"),
        ({"properties": {"messageExpiryInterval": "4294967296"}}, "expected a whole number"),
        ({"properties": {"payloadFormatIndicator": "2"}}, "a whole number from 0 to 1"),
        ({"properties": {"responseTopic": "a/+"}}, "column properties: responseTopic = 'a/+': "),
        ({"properties": {"contentType": "a\0b"}}, r"column properties: contentType = 'a\\x00b': "),
        ({"properties": {"k" * 70_000: "v"}}, "column properties: 'kkk"),
        ({"headers": [None]}, "column headers has NULL: expected a key and a value"),
        ({"headers": [(None, "v")]}, "column headers has key = NULL, value = 'v': expected"),
        ({"headers": [("k", "a\0")]}, r"column headers: 'k' = 'a\\x00': "),
    ],
)
def test_a_row_that_is_no_message_is_named(row: dict[str, Any], told: str) -> None:
    with pytest.raises(SinkError) as error:
        made(**{"topic": "a/b", "payload": "x", **row})
    text = str(error.value)
    assert text.startswith("mqttd: a row") and told.replace(r"\\", "\\") in text
    assert len(text) < 500


def test_a_checkpoint_says_which_query_it_is_of(tmp_path: Path) -> None:
    folder = tmp_path / "of a query"
    folder.mkdir()
    assert id_in(str(folder)) == "", "Spark has not written it yet"
    (folder / "metadata").write_text('{"id":"some-id"}')
    for given in (f"{folder}", f"{folder}/", f"file:{folder}", f"file://{folder}"):
        assert id_in(given) == "some-id"
    for given in ("", "abfss://container/folder", "no://such", f"{tmp_path}"):
        assert id_in(given) == ""
    (folder / "metadata").write_text("[]")
    assert id_in(str(folder)) == ""
