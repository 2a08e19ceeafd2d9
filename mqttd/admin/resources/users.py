"""Users of the password file (``auth.username.file``): who there is, a new one, one less.

Promise: passwords are hashed and the file is replaced in a thread; neither is ever told.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ADMINISTRATOR, ApiError
from mqttd.admin.http.route import Ask, delete, get, post
from mqttd.secrets.users import add_user, delete_user, read_users

__all__ = ["Users"]


class UserList(Struct):
    """The names in the password file."""

    users: list[str]


class NewUser(Struct, forbid_unknown_fields=True):
    """A user, or a new password for one."""

    username: Annotated[str, Meta(min_length=1, max_length=1000)]
    password: Annotated[str, Meta(min_length=1, max_length=1000)]


class Put(Struct):
    """A user is there; `new` if it was not before."""

    username: str
    new: bool


class Deleted(Struct):
    """The user that was deleted."""

    deleted: str


class Users:
    """The users of MQTT clients."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/users", answer=UserList, errors=(422,))
    def list(self, ask: Ask) -> Deferred[UserList]:
        """The names in the password file."""
        path = self._path()

        def read() -> UserList:
            return UserList(sorted(read_users(path)) if os.path.exists(path) else [])

        return self._work(read)

    @post("/users", role=ADMINISTRATOR, body=NewUser, answer=Put, errors=(422,))
    def put(self, ask: Ask) -> Deferred[Put]:
        """Add a user or give it a new password; who is connected with the old one, ends."""
        path, given = self._path(), ask.body

        def done(new: bool) -> Put:
            self.parts.access.reload_auth()
            ask.changed(None if new else given.username, given.username)
            return Put(given.username, new)

        return self._work(lambda: add_user(path, given.username, given.password)).addCallback(done)

    @delete("/users/{username}", role=ADMINISTRATOR, answer=Deleted, errors=(422,))
    def delete(self, ask: Ask) -> Deferred[Deleted]:
        """Delete a user; its connections end."""
        path, username = self._path(), ask.path["username"]

        def done(found: bool) -> Deleted:
            if not found:
                raise ApiError(404, "not_found", f"no user {username!r}")
            self.parts.access.reload_auth()
            ask.changed(username)
            return Deleted(username)

        def remove() -> bool:
            return os.path.exists(path) and delete_user(path, username)

        return self._work(remove).addCallback(done)

    def _path(self) -> str:
        return str(self.parts.need(self.parts.user_file() or None, "there is no password file"))

    def _work(self, work: Callable[[], Any]) -> Deferred[Any]:
        def failed(failure: Failure) -> Any:
            failure.trap(OSError, ValueError)
            raise ApiError(422, "not_done", failure.getErrorMessage())

        return self.parts.in_thread(work).addErrback(failed)
