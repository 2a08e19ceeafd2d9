"""The sockets that listeners listen on, and what the kernel knows of who is at the other end.

    bind_tcp     address, port, backlog, TCP options        bind_unix    path, mode, owner, group
    begin        it listens now, where it was only bound

Promise: a socket is bound or `ListenError` says which listener, where and why; on a Unix socket
nobody can connect before owner and mode hold.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import socket
import struct
from collections.abc import Callable
from typing import Any

from mqttd.config.schema import SocketListener, UnixListener
from mqttd.net.addresses import address_text
from mqttd.net.sockets import bound_tcp, make_room
from mqttd.types import PeerIdentity

__all__ = [
    "ListenError",
    "begin",
    "bind_tcp",
    "bind_unix",
    "give_away",
    "peer_process",
    "transport_identity",
]


class ListenError(ValueError):
    """A listener cannot be opened; the text says which, where and why."""


def peer_process(fd: int) -> PeerIdentity | None:
    """The process at the other end of a Unix socket, as the kernel knows it."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
    try:
        data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return None
    finally:
        peer.detach()
    # Texts, so that access rules can use them: ${client_attrs.peer_uid}.
    pid, uid, gid = (str(number) for number in struct.unpack("3i", data))
    return PeerIdentity(attributes={"peer_pid": pid, "peer_uid": uid, "peer_gid": gid})


def transport_identity(transport: Any) -> PeerIdentity | None:
    """What is known of a Twisted transport's peer: by a PROXY header, or by its process."""
    below = getattr(transport, "transport", transport)  # that of TLS
    known: PeerIdentity | None = getattr(below, "mqttd_known", None)
    carrier = getattr(below, "socket", None)
    if known is None and carrier is not None and carrier.family == socket.AF_UNIX:
        known = peer_process(below.fileno())
    return known


def bind_tcp(
    where: str,
    settings: SocketListener,
    port_before: int,
    listen: bool = True,
    shared: bool = False,
) -> socket.socket:
    """A socket that listens at `bind`; a port 0 takes `port_before`, if that is one.

    Without `listen` it is only bound, and who comes is refused until `begin`; shared: see
    `bound_tcp`, as with `reuse_port`.
    """
    host, port = settings.address
    port = port or port_before
    bound: socket.socket | None = None
    shared = shared or settings.reuse_port
    try:
        bound = bound_tcp(host, port, shared)
        if settings.nodelay:
            # Accepted sockets inherit it: one system call less per connection.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if settings.defer_accept and hasattr(socket, "TCP_DEFER_ACCEPT"):
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
        if listen:
            bound.listen(settings.backlog)
        elif not shared:
            # Who only binds would let others bind, too, and be the second to listen.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise _cannot(where, settings, port, error) from None
    bound.setblocking(False)
    return bound


def begin(where: str, settings: SocketListener, bound: socket.socket) -> None:
    """Listen on what `bind_tcp` has bound."""
    try:
        # What is left of connections of before is in nobody's way.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.listen(settings.backlog)
    except OSError as error:
        raise _cannot(where, settings, bound.getsockname()[1], error) from None


def _cannot(where: str, settings: SocketListener, port: int, error: OSError) -> ListenError:
    hint = ""
    if error.errno == errno.EADDRINUSE:
        hint = "; another program, perhaps a broker, listens there: stop it, or choose another bind"
        if settings.reuse_port:
            hint += "; nodes share it if each has reuse_port = true and the same user"
    place = address_text(settings.address[0], port)
    return ListenError(f"{where}: cannot listen on {place}: {error.strerror}{hint}")


def bind_unix(where: str, settings: UnixListener) -> socket.socket:
    """A Unix socket that listens, in the place of one that nobody listens on."""
    path = settings.path
    try:
        make_room(path)
        _owners(settings)
    except KeyError as error:
        raise ListenError(f"{where}: no such user or group: {error.args[0]}") from None
    except OSError as error:
        raise ListenError(f"{where}: path = {path!r}: {error.strerror or error}") from None
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(path)
        # Nobody can connect before `listen`: owner and mode hold from the first moment.
        give_away(settings)
        os.chmod(path, int(settings.mode, 8))
        bound.listen(settings.backlog)
    except OSError as error:
        bound.close()
        raise ListenError(f"{where}: cannot listen at {path}: {error.strerror}") from None
    bound.setblocking(False)
    return bound


def _owners(settings: UnixListener) -> tuple[int, int]:
    """User and group of the socket, -1 for our own. Raises KeyError for unknown ones."""
    owner = _number(settings.owner, lambda name: pwd.getpwnam(name).pw_uid)
    return owner, _number(settings.group, lambda name: grp.getgrnam(name).gr_gid)


def give_away(settings: UnixListener) -> None:
    """Give the socket to the user and group it is for."""
    owner, group = _owners(settings)
    if owner >= 0 or group >= 0:
        os.chown(settings.path, owner, group)


def _number(name: str, find: Callable[[str], int]) -> int:
    if not name:
        return -1
    return int(name) if name.isdigit() else find(name)
