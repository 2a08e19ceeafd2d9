"""Verifies password hashes off the reactor thread, for the modules that read files of them.

    recall --> verified within `remember` seconds? --> yes, at once
    check  --> a thread: argon2, PBKDF2 ...        --> yes: remembered | no

What is remembered is a keyed hash (BLAKE2b, under a key that this process made at its start) of the
name, of the line's hash and of the password: a line that is gone or is another one is not found
again, so that nothing has to be forgotten when users change.

Promise: `Hasher` never hashes in the reactor thread: threads of its own do (argon2 and PBKDF2 let
go of the interpreter lock; on Linux they stand back behind the event loop), at most `waiting`
clients wait for them and the next is refused as busy; a client that is not known costs a hash all
the same. Remembered are at most `MOST` answers, those of the longest ago go first.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from mqttd.secrets.passwords import Cost, dummy_hash, verify
from mqttd.types import AUTH_OK, AuthError, AuthVerdict

__all__ = ["MOST", "Hasher", "limits_of_hashing"]

#: Answers that are remembered.
MOST: Final = 100_000

#: How far the threads stand back behind the event loop.
_NICE: Final = 3
_KEY: Final = os.urandom(32)
_SERVER_BUSY: Final = 0x89
_REFUSED: Final = AuthError("bad user name or password")


class Hasher:
    """Verifies passwords off the reactor thread.

    Without a `reactor`, in the caller's thread.  `pool` is a thread pool to use instead of one of
    its own.  `threads`, `waiting` (clients beside those that the threads are at) and `remember`
    (seconds, 0: nothing) may be set before the first check.
    """

    def __init__(self, reactor: Any = None, pool: Any = None) -> None:
        self.threads = 2
        self.waiting = 100
        self.remember = 0.0
        #: What a hash costs where there are no users.
        self.cost = Cost()
        self._known: dict[bytes, float] = {}
        self._now: Callable[[], float] = getattr(reactor, "seconds", time.monotonic)
        self._reactor = reactor
        self._pool = pool
        self._own_pool: ThreadPool | None = None
        self._stopped = False
        self._trigger: Any = None
        #: Checks that have not come to their end, also of clients that are gone.
        self._asked = 0

    def settle(self, opts: Mapping[str, object]) -> dict[str, object]:
        """Take the options of ``[auth.password]``; returns the `limits` of a module with them."""
        self.threads = int(str(opts.get("threads", self.threads)))
        self.waiting = int(str(opts.get("waiting", self.waiting)))
        self.remember = float(str(opts.get("remember", 0)))
        if "memory" in opts:
            memory, passes, lanes = (int(str(opts[key])) for key in ("memory", "passes", "lanes"))
            self.cost = Cost(max(memory // 1024, 8 * lanes), passes, lanes)
        return limits_of_hashing(opts)

    def recall(self, hashes: Mapping[str, str], name: str, password: bytes | None) -> bool:
        """Whether this password was that of `name` a while ago, and the line is still the same."""
        hashed = hashes.get(name)
        if not self._known or hashed is None or password is None:
            return False
        key = _key(name, hashed, password)
        until = self._known.get(key)
        if until is None:
            return False
        if until <= self._now():
            del self._known[key]
            return False
        return True

    def check(
        self, hashes: Mapping[str, str], name: str, password: bytes | None
    ) -> AuthVerdict | Deferred[AuthVerdict]:
        """OK if `password` is that of `name`; what is wrong with a refusal does not show."""
        known = hashes.get(name)
        hashed = dummy_hash(hashes, name, self.cost) if known is None else known
        secret = b"" if password is None else password
        usable = known is not None and password is not None
        key = _key(name, hashed, secret) if usable and self.remember else None
        if self._reactor is None:
            return self._judge(verify(hashed, secret), usable, key)
        if self._asked >= self.threads + self.waiting:
            return AuthError("too many clients wait for password checks", _SERVER_BUSY)
        self._asked += 1
        # A Deferred of its own: one that is cancelled leaves its thread at work, still counted.
        answer: Deferred[AuthVerdict] = Deferred()
        work = deferToThreadPool(
            self._reactor, self._threads(), self._verify_unless_stopped, hashed, secret
        )
        work.addBoth(self._waited).addCallback(self._judge, usable, key)
        work.addCallbacks(answer.callback, answer.errback)
        return answer

    def close(self) -> None:
        """Stop the threads; waits for those that are hashing."""
        if self._trigger is not None:
            self._reactor.removeSystemEventTrigger(self._trigger)
        self._stop()

    def _waited(self, result: Any) -> Any:
        self._asked -= 1
        return result

    def _verify_unless_stopped(self, hashed: str, password: bytes) -> bool:
        """In a thread: what still waits when the broker stops is not worth a hash each."""
        _stand_back()
        return not self._stopped and verify(hashed, password)

    def _judge(self, matches: bool, usable: bool, key: bytes | None) -> AuthVerdict:
        if not (matches and usable):
            return _REFUSED
        if key is not None:
            known = self._known
            known.pop(key, None)
            if len(known) >= MOST:
                del known[next(iter(known))]
            known[key] = self._now() + self.remember
        return AUTH_OK

    def _threads(self) -> Any:
        if self._pool is None:
            # Not the reactor's own pool: slow look-ups of plugins must not hold up log-ins.
            pool = ThreadPool(0, self.threads, "mqttd-passwords")
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


def limits_of_hashing(opts: Mapping[str, object]) -> dict[str, object]:
    """The `limits` of a module that hashes: as many at a time as there are threads.

    Its answers depend on a file alone: nothing for the guard to keep, and nothing that comes back
    by waiting. Who has waited as long as CONNECT may take is gone.
    """
    limits = {"cache_ok": 0, "cache_denied": 0, "breaker_failures": 0, "deadline": 10.0}
    limits["concurrency"] = int(str(opts.get("threads", 2)))
    for key in ("waiting", "waiting_per_address"):
        if key in opts:
            limits[key] = int(str(opts[key]))
    return dict(limits)


def _key(name: str, hashed: str, password: bytes) -> bytes:
    keyed = hashlib.blake2b(key=_KEY, digest_size=32)
    for part in (name.encode("utf-8", "surrogatepass"), hashed.encode(), password):
        keyed.update(len(part).to_bytes(5, "big") + part)
    return keyed.digest()


_here = threading.local()


def _stand_back() -> None:
    """Once in each thread: let the event loop have the processor first, where that is possible."""
    if getattr(_here, "stands_back", False):
        return
    _here.stands_back = True
    try:
        # On Linux a thread has a priority of its own.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    except (OSError, AttributeError):
        pass
