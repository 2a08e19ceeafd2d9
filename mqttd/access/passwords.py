"""Password hashes: made as argon2id, verified in that format and those of mosquitto_passwd.

::

    $argon2id$v=19$m=65536,t=3,p=4$SALT$HASH        argon2id (RFC 9106), what is made here
    $7$ITERATIONS$SALT$HASH                         PBKDF2 with HMAC-SHA-512, mosquitto 1.6 to 2.0
    $6$SALT$HASH                                    SHA-512 of password and salt, before 1.6

Promise: hashes are compared in constant time; `Hasher` never hashes in the reactor thread: two
threads of its own do (argon2 and PBKDF2 let go of the interpreter lock), at most 100 clients wait
for them and the next is refused as busy; a client that is not known costs a hash all the same.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import verify_secret
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from mqttd.types import AUTH_OK, AuthError, AuthVerdict

__all__ = ["Hasher", "dummy_hash", "expects", "hash_password", "is_hash", "verify"]

_THREADS: Final = 2
_MAX_WAITING: Final = 100
_SERVER_BUSY: Final = 0x89
_REFUSED: Final = AuthError("bad user name or password")

_BASE64: Final = r"[A-Za-z0-9+/]{1,512}={0,2}"
_SHA512: Final = re.compile(rf"\$6\$({_BASE64})\$({_BASE64})")
_PBKDF2: Final = re.compile(rf"\$7\$([1-9][0-9]{{0,7}})\$({_BASE64})\$({_BASE64})")
#: Decides which known user's parameters an unknown one gets; not to be guessed from outside.
_KEY: Final = os.urandom(16)


class Hasher:
    """Verifies passwords off the reactor thread.

    Without a `reactor`, in the caller's thread.  `pool` is a thread pool to use instead of one of
    its own.
    """

    def __init__(self, reactor: Any = None, pool: Any = None) -> None:
        self._reactor = reactor
        self._pool = pool
        self._own_pool: ThreadPool | None = None
        self._stopped = False
        self._trigger: Any = None
        self._waiting = 0

    def check(
        self, hashes: Mapping[str, str], name: str, password: bytes | None
    ) -> AuthVerdict | Deferred[AuthVerdict]:
        """OK if `password` is that of `name`; what is wrong with a refusal does not show."""
        known = hashes.get(name)
        hashed = dummy_hash(hashes, name) if known is None else known
        secret = b"" if password is None else password
        usable = known is not None and password is not None
        if self._reactor is None:
            return _judge(verify(hashed, secret), usable)
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
        return not self._stopped and verify(hashed, password)

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


def hash_password(password: str | bytes) -> str:
    """The argon2id hash of a password, for a line of the file.  Takes some 50 ms."""
    return PasswordHasher().hash(password)


def expects(proof: str) -> str | None:
    """What a line of a password file should have held; None if it is a hash that `verify` knows."""
    if is_hash(proof):
        return None
    return "an argon2id hash ($argon2id$...), or $6$... or $7$... of mosquitto_passwd"


def is_hash(text: str) -> bool:
    """True if `verify` understands this hash."""
    if _SHA512.fullmatch(text) or _PBKDF2.fullmatch(text):
        return all(_decodes(part) for part in text.split("$")[-2:])
    try:
        kind = extract_parameters(text).type
    except (InvalidHashError, ValueError, KeyError):
        return False
    return kind is Type.ID and text.count("$") == 5 and text.isascii()


def verify(hashed: str, password: bytes) -> bool:
    """True if `password` has this hash.  Slow on purpose: to be called in a thread."""
    if (found := _SHA512.fullmatch(hashed)) is not None:
        made = hashlib.sha512(password + base64.b64decode(found[1])).digest()
        return hmac.compare_digest(made, base64.b64decode(found[2]))
    if (found := _PBKDF2.fullmatch(hashed)) is not None:
        made = hashlib.pbkdf2_hmac(
            "sha512", password, base64.b64decode(found[2]), int(found[1]), 64
        )
        return hmac.compare_digest(made, base64.b64decode(found[3]))
    try:
        return bool(verify_secret(hashed.encode("ascii"), password, Type.ID))
    except VerificationError:
        return False


def dummy_hash(hashes: Mapping[str, str], name: str) -> str:
    """A hash that no password has, as dear to verify as that of some user there is.

    The same `name` gets the same parameters each time, as a known user does.
    """
    parameters = "v=19$m=65536,t=3,p=4"
    if hashes:
        picked = int.from_bytes(hmac.digest(_KEY, name.encode("utf-8", "replace"), "sha256"), "big")
        like = _nth(hashes, picked % min(len(hashes), 16))
        if not like.startswith("$argon2id$"):
            cost = "$".join(like.split("$")[1:-2])
            return f"${cost}${_random(12)}${_random(64)}"
        parameters = "$".join(like.split("$")[2:4])
    salt, digest = _random(16).rstrip("="), _random(32).rstrip("=")
    return f"$argon2id${parameters}${salt}${digest}"


def _nth(hashes: Mapping[str, str], n: int) -> str:
    for i, hashed in enumerate(hashes.values()):
        if i == n:
            return hashed
    raise IndexError(n)


def _random(size: int) -> str:
    return base64.b64encode(os.urandom(size)).decode("ascii")


def _decodes(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _judge(matches: bool, usable: bool) -> AuthVerdict:
    return AUTH_OK if matches and usable else _REFUSED
