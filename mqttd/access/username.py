"""User names and passwords from a file of argon2id hashes.

::

    # etc/users.conf, mode 0600
    alice:$argon2id$v=19$m=65536,t=3,p=4$...

The promise: hashing never runs in the reactor thread (two threads of its own; argon2 lets go
of the interpreter lock), at most 100 clients wait for it and the next is refused as busy; an
unknown user takes as long as a known one; a wrong line keeps the broker from starting, and a
reload that fails keeps the users there were.
"""

from __future__ import annotations

import base64
import os
import stat
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError
from argon2.low_level import verify_secret
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool
from zope.interface import implementer

from mqttd.interfaces import IAuthenticator
from mqttd.types import AUTH_IGNORE, AUTH_OK, AuthError, AuthVerdict, ClientInfo

__all__ = [
    "PasswordFileError",
    "PasswordFileWarning",
    "Username",
    "add_user",
    "delete_user",
    "hash_password",
    "read_users",
]

_THREADS: Final = 2
_MAX_WAITING: Final = 100
_SERVER_BUSY: Final = 0x89
_REFUSED: Final = AuthError("bad user name or password")


class PasswordFileError(ValueError):
    """A line of the password file is wrong; the text starts with file and line."""


class PasswordFileWarning(UserWarning):
    """The password file can be read by everybody."""


@implementer(IAuthenticator)
class Username:
    """Checks user name and password against a file.

    Options: ``file``, its path; ``required`` (False): whether it must exist; one that need not
    and does not holds no users.  A client without a user name is ignored, an
    unknown user and a wrong password are refused alike.

    Without a `reactor` hashes are verified in the caller's thread.  `pool` is a thread pool
    to use instead of one of its own.
    """

    def __init__(self, reactor: Any = None, pool: Any = None) -> None:
        self._reactor = reactor
        self._pool = pool
        self._own_pool: ThreadPool | None = None
        self._stopped = False
        self._trigger: Any = None
        self._waiting = 0
        self._path = Path()
        self._required = False
        self._users: dict[str, str] = {}
        self._dummy = ""

    def init(self, opts: Mapping[str, object]) -> None:
        """Read the file; `PasswordFileError` or OSError if that is not possible."""
        self._path = Path(str(opts["file"]))
        self._required = bool(opts.get("required", False))
        self.reload()

    def reload(self) -> None:
        """Read the file again; on any error the users there were stay."""
        try:
            users = read_users(self._path)
        except FileNotFoundError:
            if self._required:
                raise
            users = {}
        self._users = users
        self._dummy = _dummy_hash(next(iter(users.values()), None))

    def check(
        self, client: ClientInfo, password: bytes | None
    ) -> AuthVerdict | Deferred[AuthVerdict]:
        """IGNORE without a user name, else OK or ERROR, later if there is a reactor."""
        if client.username is None:
            return AUTH_IGNORE
        known = self._users.get(client.username)
        hashed = self._dummy if known is None else known
        secret = b"" if password is None else password
        usable = known is not None and password is not None
        if self._reactor is None:
            return _judge(_verify(hashed, secret), usable)
        if self._waiting >= _MAX_WAITING:
            return AuthError("too many clients wait for password checks", _SERVER_BUSY)
        self._waiting += 1
        # A Deferred of its own: one that is cancelled leaves its thread at work, still counted.
        answer: Deferred[AuthVerdict] = Deferred()
        work = deferToThreadPool(
            self._reactor, self._threads(), self._verify_unless_stopped, hashed, secret
        )
        work.addBoth(self._waited).addCallback(_judge, usable)
        work.addCallbacks(answer.callback, answer.errback)
        return answer

    def description(self) -> str:
        """The file and how many users it holds."""
        return f"username: {len(self._users)} users in {self._path}"

    def close(self) -> None:
        """Stop the threads; waits for those that are hashing."""
        if self._trigger is not None:
            self._reactor.removeSystemEventTrigger(self._trigger)
        self._stop()

    def _waited(self, result: Any) -> Any:
        self._waiting -= 1
        return result

    def _verify_unless_stopped(self, hashed: str, password: bytes) -> bool:
        """In a thread: what still waits when the broker stops is not worth a hash each."""
        return not self._stopped and _verify(hashed, password)

    def _threads(self) -> Any:
        if self._pool is None:
            # Not the reactor's own pool: slow look-ups of plugins must not hold up log-ins.
            pool = ThreadPool(0, _THREADS, "mqttd-passwords")
            pool.start()
            self._own_pool = self._pool = pool
            self._trigger = self._reactor.addSystemEventTrigger("during", "shutdown", self._stop)
        return self._pool

    def _stop(self) -> None:
        self._trigger = None
        self._stopped = True
        if self._own_pool is not None:
            pool, self._own_pool, self._pool = self._own_pool, None, None
            pool.stop()


def _verify(hashed: str, password: bytes) -> bool:
    """True if `password` has this hash.  Runs in a thread."""
    try:
        return bool(verify_secret(hashed.encode("ascii"), password, Type.ID))
    except VerifyMismatchError:
        return False
    except VerificationError:
        return False


def _judge(matches: bool, usable: bool) -> AuthVerdict:
    return AUTH_OK if matches and usable else _REFUSED


def _dummy_hash(like: str | None) -> str:
    """A hash that no password has, as dear to verify as `like`."""
    parameters = "v=19$m=65536,t=3,p=4"
    if like is not None:
        parameters = "$".join(like.split("$")[2:4])
    return f"$argon2id${parameters}${_base64(os.urandom(16))}${_base64(os.urandom(32))}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii").rstrip("=")


# -- the file


@dataclass(slots=True, frozen=True)
class _Line:
    """One line as it stands in the file; ``user`` is None for comments and empty lines."""

    text: str
    user: str | None = None
    hashed: str = ""


def read_users(path: str | os.PathLike[str]) -> dict[str, str]:
    """User names and hashes of a password file.

    Warns with `PasswordFileWarning` if everybody may read it.  Raises OSError, or
    `PasswordFileError` with file and line.
    """
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & stat.S_IROTH:
        warnings.warn(
            f"{path}: mode {mode:04o} lets everybody read the password hashes; expected 0600",
            PasswordFileWarning,
            stacklevel=2,
        )
    return {line.user: line.hashed for line in _read_lines(path) if line.user is not None}


def hash_password(password: str | bytes) -> str:
    """The argon2id hash of a password, for a line of the file.  Takes some 50 ms."""
    return PasswordHasher().hash(password)


def add_user(path: str | os.PathLike[str], user: str, password: str | bytes) -> bool:
    """Add `user` or give it a new password; True if it is new.

    The file is replaced as a whole, with mode 0600; comments and other lines stay.
    Raises ValueError for a user name the file cannot hold, else as `read_users`.
    """
    _check_user(user)
    line = f"{user}:{hash_password(password)}"
    lines = _read_lines(path) if os.path.exists(path) else []
    texts = [line if old.user == user else old.text for old in lines]
    new = all(old.user != user for old in lines)
    if new:
        texts.append(line)
    _write(path, texts)
    return new


def delete_user(path: str | os.PathLike[str], user: str) -> bool:
    """Take `user` out of the file; False if it was not there.  Raises as `read_users`."""
    lines = _read_lines(path)
    rest = [line.text for line in lines if line.user != user]
    if len(rest) == len(lines):
        return False
    _write(path, rest)
    return True


def _read_lines(path: str | os.PathLike[str]) -> list[_Line]:
    try:
        content = Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise PasswordFileError(f"{path}: expected UTF-8 text: {error}") from None
    lines: list[_Line] = []
    seen: dict[str, int] = {}
    for number, text in enumerate(content.split("\n"), 1):
        text = text.rstrip("\r")
        stripped = text.strip()
        if not stripped or stripped.startswith("#"):
            lines.append(_Line(text))
            continue
        user, colon, hashed = stripped.rpartition(":")
        where = f"{path}:{number}"
        if not colon or not user:
            raise PasswordFileError(f"{where}: expected USER:HASH")
        _check_hash(where, user, hashed)
        if user in seen:
            raise PasswordFileError(
                f"{where}: user {user!r} is in line {seen[user]} already; expected one line each"
            )
        seen[user] = number
        lines.append(_Line(text, user, hashed))
    if lines and not lines[-1].text:
        lines.pop()  # what follows the last line end
    return lines


def _check_hash(where: str, user: str, hashed: str) -> None:
    # The hash itself is not shown: error texts end up in logs.
    try:
        kind = extract_parameters(hashed).type
    except (InvalidHashError, ValueError, KeyError):
        kind = None
    if kind is not Type.ID or hashed.count("$") != 5 or not hashed.isascii():
        raise PasswordFileError(
            f"{where}: user {user!r}: expected an argon2id hash ($argon2id$...)"
        )


def _check_user(user: str) -> None:
    if not user or user != user.strip() or user.startswith("#") or "\n" in user or "\r" in user:
        raise ValueError(
            f"user name {user!r}: expected text of one line, not empty, not starting with '#',"
            " without space at either end"
        )


def _write(path: str | os.PathLike[str], lines: list[str]) -> None:
    """Replace the file: the old one or the new one is there at any time, never half of one."""
    path = Path(os.path.realpath(path))
    # mkstemp makes the file with mode 0600
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
