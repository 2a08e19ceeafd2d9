"""The OpenAPI 3.1 document of the HTTP interface, made of its declared routes.

    routes --queries, headers--> parameters    --bodies, answers--> components/schemas
           --errors--> responses with `Problem`, beside those of the doors (`_DOORS`)

What a route declares is what checks a request, so that the document and the broker cannot disagree;
tests/unit/admin/test_openapi.py compares it with what resources raise.
Source: OpenAPI Specification 3.1.0; JSON Schema 2020-12.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

import msgspec

from mqttd import __version__
from mqttd.admin.http.requests import Problem
from mqttd.admin.http.route import Route

__all__ = ["HEADERS", "as_json", "document"]

Json = dict[str, Any]

#: What headers of a request are for.
HEADERS: Final = {
    "Idempotency-Key": "a request that is repeated within ten minutes gets the first answer, and"
    " nothing is done again",
    "If-Match": "the ETag of what was looked at, several, or `*`: 412 if there is something else",
    "If-None-Match": "ETags that are known, or `*`: 304 if it is one of them",
    "Last-Event-ID": "the id of the last event that was read: those behind it are told",
}

#: Who asks, whence, how often, with how much, and for what there is not.
_DOORS: Final = (400, 401, 403, 404, 413, 414, 421, 429, 431)
_SCHEMES: Final[Json] = {
    "token": {"type": "http", "scheme": "bearer", "description": "of an API user or a token file"},
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "mqttd-18083",
        "description": "of a log-in (POST /api/v1/session), with the port of the dashboard",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": "X-CSRF-Token",
        "description": "`csrf` of the answer to the log-in, with every request beside the cookie",
    },
}
_REF: Final = "#/components/schemas/{name}"


def document(routes: Iterable[Route]) -> Json:
    """The document of these routes."""
    routes = list(routes)
    shown: list[Any] = [Problem]
    for route in routes:
        shown += [kind for kind in (route.body, route.answer) if kind not in (None, str)]
    schemas, components = msgspec.json.schema_components(shown, ref_template=_REF)
    # By its text: types such as dict[str, Any] are equal, and not the same.
    known = {repr(kind): schema for kind, schema in zip(shown, schemas, strict=True)}
    paths: Json = {}
    for route in routes:
        paths.setdefault(route.full_path, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mqttd",
            "version": __version__,
            "description": "What an operator of an MQTT broker may see and do.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"cookie": [], "csrf": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": _SCHEMES,
        },
    }


def _operation(route: Route, known: dict[str, Json]) -> Json:
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
        }
        for name in route.parameters
    ]
    if route.query is not None:
        parameters += _parameters(route.query)
    parameters += [_header(name) for name in route.headers]
    responses: Json = {"200": _answer(route, known)}
    if "If-None-Match" in route.headers:
        responses["200"]["headers"] = {"ETag": {"schema": {"type": "string"}}}
    body = () if route.body is None else (415,)
    for status in sorted({*_DOORS, *body, *route.errors}):
        responses[str(status)] = _refusal(status)
    if route.path == "/health/ready":
        responses["503"] = _answer(route, known)
    made: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.path.split("/")[1]],
        "responses": responses,
    }
    if route.role:
        made["description"] = f"For the role {route.role} and those above it."
    else:
        made["security"] = []
    if parameters:
        made["parameters"] = parameters
    if route.body is not None:
        made["requestBody"] = {
            "required": any(field.required for field in msgspec.structs.fields(route.body)),
            "content": {"application/json": {"schema": known[repr(route.body)]}},
        }
    return made


def _header(name: str) -> Json:
    kind: Json = {"type": "string"}
    if name == "Idempotency-Key":
        kind |= {"minLength": 1, "maxLength": 255}
    return {"name": name, "in": "header", "description": HEADERS[name], "schema": kind}


def _answer(route: Route, known: dict[str, Json]) -> Json:
    media = route.media.partition(";")[0]
    schema = {"type": "string"} if route.answer is str else known[repr(route.answer)]
    return {"description": route.summary, "content": {media: {"schema": schema}}}


def _refusal(status: int) -> Json:
    text = HTTPStatus(status).phrase
    if status == 304:
        return {"description": text}
    schema = {"$ref": _REF.format(name="Problem")}
    return {"description": text, "content": {"application/problem+json": {"schema": schema}}}


def _parameters(query: type[msgspec.Struct]) -> list[Json]:
    """The fields of a query as parameters."""
    (_,), components = msgspec.json.schema_components([query], ref_template=_REF)
    schema = components[query.__name__]
    found: list[Json] = []
    for name, field in schema["properties"].items():
        kind = dict(field)
        # What is left out is None, which a query cannot say otherwise.
        options = [one for one in kind.pop("anyOf", []) if one != {"type": "null"}]
        if len(options) == 1:
            kind = {**options[0], **kind}
        elif options:
            kind["anyOf"] = options
        if isinstance(kind.get("enum"), list):
            kind["enum"] = [one for one in kind["enum"] if one is not None]
        if kind.get("default", 0) is None:
            del kind["default"]
        made: Json = {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": kind,
        }
        if "description" in kind:
            made["description"] = kind.pop("description")
        found.append(made)
    return found


@lru_cache(4)
def as_json(routes: tuple[Route, ...]) -> bytes:
    """The document as it is served; the same for every broker with these routes."""
    return json.dumps(document(routes), ensure_ascii=False).encode()
