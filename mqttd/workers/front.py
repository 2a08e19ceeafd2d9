"""The HTTP interface of a broker of several workers: each request to the worker it is about.

    mqttd-ctl --> data/mqttd.sock --> Front --> data/worker-K/mqttd.sock    one, the owner's
                                        |-----> every worker, answers added up
                                        '-----> every worker, for what all of them have to do

`_RULES` says for each path who is asked. What is not in it is refused with 501 and says so, because
the answer of one worker would pass for the broker's.

Promise: lists go worker by worker and show which it is (`worker`); a worker that is being started
again is left out of sums, and what only it can say is refused with 503.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, quote, unquote, urlencode

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.client import Agent, FileBodyProducer, readBody
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from twisted.web.resource import IResource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from mqttd.admin.health import exposition
from mqttd.admin.requests import ApiError, answer, refusal
from mqttd.workers.place import worker_of
from mqttd.workers.process import WorkerProcess
from mqttd.workers.sums import add_up, counted, listeners_of, status_of

__all__ = ["Front"]

Json = dict[str, Any]

_PREFIX: Final = "/api/v1"
#: Who is asked: by method and the path's first words. The longest that fits decides.
_RULES: Final[dict[tuple[str, str], str]] = {
    ("GET", "/status"): "status",
    ("GET", "/nodes"): "nodes",
    ("GET", "/workers"): "workers",
    ("GET", "/metrics"): "metrics",
    ("GET", "/listeners"): "listeners",
    ("POST", "/listeners/reload"): "all",
    ("POST", "/listeners/certificates/reload"): "all",
    ("GET", "/clients"): "list",
    ("GET", "/clients/"): "owner",
    ("DELETE", "/clients/"): "owner",
    ("GET", "/sessions"): "list",
    ("GET", "/sessions/"): "owner",
    ("DELETE", "/sessions/"): "owner",
    ("GET", "/subscriptions"): "list",
    ("POST", "/subscriptions"): "owner",
    ("DELETE", "/subscriptions"): "owner",
    ("GET", "/topics"): "list",
    ("GET", "/alarms"): "list",
    ("GET", "/retained"): "one",
    ("GET", "/retained/"): "one",
    ("DELETE", "/retained"): "one",
    ("POST", "/publish"): "one",
    ("POST", "/publish/batch"): "one",
    ("GET", "/bans"): "one",
    ("POST", "/bans"): "one",
    ("DELETE", "/bans"): "one",
    ("GET", "/auth"): "one",
    ("POST", "/auth/reload"): "all",
    ("GET", "/acl/rules"): "one",
    ("GET", "/acl/explain"): "one",
    ("GET", "/acl/who"): "one",
    ("GET", "/acl/lint"): "one",
    ("POST", "/acl/diff"): "one",
    ("POST", "/acl/reload"): "all",
    ("GET", "/log"): "one",
    ("POST", "/log/level"): "all",
    ("GET", "/config"): "one",
    ("POST", "/config/validate"): "one",
    ("POST", "/config/plan"): "one",
    ("GET", "/hooks"): "one",
    ("GET", "/plugins"): "one",
    ("GET", "/openapi.json"): "one",
}


class Workers(Protocol):
    """Who has the workers."""

    workers: list[WorkerProcess]
    count: int
    opened: bool
    reactor: Any
    log: Logger

    def socket_of(self, number: int) -> str:
        """The admin socket of a worker."""


class _NotThere(ApiError):
    """A worker is being started again."""

    def __init__(self, number: int) -> None:
        super().__init__(503, "unavailable", f"worker {number} is being started")


@implementer(IAgentEndpointFactory)
class _Socket:
    """Connects to a worker's admin socket, whatever the address says."""

    def __init__(self, reactor: Any, path: str) -> None:
        self.reactor = reactor
        self.path = path

    def endpointForURI(self, uri: Any) -> UNIXClientEndpoint:
        """See `IAgentEndpointFactory`."""
        return UNIXClientEndpoint(self.reactor, self.path)


class Answer:
    """What a worker has answered."""

    def __init__(self, worker: int, status: int, media: str, body: bytes) -> None:
        self.worker = worker
        self.status = status
        self.media = media
        self.body = body

    def json(self) -> Json:
        """The object in it."""
        found: Json = json.loads(self.body)
        return found


@implementer(IResource)
class Front:
    """Serves the interface for the workers of `service`."""

    isLeaf = True

    def __init__(self, service: Workers) -> None:
        self.service = service
        self._serve: dict[str, Callable[[Any, str], Coroutine[Any, Any, bytes]]] = {
            "status": self._status,
            "nodes": self._nodes,
            "workers": self._workers,
            "metrics": self._metrics,
            "listeners": self._listeners,
            "list": self._list,
            "owner": self._owner,
            "one": self._one,
            "all": self._all,
        }

    def getChildWithDefault(self, name: bytes, request: Any) -> Any:
        """A leaf has none."""
        return self

    def putChild(self, path: bytes, child: Any) -> None:
        """A leaf takes none."""
        raise TypeError("a leaf")

    def render(self, request: Any) -> Any:
        """Answer a request, when the workers have."""
        gone: list[object] = []
        request.notifyFinish().addErrback(gone.append)

        def done(body: bytes) -> None:
            if not gone:
                request.write(body)
                request.finish()

        Deferred.fromCoroutine(self._answer(request)).addErrback(
            lambda failure: _refused(self.service, request, failure)
        ).addCallback(done)
        return NOT_DONE_YET

    async def _answer(self, request: Any) -> bytes:
        path = request.path.decode("ascii", "replace")
        method = "GET" if request.method == b"HEAD" else request.method.decode("ascii", "replace")
        if path == "/health/live":
            return answer(request, {"live": True})
        if path == "/health/ready":
            ready = self.service.opened and all(worker.ready for worker in self.service.workers)
            return answer(request, {"ready": ready}, 200 if ready else 503)
        if path == "/metrics":
            return await self._exposition(request)
        below = path.removeprefix(_PREFIX)
        rule = _RULES.get((method, below))
        words = below.split("/")
        if rule is None and len(words) > 2:
            rule = _RULES.get((method, f"/{words[1]}/"))
        if rule is None or below == path:
            text = f"{method} {path} is not possible with node.workers above 1 yet"
            raise ApiError(501, "not_implemented", text)
        return await self._serve[rule](request, below)

    # -- who is asked --------------------------------------------------------------------------

    def _there(self) -> list[int]:
        return [worker.number for worker in self.service.workers if worker.ready]

    def _ask(self, number: int, request: Any, target: str, body: bytes = b"") -> Deferred[Answer]:
        """Ask a worker what was asked here, below `target`."""
        reactor = self.service.reactor
        if not self.service.workers[number - 1].ready:
            raise _NotThere(number)
        agent = Agent.usingEndpointFactory(
            reactor, _Socket(reactor, self.service.socket_of(number))
        )
        headers = Headers({"content-type": ["application/json"]})
        method = b"GET" if request.method == b"HEAD" else request.method
        producer = None
        if body:
            producer = FileBodyProducer(io.BytesIO(body))
        asked: Deferred[Any] = agent.request(
            method, b"http://worker" + target.encode(), headers, producer
        )

        def read(response: Any) -> Any:
            media = (response.headers.getRawHeaders("content-type") or ["application/json"])[0]
            return readBody(response).addCallback(
                lambda data: Answer(number, response.code, media, data)
            )

        return asked.addCallback(read)

    async def _ask_all(self, request: Any, target: str, body: bytes = b"") -> list[Answer]:
        """What every worker that is there answers; a refusal of one is the broker's."""
        there = self._there()
        if not there:
            raise _NotThere(1)
        answers: list[Answer] = await gatherResults(
            [self._ask(number, request, target, body) for number in there], consumeErrors=True
        )
        for each in answers:
            if each.status >= 400:
                raise _Refused(each)
        return answers

    # -- rules ---------------------------------------------------------------------------------

    async def _status(self, request: Any, below: str) -> bytes:
        answers = [each.json() for each in await self._ask_all(request, _PREFIX + "/status")]
        found = status_of(answers, self._numbers(), os.getpid())
        return answer(request, found)

    async def _nodes(self, request: Any, below: str) -> bytes:
        answers = [each.json() for each in await self._ask_all(request, _PREFIX + "/nodes")]
        node = answers[0]["nodes"][0]
        for each in answers[1:]:
            for name in ("connections", "sessions"):
                node[name] += each["nodes"][0][name]
        return answer(request, {"nodes": [node]})

    async def _workers(self, request: Any, below: str) -> bytes:
        workers = [
            {
                "worker": worker.number,
                "pid": worker.pid or None,
                "state": "running" if worker.ready else "starting",
                "starts": worker.starts,
            }
            for worker in self.service.workers
        ]
        return answer(request, {"workers": workers})

    async def _metrics(self, request: Any, below: str) -> bytes:
        counters, gauges = await self._figures(request)
        return answer(request, {"counters": counters, "gauges": gauges})

    async def _exposition(self, request: Any) -> bytes:
        counters, gauges = await self._figures(request)
        request.setHeader(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
        return exposition(counters, gauges).encode()

    async def _figures(self, request: Any) -> tuple[Json, Json]:
        answers = [each.json() for each in await self._ask_all(request, _PREFIX + "/metrics")]
        counters = counted([each["counters"] for each in answers])
        return counters, add_up([each["gauges"] for each in answers])

    async def _listeners(self, request: Any, below: str) -> bytes:
        answers = [each.json() for each in await self._ask_all(request, _PREFIX + "/listeners")]
        return answer(request, {"listeners": listeners_of([a["listeners"] for a in answers])})

    async def _list(self, request: Any, below: str) -> bytes:
        """A page of a list: of one worker, then of the next."""
        query = {name: values[0] for name, values in _query(request).items()}
        if query.get("sort", "client_id") != "client_id":
            raise ApiError(501, "not_implemented", "sort is not possible with node.workers above 1")
        if "client_id" in query:
            return await self._owner(request, below)
        there = self._there()
        number, cursor = _place(query.pop("cursor", None))
        at = next((each for each in there if each >= number), None)
        if at is None:
            raise _NotThere(number)
        if cursor is not None and at == number:
            query["cursor"] = cursor
        target = f"{_PREFIX}{below}" + (f"?{urlencode(query)}" if query else "")
        found = await self._ask(at, request, target)
        if found.status >= 400:
            raise _Refused(found)
        page = found.json()
        for entries in page.values():
            if isinstance(entries, list):
                for entry in entries:
                    if isinstance(entry, dict):
                        entry["worker"] = at
        if "cursor" not in page:
            return await self._whole_list(request, target, page, there, at)
        after = next((each for each in there if each > at), None)
        if page["cursor"] is not None:
            page["cursor"] = _cursor(at, page["cursor"])
        elif after is not None:
            page["cursor"] = _cursor(after, None)
        return answer(request, page)

    async def _whole_list(
        self, request: Any, target: str, page: Json, there: list[int], at: int
    ) -> bytes:
        """A list without pages: of all workers at once."""
        for number in there:
            if number == at:
                continue
            more = (await self._ask(number, request, target)).json()
            for name, entries in more.items():
                if isinstance(entries, list):
                    page[name] += [{**entry, "worker": number} for entry in entries]
        return answer(request, page)

    async def _owner(self, request: Any, below: str) -> bytes:
        """What is about one client: its worker."""
        body = request.content.read()
        words = below.split("/", 2)
        if len(words) > 2:
            client_id = unquote(words[2])
        else:
            found = _query(request).get("client_id")
            try:
                client_id = found[0] if found else str(json.loads(body)["client_id"])
            except (ValueError, KeyError, TypeError):
                raise ApiError(400, "bad_request", "client_id is missing") from None
        number = worker_of(client_id, self.service.count)
        said = await self._ask(number, request, request.uri.decode("ascii"), body)
        return self._pass(request, said, True)

    async def _one(self, request: Any, below: str) -> bytes:
        """What every worker would answer the same."""
        there = self._there()
        if not there:
            raise _NotThere(1)
        body = request.content.read()
        said = await self._ask(there[0], request, request.uri.decode("ascii"), body)
        return self._pass(request, said, False)

    async def _all(self, request: Any, below: str) -> bytes:
        """What every worker has to do."""
        body = request.content.read()
        missing = set(range(1, self.service.count + 1)) - set(self._there())
        if missing:
            raise _NotThere(min(missing))
        answers = await self._ask_all(request, request.uri.decode("ascii"), body)
        return self._pass(request, answers[0], False)

    def _pass(self, request: Any, said: Answer, named: bool) -> bytes:
        request.setResponseCode(said.status)
        request.setHeader(b"content-type", said.media.encode())
        request.setHeader(b"cache-control", b"no-store")
        if named and said.status < 400:
            found = said.json()
            for entries in found.values():
                if isinstance(entries, list):
                    for entry in entries:
                        if isinstance(entry, dict):
                            entry["worker"] = said.worker
            found.setdefault("worker", said.worker)
            return json.dumps(found).encode() + b"\n"
        return said.body

    def _numbers(self) -> dict[int, int]:
        return {worker.pid: worker.number for worker in self.service.workers}


class _Refused(Exception):
    """A worker has refused."""

    def __init__(self, said: Answer) -> None:
        super().__init__()
        self.said = said


def _refused(service: Workers, request: Any, failure: Failure) -> bytes:
    error = failure.value
    if isinstance(error, _Refused):
        request.setResponseCode(error.said.status)
        request.setHeader(b"content-type", error.said.media.encode())
        return error.said.body
    if isinstance(error, ApiError):
        return refusal(request, error.status, error.code, error.message)
    service.log.failure("API request {path} failed", failure, path=request.path.decode("latin-1"))
    return refusal(request, 502, "bad_gateway", "a worker did not answer; see the broker's log")


def _query(request: Any) -> dict[str, list[str]]:
    _, _, query = request.uri.decode("ascii", "replace").partition("?")
    return parse_qs(query, keep_blank_values=True)


def _cursor(number: int, cursor: str | None) -> str:
    text = json.dumps([number, cursor])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _place(cursor: str | None) -> tuple[int, str | None]:
    """Worker and its own cursor of a page that goes on; the first worker without one."""
    if cursor is None:
        return 1, None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        number, own = json.loads(base64.urlsafe_b64decode(padded))
        return int(number), None if own is None else str(own)
    except (ValueError, TypeError):
        text = f"cursor = {quote(cursor)[:80]!r}: expected one of an answer to this list"
        raise ApiError(400, "bad_request", text) from None
