"""Where the log is written: a descriptor, a file with rotation, systemd's journal.

A target is written to by one thread. `write` waits for a reader as long as it is let (`late` says
when the process has waited long enough, `seconds` how long at most) and raises OSError for what
could not be written.

Promise: after `log.rotate` bytes a file becomes FILE.1, that becomes FILE.2, and `log.keep` of them
stay. A file that somebody else has moved or removed is opened anew before the next write.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["JOURNAL", "FileTarget", "JournalTarget", "StreamTarget", "Target"]

JOURNAL: Final = "/run/systemd/journal/socket"
#: A pipe that has room takes so many bytes without making the writer wait.
_PIECE: Final = 4096
#: Milliseconds between two looks whether to wait any longer.
_LOOK: Final = 100


class Target:
    """Takes batches of lines."""

    def write(
        self, lines: Sequence[bytes], late: Callable[[], bool], seconds: float | None = None
    ) -> None:
        """Write the lines; raises OSError for what nobody takes."""
        raise NotImplementedError

    def describe(self) -> str:
        """Where it goes, for the operator."""
        raise NotImplementedError


class StreamTarget(Target):
    """A descriptor that is open: standard error."""

    def __init__(self, fd: int = 2) -> None:
        self.fd = fd

    def write(
        self, lines: Sequence[bytes], late: Callable[[], bool], seconds: float | None = None
    ) -> None:
        """See `Target.write`."""
        view = memoryview(b"".join(lines))
        end = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        while view:
            if not poll.poll(_LOOK):
                if late() or (end is not None and time.monotonic() >= end):
                    raise TimeoutError("nobody reads it")
                continue
            try:
                view = view[os.write(self.fd, view[:_PIECE]) :]
            except BlockingIOError:
                continue

    def describe(self) -> str:
        """See `Target.describe`."""
        return "standard error" if self.fd == 2 else f"descriptor {self.fd}"


class FileTarget(Target):
    """A file of so many bytes at most, and older ones beside it; `rotate` 0 lets it grow.

    `private`: for nobody but its owner. Raises OSError if it cannot be opened.
    """

    def __init__(self, path: str, rotate: int, keep: int, private: bool = False) -> None:
        self.path = os.path.abspath(path)
        self.rotate = rotate
        self.keep = keep
        self.private = private
        self._fd = -1
        self._size = 0
        self._asked = False
        self._file: tuple[int, int] = (0, 0)
        self._open()

    def write(
        self, lines: Sequence[bytes], late: Callable[[], bool], seconds: float | None = None
    ) -> None:
        """See `Target.write`."""
        asked, self._asked = self._asked, False
        if self._gone():
            self._open()
        elif asked:
            self._turn()
        held: list[bytes] = []
        size = self._size
        for line in lines:
            if self.rotate and size and size + len(line) > self.rotate:
                self._put(held)
                self._turn()
                held = []
                size = self._size
            held.append(line)
            size += len(line)
        self._put(held)

    def _put(self, lines: list[bytes]) -> None:
        view = memoryview(b"".join(lines))
        while view:
            written = os.write(self._fd, view)
            self._size += written
            view = view[written:]

    def turn(self) -> None:
        """Begin a new file with the next write; from any thread or signal handler.

        One that somebody else has moved away is begun anew anyway, and nothing more.
        """
        self._asked = True

    def _gone(self) -> bool:
        try:
            found = os.stat(self.path)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self._file

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600 if self.private else 0o640)
        if self.private:
            os.fchmod(fd, 0o600)  # one that was there already
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        found = os.fstat(fd)
        self._size = found.st_size
        self._file = (found.st_dev, found.st_ino)

    def _turn(self) -> None:
        try:
            for number in range(self.keep, 0, -1):
                older = f"{self.path}.{number}"
                newer = f"{self.path}.{number - 1}" if number > 1 else self.path
                if os.path.exists(newer):
                    os.replace(newer, older)
            if not self.keep:
                os.unlink(self.path)
        except OSError:
            return  # it grows on, which is better than a line that is lost
        self._open()

    def describe(self) -> str:
        """See `Target.describe`."""
        return self.path


class JournalTarget(Target):
    """systemd's journal, by the socket of its native protocol.

    Raises OSError if there is none.
    """

    def __init__(self, path: str = JOURNAL) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.connect(path)
        self._socket.setblocking(False)

    def write(
        self, lines: Sequence[bytes], late: Callable[[], bool], seconds: float | None = None
    ) -> None:
        """See `Target.write`."""
        end = None if seconds is None else time.monotonic() + seconds
        for line in lines:
            self._send(line, late, end)

    def _send(self, entry: bytes, late: Callable[[], bool], end: float | None) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        again = True
        while True:
            try:
                self._socket.send(entry)
                return
            except BlockingIOError:
                if not poll.poll(_LOOK) and (
                    late() or (end is not None and time.monotonic() >= end)
                ):
                    raise TimeoutError("nobody reads it") from None
            except (ConnectionRefusedError, FileNotFoundError, ConnectionResetError):
                if not again:
                    raise
                again = False
                self._socket.connect(self.path)  # it was started again

    def describe(self) -> str:
        """See `Target.describe`."""
        return "the journal"
