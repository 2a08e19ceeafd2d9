"""The authentication chain: modules asked in their order whether a client is who it says.

::

    CONNECT with password    username -> ... -> anonymous -> refused    IGNORE asks the next,
                                                                        OK and ERROR end it
    CONNECT with a method    the module that serves it <-> AUTH <-> client

Promise: modules are asked in the order of their sequence numbers, then of registration.  All
fails closed: a chain that comes to its end refuses, a module that raises, answers nonsense or does
not answer within the deadline refuses (unless ``auth.backend.on_error`` says otherwise), and is
counted; so does a module that ``auth.chain`` names and no plugin has registered.  What a module
costs others is bounded by its `Guard`.  All methods are called in the reactor thread.

MQTT 5.0: 3.1.4-2 (authentication at CONNECT), 4.12 (enhanced authentication).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from twisted.internet.defer import Deferred
from zope.interface import verify

from mqttd.access.auth.anonymous import Anonymous
from mqttd.access.auth.guard import Answer, Gone, Guard, OnEvent, limits_of, stays
from mqttd.access.auth.module import BUILT_IN, Absent, Entry, UnknownModule
from mqttd.access.auth.secret_file import SecretFileModule
from mqttd.interfaces import IAuthenticator, IEnhancedAuthenticator
from mqttd.types import (
    AUTH_OK,
    AuthContinue,
    AuthError,
    AuthIgnore,
    AuthOk,
    AuthResult,
    ClientInfo,
)

if TYPE_CHECKING:
    from mqttd.config.schema import AuthBackend

__all__ = [
    "BUILT_IN",
    "Absent",
    "AuthenticationChain",
    "Exchange",
    "OnRevoked",
    "UnknownModule",
]

OnRevoked: TypeAlias = Callable[[str, frozenset[str]], None]

_REMEDY: Final = (
    "name it in auth.chain before that one, register it with seq=0, or set"
    ' auth.username.unknown = "ignore"'
)

_AGAIN: Final = "its plugin is being loaded again"

_NOT_AUTHORIZED: Final = 0x87
_BAD_USER_NAME: Final = 0x86
_SERVER_BUSY: Final = 0x89
_BANNED: Final = 0x8A


class AuthenticationChain:
    """The modules that authenticate.

    `reactor` (a clock with ``callLater``) gives Deferred verdicts their deadline; without one they
    are failures.  ``on_error(name, exception, then)`` is told of each failure and what happens to
    the client then, ``on_event(event, fields)`` of what an operator should know.
    """

    def __init__(
        self,
        limits: AuthBackend,
        reactor: Any,
        on_error: Callable[[str, Exception, str], None],
        on_event: OnEvent,
    ) -> None:
        self.limits = limits
        self.reactor = reactor
        self.on_error = on_error
        self.on_event = on_event
        self._entries: tuple[Entry, ...] = ()
        self._number = 0
        #: it has ended: what it is still asked, or was, it answers with a no
        self._closed = False
        #: names of ``auth.chain`` that belong to plugins, and their places
        self._reserved: dict[str, int] = {}
        #: a module gave some client rules that look at QoS or RETAIN
        self.rules_depend = False
        #: whether a client is not to be asked about any more
        self.barred: Callable[[ClientInfo], bool] = lambda client: False
        #: called when `rules_depend` becomes true
        self.rules_changed: Callable[[], None] = _nothing

    def now(self) -> float:
        """Seconds of the clock of all deadlines."""
        return time.monotonic() if self.reactor is None else float(self.reactor.seconds())

    # -- modules

    def add(self, name: str, module: object, seq: int | None = None) -> None:
        """Put a module that is ready into the chain; `seq` lower first, None is last.

        One whose name is reserved or held takes that place, unless `seq` names another.
        Raises ValueError for a name in use, `zope.interface.Invalid` naming a missing method.
        """
        had = self._find(name)
        if had is not None and not isinstance(had.module, Absent):
            raise ValueError(f"auth module {name!r} is registered already")
        enhanced = IEnhancedAuthenticator.providedBy(module)
        checks = IAuthenticator.providedBy(module) or not enhanced
        method = ""
        if checks:
            verify.verifyObject(IAuthenticator, module)
        if enhanced:
            verify.verifyObject(IEnhancedAuthenticator, module)
            method = str(cast(Any, module).method)
            taken = self._serving(method)
            if taken is not None:
                raise ValueError(
                    f"auth module {name!r}: {taken.name!r} serves the method {method!r} already"
                )
        limits = limits_of(name, module, self.limits)
        guard = Guard(name, limits, self.reactor, self.on_error, self.on_event, module)
        if seq is None and had is not None:
            seq = had.seq
        if seq is None:
            seq = max((entry.seq for entry in self._entries), default=0) + 1
        if had is not None:
            self._drop(had)
        self._number += 1
        plain = AuthResult(True, module=name)
        concerns = getattr(module, "concerns", None)
        immediate = type(module) is Anonymous
        entry = Entry(
            name, module, seq, self._number, guard, checks, concerns, method, plain, immediate
        )
        self._entries = tuple(
            sorted((*self._entries, entry), key=lambda entry: (entry.seq, entry.number))
        )
        if checks and not isinstance(module, Absent):
            self._warn_if_unreached(entry)

    def _warn_if_unreached(self, entry: Entry) -> None:
        """Tell of a plugin's module that no client with a user name will come to."""
        for before in self._entries[: self._entries.index(entry)]:
            if entry.name not in BUILT_IN and getattr(before.module, "refuses_unknown", False):
                told = f"{before.name} decides about every client with a user name before"
                self.on_event(
                    "auth module is never asked about users",
                    {"module": entry.name, "reason": told, "remedy": _REMEDY},
                )
                return

    def reserve(self, name: str) -> None:
        """Keep the next place for a plugin's module; until it comes, it refuses everybody."""
        seq = max((entry.seq for entry in self._entries), default=0) + 1
        self._reserved[name] = seq
        self.add(name, Absent(name), seq)

    def unclaimed(self) -> list[str]:
        """Names whose places are kept, and that no module has taken."""
        return [
            entry.name
            for entry in self._entries
            if entry.name in self._reserved and isinstance(entry.module, Absent)
        ]

    def remove(self, name: str) -> None:
        """Take a module out; a reserved place refuses from then on.  Raises `UnknownModule`."""
        entry = self._find(name)
        if entry is None or isinstance(entry.module, Absent):
            raise UnknownModule(f"no auth module {name!r} is registered")
        self._drop(entry)
        if name in self._reserved:
            self.add(name, Absent(name), self._reserved[name])
        _close(entry)

    def hold(self, name: str, seq: int | None = None) -> int:
        """Take a module out, and have its place refuse until another comes or `release`.

        Without such a module, the place is made at `seq`.  Returns where it is.
        """
        entry = self._find(name)
        if entry is not None:
            self._drop(entry)
            _close(entry)
            seq = entry.seq
        self.add(name, Absent(name, _AGAIN), seq)
        held = self._find(name)
        assert held is not None
        return held.seq

    def release(self, name: str) -> None:
        """Nobody comes for a place that is held."""
        entry = self._find(name)
        if entry is not None and isinstance(entry.module, Absent):
            self._drop(entry)
            if name in self._reserved:
                self.add(name, Absent(name), self._reserved[name])

    def _drop(self, entry: Entry) -> None:
        self._entries = tuple(other for other in self._entries if other is not entry)
        entry.guard.close()

    def _find(self, name: str) -> Entry | None:
        return next((entry for entry in self._entries if entry.name == name), None)

    def _serving(self, method: str) -> Entry | None:
        return next((entry for entry in self._entries if entry.method == method), None)

    # -- authentication

    def authenticate(
        self, client: ClientInfo, password: bytes | None, gone: Gone = stays
    ) -> AuthResult | Deferred[AuthResult]:
        """Find out whether `client` is who it says; at once unless a module has to wait.

        Where its turn comes later and it is `gone` by then, no module is asked and it is refused.
        The Deferred never fails.  On success the client's ``superuser``, ``attributes``, ``acl``
        and, where a module has proved another one, ``username`` are set.
        """
        return self._ask(client, password, gone, self._entries, 0)

    def _ask(
        self,
        client: ClientInfo,
        password: bytes | None,
        gone: Gone,
        chain: tuple[Entry, ...],
        start: int,
    ) -> AuthResult | Deferred[AuthResult]:
        for i in range(start, len(chain)):
            entry = chain[i]
            if entry.immediate:
                if entry.guard.tell(entry.module.check(client, password)):
                    return entry.plain
                continue
            if not entry.checks or not _concerns(entry, client, password):
                continue
            module = entry.module
            check = _Check(self, module, client, password)
            answer = entry.guard.ask(check, client, password, gone)
            if isinstance(answer, Deferred):
                return cast(
                    "Deferred[AuthResult]",
                    answer.addCallback(self._came, client, password, gone, chain, i),
                )
            result = self._judge(client, entry, answer)
            if result is not None:
                return result
        # As for a wrong password, so that nobody can find out which names there are.
        code = _NOT_AUTHORIZED if client.username is None else _BAD_USER_NAME
        return AuthResult(False, code, "no authentication module knows this client")

    def _came(
        self,
        answer: Answer,
        client: ClientInfo,
        password: bytes | None,
        gone: Gone,
        chain: tuple[Entry, ...],
        i: int,
    ) -> AuthResult | Deferred[AuthResult]:
        if self._closed:
            return _too_late()
        result = self._judge(client, chain[i], answer)
        return self._ask(client, password, gone, chain, i + 1) if result is None else result

    def _judge(self, client: ClientInfo, entry: Entry, answer: Answer) -> AuthResult | None:
        """The result of an answer; None asks the next module."""
        verdict = answer.verdict
        if isinstance(verdict, AuthIgnore):
            return None
        if isinstance(verdict, AuthError):
            return AuthResult(False, verdict.reason_code, verdict.reason, module=entry.name)
        assert isinstance(verdict, AuthOk)
        return self._accept(client, entry, verdict, answer.rules)

    def _accept(self, client: ClientInfo, entry: Entry, ok: AuthOk, rules: Any) -> AuthResult:
        client.superuser = ok.superuser
        if client.attributes is None:
            client.attributes = ok.attributes
        elif ok.attributes is not None:  # what the connection shows stays beside
            client.attributes = {**ok.attributes, **client.attributes}
        client.acl = rules
        if ok.username is not None:
            client.username = ok.username
        if rules is not None and rules.depends_on_qos_retain and not self.rules_depend:
            self.rules_depend = True
            self.rules_changed()
        if ok.attributes is None and ok.expires_at is None and ok.data is None:
            if not ok.superuser:
                return entry.plain
        return AuthResult(
            True, 0, "", ok.superuser, ok.attributes, ok.expires_at, entry.name, ok.data
        )

    # -- enhanced authentication

    def begin(self, client: ClientInfo, method: str) -> Exchange | None:
        """Start an authentication by `method`; None if no module serves it."""
        entry = self._serving(method) if method else None
        return None if entry is None else Exchange(self, entry, client)

    # -- control

    def describe(self) -> list[dict[str, object]]:
        """Each module in the order it is asked."""
        return [entry.describe() for entry in self._entries]

    def reload(self) -> list[str]:
        """Have the modules read their files again (those with a method ``reload``).

        All cached answers go.  A module whose file is wrong keeps what it had: the list says, one
        line each, what is wrong.
        """
        faults: list[str] = []
        for entry in self._entries:
            entry.guard.cache.clear()
            reload: Callable[[], None] | None = getattr(entry.module, "reload", None)
            if reload is None:
                continue
            try:
                reload()
            except Exception as error:
                self.on_error(entry.name, error, "")
                faults.append(f"{entry.name}: {error}")
        return faults

    def forget(self, name: str) -> None:
        """The users of a module have changed: none of its kept answers holds."""
        entry = self._find(name)
        if entry is not None:
            entry.guard.cache.clear()

    def follow(self, before: AuthenticationChain) -> None:
        """Take the place of another chain: modules of the same name go on counting."""
        for entry in self._entries:
            had = before._find(entry.name)
            if had is None:
                continue
            entry.guard.go_on(had.guard)
            follow: Callable[[Any], None] | None = getattr(entry.module, "follow", None)
            if follow is not None and type(had.module) is type(entry.module):
                follow(had.module)

    def names_of(self, name: str) -> int | None:
        """How many users the file of a module holds; None where that is not the question."""
        entry = self._find(name)
        return getattr(entry.module, "size", None) if entry is not None else None

    def files(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Path, names and proofs of each module that has a file, by the module's name."""
        return {
            entry.name: entry.module.held()
            for entry in self._entries
            if isinstance(entry.module, SecretFileModule)
        }

    def still_admits(self, client: ClientInfo, module: str) -> bool:
        """See `mqttd.access.chain.AccessControl.still_admits`."""
        entry = self._find(module)
        if entry is None:
            return False
        return not entry.immediate or entry.module.check(client, None) is AUTH_OK

    def close(self, shared: Container[str] = ()) -> None:
        """Let go of what the modules hold; the chain refuses everybody afterwards.

        Those named in `shared` serve other chains too, and go on.
        """
        entries, self._entries = self._entries, ()
        self._closed = True
        for entry in entries:
            entry.guard.close()
            if entry.name not in shared:
                _close(entry)


class Exchange:
    """One enhanced authentication of one client, at CONNECT or again.

    `step` as often as the answer is `AuthContinue`.  On success the client is filled in as by
    `AuthenticationChain.authenticate`.
    """

    def __init__(self, chain: AuthenticationChain, entry: Entry, client: ClientInfo) -> None:
        self.method = entry.method
        self.client = client
        self._chain = chain
        self._entry = entry
        self._exchange: Any = None

    def step(self, data: bytes) -> AuthContinue | AuthResult | Deferred[AuthContinue | AuthResult]:
        """The client's Authentication Data: goes on, or decides.  The Deferred never fails."""
        answer = self._entry.guard.step(_Step(self, data), self.client)
        if isinstance(answer, Deferred):
            return cast("Deferred[AuthContinue | AuthResult]", answer.addCallback(self._judge))
        return self._judge(answer)

    def take(self, data: bytes) -> object:
        """Ask the module."""
        if self._exchange is None:
            self._exchange = self._entry.module.begin(self.client)
        return self._exchange.step(data)

    def _judge(self, answer: Answer) -> AuthContinue | AuthResult:
        if self._chain._closed:
            return _too_late()
        if isinstance(answer.verdict, AuthContinue):
            return answer.verdict
        result = self._chain._judge(self.client, self._entry, answer)
        if result is None:
            # Its failure is to be ignored, and there is no next module for a method.
            return AuthResult(False, _NOT_AUTHORIZED, f"module {self._entry.name} failed")
        return result


class _Check:
    """``module.check(client, password)``, later."""

    __slots__ = ("chain", "client", "module", "password")

    def __init__(
        self, chain: AuthenticationChain, module: Any, client: ClientInfo, password: bytes | None
    ) -> None:
        self.chain = chain
        self.module = module
        self.client = client
        self.password = password

    def __call__(self) -> object:
        if self.chain.barred(self.client):  # since it has been waiting for its turn
            return AuthError("too many failed log-ins", _BANNED)
        return self.module.check(self.client, self.password)


class _Step:
    """``exchange.take(data)``, later."""

    __slots__ = ("data", "exchange")

    def __init__(self, exchange: Exchange, data: bytes) -> None:
        self.exchange = exchange
        self.data = data

    def __call__(self) -> object:
        return self.exchange.take(self.data)


def _concerns(entry: Entry, client: ClientInfo, password: bytes | None) -> bool:
    if entry.concerns is None:
        return True
    try:
        return entry.concerns(client, password) is not False
    except Exception:
        return True  # then its ``check`` is asked, whose failures are counted


def _too_late() -> AuthResult:
    """The result for a client whose chain has ended while it was asked about."""
    return AuthResult(False, _SERVER_BUSY, "authentication is another by now")


def _nothing() -> None:
    pass


def _close(entry: Entry) -> None:
    close: Callable[[], None] | None = getattr(entry.module, "close", None)
    if close is not None:
        close()
