"""Keys that all back ends have, and what is wrong with an address.

Promise: a password of a client or of the broker crosses no network in the clear unless the operator
has said so; a secret may stand in a file of its own, and shows in no error.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from mqttd.net.addresses import is_local

__all__ = ["BackendSettings", "Port", "Seconds", "is_local", "read_secret", "require_encryption"]

Seconds = Annotated[float, Meta(gt=0, le=60)]
Port = Annotated[int, Meta(ge=1, le=65535)]


class BackendSettings(Struct, frozen=True, kw_only=True):
    """What every back end's configuration may say; times are in seconds."""

    #: Time for one question: to connect, and for each answer of the server.
    timeout: Seconds = 3.0
    #: What a user is whom the back end does not know: refused, or left to the next module.
    unknown: Literal["deny", "ignore"] = "deny"
    #: Passwords may cross a network unencrypted.
    plaintext: bool = False


def read_secret(name: str, value: str, file: str) -> str:
    """The secret `value`, or the first line of `file`; ValueError names the key `name`."""
    if not file:
        return value
    if value:
        raise ValueError(f"{name} and {name}_file: expected one of them")
    try:
        with open(file, encoding="utf-8") as lines:
            return lines.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ValueError(f"{name}_file = {file!r}: cannot be read: {reason}") from None


def require_encryption(where: str, host: str, encrypted: bool, plaintext: bool) -> None:
    """Raise ValueError for a server elsewhere to which nothing is encrypted."""
    if not encrypted and not plaintext and not is_local(host):
        raise ValueError(
            f"{where}: passwords would cross the network unencrypted; expected TLS, or"
            " plaintext = true"
        )
