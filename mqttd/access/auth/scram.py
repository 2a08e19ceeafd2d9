"""SCRAM-SHA-256 over MQTT 5.0's enhanced authentication: no password on the wire or on the disk.

::

    CONNECT  n,,n=user,r=CNONCE                        -->
                         <--  AUTH  r=CNONCE+SNONCE,s=SALT,i=4096
    AUTH     c=biws,r=CNONCE+SNONCE,p=PROOF            -->
                         <--  CONNACK  v=SIGNATURE     (the broker proves that it knows the user)

The file holds ``user:SCRAM-SHA-256$ITERATIONS:SALT$StoredKey:ServerKey``, as PostgreSQL writes it:
who reads it can neither log in with it nor find the password but by guessing.

The promise: one step costs a few HMACs and nothing that waits; an unknown user gets a salt of its
own, always the same while the broker runs, and fails as late as a wrong password.

RFC 5802, RFC 7677.  No channel binding, no authorization identity.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Callable
from typing import Any, Final

from zope.interface import implementer

from mqttd.access.auth.secret_file import SecretFileModule
from mqttd.interfaces import IAuthExchange, IEnhancedAuthenticator
from mqttd.secrets.scram import (
    ITERATIONS,
    METHOD,
    Keys,
    Malformed,
    b64,
    expects,
    parse_keys,
    saslprep,
    unb64,
)
from mqttd.types import AuthContinue, AuthError, AuthOk, ClientInfo

__all__ = ["Scram", "ScramExchange"]

_REFUSED: Final = AuthError("bad user name or password", 0x87)
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{8,256}")
_KEY: Final = os.urandom(32)
_MAX_STEP: Final = 4096


@implementer(IEnhancedAuthenticator)
class Scram(SecretFileModule):
    """Authenticates by SCRAM-SHA-256 against a file; options ``file``, ``required`` (True).

    `reactor` is the clock the file is watched with; ``nonce()`` gives the broker's part of a nonce.
    """

    method: Final = METHOD

    def __init__(
        self,
        reactor: Any = None,
        on_revoked: Callable[[str, frozenset[str]], None] | None = None,
        on_event: Callable[[str, dict[str, object]], None] | None = None,
        nonce: Callable[[], str] | None = None,
    ) -> None:
        super().__init__("scram", expects, True, reactor, on_revoked, on_event)
        self._nonce = nonce or _new_nonce

    def begin(self, client: ClientInfo) -> ScramExchange:
        """A new exchange with `client`."""
        return ScramExchange(client, self._keys, self._nonce())

    def description(self) -> str:
        """The file and how many users it holds."""
        count = len(self._file.names)
        return f"scram: {METHOD}, {count} user{'' if count == 1 else 's'} in {self._file.path}"

    def _keys(self, user: str) -> tuple[Keys, bool]:
        """The user's keys and True, or made-up ones that nobody has, and False."""
        proof = self._file.names.get(user)
        if proof is not None:
            return parse_keys(proof), True
        iterations = ITERATIONS
        for other in self._file.names.values():
            iterations = parse_keys(other).iterations
            break
        salt = hmac.digest(_KEY, user.encode("utf-8", "replace"), "sha256")[:16]
        return Keys(iterations, salt, os.urandom(32), os.urandom(32)), False


@implementer(IAuthExchange)
class ScramExchange:
    """One client's exchange: first message, then final message."""

    def __init__(
        self, client: ClientInfo, keys: Callable[[str], tuple[Keys, bool]], nonce: str
    ) -> None:
        self._client = client
        self._lookup = keys
        self._nonce = nonce
        self._header = ""
        self._first = ""
        self._server_first = ""
        self._user = ""
        self._keys: Keys | None = None
        self._known = False

    def step(self, data: bytes) -> AuthContinue | AuthOk | AuthError:
        """The next message of the client."""
        try:
            if len(data) > _MAX_STEP:
                raise Malformed("message too long")
            text = data.decode("utf-8")
            return self._begin(text) if self._keys is None else self._finish(text, self._keys)
        except UnicodeDecodeError:
            return AuthError("SCRAM: not UTF-8", 0x82)
        except Malformed as error:
            return AuthError(f"SCRAM: {error}", 0x82)

    def _begin(self, text: str) -> AuthContinue | AuthError:
        flag, comma, rest = text.partition(",")
        authzid, second, bare = rest.partition(",")
        if not comma or not second or flag not in ("n", "y"):
            # "p=...": the client insists on channel binding, which is not offered.
            raise Malformed("expected n,, at the beginning: there is no channel binding")
        parts = bare.split(",")
        if len(parts) < 2 or not parts[0].startswith("n=") or not parts[1].startswith("r="):
            raise Malformed("expected n=USER,r=NONCE")
        self._user = saslprep(_unescape(parts[0][2:]))
        if authzid and _unescape(authzid.removeprefix("a=")) != self._user:
            return AuthError("SCRAM: no user may act for another", 0x87)
        if self._client.username is not None and self._client.username != self._user:
            return AuthError("the user name of CONNECT is not that of the SCRAM message", 0x87)
        nonce = parts[1][2:]
        if not _NONCE.fullmatch(nonce):
            raise Malformed("expected a nonce of 8 to 256 printable characters")
        self._header = f"{flag},{authzid},"
        self._first = bare
        self._keys, self._known = self._lookup(self._user)
        self._nonce = nonce + self._nonce
        salt = b64(self._keys.salt)
        self._server_first = f"r={self._nonce},s={salt},i={self._keys.iterations}"
        return AuthContinue(self._server_first.encode())

    def _finish(self, text: str, keys: Keys) -> AuthOk | AuthError:
        without_proof, comma, proof_text = text.rpartition(",p=")
        parts = without_proof.split(",")
        if not comma or len(parts) < 2 or not parts[0].startswith("c="):
            raise Malformed("expected c=BINDING,r=NONCE,p=PROOF")
        if parts[0][2:] != b64(self._header.encode()):
            raise Malformed("the channel binding is not that of the first message")
        if not hmac.compare_digest(parts[1].encode(), f"r={self._nonce}".encode()):
            raise Malformed("the nonce is not the one that was sent")
        proof = unb64(proof_text)
        if len(proof) != 32:
            raise Malformed("expected a proof of 32 bytes")
        signed = ",".join((self._first, self._server_first, without_proof)).encode()
        signature = hmac.digest(keys.stored_key, signed, "sha256")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.sha256(client_key).digest()
        if not hmac.compare_digest(stored_key, keys.stored_key) or not self._known:
            return _REFUSED
        if self._lookup(self._user) != (keys, True):
            return _REFUSED  # gone, or another password, since the exchange began
        verifier = b64(hmac.digest(keys.server_key, signed, "sha256"))
        return AuthOk(username=self._user, data=f"v={verifier}".encode())


def _unescape(name: str) -> str:
    """A user name as it was before ``,`` became ``=2C`` and ``=`` became ``=3D``."""
    if re.search("=(?!2C|3D)", name) or not name:
        raise Malformed("a user name that is not escaped as it should be")
    return name.replace("=2C", ",").replace("=3D", "=")


def _new_nonce() -> str:
    return b64(os.urandom(18))
