"""What the pull endpoint refuses, and what it makes of a reader's place; no network."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.web.test.requesthelper import DummyRequest

from mqttd.pipeline.endpoint import LogResource
from mqttd.pipeline.log import groups
from mqttd.pipeline.log.reader import LogReader
from tests.unit.pipeline.logs import NODE, written


def at_once(work: Callable[[], Any]) -> Deferred[Any]:
    return maybeDeferred(work)


class Door:
    """The endpoint of a log of thirty events."""

    def __init__(self, path: Path) -> None:
        self.path = written(path, 3)
        self.log = LogReader(str(self.path)).log_id
        self.resource = LogResource(str(self.path), at_once)

    def ask(self, method: str, name: str, body: Any = None, **args: str) -> tuple[int, Any]:
        request = DummyRequest([name.encode()])
        request.method = method.encode()
        request.args = {key.encode(): [value.encode()] for key, value in args.items()}
        request.content = BytesIO(json.dumps(body).encode())
        answer = self.resource.render(request)
        data = answer if isinstance(answer, bytes) else b"".join(request.written)
        return request.responseCode or 200, json.loads(data)

    def progress(self, **nodes: Any) -> tuple[int, Any]:
        return self.ask("POST", "progress", {"group": "g", "log": self.log, "nodes": nodes})


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def test_a_parameter_that_is_not_known_is_refused_as_everywhere(door: Door) -> None:
    status, problem = door.ask("GET", "bounds", x="1")
    assert status == 400 and problem == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "code": "bad_request",
        "detail": "bounds takes no 'x'",
    }
    assert door.ask("GET", "blocks", node=NODE, start="0", end="1", evil="1")[0] == 400


def test_nobody_has_read_what_is_not_there(door: Door) -> None:
    assert door.progress(**{NODE: 10**30}) == (200, {})
    assert groups.groups(str(door.path))["g"]["nodes"] == {NODE: 30}
    assert door.progress(**{NODE: 12})[0] == 200
    assert groups.groups(str(door.path))["g"]["nodes"] == {NODE: 12}


@pytest.mark.parametrize("node", ["../x", "", "a/b"])
def test_a_node_is_a_name(door: Door, node: str) -> None:
    assert door.progress(**{node: 1})[0] == 400


def test_groups_are_so_many(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may keep the log from being deleted."""
    monkeypatch.setattr(groups, "MOST", 3)
    body = {"log": door.log, "nodes": {NODE: 1}}
    asked = [door.ask("POST", "progress", {**body, "group": f"g{n}"})[0] for n in range(5)]
    assert asked == [200, 200, 200, 400, 400]
    assert door.ask("POST", "progress", {**body, "group": "g1"})[0] == 200
