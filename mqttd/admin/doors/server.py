"""Serves the HTTP interface on a Unix socket, which the file system protects.

    mqttd-ctl, curl --unix-socket  -->  data/mqttd.sock (0600)  -->  Api

Who may open the socket may do everything: it belongs to the broker's user, mode 0600, and is
never reachable over a network.

Promise: a socket somebody listens on is never taken over, a file that is no socket never removed;
the socket cannot be connected to before its mode is set.
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
import struct
from typing import Any, Final
from urllib.parse import unquote

from twisted.application.service import Service
from twisted.web.resource import IResource
from zope.interface import implementer

from mqttd.admin.doors.site import MOST, Crowd, site_of
from mqttd.admin.http.requests import ADMINISTRATOR, CALLER, LOCAL, NOTE, Caller, set_caller
from mqttd.net.sockets import is_alive

__all__ = ["AdminService", "AdminSocketError", "LocalDoor", "claim"]

SOCKET_MODE: Final = 0o600
#: Doors of a supervisor: its socket, TCP and the page.
DOORS: Final = 3


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
        # All are of one house here; a supervisor asks for whom it has at all its doors.
        most = DOORS * MOST if behind else MOST
        crowd = Crowd(most, most)
        self.site: Any = site_of(LocalDoor(resource, behind), max_body, crowd, reactor=reactor)
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
        if self.behind and not told:
            request.setHeader(NOTE, _ALONE)
        set_caller(request, _told(told) if told else _peer_of(request))
        return self.resource.render(request)


#: To who asks a worker itself.
_ALONE: Final = (
    b"this is one worker alone, with its part of everything; the broker's socket is admin.socket"
    b" of its configuration"
)


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
