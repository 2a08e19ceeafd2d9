"""Log-ins of the page: a password once, then two secrets that count only together.

    POST /api/v1/session  --password, in a thread-->  cookie (HttpOnly, SameSite=Strict), for the
                                                      browser; X-CSRF-Token, for the page, told once
    every request         --both-->  who              while its user is there and unchanged

Browsers send a cookie to every port of a host, so that whoever serves something beside the broker
may have it: it opens nothing alone. The page has the token in its sessionStorage, which is of one
origin, and ports count there. Neither is kept here, but a digest of each.

Promise: at most `MOST` sessions, each for `IDLE` seconds without a request (an event stream is one
as long as it goes on) and `LONGEST` in all;
one password is looked at at a time, and the next one `REST` seconds after a wrong one, so that a
flood of them takes a part of one core; who waits for that has a turn with its network, its address
and its name (`mqttd.net.fair`). A wrong one is answered late (`mqttd.admin.http.slow`), and an
unknown user costs as much as a wrong password.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from twisted.internet.defer import Deferred

from mqttd.admin.http.api_users import ApiUsers
from mqttd.admin.http.requests import ApiError, Caller
from mqttd.admin.http.slow import Slow
from mqttd.net.fair import FairQueue, house_of, networks_of
from mqttd.secrets.passwords import dummy_hash, verify

__all__ = ["Login", "Logins", "caller_of_login"]

MOST: Final = 500
IDLE: Final = 1800.0
LONGEST: Final = 12 * 3600.0
#: Seconds without looking at one after a wrong password.
REST: Final = 0.25
#: Log-ins that wait, and those with one name from one address.
WAITING: Final = 64
EACH: Final = 4


@dataclass(slots=True, eq=False)
class _Entering:
    """Who waits to be let in."""

    name: str
    password: str
    host: str
    done: Deferred[tuple[str, str, Login]]


@dataclass(slots=True)
class Login:
    """One session of the page."""

    name: str
    role: str
    #: What the user's entry was when it logged in.
    password: str
    #: Digest of the token that the page shows with every request.
    csrf: bytes
    since: float
    at: float


class Logins:
    """The sessions of one broker; `in_thread` calls in a thread, `reactor` is a clock."""

    def __init__(
        self, users: ApiUsers, reactor: Any, in_thread: Callable[..., Deferred[Any]]
    ) -> None:
        self.users = users
        self.reactor = reactor
        self.in_thread = in_thread
        self.slow = Slow(reactor)
        self._line: FairQueue[_Entering] = FairQueue(WAITING, EACH)
        #: A password is being looked at, or a wrong one was just now.
        self._busy = False
        self._logins: OrderedDict[bytes, Login] = OrderedDict()

    def enter(self, name: str, password: str, host: str) -> Deferred[tuple[str, str, Login]]:
        """A cookie, its token and their session, for a right password; fails with ApiError."""
        one = _Entering(name, password, host, Deferred())
        house = house_of(host)
        gone = self._line.join(name, one, (*networks_of(house), house))
        if gone is not None:
            late = ApiError(503, "busy", "too many log-ins at a time", {"retry-after": "1"})
            gone.done.errback(late)
        self._next()
        return one.done

    def _next(self) -> None:
        """Look at a password, if none is being looked at."""
        if self._busy or not self._line:
            return
        self._busy = True
        one = self._line.next()
        user = self.users.get(one.name)
        known = user is not None and user.password != ""
        hashed = user.password if user is not None and known else ""
        if not known:
            hashed = dummy_hash(self.users.passwords(), one.name)

        def checked(right: Any) -> Any:
            if right is True and known and user is not None:
                self._go_on()
                return self._begin(one.name, user.role, user.password)
            self.reactor.callLater(REST, self._go_on)
            held = self.slow.hold(one.host)
            if held is None:
                raise ApiError(429, "too_many_requests", "too many wrong passwords")
            return held.addCallback(_wrong)

        work = self.in_thread(verify, hashed, one.password.encode("utf-8", "replace"))
        work.addBoth(checked).chainDeferred(one.done)

    def _go_on(self) -> None:
        self._busy = False
        self._next()

    def find(self, cookie: bytes, csrf: bytes) -> Login | None:
        """The session of a cookie and its token, if it lasts."""
        key = _digest(cookie)
        login = self._logins.get(key)
        if login is None or not hmac.compare_digest(login.csrf, _digest(csrf)):
            return None
        now = self.reactor.seconds()
        user = self.users.get(login.name)
        if (
            now - login.at > IDLE
            or now - login.since > LONGEST
            or user is None
            or (user.password, user.role) != (login.password, login.role)
        ):
            del self._logins[key]
            return None
        login.at = now
        self._logins.move_to_end(key)
        return login

    def leave(self, cookie: bytes) -> None:
        """Who has it logs out."""
        self._logins.pop(_digest(cookie), None)

    def _begin(self, name: str, role: str, password: str) -> tuple[str, str, Login]:
        now = self.reactor.seconds()
        cookie, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        login = Login(name, role, password, _digest(csrf.encode()), now, now)
        self._logins[_digest(cookie.encode())] = login
        if len(self._logins) > MOST:
            self._logins.popitem(False)
        return cookie, csrf, login


def caller_of_login(login: Login) -> Caller:
    """Who asks with a cookie."""
    return Caller(login.name, login.role, browser=True)


def _digest(shown: bytes) -> bytes:
    return hashlib.sha256(shown).digest()


def _wrong(_: object) -> Any:
    raise ApiError(401, "wrong_password", "no such user, or a wrong password")
