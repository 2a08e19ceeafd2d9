"""What neighbours say to one another: frames come out as they went in, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.mesh import frames

BODIES = st.binary(max_size=300)


@given(st.lists(st.tuples(st.integers(1, 0x1F), BODIES), max_size=8))
def test_frames_are_split_where_they_were_joined(sent: list[tuple[int, bytes]]) -> None:
    data = b"".join(frames.frame(kind, body) for kind, body in sent)
    found = []
    pos = 0
    while pos < len(data):
        body, end = frames.split(data, pos)
        found.append((data[pos], data[body:end]))
        pos = end
    assert found == sent


@given(st.integers(1, 0x1F), BODIES)
def test_a_frame_that_is_cut_is_waited_for(kind: int, body: bytes) -> None:
    data = frames.frame(kind, body)
    for end in range(len(data)):
        assert frames.split(data[:end], 0) == (0, 0)


@given(st.lists(BODIES, max_size=8))
def test_fields_are_unpacked_as_they_were_packed(fields: list[bytes]) -> None:
    assert frames.unpacked(frames.packed(fields)) == fields


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8))
def test_fields_that_are_cut_are_a_fault(fields: list[bytes]) -> None:
    with pytest.raises(ValueError, match="cut off"):
        frames.unpacked(frames.packed(fields)[:-1])


@given(st.integers(0, 2**64 - 1), BODIES)
def test_a_number_comes_first(number: int, rest: bytes) -> None:
    data = frames.numbered(frames.UP, number, rest)
    body, end = frames.split(data, 0)
    assert frames.number_of(data[body:end]) == number
    assert data[body + 8 : end] == rest


def test_what_cannot_be_is_a_fault() -> None:
    with pytest.raises(ValueError, match="where a number is expected"):
        frames.number_of(b"1234567")
    with pytest.raises(ValueError, match="four bytes"):
        frames.split(b"\x02\xff\xff\xff\xff\xff", 0)
