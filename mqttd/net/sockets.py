"""Sockets as listeners and the HTTP interface both need them: bound, and claimed where one was.

Promise: a Unix socket that somebody listens on is never taken over, a file that is no socket never
removed.
"""

from __future__ import annotations

import errno
import os
import socket
import stat

__all__ = ["bound_tcp", "is_alive", "make_room", "unlink"]


def bound_tcp(host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket bound to an address, that does not listen yet; an empty host is every address.

    shared: others of this user's may be bound to it, too (SO_REUSEPORT). Raises OSError.
    """
    family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if not host:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((host or "::", port))
    except OSError:
        bound.close()
        raise
    return bound


def make_room(path: str) -> None:
    """Remove a socket that nobody listens on; raises OSError for anything else that is there."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "is there and is no socket")
    if is_alive(path):
        raise OSError(errno.EADDRINUSE, "in use by another process")
    unlink(path)


def is_alive(path: str) -> bool:
    """Whether somebody listens on a Unix socket. Raises OSError if that cannot be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its backlog is full
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                return False
            raise
    return True


def unlink(path: str) -> None:
    """Remove a path, if it is there."""
    try:
        os.unlink(path)
    except OSError:
        pass
