"""Why etcd has not answered, as an operator reads it: what is there, and what may be the matter.

    Twisted's error --> why_of         http.client's, ssl's --> why_of_one

Promise: one that has answered is not asked whether it speaks TLS, or none.
"""

from __future__ import annotations

import http.client
import ssl
from typing import Any, Final

from twisted.internet.error import TimeoutError as ConnectTimeout

__all__ = ["TIMEOUT", "EtcdError", "timed_out", "why_of", "why_of_one"]

#: Seconds for an answer. A member that has no majority takes seven to say so.
TIMEOUT: Final = 2.0
#: Characters of what somebody else says.
_MOST: Final = 60

_CLOSED: Final = "closed the connection without an answer"
_TLS: Final = f"{_CLOSED}; does it speak TLS (https)?"
_PLAIN: Final = "does not speak TLS as https does; does it speak plain HTTP (http)?"
#: Where TLS was expected and is not there, in OpenSSL's words.
_NO_TLS: Final = ("wrong version number", "WRONG_VERSION_NUMBER", "UNEXPECTED_EOF", "http request")


class EtcdError(Exception):
    """etcd has not answered, or has refused; the text says which."""

    def __repr__(self) -> str:
        """Its text: operators read it where a client is refused, and not always is it etcd."""
        return str(self)


def timed_out(seconds: float) -> str:
    """Why there is no answer of one that is silent for so long."""
    return f"does not answer (timed out after {seconds:g} s)"


def why_of(error: Any, endpoint: str, has_answered: bool = False) -> str:
    """What has gone wrong at an endpoint, which has answered before or not."""
    if isinstance(error, EtcdError):
        return str(error)
    if isinstance(error, ConnectTimeout):
        return timed_out(TIMEOUT)
    name = type(error).__name__
    reasons = getattr(error, "reasons", None)  # Twisted's, in which others are packed
    if not reasons:
        return f"{name}: {error}"
    reason = reasons[0]
    if type(reason.value).__name__ == "ParseError":
        return _no_answer(reason.value.args[-1])
    if name in ("ResponseNeverReceived", "ResponseFailed") and endpoint.startswith("http:"):
        return _CLOSED if has_answered else _TLS
    text = reason.getErrorMessage()
    if name == "RequestTransmissionFailed" and endpoint.startswith("https:") and not has_answered:
        lost = type(reason.value).__name__ in ("ConnectionLost", "ConnectionDone")
        if lost or any(each in text for each in _NO_TLS):
            return _PLAIN
    return f"{name}: {text}"


def why_of_one(error: Exception, endpoint: str) -> str:
    """The same of one request by a connection of its own."""
    if isinstance(error, ConnectionResetError):  # or ended, which http.client has below that
        return _TLS if endpoint.startswith("http:") else _CLOSED
    if isinstance(error, http.client.BadStatusLine):
        return _no_answer(str(error))
    if isinstance(error, ssl.SSLError) and any(each in str(error) for each in _NO_TLS):
        return _PLAIN
    return str(error) or type(error).__name__


def _no_answer(said: bytes | str) -> str:
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    return f"this is no answer of etcd to a client: {text.strip()[:_MOST]!r}"
