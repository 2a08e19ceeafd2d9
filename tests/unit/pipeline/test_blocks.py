"""Blocks: what goes in comes out, and what is not a block is told from one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.pipeline.log.blocks import (
    HAS_PAYLOAD,
    HAS_QOS,
    HAS_SIZE,
    HEADER_SIZE,
    NO_ID,
    RETAIN,
    Corrupt,
    Row,
    encode_block,
    encode_gap,
    parse_header,
    verify,
)
from mqttd.pipeline.log.decode import decode_block
from mqttd.pipeline.log.schema import CODES, EVENTS
from tests.unit.pipeline.logs import row

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    payload = draw(st.binary(max_size=30))
    kept = draw(st.booleans())
    message = draw(st.booleans())
    flags = draw(st.integers(0, 2)) | HAS_QOS | draw(st.sampled_from([0, RETAIN]))
    if message:
        flags |= HAS_SIZE | (HAS_PAYLOAD if kept else 0)
    return (
        draw(st.integers(0, len(EVENTS) - 2)),
        draw(st.integers(0, 1 << 60)),
        flags,
        draw(st.binary(min_size=16, max_size=16)) if message else NO_ID,
        draw(texts),
        draw(texts),
        draw(texts),
        draw(texts),
        draw(texts),
        len(payload) if message else 0,
        payload if message and kept else b"",
        draw(st.binary(max_size=10)),
    )


@given(st.lists(rows(), min_size=1, max_size=20), st.integers(0, 1 << 60))
@pytest.mark.slow
def test_events_come_out_as_they_went_in(given: list[Row], base: int) -> None:
    data = encode_block(given, base, epoch=3)
    found = list(decode_block(data, "n1"))
    assert [event.seq for event in found] == list(range(base, base + len(given)))
    for event, one in zip(found, given, strict=True):
        code, at, flags, message_id, client, user, peer, topic, reason, size, payload, block = one
        texts = (client, user, peer, topic, reason)
        assert (event.node, event.event, event.timestamp) == ("n1", EVENTS[code], at)
        assert event.message_id == (None if message_id == NO_ID else message_id)
        assert (event.client_id, event.username, event.peer, event.topic, event.reason) == tuple(
            text.replace("\0", "\ufffd") or None for text in texts
        )
        assert (event.qos, event.retain) == (flags & 3, bool(flags & RETAIN))
        assert event.payload_size == (size if flags & HAS_SIZE else None)
        assert event.payload == (payload if flags & HAS_PAYLOAD else None)
        assert event.properties == block


@given(st.data())
def test_no_flipped_bit_goes_unnoticed(data: st.DataObject) -> None:
    whole = encode_block([row(i) for i in range(3)], 7)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    harmed = bytearray(whole)
    harmed[bit // 8] ^= 1 << bit % 8
    try:
        head = parse_header(harmed)
    except Corrupt:
        return
    assert head.size != len(whole) or not verify(harmed)


def test_a_header_says_what_a_reader_prunes_by() -> None:
    data = encode_block([row(5), row(9, "client.connected")], 5)
    head = parse_header(data)
    assert (head.base, head.rows, head.end, head.size) == (5, 2, 7, len(data))
    assert head.mask == 1 << CODES["message.publish"] | 1 << CODES["client.connected"]
    assert head.last_time - head.first_time == 4
    assert not head.gap


def test_every_column_starts_on_a_multiple_of_eight() -> None:
    from mqttd.pipeline.log.blocks import columns_of

    data = encode_block([row(i) for i in range(13)], 0)
    assert len(data) % 8 == 0
    assert all(start % 8 == 0 for start, _ in columns_of(data))


def test_a_gap_is_a_record_that_says_how_many_are_missing_and_why() -> None:
    (gap,) = decode_block(encode_gap(100, 1234, 5, "queue full"), "n1")
    assert (gap.seq, gap.event, gap.lost, gap.timestamp) == (100, "log.gap", 1234, 5)
    assert gap.reason == "1234 events lost: queue full"


def test_a_later_format_is_refused_by_its_number() -> None:
    data = bytearray(encode_block([row(0)], 0))
    data[4] = 9
    with pytest.raises(Corrupt, match="format 9, this program reads 1"):
        parse_header(data)


def test_garbage_is_no_block() -> None:
    with pytest.raises(Corrupt, match="no block"):
        parse_header(b"\x00" * HEADER_SIZE)
    with pytest.raises(Corrupt, match="3 bytes are no header"):
        parse_header(b"abc")


def test_text_that_mqtt_forbids_does_not_break_the_block() -> None:
    bad = list(row(0))
    bad[4], bad[5] = "a\0b", "half \ud800 pair"
    (event,) = decode_block(encode_block([tuple(bad)], 0), "n1")  # type: ignore[list-item]
    assert event.client_id == "a\ufffdb"
    assert event.username == "half ? pair"
