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
from twisted.internet.error import ConnectError, ConnectionClosed

__all__ = ["is_of_back_end"]

_NETWORK: Final = frozenset(
    (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT)
)
_BACK_END: Final = (
    ConnectionError, TimeoutError, DeadlineError, ConnectError, ConnectionClosed,
    socket.gaierror, socket.herror,
)  # fmt: skip


def is_of_back_end(error: BaseException) -> bool:
    """Whether an exception tells of a back end that cannot be reached or does not answer.

    Any other may be what the client has shown that a module could not cope with.
    """
    if isinstance(error, _BACK_END):
        return True
    return isinstance(error, OSError) and error.errno in _NETWORK
