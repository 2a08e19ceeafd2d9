"""What waits for a session that leaves this node: read and made into packets a part at a time.

    session ends --> Packets     its entries, in memory or in the store, as they stood
                     Joined      with what was caught for it since

A queue of 100,000 messages is 50 to 200 ms of work, more from a disk, and as much memory once more
if it is done at once. An index is a place in it for good: what has expired, or cannot be read, is
an empty packet, which nobody sends.

Promise: nothing is read before it is asked for. The store has it for as long as somebody may ask,
so that what it keeps of the session (`mqttd.cluster.sessions.remains`) ends behind that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

import msgspec

from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.sessions.records import numbers_of, packet_of
from mqttd.session.ground.message import entry_wire
from mqttd.session.session import Session
from mqttd.types import SessionState

__all__ = ["Head", "Packets", "head_of", "joined", "read", "size_of", "weight_of"]

#: What a byte of a record weighs, which is parsed and made into filters in the tables of all nodes:
#: 9,000 of them take as long as 8 MiB of messages.
_RECORD: Final = 16
#: Packets that are made at once where all are wanted.
_SOME: Final = 1000


class _Waiting(Sequence[bytes]):
    """A queue; `size` says what a packet of it has, about, without making it."""

    def size(self, at: int) -> int:
        """Bytes of the packet at this place."""
        raise NotImplementedError

    def sizes(self) -> Iterator[int]:
        """Those of all of them."""
        return map(self.size, range(len(self)))

    def made(self, start: int, end: int) -> list[bytes]:
        """The packets from one place to another."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, len(self), _SOME):
            yield from self.made(at, min(at + _SOME, len(self)))

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        places = range(len(self))[at]
        if isinstance(places, int):
            return self.made(places, places + 1)[0]
        if places.step != 1:
            raise ValueError("a queue is read from its beginning")
        return tuple(self.made(places.start, places.stop))


class Packets(_Waiting):
    """Those of a session that has just ended, as it was then."""

    def __init__(self, broker: Publishing, session: Session) -> None:
        self.broker = broker
        self.session = session
        #: Its record was written then: what is left of a message's expiry is told as of that.
        self.now = broker.now
        #: Of its shared groups, which it is about to leave.
        self._groups = numbers_of(session)
        self._flying = session.pending_in_flight()
        mqueue = session.mqueue
        self._entries: list[object] = [] if mqueue is None else mqueue.items()
        self._numbers: list[int] = [] if mqueue is None else mqueue.numbers()

    def __len__(self) -> int:
        return len(self._flying) + len(self._entries)

    def size(self, at: int) -> int:
        """See `_Waiting.size`."""
        flying = self._flying
        if at < len(flying):
            return len(flying[at].wire)
        entry = self._entries[at - len(flying)]
        if isinstance(entry, int):
            return entry >> 8  # a receipt
        return 0 if entry is None else len(entry_wire(entry))

    def made(self, start: int, end: int) -> list[bytes]:
        """See `_Waiting.made`."""
        broker, now, groups = self.broker, self.now, self._groups
        found = [packet_of(broker, delivery, now, groups) for delivery in self._flying[start:end]]
        first = max(start - len(self._flying), 0)
        end = max(end - len(self._flying), first)
        packets = [b""] * (end - first)
        whole = self.session.whole(self._entries[first:end], self._numbers[first:end])
        for at, delivery in whole:
            if not delivery.expires_at or delivery.expires_at > now:
                packets[at] = packet_of(broker, delivery, now, groups)
            else:
                self._entries[first + at] = None  # it is counted once
                self.session.drop(delivery, "expired")
        return found + packets


class Joined(_Waiting):
    """One queue behind another."""

    def __init__(self, first: Sequence[bytes], behind: Sequence[bytes]) -> None:
        self.first = first
        self.behind = behind

    def __len__(self) -> int:
        return len(self.first) + len(self.behind)

    def size(self, at: int) -> int:
        """See `_Waiting.size`."""
        before = len(self.first)
        return size_of(self.first, at) if at < before else size_of(self.behind, at - before)

    def made(self, start: int, end: int) -> list[bytes]:
        """See `_Waiting.made`."""
        before = len(self.first)
        behind = self.behind[max(start - before, 0) : max(end - before, 0)]
        return [*self.first[start:end], *behind]


def joined(first: Sequence[bytes], behind: Sequence[bytes]) -> Sequence[bytes]:
    """A queue with more behind it."""
    if isinstance(first, _Waiting) or isinstance(behind, _Waiting):
        return Joined(first, behind) if behind else first
    return (*first, *behind)


def size_of(queue: Sequence[bytes], at: int) -> int:
    """Bytes of a packet of a queue, about."""
    return queue.size(at) if isinstance(queue, _Waiting) else len(queue[at])


def read(state: SessionState) -> SessionState:
    """A state with all of its queue made: no store need have it any longer."""
    if not isinstance(state.queue, _Waiting):
        return state
    return SessionState(state.record, tuple(filter(None, state.queue)), state.epoch)


class Head(msgspec.Struct):
    """What of a record says how its packets are read, without its subscriptions."""

    username: str | None
    expiry: int
    #: In seconds since 1970.
    written_at: int
    window: list[int] = []


def head_of(state: SessionState) -> Head | None:
    """That of a state; None where it cannot be read."""
    try:
        return msgspec.json.decode(state.record, type=Head)
    except msgspec.MsgspecError:
        return None


def weight_of(state: SessionState) -> int:
    """Bytes that it is worth to move a session."""
    queue = state.queue
    waits = queue.sizes() if isinstance(queue, _Waiting) else map(len, queue)
    return _RECORD * len(state.record) + sum(waits)
