"""Password hashes: made as argon2id, verified in that format and those of mosquitto_passwd.

::

    $argon2id$v=19$m=7168,t=5,p=1$SALT$HASH         argon2id (RFC 9106), what is made here
    $7$ITERATIONS$SALT$HASH                         PBKDF2 with HMAC-SHA-512, mosquitto 1.6 to 2.0
    $6$SALT$HASH                                    SHA-512 of password and salt, before 1.6

What a hash costs to verify stands in it (`Cost`, of those made here): it is what a log-in costs a
broker that does not remember it, and what a guess costs somebody who has stolen the file.

libsodium, where it is installed (``pip install 'mqttd[sodium]'``), verifies argon2id with what the
processor has for it, in half the time; hashes of another shape than those made here go to
argon2-cffi.

Promise: hashes are compared in constant time; `dummy_hash` is as dear to verify as that of a user
there is. Hashing is slow on purpose: to be called in a thread (`mqttd.access.auth.hasher`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import verify_secret

try:
    import nacl.exceptions
    import nacl.pwhash.argon2id
except ImportError:
    _sodium: Any = None
else:
    _sodium = nacl.pwhash.argon2id

__all__ = [
    "Cost",
    "dummy_hash",
    "expects",
    "hash_password",
    "is_hash",
    "is_mosquitto",
    "verify",
    "with_empty_password",
]

_BASE64: Final = r"[A-Za-z0-9+/]{1,512}={0,2}"
_SHA512: Final = re.compile(rf"\$6\$({_BASE64})\$({_BASE64})")
_PBKDF2: Final = re.compile(rf"\$7\$([1-9][0-9]{{0,7}})\$({_BASE64})\$({_BASE64})")
#: What is made here, with one lane.
_PLAIN: Final = re.compile(
    r"\$argon2id\$v=19\$m=[0-9]{1,7},t=[0-9]{1,4},p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}"
)
#: Decides which known user's parameters an unknown one gets; not to be guessed from outside.
_KEY: Final = os.urandom(16)


class Cost(NamedTuple):
    """What it costs to make or verify an argon2id hash: KiB of memory, passes over it, lanes.

    The default is one of those that OWASP recommends as the least and as equally good, the one
    that stays in a processor's cache: 15 ms of a core, with libsodium 8; 12 MiB and 3 passes
    take 17 and 13.
    """

    memory: int = 7 * 1024
    passes: int = 5
    lanes: int = 1


def hash_password(password: str | bytes, cost: Cost | None = None) -> str:
    """The argon2id hash of a password, for a line of the file."""
    memory, passes, lanes = Cost() if cost is None else cost
    return PasswordHasher(time_cost=passes, memory_cost=memory, parallelism=lanes).hash(password)


def expects(proof: str) -> str | None:
    """What a line of a password file should have held; None if it is a hash that `verify` knows."""
    if is_hash(proof):
        return None
    return "an argon2id hash ($argon2id$...), or $6$... or $7$... of mosquitto_passwd"


def is_hash(text: str) -> bool:
    """True if `verify` understands this hash."""
    if is_mosquitto(text):
        return all(_decodes(part) for part in text.split("$")[-2:])
    try:
        kind = extract_parameters(text).type
    except (InvalidHashError, ValueError, KeyError):
        return False
    return kind is Type.ID and text.count("$") == 5 and text.isascii()


def is_mosquitto(text: str) -> bool:
    """True for a hash that mosquitto_passwd has made."""
    return (_SHA512.fullmatch(text) or _PBKDF2.fullmatch(text)) is not None


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
    if _sodium is not None and _PLAIN.fullmatch(hashed) is not None:
        try:
            return bool(_sodium.verify(hashed.encode("ascii"), password))
        except nacl.exceptions.CryptoError:
            return False
    try:
        return bool(verify_secret(hashed.encode("ascii"), password, Type.ID))
    except VerificationError:
        return False


def with_empty_password(hashes: Mapping[str, str], seconds: float = 0.25) -> list[str]:
    """Names whose stored hash is that of the empty password, of as many as the time is enough for.

    Those of which that is left open are known when somebody logs in so.
    """
    until = time.monotonic() + seconds
    found = []
    for name, hashed in hashes.items():
        if time.monotonic() > until:
            break
        if verify(hashed, b""):
            found.append(name)
    return found


def dummy_hash(hashes: Mapping[str, str], name: str, cost: Cost | None = None) -> str:
    """A hash that no password has, as dear to verify as that of some user there is.

    The same `name` gets the same parameters each time, as a known user does; where there are no
    users, those of `cost`.
    """
    memory, passes, lanes = Cost() if cost is None else cost
    parameters = f"v=19$m={memory},t={passes},p={lanes}"
    if hashes:
        picked = int.from_bytes(hmac.digest(_KEY, name.encode("utf-8", "replace"), "sha256"), "big")
        like = _nth(hashes, picked % min(len(hashes), 16))
        if not like.startswith("$argon2id$"):
            settings = "$".join(like.split("$")[1:-2])
            return f"${settings}${_random(12)}${_random(64)}"
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
