"""Who may use the HTTP interface and its page: users with a password, programs with a token.

Promise: the file is read and replaced in a thread; a password is never told, a token this once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqttd.admin.http.api_users import (
    ApiUserError,
    add_token,
    add_user,
    change_role,
    delete_user,
    read,
)
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ADMINISTRATOR, ApiError
from mqttd.admin.http.route import Ask, delete, get, post

__all__ = ["ApiUsers"]

Role = Literal["viewer", "operator", "administrator", "events"]


class ApiUserView(Struct):
    """One user or token; `expires` in seconds since 1970, None for never."""

    name: str
    role: str
    shows: Literal["password", "token"]
    expires: float | None


class ApiUserList(Struct):
    """All of them by name."""

    users: list[ApiUserView]


class NewApiUser(Struct, forbid_unknown_fields=True):
    """A user with its password, or without one a program, which is given a token.

    Without one somebody who has a password keeps it, and has another role.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    role: Role
    password: Annotated[str, Meta(min_length=8, max_length=1000)] | None = None
    seconds: Annotated[float, Meta(gt=0, lt=1e10)] | None = None


class Made(Struct):
    """What was made; the token is not told again."""

    name: str
    role: str
    new: bool
    token: str | None


class Deleted(Struct):
    """Who was deleted."""

    deleted: str


class ApiUsers:
    """The users of the HTTP interface."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/api-users", role=ADMINISTRATOR, answer=ApiUserList, errors=(422,))
    def list(self, ask: Ask) -> Deferred[ApiUserList]:
        """Users and tokens of the HTTP interface, and their roles."""
        path = self._path()

        def found() -> ApiUserList:
            return ApiUserList(
                [
                    ApiUserView(
                        name, user.role, "password" if user.password else "token", user.expires
                    )
                    for name, user in sorted(read(path).items())
                ]
            )

        return self._work(found)

    @post("/api-users", role=ADMINISTRATOR, body=NewApiUser, answer=Made, errors=(422,))
    def put(self, ask: Ask) -> Deferred[Made]:
        """Add a user or a token, or give one that is there another role, password or token."""
        path, given = self._path(), ask.body
        expires = None if given.seconds is None else time.time() + given.seconds

        def work() -> tuple[Made, str | None]:
            before = read(path).get(given.name)
            token = None
            if given.password is not None:
                add_user(path, given.name, given.role, given.password, expires)
            elif change_role(path, given.name, given.role, expires) is None:
                token = add_token(path, given.name, given.role, expires)
            made = Made(given.name, given.role, before is None, token)
            return made, None if before is None else before.role

        def done(found: tuple[Made, str | None]) -> Made:
            made, role = found
            before = None if role is None else {"name": made.name, "role": role}
            ask.changed(before, {"name": made.name, "role": made.role})
            return made

        return self._change(work).addCallback(done)

    @delete("/api-users/{name}", role=ADMINISTRATOR, answer=Deleted, errors=(422,))
    def delete(self, ask: Ask) -> Deferred[Deleted]:
        """Delete a user or a token; its log-ins end."""
        path, name = self._path(), ask.path["name"]
        if name == ask.caller.name and ask.caller.browser:
            raise ApiError(422, "own_user", "nobody deletes who is logged in with this page")

        def done(found: bool) -> Deleted:
            if not found:
                raise ApiError(404, "not_found", f"no user {name!r}")
            ask.changed(name)
            return Deleted(name)

        return self._change(lambda: delete_user(path, name)).addCallback(done)

    def _path(self) -> str:
        logins = self.parts.logins
        path = logins.users.path if logins is not None else ""
        return str(self.parts.need(path or None, "there are no users of the HTTP interface"))

    def _work(self, work: Callable[[], Any]) -> Deferred[Any]:
        return self.parts.in_thread(work).addErrback(_failed)

    def _change(self, work: Callable[[], Any]) -> Deferred[Any]:
        users = self.parts.need(self.parts.logins, "there are no log-ins").users
        done: Deferred[Any] = users.change(self.parts.in_thread, work)
        return done.addErrback(_failed)


def _failed(failure: Failure) -> Any:
    failure.trap(ApiUserError, OSError)
    raise ApiError(422, "not_done", failure.getErrorMessage())
