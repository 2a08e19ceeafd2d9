"""What a query ends with: the message, without the way through our modules that it has come.

Spark shows a traceback above the text of whatever a data source raises. What is said to who runs
the query says where to look by itself: of that one frame is left, the one here. MQTTD_TRACEBACK=1
leaves all of it, and so do errors that nobody has foreseen.

Nothing of ours is imported: this travels by value, as `data_source` does.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

__all__ = ["plain", "plain_rows"]

P = ParamSpec("P")
T = TypeVar("T")


def _told(error: Exception) -> Exception | None:
    """What is raised in its place: itself without its way, if it or its text is ours.

    None for what comes as it is.
    """
    if os.environ.get("MQTTD_TRACEBACK"):
        return None
    if isinstance(error, PermissionError) and error.filename:
        return PermissionError(
            f"mqttd: {error.strerror}: {error.filename}. Let the user that Spark runs as here read"
            " the folder of the log (path), or read it by url"
        )
    ours = type(error).__module__.startswith("mqttd.") or str(error).startswith("mqttd:")
    return error.with_traceback(None) if ours or isinstance(error, OSError) else None


def plain(method: Callable[P, T]) -> Callable[P, T]:
    """A method that Spark calls."""

    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            if (told := _told(error)) is None:
                raise
            raise told from None

    return called


def plain_rows(method: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """The same of one that gives what it finds bit by bit."""

    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from method(*args, **kwargs)
        except Exception as error:
            if (told := _told(error)) is None:
                raise
            raise told from None

    return called
