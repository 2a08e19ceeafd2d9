"""Conditional requests: whether a header names the state that there is (RFC 9110, 8.8.3)."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["matches"]

_TAG: Final = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def matches(header: str, tag: str, weak: bool) -> bool:
    """Whether an If-None-Match (`weak`) or If-Match has this tag, or is `*`, which any is.

    By weak comparison ``W/"x"`` is ``"x"``, by strong comparison a weak tag is none.
    """
    if header.strip() == "*":
        return True
    return any(one == tag and (weak or not is_weak) for is_weak, one in _TAG.findall(header))
