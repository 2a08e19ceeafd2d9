"""What the pull endpoint refuses, and what it makes of a reader's place; no network."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.web.test.requesthelper import DummyRequest

from mqttd.admin.http.requests import EVENTS, Caller, set_caller
from mqttd.pipeline.endpoint import LogResource
from mqttd.pipeline.log import groups, tools
from mqttd.pipeline.log.blocks import encode_gap
from mqttd.pipeline.log.reader import LogReader
from mqttd.pipeline.log.writer import Encoded, Writer
from tests.unit.pipeline.logs import NODE, START, fill, written


def at_once(work: Callable[[], Any]) -> Deferred[Any]:
    return maybeDeferred(work)


class Door:
    """The endpoint of a log of thirty events."""

    def __init__(self, path: Path) -> None:
        self.path = written(path, 3)
        self.log = LogReader(str(self.path)).log_id
        self.resource = LogResource(str(self.path), at_once)

    def ask(
        self, method: str, name: str, body: Any = None, who: str = "", **args: str
    ) -> tuple[int, Any]:
        request = DummyRequest([name.encode()])
        if who:
            set_caller(request, Caller(who, EVENTS))
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


def test_a_group_is_behind_by_what_is_there_and_not_by_gaps(tmp_path: Path) -> None:
    door = Door(tmp_path)
    writer = Writer(str(tmp_path), NODE)
    writer.write([Encoded(30, 1000, encode_gap(30, 1000, START, "queue full"))])
    fill(writer, 1)
    writer.close()
    other = Writer(str(tmp_path), "other")
    fill(other, 1)
    other.close()
    for at, behind in ((0, 50), (12, 38), (500, 20), (1030, 20), (1035, 15)):
        assert door.progress(**{NODE: at})[0] == 200
        (group,) = door.ask("GET", "state")[1]["groups"]
        assert group["lag"] == behind
        out = StringIO()
        tools.run(Namespace(events_command="info"), str(tmp_path), out)
        assert f"{behind} behind" in out.getvalue()
    assert door.progress(**{NODE: 1040, "other": 10})[0] == 200
    assert door.ask("GET", "state")[1]["groups"][0]["lag"] == 0
    groups.commit_group(str(tmp_path), "g", door.log, {NODE: 1030, "other": 10}, stopped=True)
    assert door.ask("GET", "state")[1]["groups"][0]["lag"] is None  # it does not read


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


def test_one_token_leaves_others_as_many_places_as_it_takes(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MOST", 8)
    body = {"log": door.log, "nodes": {NODE: 1}}

    def comes(who: str, group: str) -> int:
        return door.ask("POST", "progress", {**body, "group": group}, who)[0]

    assert [comes("a", f"a{n}") for n in range(6)] == [200] * 4 + [400] * 2
    assert [comes("b", f"b{n}") for n in range(3)] == [200] * 2 + [400]
    assert comes("a", "a3") == 200  # who has a place keeps it
    assert comes("", "by-path") == 200
    status, told = door.ask("POST", "progress", {**body, "group": "a9"}, "a")
    assert status == 400 and "a has 4 readers of 7 already, of 8 in all" in told["detail"]


@pytest.mark.parametrize(("ago", "now"), [(300, True), (700, False), (-7200, False)])
def test_whether_a_group_reads_is_told_alike(
    door: Door, monkeypatch: pytest.MonkeyPatch, ago: float, now: bool
) -> None:
    """A batch may take minutes, in which nothing is heard; and clocks are set back."""
    assert door.progress(**{NODE: 12})[0] == 200
    clock = time.time() + ago
    monkeypatch.setattr(time, "time", lambda: clock)
    assert door.ask("GET", "state")[1]["groups"][0]["lag"] == (18 if now else None)
    out = StringIO()
    tools.run(Namespace(events_command="info"), str(door.path), out)
    assert ("18 behind" in out.getvalue()) is now
    assert ("not heard of since" in out.getvalue()) is not now
