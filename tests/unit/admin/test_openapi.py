"""The OpenAPI document tells every answer: what code raises, what doors refuse, which headers."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.api import Api
from mqttd.admin.doors import streams
from mqttd.admin.http import first, logins, parts
from mqttd.admin.http.openapi import HEADERS, document
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.route import Route, routes_of
from mqttd.workers.front import Front
from tests.unit.admin.node import make_broker

#: What resources call that raises ApiError itself, by its name.
CALLED = {
    ".in_turn": parts.Desk.in_turn,
    ".alone": parts.Desk.alone,
    ".enter": logins.Logins.enter,
    ".make": first.FirstUser.make,
    ".open": streams.Streams.open,
}
#: Of one message of a batch, in the answer.
TOLD_OTHERWISE = {"POST /publish/batch": {409, 507}}


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return Api(Parts(make_broker(tmp_path)))


class Found:
    """What a function does, by its text: statuses, headers it looks at, whom it calls."""

    def __init__(self, tree: ast.AST) -> None:
        self.statuses: set[int] = set()
        self.headers: set[str] = set()
        self.names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                self.names.add(node.id)
            elif isinstance(node, ast.Attribute):
                own = ast.unparse(node.value) == "self"
                self.names.add(f"self.{node.attr}" if own else f".{node.attr}")
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ask.status":
                self.statuses |= _numbers(node.value)

    def _call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        if called == "ApiError" or called.endswith("setResponseCode"):
            self.statuses |= _numbers(node.args[0])
        elif called.endswith(".header"):
            self.headers.add(ast.literal_eval(node.args[0]))


def _numbers(node: ast.expr) -> set[int]:
    return {
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and type(one.value) is int and one.value >= 300
    }


@cache
def functions_of(module: str, owner: str) -> dict[str, Found]:
    """The functions of a module, and the methods of one of its classes."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    (kind,) = (one for one in body if isinstance(one, ast.ClassDef) and one.name == owner)
    functions = {one.name: one for one in body if isinstance(one, ast.FunctionDef)}
    functions |= {f"self.{one.name}": one for one in kind.body if isinstance(one, ast.FunctionDef)}
    return {name: Found(tree) for name, tree in functions.items()}


def done_by(function: Any) -> tuple[set[int], set[str]]:
    """Statuses and headers of a method, and of what it calls in its class and module."""
    known = functions_of(function.__module__, function.__qualname__.partition(".")[0])
    statuses: set[int] = set()
    headers: set[str] = set()
    seen: set[str] = set()
    waiting = [f"self.{function.__name__}"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in known:
            statuses |= known[name].statuses
            headers |= known[name].headers
            waiting += known[name].names
        elif name in CALLED:
            statuses |= done_by(CALLED[name])[0]
    return statuses, headers


def test_every_status_and_header_of_a_route_is_declared(api: Api) -> None:
    told = document(api.routes)["paths"]
    missing: list[str] = []
    for route, serve in _served(api):
        operation = told[route.full_path][route.method.lower()]
        statuses, headers = done_by(serve)
        statuses -= TOLD_OTHERWISE.get(f"{route.method} {route.path}", set())
        for status in sorted(statuses - {int(one) for one in operation["responses"]}):
            missing.append(f"{route.method} {route.path}: {status}")
        declared = {name.lower() for name in route.headers}
        missing += [f"{route.method} {route.path}: {name}" for name in sorted(headers - declared)]
    assert missing == []


def _served(api: Api) -> list[tuple[Route, Any]]:
    found = []
    for kind in {type(serve.__self__) for _, serve in api._declared()}:  # type: ignore[attr-defined]
        found += list(routes_of(kind.__new__(kind)))
    assert len(found) == len(api.routes) > 100
    return found


def test_every_request_is_in_the_page_about_them(api: Api) -> None:
    page = Path(__file__).parents[3] / "docs/reference/ctl.md"
    rows = [line for line in page.read_text().splitlines() if "`" in line]
    missing = []
    for route in [*api.routes, *[route for route, _ in routes_of(Front.__new__(Front))]]:
        path = re.sub(r"\\{\w+\\}", "[A-Z:_]+", re.escape(route.path))
        if not any(route.method in row and re.search(f"{path}[?`]", row) for row in rows):
            missing.append(f"{route.method} {route.path}")
    assert missing == []


def test_what_doors_refuse_is_told_for_each_route(api: Api) -> None:
    """Who asks, whence, how often, and with how much: whatever is asked for."""
    for path, methods in document(api.routes)["paths"].items():
        for method, operation in methods.items():
            told = operation["responses"]
            wanted = {"400", "401", "403", "413", "414", "421", "429", "431"}
            wanted |= {"415"} if "requestBody" in operation else set()
            assert wanted <= told.keys(), (method, path)


def test_headers_are_parameters_and_a_log_in_is_a_scheme(api: Api) -> None:
    told = document(api.routes)
    found: dict[str, set[str]] = {}
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            for one in operation.get("parameters", ()):
                if one["in"] == "header":
                    found.setdefault(one["name"], set()).add(f"{method} {path}")
    assert found == {
        "Idempotency-Key": {"post /api/v1/publish", "post /api/v1/publish/batch"},
        "If-Match": {"post /api/v1/config/apply"},
        "If-None-Match": {"get /api/v1/config"},
        "Last-Event-ID": {"get /api/v1/events"},
    }
    assert set(HEADERS) == found.keys()
    schemes = told["components"]["securitySchemes"]
    assert told["security"] == [{"token": []}, {"cookie": [], "csrf": []}]
    assert schemes["cookie"]["in"] == "cookie" and schemes["csrf"]["name"] == "X-CSRF-Token"
    assert "ETag" in told["paths"]["/api/v1/config"]["get"]["responses"]["200"]["headers"]
