"""Regular expressions on what clients choose, in time linear in its length.

::

    ^dashboard$   --> compared as text, no engine needed
    ^dev-[0-9]+$  --> RE2 (google-re2, ``pip install 'mqttd[re2]'``), or refused without it

A backtracking engine can be made to run for hours by one user name (GHSA-2hjf-7455-w946 is such a
case); Python's own `re` is one, so it never sees a client's text here.

Promise: `LinearRe.search` costs at most a constant times the length of the text.  The dialect is
RE2's: that of Perl without back references and look-around.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

__all__ = ["LinearRe", "RegexError"]

#: Bytes a compiled expression may take; RE2 refuses a larger one.
MAX_MEMORY: Final = 1 << 20

_LITERAL: Final = re.compile(r"\^((?:[^\\.^$|?*+()\[\]{}\n]|\\[^A-Za-z0-9\n])*)\$")


class RegexError(ValueError):
    """The expression cannot be used; the text says why."""


class LinearRe:
    """A compiled expression; equal to another with the same `pattern`.

    Raises `RegexError` for one that is wrong, or that needs RE2 where RE2 is not installed.
    """

    __slots__ = ("_search", "literal", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        found = _LITERAL.fullmatch(pattern)
        #: the one text it matches, if it is as simple as that
        self.literal: str | None = None
        self._search: Callable[[str], object]
        if found is not None:
            self.literal = re.sub(r"\\(.)", r"\1", found.group(1))
        else:
            self._search = _compile(pattern)

    def search(self, text: str) -> bool:
        """True if the expression matches somewhere in `text`."""
        if self.literal is not None:
            return text == self.literal
        return self._search(text) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LinearRe) and other.pattern == self.pattern

    def __hash__(self) -> int:
        return hash(self.pattern)

    def __repr__(self) -> str:
        return f"LinearRe({self.pattern!r})"


def _compile(pattern: str) -> Callable[[str], object]:
    try:
        import re2
    except ImportError:
        raise RegexError(
            "no regular expression but ^text$ while google-re2 is not installed"
            " (pip install 'mqttd[re2]'): an engine that backtracks lets a client stop the broker"
        ) from None
    options: Any = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    try:
        compiled: Any = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise RegexError(f"a regular expression that RE2 knows: {text}") from None
    search: Callable[[str], object] = compiled.search
    return search
