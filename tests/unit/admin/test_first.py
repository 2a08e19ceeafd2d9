"""The first administrator is made once, by a link, on the broker's machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from mqttd.admin.http.api_users import ApiUsers, add_token, add_user, read
from mqttd.admin.http.first import LASTS, FirstUser
from mqttd.admin.http.requests import ApiError

PASSWORD = "correct horse"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "api-users.json")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def first(path: str, clock: Clock) -> FirstUser:
    return FirstUser(ApiUsers(path), clock, maybeDeferred)


def code_of(first: FirstUser, clock: Clock, token: str, **more: str) -> str:
    """What refuses it, "" for nothing."""
    given = {"name": "ann", "password": PASSWORD, "host": "127.0.0.1", **more}
    found: list[Any] = []
    try:
        work: Deferred[Any] = first.make(token, given["name"], given["password"], given["host"])
    except ApiError as error:
        return error.code
    work.addBoth(found.append)
    while not found:
        clock.advance(0.5)
    if found[0] is None:
        return ""
    return str(found[0].value.code)


def test_it_is_an_administrator_and_the_link_is_good_once(first: FirstUser, clock: Clock) -> None:
    token = first.offer()
    assert len(token) >= 43
    assert code_of(first, clock, token) == ""
    user = first.users.get("ann")
    assert user is not None and user.role == "administrator" and user.password
    assert code_of(first, clock, token, name="eve") == "not_first"
    assert first.offer() == ""


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::1", ""])
def test_from_elsewhere_it_is_refused(first: FirstUser, clock: Clock, host: str) -> None:
    assert code_of(first, clock, first.offer(), host=host) == "not_loopback"
    assert not len(first.users)


def test_a_wrong_token_waits_and_an_old_one_is_wrong(first: FirstUser, clock: Clock) -> None:
    assert code_of(first, clock, "none was offered") == "wrong_token"
    old = first.offer()
    token = first.offer()
    before = clock.seconds()
    assert code_of(first, clock, old) == "wrong_token"
    assert clock.seconds() > before
    clock.advance(LASTS)
    assert code_of(first, clock, token) == "wrong_token"
    assert not len(first.users)


def test_what_cannot_be_a_user_leaves_the_link_good(first: FirstUser, clock: Clock) -> None:
    token = first.offer()
    assert code_of(first, clock, token, password="short") == "not_made"
    assert code_of(first, clock, token, name="a b") == "not_made"
    assert code_of(first, clock, token) == ""


def test_two_at_once_make_one(path: str, clock: Clock) -> None:
    waiting: list[Deferred[Any]] = []

    def in_thread(*call: Any) -> Deferred[Any]:
        waiting.append(Deferred())
        return waiting[-1]

    first = FirstUser(ApiUsers(path), clock, in_thread)
    token = first.offer()
    first.make(token, "ann", PASSWORD, "::1")
    assert code_of(first, clock, token, name="eve") == "wrong_token"
    assert len(waiting) == 1


def test_there_is_no_link_where_somebody_has_a_password(path: str, first: FirstUser) -> None:
    add_user(path, "ann", "viewer", PASSWORD, None)
    assert first.offer() == ""
    assert FirstUser(ApiUsers(), first.reactor, maybeDeferred).offer() == ""


def test_tokens_of_programs_open_no_page_and_keep_their_names(
    path: str, first: FirstUser, clock: Clock
) -> None:
    shown = add_token(path, "robot", "administrator", None)
    token = first.offer()
    assert token
    assert code_of(first, clock, token, name="robot") == "not_made"
    assert code_of(first, clock, token) == ""
    assert sorted(read(path)) == ["ann", "robot"]
    assert first.users.by_token(shown) is not None


def test_a_change_of_our_own_is_not_told_as_one_of_the_file(path: str, clock: Clock) -> None:
    told: list[Any] = []
    users = ApiUsers(path, changed=lambda before, after: told.append((before, after)))
    assert not len(users)
    users.change(maybeDeferred, add_token, path, "robot", "viewer", None)
    assert len(users) == 1 and told == []
    waiting: list[Any] = []

    def in_thread(work: Any, *given: Any) -> Deferred[Any]:
        waiting.append((Deferred(), work(*given)))
        return waiting[-1][0]  # type: ignore[no-any-return]

    users.change(in_thread, add_token, path, "other", "viewer", None)
    users.look()
    waiting[0][0].callback(None)
    assert len(users) == 2 and told == []
    add_token(path, "robot", "operator", None)
    users.look()
    ((before, after),) = told
    assert (before["robot"]["role"], after["robot"]["role"]) == ("viewer", "operator")
