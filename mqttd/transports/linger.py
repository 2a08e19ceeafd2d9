"""Connections that we have ended with a reason: half-closed, and read until the peer has gone.

    DISCONNECT 0x97 --> shut --> our half closed --> what comes is thrown away --> the peer closes
                                                             '-- after a second, or for want of room

A socket that is closed with unread bytes in it is reset by the kernel, and the reset overtakes what
was written before: a client in the middle of writing would never read why it had to go.

Promise: at most `MOST` descriptors are kept, each for `LAST` milliseconds; the oldest makes room.
"""

from __future__ import annotations

import os
import select
import socket
from typing import Final

__all__ = ["LAST", "MOST", "Linger"]

MOST: Final = 128
LAST: Final = 1000
_IN: Final = 1
_READ: Final = 65536


class Linger:
    """The descriptors of one engine that are over; they stay registered with its epoll."""

    def __init__(self, epoll: select.epoll) -> None:
        self.epoll = epoll
        #: Descriptor -> when it is closed, the earliest first.
        self.fds: dict[int, int] = {}

    def close(self, fd: int, now: int) -> None:
        """Close our half of a connection, and the rest of it soon."""
        try:
            half = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
            try:
                half.shutdown(socket.SHUT_WR)
            finally:
                half.detach()
            self.epoll.modify(fd, _IN)
        except (OSError, ValueError):
            os.close(fd)  # the peer has gone, or the engine has
            return
        if len(self.fds) >= MOST:
            self._end(next(iter(self.fds)))
        self.fds[fd] = now + LAST

    def ready(self, fd: int) -> bool:
        """Throw away what came, if this is one of ours."""
        if fd not in self.fds:
            return False
        try:
            left = os.read(fd, _READ)
        except BlockingIOError:
            return True
        except OSError:
            left = b""
        if not left:
            self._end(fd)
        return True

    def tick(self, now: int) -> None:
        """Close those whose time is up."""
        while self.fds:
            fd = next(iter(self.fds))
            if self.fds[fd] > now:
                return
            self._end(fd)

    def close_all(self) -> None:
        """The end of the engine."""
        while self.fds:
            self._end(next(iter(self.fds)))

    def _end(self, fd: int) -> None:
        del self.fds[fd]
        os.close(fd)
