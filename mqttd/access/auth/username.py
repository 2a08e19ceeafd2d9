"""User names and passwords from a file of hashes.

::

    # etc/users.conf, mode 0600
    alice:$argon2id$v=19$m=65536,t=3,p=4$...

The promise: hashing never runs in the reactor thread and an unknown user takes as long as a known
one (see `mqttd.access.passwords`); a wrong line keeps the broker from starting, and a reload that
fails keeps the users there were.  A changed file is read within seconds, and who has connected as a
user that is gone or has a new password is disconnected.  Of a user with an empty password the log
tells at the start, or at the first log-in with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.access.auth.hasher import Hasher, limits_of_hashing
from mqttd.access.auth.secret_file import SecretFileModule
from mqttd.interfaces import IAuthenticator
from mqttd.secrets.passwords import expects, with_empty_password
from mqttd.types import AUTH_IGNORE, AUTH_OK, AuthError, AuthOk, AuthVerdict, ClientInfo

__all__ = ["Username"]

_BAD_USER_NAME: Final = 0x86
#: Users with an empty password that are told of.
_WARNED: Final = 100


@implementer(IAuthenticator)
class Username(SecretFileModule):
    """Checks user name and password against a file.

    Options: ``file``, its path; ``required`` (False): whether it must exist; one that need not
    and does not holds no users; ``unknown``: what an unknown user is, ``deny``, ``ignore``, or
    ``pass`` where nobody checks them: these take no time.  A
    client without a user name is ignored.  An unknown user and a wrong password are refused alike,
    and with ``ignore`` the next module is asked as late as a refusal would come.

    Without a `reactor` hashes are verified in the caller's thread.  `pool` is a thread pool
    to use instead of one of its own.
    """

    def __init__(
        self,
        reactor: Any = None,
        pool: Any = None,
        on_revoked: Callable[[str, frozenset[str]], None] | None = None,
        on_event: Callable[[str, dict[str, object]], None] | None = None,
    ) -> None:
        super().__init__("username", expects, False, reactor, on_revoked, on_event)
        self._hasher = Hasher(reactor, pool)
        #: See `IAuthenticator`.
        self.limits: Mapping[str, object] = limits_of_hashing({})
        self._ignores_unknown = False
        self._passes_unknown = False
        #: Users with an empty password that were told of.
        self._warned: set[str] = set()

    def init(self, opts: Mapping[str, object]) -> None:
        """Read the file; `PasswordFileError` or OSError if that is not possible."""
        self._ignores_unknown = opts.get("unknown", "deny") == "ignore"
        self._passes_unknown = opts.get("unknown", "deny") == "pass"
        self.limits = self._hasher.settle(opts)
        super().init(opts)
        for name in with_empty_password(self._file.names):
            self._warn(name)

    def recall(self, client: ClientInfo, password: bytes | None) -> AuthVerdict | None:
        """OK for what was verified a while ago, None where that has to be done."""
        if client.username is None:
            return None
        known = self._hasher.recall(self._file.names, client.username, password)
        return AUTH_OK if known else None

    @property
    def refuses_unknown(self) -> bool:
        """Whether no module behind this one is asked about a client with a user name."""
        return not self._ignores_unknown

    def check(
        self, client: ClientInfo, password: bytes | None
    ) -> AuthVerdict | Deferred[AuthVerdict]:
        """IGNORE without a user name, else OK or ERROR, later if there is a reactor."""
        if client.username is None or not self.concerns(client, password):
            return AUTH_IGNORE
        name = client.username
        verdict = self._if_still(self._hasher.check(self._file.names, name, password), name)
        if password == b"":
            if isinstance(verdict, Deferred):
                verdict.addCallback(self._empty, client.username)
            else:
                self._empty(verdict, client.username)
        if not self._ignores_unknown or client.username in self._file.names:
            return verdict
        if isinstance(verdict, Deferred):
            return verdict.addCallback(_unknown)
        return _unknown(verdict)

    def _empty(self, verdict: AuthVerdict, name: str) -> AuthVerdict:
        """Somebody has shown an empty password: if it is right, the operator should know."""
        if isinstance(verdict, AuthOk):
            self._warn(name)
        return verdict

    def _warn(self, name: str) -> None:
        if name in self._warned or self._on_event is None:
            return
        if len(self._warned) < _WARNED:
            self._warned.add(name)
            self._on_event("empty password", {"username": name, "file": str(self._file.path)})

    def concerns(self, client: ClientInfo, password: bytes | None) -> bool:
        """Those with a user name; where others may have any, those with one of the file."""
        if client.username is None:
            return False
        return not self._passes_unknown or client.username in self._file.names

    def description(self) -> str:
        """The file and how many users it holds."""
        count = len(self._file.names)
        return f"username: {count} user{'' if count == 1 else 's'} in {self._file.path}"

    def close(self) -> None:
        """Stop the threads; waits for those that are hashing."""
        super().close()
        self._hasher.close()


def _unknown(verdict: AuthVerdict) -> AuthVerdict:
    """IGNORE in place of the refusal of an unknown user; a busy broker stays busy."""
    refused = isinstance(verdict, AuthError) and verdict.reason_code == _BAD_USER_NAME
    return AUTH_IGNORE if refused else verdict
