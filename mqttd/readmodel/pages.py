"""Pages of a list that changes while it is read: the cursor is the place where a page has ended.

A cursor holds the sort key and the name of the last entry of its page, so that entries which come
and go between two pages are neither missed nor told twice. It is opaque to callers, and no secret.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any, Final

from msgspec import Meta

__all__ = ["DEFAULT_LIMIT", "MAX_LIMIT", "BadWish", "Limit", "read_cursor", "write_cursor"]

#: Entries of a page when the request does not say, and at most.
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000

Limit = Annotated[int, Meta(ge=1, le=1000, description="entries of a page")]


class BadWish(ValueError):
    """What was asked for means nothing; the text names it, its value and what was expected."""


def write_cursor(key: Any, name: str) -> str:
    """The cursor of a page that ends with this entry."""
    text = json.dumps([key, name], ensure_ascii=True, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, kind: type = str) -> tuple[Any, str] | None:
    """Sort key, of this type, and name; None without a cursor. Raises BadWish."""
    if cursor is None:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        found = json.loads(base64.b64decode(padded, b"-_", validate=True))
        key, name = found
        if type(key) is not kind or not isinstance(name, str):
            raise ValueError
        return key, name
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise BadWish(f"cursor = {cursor[:80]!r}: expected one of an answer to this list") from None
