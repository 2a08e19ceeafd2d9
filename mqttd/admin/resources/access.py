"""Who may connect and do what: the auth chain, the rules, and questions about them.

With `listener=ssl:devices` the rules of a listener that has its own are meant.

Promise: `who` and `diff` look at one client at a time and let the broker go on in between; rules
are looked at in a process of their own, one request after the other; files are read, compiled and
written in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from mqttd.admin.http.checks import checked_address, checked_listener, checked_topic
from mqttd.admin.http.parts import Json, Parts
from mqttd.admin.http.requests import ADMINISTRATOR, VIEWER, ApiError
from mqttd.admin.http.route import Ask, get, post
from mqttd.codec.topic import split_shared, validate_topic_name
from mqttd.readmodel.slices import Slice
from mqttd.types import Action, ClientInfo

__all__ = ["Access"]

#: Topics that a diff asks about at once, and how many a client may have beside its own.
_AT_ONCE: Final = 2000
_EACH: Final = 200

Kind = Literal["publish", "subscribe"]
Of = Annotated[str, Meta(description="rules of this listener, KIND:NAME")]


class Listener(Struct, forbid_unknown_fields=True):
    """Whose rules."""

    listener: Of = ""


class Question(Struct, forbid_unknown_fields=True):
    """A decision to explain; what is left out is that of the connected client."""

    action: Kind
    topic: Annotated[str, Meta(min_length=1)]
    client_id: str | None = None
    username: str | None = None
    peerhost: str | None = None
    listener: str | None = None
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    retain: bool = False


class WhoMay(Struct, forbid_unknown_fields=True):
    """What somebody may do."""

    topic: Annotated[str, Meta(min_length=1, description="a topic filter")]
    access: Kind
    listener: Of = ""


class Rules(Struct, forbid_unknown_fields=True):
    """Rules to look at, as the file has them."""

    text: str
    name: str = "acl.conf"


class Changes(Struct, forbid_unknown_fields=True):
    """Why something is read again, for the audit."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


class Modules(Struct):
    """The modules that authenticate and authorize, in the order they are asked."""

    modules: list[Json]


class RuleList(Struct):
    """The rules in force, with how often each has decided."""

    rules: list[Json]


class Findings(Struct):
    """What is suspicious in rules."""

    findings: list[Json]


class Promoted(Struct):
    """The candidate is in force; where the old rules are."""

    promoted: bool
    backup: str


class Reloaded(Struct):
    """It was read again."""

    reloaded: bool


class Access:
    """Authentication and access rules of the broker."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/auth", answer=Modules)
    def auth(self, ask: Ask) -> Modules:
        """The modules that authenticate and authorize, in the order they are asked."""
        return Modules(self.parts.access.describe())

    @post("/auth/reload", body=Changes, answer=Reloaded, errors=(422,))
    def reload_auth(self, ask: Ask) -> Reloaded:
        """Read users and keys again; with a mistake in a file its old content stays."""
        try:
            self.parts.access.reload_auth()
        except Exception as error:
            raise ApiError(422, "reload_failed", f"what there was stays: {error}") from error
        ask.changed(None, ask.body.reason or None)
        self.parts.files_taken()
        return Reloaded(True)

    # -- questions

    @get("/acl/rules", query=Listener, answer=RuleList)
    def rules(self, ask: Ask) -> RuleList:
        """The rules in force."""
        return RuleList(self._questions(ask).rules())

    @get("/acl/explain", query=Question)
    def explain(self, ask: Ask) -> Json:
        """One decision, with why each earlier rule did not match."""
        action, topic = _asked(ask.query)
        client = self._client(ask.query)
        told: Json = self.parts.access.questions_of(client.listener).explain(client, action, topic)
        ban = self.parts.broker.bans.disabling(client.username)
        if ban is not None:  # kept out before any rule is asked
            rule = f"user {ban.value} is disabled"
            told["allowed"], told["rule"] = False, rule
            told["steps"] = [{"module": "roles", "rule": rule, "matched": True, "reason": ""}]
        told["hooks"] = len(self.parts.hooks.lookup("client.authorize"))
        return told

    @get("/acl/who", query=WhoMay)
    def who(self, ask: Ask) -> Deferred[Json]:
        """Which rules and which clients reach the topics of a filter."""
        topic, kind = ask.query.topic, ask.query.access
        checked_topic("topic", topic)
        found: Json = {"topic": topic, "access": kind}
        questions = self._questions(ask)
        work = questions.who(topic, kind, self._infos(questions), found)
        return self._run(work).addCallback(lambda _: found)

    @get("/acl/lint", query=Listener, answer=Findings, errors=(503,))
    def lint(self, ask: Ask) -> Deferred[Findings]:
        """What is suspicious in the rules in force."""
        return self._lint(ask)

    @post(
        "/acl/lint", role=VIEWER, audited=False, query=Listener, body=Rules, answer=Findings,
        errors=(422, 503),
    )  # fmt: skip
    def lint_text(self, ask: Ask) -> Deferred[Findings]:
        """What is suspicious in rules that are sent along."""
        return self._lint(ask, ask.body.text, ask.body.name).addErrback(_bad_rules)

    def _lint(self, ask: Ask, *text: str) -> Deferred[Findings]:
        questions = self._questions(ask)

        def lint(process: Any) -> Deferred[Any]:
            return self.parts.in_thread(questions.lint, process, *text)

        return self._apart(questions, lint).addCallback(Findings)

    @post("/acl/diff", role=VIEWER, audited=False, query=Listener, body=Rules, errors=(422, 503))
    def diff(self, ask: Ask) -> Deferred[Json]:
        """What other rules would change for the clients that are here."""
        questions = self._questions(ask)
        work = self._apart(
            questions, lambda process: ensureDeferred(self._diff(questions, ask.body, process))
        )
        return work.addErrback(_bad_rules)

    async def _diff(self, questions: Any, rules: Rules, process: Any) -> Json:
        found: Json = {}
        await self.parts.in_thread(questions.read, process, rules.text, rules.name, found)
        clients = self._held(questions)
        while True:
            some: list[Any] = []
            await self._run(_taken(clients, some))
            if not some:
                return found
            asked = await self.parts.in_thread(questions.asked, process, some)
            await self._run(questions.diff(some, asked, found))

    def _apart(self, questions: Any, work: Callable[[Any], Deferred[Any]]) -> Deferred[Any]:
        """Give `work` a process that looks at rules, when it is its turn; end that afterwards."""

        def begin() -> Deferred[Any]:
            process = questions.process()

            def end(result: Any) -> Deferred[Any]:
                return self.parts.in_thread(questions.end, process).addCallback(lambda _: result)

            return work(process).addBoth(end)

        return self.parts.alone(begin).addErrback(_not_looked_at)

    @get("/acl/shadow", query=Listener)
    def shadow(self, ask: Ask) -> Json:
        """Where the candidate differs from the rules in force."""
        told: Json | None = self._questions(ask).shadow()
        if told is None:
            raise ApiError(404, "no_shadow", "there is no candidate: acl.shadow.file is not set")
        return told

    # -- changes

    @post("/acl/promote", role=ADMINISTRATOR, query=Listener, answer=Promoted, errors=(422,))
    def promote(self, ask: Ask) -> Deferred[Promoted]:
        """Make the candidate the rules, for the clients that are here too."""

        def written(backup: str) -> Promoted:
            self._reload()
            ask.changed({"rules": backup})
            return Promoted(True, backup)

        def failed(failure: Failure) -> Any:
            raise ApiError(422, "promote_failed", str(failure.value))

        work = self.parts.in_thread(self._questions(ask).write_candidate)
        return work.addErrback(failed).addCallback(written)

    @post("/acl/reload", body=Changes, answer=Reloaded, errors=(422,))
    def reload(self, ask: Ask) -> Deferred[Reloaded]:
        """Read the access rules again; with a mistake in them the old ones stay."""

        def read(_: object) -> Reloaded:
            self._reload()
            ask.changed(None, ask.body.reason or None)
            self.parts.files_taken()
            return Reloaded(True)

        return self.parts.in_thread(self.parts.access.prepare_acl).addCallback(read)

    def _reload(self) -> None:
        try:
            self.parts.access.reload_acl()
        except Exception as error:
            raise ApiError(422, "reload_failed", f"the old rules stay in force: {error}") from error
        finally:
            # Also after a failure: one of several modules may have new rules.
            self.parts.broker.access_changed()

    # -- clients

    def _questions(self, ask: Ask) -> Any:
        self._check_listener(ask.query.listener)
        return self.parts.access.questions_of(ask.query.listener)

    def _check_listener(self, listener: str | None) -> None:
        if listener:
            checked_listener("listener", listener, self.parts.listeners())

    def _run(self, work: Iterator[None]) -> Deferred[Any]:
        """Many small steps, a slice of them a turn."""

        def sliced() -> Iterator[None]:
            time = Slice()
            for _ in work:
                if time.over():
                    yield
                    time.begin()

        return self.parts.model.run(sliced())

    def _infos(self, questions: Any) -> Iterator[ClientInfo]:
        """The clients that these rules are about; they may come and go meanwhile."""
        for client_id in self.parts.model.clients.ids():
            info = self.parts.model.clients.info(client_id)
            if info is not None and self.parts.access.questions_of(info.listener) is questions:
                yield info

    def _held(self, questions: Any) -> Iterator[Any]:
        for info in self._infos(questions):
            held = self.parts.model.clients.held(info.client_id)
            if held is not None:
                yield held

    def _client(self, given: Question) -> ClientInfo:
        """Who asks: the client of that id, with what the request says in its place."""
        username, peerhost, listener = given.username, given.peerhost, given.listener
        self._check_listener(listener)
        if peerhost:
            checked_address("peerhost", peerhost)
        known = None
        if given.client_id is not None:
            known = self.parts.model.clients.info(given.client_id)
        if known is not None and username in (None, known.username):
            if peerhost in (None, known.peerhost) and listener in (None, known.listener):
                return known
            username = known.username
            peerhost = known.peerhost if peerhost is None else peerhost
        return ClientInfo(
            given.client_id or "", username, peerhost or "127.0.0.1", 0, listener or "", 5
        )


def _asked(given: Question) -> tuple[Action, str]:
    """What the client of `explain` wants to do."""
    topic = given.topic
    if given.action == "publish":
        checked_topic("topic", topic, validate_topic_name)
        return Action("publish", given.qos, given.retain), topic
    checked_topic("topic", topic)
    return Action("subscribe", given.qos), split_shared(topic)[1]


def _bad_rules(failure: Failure) -> Any:
    failure.trap(ValueError)
    raise ApiError(422, "bad_rules", str(failure.value))


def _not_looked_at(failure: Failure) -> Any:
    failure.trap(OSError)
    raise ApiError(503, "not_looked_at", str(failure.value))


def _taken(clients: Iterator[Any], some: list[Any]) -> Iterator[None]:
    """Take as many clients as are asked about at once."""
    weight = 0
    for client, subscriptions, topics in clients:
        some.append((client, subscriptions, topics))
        weight += _EACH + len(subscriptions) + len(topics)
        if weight > _AT_ONCE:
            return
        yield
