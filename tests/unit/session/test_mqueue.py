"""The message queue of a session holds what waits in it, and nothing else."""

from __future__ import annotations

import random
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


def wire(qos: int, number: int) -> bytes:
    """A PUBLISH to "a"."""
    return bytes((0x30 | qos << 1, 5, 0, 1, 97)) + number.to_bytes(4, "big")


@pytest.mark.parametrize("priorities", [None, {"b": 1}], ids=["one lane", "lanes"])
@pytest.mark.parametrize("seed", range(5))
def test_the_oldest_of_qos_0_goes_first_wherever_it_is(
    seed: int, priorities: dict[str, int] | None
) -> None:
    """Beside a list that is gone through from its head each time."""
    chance = random.Random(seed)
    most = chance.choice((3, 20, 3000))
    queue = MQueue(most, 0, priorities)
    model: list[bytes] = []
    for number in range(3 * most + 500):
        if model and chance.random() < 0.3:
            assert queue.pop() == model.pop(0)
            continue
        entry = wire(chance.random() < 0.6, number)
        dropped: list[bytes] = []
        if len(model) == most:
            of_none = [each for each in model if each[0] == 0x30]
            if not of_none and entry[0] == 0x30:
                assert queue.push(entry) == [entry]
                continue
            dropped.append(of_none[0] if of_none else model[0])
            model.remove(dropped[0])
        model.append(entry)
        assert queue.push(entry) == (dropped or None)
        assert queue.length == len(model)
    assert queue.items() == model


def test_what_is_in_front_of_those_of_qos_0_is_looked_at_once() -> None:
    """For each message that came to a full queue it was gone through from the head."""
    queue = MQueue(1000, 0)
    for number in range(1000):
        queue.push(wire(number < 500, number))
    for number in range(100):
        assert queue.push(wire(1, number)) == [wire(0, 500 + number)]
        assert queue._lane.past == 500
