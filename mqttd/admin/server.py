"""Serves the HTTP interface on a Unix socket, which the file system protects.

    mqttd-ctl, curl --unix-socket  -->  data/mqttd.sock (0600)  -->  Api

Who may open the socket may do everything: it belongs to the broker's user, mode 0600, and is
never reachable over a network.

Promise: a socket somebody listens on is never taken over, a file that is no socket never removed;
the socket cannot be connected to before its mode is set; a request's body is refused, not
buffered, beyond `max_body` bytes; over a network so many are connected at most.
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
import struct
from collections import Counter
from typing import Any, Final
from urllib.parse import unquote

from twisted.application.service import Service
from twisted.internet.protocol import Protocol
from twisted.web.resource import IResource
from twisted.web.server import Request, Site
from zope.interface import implementer

from mqttd.admin.requests import ADMINISTRATOR, CALLER, LOCAL, Caller, problem, set_caller
from mqttd.net.fair import house_of
from mqttd.net.sockets import is_alive

__all__ = [
    "AdminService",
    "AdminSocketError",
    "Crowd",
    "LocalDoor",
    "claim",
    "limit_body",
    "site_of",
]

SOCKET_MODE: Final = 0o600
#: Seconds after which a connection that says nothing is closed.
IDLE_TIMEOUT: Final = 60
#: Connections to a door, and those of one house: more than event streams and pages need.
MOST: Final = 512
EACH: Final = 384

_TOO_LARGE: Final = problem(413, "too_large", "the request body is too large")


class AdminSocketError(Exception):
    """The Unix socket cannot be had; the text names it and says what to do."""


class AdminService(Service):
    """Listens on `path` while it runs.

    Arguments: the resource to serve, the path of the socket, the reactor, bytes a request's body
    may have; whether it is `behind` a supervisor, which says for whom it asks. Raises
    `AdminSocketError` at once if the path is taken or cannot be used.
    """

    def __init__(
        self, resource: IResource, path: str, reactor: Any, max_body: int, behind: bool = False
    ) -> None:
        claim(path)
        self.path = path
        self.reactor = reactor
        self.site: Any = site_of(LocalDoor(resource, behind), max_body)
        self.port: Any = None

    def startService(self) -> None:
        """Create the socket and listen."""
        # Twisted binds, sets the mode, then listens: nobody can connect before.
        self.port = self.reactor.listenUNIX(self.path, self.site, mode=SOCKET_MODE)
        super().startService()  # type: ignore[no-untyped-call]

    def stopService(self) -> Any:
        """Stop listening, which removes the socket."""
        super().stopService()  # type: ignore[no-untyped-call]
        port, self.port = self.port, None
        return port.stopListening() if port is not None else None


@implementer(IResource)
class LocalDoor:
    """Another resource, for whoever could open the socket: the broker's own user, or root."""

    isLeaf = True

    def __init__(self, resource: IResource, behind: bool = False) -> None:
        self.resource = resource
        self.behind = behind

    def getChildWithDefault(self, name: bytes, request: Any) -> Any:
        """A leaf has none."""
        return self

    def putChild(self, path: bytes, child: Any) -> None:
        """A leaf takes none."""
        raise TypeError("a leaf")

    def render(self, request: Any) -> Any:
        """Say who asks, then let the resource answer."""
        told = request.getHeader(CALLER) if self.behind else None
        set_caller(request, _told(told) if told else _peer_of(request))
        return self.resource.render(request)


def _told(header: bytes) -> Caller:
    """For whom the supervisor asks; its requests were counted there."""
    name, _, role = header.decode("latin-1").rpartition(" ")
    return Caller(unquote(name), role, limited=False)


def _peer_of(request: Any) -> Caller:
    """The user at the other end of the socket, as the kernel knows it."""
    try:
        connection = request.channel.transport.socket
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(told)
        name = pwd.getpwuid(user).pw_name
    except (AttributeError, OSError, struct.error):
        return LOCAL
    except KeyError:
        name = f"uid {user}"
    return Caller(name, ADMINISTRATOR, limited=False)


#: Of SO_PEERCRED: process, user and group.
_CREDENTIALS: Final = struct.Struct("3i")


def site_of(resource: IResource, max_body: int, crowd: Crowd | None = None) -> Any:
    """What serves `resource` and refuses bodies of more than `max_body` bytes.

    Who comes over a network is counted by `crowd`.
    """
    site: Any = _Site(  # type: ignore[no-untyped-call]
        resource, requestFactory=_request_class(max_body), timeout=IDLE_TIMEOUT
    )
    site.crowd = crowd
    site.displayTracebacks = False
    site.noisy = False
    return site


def limit_body(site: Any, max_body: int) -> None:
    """Refuse bodies of more than `max_body` bytes from now on."""
    site.requestFactory = _request_class(max_body)


def claim(path: str) -> None:
    """Make sure that a socket can be created at `path`; removes one that nobody listens on.

    Raises `AdminSocketError`.
    """
    directory = os.path.dirname(path) or "."
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        if not os.path.isdir(directory):
            raise AdminSocketError(
                f"admin.socket = {path!r}: there is no directory {directory!r}; create it, or"
                " choose another path"
            ) from None
        if not os.access(directory, os.W_OK | os.X_OK):
            raise AdminSocketError(
                f"admin.socket = {path!r}: no right to create files in {directory!r}"
            ) from None
        return
    except OSError as error:
        raise AdminSocketError(f"admin.socket = {path!r}: {error.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise AdminSocketError(
            f"admin.socket = {path!r} is there and is no socket; expected a path for a new one"
        )
    try:
        if is_alive(path):
            raise AdminSocketError(
                f"admin.socket = {path!r} is in use by another process; stop it, or choose"
                " another path"
            )
        os.unlink(path)
    except OSError as error:
        raise AdminSocketError(f"admin.socket = {path!r}: {error.strerror}") from None


class _Site(Site):
    """A site without an access log: what changes something is logged by the API itself."""

    crowd: Crowd | None = None

    def buildProtocol(self, addr: Any) -> Any:
        """One more connection, or what ends it at once."""
        if self.crowd is None:
            return super().buildProtocol(addr)  # type: ignore[no-untyped-call]
        house = house_of(str(getattr(addr, "host", "")))
        if not self.crowd.enter(house):
            return _TurnedAway()
        protocol: Any = super().buildProtocol(addr)  # type: ignore[no-untyped-call]
        lost = protocol.connectionLost

        def gone(reason: Any) -> None:
            assert self.crowd is not None
            self.crowd.leave(house)
            lost(reason)

        protocol.connectionLost = gone
        return protocol

    def log(self, request: Any) -> None:
        pass


class Crowd:
    """How many are connected to a door, and how many of one house."""

    def __init__(self, most: int = MOST, each: int = EACH) -> None:
        self.most = most
        self.each = each
        #: Connections that were ended at once.
        self.refused = 0
        self._count = 0
        self._of: Counter[str] = Counter()

    def enter(self, house: str) -> bool:
        """One more; False if it is one too many."""
        if self._count >= self.most or self._of[house] >= self.each:
            self.refused += 1
            return False
        self._count += 1
        self._of[house] += 1
        return True

    def leave(self, house: str) -> None:
        """One that has entered is gone."""
        self._count -= 1
        self._of[house] -= 1
        if not self._of[house]:
            del self._of[house]


class _TurnedAway(Protocol):
    """Ends a connection."""

    def connectionMade(self) -> None:
        """It is one too many."""
        self.transport.abortConnection()  # type: ignore[union-attr]


class _BoundedRequest(Request):
    """A request whose body may have `max_body` bytes; a larger one ends the connection."""

    max_body = 0
    refused = False
    taken = 0

    def gotLength(self, length: int | None) -> None:
        if length is not None and length > self.max_body:
            self._refuse()
        else:
            super().gotLength(length)  # type: ignore[no-untyped-call]

    def handleContentChunk(self, data: bytes) -> None:
        self.taken += len(data)
        if self.refused:
            return
        if self.taken > self.max_body:
            self._refuse()
        else:
            super().handleContentChunk(data)  # type: ignore[no-untyped-call]

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        if not self.refused:
            super().requestReceived(command, path, version)  # type: ignore[no-untyped-call]

    def _refuse(self) -> None:
        self.refused = True
        transport: Any = self.channel.transport
        transport.write(
            b"HTTP/1.1 413 Content Too Large\r\nContent-Type: application/problem+json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(_TOO_LARGE) + _TOO_LARGE
        )
        self.channel.loseConnection()


def _request_class(limit: int) -> type[Request]:
    class BoundedRequest(_BoundedRequest):
        max_body = limit

    return BoundedRequest
