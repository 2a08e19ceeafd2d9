"""Log-ins of the page: whose password is looked at when, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqttd.admin.http.api_users import ApiUsers, add_user
from mqttd.admin.http.logins import EACH, REST, WAITING, Logins
from mqttd.admin.http.requests import ApiError
from mqttd.secrets.passwords import Cost

PASSWORD = "correct horse battery"
CHEAP = Cost(1024, 1, 1)


class Door:
    """Log-ins whose passwords are looked at when a test says so."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.looked_at: list[tuple[Deferred[Any], Any]] = []
        file = str(path / "api-users.json")
        add_user(file, "ann", "administrator", PASSWORD, None, CHEAP)
        users = ApiUsers(file, seconds=self.clock.seconds)
        self.logins = Logins(users, self.clock, self._in_thread)

    def _in_thread(self, function: Any, *arguments: Any) -> Deferred[Any]:
        work: Deferred[Any] = Deferred()
        self.looked_at.append((work, lambda: function(*arguments)))
        return work

    def look(self) -> int:
        """Look at all that wait for a thread; how many those were."""
        looked = 0
        while self.looked_at:
            work, answer = self.looked_at.pop(0)
            looked += 1
            work.callback(answer())
        return looked

    def enter(self, password: str, host: str, name: str = "ann") -> list[Any]:
        """What comes of it: a session or an ApiError, when it is there."""
        came: list[Any] = []
        self.logins.enter(name, password, host).addCallbacks(
            came.append, lambda failure: came.append(failure.value)
        )
        return came


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def test_a_flood_of_wrong_passwords_takes_a_part_of_one_core(door: Door) -> None:
    looked = 0
    for tick in range(100):  # ten seconds
        for number in range(20):
            door.enter("wrong", f"192.0.2.{number}", f"user-{tick % 7}")
        assert len(door.looked_at) <= 1
        looked += door.look()
        door.clock.advance(0.1)
    assert 10 <= looked <= 10 / REST


def test_who_comes_from_elsewhere_waits_for_a_turn_only(door: Door) -> None:
    for _ in range(10):
        for number in range(100):
            door.enter("wrong", "192.0.2.7", f"user-{number}")
    came = door.enter(PASSWORD, "198.51.100.1")
    for _ in range(3):
        door.look()
        door.clock.advance(REST)
    assert len(came) == 1 and came[0][2].name == "ann"


def test_who_comes_from_the_same_address_has_a_turn_with_its_name(door: Door) -> None:
    for _ in range(50):
        door.enter("wrong", "127.0.0.1", "root")
    came = door.enter(PASSWORD, "127.0.0.1")
    for _ in range(3):
        door.look()
        door.clock.advance(REST)
    assert len(came) == 1 and came[0][2].name == "ann"


def test_right_passwords_wait_for_no_rest(door: Door) -> None:
    came = [door.enter(PASSWORD, f"192.0.2.{number}") for number in range(10)]
    assert door.look() == 10
    assert all(len(each) == 1 and each[0][2].name == "ann" for each in came)


def test_no_more_wait_than_there_are_places(door: Door) -> None:
    first = [door.enter("wrong", "192.0.2.7") for _ in range(EACH + 2)]
    # One is being looked at.
    assert [type(each[0]) for each in first if each] == [ApiError]
    many = [door.enter("wrong", f"10.{n}.0.1") for n in range(WAITING + 10)]
    refused = [each[0].status for each in (*first, *many) if each]
    assert len(first) + len(many) - len(refused) == WAITING + 1
    assert set(refused) == {503}
