"""Payloads on their way into a block: copied once where they come, and joined by the writer.

    bytes received --cut--> places in them, or small copies --64 KiB--> pieces --take--> the writer

A copy of its own for each payload costs more than the bytes of it, above all what malloc does for
it. So of a larger one only its place is noted until some of them are joined, while the processor's
cache still has them; and what is joined of all of these is the work of another thread.

Bound: places are noted in the bytes of one read at a time, which therefore live until other ones
come, or the batch is taken. Compiled with the hot path.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Payloads"]

#: So many payloads, or bytes of them, are joined to a piece.
_AHEAD: Final = 512
_PIECE: Final = 64 << 10
#: A smaller payload is copied.
_SMALL: Final = 512


class Payloads:
    """The payloads of a batch, in order."""

    __slots__ = ("_pieces", "_seen", "_size", "_view", "_waiting")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        #: What is in no piece yet: copies, and places in `_seen`; and the bytes of it.
        self._waiting: list[object] = []
        self._size: int = 0
        self._seen: bytes = b""
        self._view: memoryview = memoryview(b"")

    def add(self, payload: bytes) -> None:
        """One that is bytes of its own."""
        self._waiting.append(payload)
        self._size += len(payload)
        if self._size >= _PIECE or len(self._waiting) >= _AHEAD:
            self._join()

    def cut(self, data: bytes, body: int, end: int, step: int, count: int) -> None:
        """`count` of them from `data`, one every `step` bytes, the first from `body` to `end`."""
        size = end - body
        if size < _SMALL:
            waiting = self._waiting
            waiting.append(data[body:end])
            for _ in range(count - 1):
                body += step
                end += step
                waiting.append(data[body:end])
        else:
            if data is not self._seen:
                if self._seen:
                    self._join()
                self._seen = data
                self._view = memoryview(data)
            view = self._view
            waiting = self._waiting
            waiting.append(view[body:end])
            for _ in range(count - 1):
                body += step
                end += step
                waiting.append(view[body:end])
        self._size += size * count
        if self._size >= _PIECE or len(waiting) >= _AHEAD:
            self._join()

    def _join(self) -> None:
        if self._waiting:
            self._pieces.append(b"".join(self._waiting))  # type: ignore[arg-type]
            self._waiting = []
            self._size = 0
        if self._seen:
            self._seen = b""
            self._view = memoryview(b"")

    def take(self) -> list[bytes]:
        """All of them in pieces; the next batch begins."""
        self._join()
        pieces = self._pieces
        self._pieces = []
        return pieces
