"""Who asks, and the log-in of the page."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct
from twisted.internet.defer import Deferred

from mqttd.admin.http.logins import Logins
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ApiError, caller_of
from mqttd.admin.http.route import Ask, delete, get, post

__all__ = ["Session"]


class LoginBody(Struct, forbid_unknown_fields=True):
    """A user with its password."""

    username: Annotated[str, Meta(min_length=1, max_length=64)]
    password: Annotated[str, Meta(min_length=1, max_length=1000)]


class FirstBody(LoginBody):
    """The first administrator; the token is in the link that the broker's log has."""

    token: Annotated[str, Meta(min_length=1, max_length=100)]


class Who(Struct):
    """Who asks."""

    name: str
    role: str


class LoggedIn(Who):
    """Who has logged in; `csrf` is told this once, and shown as X-CSRF-Token with every request."""

    csrf: str


class LoggedOut(Struct):
    """The cookie is worth nothing any more."""

    logged_out: bool


class Session:
    """Who asks."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/session", role="", answer=Who, errors=(401,))
    def who(self, ask: Ask) -> Who:
        """Who asks, and with which role; 401 for who is nobody yet."""
        try:
            caller = caller_of(ask.request)
        except ApiError:
            logins = self.parts.logins
            if logins is not None and not logins.users.passwords():
                text = (
                    "nobody may log in yet: the broker's log has a link that makes the first one,"
                    " or use: mqttd-ctl api-users add NAME"
                )
                raise ApiError(401, "no_users", text) from None
            raise
        return Who(caller.name, caller.role)

    @post(
        "/session", role="", audited=False, body=LoginBody, answer=LoggedIn,
        errors=(401, 429, 503),
    )  # fmt: skip
    def enter(self, ask: Ask) -> Deferred[LoggedIn]:
        """Log in: the answer sets a cookie that scripts cannot read; at the page's address."""
        return self._enter(ask, "/api/v1/session", "Log in.")

    @post(
        "/session/first", role="", audited=False, body=FirstBody, answer=LoggedIn,
        errors=(401, 409, 422, 429, 503),
    )  # fmt: skip
    def first(self, ask: Ask) -> Deferred[LoggedIn]:
        """Make the first administrator by the link in the broker's log, and log in."""
        self._door(ask)
        first = self.parts.need(self.parts.first, "there are no log-ins")
        given = ask.body
        host = _host_of(ask)
        made: Deferred[None] = first.make(given.token, given.username, given.password, host)
        what = "Make the first administrator, and log in."
        return made.addCallback(lambda _: self._enter(ask, "/api/v1/session/first", what))

    def _enter(self, ask: Ask, path: str, what: str) -> Deferred[LoggedIn]:
        door = self._door(ask)
        host = _host_of(ask)

        def entered(found: Any) -> LoggedIn:
            cookie, csrf, login = found
            door.give(ask.request, cookie)
            self.parts.audit.put(login.name, login.role, host, "POST", path, what, None, None)
            return LoggedIn(login.name, login.role, csrf)

        work: Deferred[Any] = self._logins().enter(ask.body.username, ask.body.password, host)
        return work.addCallback(entered)

    @delete("/session", role="viewer", answer=LoggedOut)
    def leave(self, ask: Ask) -> LoggedOut:
        """Log out."""
        door = self._door(ask)
        self._logins().leave(door.cookie_of(ask.request))
        door.take(ask.request)
        ask.unchanged = True
        return LoggedOut(True)

    def _logins(self) -> Logins:
        found: Logins = self.parts.need(self.parts.logins, "there are no log-ins")
        return found

    def _door(self, ask: Ask) -> Any:
        """The page's door, by which this request has come."""
        return self.parts.need(
            getattr(ask.request, "mqttd_page", None), "log-ins are for the page's address, not"
        )


def _host_of(ask: Ask) -> str:
    return str(getattr(ask.request.getClientAddress(), "host", ""))
