"""WebSocket frames without sockets: any cut of the bytes is the same, each fault has a code."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.transports.frames import (
    WebSocketLayer,
    close_frame,
    frame_header,
    stretched,
    unmask,
    unmask_long,
    valid_close,
)
from tests.support import sizes
from tests.support.doors import frame


def layer() -> WebSocketLayer:
    return WebSocketLayer(None)


def test_the_payload_of_binary_frames_comes_out() -> None:
    taker = layer()
    assert taker.received(frame(0x82, b"one") + frame(0x82, b"") + frame(0x82, b"two")) == b"onetwo"
    assert (taker.answer, taker.ended) == (b"", "")


#: Around the largest length of a frame of one byte, of two; and those of an MQTT packet.
frames = sizes.near(125, 65_535, *sizes.BORDERS[:2]).map(bytes)


@given(
    st.lists(st.binary(max_size=300) | frames, max_size=8),
    st.integers(min_value=0, max_value=2**32 - 1),
    st.randoms(use_true_random=False),
)
def test_the_bytes_may_be_cut_anywhere(
    payloads: list[bytes], mask: int, rng: random.Random
) -> None:
    """Frames in pieces of any size, fragmented messages, pings between: the same payload."""
    key = mask.to_bytes(4, "big")
    wire, pongs = b"", b""
    for payload in payloads:
        cut = rng.randrange(len(payload) + 1)
        if rng.random() < 0.5:
            wire += frame(0x82, payload, key)
        else:
            ping = payload[:125]
            wire += frame(0x02, payload[:cut], key) + frame(0x89, ping, key)
            wire += frame(0x80, payload[cut:], key)
            pongs += bytes((0x8A, len(ping))) + ping
    taker = layer()
    got, said, pos = b"", b"", 0
    while pos < len(wire):
        step = rng.choice((1, 2, 3, 7, 64, len(wire)))
        got += taker.received(wire[pos : pos + step])
        said += taker.answer
        taker.answer = b""
        pos += step
    assert got == b"".join(payloads)
    assert said == pongs
    assert taker.ended == ""


@given(st.binary(max_size=2000), st.binary(min_size=2000, max_size=2000))
def test_a_mask_laid_over_twice_is_none(data: bytes, mask: bytes) -> None:
    mask = mask[: len(data)]
    masked = unmask(data, mask)
    assert masked == bytes(a ^ b for a, b in zip(data, mask, strict=True))
    assert unmask(masked, mask) == data


@pytest.mark.parametrize("size", [2047, 2048, 2049, 70_001])
def test_long_payload_arrives_whole_among_short_ones(size: int) -> None:
    """However it is cut: behind the cut the mask goes on where it was."""
    mask, payload = b"\x01\x80\xfe\x37", bytes(i * 7 & 255 for i in range(size))
    assert unmask_long(payload, mask) == unmask(payload, stretched(mask, size))
    data = frame(0x82, b"before", mask) + frame(0x82, payload, mask) + frame(0x82, b"behind", mask)
    for cut in (0, 1, 15, 30, size // 2 | 1, size + 20, len(data)):
        layer = WebSocketLayer(None)
        assert layer.received(data[:cut]) + layer.received(data[cut:]) == (
            b"before" + payload + b"behind"
        )
        assert layer.ended == ""


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65535, 65536, 1 << 20])
def test_a_header_has_the_shortest_length(length: int) -> None:
    header = frame_header(length)
    assert header[0] == 0x82
    assert len(header) == (2 if length < 126 else 4 if length < 65536 else 10)
    assert frame(0x82, bytes(length))[: len(header)][2:] == header[2:]


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (frame(0x81, b"text"), 1003),
        (b"\x82\x01x", 1002),
        (frame(0xC2, b""), 1002),
        (frame(0x83, b""), 1002),
        (frame(0x8B, b""), 1002),
        (frame(0x80, b""), 1002),
        (frame(0x02, b"") + frame(0x82, b""), 1002),
        (frame(0x09, b""), 1002),
        (frame(0x89, bytes(126)), 1002),
        (frame(0x88, b"x"), 1002),
        (frame(0x88, (1005).to_bytes(2, "big")), 1002),
        (frame(0x88, (1000).to_bytes(2, "big") + b"\xff"), 1002),
        (b"\x82\xfe\x00\x05\0\0\0\0abcde", 1002),
        (b"\x82\xff" + (5).to_bytes(8, "big") + b"\0\0\0\0abcde", 1002),
        (b"\x82\xff" + (1 << 63).to_bytes(8, "big") + b"\0\0\0\0", 1002),
    ],
)
def test_faults_are_answered_with_their_code(wire: bytes, code: int) -> None:
    """What came before is still delivered; nothing after the fault is."""
    taker = layer()
    assert taker.received(frame(0x82, b"before") + wire + frame(0x82, b"after")) == b"before"
    assert taker.answer == close_frame(code)
    assert taker.ended
    assert taker.received(frame(0x82, b"later")) == b""
    assert taker.closing() == b""


def test_a_close_is_echoed_with_its_code() -> None:
    for body, code in ((b"", 1000), ((3001).to_bytes(2, "big") + b"bye", 3001)):
        taker = layer()
        taker.received(frame(0x88, body))
        assert taker.answer == close_frame(code)
        assert "closed by the client" in taker.ended
        assert taker.sent(b"late") == b""


def test_no_more_than_a_header_is_kept() -> None:
    """A frame of four exabytes is announced: its bytes go through, none is collected."""
    taker = layer()
    taker.received(b"\x82\xff" + (1 << 62).to_bytes(8, "big") + b"\0\0\0\0")
    for _ in range(100):
        assert len(taker.received(bytes(65536))) == 65536
    assert len(taker.head) <= 14 and len(taker.control) <= 125


def test_close_codes() -> None:
    allowed = [code for code in range(6000) if valid_close(code)]
    assert allowed[:4] == [1000, 1001, 1002, 1003]
    assert not {1004, 1005, 1006, 1015, 2999, 5000} & set(allowed)


def test_a_flood_of_pings_is_answered_in_its_order_and_before_a_close() -> None:
    taker = layer()
    flood = [frame(0x89, b"%d" % number) for number in range(1000)]
    pongs = [bytes((0x8A, len(b"%d" % number))) + b"%d" % number for number in range(1000)]
    assert taker.received(b"".join(flood) + frame(0x82, b"x")) == b"x"
    assert taker.answer == b"".join(pongs)
    taker.answer = b""
    taker.received(flood[7] + frame(0x81, b"text") + flood[8])
    assert taker.answer == pongs[7] + close_frame(1003)
