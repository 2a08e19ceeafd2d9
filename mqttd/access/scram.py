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

import base64
import hashlib
import hmac
import os
import re
import stringprep
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from zope.interface import implementer

from mqttd.access import secret_file
from mqttd.access.secret_file import SecretFileModule
from mqttd.interfaces import IAuthExchange, IEnhancedAuthenticator
from mqttd.types import AuthContinue, AuthError, AuthOk, ClientInfo

__all__ = [
    "METHOD",
    "Keys",
    "Scram",
    "ScramExchange",
    "add_scram_user",
    "delete_scram_user",
    "make_keys",
    "parse_keys",
    "read_scram_users",
    "saslprep",
]

METHOD: Final = "SCRAM-SHA-256"
#: What new users get; RFC 7677 asks for at least 4096.
ITERATIONS: Final = 16384

_REFUSED: Final = AuthError("bad user name or password", 0x87)
_PROOF: Final = re.compile(r"SCRAM-SHA-256\$([1-9][0-9]{0,7}):([^$:]+)\$([^$:]+):([^$:]+)")
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{8,256}")
_KEY: Final = os.urandom(32)
_MAX_STEP: Final = 4096


@dataclass(slots=True, frozen=True)
class Keys:
    """What the broker keeps of one user."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        return (
            f"{METHOD}${self.iterations}:{_b64(self.salt)}"
            f"${_b64(self.stored_key)}:{_b64(self.server_key)}"
        )


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
        super().__init__("scram", _expects, True, reactor, on_revoked, on_event)
        self._nonce = nonce or _new_nonce

    def begin(self, client: ClientInfo) -> ScramExchange:
        """A new exchange with `client`."""
        return ScramExchange(client, self._keys, self._nonce())

    def description(self) -> str:
        """The file and how many users it holds."""
        return f"scram: {METHOD}, {len(self._file.names)} users in {self._file.path}"

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
                raise _Malformed("message too long")
            text = data.decode("utf-8")
            return self._begin(text) if self._keys is None else self._finish(text, self._keys)
        except UnicodeDecodeError:
            return AuthError("SCRAM: not UTF-8", 0x82)
        except _Malformed as error:
            return AuthError(f"SCRAM: {error}", 0x82)

    def _begin(self, text: str) -> AuthContinue | AuthError:
        flag, comma, rest = text.partition(",")
        authzid, second, bare = rest.partition(",")
        if not comma or not second or flag not in ("n", "y"):
            # "p=...": the client insists on channel binding, which is not offered.
            raise _Malformed("expected n,, at the beginning: there is no channel binding")
        parts = bare.split(",")
        if len(parts) < 2 or not parts[0].startswith("n=") or not parts[1].startswith("r="):
            raise _Malformed("expected n=USER,r=NONCE")
        self._user = saslprep(_unescape(parts[0][2:]))
        if authzid and _unescape(authzid.removeprefix("a=")) != self._user:
            return AuthError("SCRAM: no user may act for another", 0x87)
        if self._client.username is not None and self._client.username != self._user:
            return AuthError("the user name of CONNECT is not that of the SCRAM message", 0x87)
        nonce = parts[1][2:]
        if not _NONCE.fullmatch(nonce):
            raise _Malformed("expected a nonce of 8 to 256 printable characters")
        self._header = f"{flag},{authzid},"
        self._first = bare
        self._keys, self._known = self._lookup(self._user)
        self._nonce = nonce + self._nonce
        salt = _b64(self._keys.salt)
        self._server_first = f"r={self._nonce},s={salt},i={self._keys.iterations}"
        return AuthContinue(self._server_first.encode())

    def _finish(self, text: str, keys: Keys) -> AuthOk | AuthError:
        without_proof, comma, proof_text = text.rpartition(",p=")
        parts = without_proof.split(",")
        if not comma or len(parts) < 2 or not parts[0].startswith("c="):
            raise _Malformed("expected c=BINDING,r=NONCE,p=PROOF")
        if parts[0][2:] != _b64(self._header.encode()):
            raise _Malformed("the channel binding is not that of the first message")
        if not hmac.compare_digest(parts[1].encode(), f"r={self._nonce}".encode()):
            raise _Malformed("the nonce is not the one that was sent")
        proof = _unb64(proof_text)
        if len(proof) != 32:
            raise _Malformed("expected a proof of 32 bytes")
        signed = ",".join((self._first, self._server_first, without_proof)).encode()
        signature = hmac.digest(keys.stored_key, signed, "sha256")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.sha256(client_key).digest()
        if not hmac.compare_digest(stored_key, keys.stored_key) or not self._known:
            return _REFUSED
        verifier = _b64(hmac.digest(keys.server_key, signed, "sha256"))
        return AuthOk(username=self._user, data=f"v={verifier}".encode())


class _Malformed(ValueError):
    """A message that is not SCRAM's; the text shows nothing of it."""


# -- keys


def make_keys(password: str, iterations: int = ITERATIONS, salt: bytes | None = None) -> Keys:
    """The keys for a password.  Takes some 10 ms; ValueError for a password SASLprep forbids."""
    if salt is None:
        salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return Keys(iterations, salt, hashlib.sha256(client_key).digest(), server_key)


def parse_keys(proof: str) -> Keys:
    """The keys of a line; ValueError if it is none."""
    found = _PROOF.fullmatch(proof)
    if found is None:
        raise ValueError("expected SCRAM-SHA-256$ITERATIONS:SALT$StoredKey:ServerKey")
    stored_key, server_key = _unb64(found[3]), _unb64(found[4])
    if len(stored_key) != 32 or len(server_key) != 32:
        raise ValueError("expected keys of 32 bytes")
    return Keys(int(found[1]), _unb64(found[2]), stored_key, server_key)


def saslprep(text: str) -> str:
    """`text` as RFC 4013 prepares user names and passwords; ValueError for what it forbids."""
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in text
        if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for char in prepared:
        if any(forbidden(char) for forbidden in _FORBIDDEN):
            raise _Malformed("a character that SASLprep forbids")
    if any(map(stringprep.in_table_d1, prepared)) and (
        any(map(stringprep.in_table_d2, prepared))
        or not stringprep.in_table_d1(prepared[0])
        or not stringprep.in_table_d1(prepared[-1])
    ):
        raise _Malformed("text of both directions")
    return prepared


_FORBIDDEN: Final = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


# -- the file


def read_scram_users(path: str | os.PathLike[str]) -> dict[str, str]:
    """User names and keys of a file; raises as `mqttd.access.secret_file.read`."""
    return secret_file.read(path, _expects)


def add_scram_user(path: str | os.PathLike[str], user: str, password: str) -> bool:
    """Add `user` or give it a new password; True if it is new."""
    secret_file.check_name(user)
    user = saslprep(user)
    return secret_file.put(path, _expects, user, str(make_keys(password)))


def delete_scram_user(path: str | os.PathLike[str], user: str) -> bool:
    """Take `user` out of the file; False if it was not there."""
    return secret_file.take_out(path, _expects, user)


def _expects(proof: str) -> str | None:
    try:
        parse_keys(proof)
    except ValueError:
        return "SCRAM-SHA-256$ITERATIONS:SALT$StoredKey:ServerKey"
    return None


def _unescape(name: str) -> str:
    """A user name as it was before ``,`` became ``=2C`` and ``=`` became ``=3D``."""
    if re.search("=(?!2C|3D)", name) or not name:
        raise _Malformed("a user name that is not escaped as it should be")
    return name.replace("=2C", ",").replace("=3D", "=")


def _new_nonce() -> str:
    return _b64(os.urandom(18))


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _unb64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise _Malformed("expected base64") from None
