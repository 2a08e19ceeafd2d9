"""Text from outside, on its way to a line or a terminal."""

from __future__ import annotations

import re

__all__ = ["printable", "said_by"]


def printable(text: str) -> str:
    """`text` with what a terminal would obey (escapes, line ends) made visible.

    >>> printable("a\\nb")
    'a\\\\nb'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def said_by(error: Exception) -> str:
    """What the system says of a connection, for people: neither a class of Python nor a number.

    >>> said_by(ConnectionRefusedError(111, "Connection refused"))
    'Connection refused'
    """
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return re.sub(r"_ssl\.c:\d+: | \(_ssl\.c:\d+\)", "", text)
