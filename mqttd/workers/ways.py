"""The socket by which connections come from another process of the machine, and go to it.

Datagrams, each with a descriptor, both ways; both ends are given by who has started the two.
"""

from __future__ import annotations

import array
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.interfaces import IReadDescriptor, IWriteDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from mqttd.broker.broker import Broker
from mqttd.workers.handing import MOST

__all__ = ["Way", "received"]

#: Connections that are taken over in one turn, and bytes of them.
_ADOPTED: Final = 128
_TAKEN: Final = 256 << 10


@implementer(IReadDescriptor, IWriteDescriptor)
class Way:
    """The end `fd` of the one to process `number`.

    `adopt(datagram, descriptor)` gets what comes, and has to close that; `has_room(number)` is
    called when there is room again, where that was asked for.
    """

    def __init__(
        self, broker: Broker, reactor: Any, number: int, fd: int,
        adopt: Callable[[bytes, int], object],
        has_room: Callable[[int], object] = lambda number: None,
    ) -> None:  # fmt: skip
        os.set_blocking(fd, False)
        self.broker = broker
        self.reactor = reactor
        self.number = number
        self.adopt = adopt
        self.has_room = has_room
        self.end = socket.socket(fileno=fd)
        reactor.addReader(self)

    def fileno(self) -> int:
        """See `IFileDescriptor`."""
        return self.end.fileno()

    def logPrefix(self) -> str:
        """See `ILoggingContext`."""
        return "mqttd-mesh"

    def connectionLost(self, reason: Failure | None = None) -> None:
        """See `IFileDescriptor`."""
        self.close()

    def send(self, datagram: bytes, fd: int) -> bool:
        """Send one that is not a channel here; False where that cannot be done now."""
        try:
            socket.send_fds(self.end, [datagram], [fd])
        except OSError:
            return False
        return True

    def await_room(self) -> None:
        """There is none: tell when there is."""
        self.reactor.addWriter(self)

    def close(self) -> None:
        """No more connections come by this."""
        if self.end.fileno() >= 0:
            self.reactor.removeReader(self)
            self.reactor.removeWriter(self)
            self.end.close()

    def doRead(self) -> None:
        """Take connections over."""
        self._now()
        taken = count = 0
        while count < _ADOPTED and taken < _TAKEN and self.end.fileno() >= 0:
            try:
                found = received(self.end)
            except OSError:
                self.close()
                break
            if found is None:
                break
            data, fd = found
            if not data:
                self.close()
                break
            count += 1
            taken += len(data)
            if fd >= 0:
                self.adopt(data, fd)
        self.broker.perform()

    def doWrite(self) -> None:
        """There is room for more."""
        self.reactor.removeWriter(self)
        self._now()
        self.has_room(self.number)

    def _now(self) -> None:
        self.broker.now = time.monotonic_ns() // 1_000_000


def received(way: socket.socket) -> tuple[bytes, int] | None:
    """One datagram and its descriptor (-1: none); None when there is no more. Raises OSError."""
    size = array.array("i").itemsize
    try:
        data, ancillary, _, _ = way.recvmsg(MOST + 70_000, socket.CMSG_SPACE(size))
    except BlockingIOError:
        return None
    fd = -1
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds = array.array("i")
            fds.frombytes(content[: len(content) - len(content) % size])
            fd = fds[0]
    return data, fd
