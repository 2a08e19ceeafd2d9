"""Message ids: unique, growing, and readable back into their parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.session.ground.guid import Guid, node_of, process_of, sequence_of, timestamp_of, to_hex
from mqttd.session.ground.message import Message

NOW = 1_700_000_000_000_000


def test_an_id_tells_when_and_where_it_was_made() -> None:
    guid = Guid(0xABCD, 0x12345678)
    first = guid.next(NOW)
    second = guid.next(NOW)
    assert timestamp_of(first) == NOW
    assert node_of(first) == 0xABCD
    assert process_of(first) == 0x12345678
    assert (sequence_of(first), sequence_of(second)) == (0, 1)
    assert to_hex(first) == f"{NOW:016x}abcd123456780000"


@given(st.lists(st.integers(0, NOW), min_size=2, max_size=50))
def test_ids_grow_whatever_the_clock_does(clock: list[int]) -> None:
    """Steps back included."""
    guid = Guid(1, 2)
    ids = [guid.next(now) for now in clock]
    assert ids == sorted(set(ids))
    assert all(node_of(id) == 1 and process_of(id) == 2 for id in ids)


def test_more_than_65536_ids_in_one_microsecond_borrow_from_the_next() -> None:
    guid = Guid(0xFFFF, 0xFFFFFFFF)
    ids = [guid.next(NOW) for _ in range(0x10000 * 2 + 5)]
    assert ids == sorted(set(ids))
    assert timestamp_of(ids[-1]) == NOW + 2
    assert ids[-1] < guid.next(NOW + 1) < guid.next(NOW + 2) < guid.next(NOW + 3)
    assert {node_of(id) for id in ids} == {0xFFFF}
    assert ids[-1] < 1 << 128


def test_two_processes_never_share_an_id() -> None:
    guids = [Guid(0, 0), Guid(0, 1), Guid(1, 0)]
    assert len({guid.next(NOW) for guid in guids for _ in range(100)}) == 300


@pytest.mark.parametrize(("node", "process"), [(-1, 0), (65536, 0), (0, -1), (0, 1 << 32)])
def test_a_node_or_process_that_does_not_fit_is_refused(node: int, process: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Guid(node, process)


def test_the_halves_of_a_message_make_the_id_that_follows() -> None:
    guid, other = Guid(65_535, 4_294_967_295), Guid(65_535, 4_294_967_295)
    for now in (0, 0, 7, 5):
        message = Message(0, "t", b"")
        assert message.id == 0
        half = guid.reserve(now, 1)
        message.named(guid.timestamp, half)
        assert message.id == message.replace(payload=b"x").id == other.next(now)
        assert message.timestamp == timestamp_of(message.id)
