"""Acknowledgements that wait for what they promise, in the order of the messages.

    PUBLISH 1, 2  --> [ack 1, ack 2: store, log]   one promise for what a turn brought
    PUBLISH 3     --> [ack 3]                      kept, but waits behind ack 2 (MQTT-4.6.0-2)

A topic may have several keepers (a store, an event log, another node); an acknowledgement goes when
each has kept its promise. Those of one turn that the same keepers are to keep are one promise, and
the keepers are asked once, at the end of the turn: a promise costs an append for each message. So
does one of a later turn that a keeper will keep together with the last (`Asker.joins`): what comes
while a slow disk writes is one promise for each connection. Of a
keeper that goes, nothing is waited for any more: what only it had promised is no longer in
anybody's way, and goes if it is kept after all (`forget`), or counts as kept (`release`).

A connection without promises has no list, and its acknowledgements are sent at once. Nothing is
kept of a connection that has gone.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mqttd.session.ground.connection import OPEN, Connection, Ending

__all__ = ["Asker", "Promise", "Promises"]

#: Acknowledgements from which on those of a promise are joined: thousands may gather while a disk
#: is slow, and go at once.
_MANY: Final = 256


class Promise:
    """Acknowledgements that go together, and who still has to keep something for them."""

    __slots__ = ("count", "keepers", "parts", "queue", "queued", "settled", "ticket")

    def __init__(self, queue: Promises, data: bytes) -> None:
        self.queue = queue
        #: How many acknowledgements, and as they are sent.
        self.count: int = 1
        self.parts: list[bytes] = [data]
        self.keepers: list[object] | None = None
        #: What a keeper that gathers will keep it with; None: nobody does.
        self.ticket: object | None = None
        #: Everybody who is to keep something has been asked.
        self.settled: bool = False
        #: Those behind it wait for it.
        self.queued: bool = True

    def add(self, data: bytes) -> None:
        """One more acknowledgement goes with it."""
        self.count += 1
        parts = self.parts
        parts.append(data)
        if len(parts) >= _MANY:
            self.parts = [b"".join(parts)]

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


class Asker:
    """Who asks the keepers of a promise."""

    def ask(self, promise: Promise, keepers: object) -> None:
        """Ask each of them, by `Promise.ask`; `keepers` is what came with the acknowledgement."""
        raise NotImplementedError

    def joins(self, promise: Promise, keepers: object) -> bool:
        """Whether what `keepers` are to keep now is kept together with this promise, or not."""
        return False


class Promises(Ending):
    """The acknowledgements of one connection that wait, oldest first.

    With `most` of them waiting the client is not read from until half of them have gone.
    """

    __slots__ = ("_asker", "_channel", "_count", "_fresh", "_keepers", "_most", "_waiting")

    def __init__(self, channel: Connection, asker: Asker, most: int) -> None:
        self._channel: Connection | None = channel
        self._asker = asker
        self._most = most
        self._waiting: deque[Promise] = deque()
        #: Acknowledgements in all of them.
        self._count: int = 0
        #: The promise of this turn whose keepers are not asked yet, and those keepers.
        self._fresh: Promise | None = None
        self._keepers: object = None

    def __len__(self) -> int:
        return self._count

    def hold(self, data: bytes, keepers: object) -> None:
        """One more acknowledgement, for which `keepers` are asked at the end of the turn."""
        fresh = self._fresh
        if fresh is not None:
            if keepers is self._keepers or keepers == self._keepers:
                fresh.add(data)
                self._counted()
                return
            self.end_turn()
        channel = self._channel
        if channel is None:
            return
        waiting = self._waiting
        if waiting:
            last = waiting[-1]
            if last.ticket is not None and self._asker.joins(last, keepers):
                last.add(data)
                self._counted()
                return
        promise = Promise(self, data)
        waiting.append(promise)
        self._fresh = promise
        self._keepers = keepers
        channel.turn.endings.append(self)
        self._counted()

    def hold_run(self, data: bytes, count: int, keepers: object) -> None:
        """So many acknowledgements at once, as `hold` takes one."""
        self.hold(data, keepers)
        fresh = self._fresh
        if fresh is None:
            waiting = self._waiting
            if not waiting:
                return  # the connection is gone
            fresh = waiting[-1]
        fresh.count += count - 1
        self._count += count - 2
        self._counted()

    def follow(self, data: bytes) -> None:
        """One more acknowledgement that waits for nothing but those before it."""
        if self._fresh is not None:
            self.end_turn()
        waiting = self._waiting
        if not waiting:
            self._write(data)
            return
        last = waiting[-1]
        if last.keepers is None and last.settled:
            last.add(data)
        else:
            promise = Promise(self, data)
            promise.settled = True
            waiting.append(promise)
        self._counted()

    def join(self, data: bytes) -> bool:
        """As `follow`, but with the promise of this turn, and nobody is asked early for it.

        False: it has brought none.
        """
        fresh = self._fresh
        if fresh is None:
            return False
        fresh.add(data)
        self._counted()
        return True

    def end_turn(self) -> None:
        """Ask the keepers of what this turn has brought."""
        fresh = self._fresh
        if fresh is None:
            return
        keepers = self._keepers
        self._fresh = None
        self._keepers = None
        channel = self._channel
        if channel is None or channel.state != OPEN:
            return
        try:
            self._asker.ask(fresh, keepers)
        except Exception as error:  # it has promised nothing, so the client is told nothing
            channel.turn.crashed(channel, error)
            return
        fresh.settle()

    def send(self, kept: Promise) -> None:
        """One is kept: send it and those behind it, if nothing before it is open."""
        if kept.queued:
            self._go_on()
        else:
            self._write(b"".join(kept.parts))

    def refuse(self, error: Exception) -> None:
        """Who has to keep something cannot be asked: the client is told nothing."""
        channel = self._channel
        if channel is not None and channel.state == OPEN:
            channel.turn.crashed(channel, error)

    def forget(self, keeper: object) -> None:
        """A keeper is gone: nobody waits for what it has promised."""
        self.end_turn()
        kept: deque[Promise] = deque()
        for promise in self._waiting:
            if promise.keepers is not None and keeper in promise.keepers:
                promise.queued = False
                self._count -= promise.count
            else:
                kept.append(promise)
        self._waiting = kept
        self._go_on()

    def waits_for(self, keeper: object) -> bool:
        """Whether something waits for this keeper, as far as it was asked."""
        self.end_turn()
        for promise in self._waiting:
            if promise.keepers is not None and keeper in promise.keepers:
                return True
        return False

    def release(self, keeper: object) -> None:
        """A keeper is gone, and what it has promised counts as kept."""
        self.end_turn()
        for promise in list(self._waiting):
            promise.keep(keeper)

    def close(self) -> None:
        """The connection is gone: promises may still be kept, and nobody hears of it."""
        self._channel = None
        self._fresh = None
        self._keepers = None
        self._waiting.clear()
        self._count = 0

    def _counted(self) -> None:
        self._count += 1
        channel = self._channel
        if self._count >= self._most and channel is not None:
            channel.pause()

    def _go_on(self) -> None:
        waiting = self._waiting
        while waiting and not waiting[0].open():
            promise = waiting.popleft()
            self._count -= promise.count
            self._write(b"".join(promise.parts))
        channel = self._channel
        if channel is None:
            return
        if channel.leaving and not waiting:
            channel.leave()
        elif channel.paused and self._count * 2 <= self._most:
            channel.resume()

    def _write(self, data: bytes) -> None:
        channel = self._channel
        if channel is not None and channel.state == OPEN:
            channel.send(data)
