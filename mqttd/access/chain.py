"""Access control: who a client is, and what it may do, each asked along a chain of modules.

::

    authenticate   username -> anonymous -> ... -> refused     OK and ERROR end the chain,
    authorize      (the client's own rules) -> acl -> nomatch  IGNORE asks the next module

Promise: modules are asked in the order of their sequence numbers, then of registration.
Everything fails closed: an authentication chain that comes to its end refuses, a module that
raises, answers nonsense or does not answer within the deadline refuses, and is counted.
`AccessControl.authorize` is synchronous, so that the broker can cache its answers under
`AccessControl.epoch`.  All methods are called in the reactor thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec
from twisted.internet.defer import Deferred

from mqttd.access.acl.who import is_anywhere
from mqttd.access.auth.authentication import (
    BUILT_IN,
    AuthenticationChain,
    OnRevoked,
    UnknownModule,
)
from mqttd.access.auth.built_in import built_in
from mqttd.access.auth.doorkeeper import Doorkeeper, WatchedExchange
from mqttd.access.auth.failures import Failures
from mqttd.access.auth.guard import Gone, OnEvent, stays
from mqttd.access.authorization import AclReloadError, Authorization, OnDeny
from mqttd.access.questions import AclQuestions
from mqttd.access.roles.roles import Roles
from mqttd.codec.reasons import NOT_AUTHORIZED
from mqttd.session.ground.refusal import Refusal
from mqttd.types import Action, AuthResult, ClientInfo, Decision

if TYPE_CHECKING:
    from mqttd.config.schema import Config

__all__ = ["AccessControl", "AclReloadError", "AuthReloadError", "OnError", "UnknownModule"]

Kind: TypeAlias = Literal["auth", "acl"]
OnError: TypeAlias = Callable[[str, str, Exception, str], None]


class AuthReloadError(Exception):
    """One or more authentication modules could not read their files, and keep what they had."""


class AccessControl:
    """The two chains, built from the configuration; plugins add to them at run time.

    ``reactor`` (a clock with ``callLater``) gives Deferred verdicts their deadline of
    `deadline` seconds (None: ``auth.backend.deadline``), lets files be watched and takes password
    hashing off the reactor thread; without one, hashing happens in the caller's thread and a
    Deferred verdict is refused as an error.

    ``on_deny(client, action, topic, rule)`` is told of each denied action,
    ``on_error(kind, name, exception, then)`` of each module that failed and what happens then,
    ``on_event(event, fields)`` of what an operator should know (a circuit breaker opens),
    ``on_revoked(module, usernames)`` of users that are gone or have new passwords: who connected
    as one of them through this module is to be disconnected; ``on_count(name)`` of what the
    broker's counters of this name count.
    ``roles`` are asked before the rules file or behind it, as ``acl.order`` says.

    Raises what the modules raise when their files are wrong: `AclSyntaxError`,
    `PasswordFileError`, `OSError`, all naming the file; `UnknownModule`.
    """

    def __init__(
        self,
        config: Config,
        reactor: Any = None,
        on_deny: OnDeny | None = None,
        on_error: OnError | None = None,
        deadline: float | None = None,
        on_event: OnEvent | None = None,
        on_revoked: OnRevoked | None = None,
        on_count: Callable[[str], None] | None = None,
        roles: Roles | None = None,
    ) -> None:
        self.config = config
        self.reactor = reactor
        self.on_deny = on_deny
        self.on_error = on_error
        self.on_event = on_event
        self.on_revoked = on_revoked
        self.on_count = on_count
        #: called when modules came or went, or a client's own rules look at QoS or RETAIN
        self.on_change: Callable[[], None] | None = None
        #: grows with every change that may change an answer of `authorize`
        self.epoch: int = 1
        self.authorization = Authorization(config.acl, on_deny, self._acl_failed)
        self.authorization.on_difference = self._differs
        #: what an operator may ask the rules
        self.questions = AclQuestions(self.authorization)
        limits = config.auth.backend
        if deadline is not None:
            limits = msgspec.structs.replace(limits, deadline=deadline)
        self.authentication = AuthenticationChain(limits, reactor, self._auth_failed, self._event)
        self.authentication.rules_changed = self._client_rules_depend
        self.doorkeeper = Doorkeeper(
            self.authentication, Failures(config.auth.failures), reactor, self._event, self._counted
        )
        for name in config.auth.chain:
            if name not in BUILT_IN and config.plugins.load:
                self.authentication.reserve(name)
            else:
                self.register_mod("auth", name, {})
        self.register_mod("acl", "acl", {})
        if roles is not None:
            self.register_mod("acl", "roles", roles, 0 if config.acl.order == "last" else None)

    # -- modules

    def register_mod(
        self,
        kind: Kind,
        name: str,
        module_or_opts: object = None,
        seq: int | None = None,
    ) -> None:
        """Put a module into a chain.

        `module_or_opts` is a module providing `IAuthenticator` or `IAccessControl`, whose
        ``init`` has been called, or the options (a mapping) for the built-in one called
        `name`.  `seq` places it: lower first; None is last.  Raises `UnknownModule`,
        ValueError for a name in use, `zope.interface.Invalid` naming the missing method.
        """
        if kind not in _KINDS:
            raise ValueError(f'kind: expected "auth" or "acl", got {kind!r}')
        if module_or_opts is None or isinstance(module_or_opts, Mapping):
            module = self._built_in(kind, name, module_or_opts or {})
        else:
            module = module_or_opts
        if kind == "acl":
            self.authorization.register(name, module, seq)
        else:
            self.authentication.add(name, module, seq)
        self._changed()

    def unregister_mod(self, kind: Kind, name: str) -> None:
        """Take a module out of its chain; `UnknownModule` if it is not there.

        The place of a plugin's module that ``auth.chain`` names refuses from then on.
        """
        if kind == "auth":
            self.authentication.remove(name)
        elif name not in self.authorization.names():
            raise UnknownModule(f"no {kind} module {name!r} is registered")
        else:
            self.authorization.unregister(name)
        self._changed()

    def hold_mod(self, kind: Kind, name: str, seq: int | None = None) -> int:
        """Take a module out while its plugin is loaded again; nobody is asked again meanwhile.

        Its place refuses, or denies, until `register_mod` gives it to another or `release_mod`
        gives it up.  Without such a module the place is made at `seq`.  Returns where it is.
        """
        if kind == "auth":
            return self.authentication.hold(name, seq)
        return self.authorization.hold(name, seq)

    def release_mod(self, kind: Kind, name: str) -> None:
        """Give up a place that `hold_mod` keeps, if it still does."""
        if kind == "auth":
            self.authentication.release(name)
        else:
            self.authorization.release(name)
        self._changed()

    def _built_in(self, kind: Kind, name: str, opts: Mapping[str, object]) -> object:
        if kind == "auth":
            return built_in(name, self.config, opts, self.reactor, self._revoked, self._event)
        if name != "acl":
            raise UnknownModule(f"no built-in {kind} module {name!r}; expected one of: acl")
        from mqttd.access.acl_module import AclFile

        module: Any = AclFile()
        module.init({"file": self.config.acl.file, **opts})
        return cast(object, module)

    # -- authentication, see `mqttd.access.auth.authentication`

    def authenticate(
        self, client: ClientInfo, password: bytes | None, gone: Gone = stays
    ) -> AuthResult | Deferred[AuthResult]:
        """Find out whether `client` is who it says.

        Answers at once unless a module has to wait.  The Deferred never fails.  On success
        the client's ``superuser``, ``attributes``, ``acl`` and perhaps ``username`` are set.
        A client that was reset before its CONNECT is read is refused: its address, which may be
        banned, is not known any more. So is one that has had to wait and is `gone` when its turn
        comes.
        """
        if is_anywhere(client):
            return AuthResult(False, NOT_AUTHORIZED, "the connection was reset")
        return self.doorkeeper.authenticate(client, password, gone)

    def begin(self, client: ClientInfo, method: str) -> WatchedExchange | None:
        """Start an enhanced authentication by `method`; None if it is not offered."""
        if is_anywhere(client):
            return None
        exchange = self.authentication.begin(client, method)
        return None if exchange is None else self.doorkeeper.watched(exchange)

    def reload_auth(self) -> None:
        """Make every authentication module read its files again; raises `AuthReloadError`."""
        faults = self.authentication.reload()
        if faults:
            raise AuthReloadError("; ".join(faults))

    def follow(self, before: AccessControl) -> None:
        """Take the place of another, whose counters go on here.

        Users of its files that are gone here, or have another password, are told of.
        """
        self.epoch = before.epoch + 1
        self.authentication.follow(before.authentication)
        if before.config.acl == self.config.acl:
            # The same rules, with what has been counted of them.
            fresh, self.authorization = self.authorization, before.authorization
            before.authorization = fresh
            self.questions = before.questions
        else:
            self.authorization.denied = before.authorization.denied

    def still_admits(self, client: ClientInfo, module: str) -> bool:
        """Whether the chain would let in a client that `module` let in before.

        As far as that can be known without what the client has shown: the module is in the chain,
        and `anonymous` is for this client.
        """
        return self.authentication.still_admits(client, module)

    def _client_rules_depend(self) -> None:
        self.authorization.client_rules_depend = True
        self._changed()

    def _changed(self) -> None:
        self.epoch += 1
        if self.on_change is not None:
            self.on_change()

    def _revoked(self, module: str, names: frozenset[str]) -> None:
        self.authentication.forget(module)
        if self.on_revoked is not None and names:
            self.on_revoked(module, names)

    # -- authorization, see `mqttd.access.authorization`

    def authorize(self, client: ClientInfo, action: Action, topic: str) -> bool:
        """True if `client` may do `action` on `topic` (a topic name, or the filter subscribed)."""
        return self.authorization.authorize(client, action, topic)

    def decide(self, client: ClientInfo, action: Action, topic: str) -> Decision:
        """The decision of `authorize` and the rule behind it; never IGNORE, never raises."""
        return self.authorization.decide(client, action, topic)

    def foresee(
        self, after: AccessControl, client: ClientInfo, action: Action, topic: str
    ) -> Decision:
        """As `decide` with the rules file and ``acl.nomatch`` of another; nothing is counted."""
        there = after.authorization
        found = self.authorization.look(client, action, topic, there.rules())
        return there.nomatch if found is self.authorization.nomatch else found

    def class_of(self, client: ClientInfo) -> int:
        """The number of the class of `client`: no rule tells its clients apart.

        -1: this client is to be asked for by itself.  Numbers hold until `epoch` moves, and for
        this client until it authenticates again.
        """
        return self.authorization.class_of(client)

    def constant(self, number: int) -> bool:
        """True if all clients of this class may publish, in any way, but below ``$``."""
        return self.authorization.constant(number)

    def judge(self, number: int, qos: int, retain: bool, topic: str) -> int:
        """1 if all clients of this class may publish to a topic name so, 0: ask for each."""
        return self.authorization.judge(number, qos, retain, topic)

    def realms(self, client: ClientInfo) -> list[str]:
        """Beginnings of topics below all of which `client` may publish, in any way."""
        return self.authorization.realms(client)

    def listening(self, client: ClientInfo) -> list[str]:
        """The same of what it may subscribe to; "": all that does not begin with ``$``."""
        return self.authorization.listening(client)

    def refusal(self, client: ClientInfo, action: Action, topic: str) -> Refusal | None:
        """What refuses this until `epoch` moves; None if it must be decided each time."""
        return self.authorization.refusal(client, action, topic)

    @property
    def denied(self) -> int:
        """Actions denied since the start."""
        return self.authorization.denied

    @property
    def depends_on_qos_retain(self) -> bool:
        """True if any rule looks at QoS or retain, so that a cache must be keyed by them too."""
        return self.authorization.depends_on_qos_retain

    def prepare_acl(self) -> None:
        """Do the slow part of the next `reload_acl`, in any thread."""
        self.authorization.prepare()

    def reload_acl(self) -> None:
        """Make every access-control module read its rules again; raises `AclReloadError`."""
        try:
            self.authorization.reload_acl()
        finally:
            self.epoch += 1

    # -- control

    def describe(self) -> list[dict[str, object]]:
        """Each module in the order it is asked: kind, name, seq, description and counters."""
        return self.authentication.describe() + self.authorization.describe()

    def counters(self) -> dict[str, float]:
        """What there is to count of authentication, by name: ``auth_MODULE_hits``, ..."""
        found: dict[str, float] = {}
        for entry in self.authentication.describe():
            prefix = "auth_" + re.sub(r"[^A-Za-z0-9_]", "_", str(entry["name"]))
            for key, name in _COUNTERS.items():
                found[f"{prefix}_{name}"] = cast(int, entry[key])
            latency = cast("dict[str, float]", entry["latency"])
            found[f"{prefix}_seconds_count"] = latency["count"]
            found[f"{prefix}_seconds_sum"] = latency["sum"]
        return found

    def close(self, shared: Container[str] = ()) -> None:
        """Let go of what the modules hold (threads); the chains refuse everything afterwards.

        Modules named in `shared` serve others too, and go on.
        """
        self.authentication.close(shared)
        self.authorization.close(shared)
        self.questions.close()
        self.epoch += 1

    def _auth_failed(self, name: str, error: Exception, then: str) -> None:
        if self.on_error is not None:
            self.on_error("auth", name, error, then)

    def _acl_failed(self, name: str, error: Exception) -> None:
        if self.on_error is not None:
            self.on_error("acl", name, error, "")

    def questions_of(self, listener: str) -> AclQuestions:
        """The questions about the rules that clients of this listener are judged by."""
        return self.questions

    def _differs(self, fields: dict[str, object]) -> None:
        self._event("acl shadow differs", fields)

    def _counted(self, name: str) -> None:
        if self.on_count is not None:
            self.on_count(name)

    def _event(self, event: str, fields: dict[str, object]) -> None:
        if self.on_event is not None:
            self.on_event(event, fields)


_KINDS: Final = ("auth", "acl")
_COUNTERS: Final = {
    "hit": "hits",
    "ok": "accepted",
    "deny": "denied",
    "ignore": "ignored",
    "error": "errors",
    "late": "late",
    "busy": "busy",
    "cached": "cached",
    "rejected": "rejected",
    "breaker_opened": "breaker_opened",
}
