"""What a request is before it means anything: who asks, what is refused, and how that is told.

    transport --> Caller (name, role) --> route --> an answer, or ApiError --> problem+json

A refusal is a problem by RFC 9457 (``application/problem+json``) with a member ``code`` for
programs::

    {"type": "about:blank", "title": "Not Found", "status": 404,
     "code": "not_found", "detail": "no client 'a'"}
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct
from twisted.web.iweb import IRequest

__all__ = [
    "ADMINISTRATOR",
    "CALLER",
    "CHANGE",
    "NOTE",
    "EVENTS",
    "LOCAL",
    "OPERATOR",
    "ROLES",
    "VIEWER",
    "ApiError",
    "Caller",
    "Found",
    "Problem",
    "answer",
    "caller_of",
    "encoded",
    "may_still",
    "note",
    "problem",
    "refusal",
    "set_caller",
]

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMINISTRATOR: Final = "administrator"
EVENTS: Final = "events"

#: What each may do includes what those before it may; `events` reads the event log and no more.
ROLES: Final[dict[str, int]] = {EVENTS: 0, VIEWER: 1, OPERATOR: 2, ADMINISTRATOR: 3}

#: Between the supervisor of several workers and one of them: for whom it asks (name and role), and
#: what there was before a change and is after it.
CALLER: Final = b"x-mqttd-caller"
CHANGE: Final = b"x-mqttd-change"
#: What is to be known of an answer beside it, for people: that a part of it is not there.
NOTE: Final = b"x-mqttd-note"
#: Bytes of such a note.
_NOTE: Final = 500


@dataclass(slots=True, frozen=True)
class Caller:
    """Who asks, as the log and the audit name it, and what role that has."""

    name: str
    role: str
    #: Requests of this caller are counted against the rate.
    limited: bool = True
    #: Came with the cookie of a browser, and must show that the page itself has asked.
    browser: bool = False

    def may(self, role: str) -> bool:
        """Whether it has this role, or one above it."""
        return ROLES[self.role] >= ROLES[role] > 0


#: Says of what a request shows whose it is; and what was said of it lately.
Who = Callable[[Any], Caller | None]
Found = dict[tuple[Who, Hashable], Caller | None]

#: The broker's own user on the Unix socket.
LOCAL: Final = Caller("socket", ADMINISTRATOR, limited=False)


def set_caller(
    request: Any, caller: Caller, who: Who | None = None, shown: Hashable = None
) -> None:
    """Say who asks, before the request is rendered; ``who(shown)`` finds it out once more.

    None from it: what was shown is nobody's any more. Without `who` it stays the same caller.
    """
    request.mqttd_caller = caller
    request.mqttd_shown = who, shown


def may_still(request: Any, role: str, found: Found) -> bool:
    """Whether who has asked has this role now: an answer that goes on ends with it.

    `found` is kept between the requests that are looked at in one turn, of which many show the
    same.
    """
    who, shown = request.mqttd_shown
    if who is None:
        return bool(request.mqttd_caller.may(role))
    if (who, shown) not in found:
        found[who, shown] = who(shown)
    caller = found[who, shown]
    return caller is not None and caller.may(role)


def caller_of(request: Any) -> Caller:
    """Who asks; a request of whom nobody has said so is refused."""
    caller = getattr(request, "mqttd_caller", None)
    if not isinstance(caller, Caller):
        raise ApiError(401, "unauthorized", "who asks is not known")
    return caller


class Problem(Struct, kw_only=True):
    """A refusal, by RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    #: For programs: not_found, bad_request, ...
    code: str
    #: For people.
    detail: str


def note(request: Any, text: str) -> None:
    """Say something beside an answer."""
    request.setHeader(NOTE, text.encode("ascii", "backslashreplace")[:_NOTE])


class ApiError(Exception):
    """A request that cannot be served: HTTP `status`, a `code` for programs, a text for people."""

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


def problem(status: int, code: str, message: str) -> bytes:
    """The body of a refusal."""
    title = HTTPStatus(status).phrase if status in _STATUSES else "Error"
    detail = message.encode("utf-8", "replace").decode()
    return (
        msgspec.json.encode(Problem(title=title, status=status, code=code, detail=detail)) + b"\n"
    )


def refusal(request: IRequest, status: int, code: str, message: str) -> bytes:
    """Make a refusal of the answer to this request."""
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/problem+json")
    request.setHeader(b"cache-control", b"no-store")
    return problem(status, code, message)


def answer(request: IRequest, value: object, status: int = 200) -> bytes:
    """`value` as JSON."""
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json")
    request.setHeader(b"cache-control", b"no-store")
    return encoded(value) + b"\n"


def encoded(value: object) -> bytes:
    """`value` as JSON, as answers have it."""
    return _ENCODER.encode(value)


_STATUSES: Final = {status.value for status in HTTPStatus}
_ENCODER: Final = msgspec.json.Encoder(enc_hook=str)
