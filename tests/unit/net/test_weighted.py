"""Those who wait, each address with as much as any other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.net.weighted import WeightedQueue


def test_who_asks_for_little_waits_for_nobody_who_asks_for_much() -> None:
    queue: WeightedQueue[str] = WeightedQueue()
    for house, weight, name in (("a", 40, "a1"), ("a", 40, "a2"), ("b", 40, "b1"), ("c", 1, "c1")):
        queue.join(house, weight, name)
    assert queue.first() == "c1"
    assert [queue.next(), queue.next()] == ["c1", "a1"]
    # A house that comes later begins where the others are, and not with what it has not had.
    queue.join("d", 1, "d1")
    queue.join("d", 39, "d2")
    queue.join("e", 41, "e1")
    assert [queue.next() for _ in range(len(queue))] == ["b1", "d1", "a2", "d2", "e1"]
    with pytest.raises(IndexError):
        queue.next()
    with pytest.raises(IndexError):
        queue.first()


def test_who_asks_for_much_has_its_turn_when_another_house_has_had_as_much() -> None:
    queue: WeightedQueue[str] = WeightedQueue()
    queue.join("a", 10, "long")
    gone: list[str] = []
    while not gone or gone[-1] != "long":
        queue.join("b", 1, "short")
        queue.join("b", 1, "short")
        gone.append(queue.next())
    assert len(gone) == 10


def test_those_who_are_gone_take_no_place() -> None:
    queue: WeightedQueue[str] = WeightedQueue()
    for name in ("a1", "b1", "a2", "b2", "a3"):
        queue.join(name[0], 10, name)
    assert queue.next() == "a1"
    queue.keep({"a2", "b2"})
    queue.join("a", 10, "a4")
    queue.join("c", 1, "c1")
    assert [queue.next() for _ in range(len(queue))] == ["c1", "a2", "b2", "a4"]


@given(
    st.lists(
        st.one_of(st.none(), st.tuples(st.sampled_from("abc"), st.integers(1, 9))), max_size=99
    )
)
def test_each_goes_once_and_a_house_in_the_order_it_came(
    steps: list[tuple[str, int] | None],
) -> None:
    queue: WeightedQueue[tuple[str, int]] = WeightedQueue()
    waiting: dict[str, list[int]] = {house: [] for house in "abc"}
    for number, step in enumerate([*steps, *([None] * len(steps))]):
        if step is not None:
            queue.join(*step, (step[0], number))
            waiting[step[0]].append(number)
        elif queue:
            house, came = queue.next()
            assert waiting[house].pop(0) == came
        assert len(queue) == sum(len(line) for line in waiting.values())
    assert not queue._last
