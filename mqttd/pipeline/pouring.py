"""Answers of some megabytes, as they are read: a piece, and the next one when that has gone.

    pour --piece--> the transport's buffer --> the peer
            '<-- resumeProducing, each time it has read what there was

A transport that is given all of an answer at once tells nobody how its peer gets on. This way it
has `PIECE` bytes at most, and each of them that goes says that somebody reads.

Promise: who reads is never ended, however slowly; who has read nothing for `STALE` seconds is where
somebody else needs the room.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, Final

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

__all__ = ["PIECE", "STALE", "Pouring"]

#: Bytes that are given to the transport at once.
PIECE: Final = 256 << 10
#: Seconds after which one who reads nothing makes room for another.
STALE: Final = 5.0


class Pouring:
    """The answers that are being read, of `most` bytes in all."""

    def __init__(self, most: int) -> None:
        self.most = most
        #: Their bytes.
        self.held = 0
        #: In the order in which they were read from last, the longest ago first.
        self._answers: dict[_Answer, None] = {}

    def has_room(self, size: int) -> bool:
        """Whether there is room for so many more bytes; who reads nothing goes for it."""
        while self.held + size > self.most:
            first = next(iter(self._answers), None)
            if first is None or monotonic() - first.read_at < STALE:
                return False
            first.end()
        return True

    def pour(self, request: Any, data: bytes) -> None:
        """Answer a request, and finish it when all of that was taken."""
        if len(data) <= PIECE:
            request.write(data)
            request.finish()
            return
        answer = _Answer(self, request, data)
        self.held += len(data)
        self._answers[answer] = None
        request.notifyFinish().addErrback(lambda _: answer.stopProducing())
        request.registerProducer(answer, True)
        answer.resumeProducing()

    def reads(self, answer: _Answer) -> None:
        """Some of it has gone."""
        answer.read_at = monotonic()
        if answer in self._answers:
            del self._answers[answer]
            self._answers[answer] = None

    def over(self, answer: _Answer) -> None:
        """It is read, or its peer is gone."""
        if answer in self._answers:
            del self._answers[answer]
            self.held -= answer.size


@implementer(IPushProducer)
class _Answer:
    """One answer on its way."""

    def __init__(self, pouring: Pouring, request: Any, data: bytes) -> None:
        self.pouring = pouring
        self.request: Any = request
        self.size = len(data)
        self.read_at = monotonic()
        self._data = memoryview(data)
        self._at = 0
        self._paused = False

    def resumeProducing(self) -> None:
        """The transport takes more."""
        self._paused = False
        self.pouring.reads(self)
        while not self._paused and self.request is not None:
            request = self.request
            piece = self._data[self._at : self._at + PIECE]
            self._at += len(piece)
            request.write(bytes(piece))
            if self._at >= self.size:
                self._leave()
                request.unregisterProducer()
                request.finish()

    def pauseProducing(self) -> None:
        """The transport has enough."""
        self._paused = True

    def stopProducing(self) -> None:
        """The peer is gone."""
        self._leave()

    def end(self) -> None:
        """It makes room for others."""
        request = self.request
        self._leave()
        request.channel.transport.abortConnection()

    def _leave(self) -> None:
        self.request = None
        self._data = memoryview(b"")
        self.pouring.over(self)
