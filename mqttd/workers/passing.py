"""A request that is one worker's alone: passed on, and its answer passed back as it comes.

    who asks --request--> Passing --request, for whom--> worker
             <--pieces---         <--pieces, while who asks takes them--

Promise: of an answer there is here what a connection has not sent and one piece, however large it
is and however long it goes on; a worker is told when who has asked is gone. An answer that the
worker breaks off is broken off here, never passed for a whole one.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.web.client import FileBodyProducer, ResponseDone
from twisted.web.http import NO_BODY_CODES
from twisted.web.http_headers import Headers
from twisted.web.iweb import UNKNOWN_LENGTH
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from mqttd.admin.http.requests import CALLER, CHANGE, caller_of, refusal
from mqttd.workers.asking import Asker, told_for

__all__ = ["Passing"]

#: Headers of a connection rather than of what goes over it (RFC 9110, 7.6.1).
_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
     b"upgrade", b"content-length")
)  # fmt: skip
#: What is said anew, or is for us alone: who asks is shown to no worker by what lets that one in.
_OURS: Final = _HOP | {b"host", b"expect", b"authorization", b"cookie", CALLER}


class Passing(Resource):
    """What worker `number` of `asker` answers to a request for `target`, a path with its query."""

    isLeaf = True

    def __init__(self, asker: Asker, number: int, target: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asker = asker
        self.number = number
        self.target = target

    def render(self, request: Any) -> Any:
        """Pass it on; raises ApiError if the worker is away."""
        _Passed(self, request).begin()
        return NOT_DONE_YET


class _Passed(Protocol):
    """One request under way; the body of its answer comes here."""

    def __init__(self, passing: Passing, request: Any) -> None:
        self.passing = passing
        self.request = request
        self.gone = False
        self._asked: Any = None
        self._stop_watching: Callable[[], None] = lambda: None

    def begin(self) -> None:
        request, passing = self.request, self.passing
        headers = Headers()
        for name, values in request.requestHeaders.getAllRawHeaders():
            if name.lower() not in _OURS:
                headers.setRawHeaders(name, values)
        told_for(headers, caller_of(request))
        content = request.content
        size = content.seek(0, io.SEEK_END)
        content.seek(0)
        body = FileBodyProducer(content) if size else None
        self._asked = passing.asker.send(
            passing.number, request.method, passing.target, headers, body
        )
        if request.method in (b"GET", b"HEAD"):
            self._stop_watching = passing.asker.watch(passing.number, self._silent)
        request.notifyFinish().addErrback(self._gone).addBoth(lambda _: self._stop_watching())
        self._asked.addCallback(self._answered).addErrback(self._failed)

    def _silent(self) -> None:
        """The worker gives no sign of life."""
        if self.transport is not None:
            self.transport.loseConnection()
        else:
            self._asked.cancel()

    def _gone(self, failure: object) -> None:
        """Who has asked is: the worker need not go on."""
        self.gone = True
        if self.transport is not None:
            self.transport.loseConnection()
        else:
            self._asked.cancel()

    def _answered(self, response: Any) -> None:
        request = self.request
        request.setResponseCode(response.code, response.phrase)
        for name, values in response.headers.getAllRawHeaders():
            if name.lower() not in _HOP and name.lower() != CHANGE:
                request.responseHeaders.setRawHeaders(name, values)
        empty = request.method == b"HEAD" or response.code in NO_BODY_CODES
        if response.length is not UNKNOWN_LENGTH and not empty:
            request.setHeader(b"content-length", b"%d" % response.length)
        response.deliverBody(self)

    def _failed(self, failure: Failure) -> None:
        if self.gone:
            return
        passing = self.passing
        error = passing.asker.unanswered(passing.number, passing.target, failure)
        self.request.write(refusal(self.request, error.status, error.code, str(error)))
        self.request.finish()

    # -- the body ------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        """The answer begins: what it is goes at once, pieces when who asks takes them."""
        self.request.registerProducer(self.transport, True)
        self.request.write(b"")

    def dataReceived(self, data: bytes) -> None:
        """A piece."""
        self.request.write(data)

    def connectionLost(self, reason: Failure | None = None) -> None:
        """Its end, or the worker's."""
        if self.gone:
            return
        self.request.unregisterProducer()
        if reason is not None and reason.check(ResponseDone):
            self.request.finish()
        else:
            self.request.loseConnection()
