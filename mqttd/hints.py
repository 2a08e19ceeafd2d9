"""What helps who has named something that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

__all__ = ["like"]


def like(name: str, known: Iterable[str], spell: Callable[[str], str] = str) -> str:
    """``; did you mean NAME?`` with the one of the known names that is most like this; or empty.

    spell: how that is written where it belongs.

    >>> like("usernme", ["username", "jwt"])
    '; did you mean username?'
    >>> like("denyy", ["ignore", "deny"], repr)
    "; did you mean 'deny'?"
    """
    close = difflib.get_close_matches(name[:200], list(known), 1)
    return f"; did you mean {spell(close[0])}?" if close else ""
