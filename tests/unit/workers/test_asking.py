"""Workers asked by their supervisor, some of whom do not answer."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.web.test.requesthelper import DummyRequest

from mqttd.admin.doors.server import LocalDoor
from mqttd.admin.http.requests import LOCAL, NOTE, ApiError
from mqttd.config.schema import Config
from mqttd.workers.asking import Answer, Asker, NoAnswer
from mqttd.workers.views import Views


class Workers:
    """Those of a broker: `states` of 1, 2, ...; `asked` are the requests they have not answered."""

    def __init__(self, *states: str) -> None:
        self.reactor = Clock()
        self.config = Config()
        self.count = len(states)
        self.workers = [
            SimpleNamespace(number=number, pid=100 + number, state=state, ready=state != "starting")
            for number, state in enumerate(states, 1)
        ]
        self.warned: list[str] = []
        self.log = SimpleNamespace(
            warn=lambda text, **fields: self.warned.append(text.format(**fields)),
            failure=lambda text, failure, **fields: failure.raiseException(),
        )
        self.asker = Asker(self)  # type: ignore[arg-type]
        self.asked: dict[int, Deferred[Any]] = {}
        self.asker.request = self._request  # type: ignore[method-assign, assignment]

    def _request(self, number: int, *said: object) -> Deferred[Any]:
        self.asked[number] = Deferred()
        return self.asked[number].addCallback(lambda told: _Response(told))


class _Response:
    """A response whose body is there already."""

    code = 200
    length = 0
    phrase = b"OK"

    def __init__(self, told: object) -> None:
        self.data = json.dumps(told).encode()
        self.headers = SimpleNamespace(getRawHeaders=lambda name: None)

    def deliverBody(self, protocol: Any) -> None:
        from twisted.python.failure import Failure
        from twisted.web.client import ResponseDone

        protocol.dataReceived(self.data)
        protocol.connectionLost(Failure(ResponseDone()))


def ask() -> Any:
    request: Any = DummyRequest([b""])
    request.uri = b"/api/v1/status"
    request.content = SimpleNamespace(seek=lambda at: None, read=bytes)
    return SimpleNamespace(request=request, caller=LOCAL)


def note(asked: Any) -> str | None:
    found = asked.request.responseHeaders.getRawHeaders(NOTE)
    return found[0].decode() if found else None


def test_who_gives_no_sign_of_life_is_left_out_and_named() -> None:
    workers = Workers("running", "running", "starting")
    asked = ask()
    shown: Deferred[list[Answer]] = workers.asker.shown(asked)
    workers.asked[1].callback({"here": 1})
    workers.reactor.pump([0.5] * 20)  # it may be long in coming
    assert not shown.called
    workers.workers[1].state = "silent"
    workers.reactor.pump([0.5])
    found: list[list[Answer]] = []
    shown.addCallback(found.append)
    assert [each.worker for each in found[0]] == [1]
    assert note(asked) == "workers 2, 3 do not answer, and are left out"
    assert asked.missing == [
        {"worker": 2, "reason": "it gives no sign of life"},
        {"worker": 3, "reason": "it is being started"},
    ]
    assert workers.warned == ["worker 2 did not answer /api/v1/status: it gives no sign of life"]
    assert not workers.reactor.getDelayedCalls()


def test_nothing_is_noted_where_all_answer() -> None:
    workers = Workers("running", "running")
    asked = ask()
    shown = workers.asker.shown(asked)
    for each in workers.asked.values():
        each.callback({})
    assert shown.called and note(asked) is None and asked.missing == []


def test_where_nobody_answers_it_is_said_who_is_away() -> None:
    with pytest.raises(NoAnswer, match="worker 1 is being started"):
        Workers("starting", "starting").asker.there()


def test_one_that_answers_is_asked_before_one_that_is_silent() -> None:
    assert Workers("silent", "running").asker.anyone() == 2
    assert Workers("silent", "starting").asker.anyone() == 1


def status_of(workers: Workers, said: dict[int, Any]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    views = Views(workers.asker)
    Deferred.fromCoroutine(views.status(ask())).addCallback(found.append)
    for number, told in said.items():
        workers.asked[number].callback(told)
    workers.reactor.pump([0.5])
    return found[0]


def test_the_status_has_a_line_for_who_does_not_answer() -> None:
    stats = {"connections": 2, "sessions": 3, "subscriptions": 4}
    said = {"uptime": 9, "listeners": [], "stats": stats}
    found = status_of(Workers("running", "silent"), {1: said})
    assert found["stats"]["sessions"] == 3
    assert [(one["worker"], one["state"], one["sessions"]) for one in found["workers"]] == [
        (1, "running", 3),
        (2, "silent", None),
    ]


def test_the_status_is_there_while_all_are_started() -> None:
    found = status_of(Workers("starting", "starting"), {})
    assert [one["state"] for one in found["workers"]] == ["starting", "starting"]
    assert found["name"] and found["stats"] == {}


def test_who_asks_a_worker_itself_is_told_so() -> None:
    resource: Any = SimpleNamespace(render=lambda request: b"")
    for behind, header, wanted in (
        (True, None, True),
        (True, b"a viewer", False),
        (False, None, False),
    ):
        request: Any = DummyRequest([b""])
        if header:
            request.requestHeaders.setRawHeaders(b"x-mqttd-caller", [header])
        LocalDoor(resource, behind).render(request)
        said = request.responseHeaders.getRawHeaders(NOTE)
        assert bool(said) is wanted
        assert not said or b"admin.socket" in said[0]


def test_a_refusal_of_one_is_that_of_all() -> None:
    workers = Workers("running", "running")
    shown = workers.asker.shown(ask())
    failed: list[Any] = []
    shown.addErrback(failed.append)
    workers.asked[1].errback(ApiError(400, "bad_request", "no"))
    workers.asked[2].callback({})
    assert failed[0].value.status == 400
