"""The HTTP interface of the broker: what an operator may see and do, as JSON under `/api/v1`.

    GET    /api/v1/status                       who and where we are, listeners, gauges
    GET    /metrics, /health/live, /health/ready     see `mqttd.admin.health`
    GET    /api/v1/metrics                      every counter and gauge
    GET    /api/v1/clients[?limit=&cursor=]     a page; username=, address=, listener=, state=
    GET    /api/v1/clients/{id}                 one client
    DELETE /api/v1/clients/{id}[?reason_code=]  end its connection (reason 0x98)
                                                with discard=true its session, too
    DELETE /api/v1/sessions/{id}                end a session, and its connection
    *      /api/v1/subscriptions[?client_id=]   GET; POST {client_id, topic_filter, qos}; DELETE
    *      /api/v1/retained, /api/v1/topics     see `mqttd.admin.retained`
    GET    /api/v1/auth                         the modules that decide, with their counters
    *      /api/v1/acl/...                      the access rules, see `mqttd.admin.acl`
    GET    /api/v1/hooks                        hook points, who listens, and what it costs
    GET    /api/v1/alarms                       what is wrong now, and what was lately
    GET    /api/v1/memory                       who holds how much memory
    *      /api/v1/plugins...                   plugins, see `mqttd.admin.plugins`
    GET    /api/v1/config                       what is in force; POST /config/reload
    POST   /api/v1/auth/reload                  read users and keys again
    *      /api/v1/bans                         GET; POST {kind, value, reason, seconds}; DELETE
    POST   /api/v1/publish                      {topic, payload | payload_base64, qos, retain}

A refusal is ``{"error": {"code": "not_found", "message": "..."}}`` with a fitting HTTP status.
Whoever reaches this resource may do all of it: `mqttd.admin.server` lets only the broker's own
user in. See docs/reference/ctl.md.

Promise: a page costs one pass over the client ids and holds at most `MAX_LIMIT` entries (all the
subscriptions of a client stay on one page); ids that come and go between pages repeat nothing.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource
from werkzeug.routing import BaseConverter

from mqttd import __version__, compiled
from mqttd.admin.acl import AclApi
from mqttd.admin.bodies import ban_of, message_of, reason_code_of
from mqttd.admin.health import exposition
from mqttd.admin.requests import (
    ApiError,
    answer,
    answer_faults,
    argument_of,
    body_of,
    limit_of,
    page_of,
)
from mqttd.admin.retained import RetainedApi
from mqttd.admin.sessions import described, subscribe, subscriptions_of, unsubscribe, wanted
from mqttd.broker.bans import BanError
from mqttd.broker.broker import Broker
from mqttd.broker.points import POINTS
from mqttd.broker.seams import ManagedAccess, ManagedHooks
from mqttd.codec import reasons
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_name
from mqttd.session.session import Session

__all__ = ["Api"]

Json = dict[str, Any]


class _AnyText(BaseConverter):
    """The rest of a path whatever it holds: a client id may begin with `/`."""

    regex = ".+"
    part_isolating = False


class Api:
    """The resource of the HTTP interface.

    Arguments: the broker; `listeners()` gives one dictionary per listener; `who()` says in a
    sentence who may connect; `plugins` is a `mqttd.admin.plugins.PluginsApi`, `more()`
    gives the metrics of plugins.
    """

    app = Klein()
    app.url_map.merge_slashes = False
    app.url_map.converters["any_text"] = _AnyText

    def __init__(
        self,
        broker: Broker,
        listeners: Callable[[], list[Json]] = list,
        who: Callable[[], str] = str,
        plugins: Any = None,
        more: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self.broker = broker
        self.plugins = plugins
        self.more = more
        self.listeners = listeners
        #: A `mqttd.admin.listeners.ListenersApi`.
        self.doors: Any = None
        #: Whether clients are let in.
        self.is_ready: Callable[[], bool] = lambda: True
        #: A `mqttd.admin.reload.ReloadApi`.
        self.reload: Any = None
        #: A `mqttd.admin.log.LogApi`, where the log is the broker's own.
        self.logging: Any = None
        self.kept = RetainedApi(broker)
        #: A `mqttd.admin.store.StoreApi`.
        self.store: Any = None
        #: A `mqttd.admin.acl.AclApi`, made when it is first asked for.
        self.acl: Any = None
        self.who = who
        self.log = Logger(namespace="mqttd.admin")

    @property
    def access(self) -> ManagedAccess:
        """Access control as the broker has it."""
        return cast(ManagedAccess, self.broker.access)

    def resource(self) -> IResource:
        """What a `twisted.web.server.Site` serves."""
        return cast(IResource, self.app.resource())

    # -- what there is

    @app.route("/api/v1/status", methods=["GET"])
    def status(self, request: IRequest) -> bytes:
        """Who and where this broker is, and its gauges."""
        stats = self.broker.stats()
        return answer(
            request,
            {
                "name": self.broker.name,
                "version": __version__,
                "compiled": compiled(),
                "python": platform.python_version(),
                "pid": os.getpid(),
                "uptime": stats["uptime_seconds"],
                "listeners": self.listeners(),
                "who_may_connect": self.who(),
                "stats": stats,
            },
        )

    @app.route("/health/live", methods=["GET"])
    def live(self, request: IRequest) -> bytes:
        """We are: who is stuck answers nothing."""
        return answer(request, {"live": True})

    @app.route("/health/ready", methods=["GET"])
    def ready(self, request: IRequest) -> bytes:
        """Whether clients are let in."""
        ready = self.is_ready() and not self.broker.overloaded
        return answer(request, {"ready": ready}, 200 if ready else 503)

    @app.route("/metrics", methods=["GET"])
    def metrics_text(self, request: IRequest) -> bytes:
        """All figures, in the text format of Prometheus."""
        text = exposition(*self._figures())
        request.setHeader(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
        return text.encode()

    @app.route("/api/v1/metrics", methods=["GET"])
    def metrics(self, request: IRequest) -> bytes:
        """Counters since the start, and gauges."""
        counters, gauges = self._figures()
        return answer(request, {"counters": counters, "gauges": gauges})

    def _figures(self) -> tuple[dict[str, float], dict[str, float]]:
        counters: dict[str, float] = {**self.broker.metrics.snapshot()}
        counters.update(self.access.counters())
        gauges: dict[str, float] = {**self.broker.stats()}
        for name, value in self.more().items():
            (counters if name.endswith("_total") else gauges)[name] = value
        return counters, gauges

    @app.route("/api/v1/auth", methods=["GET"])
    def auth(self, request: IRequest) -> bytes:
        """The modules that authenticate and authorize, in the order they are asked."""
        return answer(request, {"modules": self.access.describe()})

    @app.route("/api/v1/hooks", methods=["GET"])
    def hooks(self, request: IRequest) -> bytes:
        """Every hook point with its callbacks in the order they run."""
        hooks = cast(ManagedHooks, self.broker.hooks)
        points = [
            {
                "point": name,
                "when": point.when,
                "errors": hooks.errors.get(name, 0),
                "callbacks": [
                    {
                        "callback": _name_of(entry.callback),
                        "priority": entry.priority,
                        "owner": entry.budget.name,
                        "state": entry.budget.state,
                        "topic_filter": list(entry.topic_filters),
                        "client": list(entry.clients),
                        "errors": entry.errors,
                    }
                    for entry in hooks.lookup(name)
                ],
            }
            for name, point in POINTS.items()
        ]
        budgets = [budget.describe() for budget in hooks.budgets()]
        return answer(request, {"hooks": points, "budgets": budgets})

    @app.route("/api/v1/alarms", methods=["GET"])
    def alarms(self, request: IRequest) -> bytes:
        """Alarms that are raised, and the last ones that were."""
        alarms = self.broker.alarms
        return answer(
            request,
            {
                "alarms": [alarm.describe() for alarm in alarms.active()],
                "past": [alarm.describe() for alarm in alarms.past()],
            },
        )

    @app.route("/api/v1/memory", methods=["GET"])
    def memory(self, request: IRequest) -> bytes:
        """What is held in memory, by kind, and the sessions and users that hold most."""
        return answer(request, self.broker.memory.describe())

    # -- clients

    @app.route("/api/v1/clients", methods=["GET"])
    def clients(self, request: IRequest) -> bytes:
        """A page of clients by client id; `cursor` of the answer asks for the next one."""
        ids, cursor = page_of(request, wanted(request, self.broker))
        clients = [described(self.broker, self.broker.sessions[client_id]) for client_id in ids]
        return answer(request, {"clients": clients, "cursor": cursor})

    @app.route("/api/v1/clients/<any_text:client_id>", methods=["GET", "DELETE"])
    def client(self, request: IRequest, client_id: str) -> bytes:
        """Show one client, or end its connection."""
        session = self._session(client_id)
        if request.method == b"GET":
            return answer(request, described(self.broker, session))
        code = reason_code_of(request)
        if argument_of(request, b"discard") == "true":
            return self._end(request, session, code)
        if not self.broker.kick(session.client_id, code):
            raise ApiError(409, "not_connected", f"client {session.client_id!r} is not connected")
        self.log.info("client {client!r} ended by administrator", client=session.client_id)
        return answer(request, {"kicked": session.client_id})

    @app.route("/api/v1/sessions/<any_text:client_id>", methods=["DELETE"])
    def session(self, request: IRequest, client_id: str) -> bytes:
        """End a session with all that is kept for it, and the connection if there is one."""
        return self._end(request, self._session(client_id), reason_code_of(request))

    def _end(self, request: IRequest, session: Session, code: int) -> bytes:
        self.broker.end_session(session.client_id, code)
        self.log.info("session {client!r} ended by administrator", client=session.client_id)
        return answer(request, {"ended": session.client_id})

    @app.route("/api/v1/retained", methods=["GET", "DELETE"])
    def retained(self, request: IRequest) -> Deferred[bytes]:
        """Retained messages of a filter, see `mqttd.admin.retained`."""
        return self.kept.find(request) if request.method == b"GET" else self.kept.delete(request)

    @app.route("/api/v1/retained/<any_text:topic>", methods=["GET"])
    def retained_message(self, request: IRequest, topic: str) -> bytes:
        """One retained message."""
        return self.kept.show(request, topic)

    @app.route("/api/v1/topics", methods=["GET"])
    def topics(self, request: IRequest) -> Deferred[bytes]:
        """The filters that are subscribed to."""
        return self.kept.topics(request)

    @app.route("/api/v1/subscriptions", methods=["GET", "POST", "DELETE"])
    def subscriptions(self, request: IRequest) -> bytes:
        """The subscriptions of one client, or a page of everybody's by client id; add, end one."""
        if request.method == b"POST":
            told = subscribe(self.broker, body_of(request))
            self.log.info("{client_id!r} subscribed to {topic_filter!r} by administrator", **told)
            return answer(request, told)
        if request.method == b"DELETE":
            client_id = argument_of(request, b"client_id") or ""
            topic_filter = argument_of(request, b"topic_filter") or ""
            told = unsubscribe(self.broker, self._session(client_id), topic_filter)
            self.log.info("{topic_filter!r} of {client_id!r} ended by administrator", **told)
            return answer(request, told)
        sessions = self.broker.sessions
        given = argument_of(request, b"client_id")
        if given is not None:
            return answer(
                request,
                {"subscriptions": subscriptions_of(self._session(given)), "cursor": None},
            )
        ids, cursor = page_of(
            request, [name for name, session in sessions.items() if session.subscriptions]
        )
        limit = limit_of(request)
        found: list[Json] = []
        for i, client_id in enumerate(ids):
            found += subscriptions_of(sessions[client_id])
            if len(found) >= limit and (cursor is not None or i + 1 < len(ids)):
                cursor = client_id
                break
        return answer(request, {"subscriptions": found, "cursor": cursor})

    def _session(self, client_id: str) -> Session:
        session = self.broker.sessions.get(client_id)
        if session is None:
            raise ApiError(404, "not_found", f"no client {client_id!r}")
        return session

    # -- what can be done

    @app.route("/api/v1/acl/", branch=True)
    def access_rules(self, request: IRequest) -> IResource:
        """The access rules, see `mqttd.admin.acl`."""
        if self.acl is None:
            self.acl = AclApi(self.broker)
        return cast(IResource, self.acl.resource())

    @app.route("/api/v1/bans", methods=["GET", "POST", "DELETE"])
    def bans(self, request: IRequest) -> bytes | Deferred[bytes]:
        """See the bans, add one (its connections end), or lift one: answered when it is kept."""
        bans = self.broker.bans
        try:
            if request.method == b"POST":
                kind, value, reason, until = ban_of(body_of(request))
                ban = bans.add(kind, value, reason, until)
                ended = self.broker.enforce_bans()
                self.log.info("banned {kind} {value!r}", kind=kind, value=ban.value)
                return self._kept(answer(request, {"ban": asdict(ban), "ended": ended}))
            if request.method == b"DELETE":
                kind = argument_of(request, b"kind") or ""
                value = argument_of(request, b"value") or ""
                if not bans.remove(kind, value):
                    raise ApiError(404, "not_found", f"no ban of {kind} {value!r}")
                self.log.info("lifted the ban of {kind} {value!r}", kind=kind, value=value)
                return self._kept(answer(request, {"lifted": {"kind": kind, "value": value}}))
        except BanError as error:
            raise ApiError(400, "bad_request", str(error)) from None
        except OSError as error:
            raise ApiError(507, "not_stored", f"{bans.path}: {error.strerror}") from error
        return answer(request, {"bans": [asdict(ban) for ban in bans.list()]})

    def _kept(self, body: bytes) -> Deferred[bytes]:
        kept: Deferred[bytes] = Deferred()
        self.broker.bans.when_kept(lambda: kept.callback(body))
        return kept

    @app.route("/api/v1/auth/reload", methods=["POST"])
    def reload_auth(self, request: IRequest) -> bytes:
        """Read users and keys again; with a mistake in a file its old content stays."""
        try:
            self.access.reload_auth()
        except Exception as error:
            raise ApiError(422, "reload_failed", f"what there was stays: {error}") from error
        self.log.info("users and keys read again")
        return answer(request, {"reloaded": True})

    @app.route("/api/v1/publish", methods=["POST"])
    def publish(self, request: IRequest) -> bytes:
        """Publish a message as the broker itself: no access rule is asked, hooks run."""
        topic, payload, qos, retain = message_of(body_of(request))
        settings = self.broker.settings
        try:
            validate_topic_name(topic, settings.max_topic_levels)
        except MqttError as error:
            raise ApiError(400, "bad_topic", error.detail) from None
        if len(payload) + len(topic.encode()) > settings.max_packet_size:
            raise ApiError(
                413,
                "too_large",
                f"topic and payload are larger than mqtt.max_packet_size, "
                f"{settings.max_packet_size} bytes",
            )
        receivers = self.broker.publish_text(topic, payload, qos, retain)
        if receivers < 0 and -receivers != reasons.QUOTA_EXCEEDED:
            why = reasons.name_of(-receivers)
            raise ApiError(409, "refused", f"a message.publish hook refused it: {why}")
        if receivers < 0:
            raise ApiError(507, "quota_exceeded", "the retained store is full")
        return answer(request, {"receivers": receivers})

    @app.route("/api/v1/plugins", methods=["GET"])
    def list_plugins(self, request: IRequest) -> bytes:
        """Every plugin there is, and the modules that failed."""
        return answer(request, {"plugins": [] if self.plugins is None else self.plugins.list()})

    @app.route("/api/v1/plugins/", branch=True)
    def one_plugin(self, request: IRequest) -> IResource:
        """What there is about one plugin, see `mqttd.admin.plugins`."""
        if self.plugins is None:
            raise ApiError(404, "not_found", "this broker has no plugins")
        return cast(IResource, self.plugins.resource())

    @app.route("/api/v1/listeners", methods=["GET"])
    def list_listeners(self, request: IRequest) -> bytes:
        """Every listener, running or not."""
        return answer(request, {"listeners": self.listeners()})

    @app.route("/api/v1/listeners/", branch=True)
    def one_listener(self, request: IRequest) -> IResource:
        """What can be done with one listener, see `mqttd.admin.listeners`."""
        if self.doors is None:
            raise ApiError(404, "not_found", "listeners are not managed here")
        return cast(IResource, self.doors.resource())

    @app.route("/api/v1/config", methods=["GET"])
    def configuration(self, request: IRequest) -> bytes:
        """The configuration in force."""
        return cast(bytes, self._reload().show(request))

    @app.route("/api/v1/config/", branch=True)
    def change_configuration(self, request: IRequest) -> IResource:
        """What can be done with it, see `mqttd.admin.reload`."""
        return cast(IResource, self._reload().resource())

    def _reload(self) -> Any:
        if self.reload is None:
            raise ApiError(404, "not_found", "this broker's configuration is not managed here")
        return self.reload

    @app.route("/api/v1/store", branch=True)
    def stored(self, request: IRequest) -> IResource:
        """What outlasts the process, see `mqttd.admin.store`."""
        if self.store is None:
            raise ApiError(404, "not_found", "the store is not managed here")
        return cast(IResource, self.store.resource())

    @app.route("/api/v1/log", branch=True)
    def levels_of_log(self, request: IRequest) -> IResource:
        """The log, see `mqttd.admin.log`."""
        if self.logging is None:
            raise ApiError(404, "not_found", "the log is not the broker's own here")
        return cast(IResource, self.logging.resource())

    answer_faults(app)


# -- answers


def _name_of(callback: Any) -> str:
    """Where a callback is defined, `package.module.Class.method`."""
    name = getattr(callback, "__qualname__", None)
    if name is None:
        callback = type(callback)
        name = callback.__qualname__
    return f"{getattr(callback, '__module__', '?')}.{name}"
