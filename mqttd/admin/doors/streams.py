"""Server-sent events to many at once: one clock, one ring, and a place in it for each reader.

    Feed --every EVERY seconds--> what is new, once for all at the same place --> each who takes it
                                                                                  and still may

A reader whose connection takes nothing is left alone until it does; what it misses is told as
``lost`` (`mqttd.readmodel.feed`). Promise: at most `MOST` streams, `OF_ONE` of one caller, each
with one piece (`mqttd.readmodel.feed.PIECE`) under way. One whose log-in, token or
role has ended is told nothing after that, and ends within `EVERY` seconds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from mqttd.admin.http.requests import ApiError, Found
from mqttd.admin.http.route import Ask
from mqttd.readmodel.feed import Feed, Reader

__all__ = ["MOST", "OF_ONE", "Streams"]

MOST: Final = 256
OF_ONE: Final = 208
EVERY: Final = 0.25
#: Seconds of silence after which a comment shows that the connection lives.
BEAT: Final = 15.0


@implementer(IPushProducer)
class _Stream:
    """One connection that events go to."""

    def __init__(self, ask: Ask, reader: Reader, now: float) -> None:
        self.request = ask.request
        self.may_still = ask.may_still
        self.reader = reader
        self.name = ask.caller.name
        self.told_at = now
        self.paused = False

    def pauseProducing(self) -> None:
        """The peer takes no more for now."""
        self.paused = True

    def resumeProducing(self) -> None:
        """It does again."""
        self.paused = False

    def stopProducing(self) -> None:
        """It is gone; `Streams` hears of it by the request."""
        self.paused = True

    def end(self) -> None:
        """The answer is over; `Streams` hears of it by the request."""
        self.request.unregisterProducer()
        self.request.finish()


class Streams:
    """The streams of one feed; `reactor` has `seconds` and `callLater`."""

    def __init__(self, feed: Feed, reactor: Any) -> None:
        self.feed = feed
        self.reactor = reactor
        self._streams: set[_Stream] = set()
        self._of: Counter[str] = Counter()
        self._call: Any = None

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._streams)

    def open(self, ask: Ask, kinds: frozenset[str], after: int | None) -> Deferred[Any]:
        """Answer a request with events; ends with the connection, or the right to ask.

        Raises ApiError if there are too many.
        """
        request, name = ask.request, ask.caller.name
        if len(self._streams) >= MOST or self._of[name] >= OF_ONE:
            whose = "" if len(self._streams) >= MOST else " of this caller"
            raise ApiError(
                503, "too_many_streams", f"there are too many event streams{whose}",
                {"retry-after": "5"},
            )  # fmt: skip
        request.setHeader(b"content-type", b"text/event-stream")
        request.setHeader(b"cache-control", b"no-store")
        request.setHeader(b"x-accel-buffering", b"no")
        stream = _Stream(ask, self.feed.read(kinds, after), self.reactor.seconds())
        self._streams.add(stream)
        self._of[name] += 1
        request.registerProducer(stream, True)
        request.write(b"retry: 2000\n\n")
        done: Deferred[Any] = Deferred(lambda _: None)
        request.notifyFinish().addBoth(self._gone, stream, done)
        if self._call is None:
            self._call = self.reactor.callLater(EVERY, self._tick)
        return done

    def close(self) -> None:
        """End them all."""
        for stream in list(self._streams):
            stream.end()

    def _gone(self, result: object, stream: _Stream, done: Deferred[Any]) -> None:
        if stream in self._streams:
            self._streams.discard(stream)
            self._of[stream.name] -= 1
            if not self._of[stream.name]:
                del self._of[stream.name]
            stream.reader.close()
        if not self._streams and self._call is not None:
            self._call.cancel()
            self._call = None

    def _tick(self) -> None:
        self._call = self.reactor.callLater(EVERY, self._tick)
        now = self.reactor.seconds()
        found: Found = {}
        taken: dict[tuple[int, frozenset[str]], tuple[bytes, int]] = {}
        for stream in list(self._streams):
            if not stream.may_still(found):
                stream.end()
                continue
            if stream.paused:
                continue
            reader = stream.reader
            place = (reader.place, reader.kinds)
            if place in taken:
                data, reader.place = taken[place]
            else:
                data = reader.take()
                taken[place] = data, reader.place
            if not data and now - stream.told_at >= BEAT:
                data = b": still here\n\n"
            if data:
                stream.told_at = now
                stream.request.write(data)
