"""Connections are kept, lost ones replaced, and questions asked twice only where it is safe."""

from __future__ import annotations

import pytest

from mqttd.plugins.backends.pool import Pool


class Lost(Exception):
    pass


class World:
    def __init__(self) -> None:
        self.opened = 0
        self.closed: list[int] = []
        self.pool = Pool(self.connect, self.closed.append, (Lost,), keep=lambda number: number > 0)

    def connect(self) -> int:
        self.opened += 1
        return self.opened


def fail(error: Exception) -> int:
    raise error


def test_a_connection_is_used_again() -> None:
    world = World()
    assert [world.pool.run(lambda number: number) for _ in range(3)] == [1, 1, 1]
    assert world.closed == []


def test_one_that_was_lost_while_idle_is_replaced_by_a_new_one() -> None:
    world = World()
    world.pool.run(lambda number: world.pool.run(lambda other: 0))
    assert world.pool.run(lambda number: number if number > 2 else fail(Lost())) == 3
    assert sorted(world.closed) == [1, 2]


def test_a_new_connection_that_fails_is_not_tried_again() -> None:
    world = World()
    with pytest.raises(Lost):
        world.pool.run(lambda number: fail(Lost()))
    assert (world.opened, world.closed) == (1, [1])


def test_a_question_that_was_lost_late_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.pool.run(lambda number: number)
    now = iter([0.0, 3.0])
    monkeypatch.setattr("mqttd.plugins.backends.pool.monotonic", lambda: next(now))
    with pytest.raises(Lost):
        world.pool.run(lambda number: fail(Lost()))
    assert world.opened == 1


def test_an_error_of_a_question_leaves_the_connection() -> None:
    world = World()
    with pytest.raises(ValueError):
        world.pool.run(lambda number: fail(ValueError()))
    assert world.pool.run(lambda number: number) == 1


def test_after_close_nothing_is_kept() -> None:
    world = World()
    world.pool.run(lambda number: number)
    world.pool.close()
    world.pool.run(lambda number: number)
    assert world.closed == [1, 2]
