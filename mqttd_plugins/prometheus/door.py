"""The address of its own, which has no password: what a stranger may have there.

    connection --> one request without a body --> the text, made once a second --> closed
        '-- one too many: the oldest of the address that has most of them goes

Promise: at most `MOST` connections, each for `SECONDS`; an answer each, whatever else was sent;
the text is made once a second of each kind, however many ask.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from twisted.internet.protocol import connectionDone
from twisted.web.http import HTTPChannel
from twisted.web.resource import IResource, Resource
from twisted.web.server import Request, Site

__all__ = ["MOST", "SECONDS", "DoorSite", "Kept"]

#: Connections: a few servers ask twice a minute.
MOST: Final = 32
#: Of a connection, until its answer is read.
SECONDS: Final = 10.0
#: For which a text is as good as a new one.
_FRESH: Final = 1.0


class Kept(Resource):
    """What `made` answers, asked for once a second; `clock` has `seconds`."""

    isLeaf = True

    def __init__(self, made: Any, clock: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made = made
        self.clock = clock
        #: Content type -> the text, and when it was made.
        self._texts: dict[str, tuple[bytes, float]] = {}

    def render_GET(self, request: Request) -> bytes:
        """The text, in the version that is asked for."""
        encode, kind = self.made.choose(request)
        now: float = self.clock.seconds()
        text, at = self._texts.get(kind, (b"", -_FRESH))
        if not 0 <= now - at < _FRESH:
            text = self.made.text(encode)
            self._texts[kind] = text, now
        return text


class _Channel(HTTPChannel):
    """One connection, for one request."""

    site: Any
    transport: Any
    _end: Any = None

    def connectionMade(self) -> None:
        """It has begun."""
        super().connectionMade()  # type: ignore[no-untyped-call]
        self._end = self.site.reactor.callLater(SECONDS, self.abort)
        self.site.enter(self)

    def checkPersistence(self, request: Any, version: bytes) -> bool:
        """Who asks again connects again."""
        request.responseHeaders.setRawHeaders(b"connection", [b"close"])
        return False

    def abort(self) -> None:
        """Its time is over, or there are too many."""
        self.transport.abortConnection()

    def connectionLost(self, reason: Any = connectionDone) -> None:
        """It is gone."""
        if self._end is not None and self._end.active():
            self._end.cancel()
        self.site.leave(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]


class _Request(Request):
    """A request without a body: twisted.web would write a large one to the disk."""

    channel: Any

    def gotLength(self, length: int | None) -> None:
        """Its head is whole."""
        super().gotLength(0)  # type: ignore[no-untyped-call]
        if length != 0:
            self.channel._respondToBadRequestAndDisconnect()

    def handleContentChunk(self, data: bytes) -> None:
        """A part of a body that was refused."""

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """It is whole."""
        if not self.channel.transport.disconnecting:
            super().requestReceived(command, path, version)  # type: ignore[no-untyped-call]


class DoorSite(Site):
    """Serves `resource` as ``/metrics``; `reactor` has `callLater`."""

    protocol: Any = _Channel
    displayTracebacks = False
    noisy = False

    def __init__(self, resource: IResource, reactor: Any) -> None:
        root: Any = Resource()
        root.putChild(b"metrics", resource)
        super().__init__(root, requestFactory=_Request, timeout=None, reactor=reactor)  # type: ignore[no-untyped-call]
        #: Who is connected, the oldest first: from which address.
        self._from: dict[_Channel, str] = {}

    def log(self, request: Any) -> None:
        """Nothing."""

    def enter(self, channel: _Channel) -> None:
        """One more."""
        self._from[channel] = str(getattr(channel.transport.getPeer(), "host", ""))
        if len(self._from) > MOST:
            ((crowd, _),) = Counter(self._from.values()).most_common(1)
            oldest = next(one for one, host in self._from.items() if host == crowd)
            self.leave(oldest)
            oldest.abort()

    def leave(self, channel: _Channel) -> None:
        """One less."""
        self._from.pop(channel, None)
