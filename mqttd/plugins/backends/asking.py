"""The module of the authentication chain that asks a back end: from a client to a verdict.

    client --values_of--> ask(values, password) --> Found | None --Judge--> AuthOk | AuthError
                          in a thread of the plugin, or a Deferred

Promise: a client that lacks what the question needs (a user name, a certificate) is not asked
about; one without a password, or with names of many thousand characters, is refused unasked. What a
client can bring about by the name it chose is a refusal, never a failure of the module: nobody
opens its circuit breaker for others. At most as many questions are under way as there are threads;
deadline, queue, breaker and cache are the broker's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Literal

from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.interfaces import IAuthenticator, IPluginHandle
from mqttd.plugins.backends.hashes import HashError, PasswordHash, Passwords
from mqttd.plugins.backends.rules import acl_text
from mqttd.plugins.backends.templates import values_of
from mqttd.types import AUTH_IGNORE, AuthError, AuthOk, AuthVerdict, ClientInfo

__all__ = ["Found", "Judge", "Module", "Threaded", "within"]

#: Threads that a plugin has (see `IPluginHandle.in_thread`).
THREADS: Final = 4

#: Longest value (characters) and password (bytes) that a back end is asked about.
_LONGEST: Final = 4096
_LONGEST_PASSWORD: Final = 16384

_REFUSED: Final = AuthError("bad user name or password")


def within(waiting: Deferred[Any], seconds: float, clock: Any, what: str) -> Deferred[Any]:
    """Give an answer up after `seconds`; TimeoutError names what did not answer."""

    def late(result: object, timeout: float) -> object:
        raise TimeoutError(f"{what}: no answer within {timeout:g} s")

    return waiting.addTimeout(seconds, clock, late)


@dataclass(slots=True)
class Found:
    """What a back end knows of a user; a password hash of None or "" is that of nobody.

    ``username`` is the name as the back end writes it, where it takes no notice of case or blanks:
    the client goes by it, so that rules and bans for one spelling hold for all.
    """

    password_hash: str | None = None
    salt: str = ""
    superuser: bool = False
    username: str | None = None


class Judge:
    """Makes a verdict of what was found; its methods may be called in any thread."""

    def __init__(self, passwords: PasswordHash | None, unknown: Literal["deny", "ignore"]) -> None:
        self._passwords = Passwords(passwords or PasswordHash())
        self._unknown: AuthVerdict = AUTH_IGNORE if unknown == "ignore" else _REFUSED

    def judge(
        self,
        found: Found | None,
        password: bytes,
        rules: Callable[[], Iterable[Mapping[str, Any]] | None],
    ) -> AuthVerdict:
        """OK if `password` is that of `found`; `rules` is asked for rules only then."""
        if found is None:
            self._passwords.check(None, "", password)
            return self._unknown
        if not found.password_hash:
            return AuthError("the user has no password hash")
        try:
            if not self._passwords.check(found.password_hash, found.salt, password):
                return _REFUSED
        except HashError as error:
            return AuthError(str(error))
        return self.allow(found.superuser, rules(), found.username)

    def allow(
        self,
        superuser: bool,
        rules: Iterable[Mapping[str, Any]] | None,
        username: str | None = None,
    ) -> AuthVerdict:
        """OK with these rules, None for none; an ERROR if they cannot be understood."""
        try:
            acl = acl_text(rules) if rules is not None else None
            return AuthOk(superuser, acl or None, username=username)
        except ValueError as error:
            return AuthError(f"the rules of this client: {error}")

    def unknown(self) -> AuthVerdict:
        """The verdict for a user that the back end does not know."""
        return self._unknown

    def refuse(self) -> AuthVerdict:
        """The verdict for a wrong password."""
        return _REFUSED


@implementer(IAuthenticator)
class Module:
    """Asks by ``ask(values, password)``, which answers with a verdict or a Deferred of one.

    `needs` are names of values that a client must have to be asked about.
    """

    #: Whatever clients show is answered with a refusal: what is raised is the back end's fault.
    blames_back_end: Final = True
    #: See `IAuthenticator`.
    limits: Mapping[str, object] | None = None

    def __init__(
        self,
        text: str,
        needs: Iterable[str],
        ask: Callable[[dict[str, str], bytes], AuthVerdict | Deferred[AuthVerdict]],
    ) -> None:
        self._text = text
        self._needs = frozenset(needs)
        self._ask = ask

    def init(self, opts: Mapping[str, object]) -> None:
        """There are no options: the plugin's configuration says all."""

    def concerns(self, client: ClientInfo, password: bytes | None) -> bool:
        """Those who have what the question needs."""
        return self._needs <= values_of(client).keys()

    def check(
        self, client: ClientInfo, password: bytes | None
    ) -> AuthVerdict | Deferred[AuthVerdict]:
        """See `IAuthenticator.check`."""
        values = values_of(client)
        if not self._needs <= values.keys():
            return AUTH_IGNORE
        if password is None:
            return AuthError("no password")
        if len(password) > _LONGEST_PASSWORD or any(
            len(value) > _LONGEST for value in values.values()
        ):
            return AuthError("a name or password that is too long")
        return self._ask(values, password)

    def description(self) -> str:
        """What it asks, and where."""
        return self._text


class Threaded(Module):
    """As `Module`, with an `ask` that blocks: it is called in the plugin's threads."""

    limits: Mapping[str, object] | None = {"concurrency": THREADS}

    def __init__(
        self,
        handle: IPluginHandle,
        text: str,
        needs: Iterable[str],
        ask: Callable[[dict[str, str], bytes], AuthVerdict],
        timeout: float,
    ) -> None:
        super().__init__(text, needs, self._in_thread)
        self._handle = handle
        self._blocking = ask
        self._timeout = timeout

    def _in_thread(self, values: dict[str, str], password: bytes) -> Deferred[AuthVerdict]:
        # Who has given up meanwhile must not cost a thread.
        until = monotonic() + 2 * self._timeout
        waiting: Deferred[AuthVerdict] = self._handle.in_thread(
            self._unless_late, until, values, password
        )
        return waiting

    def _unless_late(self, until: float, values: dict[str, str], password: bytes) -> AuthVerdict:
        if monotonic() > until:
            raise TimeoutError("all threads are busy")
        return self._blocking(values, password)
