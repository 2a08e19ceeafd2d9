"""Ends connections whose peer reads nothing: output that waits is memory somebody else needs.

    write takes less than all --> server.slow[channel] = now --> swept once a second
                                        ^                          |  older than send_timeout?
                                        '-- every write that ------'  no, if the kernel's queue
                                            takes something           has become shorter meanwhile

Reading slowly is allowed, reading nothing for `send_timeout` is not: the connection is reset, so
that the kernel gives up its queue too. The log and the hooks have the reason, 0x97 (Quota
exceeded); to the client it is written like everything else, behind what it does not read.

Publishers wait while there is too much output (`output.backlog`), but not for those who have been
behind for a second and more: one user may have hundreds of connections, which take a byte now and
then, and nobody else's messages went on. Their output is bounded by `output.high_watermark`.

Promise: a connection that is not blocked costs nothing here; a blocked one a look-up a second, and
one system call in the second half of its time.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.codec import reasons
from mqttd.session.ground.connection import CLOSED, Connection

__all__ = ["Stalled"]

_EVERY: Final = 1000  # milliseconds
#: SO_LINGER on, for no time: closing resets the connection.
_RESET: Final = struct.pack("ii", 1, 0)


class Stalled:
    """Sweeps the slow connections of a broker; `timeout` in milliseconds, 0 ends none."""

    def __init__(self, broker: Broker, timeout: int) -> None:
        self.broker = broker
        self.timeout = timeout
        #: What the kernel held for a channel when it was last asked.
        self._queued: dict[Connection, int] = {}
        #: Who was behind at the last look.
        self._behind: set[Connection] = set()
        self._next = 0

    def tick(self, now: int) -> None:
        """Look at those that wait, if it is time to."""
        slow = self.broker.slow
        if now < self._next or not (slow or self._queued or self._behind):
            return
        self._next = now + min(_EVERY, max(self.timeout // 4, 1))
        for channel in [channel for channel in self._queued if channel not in slow]:
            del self._queued[channel]
        ended: list[Connection] = []
        for channel, since in list(slow.items()):
            if not channel.blocked or channel.state == CLOSED:
                del slow[channel]
            elif self.timeout and (now - since) * 2 >= self.timeout:
                queued = _kernel_queue(channel)
                before = self._queued.get(channel)
                self._queued[channel] = queued
                if before is not None and queued != before:
                    slow[channel] = now
                elif before is not None and now - since >= self.timeout:
                    ended.append(channel)
        self._look_behind()
        for channel in ended:
            self._end(channel)
        if ended or self.broker.stalled:
            self.broker.perform()

    def _look_behind(self) -> None:
        """Nobody waits for those who were behind at the last look, and still are."""
        behind = set(self.broker.slow)
        self.broker.overdue = sum(channel.backlogged for channel in behind & self._behind)
        self._behind = behind

    def _end(self, channel: Connection) -> None:
        broker = self.broker
        broker.slow.pop(channel, None)
        self._queued.pop(channel, None)
        broker.metrics.send_timeouts += 1
        seconds = self.timeout / 1000
        detail = f"reads nothing for {seconds:g} s while {channel.out_bytes} bytes wait"
        broker.end_channel(channel, reasons.QUOTA_EXCEEDED, detail)
        if channel.fd >= 0:
            reset_at_close(channel.fd)
        else:
            channel.edge.drop(channel)


def reset_at_close(fd: int) -> None:
    """Have the kernel forget what it has not sent when this descriptor is closed."""
    peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
    try:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:
        pass
    finally:
        peer.detach()


def _kernel_queue(channel: Connection) -> int:
    """Bytes the kernel holds for the peer, plus those of a Twisted transport; -1 when unknown."""
    fd = channel.fd
    held = 0
    if fd < 0:
        edge = getattr(channel.edge, "inner", channel.edge)  # that of a paced one
        transport = getattr(edge, "transport", None)
        transport = getattr(transport, "transport", transport)  # that below TLS
        try:
            fd = transport.fileno()  # type: ignore[union-attr]
            held = len(transport.dataBuffer) - transport.offset  # type: ignore[union-attr]
            held += transport._tempDataLen  # type: ignore[union-attr]
        except Exception:  # another kind of transport
            return -1
    try:
        told = fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0")
    except OSError:
        return -1
    return held + int(struct.unpack("i", told)[0])
