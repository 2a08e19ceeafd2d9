"""The events of several workers as one stream.

    worker 1 --server-sent events--.
    worker 2 ----------------------+--> Feed of the supervisor --> streams, each with `worker`
    worker 3 ----------------------'    figures: the sums of the last ones

Promise: workers are asked while somebody reads, and no longer; one that is started again is asked
again, and its events begin anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure

from mqttd.readmodel.feed import Feed
from mqttd.readmodel.figures import Reading
from mqttd.workers.asking import Asker
from mqttd.workers.sums import add_up, counted

__all__ = ["EventLines", "Feeds"]

_TARGET: Final = "/api/v1/events"
#: Seconds until a worker is asked again whose stream has ended.
_AGAIN: Final = 0.5
#: Bytes of one event; more is none of ours.
_MOST: Final = 1 << 21

#: Told of an event: its kind, and what it says.
Told = Callable[[str, dict[str, Any]], object]


class EventLines:
    """Server-sent events out of bytes, whatever pieces they come in."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self._rest = b""

    def take(self, data: bytes) -> None:
        """What has come; raises ValueError for what is no stream of ours."""
        *whole, self._rest = (self._rest + data).split(b"\n\n")
        if len(self._rest) > _MOST:
            raise ValueError("an event is too large")
        for entry in whole:
            kind, body = "", b""
            for line in entry.split(b"\n"):
                name, _, value = line.partition(b": ")
                if name == b"event":
                    kind = value.decode()
                elif name == b"data":
                    body += value
            if kind:
                self.told(kind, json.loads(body))


class _Reading(Protocol):
    """The body of a worker's answer."""

    def __init__(self, lines: EventLines, ended: Callable[[], object]) -> None:
        self.lines = lines
        self.ended = ended

    def dataReceived(self, data: bytes) -> None:
        """See `Protocol`."""
        try:
            self.lines.take(data)
        except (ValueError, KeyError, TypeError):
            self.transport.loseConnection()  # type: ignore[union-attr]

    def connectionLost(self, reason: Failure | None = None) -> None:
        """See `Protocol`."""
        self.ended()


class Feeds:
    """The streams of all workers; `feed` is what the supervisor's own are read from."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.reactor = asker.service.reactor
        self.feed = Feed(self, self._listen, self._unlisten, self.reactor)
        #: The last figures of each worker that is read from.
        self.figures: dict[int, dict[str, Any]] = {}
        self._say: Callable[[str, Mapping[str, object]], None] | None = None
        self._readers: dict[int, _Reading | None] = {}
        self._again: dict[int, Any] = {}

    def read(self) -> Reading:
        """The sums of the last figures."""
        found = list(self.figures.values())
        if not found:
            return Reading({}, {})
        counters = counted([each["counters"] for each in found])
        return Reading(counters, add_up([each["gauges"] for each in found]))

    def _listen(self, say: Callable[[str, Mapping[str, object]], None]) -> None:
        self._say = say
        for worker in self.asker.service.workers:
            self._begin(worker.number)

    def _unlisten(self, say: object) -> None:
        self._say = None
        for call in self._again.values():
            if call.active():
                call.cancel()
        self._again.clear()
        readers, self._readers = self._readers, {}
        self.figures.clear()
        for reader in readers.values():
            if reader is not None and reader.transport is not None:
                reader.transport.loseConnection()

    def _begin(self, number: int) -> None:
        if self._say is None or number in self._readers:
            return
        if not self.asker.service.workers[number - 1].ready:
            self._later(number)
            return
        self._readers[number] = None
        asked = self.asker.request(number, "GET", _TARGET)
        asked.addCallback(self._answered, number).addErrback(self._failed, number)

    def _answered(self, response: Any, number: int) -> None:
        lines = EventLines(lambda kind, told: self._told(number, kind, told))
        reader = _Reading(lines, lambda: self._ended(number, reader))
        if number in self._readers:
            self._readers[number] = reader
        response.deliverBody(reader)
        if self._say is None and reader.transport is not None:
            reader.transport.loseConnection()

    def _failed(self, failure: Failure, number: int) -> None:
        self._readers.pop(number, None)
        self._later(number)

    def _ended(self, number: int, reader: _Reading) -> None:
        if self._readers.get(number) is reader:
            del self._readers[number]
            self.figures.pop(number, None)
            self._later(number)

    def _later(self, number: int) -> None:
        if self._say is not None:
            self._again[number] = self.reactor.callLater(_AGAIN, self._begin, number)

    def _told(self, number: int, kind: str, told: dict[str, Any]) -> None:
        if kind == "counters":
            self.figures[number] = told
        elif self._say is not None and kind != "lost":
            self._say(str(told.pop("event", "")), {**told, "worker": number})
