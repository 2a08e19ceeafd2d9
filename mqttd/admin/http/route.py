"""Routes as they are declared, and the way of a request through one of them.

    @get("/clients", query=Wish, answer=ClientPage)
    def page(self, ask): ...

    request --> who asks? --> may it? --> not too often? --> path, query, body --> handler --> JSON
                  401           403            429                 400                 '--> audit

What is declared is what is checked and what the OpenAPI document says (`mqttd.admin.http.openapi`):
queries and bodies are msgspec structs, with their ranges and texts in them.

Promise: nothing of a request reaches a handler that its route has not declared; every change that
was made is told to the audit, with who has made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import inspect

from mqttd.admin.http.requests import OPERATOR, VIEWER, ApiError, Caller, Found, may_still

__all__ = ["Ask", "Route", "body_of", "delete", "get", "post", "query_of", "routes_of"]


@dataclass(slots=True, frozen=True)
class Route:
    """One method of one path."""

    method: str
    #: Below ``/api/v1``, parameters as ``{name}``; `root` paths stand at the top.
    path: str
    role: str
    query: type[msgspec.Struct] | None
    body: type[msgspec.Struct] | None
    answer: Any
    #: Further statuses that it may refuse with.
    errors: tuple[int, ...]
    #: Headers of a request that it looks at.
    headers: tuple[str, ...]
    #: Media type of the answer.
    media: str
    root: bool
    audited: bool
    summary: str
    name: str

    @property
    def full_path(self) -> str:
        """The path as it is asked for."""
        return self.path if self.root else "/api/v1" + self.path

    @property
    def parameters(self) -> list[str]:
        """The names in the path."""
        return [word[1:-1] for word in self.path.split("/") if word.startswith("{")]


class Ask:
    """One request, checked: the parameters in its path, its query and body as declared."""

    def __init__(
        self,
        request: Any,
        caller: Caller,
        route: Route,
        path: dict[str, str],
        query: Any,
        body: Any,
    ) -> None:
        self.request = request
        self.caller = caller
        self.route = route
        self.path = path
        self.query = query
        self.body = body
        #: Of the answer, if it is not refused.
        self.status = 200
        #: What the audit is told of the change, beside its path.
        self.before: Any = None
        self.after: Any = None
        #: Nothing was changed after all.
        self.unchanged = False
        #: The answer is put together with those of others (`mqttd.admin.lists`).
        self.together = False
        #: Whose part is not in it: each worker or node, with the reason.
        self.missing: list[dict[str, Any]] = []

    def changed(self, before: Any = None, after: Any = None) -> None:
        """Say what there was and what there is, for the audit."""
        self.before = before
        self.after = after

    def may_still(self, found: Found) -> bool:
        """Whether who asks may do so now, too, while the answer goes on; see `may_still`."""
        return may_still(self.request, self.route.role, found)

    def header(self, name: str) -> str | None:
        """A header of the request as text."""
        values = self.request.requestHeaders.getRawHeaders(name.encode())
        return b", ".join(values).decode("latin-1") if values else None


def _declared(
    method: str, path: str, role: str, audited: bool, more: dict[str, Any]
) -> Callable[[Any], Any]:
    known: dict[str, Any] = {"query": None, "body": None, "answer": dict[str, Any], "errors": (),
             "headers": (), "media": "application/json", "root": False}  # fmt: skip
    known.update(more)

    def mark(function: Any) -> Any:
        text = (function.__doc__ or "").strip().split("\n\n")[0]
        summary = " ".join(text.split())
        name = f"{method.lower()}_{function.__qualname__.replace('.', '_')}"
        function.route = Route(
            method, path, role, audited=audited, summary=summary, name=name, **known
        )
        return function

    return mark


def get(path: str, role: str = VIEWER, **more: Any) -> Callable[[Any], Any]:
    """Declare a GET: `query`, `answer`, `errors`, `headers`, `media`, `root` as in `Route`."""
    return _declared("GET", path, role, False, more)


def post(
    path: str, role: str = OPERATOR, audited: bool = True, **more: Any
) -> Callable[[Any], Any]:
    """Declare a POST; not `audited` if it only asks."""
    return _declared("POST", path, role, audited, more)


def delete(path: str, role: str = OPERATOR, **more: Any) -> Callable[[Any], Any]:
    """Declare a DELETE."""
    return _declared("DELETE", path, role, True, more)


def routes_of(resource: object) -> Iterator[tuple[Route, Callable[[Ask], Any]]]:
    """The routes that a resource declares, with what serves them."""
    for name in dir(type(resource)):
        route = getattr(getattr(type(resource), name), "route", None)
        if isinstance(route, Route):
            yield route, getattr(resource, name)


# -- what a request holds


def query_of(route: Route, request: Any) -> Any:
    """The query as the route declares it."""
    text = request.uri.partition(b"?")[2]
    try:
        pairs = parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=False,
            errors="strict",
            max_num_fields=50,
        )
    except (UnicodeError, ValueError):
        text = "the query: expected at most 50 pairs in UTF-8"
        raise ApiError(400, "bad_request", text) from None
    if route.query is None:
        if pairs:
            raise ApiError(400, "bad_request", f"{pairs[0][0][:80]!r}: this path takes no query")
        return None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise ApiError(400, "bad_request", f"{name[:80]}: expected once")
        found[name] = value
    try:
        query = msgspec.convert(found, route.query, strict=False)
        for name, value in found.items():
            if getattr(query, name) is None:  # `null` would be taken for nothing said
                raise ApiError(400, "bad_request", f"{name} = {value[:80]!r}: leave it out")
        return query
    except msgspec.ValidationError as error:
        known = ", ".join(route.query.__struct_fields__)
        text = f"{_said(error, route.query)}; there are: {known}"
        raise ApiError(400, "bad_request", text) from None


def body_of(route: Route, request: Any) -> Any:
    """The body as the route declares it."""
    if route.body is None:
        return None
    data = request.content.read()
    if data:
        _check_media(request)
    if not data and not route.body.__struct_config__.array_like:
        data = b"{}"
    try:
        return msgspec.json.decode(data, type=route.body)
    except msgspec.ValidationError as error:
        raise ApiError(400, "bad_request", _said(error, route.body)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ApiError(400, "bad_request", f"the body is no JSON: {error}") from None


def _check_media(request: Any) -> None:
    """Refuse a body that says it is something else than JSON in UTF-8."""
    given = (request.getHeader(b"content-type") or b"application/json").decode("latin-1")
    coding = (request.getHeader(b"content-encoding") or b"identity").decode("latin-1")
    media, _, more = given.lower().partition(";")
    _, _, charset = more.partition("charset=")
    is_json = media.strip() == "application/json" and charset.strip(' "') in ("", "utf-8", "utf8")
    if not is_json or coding.strip().lower() != "identity":
        text = f"Content-Type {given[:80]!r}, {coding[:80]}: expected application/json as it is"
        raise ApiError(415, "unsupported_media_type", text, {"accept": "application/json"})


def _said(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """``Expected `int` <= 2 - at `$.qos` `` as ``qos: expected `int` <= 2``."""
    text, _, place = str(error).partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    text = text.replace("Object contains", "there is an", 1)
    if text.startswith("Invalid enum"):
        text += f": expected {_choices(kind, place)}"
    return f"{place}: {text[:1].lower()}{text[1:]}" if place else text


def _choices(kind: type[msgspec.Struct], name: str) -> str:
    """What a field of a struct may be, where that is one of several words."""
    for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        if field.name == name:
            types = getattr(field.type, "types", (field.type,))
            found = [one.values for one in types if isinstance(one, inspect.LiteralType)]
            return ", ".join(str(value) for values in found for value in values)
    return "another"
