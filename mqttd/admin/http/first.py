"""The first administrator of the page: who can read the broker's log makes it, by a link, once.

    start, and nobody has a password --> token --> log: http://127.0.0.1:18083/#first=TOKEN
    browser on this machine --token, name, password--> api-users.json: an administrator

There is no default password: until somebody was made nobody may log in. The token stands behind the
`#`, which browsers send to no server and name in no Referer.

Promise: a token is 256 random bits, good once, for `LASTS` seconds, from loopback, and only while
nobody has a password (tokens of programs open no page), and is shown to no program that may read
the log's lines but is no administrator's; who shows a wrong one is answered late
(`mqttd.admin.http.slow`).
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred

from mqttd.admin.http.api_users import ApiUserError, ApiUsers, add_user
from mqttd.admin.http.requests import ADMINISTRATOR, ApiError
from mqttd.admin.http.slow import Slow
from mqttd.net.addresses import is_loopback

__all__ = ["LASTS", "FirstUser", "link_with", "without_token"]

_MARK: Final = "#first="
_TOKEN: Final = re.compile(_MARK + r"[A-Za-z0-9_-]+")

#: Seconds that a link is good for.
LASTS: Final = 3600.0


class FirstUser:
    """The link of one broker; `in_thread` calls in a thread, `reactor` is a clock."""

    def __init__(
        self, users: ApiUsers, reactor: Any, in_thread: Callable[..., Deferred[Any]]
    ) -> None:
        self.users = users
        self.reactor = reactor
        self.in_thread = in_thread
        self.slow = Slow(reactor)
        self._token = ""
        self._until = 0.0

    def offer(self) -> str:
        """A new token, which ends the last one; "" where somebody may log in."""
        self._token = ""
        if not self.users.path or self.users.passwords():
            return ""
        self._token = secrets.token_urlsafe(32)
        self._until = self.reactor.seconds() + LASTS
        return self._token

    def make(self, token: str, name: str, password: str, host: str) -> Deferred[None]:
        """Make the administrator, for a right token from `host`; fails with ApiError."""
        if not is_loopback(host):
            raise ApiError(403, "not_loopback", "the first user is made on the broker's machine")
        if self.users.passwords():
            raise ApiError(409, "not_first", "somebody has a password already: log in")
        if name in self.users:
            raise ApiError(422, "not_made", f"{name!r} is a program's: choose another name")
        good = self._token and self.reactor.seconds() < self._until
        if not good or not hmac.compare_digest(self._token.encode(), token.encode()):
            held = self.slow.hold(host)
            if held is None:
                raise ApiError(429, "too_many_requests", "too many wrong tokens")
            return held.addCallback(_wrong)
        # Taken at once: while the password is hashed nobody else may use it.
        self._token = ""

        def failed(failure: Any) -> Any:
            self._token = token
            failure.trap(ApiUserError, OSError)
            raise ApiError(422, "not_made", failure.getErrorMessage())

        given = (self.users.path, name, ADMINISTRATOR, password, None)
        work = self.users.change(self.in_thread, add_user, *given)
        done: Deferred[None] = work.addCallbacks(lambda _: None, failed)
        return done


def link_with(url: str, token: str) -> str:
    """The link, at the page's address."""
    return f"{url}/{_MARK}{token}"


def without_token(line: str) -> str:
    """A line of the log for who is no administrator, and could become one by the link in it."""
    return _TOKEN.sub(_MARK + "(for administrators)", line)


def _wrong(_: object) -> Any:
    text = "this link is not good any more; start the broker again for another one, or use:"
    raise ApiError(401, "wrong_token", f"{text} mqttd-ctl api-users add NAME")
