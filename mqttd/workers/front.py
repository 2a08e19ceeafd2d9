"""The HTTP interface of a broker of several workers: the same routes, each with who answers it.

    mqttd-ctl --> socket ---.               .--> the supervisor: log-ins, audit, log
    programs --> TCP --------+--> Front ----+--> one worker, the owner's, or every one
    browsers --> page ------'    (rules)    |--> a view: their answers put together
                                            '--> what a plugin serves: as it comes (`passing`)

Routes, roles, rates and what a request may hold are those of one process (`mqttd.admin.api`); who
answers says `mqttd.workers.rules`. A route without a rule is refused with 501.

Promise: who is not allowed to ask reaches no worker; each change is in one audit.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import quote

from msgspec import Struct
from twisted.internet.defer import Deferred

from mqttd.admin.api import Api
from mqttd.admin.doors.streams import Streams
from mqttd.admin.http.parts import Desk
from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask, Route, get
from mqttd.admin.resources.events import wanted_of
from mqttd.config.schema import Config
from mqttd.workers.answers import ANSWERS
from mqttd.workers.asking import Asker, Workers, accepted
from mqttd.workers.configuring import Configuring
from mqttd.workers.copying import Copying
from mqttd.workers.draining import Draining
from mqttd.workers.feeds import Feeds
from mqttd.workers.passing import Passing
from mqttd.workers.rules import rule_of
from mqttd.workers.views import Views

__all__ = ["Front"]

Serve = Callable[[Ask], Coroutine[Any, Any, Any]]


class WorkerView(Struct):
    """One worker process."""

    worker: int
    pid: int | None
    state: str
    #: How often it was started.
    starts: int


class WorkerList(Struct):
    """The workers of a broker."""

    workers: list[WorkerView]


class Supervising(Workers, Protocol):
    """Who has the workers, the doors and the log."""

    config: Config

    def warned(self) -> list[str]:
        """What the configuration, as it is in its file, would do to the doors."""

    def applied(self) -> list[str]:
        """The workers have applied another configuration; returns what is to be said of it."""

    def drained(self) -> object:
        """Nobody is left of a drain that is to be the end."""


class Front(Api):
    """The interface of the workers of `service`; `desk` has who may use it."""

    def __init__(self, service: Supervising, desk: Desk) -> None:
        self.service = service
        self.asker = Asker(service)
        self.feeds = Feeds(self.asker)
        self._streams: Streams | None = None
        self.draining = Draining(self.asker, service.drained)
        self._rules: tuple[object, ...] = (
            Views(self.asker, lambda: self.draining.wanted is not None),
            self.draining,
            Configuring(
                self.asker,
                lambda: service.config,
                service.applied,
                lambda: desk.logging,
                service.warned,
            ),
            Copying(self.asker, desk.in_thread),
            self,
        )
        super().__init__(desk, service.reactor.seconds)
        rule = "/api/v1/workers/<string:worker>/plugins/<string:name>/<string:path>"
        self.add_pages(rule, "worker_plugin", self._page_of_worker)

    def served(self, route: Route, serve: Callable[[Ask], Any]) -> Callable[[Ask], Any]:
        """What serves a route: its resource here, or its rule."""
        rule = rule_of(route)
        if rule == "here":
            return serve
        for rules in self._rules:
            asked = getattr(rules, rule or "refused", None)
            if asked is not None:
                return _begun(asked)
        raise LookupError(f"{route.method} {route.path}: there is no rule {rule!r}")

    def offered(self, route: Route) -> Route:
        """A route with what is answered and refused because there are workers."""
        rule = rule_of(route)
        if rule == "here":
            return route
        errors = (502, 503) if any(hasattr(one, rule or "") for one in self._rules) else (501,)
        answer = ANSWERS.get(f"{route.method} {route.path}", route.answer)
        return replace(route, answer=answer, errors=(*route.errors, *errors))

    # -- rules of our own ----------------------------------------------------------------------

    async def refused(self, ask: Ask) -> bytes:
        """What the answer of one worker would not be the broker's for."""
        path = ask.request.path.decode("ascii", "replace")
        method = ask.request.method.decode("ascii", "replace")
        text = f"{method} {path} is not possible with node.workers above 1 yet"
        raise ApiError(501, "not_implemented", text)

    async def events(self, ask: Ask) -> Any:
        """The events of all workers, as they happen."""
        kinds, after = wanted_of(ask)
        if self._streams is None:
            self._streams = Streams(self.feeds.feed, self.service.reactor)
        return await self._streams.open(ask, kinds, after)

    # -- what plugins serve --------------------------------------------------------------------

    def plugin_page(self, request: Any, name: str, path: str) -> Any:
        """What a plugin serves itself, of the worker whose answer it is."""
        return Deferred.fromCoroutine(self._plugin_page(request, name, path))

    async def _plugin_page(self, request: Any, name: str, path: str) -> Passing:
        first = self.asker.anyone()
        about = f"/api/v1/plugins/{quote(name, safe='')}"
        # Our own question: who may read the event log alone may not ask that.
        told = accepted(await self.asker.tell(first, "GET", about)).json()
        registered = told.get("registered", {})
        if told["workers"] == "one":
            first = 1
        elif path in registered.get("routes", ()) and path not in registered["alike"]:
            text = (
                f"each worker has its own {path!r} of plugin {name!r}: ask for"
                f" /api/v1/workers/N/plugins/{name}/{path}, N from 1 to {self.service.count}"
            )
            raise ApiError(400, "name_a_worker", text)
        return Passing(self.asker, first, request.uri.decode("ascii"))

    def _page_of_worker(self, request: Any, worker: str, name: str, path: str) -> Passing:
        """The same of the worker that is named."""
        # The path below the worker is the one that the worker knows.
        rest = b"/" + request.path.split(b"/", 5)[5]
        self.page_admitted(request, b"/api/v1" + rest, path)
        number = int(worker) if worker.isascii() and worker.isdigit() else 0
        if not 1 <= number <= self.service.count:
            text = f"no worker {worker!r}: there are 1 to {self.service.count}"
            raise ApiError(404, "not_found", text)
        _, question, query = request.uri.partition(b"?")
        target = b"/api/v1" + rest + question + query
        return Passing(self.asker, number, target.decode("ascii"))

    # -- who there is --------------------------------------------------------------------------

    @get("/workers", answer=WorkerList)
    def workers(self, ask: Ask) -> WorkerList:
        """The workers of this broker, and how often each was started."""
        return WorkerList(
            [
                WorkerView(
                    worker.number,
                    worker.pid or None,
                    worker.state,
                    worker.starts,
                )
                for worker in self.service.workers
            ]
        )


def _begun(asked: Serve) -> Callable[[Ask], Deferred[Any]]:
    return lambda ask: Deferred.fromCoroutine(asked(ask))
