"""Whose fault a failure is: the back end's that a module asks, or what one client has shown.

    back end gone, refusing, silent    everybody's: counts towards the module's circuit breaker
    anything else that is raised       that client's alone: it is refused

A module knows best: with a true attribute ``blames_back_end`` all that it raises is the back end's,
because it answers with a refusal to whatever a client may show (`mqttd.plugins.backends.asking`).
"""

from __future__ import annotations

import errno
import socket
from typing import Final

from twisted.internet.defer import TimeoutError as DeadlineError
from twisted.internet.error import ConnectError, ConnectionClosed, DNSLookupError
from twisted.internet.error import TimeoutError as UserTimeout
from twisted.python.failure import Failure

from mqttd.types import PluginError

__all__ = ["is_of_back_end", "words_of"]

_NETWORK: Final = frozenset(
    (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT)
)
_BACK_END: Final = (
    ConnectionError, TimeoutError, DeadlineError, ConnectError, ConnectionClosed,
    socket.gaierror, socket.herror,
)  # fmt: skip

#: What is said of an error, the first that fits.
_WORDS: Final[tuple[tuple[tuple[type[BaseException], ...], str], ...]] = (
    ((socket.gaierror, socket.herror, DNSLookupError), "the name of its back end is not known"),
    ((TimeoutError, DeadlineError, UserTimeout), "its back end did not answer in time"),
    ((ConnectionRefusedError, ConnectError), "its back end could not be reached"),
    ((ConnectionError, ConnectionClosed), "its back end closed the connection"),
)


def is_of_back_end(error: BaseException) -> bool:
    """Whether an exception tells of a back end that cannot be reached or does not answer.

    Any other may be what the client has shown that a module could not cope with.
    """
    if isinstance(error, _BACK_END):
        return True
    return isinstance(error, OSError) and error.errno in _NETWORK


def words_of(error: BaseException) -> str:
    """Why a module failed, in words for an operator.

    Of what an error says only texts of our own: others may hold addresses with passwords in them.
    """
    if isinstance(error, PluginError):
        return str(error)
    # What treq fails with holds what happened.
    reasons = getattr(error, "reasons", None)
    if isinstance(reasons, list) and reasons and isinstance(reasons[0], Failure):
        first = reasons[0].value
        if first is not None:
            return words_of(first)
    for kinds, text in _WORDS:
        if isinstance(error, kinds):
            return text
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"it raised {type(error).__name__}"
