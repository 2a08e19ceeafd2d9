"""The HTTP interface of a broker of several workers: the same routes, each with who answers it.

    mqttd-ctl --> socket ---.               .--> the supervisor: log-ins, audit, log
    programs --> TCP --------+--> Front ----+--> one worker, the owner's, or every one
    browsers --> page ------'    (rules)    '--> a view: their answers put together

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
from mqttd.admin.parts import Desk
from mqttd.admin.requests import ApiError, caller_of
from mqttd.admin.resources.events import wanted_of
from mqttd.admin.route import Ask, Route, get
from mqttd.admin.streams import Streams
from mqttd.config.schema import Config
from mqttd.workers.asking import Asker, Workers, accepted
from mqttd.workers.configuring import Configuring
from mqttd.workers.copying import Copying
from mqttd.workers.draining import Draining
from mqttd.workers.feeds import Feeds
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

    def documented(self, route: Route) -> Route:
        """A route with what is refused because there are workers."""
        rule = rule_of(route)
        if rule == "here":
            return route
        errors = (502, 503) if any(hasattr(one, rule or "") for one in self._rules) else (501,)
        return replace(route, errors=(*route.errors, *errors))

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

    def plugin_page(self, request: Any, name: str, path: str) -> Any:
        """What a plugin serves itself, where one worker alone has it."""
        return Deferred.fromCoroutine(self._plugin_page(request, name))

    async def _plugin_page(self, request: Any, name: str) -> bytes:
        caller = caller_of(request)
        about = f"/api/v1/plugins/{quote(name, safe='')}"
        told = accepted(await self.asker.tell(1, "GET", about, b"", caller)).json()
        if told["workers"] != "one":
            text = f"what plugin {name!r} serves is not reached with node.workers above 1 yet"
            raise ApiError(501, "not_implemented", text)
        method, uri = request.method.decode("ascii"), request.uri.decode("ascii")
        said = await self.asker.tell(1, method, uri, request.content.read(), caller)
        request.setResponseCode(said.status)
        request.setHeader(b"content-type", said.media.encode())
        return said.body

    @get("/workers", answer=WorkerList)
    def workers(self, ask: Ask) -> WorkerList:
        """The workers of this broker, and how often each was started."""
        return WorkerList(
            [
                WorkerView(
                    worker.number,
                    worker.pid or None,
                    "running" if worker.ready else "starting",
                    worker.starts,
                )
                for worker in self.service.workers
            ]
        )


def _begun(asked: Serve) -> Callable[[Ask], Deferred[Any]]:
    return lambda ask: Deferred.fromCoroutine(asked(ask))
