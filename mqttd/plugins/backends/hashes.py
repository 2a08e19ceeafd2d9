"""Password hashes as other systems keep them.

    auto        told by the hash itself: argon2id, bcrypt, pbkdf2, and those of mosquitto_passwd
                $argon2id$v=19$m=65536,t=3,p=4$SALT$HASH    $2b$12$...
                $pbkdf2-sha256$29000$SALT$HASH              passlib
                pbkdf2_sha256$600000$SALT$HASH              Django
                $7$101$SALT$HASH  $6$SALT$HASH              mosquitto
    pbkdf2      hash and salt in two columns, iterations from the configuration
    sha256, sha512        hash and salt in two columns; the salt before or behind the password
    plain       the password itself: only when it is asked for

Promise: compared in constant time; a hash that is none of the configured format lets nobody in; a
user that is not known costs the hash of one that is. Slow on purpose: to be called in a thread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from mqttd.secrets.passwords import is_mosquitto, verify

__all__ = ["HashError", "PasswordHash", "Passwords"]

_BASE64: Final = r"[A-Za-z0-9+/]{1,512}={0,2}"
_ITERATIONS: Final = r"[1-9][0-9]{0,7}"
_PASSLIB: Final = re.compile(
    rf"\$pbkdf2-(sha256|sha512)\$({_ITERATIONS})\$([A-Za-z0-9./+]*)\$([A-Za-z0-9./+]+)"
)
_DJANGO: Final = re.compile(
    rf"pbkdf2_(sha256|sha512)\$({_ITERATIONS})\$([^$]{{1,512}})\$({_BASE64})"
)
_BCRYPT: Final = re.compile(r"\$2[aby]\$(?:0[4-9]|1[0-9])\$[./A-Za-z0-9]{53}")
_NOBODY_ARGON2: Final = "$argon2id$v=19$m=65536,t=3,p=4$MDEyMzQ1Njc4OWFiY2RlZg$" + "A" * 43
_NOBODY_BCRYPT: Final = "$2b$12$" + "N9qo8uLOickgx2ZMRZoMye" + "." * 31


class HashError(ValueError):
    """A user's password hash is not one of the configured format; nothing of it is told."""


class PasswordHash(Struct, frozen=True, kw_only=True):
    """How passwords are kept; the names are EMQX's."""

    #: What a hash is; `auto` takes those that say it themselves.
    algorithm: Literal["auto", "argon2id", "bcrypt", "pbkdf2", "sha256", "sha512", "plain"] = "auto"
    #: Where the salt goes in sha256 and sha512.
    salt_position: Literal["prefix", "suffix", "disable"] = "prefix"
    #: The hash within pbkdf2, its iterations, the length of its result (bytes; 0: the hash's).
    mac_fun: Literal["sha256", "sha512"] = "sha256"
    iterations: Annotated[int, Meta(ge=1, le=10_000_000)] = 600_000
    dk_length: Annotated[int, Meta(ge=0, le=64)] = 0


class Passwords:
    """Checks passwords against hashes of one format; its method may be called in any thread."""

    def __init__(self, settings: PasswordHash) -> None:
        self._settings = settings
        nobody = {"auto": _NOBODY_ARGON2, "argon2id": _NOBODY_ARGON2, "bcrypt": _NOBODY_BCRYPT}
        size = 64 if settings.algorithm == "sha512" else 32
        #: Hash and salt that an unknown user is compared with: like those of the last known one.
        self._like = (nobody.get(settings.algorithm, "00" * size), "salt")

    def check(self, hashed: str | None, salt: str, password: bytes) -> bool:
        """Whether `password` fits; `hashed` is None for a user that is not known.

        Raises `HashError` for a hash that cannot be of the format.
        """
        if hashed is None:
            try:
                self._fits(*self._like, password)
            except HashError:
                pass  # the figures of another user's hash; what counts is the time
            return False
        fits = self._fits(hashed, salt, password)
        self._like = (hashed, salt)
        return fits

    def _fits(self, hashed: str, salt: str, password: bytes) -> bool:
        settings = self._settings
        algorithm = settings.algorithm
        if algorithm == "plain":
            return hmac.compare_digest(hashed.encode(), password)
        if algorithm in ("sha256", "sha512"):
            return _digest(settings, hashed, salt, password)
        if algorithm == "pbkdf2" and "$" not in hashed:
            if not salt:
                raise HashError("the user has no salt")
            size = settings.dk_length or hashlib.new(settings.mac_fun).digest_size
            return hmac.compare_digest(
                hashlib.pbkdf2_hmac(
                    settings.mac_fun, password, salt.encode(), settings.iterations, size
                ),
                _decode(hashed, size),
            )
        if algorithm in ("auto", "argon2id") and hashed.startswith("$argon2id$"):
            return _argon2(hashed, password)
        if algorithm in ("auto", "bcrypt") and _BCRYPT.fullmatch(hashed):
            return _bcrypt(hashed, password)
        if algorithm in ("auto", "pbkdf2"):
            return _modular(hashed, password)
        raise HashError(f"the user's password hash is not {algorithm}")


def _digest(settings: PasswordHash, hashed: str, salt: str, password: bytes) -> bool:
    if settings.salt_position == "disable":
        salt = ""
    elif not salt:
        raise HashError("the user has no salt")
    salted = salt.encode() + password
    if settings.salt_position == "suffix":
        salted = password + salt.encode()
    made = hashlib.new(settings.algorithm, salted).digest()
    return hmac.compare_digest(made, _decode(hashed, len(made)))


def _modular(hashed: str, password: bytes) -> bool:
    """PBKDF2 in the notations that say iterations and salt, and mosquitto's SHA-512."""
    try:
        if (found := _PASSLIB.fullmatch(hashed)) is not None:
            salt, digest = _adapted(found[3]), _adapted(found[4])
            return _pbkdf2(found[1], int(found[2]), salt, digest, password)
        if (found := _DJANGO.fullmatch(hashed)) is not None:
            digest = base64.b64decode(found[4])
            return _pbkdf2(found[1], int(found[2]), found[3].encode(), digest, password)
        if is_mosquitto(hashed):
            return verify(hashed, password)
    except binascii.Error:
        pass
    raise HashError(
        "the user's password hash does not say what it is: expected argon2id, bcrypt, PBKDF2 or"
        " mosquitto's, or another password_hash.algorithm"
    )


def _pbkdf2(name: str, iterations: int, salt: bytes, digest: bytes, password: bytes) -> bool:
    size = hashlib.new(name).digest_size
    if not 16 <= len(digest) <= size:
        raise HashError(f"the user's password hash is not {size} bytes long")
    made = hashlib.pbkdf2_hmac(name, password, salt, iterations, len(digest))
    return hmac.compare_digest(made, digest)


def _argon2(hashed: str, password: bytes) -> bool:
    from argon2.exceptions import VerificationError, VerifyMismatchError
    from argon2.low_level import Type, verify_secret

    try:
        return bool(verify_secret(hashed.encode(), password, Type.ID))
    except VerifyMismatchError:
        return False
    except VerificationError:
        raise HashError("the user's password hash is not argon2id") from None


def _bcrypt(hashed: str, password: bytes) -> bool:
    import bcrypt

    # It looks at 72 bytes: a longer password is none that could have been set.
    return len(password) <= 72 and bcrypt.checkpw(password, hashed.encode())


def _adapted(text: str) -> bytes:
    """passlib's base64: "." for "+", no padding."""
    return base64.b64decode(text.replace(".", "+") + "=" * (-len(text) % 4))


def _decode(hashed: str, size: int) -> bytes:
    """A hash written in hexadecimal or base64."""
    try:
        raw = bytes.fromhex(hashed) if len(hashed) == 2 * size else base64.b64decode(hashed)
    except ValueError:
        raw = b""
    if len(raw) != size:
        raise HashError(f"the user's password hash is not {size} bytes, in hex or base64")
    return raw
