"""The keys of SCRAM-SHA-256: made of a password, and as they stand in a file of users.

    alice:SCRAM-SHA-256$16384:SALT$StoredKey:ServerKey

Whoever reads the file can log in nowhere with it. RFC 5802, RFC 7677; names and passwords are
prepared by SASLprep, RFC 4013.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import stringprep
import unicodedata
from dataclasses import dataclass
from typing import Final

from mqttd.secrets import lines

__all__ = [
    "ITERATIONS",
    "METHOD",
    "Keys",
    "Malformed",
    "add_scram_user",
    "b64",
    "delete_scram_user",
    "expects",
    "make_keys",
    "parse_keys",
    "read_scram_users",
    "saslprep",
    "unb64",
]

METHOD: Final = "SCRAM-SHA-256"
#: What new users get; RFC 7677 asks for at least 4096.
ITERATIONS: Final = 16384

_PROOF: Final = re.compile(r"SCRAM-SHA-256\$([1-9][0-9]{0,7}):([^$:]+)\$([^$:]+):([^$:]+)")


@dataclass(slots=True, frozen=True)
class Keys:
    """What the broker keeps of one user."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        return (
            f"{METHOD}${self.iterations}:{b64(self.salt)}"
            f"${b64(self.stored_key)}:{b64(self.server_key)}"
        )


class Malformed(ValueError):
    """A message that is not SCRAM's; the text shows nothing of it."""


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
    stored_key, server_key = unb64(found[3]), unb64(found[4])
    if len(stored_key) != 32 or len(server_key) != 32:
        raise ValueError("expected keys of 32 bytes")
    return Keys(int(found[1]), unb64(found[2]), stored_key, server_key)


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
            raise Malformed("a character that SASLprep forbids")
    if any(map(stringprep.in_table_d1, prepared)) and (
        any(map(stringprep.in_table_d2, prepared))
        or not stringprep.in_table_d1(prepared[0])
        or not stringprep.in_table_d1(prepared[-1])
    ):
        raise Malformed("text of both directions")
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
    """User names and keys of a file; raises as `mqttd.secrets.lines.read`."""
    return lines.read(path, expects)


def add_scram_user(path: str | os.PathLike[str], user: str, password: str) -> bool:
    """Add `user` or give it a new password; True if it is new."""
    lines.check_name(user)
    user = saslprep(user)
    return lines.put(path, expects, user, str(make_keys(password)))


def delete_scram_user(path: str | os.PathLike[str], user: str) -> bool:
    """Take `user` out of the file; False if it was not there."""
    return lines.take_out(path, expects, user)


def expects(proof: str) -> str | None:
    """What a line of a SCRAM file should have held; None if it is fine."""
    try:
        parse_keys(proof)
    except ValueError:
        return "SCRAM-SHA-256$ITERATIONS:SALT$StoredKey:ServerKey"
    return None


def b64(data: bytes) -> str:
    """Bytes as base64 text."""
    return base64.b64encode(data).decode("ascii")


def unb64(text: str) -> bytes:
    """What base64 text stands for; raises `Malformed`."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Malformed("expected base64") from None
