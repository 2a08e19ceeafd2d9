"""Who has come through a door and has not said who he is: how many have a place."""

from __future__ import annotations

from mqttd.net.strangers import MOMENT, Strangers


class One:
    """A connection."""

    gone = False

    def close(self) -> None:
        """It makes room."""
        self.gone = True


class Door(Strangers[One]):
    """Whom it admits comes in."""

    def comes(self, house: str, now: float = 0.0) -> One | None:
        if not self.admits(house, now):
            return None
        one = One()
        self.enter(one, house, now)
        return one


def test_a_house_has_so_many_and_the_oldest_goes_when_its_moment_is_over() -> None:
    door = Door(10, 2)
    first = door.comes("a")
    assert first is not None
    assert door.comes("a", 0.5) is not None
    assert door.comes("a", 0.9) is None
    assert not first.gone
    assert door.comes("b", 0.9) is not None
    assert door.comes("a", MOMENT) is not None
    assert first.gone
    assert (door.refused, door.ended, len(door)) == (1, 1, 3)


def test_the_house_with_the_most_makes_room_at_once() -> None:
    door = Door(4, 4)
    many = [door.comes("a") for _ in range(4)]
    assert door.comes("b") is not None
    assert door.comes("b") is not None
    assert [each.gone for each in many if each] == [True, True, False, False]
    assert door.comes("b") is None
    assert len(door) == 4


def test_where_each_has_one_the_oldest_goes_after_its_moment() -> None:
    door = Door(2, 2)
    first = door.comes("a")
    assert first is not None
    assert door.comes("b") is not None
    assert door.comes("c", 0.5) is None
    assert door.comes("c", MOMENT) is not None
    assert first.gone


def test_who_is_known_finds_a_place_whoever_else_comes() -> None:
    known = {"node"}
    door = Door(2, 2, known)
    for house in "abcdef":
        door.comes(house)
    assert len(door) == 2
    assert door.comes("node") is not None
    assert door.comes("node") is not None
    assert door.comes("node") is None
    # Nor does a known house count among those that are not.
    one = door.comes("a", MOMENT)
    assert one is not None
    door.leave(one)
    assert door.comes("g", MOMENT) is not None
    assert len(door) == 4


def test_who_has_said_who_he_is_is_no_stranger() -> None:
    door = Door(1, 1)
    for _ in range(3):
        one = door.comes("a")
        assert one is not None
        door.leave(one)
        door.leave(one)
    assert (len(door), door.refused) == (0, 0)
