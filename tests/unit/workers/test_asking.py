"""Workers asked by their supervisor, some of whom do not answer."""

from __future__ import annotations

import json
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.web.http_headers import Headers
from twisted.web.test.requesthelper import DummyRequest

from mqttd.admin.doors.server import LocalDoor
from mqttd.admin.http.requests import LOCAL, NOTE, ApiError
from mqttd.config.schema import Config
from mqttd.workers.asking import Answer, Asker, NoAnswer
from mqttd.workers.passing import Passing
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


class Passed:
    """A request that is passed on to worker 1 of `workers`."""

    def __init__(self, workers: Workers, method: bytes = b"GET") -> None:
        self.asked: Deferred[Any] = Deferred()
        workers.asker.send = lambda *said: self.asked  # type: ignore[method-assign]
        self.workers = workers
        self.request: Any = DummyRequest([b""])
        self.request.method = method
        self.request.content = BytesIO()
        self.request.mqttd_caller = LOCAL
        self.request.registerProducer = lambda producer, push: None
        self.request.broken = False
        self.request.loseConnection = lambda: setattr(self.request, "broken", True)
        Passing(workers.asker, 1, "/api/v1/plugins/spark/log/blocks").render(self.request)

    def is_silent(self) -> None:
        self.workers.workers[0].state = "silent"
        self.workers.reactor.advance(0.5)

    def begin(self) -> Any:
        """The answer begins; its connection."""
        delivered: list[Any] = []
        headers = Headers()
        self.asked.callback(
            SimpleNamespace(
                code=200, phrase=b"OK", length=10, headers=headers, deliverBody=delivered.append
            )  # fmt: skip
        )
        (body,) = delivered
        transport = SimpleNamespace(aborted=False)

        def abort() -> None:
            transport.aborted = True
            body.connectionLost(Failure(ConnectionAborted()))

        transport.loseConnection = abort
        body.makeConnection(transport)
        body.dataReceived(b"12345")
        return transport


def test_what_is_passed_on_is_not_waited_for_without_a_sign_of_life() -> None:
    passed = Passed(Workers("running"))
    passed.workers.reactor.advance(600)
    assert not passed.request.finished  # it may be long in coming
    passed.is_silent()
    assert passed.request.responseCode == 502 and passed.request.finished
    told = json.loads(b"".join(passed.request.written))
    assert told["detail"] == "worker 1 did not answer: it gives no sign of life"
    assert passed.workers.warned and not passed.workers.reactor.getDelayedCalls()


def test_an_answer_that_is_passed_on_is_broken_off_without_a_sign_of_life() -> None:
    passed = Passed(Workers("running"))
    transport = passed.begin()
    passed.is_silent()
    assert transport.aborted and passed.request.broken and not passed.request.finished
    passed.request.processingFailed(Failure(ConnectionAborted()))
    assert not passed.workers.reactor.getDelayedCalls()


def test_an_answer_that_was_passed_on_is_watched_no_more() -> None:
    passed = Passed(Workers("running"))
    passed.begin()
    passed.request.finish()
    assert not passed.workers.reactor.getDelayedCalls()


def test_what_changes_something_is_waited_for() -> None:
    passed = Passed(Workers("running"), b"POST")
    passed.is_silent()
    assert not passed.request.finished and not passed.request.responseCode
