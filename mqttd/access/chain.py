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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeadlineError
from twisted.python.failure import Failure
from zope.interface import verify

from mqttd.access.authorization import AclReloadError, Authorization, OnDeny
from mqttd.interfaces import IAuthenticator
from mqttd.types import (
    Action,
    AuthError,
    AuthIgnore,
    AuthOk,
    AuthResult,
    AuthVerdict,
    ClientInfo,
    Decision,
)

if TYPE_CHECKING:
    from mqttd.config.schema import Config

__all__ = ["AccessControl", "AclReloadError", "DEADLINE", "UnknownModule"]

Kind: TypeAlias = Literal["auth", "acl"]
OnError: TypeAlias = Callable[[str, str, Exception], None]

#: Seconds a module may take to answer with a Deferred.
DEADLINE: Final = 5.0

_NOT_AUTHORIZED: Final = 0x87
_SERVER_UNAVAILABLE: Final = 0x88


class UnknownModule(ValueError):
    """No module of that kind has that name."""


@dataclass(slots=True)
class _Entry:
    """A registered module and its counters."""

    name: str
    module: Any
    seq: int
    number: int
    hit: int = 0
    ok: int = 0
    deny: int = 0
    ignore: int = 0
    error: int = 0

    def describe(self, kind: str) -> dict[str, object]:
        return {
            "kind": kind,
            "name": self.name,
            "seq": self.seq,
            "description": str(self.module.description()),
            "hit": self.hit,
            "ok": self.ok,
            "deny": self.deny,
            "ignore": self.ignore,
            "error": self.error,
        }


class AccessControl:
    """The two chains, built from the configuration; plugins add to them at run time.

    ``reactor`` (a clock with ``callLater``) gives Deferred verdicts their deadline of
    `deadline` seconds and takes password hashing off the reactor thread; without one, hashing
    happens in the caller's thread and a Deferred verdict is refused as an error.

    ``on_deny(client, action, topic, rule)`` is told of each denied action,
    ``on_error(kind, name, exception)`` of each module that failed.

    Raises what the modules raise when their files are wrong: `AclSyntaxError`,
    `PasswordFileError`, `OSError`, all naming the file; `UnknownModule`.
    """

    def __init__(
        self,
        config: Config,
        reactor: Any = None,
        on_deny: OnDeny | None = None,
        on_error: OnError | None = None,
        deadline: float = DEADLINE,
    ) -> None:
        self.config = config
        self.reactor = reactor
        self.on_deny = on_deny
        self.on_error = on_error
        self.deadline = deadline
        #: grows with every change that may change an answer of `authorize`
        self.epoch: int = 1
        self.authorization = Authorization(config.acl, on_deny, self._acl_failed)
        self._auth: list[_Entry] = []
        self._number = 0
        for name in config.auth.chain:
            self.register_mod("auth", name, {})
        self.register_mod("acl", "acl", {})

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
        if name in self._names(kind):
            raise ValueError(f"{kind} module {name!r} is registered already")
        if module_or_opts is None or isinstance(module_or_opts, Mapping):
            module = self._built_in(kind, name, module_or_opts or {})
        else:
            module = module_or_opts
        if kind == "acl":
            self.authorization.register(name, module, seq)
        else:
            verify.verifyObject(IAuthenticator, module)
            if seq is None:
                seq = max((entry.seq for entry in self._auth), default=0) + 1
            self._number += 1
            self._auth.append(_Entry(name, module, seq, self._number))
            self._auth.sort(key=lambda entry: (entry.seq, entry.number))
        self.epoch += 1

    def _names(self, kind: Kind) -> list[str]:
        if kind == "auth":
            return [entry.name for entry in self._auth]
        if kind == "acl":
            return self.authorization.names()
        raise ValueError(f'kind: expected "auth" or "acl", got {kind!r}')

    def unregister_mod(self, kind: Kind, name: str) -> None:
        """Take a module out of its chain; `UnknownModule` if it is not there."""
        if name not in self._names(kind):
            raise UnknownModule(f"no {kind} module {name!r} is registered")
        self.epoch += 1
        if kind == "acl":
            self.authorization.unregister(name)
            return
        for entry in list(self._auth):
            if entry.name == name:
                self._auth.remove(entry)
                _close(entry.module)

    def _built_in(self, kind: Kind, name: str, opts: Mapping[str, object]) -> object:
        module: Any
        filled: dict[str, object]
        if kind == "auth" and name == "anonymous":
            from mqttd.access.anonymous import Anonymous

            module, filled = Anonymous(), {"allow": self.config.auth.anonymous}
        elif kind == "auth" and name == "username":
            from mqttd.access.username import Username

            module = Username(self.reactor)
            filled = {
                "file": self.config.auth.username.file,
                "required": "auth.username.file" in self.config.given,
            }
        elif kind == "acl" and name == "acl":
            from mqttd.access.acl_rules import AclFile

            module, filled = AclFile(), {"file": self.config.acl.file}
        else:
            known = "username, anonymous" if kind == "auth" else "acl"
            raise UnknownModule(f"no built-in {kind} module {name!r}; expected one of: {known}")
        filled.update(opts)
        module.init(filled)
        return cast(object, module)

    # -- authentication

    def authenticate(
        self, client: ClientInfo, password: bytes | None
    ) -> AuthResult | Deferred[AuthResult]:
        """Find out whether `client` is who it says.

        Answers at once unless a module has to wait.  The Deferred never fails.  On success
        the client's ``superuser``, ``attributes`` and ``acl`` are set.
        """
        return self._ask_auth(client, password, tuple(self._auth), 0)

    def _ask_auth(
        self, client: ClientInfo, password: bytes | None, chain: tuple[_Entry, ...], start: int
    ) -> AuthResult | Deferred[AuthResult]:
        for i in range(start, len(chain)):
            entry = chain[i]
            entry.hit += 1
            try:
                verdict = entry.module.check(client, password)
            except Exception as error:
                return self._auth_failed(entry, error)
            if isinstance(verdict, Deferred):
                return self._wait(client, password, chain, i, verdict)
            result = self._judge(client, entry, verdict)
            if result is not None:
                return result
        return AuthResult(False, _NOT_AUTHORIZED, "no authentication module knows this client")

    def _wait(
        self,
        client: ClientInfo,
        password: bytes | None,
        chain: tuple[_Entry, ...],
        i: int,
        waiting: Deferred[AuthVerdict],
    ) -> AuthResult | Deferred[AuthResult]:
        entry = chain[i]
        if self.reactor is None:
            waiting.addErrback(lambda failure: None)
            waiting.cancel()
            return self._auth_failed(entry, RuntimeError("a Deferred verdict needs a reactor"))
        waiting.addTimeout(self.deadline, self.reactor)

        def answered(verdict: object) -> AuthResult | Deferred[AuthResult]:
            result = self._judge(client, entry, verdict)
            if result is not None:
                return result
            return self._ask_auth(client, password, chain, i + 1)

        def failed(failure: Failure) -> AuthResult:
            error = failure.value
            if not isinstance(error, Exception):
                error = RuntimeError(str(error))
            return self._auth_failed(entry, error)

        return cast("Deferred[AuthResult]", waiting.addCallback(answered).addErrback(failed))

    def _judge(self, client: ClientInfo, entry: _Entry, verdict: object) -> AuthResult | None:
        """The result of a verdict; None asks the next module."""
        if isinstance(verdict, AuthIgnore):
            entry.ignore += 1
            return None
        if isinstance(verdict, AuthError):
            entry.deny += 1
            code = verdict.reason_code if verdict.reason_code >= 0x80 else _NOT_AUTHORIZED
            return AuthResult(False, code, verdict.reason, module=entry.name)
        if not isinstance(verdict, AuthOk):
            return self._auth_failed(entry, TypeError(f"not an AuthVerdict: {verdict!r}"))
        if verdict.acl is not None:
            from mqttd.access.acl_rules import AclRules

            try:
                rules = AclRules.from_text(verdict.acl, f"<rules from {entry.name}>")
            except ValueError as error:
                return self._auth_failed(entry, error)
            client.acl = rules
            if rules.depends_on_qos_retain and not self.authorization.client_rules_depend:
                self.authorization.client_rules_depend = True
                self.epoch += 1
        entry.ok += 1
        client.superuser = verdict.superuser
        client.attributes = verdict.attributes
        return AuthResult(
            True,
            0,
            "",
            verdict.superuser,
            verdict.attributes,
            verdict.expires_at,
            entry.name,
        )

    def _auth_failed(self, entry: _Entry, error: Exception) -> AuthResult:
        self._count_error("auth", entry, error)
        late = isinstance(error, DeadlineError)
        text = f"no answer within {self.deadline:g} s" if late else f"{type(error).__name__}"
        return AuthResult(
            False, _SERVER_UNAVAILABLE, f"module {entry.name} failed: {text}", module=entry.name
        )

    # -- authorization, see `mqttd.access.authorization`

    def authorize(self, client: ClientInfo, action: Action, topic: str) -> bool:
        """True if `client` may do `action` on `topic` (a topic name, or the filter subscribed)."""
        return self.authorization.authorize(client, action, topic)

    def decide(self, client: ClientInfo, action: Action, topic: str) -> Decision:
        """The decision of `authorize` and the rule behind it; never IGNORE, never raises."""
        return self.authorization.decide(client, action, topic)

    @property
    def denied(self) -> int:
        """Actions denied since the start."""
        return self.authorization.denied

    @property
    def depends_on_qos_retain(self) -> bool:
        """True if any rule looks at QoS or retain, so that a cache must be keyed by them too."""
        return self.authorization.depends_on_qos_retain

    def reload_acl(self) -> None:
        """Make every access-control module read its rules again; raises `AclReloadError`."""
        try:
            self.authorization.reload_acl()
        finally:
            self.epoch += 1

    # -- control

    def describe(self) -> list[dict[str, object]]:
        """Each module in the order it is asked: kind, name, seq, description and counters."""
        return [entry.describe("auth") for entry in self._auth] + self.authorization.describe()

    def close(self) -> None:
        """Let go of what the modules hold (threads); the chains refuse everything afterwards."""
        for entry in self._auth:
            _close(entry.module)
        self._auth = []
        self.authorization.close()
        self.epoch += 1

    def _count_error(self, kind: Kind, entry: _Entry, error: Exception) -> None:
        entry.error += 1
        if self.on_error is not None:
            self.on_error(kind, entry.name, error)

    def _acl_failed(self, name: str, error: Exception) -> None:
        if self.on_error is not None:
            self.on_error("acl", name, error)


def _close(module: Any) -> None:
    close: partial[None] | Callable[[], None] | None = getattr(module, "close", None)
    if close is not None:
        close()
