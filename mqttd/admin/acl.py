"""The access rules over HTTP: explain a decision, ask who may, check and try out other rules.

    GET    /api/v1/acl/rules             the rules in force, with how often each decided
    GET    /api/v1/acl/explain?...       action, topic; client_id, username, peerhost, qos, retain
    GET    /api/v1/acl/who?...           topic (a filter), access: who may do that
    GET    /api/v1/acl/lint              what is suspicious in the rules in force
    POST   /api/v1/acl/lint              the same for {text, name}
    POST   /api/v1/acl/diff              what the rules in {text, name} would change for the clients
    GET    /api/v1/acl/shadow            where the candidate (acl.shadow.file) differs
    POST   /api/v1/acl/promote           make the candidate the rules
    POST   /api/v1/acl/reload            read the rules again

With `listener=ssl:devices` the rules of a listener that has its own are meant.

Promise: `who` and `diff` look at one client at a time and let the broker go on in between; files
are read, compiled and written in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.internet.task import cooperate
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource

from mqttd.admin.requests import ApiError, answer, answer_faults, argument_of, body_of
from mqttd.broker.broker import Broker
from mqttd.broker.seams import ManagedAccess, ManagedHooks
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import split_shared, validate_topic_filter, validate_topic_name
from mqttd.session.route import QOS_MASK
from mqttd.session.session import Session
from mqttd.types import Action, ClientInfo

__all__ = ["AclApi"]

#: Topics of one client's publications that `diff` looks at.
MAX_TOPICS: Final = 100

Json = dict[str, Any]


def in_turns(work: Iterator[None]) -> Deferred[Any]:
    """Run an iterator a little at a time; fires when it has ended."""
    return cast("Deferred[Any]", cooperate(work).whenDone())


class AclApi:
    """The resource below ``/api/v1/acl/``.

    `run` works an iterator off, `in_thread` calls something in a thread.
    """

    app = Klein()

    def __init__(
        self,
        broker: Broker,
        run: Callable[[Iterator[None]], Deferred[Any]] = in_turns,
        in_thread: Callable[..., Deferred[Any]] = deferToThread,
    ) -> None:
        self.broker = broker
        self.run = run
        self.in_thread = in_thread
        self.log = Logger(namespace="mqttd.admin")

    @property
    def access(self) -> ManagedAccess:
        """Access control as the broker has it."""
        return cast(ManagedAccess, self.broker.access)

    def resource(self) -> IResource:
        """What the API serves for all paths that begin with ``/api/v1/acl/``."""
        return cast(IResource, self.app.resource())

    # -- questions

    @app.route("/rules", methods=["GET"])
    def rules(self, request: IRequest) -> bytes:
        """The rules in force."""
        return answer(request, {"rules": self._questions(request).rules()})

    @app.route("/explain", methods=["GET"])
    def explain(self, request: IRequest) -> bytes:
        """One decision, with why each earlier rule did not match."""
        action, topic = _asked(request)
        client = self._client(request)
        questions = self.access.questions_of(client.listener)
        told: Json = questions.explain(client, action, topic)
        told["hooks"] = len(cast(ManagedHooks, self.broker.hooks).lookup("client.authorize"))
        return answer(request, told)

    @app.route("/who", methods=["GET"])
    def who(self, request: IRequest) -> Deferred[bytes]:
        """Which rules and which clients reach the topics of a filter."""
        topic = _needed(request, b"topic")
        kind = _choice(request, b"access", ("publish", "subscribe"))
        _check(validate_topic_filter, topic)
        found: Json = {"topic": topic, "access": kind}
        questions = self._questions(request)
        clients = (self.broker.client_of(session) for session in self._sessions(questions))
        work = self.run(questions.who(topic, kind, clients, found))
        return work.addCallback(lambda _: answer(request, found))

    @app.route("/lint", methods=["GET", "POST"])
    def lint(self, request: IRequest) -> Deferred[bytes]:
        """What is suspicious in the rules in force, or in those sent along."""
        questions = self._questions(request)
        given = _rules_of(request) if request.method == b"POST" else ()
        work = self.in_thread(questions.lint, *given)
        work.addErrback(_bad_rules)
        return work.addCallback(lambda findings: answer(request, {"findings": findings}))

    @app.route("/diff", methods=["POST"])
    def diff(self, request: IRequest) -> Deferred[bytes]:
        """What other rules would change for the clients that are here."""
        questions = self._questions(request)
        found: Json = {}
        clients = (self._held(session) for session in self._sessions(questions))
        work = self.in_thread(questions.read, *_rules_of(request))
        work.addErrback(_bad_rules)
        work.addCallback(lambda rules: self.run(questions.diff(rules, clients, found)))
        return work.addCallback(lambda _: answer(request, found))

    @app.route("/shadow", methods=["GET"])
    def shadow(self, request: IRequest) -> bytes:
        """Where the candidate differs from the rules in force."""
        told = self._questions(request).shadow()
        if told is None:
            raise ApiError(404, "no_shadow", "there is no candidate: acl.shadow.file is not set")
        return answer(request, told)

    # -- changes

    @app.route("/promote", methods=["POST"])
    def promote(self, request: IRequest) -> Deferred[bytes]:
        """Make the candidate the rules, for the clients that are here too."""

        def written(backup: str) -> bytes:
            self._reload()
            self.log.info(
                "the candidate for the access rules is in force; the old are in {backup}",
                backup=backup,
            )
            return answer(request, {"promoted": True, "backup": backup})

        def failed(failure: Failure) -> Any:
            raise ApiError(422, "promote_failed", str(failure.value))

        work = self.in_thread(self._questions(request).write_candidate)
        return work.addErrback(failed).addCallback(written)

    @app.route("/reload", methods=["POST"])
    def reload(self, request: IRequest) -> Deferred[bytes]:
        """Read the access rules again; with a mistake in them the old ones stay."""

        def read(_: object) -> bytes:
            self._reload()
            self.log.info("access rules read again")
            return answer(request, {"reloaded": True})

        return self.in_thread(self.access.prepare_acl).addCallback(read)

    def _reload(self) -> None:
        try:
            self.access.reload_acl()
        except Exception as error:
            raise ApiError(422, "reload_failed", f"the old rules stay in force: {error}") from error
        finally:
            # Also after a failure: one of several modules may have new rules.
            self.broker.access_changed()

    answer_faults(app)

    # -- clients

    def _questions(self, request: IRequest) -> Any:
        return self.access.questions_of(argument_of(request, b"listener") or "")

    def _sessions(self, questions: Any) -> Iterator[Session]:
        """The sessions that these rules are about; they may come and go meanwhile."""
        for client_id in list(self.broker.sessions):
            session = self.broker.sessions.get(client_id)
            if session is not None:
                listener = self.broker.client_of(session).listener
                if self.access.questions_of(listener) is questions:
                    yield session

    def _held(self, session: Session) -> tuple[ClientInfo, list[tuple[str, int]], list[str]]:
        """What a client has: its subscriptions by their real filters, the topics it uses."""
        subscriptions = [
            (split_shared(full_filter)[1], options & QOS_MASK)
            for full_filter, options in (session.subscriptions or {}).items()
        ]
        channel = self.broker.channel_of(session)
        topics = channel.topics(MAX_TOPICS) if channel is not None else []
        return self.broker.client_of(session), subscriptions, topics

    def _client(self, request: IRequest) -> ClientInfo:
        """Who asks: the connected client of that id, with what the request says in its place."""
        client_id = argument_of(request, b"client_id")
        username = argument_of(request, b"username")
        peerhost = argument_of(request, b"peerhost")
        listener = argument_of(request, b"listener")
        session = self.broker.sessions.get(client_id) if client_id is not None else None
        if session is not None and username in (None, session.username):
            known = self.broker.client_of(session)
            if peerhost in (None, known.peerhost) and listener in (None, known.listener):
                return known
            username = session.username
            peerhost = known.peerhost if peerhost is None else peerhost
        return ClientInfo(client_id or "", username, peerhost or "127.0.0.1", 0, listener or "", 5)


# -- requests


def _needed(request: IRequest, name: bytes) -> str:
    text = argument_of(request, name)
    if not text:
        raise ApiError(400, "bad_request", f"{name.decode()} is missing")
    return text


def _choice(request: IRequest, name: bytes, choices: tuple[str, ...]) -> str:
    text = _needed(request, name)
    if text not in choices:
        raise ApiError(
            400, "bad_request", f"{name.decode()} = {text!r}: expected {' or '.join(choices)}"
        )
    return text


def _asked(request: IRequest) -> tuple[Action, str]:
    """What the client of `explain` wants to do."""
    kind = _choice(request, b"action", ("publish", "subscribe"))
    topic = _needed(request, b"topic")
    qos = argument_of(request, b"qos") or "0"
    retain = argument_of(request, b"retain") or "false"
    if qos not in ("0", "1", "2"):
        raise ApiError(400, "bad_request", f"qos = {qos!r}: expected 0, 1 or 2")
    if retain not in ("true", "false"):
        raise ApiError(400, "bad_request", f"retain = {retain!r}: expected true or false")
    if kind == "publish":
        _check(validate_topic_name, topic)
        return Action("publish", int(qos), retain == "true"), topic
    try:
        _, topic = split_shared(topic)
    except MqttError as error:
        raise ApiError(400, "bad_topic", error.detail) from None
    _check(validate_topic_filter, topic)
    return Action("subscribe", int(qos)), topic


def _check(validate: Callable[[str], object], topic: str) -> None:
    try:
        validate(topic)
    except MqttError as error:
        raise ApiError(400, "bad_topic", error.detail) from None


def _bad_rules(failure: Failure) -> Any:
    failure.trap(ValueError)
    raise ApiError(422, "bad_rules", str(failure.value))


def _rules_of(request: IRequest) -> tuple[str, str]:
    body = body_of(request)
    text, name = body.get("text"), body.get("name", "acl.conf")
    if not isinstance(text, str) or not isinstance(name, str):
        raise ApiError(400, "bad_request", "expected {text: the rules, name: of their file}")
    return text, name
