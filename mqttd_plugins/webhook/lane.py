"""Events that wait, and the batches of them that go one after the other.

    put --> queue --batch_size, _bytes or _seconds--> POST --2xx--> taken
                                                       |--5xx, 408, 429, no answer--> again, later
                                                       '--other; 5xx until the end--> by halves

What a server refuses may be the fault of one event: the others of its batch are sent again, by
halves, until that one is alone. A server that has refused `IN_A_ROW` of them in a row refuses
everything: the rest is lost, and batches are halved again when it has taken one.

Promise: one request is under way at a time; events are in the order of coming.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol

from twisted.internet.defer import Deferred

__all__ = ["IN_A_ROW", "Event", "Lane", "Owner"]

#: Refused requests in a row from which it is not for one event: several users may have some.
IN_A_ROW: Final = 50

#: The bytes of an event, and whose it is: a user name, "" for none, None for the broker.
Event = tuple[bytes, str | None]


class Owner(Protocol):
    """Who has the lanes."""

    config: Any
    handle: Any

    def post(self, batch: list[Event], attempt: int, number: str) -> Deferred[int]:
        """Send events; the status."""

    def next_number(self) -> str:
        """Of a batch."""

    def leaves(self, event: Event) -> None:
        """It waits no more."""

    def took(self, batch: list[Event]) -> None:
        """The server has."""

    def failed(self, why: str) -> None:
        """The server has not, and is asked again."""

    def refused(self, lane: Lane, event: Event, why: str) -> None:
        """It is for this event that the server has refused others."""

    def lost(self, batch: list[Event], why: str) -> None:
        """They are not sent again."""


class _Piece(NamedTuple):
    """A batch, or a part of one."""

    events: list[Event]
    #: One of what was refused.
    part: bool = False
    #: The server has had all attempts at it.
    tired: bool = False


class Lane:
    """See the module; `rest` are seconds without a request after one that was refused."""

    def __init__(self, owner: Owner, rest: float = 0.0) -> None:
        self.owner = owner
        self.rest = rest
        self.queue: deque[Event] = deque()
        #: Of what was refused as one, the next last.
        self._pieces: list[_Piece] = []
        self._bytes = 0
        self._timer: Any = None
        #: A request is under way, or waits for its next attempt.
        self._busy = False
        self._under_way: Deferred[Any] | None = None
        self._ended = False
        self._refused = 0
        self._refuses_all = False

    def is_idle(self) -> bool:
        """Whether nothing waits, nor is under way."""
        return not (self._busy or self.queue or self._pieces)

    def put(self, events: Iterable[Event]) -> None:
        """They wait from now on, behind what does."""
        for event in events:
            self.queue.append(event)
            self._bytes += len(event[0])
        if not self._busy:
            self._wake()

    def take_out(self, user: str) -> tuple[list[Event], list[Event]]:
        """What there is of a user: of what was refused, and of what waits."""
        parts = [event for piece in reversed(self._pieces) for event in piece.events]
        first = [event for event in parts if event[1] == user]
        self._pieces = [
            piece._replace(events=left)
            for piece in self._pieces
            if (left := [event for event in piece.events if event[1] != user])
        ]
        then = [event for event in self.queue if event[1] == user]
        self.queue = deque(event for event in self.queue if event[1] != user)
        self._bytes = sum(len(event[0]) for event in self.queue)
        return first, then

    def end(self) -> None:
        """Nothing is sent any more."""
        self._ended = True
        self.queue.clear()
        self._pieces.clear()
        if self._under_way is not None:
            self._under_way.cancel()

    # -- batches -------------------------------------------------------------------------------

    def _wake(self) -> None:
        config = self.owner.config
        if len(self.queue) >= config.batch_size or self._bytes >= config.batch_bytes:
            self._send_soon(0)
        elif self.queue and self._timer is None:
            self._send_soon(config.batch_seconds)

    def _send_soon(self, seconds: float) -> None:
        handle = self.owner.handle
        if self._timer is not None:
            if seconds or self._timer.getTime() <= handle.clock.seconds():
                return
            self._timer.cancel()
        self._timer = handle.call_later(seconds, self._send)

    def _send(self) -> None:
        self._timer = None
        if self._busy or self._ended:
            return
        piece = self._pieces.pop() if self._pieces else _Piece(self._batch())
        if piece.events:
            self._busy = True
            self._try(piece, self.owner.next_number(), 1)

    def _batch(self) -> list[Event]:
        config = self.owner.config
        batch: list[Event] = []
        room = config.batch_bytes - 1
        while self.queue and len(batch) < config.batch_size:
            event = self.queue[0]
            room -= len(event[0]) + 1  # a comma, or a bracket
            if room < 0 and batch:
                break
            self.queue.popleft()
            self._bytes -= len(event[0])
            self.owner.leaves(event)
            batch.append(event)
        return batch

    def _try(self, piece: _Piece, number: str, attempt: int) -> None:
        if self._ended:
            return
        waiting = self.owner.post(piece.events, attempt, number)
        waiting.addTimeout(self.owner.config.timeout, self.owner.handle.clock)
        self._under_way = waiting
        waiting.addCallbacks(
            self._answered,
            self._unanswered,
            callbackArgs=(piece, number, attempt),
            errbackArgs=(piece, number, attempt),
        )
        waiting.addErrback(lambda failure: self.owner.handle.log.failure("webhook", failure))

    def _answered(self, status: int, piece: _Piece, number: str, attempt: int) -> None:
        self._under_way = None
        if self._ended:
            return
        why = f"status {status}"
        if 200 <= status < 300:
            self._refused = 0
            self._refuses_all = False
            self.owner.took(piece.events)
            self._next()
        elif status >= 500 and (piece.tired or attempt >= self.owner.config.attempts):
            self._refuse(piece._replace(tired=True), why)
        elif status >= 500 or status in (408, 429):
            self._again(why, piece, number, attempt)
        else:
            self._refuse(piece, why)

    def _unanswered(self, failure: Any, piece: _Piece, number: str, attempt: int) -> None:
        self._under_way = None
        if not self._ended:
            why = failure.getErrorMessage() or failure.type.__name__
            self._again(why, piece, number, attempt)

    def _again(self, why: str, piece: _Piece, number: str, attempt: int) -> None:
        config = self.owner.config
        self.owner.failed(why)
        if attempt >= config.attempts:
            self.owner.lost(piece.events, why)
            self._next()
            return
        pause = min(config.retry_after * 2.0 ** min(attempt - 1, 30), config.retry_most)
        self.owner.handle.call_later(pause, self._try, piece, number, attempt + 1)

    def _refuse(self, piece: _Piece, why: str) -> None:
        """The server does not want these: which of them?"""
        self.owner.failed("")
        self._refused += 1
        if self._refused >= IN_A_ROW:
            self._refuses_all = True
            lost = [event for one in (*self._pieces, piece) for event in one.events]
            self._pieces.clear()
            self.owner.lost(lost, why)
        elif len(piece.events) > 1 and not self._refuses_all:
            half = len(piece.events) // 2
            for part in (piece.events[half:], piece.events[:half]):
                self._pieces.append(_Piece(part, True, piece.tired))
        elif (piece.part or self.rest) and not self._refuses_all:
            self.owner.refused(self, piece.events[0], why)
        else:
            self.owner.lost(piece.events, why)
        self._next(self.rest)

    def _next(self, rest: float = 0.0) -> None:
        if rest:
            self.owner.handle.call_later(rest, self._next)
            return
        self._busy = False
        if self._pieces:
            self._send_soon(0)
        else:
            self._wake()
