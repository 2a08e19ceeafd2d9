"""Verifies password hashes off the reactor thread, for the modules that read files of them.

Promise: `Hasher` never hashes in the reactor thread: two threads of its own do (argon2 and PBKDF2
let go of the interpreter lock), at most 100 clients wait for them and the next is refused as busy;
a client that is not known costs a hash all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from mqttd.secrets.passwords import dummy_hash, verify
from mqttd.types import AUTH_OK, AuthError, AuthVerdict

__all__ = ["Hasher"]

_THREADS: Final = 2
_MAX_WAITING: Final = 100
_SERVER_BUSY: Final = 0x89
_REFUSED: Final = AuthError("bad user name or password")


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


def _judge(matches: bool, usable: bool) -> AuthVerdict:
    return AUTH_OK if matches and usable else _REFUSED
