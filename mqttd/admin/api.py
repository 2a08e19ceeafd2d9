"""The HTTP interface of the broker: what an operator may see and do, as JSON under ``/api/v1``.

    request --Caller--> route (`mqttd.admin.http.route`) --> resource (`mqttd.admin.resources`)
                                                          |-- sees `mqttd.readmodel`
                                                          '-- changes the broker, told to the audit

Each resource declares its routes with what they take and answer; the OpenAPI document
(``/api/v1/openapi.json``) is made of the same declarations. A refusal is a problem by RFC 9457.
Who a caller is was found out before (`mqttd.admin.doors.server`, `mqttd.admin.doors.tcp`); a
request of whom nobody has said so is refused. See docs/reference/ctl.md and docs/design/control.md.

Promise: a page costs what it shows; ids that come and go between pages repeat nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Final, cast

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter, Rule

from mqttd.admin.http.audit import shortened
from mqttd.admin.http.openapi import as_json
from mqttd.admin.http.parts import Desk, Parts
from mqttd.admin.http.rate import Rate
from mqttd.admin.http.rendering import Rendering
from mqttd.admin.http.requests import (
    ADMINISTRATOR,
    CHANGE,
    EVENTS,
    VIEWER,
    ApiError,
    Caller,
    answer,
    caller_of,
    refusal,
)
from mqttd.admin.http.route import Ask, Route, body_of, get, query_of, routes_of
from mqttd.admin.resources.access import Access
from mqttd.admin.resources.api_users import ApiUsers
from mqttd.admin.resources.bans import Bans
from mqttd.admin.resources.clients import Clients
from mqttd.admin.resources.cluster import ClusterResource
from mqttd.admin.resources.drain import DrainResource
from mqttd.admin.resources.events import Events
from mqttd.admin.resources.hooks import Hooks
from mqttd.admin.resources.listeners import Listeners
from mqttd.admin.resources.observing import Observing
from mqttd.admin.resources.plugins import Plugins
from mqttd.admin.resources.publish import Publish
from mqttd.admin.resources.retained import Retained
from mqttd.admin.resources.roles import RolesResource
from mqttd.admin.resources.running import Configuration, Logging, Store
from mqttd.admin.resources.session import Session
from mqttd.admin.resources.status import Status
from mqttd.admin.resources.subscriptions import Subscriptions
from mqttd.admin.resources.topic_rates import TopicRatesResource
from mqttd.admin.resources.users import Users
from mqttd.admin.resources.why import Whys
from mqttd.readmodel.pages import BadWish
from mqttd.types import PluginError

__all__ = ["PULL_PATH", "Api"]

#: What the role `events` reaches, beside the roles above it.
PULL_PATH: Final = b"/api/v1/plugins/spark/log"

_RESOURCES: Final = (
    Status, Clients, Subscriptions, Retained, Publish, Listeners, Plugins, Hooks, Access, Users,
    ApiUsers, Bans, Observing, Logging, Store, Configuration, Events, Session, Whys, RolesResource,
    ClusterResource, DrainResource, TopicRatesResource,
)  # fmt: skip


#: Parameters whose values may hold a `/`.
_ANY_TEXT: Final = ("client_id", "topic", "username", "alarm", "role", "group")


class _AnyText(BaseConverter):
    """The rest of a path whatever it holds: a client id may begin with `/`."""

    regex = ".+"
    part_isolating = False


class _Matched(Rule):
    """A rule that only finds what serves a request. What builds URLs of one is compiled when the
    rule is added, twice each: with all routes that was a tenth of a broker's start.
    """

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        return _no_builder


def _no_builder(*_: object, **__: object) -> tuple[str, str]:
    raise NotImplementedError("no URL is built of this rule")


class Api:
    """The HTTP interface of the broker that `parts` are of; `seconds` is a clock."""

    def __init__(self, parts: Desk, seconds: Callable[[], float] = monotonic) -> None:
        self.parts = parts
        self.rate = Rate(seconds)
        self.log = parts.log
        self.app = Klein()
        self.app.url_map.merge_slashes = False
        self.app.url_map.converters["any_text"] = _AnyText
        self.routes: list[Route] = []
        for route, serve in self._declared():
            self.routes.append(route)
            self._add(route, serve)
        self._document = as_json(tuple(self.routes))
        self.add_pages("/api/v1/plugins/<string:name>/<string:path>", "plugin", self._plugin)

    def resource(self) -> IResource:
        """What a `twisted.web.server.Site` serves, behind one who says who asks."""
        answers: Any = (
            (ApiError, self._refused),
            (BadWish, self._bad_wish),
            (HTTPException, self._no_route),
            (BaseException, self._crashed),
        )
        return cast(IResource, Rendering(self.app, answers))

    @get("/openapi.json", answer=dict[str, Any])
    def openapi(self, ask: Ask) -> bytes:
        """This document."""
        return self._document

    def _declared(self) -> Iterator[tuple[Route, Callable[[Ask], Any]]]:
        for kind in _RESOURCES:
            for route, serve in routes_of(kind(cast(Parts, self.parts))):
                yield self.offered(route), self.served(route, serve)
        yield from routes_of(self)

    def served(self, route: Route, serve: Callable[[Ask], Any]) -> Callable[[Ask], Any]:
        """What serves a route: its resource, unless somebody else answers for it."""
        return serve

    def offered(self, route: Route) -> Route:
        """A route as it is offered: who else answers for it may take more, and refuse otherwise."""
        return route

    def _add(self, route: Route, serve: Callable[[Ask], Any]) -> None:
        rule = route.full_path
        for name in route.parameters:
            kind = "any_text" if name in _ANY_TEXT else "string"
            rule = rule.replace(f"{{{name}}}", f"<{kind}:{name}>")

        def handle(_: object, request: IRequest, **path: str) -> Any:
            return self._serve(route, serve, request, path)

        # What `Klein.route` does, but for the kind of rule.
        cast(Any, handle).segment_count = rule.count("/")
        self.app.endpoints[route.name] = handle
        self.app.url_map.add(_Matched(rule, methods=[route.method], endpoint=route.name))

    def add_pages(self, rule: str, name: str, serve: Callable[..., Any]) -> None:
        """Have a path and all below it served by the resource that `serve` finds."""

        def handle(_: object, request: IRequest, rest: str = "", **path: str) -> Any:
            return serve(request, **path)

        cast(Any, handle).segment_count = rule.count("/")
        self.app.endpoints[name] = handle
        self.app.url_map.add(_Matched(rule, endpoint=name))
        self.app.url_map.add(_Matched(f"{rule}/<path:rest>", endpoint=name))

    # -- one request

    def _serve(
        self, route: Route, serve: Callable[[Ask], Any], request: Any, path: dict[str, str]
    ) -> Any:
        caller = self.admitted(request, route.role) if route.role else _ANYBODY
        if not _is_in_its_words(route, request.path):
            raise ApiError(404, "not_found", f"no {request.path.decode('ascii', 'replace')}")
        ask = Ask(request, caller, route, path, query_of(route, request), body_of(route, request))
        ask.together = self.parts.behind
        result = serve(ask)
        if isinstance(result, Deferred):
            return result.addCallback(lambda found: self._done_late(route, ask, found))
        return self._done(route, ask, result)

    def _done_late(self, route: Route, ask: Ask, found: Any) -> bytes:
        """What took a while is told to who may still see it; a change was made, and says so."""
        if route.method == "GET" and route.role and not ask.may_still({}):
            text = "the log-in, token or role with which this was asked has ended meanwhile"
            raise ApiError(401, "unauthorized", text)
        return self._done(route, ask, found)

    def admitted(self, request: Any, role: str) -> Any:
        """Who asks, if that one may, and has not asked too often."""
        caller = caller_of(request)
        if not caller.may(role):
            text = f"this takes the role {role}, {caller.name} has {caller.role}"
            raise ApiError(403, "forbidden", text)
        if caller.limited and (waiting := self.rate.wait(caller.name)):
            text = f"at most {self.rate.rate:g} requests a second"
            after = {"retry-after": str(max(1, round(waiting)))}
            raise ApiError(429, "too_many_requests", text, after)
        return caller

    def _done(self, route: Route, ask: Ask, found: Any) -> bytes:
        if route.audited and not ask.unchanged:
            self._note(route, ask)
        if isinstance(found, bytes):
            ask.request.setHeader(b"content-type", route.media.encode())
            ask.request.setHeader(b"cache-control", b"no-store")
            return found
        if found is None and ask.status == 304:
            ask.request.setResponseCode(304)
            return b""
        return answer(ask.request, found, ask.status)

    def _note(self, route: Route, ask: Ask) -> None:
        """Tell the audit of a change, or who has asked for its caller."""
        if self.parts.behind:
            told = json.dumps([shortened(ask.before), shortened(ask.after)], ensure_ascii=True)
            ask.request.setHeader(CHANGE, told.encode())
            return
        peer = ask.request.getClientAddress()
        self.parts.audit.put(
            ask.caller.name, ask.caller.role, str(getattr(peer, "host", "") or "socket"),
            route.method, ask.request.path.decode("ascii", "replace"), route.summary,
            ask.before, ask.after,
        )  # fmt: skip

    def _plugin(self, request: Any, name: str, path: str) -> Any:
        """What a plugin serves itself."""
        self.page_admitted(request, request.path, path)
        return self.plugin_page(request, name, path)

    def page_admitted(self, request: Any, full: bytes, path: str) -> None:
        """Raise ApiError unless a plugin's own `path` may be asked for, `full` with all before it.

        It may do anything, so it is for administrators.
        """
        caller = caller_of(request)
        is_log = full == PULL_PATH or full.startswith(PULL_PATH + b"/")
        if not (is_log and caller.role == EVENTS):
            reads = request.method in (b"GET", b"HEAD")
            self.admitted(request, VIEWER if reads else ADMINISTRATOR)
        # The words of the rule; what is below them is the plugin's.
        if _SLASH in b"/".join(full.split(b"/")[:6]).lower():
            raise ApiError(404, "not_found", f"no {request.path.decode('ascii', 'replace')}")
        if path in ("load", "unload", "reload", "commands"):
            method = request.method.decode("ascii", "replace")
            text = f"{request.path.decode('ascii', 'replace')} has no method {method}"
            raise ApiError(405, "method_not_allowed", text, {"allow": "POST"})

    def plugin_page(self, request: Any, name: str, path: str) -> Any:
        """What serves a plugin's own path, for who may ask for it."""
        parts = cast(Parts, self.parts)
        plugins = parts.need(parts.plugins, "there are no plugins")
        try:
            resource = plugins.handle(name).routes.get(path)
        except PluginError as error:
            if plugins.comes(name):
                text = f"plugin {name!r} is not loaded yet: the broker, or the plugin, is starting"
                raise ApiError(503, "unavailable", text, {"retry-after": "1"}) from None
            raise ApiError(404, "not_found", str(error)) from None
        if resource is None:
            raise ApiError(404, "not_found", f"plugin {name!r} serves no {path!r}")
        return resource

    # -- refusals

    def _refused(self, request: IRequest, failure: Failure) -> bytes:
        error = cast(ApiError, failure.value)
        for name, value in error.headers.items():
            request.setHeader(name.encode(), value.encode())
        if error.status == 401:
            request.setHeader(b"www-authenticate", b'Bearer realm="mqttd"')
        return refusal(request, error.status, error.code, error.message)

    def _bad_wish(self, request: IRequest, failure: Failure) -> bytes:
        return refusal(request, 400, "bad_request", str(failure.value))

    def _no_route(self, request: IRequest, failure: Failure) -> bytes:
        """No such path, or a method it has not; who may see nothing is not told which."""
        error: Any = failure.value
        try:
            caller_of(request)
        except ApiError as unknown:
            return refusal(request, unknown.status, unknown.code, unknown.message)
        path = request.path.decode("ascii", "replace")
        if error.code == 405:
            method = request.method.decode("ascii", "replace")
            # A path of its own may look like one with a parameter, too.
            own = {route.method for route in self.routes if route.full_path == path}
            allowed = own or set(error.valid_methods or ())
            request.setHeader(b"allow", ", ".join(sorted(allowed - {"HEAD"})).encode())
            return refusal(request, 405, "method_not_allowed", f"{path} has no method {method}")
        return refusal(request, error.code or 404, "not_found", f"no {path}")

    def _crashed(self, request: IRequest, failure: Failure) -> bytes:
        """A fault of ours: logged, and told without its traceback."""
        path = request.path.decode("latin-1")
        self.log.failure("API request {path} failed", failure, path=path)
        return refusal(request, 500, "internal_error", "internal error; see the broker's log")


def _is_in_its_words(route: Route, path: bytes) -> bool:
    """Whether no `/` of a route stands in a path as `%2F`, where names may not have one."""
    words = path.split(b"/")
    if any(name in _ANY_TEXT for name in route.parameters):
        words = words[: route.full_path.count("/")]
    return _SLASH not in b"/".join(words).lower()


_SLASH: Final = b"%2f"

#: Who asks for what anybody may see.
_ANYBODY: Final = Caller("anybody", EVENTS)
