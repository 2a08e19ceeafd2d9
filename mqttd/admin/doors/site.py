"""How HTTP is spoken at the doors: who may connect, how much they may send, whose turn it is.

    connection --> Crowd: is there room? else whoever has asked nothing for longest goes for it
    bytes --> Channel --one request a turn, and while its answers are read--> Turns --> the resource

Twisted answers all requests that have come in one read in a row, whoever waits meanwhile and
however much of the answers waits already, counts each byte as a sign of life, and has no word for a
path that is too long. Here a connection has one request a turn of the loop, if the others leave it
time (`mqttd.admin.doors.turns`), none while the peer does not read, and `TIMEOUT` seconds for
each, from the end of the one before until it is whole.

What its peer does not read of an answer is in our memory: where that is more than `UNREAD` bytes
and one as large as a body may be, who has read nothing for longest goes.

Promise: a request's body is refused, not buffered, beyond the site's `max_body` bytes, and beyond
`STRANGER` where nobody knows who asks; forms are not taken apart. HTTP/1.1 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.basic import LineReceiver
from twisted.web.http import HTTPChannel, _MalformedChunkedDataError
from twisted.web.resource import IResource
from twisted.web.server import Request, Site

from mqttd.admin.doors.turns import Turns
from mqttd.admin.http.requests import problem
from mqttd.net.fair import house_of

__all__ = ["Crowd", "limit_body", "site_of"]

#: Seconds for a request to come, and for a connection without one.
TIMEOUT: Final = 60
#: Connections to a door, and those of one house: more than event streams and pages need.
MOST: Final = 512
EACH: Final = 384
#: Seconds without a whole request after which a connection makes room for another.
SILENT: Final = 1.0
#: Bytes of answers that the peers of a door have not read, besides one that is large.
UNREAD: Final = 32 << 20
#: Bytes of the body of a request that shows nothing: a log-in is smaller.
STRANGER: Final = 64 << 10

#: Parts that a body may come in, and one more for so many bytes: a chunk of one byte takes 2 us.
_PARTS: Final = 500
_PART: Final = 64
#: Bytes of a request's line and headers.
HEAD: Final = 16 << 10

_TOO_LARGE: Final = problem(413, "too_large", "the request body is too large")
_LONG_PATH: Final = problem(414, "too_long", f"path and query have more than {HEAD} bytes")
_LONG_HEADERS: Final = problem(431, "too_long", f"the headers have more than {HEAD} bytes")


class Crowd:
    """Who is connected to a door, and how many of one house.

    Where there are too many, who is without a request for longest goes, of that house or of all.
    """

    def __init__(self, most: int = MOST, each: int = EACH) -> None:
        self.most = most
        self.each = each
        #: Connections that were ended at once, and those that made room.
        self.refused = self.ended = 0
        self._houses: dict[Any, str] = {}
        self._count: dict[str, int] = {}
        #: Without a request, of the longest ago first: since when.
        self._idle: dict[Any, float] = {}
        #: Bytes that wait for peers who do not read, of the longest ago first; and in all.
        self._unread: dict[Any, int] = {}
        self.held = 0
        #: The most of them.
        self.unread = UNREAD

    def enter(self, channel: Any, house: str, now: float) -> bool:
        """One more; False if it is one too many."""
        full = self._count.get(house, 0) >= self.each
        if (full and not self._make_room(house, now)) or (
            len(self._houses) >= self.most and not self._make_room("", now)
        ):
            self.refused += 1
            return False
        self._houses[channel] = house
        self._count[house] = self._count.get(house, 0) + 1
        self._idle[channel] = now
        return True

    def asks(self, channel: Any) -> None:
        """A request is whole."""
        self._idle.pop(channel, None)

    def answered(self, channel: Any, now: float) -> None:
        """Its answer is."""
        if channel in self._houses:
            self._idle[channel] = now

    def waits(self, channel: Any, size: int) -> None:
        """A peer does not read, and so many bytes are there for it."""
        self.held += size - self._unread.get(channel, 0)
        self._unread[channel] = size
        while self.held > self.unread:
            first = next(iter(self._unread))
            self.ended += 1
            self.reads(first)
            first.transport.abortConnection()

    def reads(self, channel: Any) -> None:
        """It has read what there was, or is gone."""
        self.held -= self._unread.pop(channel, 0)

    def leave(self, channel: Any) -> None:
        """One that has entered is gone."""
        self.reads(channel)
        house = self._houses.pop(channel, None)
        self._idle.pop(channel, None)
        if house is not None:
            self._count[house] -= 1
            if not self._count[house]:
                del self._count[house]

    def close(self) -> None:
        """The door is closed: who has asked nothing goes, others when they are answered."""
        for channel in list(self._houses):
            channel.persistent = False
            if channel in self._idle:
                channel.loseConnection()

    def _make_room(self, house: str, now: float) -> bool:
        for channel, since in self._idle.items():
            if now - since < SILENT:
                break
            if not house or self._houses[channel] == house:
                self.ended += 1
                self.leave(channel)
                channel.transport.abortConnection()
                return True
        return False


class _TurnedAway(Protocol):
    """Ends a connection."""

    def connectionMade(self) -> None:
        """It is one too many."""
        self.transport.abortConnection()  # type: ignore[union-attr]


class _Channel(HTTPChannel):
    """One connection."""

    site: Any
    #: Bytes that were written since the peer has last read all there was, or more.
    _said = 0
    #: Bytes of the head of a request.
    _head = 0

    def write(self, data: bytes) -> None:
        """A part of an answer."""
        self.writeSequence([data])

    def writeSequence(self, iovec: Any) -> None:
        """Parts of an answer."""
        if not self._waitingForTransport:
            self._said = 0
        self._said += sum(map(len, iovec))
        super().writeSequence(iovec)  # type: ignore[no-untyped-call]
        if self._waitingForTransport and self.site.crowd is not None:
            self.site.crowd.waits(self, self._said)

    def resetTimeout(self) -> None:
        """A byte of a request is no request."""

    def dataReceived(self, data: bytes) -> None:
        """Bytes have come; those of a request wait for the next turn where this one is used up."""
        if not (self.paused or self._handlingRequest or self.site.turns.is_there_time()):
            self._wait()
        super().dataReceived(data)  # type: ignore[no-untyped-call]

    def lineReceived(self, line: bytes) -> None:
        """A line of a request's head."""
        self._head += len(line)
        if self._head > HEAD:
            self.lineLengthExceeded(line)
        else:
            super().lineReceived(line)  # type: ignore[no-untyped-call]

    def lineLengthExceeded(self, line: bytes) -> None:
        """Its path is too long, or its headers are."""
        if self.requests:
            status, text, body = 431, b"Request Header Fields Too Large", _LONG_HEADERS
        else:
            status, text, body = 414, b"URI Too Long", _LONG_PATH
        _end(self, status, text, body)

    def allContentReceived(self) -> None:
        """A request is whole."""
        self._head = 0
        if self.site.crowd is not None:
            self.site.crowd.asks(self)
        super().allContentReceived()  # type: ignore[no-untyped-call]

    def requestDone(self, request: Any) -> None:
        """Its answer is: the next one has to wait for the next turn, and until it is read."""
        self.paused = True
        super().requestDone(request)  # type: ignore[no-untyped-call]
        if self.site.crowd is not None:
            self.site.crowd.answered(self, self.site.reactor.seconds())
        if (self._buffer or self._waitingForTransport) and self.persistent:
            self._wait()
        else:
            self.paused = False

    def resumeProducing(self) -> None:
        """The peer has read what was said."""
        if self.site.crowd is not None:
            self.site.crowd.reads(self)
        super().resumeProducing()  # type: ignore[no-untyped-call]
        if self.paused:
            self._wait()

    def _wait(self) -> None:
        """Read and begin nothing until its next turn."""
        self.paused = True
        self._networkProducer.pauseProducing()
        self.site.turns.wait(self, self._go_on)

    def _go_on(self) -> None:
        if not self._waitingForTransport:
            self.paused = False
            self._networkProducer.resumeProducing()
            LineReceiver.dataReceived(self, b"")

    def connectionLost(self, reason: Any = connectionDone) -> None:
        """It is gone."""
        self.site.turns.leave(self)
        if self.site.crowd is not None:
            self.site.crowd.leave(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        self.requests.clear()
        self.unregisterProducer()  # type: ignore[no-untyped-call]


def _end(channel: Any, status: int, text: bytes, body: bytes) -> None:
    """Answer what cannot be a request, and close."""
    channel.transport.write(
        b"HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (status, text, len(body)) + body
    )
    channel.loseConnection()


class _Request(Request):
    """A request whose body may have so many bytes; a larger one ends the connection."""

    refused = False
    taken = 0
    parts = 0
    most = 0

    def gotLength(self, length: int | None) -> None:
        """Its head is whole."""
        site: Any = self.channel.site  # type: ignore[attr-defined]
        known = site.known is None or length == 0 or site.known(self)
        self.most = site.max_body if known else min(STRANGER, site.max_body)
        if length is not None and length > self.most:
            self._refuse()
        else:
            super().gotLength(length)  # type: ignore[no-untyped-call]

    def getRequestHostname(self) -> bytes:
        """The host that was asked for; a Unix socket has none of its own (HTTP/1.0)."""
        place = self.getHost()  # type: ignore[no-untyped-call]
        if self.requestHeaders.hasHeader(b"host") or hasattr(place, "host"):
            return bytes(super().getRequestHostname())  # type: ignore[no-untyped-call]
        return b"localhost"

    def handleContentChunk(self, data: bytes) -> None:
        """A part of its body."""
        self.taken += len(data)
        self.parts += 1
        if self.parts > _PARTS + self.taken // _PART:
            self.refused = True
            # What the channel answers with 400, and reads no further.
            raise _MalformedChunkedDataError("a body in parts of a few bytes")
        if self.refused:
            return
        if self.taken > self.most:
            self._refuse()
        else:
            super().handleContentChunk(data)  # type: ignore[no-untyped-call]

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """It is whole."""
        if not self.refused:
            super().requestReceived(command, path, version)  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """Its answer is whole."""
        super().finish()  # type: ignore[no-untyped-call]
        self.transport = None

    def connectionLost(self, reason: Any) -> None:
        """Its peer is gone."""
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        # Whoever keeps it does not keep what was unsent, nor what would have written more.
        self.transport = self.producer = None

    def _refuse(self) -> None:
        self.refused = True
        _end(self.channel, 413, b"Content Too Large", _TOO_LARGE)


class _Site(Site):
    """A site without an access log: what changes something is logged by the API itself."""

    protocol: Any = _Channel
    crowd: Crowd | None = None
    known: Callable[[Any], bool] | None = None
    turns: Turns
    max_body = 0

    def buildProtocol(self, addr: Any) -> Any:
        """One more connection, or what ends it at once."""
        protocol: Any = super().buildProtocol(addr)  # type: ignore[no-untyped-call]
        if self.crowd is not None:
            house = house_of(str(getattr(addr, "host", "")))
            if not self.crowd.enter(protocol, house, self.reactor.seconds()):
                return _TurnedAway()
        return protocol

    def acceptableProtocols(self) -> list[bytes]:
        """What TLS offers."""
        return [b"http/1.1"]

    def log(self, request: Any) -> None:
        """Nothing."""


def site_of(
    resource: IResource,
    max_body: int,
    crowd: Crowd | None = None,
    known: Callable[[Any], bool] | None = None,
    reactor: Any = None,
) -> Any:
    """What serves `resource` and refuses bodies of more than `max_body` bytes.

    Who connects is counted by `crowd`; `known(request)` says, of a request whose head
    has come, whether somebody who is known sends it (None: everybody is).
    """
    site: Any = _Site(  # type: ignore[no-untyped-call]
        resource,
        requestFactory=_Request,
        timeout=TIMEOUT,
        reactor=reactor,
        parsePOSTFormSubmission=False,
    )
    site.turns = Turns(site.reactor)
    site.crowd = crowd
    site.known = known
    limit_body(site, max_body)
    site.displayTracebacks = False
    site.noisy = False
    return site


def limit_body(site: Any, max_body: int) -> None:
    """Refuse bodies of more than `max_body` bytes from now on."""
    site.max_body = max_body
    if site.crowd is not None:
        # What came in as one body is shown in one answer, which nobody can have read at once.
        site.crowd.unread = UNREAD + max_body
