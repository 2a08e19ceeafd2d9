"""What helps who has named something that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["like"]


def like(name: str, known: Iterable[str]) -> str:
    """``; did you mean NAME?`` with the one of the known names that is most like this; or empty.

    >>> like("usernme", ["username", "jwt"])
    '; did you mean username?'
    """
    close = difflib.get_close_matches(name[:200], list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
