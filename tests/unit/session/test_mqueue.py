"""The message queue of a session holds what waits in it, and nothing else."""

from __future__ import annotations

import sys

import pytest

from mqttd.session.mqueue import MQueue


@pytest.mark.parametrize("priorities", [None, {"a": 1}], ids=["one lane", "lanes"])
def test_what_was_taken_out_or_dropped_is_not_held(priorities: dict[str, int] | None) -> None:
    queue = MQueue(2, 0, priorities)
    entries = [bytes((0x32, 5, 0, 1, 97, 0, n)) for n in range(5)]

    def references() -> list[int]:
        return [sys.getrefcount(entry) for entry in entries]

    before = references()
    for number in range(5):
        queue.push(entries[number])
    held = [now - then for now, then in zip(references(), before, strict=True)]
    assert held == [0, 0, 0, 1, 1]
    assert queue.pop() is entries[3]
    assert queue.items() == entries[4:]
    assert queue.pop() is entries[4]
    assert queue.pop() is None
    assert references() == before
