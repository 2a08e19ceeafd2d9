"""The words the schema is written in: units, and what is said of one key.

Each key's annotation carries a ``msgspec.Meta`` with its description, range, scope and whether a
reload applies it; the loader checks by it, the reference page and the shipped file print it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

__all__ = [
    "DAY",
    "GIB",
    "HOUR",
    "KIB",
    "MIB",
    "MINUTE",
    "NEVER",
    "Bind",
    "Scope",
    "about",
    "address",
    "count",
    "duration",
    "path",
    "plain",
    "size",
]

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

NEVER: Final = 0xFFFFFFFF
"""Seconds of an interval that does not end: ``"never"`` in the file, 0xFFFFFFFF on the wire."""

Scope = Literal["broker", "listener", "connection", "session", "message"]


def about(description: str, kind: str, scope: Scope, reload: bool, **more: Any) -> Meta:
    """What the loader and the reference know of one key: its kind, range, scope and reload."""
    limits = {key: more.pop(key) for key in ("ge", "le", "pattern", "max_length") if key in more}
    extra = {"kind": kind, "scope": scope, "reload": reload, **more}
    return Meta(description=description, extra=extra, **limits)


def plain(text: str, scope: Scope = "broker", reload: bool = True, **more: Any) -> Meta:
    """A string, a boolean, a choice or a list."""
    return about(text, "plain", scope, reload, **more)


def count(text: str, scope: Scope, ge: float, le: float, reload: bool = True, **more: Any) -> Meta:
    """A number without a unit, between `ge` and `le`."""
    return about(text, "count", scope, reload, ge=ge, le=le, **more)


def size(text: str, scope: Scope, ge: int, le: int, reload: bool = True) -> Meta:
    """A number of bytes, written with its unit."""
    return about(text, "size", scope, reload, ge=ge, le=le)


def duration(text: str, scope: Scope, ge: float, le: float, reload: bool = True) -> Meta:
    """A number of seconds, written with its unit; a range up to `NEVER` admits ``"never"``."""
    return about(text, "duration", scope, reload, ge=ge, le=le)


def path(text: str, reload: bool = False, **more: Any) -> Meta:
    """A file or directory, relative to the directory of the configuration file."""
    return about(text, "path", "broker", reload, **{"pattern": r"^[^\0]+$", **more})


def address(scope: Scope, reload: bool = False) -> Meta:
    """An address and port to listen on."""
    return about(
        "Address and port to listen on: `host:port`, `[ipv6]:port`, or `:port` for all"
        " addresses; port 0 takes a free port, which the ready line names.",
        "bind",
        scope,
        reload,
    )


Bind = Annotated[str, address("listener")]
