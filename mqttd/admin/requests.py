"""What the HTTP interface is made of: arguments, bodies, pages, answers and refusals as JSON.

A refusal is ``{"error": {"code": "not_found", "message": "..."}}`` with a fitting HTTP status;
raise `ApiError`, and the handlers that `answer_faults` puts into an app make one of it.
"""

from __future__ import annotations

import heapq
import json
from typing import Any, Final, cast

from klein import Klein
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from werkzeug.exceptions import HTTPException

__all__ = [
    "DEFAULT_LIMIT",
    "MAX_LIMIT",
    "ApiError",
    "answer",
    "answer_faults",
    "argument_of",
    "body_of",
    "limit_of",
    "page_of",
    "refusal",
]

#: Entries of a page when the request does not say, and at most.
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000

Json = dict[str, Any]


class ApiError(Exception):
    """A request that cannot be served: HTTP `status`, a `code` for programs, a text for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def answer_faults(app: Klein) -> None:
    """Have an app of the API answer with errors in JSON; last, behind handlers of its own."""
    on: Any = app.handle_errors  # klein's types know methods only
    on(ApiError)(_refused)
    on(HTTPException)(_no_route)
    on(Exception)(_crashed)


def _refused(api: Any, request: IRequest, failure: Failure) -> bytes:
    """A request we refuse."""
    error = cast(ApiError, failure.value)
    return refusal(request, error.status, error.code, error.message)


def _no_route(api: Any, request: IRequest, failure: Failure) -> bytes:
    """No such path, or a method it has not."""
    error = cast(HTTPException, failure.value)
    path = request.path.decode("ascii", "replace")
    if error.code == 405:
        method = request.method.decode("ascii", "replace")
        return refusal(request, 405, "method_not_allowed", f"{path} has no method {method}")
    return refusal(request, error.code or 404, "not_found", f"no {path}")


def _crashed(api: Any, request: IRequest, failure: Failure) -> bytes:
    """A fault of ours: logged, and told without its traceback."""
    api.log.failure("API request {path} failed", failure, path=request.path.decode("latin-1"))
    return refusal(request, 500, "internal_error", "internal error; see the broker's log")


# -- requests


def argument_of(request: IRequest, name: bytes) -> str | None:
    """A query argument as text, None if it is not there."""
    values = request.args.get(name)
    if not values:
        return None
    try:
        return cast(str, values[-1].decode())
    except UnicodeDecodeError:
        raise ApiError(400, "bad_request", f"{name.decode()}: expected UTF-8") from None


def limit_of(request: IRequest) -> int:
    """How many entries a page was asked to have."""
    text = argument_of(request, b"limit")
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_LIMIT):
        raise ApiError(
            400, "bad_request", f"limit = {text!r}: expected a number from 1 to {MAX_LIMIT}"
        )
    return int(text)


def page_of(request: IRequest, names: list[str]) -> tuple[list[str], str | None]:
    """The names of the page that was asked for, and the cursor of the next (None at the end)."""
    limit = limit_of(request)
    after = argument_of(request, b"cursor")
    if after is not None:
        names = [name for name in names if name > after]
    page = heapq.nsmallest(limit, names)
    return page, page[-1] if len(names) > limit else None


def body_of(request: IRequest) -> Json:
    """The JSON object in a request; raises ApiError."""
    try:
        body = json.loads(request.content.read())
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "bad_request", f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "bad_request", "the body: expected a JSON object")
    return body


# -- answers


def answer(request: IRequest, value: object, status: int = 200) -> bytes:
    """`value` as JSON."""
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json")
    request.setHeader(b"cache-control", b"no-store")
    return json.dumps(value, default=str).encode() + b"\n"


def refusal(request: IRequest, status: int, code: str, message: str) -> bytes:
    """An error as JSON: `code` for programs, `message` for people."""
    return answer(request, {"error": {"code": code, "message": message}}, status)
