"""The collector's settings: old objects are not walked, cycles still go where that is cheap."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from mqttd.monitor.garbage import INTERVAL, Garbage


class Node:
    """Something that can be part of a cycle."""

    other: Node | None = None


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def garbage(now: list[float]) -> Iterator[Garbage]:
    made = Garbage(clock=lambda: now[0])
    made.start()
    yield made
    made.stop()
    gc.freeze()  # what lives besides is no work for the collector in the tests behind this one


def grow_old() -> weakref.ref[Node]:
    """A cycle in the oldest generation that nobody refers to any more."""
    first, second = Node(), Node()
    first.other, second.other = second, first
    gc.collect(1)
    gc.collect(1)
    return weakref.ref(first)


def test_what_grew_old_is_frozen_on_the_next_tick(garbage: Garbage) -> None:
    before = gc.get_freeze_count()
    kept = [Node() for _ in range(100)]
    gc.collect(1)
    garbage.tick()
    assert gc.get_freeze_count() >= before + len(kept)


def test_an_object_without_cycles_is_freed_although_it_is_frozen(garbage: Garbage) -> None:
    node = Node()
    gone = weakref.ref(node)
    gc.collect(1)
    garbage.tick()
    del node
    assert gone() is None


def test_a_small_broker_gives_old_cycles_back_every_ten_minutes(
    garbage: Garbage, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqttd.monitor.garbage.WALKABLE", 1 << 40)
    gone = grow_old()
    garbage.tick()
    assert gone() is not None
    now[0] += INTERVAL
    garbage.tick()
    assert gone() is None


def test_a_large_broker_is_never_stopped_by_a_full_collection(
    garbage: Garbage, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqttd.monitor.garbage.WALKABLE", 0)
    gone = grow_old()
    now[0] += INTERVAL
    garbage.tick()
    assert gone() is not None
    garbage.collect()
    assert gone() is None


def test_a_long_pause_is_told_and_the_longest_is_kept(now: list[float]) -> None:
    told: list[float] = []
    times = iter([0.0, 5.0, 5.5, 6.0, 6.001])
    garbage = Garbage(told.append, clock=lambda: next(times))
    garbage._timed("start", {})
    garbage._timed("stop", {})
    garbage._timed("start", {})
    garbage._timed("stop", {})
    assert told == [5.0, 0.5]
    assert garbage.longest == 5.0


def test_stopping_puts_the_collector_back(now: list[float]) -> None:
    before = gc.get_threshold()
    garbage = Garbage()
    garbage.start()
    assert gc.get_threshold() != before
    garbage.stop()
    garbage.stop()
    assert gc.get_threshold() == before
    assert garbage._timed not in gc.callbacks
