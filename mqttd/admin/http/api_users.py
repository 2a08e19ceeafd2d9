"""Who may use the HTTP interface: named users and tokens with a role, in a file of mode 0600.

    mqttd-ctl api-users add|token|del  -->  data/api-users.json  <--when it has changed--  broker

    password   argon2id, verified in a thread     for the page
    token      SHA-256 of 256 random bits          for programs: ``Authorization: Bearer TOKEN``

There is no password before one was made here. A token is random and long, so that a plain digest
keeps it; a password is not. An entry that has expired is as good as none.

Promise: a file that others may read is not used, and one that cannot be read holds nobody.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct
from twisted.internet.defer import Deferred

from mqttd.admin.http.requests import ROLES, Caller
from mqttd.secrets.files import replace_file
from mqttd.secrets.passwords import Cost, hash_password

__all__ = [
    "ApiUser",
    "ApiUserError",
    "ApiUsers",
    "add_token",
    "add_user",
    "change_role",
    "delete_user",
    "read",
]

_NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
#: What a token begins with, by which one that got lost is recognized.
_PREFIX: Final = "mqttd_"


class ApiUserError(ValueError):
    """A file that cannot be used, or an entry that cannot be; the text says what to do."""


class ApiUser(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One user or token."""

    role: str
    #: argon2id, for who logs in at the page.
    password: str = ""
    #: SHA-256 in hex, for who shows a token.
    token: str = ""
    #: Seconds since 1970, None for ever.
    expires: float | None = None


class _File(Struct, forbid_unknown_fields=True):
    users: dict[str, ApiUser]


def read(path: str) -> dict[str, ApiUser]:
    """The entries of a file, none if there is no file; raises ApiUserError, OSError."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ApiUserError(f"{path}: others may read it; use: chmod 600 {path}")
            found = msgspec.json.decode(file.read(), type=_File).users
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise ApiUserError(f"{path}: {error}") from None
    for name, user in found.items():
        _check(name, user.role)
    return found


def add_user(
    path: str, name: str, role: str, password: str, expires: float | None, cost: Cost | None = None
) -> bool:
    """Add who logs in with a password, or change that one; True if it is new. Raises as `read`."""
    if len(password) < 8:
        raise ApiUserError("a password: expected at least 8 characters")
    hashed = hash_password(password, cost)
    return _put(path, name, ApiUser(role, password=hashed, expires=expires))


def add_token(path: str, name: str, role: str, expires: float | None) -> str:
    """Add who shows a token, or give it a new one; returns the token. Raises as `read`."""
    token = _PREFIX + secrets.token_urlsafe(32)
    _put(path, name, ApiUser(role, token=_digest(token), expires=expires))
    return token


def change_role(path: str, name: str, role: str, expires: float | None) -> str | None:
    """Give somebody with a password another role, and another end if one is given.

    Returns the role before; None, and nothing is changed, if nobody of that name has a password.
    Raises as `read`.
    """
    user = read(path).get(name)
    if user is None or not user.password:
        return None
    until = user.expires if expires is None else expires
    _put(path, name, ApiUser(role, password=user.password, expires=until))
    return user.role


def delete_user(path: str, name: str) -> bool:
    """Take an entry out; False if it was not there. Raises as `read`."""
    found = read(path)
    if found.pop(name, None) is None:
        return False
    _write(path, found)
    return True


def _put(path: str, name: str, user: ApiUser) -> bool:
    _check(name, user.role)
    found = read(path)
    new = name not in found
    found[name] = user
    _write(path, found)
    return new


def _write(path: str, users: dict[str, ApiUser]) -> None:
    text = msgspec.json.format(msgspec.json.encode(_File(users)), indent=1).decode()
    replace_file(path, text + "\n")


def _check(name: str, role: str) -> None:
    if not _NAME.fullmatch(name):
        raise ApiUserError(f"name {name[:80]!r}: expected 1 to 64 letters, digits and _ . @ -")
    if role not in ROLES:
        raise ApiUserError(f"role {role[:80]!r} of {name}: expected one of {', '.join(ROLES)}")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


class ApiUsers:
    """The file `path` as it is now, "" for none; `fault` is told of one that cannot be used."""

    def __init__(
        self,
        path: str = "",
        fault: Callable[[str], None] = lambda text: None,
        seconds: Callable[[], float] = time.time,
        changed: Callable[[dict[str, Any], dict[str, Any]], None] = lambda before, after: None,
    ) -> None:
        self.path = path
        self._fault = fault
        self._changed = changed
        self._seconds = seconds
        self._seen: object = _NEVER
        #: Changes of our own that are under way.
        self._own = 0
        self._users: dict[str, ApiUser] = {}
        self._tokens: dict[str, str] = {}

    def __len__(self) -> int:
        """Return how many there are, expired ones too."""
        self._look()
        return len(self._users)

    def __contains__(self, name: str) -> bool:
        """Whether there is one of this name, expired or not."""
        self._look()
        return name in self._users

    def get(self, name: str) -> ApiUser | None:
        """One that has not expired."""
        self._look()
        user = self._users.get(name)
        if user is None or (user.expires is not None and user.expires <= self._seconds()):
            return None
        return user

    def by_token(self, token: str) -> Caller | None:
        """Who shows this token."""
        self._look()
        name = self._tokens.get(_digest(token))
        user = self.get(name) if name is not None else None
        return Caller(name, user.role) if name is not None and user is not None else None

    def passwords(self) -> dict[str, str]:
        """The hashes of those who log in."""
        self._look()
        return {name: user.password for name, user in self._users.items() if user.password}

    def change(
        self, in_thread: Callable[..., Deferred[Any]], work: Callable[..., Any], *given: Any
    ) -> Deferred[Any]:
        """Call what changes the file; whoever asks for it says so, and `changed` is not told."""
        self._look()
        self._own += 1

        def done(result: Any) -> Any:
            self._own -= 1
            self._look(told=True)
            return result

        return in_thread(work, *given).addBoth(done)

    def _look(self, told: bool = False) -> None:
        if not self.path or self._own:
            return
        try:
            about = os.stat(self.path)
            now: object = (about.st_mtime_ns, about.st_size, about.st_ino, about.st_mode)
        except OSError:
            now = None
        if now == self._seen:
            return
        first, self._seen = self._seen is _NEVER, now
        if first and now is None:
            return
        before = self._users
        try:
            self._users = read(self.path)
        except (OSError, ApiUserError) as error:
            self._users = {}
            self._fault(str(error))
        self._tokens = {user.token: name for name, user in self._users.items() if user.token}
        if not first and not told and before != self._users:
            self._changed(_differing(before, self._users), _differing(self._users, before))

    def look(self) -> None:
        """See whether the file is another."""
        self._look()


_NEVER: Final = object()


def _differing(users: dict[str, ApiUser], others: dict[str, ApiUser]) -> dict[str, Any]:
    """Those that are not so among the others, without what they show."""
    return {
        name: {
            "role": user.role,
            "shows": "password" if user.password else "token",
            "expires": user.expires,
        }
        for name, user in users.items()
        if others.get(name) != user
    }
