"""The beginning of a packet, kept until the rest has come.

    end of a chunk -> start --- next chunk completes it ---> both as one piece
                        |
                        '-- it does not --> buffer, which a read of the socket fills by itself
                                              ^ `room`, `came`            (many times a read)

What a peer announces is not believed: the buffer is never larger than four times what has arrived,
so whoever announces 256 MB and sends nothing has cost nothing. Nor than an eighth of all that the
peer has sent on this connection: who sends large packets all the time has each buffer made once,
where growing copies a third of a megabyte; and then (`Framing.at_once`) none at all, because the
next packet is read as the object that it stays. At the end the bytes are handed out as they are:
CPython's `BytesIO.getvalue` gives away its own bytes object, so a large payload is copied once, by
the kernel.

Promise: at most `size` bytes are held (`Channel.unfinished` counts them); before CONNECT, where
many may be waited for, exactly what has arrived.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

__all__ = ["AT_ONCE", "READ", "Unfinished"]

#: Bytes of an ordinary read: malloc takes larger ones from mmap each time.
READ: Final = 65536
#: Before so many have arrived a peer is not given a buffer of its own to read into.
_EARNED: Final = READ // 4
#: At most so many in one read, so that one connection does not keep the others waiting.
_MOST: Final = 1 << 20
#: A larger packet is not read at once, whatever its client has sent so far.
AT_ONCE: Final = _MOST + READ


class Unfinished:
    """What has arrived of a packet of `need` bytes, header included.

    `need` may be less than the packet has, while its header is not whole: what comes is then looked
    at again. `size` is how many bytes are held in memory, `arrived` how many of them have come,
    `proved` how many may be held at once, whatever has arrived.
    """

    __slots__ = ("arrived", "buffer", "need", "proved", "size", "start")

    def __init__(self, start: bytes, need: int, proved: int = 0) -> None:
        self.start: bytes = start
        self.need: int = need
        self.proved: int = proved
        self.arrived: int = len(start)
        self.size: int = self.arrived
        self.buffer: BytesIO | None = None

    def __len__(self) -> int:
        return self.arrived

    def add(self, data: bytes, exact: bool) -> bytes:
        """Take a chunk; gives the packet and what is behind it once it is whole, else nothing.

        With `exact` no byte more is held than has arrived, for which each chunk copies them all.
        """
        before = self.arrived
        self.arrived = before + len(data)
        buffer = self.buffer
        if buffer is None:
            if exact or self.arrived >= self.need:
                data = self.start + data
                if self.arrived >= self.need:
                    return data
                self.start = data
                self.size = self.arrived
                return b""
            buffer = BytesIO()
            buffer.write(self.start)
            self.start = b""
            self.buffer = buffer
        buffer.seek(before)
        buffer.write(data)
        if self.arrived >= self.need:
            return buffer.getvalue()
        if self.arrived > self.size:
            self.size = self.arrived
        return b""

    def direct(self) -> bool:
        """Whether so much is missing that a read should go straight into the buffer."""
        if self.arrived < _EARNED:
            return False
        return self.buffer is not None or self.need - self.arrived > READ

    def room(self) -> memoryview:
        """Where the next bytes go; to be released before `came` is called."""
        buffer = self.buffer
        if buffer is None:
            buffer = BytesIO()
            self.buffer = buffer
        if self.size == self.arrived:
            size = self.arrived * 4
            if size < self.proved:
                size = self.proved
            if size > self.need:
                size = self.need
            buffer.seek(size - 1)
            buffer.write(b"\0")
            self.size = size
            if self.start:
                buffer.seek(0)
                buffer.write(self.start)
                self.start = b""
        end = self.arrived + _MOST
        return buffer.getbuffer()[self.arrived : end if end < self.size else self.size]

    def came(self, count: int) -> bytes:
        """So many bytes were read into `room`; gives the packet once it is whole, else nothing."""
        self.arrived += count
        buffer = self.buffer
        assert buffer is not None
        return buffer.getvalue() if self.arrived >= self.need else b""

    def whole(self) -> bytes:
        """What has arrived, copied."""
        buffer = self.buffer
        return self.start if buffer is None else buffer.getvalue()[: self.arrived]
