"""A JSON Web Key Set behind a URL: read at the start, every few minutes, and for a new key id.

::

    token with kid --> known? --> key and its algorithms
                         | no
                         v
                       read the set, at most every 5 seconds --> look again

The promise: nothing blocks; the keys there were stay until a new set has been read whole; tokens
with made-up key ids cannot make the broker ask more often; secrets (``kty: oct``) are passed over,
and a key serves the algorithms of its own kind alone.

RFC 7517.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

__all__ = ["KeySet", "KeySetError", "algorithms_of"]

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {
    "secp256r1": ("ES256",),
    "secp384r1": ("ES384",),
    "secp521r1": ("ES512",),
    "secp256k1": ("ES256K",),
}
_ALL: Final = (*_RSA, *(name for names in _CURVES.values() for name in names), "EdDSA")

#: Seconds between two readings that a token causes.
PAUSE: Final = 5.0
#: Seconds a reading may take.
TIMEOUT: Final = 4.0
MAX_BYTES: Final = 1024 * 1024
MAX_KEYS: Final = 1000

Found = tuple[Any, tuple[str, ...]]


class KeySetError(Exception):
    """The key set cannot be had."""


class KeySet:
    """The keys at `url`, read every `refresh` seconds with the clock and network of `reactor`.

    `algorithms` are the ones taken, () for all that fit a key. ``get(url)`` gives a Deferred of the
    body. Raises ValueError for a URL that is neither https nor on this machine.
    """

    def __init__(
        self,
        url: str,
        refresh: float,
        algorithms: tuple[str, ...],
        reactor: Any,
        on_event: Callable[[str, dict[str, object]], None] | None = None,
        get: Callable[[str], Deferred[bytes]] | None = None,
    ) -> None:
        host = urlsplit(url).hostname or ""
        local = host in ("localhost", "::1") or host.startswith("127.")
        if not url.startswith("https://") and not local:
            raise ValueError(
                f"auth.jwt.jwks_url = {url!r}: expected https://, keys that come over http:// can"
                " be anybody's"
            )
        unknown = [name for name in algorithms if name not in _ALL]
        if unknown:
            raise ValueError(
                f"auth.jwt.algorithms: {unknown[0]!r}: expected some of {', '.join(_ALL)}"
            )
        self.url = url
        self.refresh = refresh
        self._wanted = frozenset(algorithms)
        self._reactor = reactor
        self._on_event = on_event
        self._get = get or self._http
        self._keys: dict[str, Found] = {}
        self._read_at: float | None = None
        self._asked_at = float("-inf")
        self._error: Exception | None = None
        self._waiting: list[Deferred[None]] | None = None
        self._call: Any = None

    # -- reading

    def start(self) -> None:
        """Read the set now and then every `refresh` seconds."""
        self._call = self._reactor.callLater(self.refresh, self.start)
        self.fetch()

    def stop(self) -> None:
        """Read it no more."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None

    def fetch(self) -> Deferred[None]:
        """Read the set; the Deferred fires when that is done, well or not."""
        done: Deferred[None] = Deferred()
        if self._waiting is not None:
            self._waiting.append(done)
            return done
        self._waiting = [done]
        self._asked_at = self._reactor.seconds()
        try:
            reading = self._get(self.url)
        except Exception:
            reading = Deferred()
            reading.errback(Failure())
        reading.addTimeout(TIMEOUT, self._reactor)
        reading.addCallback(self._read).addErrback(self._failed).addBoth(self._done)
        return done

    def _read(self, body: bytes) -> None:
        self._keys = _parse(body, self._wanted)
        self._read_at = self._reactor.seconds()
        self._error = None

    def _failed(self, failure: Failure) -> None:
        error = failure.value
        self._error = error if isinstance(error, Exception) else RuntimeError(str(error))
        if self._on_event is not None:
            text = f"{type(error).__name__}: {error}"[:200]
            self._on_event("key set not read", {"module": "jwt", "url": self.url, "error": text})

    def _done(self, result: object) -> None:
        waiting, self._waiting = self._waiting or [], None
        for done in waiting:
            done.callback(None)

    def _http(self, url: str) -> Deferred[bytes]:
        import treq
        from twisted.web.client import Agent

        client: Any = treq.client.HTTPClient(Agent(self._reactor, connectTimeout=TIMEOUT))

        def answered(response: Any) -> Deferred[bytes]:
            if response.code != 200:
                raise KeySetError(f"HTTP status {response.code}")
            body = bytearray()

            def more(data: bytes) -> None:
                body.extend(data)
                if len(body) > MAX_BYTES:
                    raise KeySetError(f"more than {MAX_BYTES} bytes")

            collected: Deferred[Any] = treq.collect(response, more)
            return collected.addCallback(lambda _: bytes(body))

        asked: Deferred[Any] = client.get(url, allow_redirects=False)
        return asked.addCallback(answered)

    # -- looking up

    def find(self, kid: object, algorithm: object) -> Found | None | Deferred[Found | None]:
        """The key `kid` with its algorithms, None if there is none; later if it has to be read.

        A token without a key id gets the one key that fits its algorithm, if it is the only one.
        Raises `KeySetError` while there are no keys at all.
        """
        found = self._known(kid, algorithm)
        if found is not None:
            return found
        recently = self._reactor.seconds() - self._asked_at < PAUSE
        if self._waiting is None and recently:
            if self._read_at is None:
                raise KeySetError(f"{self.url} could not be read: {type(self._error).__name__}")
            return None
        waiting: Deferred[Any] = self.fetch()
        return waiting.addCallback(lambda _: self._after(kid, algorithm))

    def _after(self, kid: object, algorithm: object) -> Found | None:
        if self._read_at is None:
            raise KeySetError(f"{self.url} could not be read: {type(self._error).__name__}")
        return self._known(kid, algorithm)

    def _known(self, kid: object, algorithm: object) -> Found | None:
        if isinstance(kid, str):
            return self._keys.get(kid)
        if kid is not None:
            return None
        fitting = [found for found in self._keys.values() if algorithm in found[1]]
        return fitting[0] if len(fitting) == 1 else None

    def description(self) -> str:
        """The address and how many keys were read."""
        if self._read_at is None:
            return f"key set {self.url}, not read yet"
        return f"key set {self.url}, {len(self._keys)} keys"


def algorithms_of(key: object) -> tuple[str, ...]:
    """The signature algorithms a public key is made for; ValueError for another kind of key."""
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < 2048:
            raise ValueError(f"an RSA key of {key.key_size} bits; expected at least 2048")
        return _RSA
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return _CURVES[key.curve.name]
    if isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        return ("EdDSA",)
    raise ValueError("expected an RSA, EC or Ed25519 public key")


def _parse(body: bytes, wanted: frozenset[str]) -> dict[str, Found]:
    """Key ids and keys of a set; `KeySetError` if it is none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise KeySetError("no JSON") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise KeySetError(f'expected {{"keys": [...]}} with at most {MAX_KEYS} keys')
    keys: dict[str, Found] = {}
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or entry.get("kty") not in ("RSA", "EC", "OKP"):
            continue  # a secret in a published set is none
        if entry.get("use", "sig") != "sig" or "d" in entry:
            continue
        try:
            key = jwt.PyJWK({k: v for k, v in entry.items() if k != "alg"}).key
            fitting = algorithms_of(key)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        named = entry.get("alg")
        taken = tuple(
            name for name in fitting if named in (None, name) and (not wanted or name in wanted)
        )
        if taken:
            keys[str(entry.get("kid", f"#{number}"))] = (key, taken)
    if not keys:
        raise KeySetError("no key in it can be used")
    return keys
