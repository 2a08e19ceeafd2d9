"""User names and passwords from a file of hashes.

::

    # etc/users.conf, mode 0600
    alice:$argon2id$v=19$m=65536,t=3,p=4$...

The promise: hashing never runs in the reactor thread and an unknown user takes as long as a known
one (see `mqttd.access.passwords`); a wrong line keeps the broker from starting, and a reload that
fails keeps the users there were.  A changed file is read within seconds, and who has connected as a
user that is gone or has a new password is disconnected.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.access import secret_file
from mqttd.access.passwords import Hasher, expects, hash_password
from mqttd.access.secret_file import PasswordFileError, PasswordFileWarning, SecretFileModule
from mqttd.interfaces import IAuthenticator
from mqttd.types import AUTH_IGNORE, AuthError, AuthVerdict, ClientInfo

__all__ = [
    "PasswordFileError",
    "PasswordFileWarning",
    "Username",
    "add_user",
    "delete_user",
    "hash_password",
    "import_users",
    "read_users",
]

_BAD_USER_NAME: Final = 0x86


@implementer(IAuthenticator)
class Username(SecretFileModule):
    """Checks user name and password against a file.

    Options: ``file``, its path; ``required`` (False): whether it must exist; one that need not
    and does not holds no users; ``unknown``: what an unknown user is, ``deny`` or ``ignore``.  A
    client without a user name is ignored.  An unknown user and a wrong password are refused alike,
    and with ``ignore`` the next module is asked as late as a refusal would come.

    Without a `reactor` hashes are verified in the caller's thread.  `pool` is a thread pool
    to use instead of one of its own.
    """

    #: Its answers depend on a file alone: nothing to keep, and nothing that comes back by waiting.
    limits: Final = {"cache_ok": 0, "cache_denied": 0, "breaker_failures": 0, "concurrency": 1000}

    def __init__(
        self,
        reactor: Any = None,
        pool: Any = None,
        on_revoked: Callable[[str, frozenset[str]], None] | None = None,
        on_event: Callable[[str, dict[str, object]], None] | None = None,
    ) -> None:
        super().__init__("username", expects, False, reactor, on_revoked, on_event)
        self._hasher = Hasher(reactor, pool)
        self._ignores_unknown = False

    def init(self, opts: Mapping[str, object]) -> None:
        """Read the file; `PasswordFileError` or OSError if that is not possible."""
        self._ignores_unknown = opts.get("unknown", "deny") == "ignore"
        super().init(opts)

    def check(
        self, client: ClientInfo, password: bytes | None
    ) -> AuthVerdict | Deferred[AuthVerdict]:
        """IGNORE without a user name, else OK or ERROR, later if there is a reactor."""
        if client.username is None:
            return AUTH_IGNORE
        verdict = self._hasher.check(self._file.names, client.username, password)
        if not self._ignores_unknown or client.username in self._file.names:
            return verdict
        if isinstance(verdict, Deferred):
            return verdict.addCallback(_unknown)
        return _unknown(verdict)

    def concerns(self, client: ClientInfo, password: bytes | None) -> bool:
        """Those with a user name."""
        return client.username is not None

    def description(self) -> str:
        """The file and how many users it holds."""
        return f"username: {len(self._file.names)} users in {self._file.path}"

    def close(self) -> None:
        """Stop the threads; waits for those that are hashing."""
        super().close()
        self._hasher.close()


def _unknown(verdict: AuthVerdict) -> AuthVerdict:
    """IGNORE in place of the refusal of an unknown user; a busy broker stays busy."""
    refused = isinstance(verdict, AuthError) and verdict.reason_code == _BAD_USER_NAME
    return AUTH_IGNORE if refused else verdict


def read_users(path: str | os.PathLike[str]) -> dict[str, str]:
    """User names and hashes of a password file.

    Warns with `PasswordFileWarning` if everybody may read it.  Raises OSError, or
    `PasswordFileError` with file and line.
    """
    return secret_file.read(path, expects)


def add_user(path: str | os.PathLike[str], user: str, password: str | bytes) -> bool:
    """Add `user` or give it a new password; True if it is new.

    The file is replaced as a whole, with mode 0600; comments and other lines stay.
    Raises ValueError for a user name the file cannot hold, else as `read_users`.
    """
    secret_file.check_name(user)
    return secret_file.put(path, expects, user, hash_password(password))


def delete_user(path: str | os.PathLike[str], user: str) -> bool:
    """Take `user` out of the file; False if it was not there.  Raises as `read_users`."""
    return secret_file.take_out(path, expects, user)


def import_users(
    path: str | os.PathLike[str], source: str | os.PathLike[str], overwrite: bool = False
) -> tuple[list[str], list[str]]:
    """Take the users of another password file over, hashes as they are.

    `source` may be mosquitto_passwd's.  Users that are there already stay as they are unless
    `overwrite`.  Returns the names taken and the names left.  Raises as `read_users`.
    """
    found = {
        line.name: line.proof
        for line in secret_file.read_lines(source, expects)
        if line.name is not None
    }
    lines = secret_file.read_lines(path, expects) if os.path.exists(path) else []
    had = {line.name for line in lines}
    left = [] if overwrite else [name for name in found if name in had]
    taken = {name: proof for name, proof in found.items() if name not in left}
    for name in taken:
        secret_file.check_name(name)
    if taken:
        secret_file.write(path, secret_file.replace(lines, taken))
    return list(taken), left
