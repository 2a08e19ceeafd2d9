"""Acknowledgements that wait for what they promise, in the order of the messages.

    PUBLISH 1  --> [ack 1: store, log]   two promises open
    PUBLISH 2  --> [ack 2]               kept, but waits behind ack 1 (MQTT-4.6.0-2)

A topic may have several keepers (a store, an event log, another node); an acknowledgement goes when
each has kept its promise. Of a keeper that goes, nothing is waited for any more: what only it had
promised is no longer in anybody's way, and goes if it is kept after all.

A connection without promises has no list, and its acknowledgements are sent at once. Nothing is
kept of a connection that has gone.
"""

from __future__ import annotations

from collections import deque

from mqttd.session.connection import OPEN, Connection

__all__ = ["Promise", "Promises"]


class Promise:
    """One acknowledgement, and who still has to keep something for it."""

    __slots__ = ("data", "keepers", "queue", "queued", "settled")

    def __init__(self, queue: Promises, data: bytes) -> None:
        self.queue = queue
        self.data = data
        self.keepers: list[object] | None = None
        #: Everybody who is to keep something has been asked.
        self.settled: bool = False
        #: Those behind it wait for it.
        self.queued: bool = True

    def ask(self, keeper: object) -> None:
        """`keeper` has to keep something first."""
        if self.keepers is None:
            self.keepers = []
        self.keepers.append(keeper)

    def settle(self) -> None:
        """Everybody has been asked."""
        self.settled = True
        if not self.keepers:
            self.queue.send(self)

    def keep(self, keeper: object) -> bool:
        """`keeper` has kept its promise; says whether it was waited for."""
        keepers = self.keepers
        if keepers is None or keeper not in keepers:
            return False
        keepers.remove(keeper)
        if self.settled and not keepers:
            self.queue.send(self)
        return True

    def open(self) -> bool:
        """Whether something is to be kept yet."""
        return not self.settled or bool(self.keepers)


class Promises:
    """The acknowledgements of one connection that wait, oldest first."""

    __slots__ = ("_channel", "_most", "_waiting")

    def __init__(self, channel: Connection, most: int) -> None:
        self._channel: Connection | None = channel
        #: With so many waiting the client is not read from until half of them have gone.
        self._most = most
        self._waiting: deque[Promise] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, data: bytes) -> Promise:
        """One more acknowledgement; it may go once it is settled and all of it is kept."""
        promise = Promise(self, data)
        self._waiting.append(promise)
        channel = self._channel
        if channel is not None and len(self._waiting) >= self._most:
            channel.pause()
        return promise

    def send(self, kept: Promise) -> None:
        """One is kept: send it and those behind it, if nothing before it is open."""
        if not kept.queued:
            self._write(kept.data)
            return
        self._go_on()

    def forget(self, keeper: object) -> None:
        """A keeper is gone: nobody waits for what it has promised."""
        kept: deque[Promise] = deque()
        for promise in self._waiting:
            if promise.keepers is not None and keeper in promise.keepers:
                promise.queued = False
            else:
                kept.append(promise)
        self._waiting = kept
        self._go_on()

    def _go_on(self) -> None:
        waiting = self._waiting
        while waiting and not waiting[0].open():
            self._write(waiting.popleft().data)
        channel = self._channel
        if channel is not None and channel.paused and len(waiting) * 2 <= self._most:
            channel.resume()

    def _write(self, data: bytes) -> None:
        channel = self._channel
        if channel is not None and channel.state == OPEN:
            channel.send(data)

    def close(self) -> None:
        """The connection is gone: promises may still be kept, and nobody hears of it."""
        self._channel = None
        self._waiting.clear()
