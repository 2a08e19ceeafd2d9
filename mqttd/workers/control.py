"""The supervisor's channel to a worker: messages as JSON, some with descriptors.

    supervisor --> worker   {"link": 2, "takes": false} + [stream, datagrams]   worker 2 is there
                            {"opened": true}                                    all are: let in
    supervisor --> node     {"way": 2, "nodes": [...]} + [datagrams]   node 2 of the machine serves
    worker --> supervisor   {"up": true}       its store is read: give it links
                            {"met": [2, 3]}    it has met these
                            {"lost": 2}        its stream makes no sense: a new one
                            {"ready": {...}}   clients are let in, and where
                            {"audited": [what, before, after]}   a file of users was changed
                            {"alive": true}    once a second
                            {"failed": "..."}  it cannot start, and will not if it is tried again

The end of the channel is the end of its other side: a worker whose supervisor has died stops.

Promise: a message is one datagram; nothing waits for the reader but a list.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IReadDescriptor, IWriteDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

__all__ = ["Control", "stop"]

_MOST: Final = 1 << 18
#: Descriptors of one message.
_FDS: Final = 4


@implementer(IReadDescriptor, IWriteDescriptor)
class Control:
    """One end of the channel. `take(message, fds)` gets what comes, `gone()` is called at its end.

    Whoever gets descriptors has to close them.
    """

    def __init__(
        self,
        end: socket.socket,
        reactor: Any,
        take: Callable[[dict[str, Any], list[int]], object],
        gone: Callable[[], object],
    ) -> None:
        end.setblocking(False)
        self.end = end
        self.reactor = reactor
        self.take = take
        self.gone = gone
        self._waiting: list[tuple[bytes, Sequence[int]]] = []
        self._closed = False

    def start(self) -> None:
        """Listen to the other side."""
        self.reactor.addReader(self)

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Say something; the descriptors stay ours, too."""
        if self._closed:
            return
        # What has to wait keeps its descriptors, whatever becomes of the sender's.
        self._waiting.append((json.dumps(message).encode(), [os.dup(fd) for fd in fds]))
        self.doWrite()

    def close(self) -> None:
        """The end."""
        if self._closed:
            return
        self._closed = True
        self.reactor.removeReader(self)
        self.reactor.removeWriter(self)
        for _, fds in self._waiting:
            for fd in fds:
                os.close(fd)
        self._waiting.clear()
        self.end.close()

    # -- Twisted's descriptors -----------------------------------------------------------------

    def fileno(self) -> int:
        """See `IFileDescriptor`."""
        return -1 if self._closed else self.end.fileno()

    def logPrefix(self) -> str:
        """See `ILoggingContext`."""
        return "mqttd-workers"

    def connectionLost(self, reason: Failure) -> None:
        """See `IFileDescriptor`."""
        if not self._closed:
            self.close()
            self.gone()

    def doRead(self) -> None:
        """Take what has come."""
        while not self._closed:
            size = array.array("i").itemsize
            try:
                data, ancillary, _, _ = self.end.recvmsg(_MOST, socket.CMSG_SPACE(_FDS * size))
            except BlockingIOError:
                return
            except OSError:
                data, ancillary = b"", []
            if not data:
                self.close()
                self.gone()
                return
            fds = array.array("i")
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(content[: len(content) - len(content) % size])
            self.take(json.loads(data), list(fds))

    def doWrite(self) -> None:
        """Say what waits."""
        while self._waiting:
            data, fds = self._waiting[0]
            try:
                socket.send_fds(self.end, [data], fds) if fds else self.end.send(data)
            except BlockingIOError:
                self.reactor.addWriter(self)
                return
            except OSError:
                pass  # the other side is gone: `doRead` sees it
            del self._waiting[0]
            for fd in fds:
                os.close(fd)
        self.reactor.removeWriter(self)


def stop(reactor: Any) -> None:
    """The end of this process, if that has not begun already."""
    try:
        reactor.stop()
    except ReactorNotRunning:
        pass
