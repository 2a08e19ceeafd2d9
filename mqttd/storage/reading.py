"""A journal that gives payloads back: what waits for a session may be in its file alone.

    Session.fetch --> fetch --> written? --> ask --> (the writer's thread) --> was_read --> fetched
                                not yet: when its group is
                not while much is being read, or memory is scarce: some of it, in turn
    who cannot wait --> recall --> read, or out of the group that is not written yet
    who need not know --> glance --> read, unless the writer is at work

Where a record is says the ledger, whatever has been moved since it was asked for. What is stored
for many lies side by side, so they are asked for together, and a little of each session: that is
read at once (`mqttd.storage.fetching`).
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable
from typing import Final

from mqttd.session.journal import PORTION, Journal
from mqttd.session.kept import Kept
from mqttd.storage.blocks import Block
from mqttd.storage.entries import entry_of
from mqttd.storage.ledger import KIND_MASK, Ledger

__all__ = ["AHEAD", "Fetch", "Pieces", "ReadingJournal"]

#: Of blocks, each (block, where, how much).
Pieces = list[tuple[int, int, int]]

#: Bytes that are being read from which on no more is asked for: all that were asked for come at
#: once where a thousand sessions come back.
AHEAD: Final = 1 << 20
#: Messages that are asked for together where many sessions fetch, of each as many, and at least;
#: and in one turn.
_TOGETHER: Final = 8192
_LEAST: Final = 16
_TURN: Final = 2048


class Fetch:
    """What a queue is to get back."""

    __slots__ = ("mqueue", "numbers", "reader", "receipts", "size")

    def __init__(
        self, reader: Kept, mqueue: object, numbers: list[int], receipts: list[int]
    ) -> None:
        self.reader = reader
        self.mqueue = mqueue
        self.numbers = numbers
        self.receipts = receipts
        #: Bytes that are being read.
        self.size: int = 0

    def cut(self, most: int) -> None:
        """Leave the rest for another time."""
        del self.numbers[most:]
        del self.receipts[most:]


class ReadingJournal(Journal):
    """Reads again what was queued; what tells and writes is `mqttd.storage.journal`."""

    __slots__ = ("_fetches", "_let", "ask", "ledger", "peep", "read", "since", "unreadable")

    def __init__(self, ledger: Ledger, since: int) -> None:
        super().__init__()
        self.ledger = ledger
        self.since = since
        #: Reads pieces of blocks, at once; has them read, `was_read` follows.
        self.read: Callable[[Pieces], list[bytes | None]] = _none
        #: Reads them at once if nobody has to be waited for; else gives nothing.
        self.peep: Callable[[Pieces], list[bytes | None]] = _nothing
        self.ask: Callable[[list[tuple[object, Pieces]]], None] = _nobody
        self._fetches: deque[Fetch] = deque()
        #: How many are read for though memory is scarce.
        self._let: int = 0
        #: Messages that could not be read again.
        self.unreadable: int = 0

    def begin(self) -> None:
        """Something is to be done at the end of this turn: `serve`."""
        raise NotImplementedError

    def is_scarce(self) -> bool:
        """Whether memory is nearly full."""
        raise NotImplementedError

    def data_of(self, block: Block) -> list[bytes] | None:
        """The bytes of this block in pieces, if it is not written yet."""
        raise NotImplementedError

    def fetch(
        self, reader: object, mqueue: object, numbers: list[int], receipts: list[int]
    ) -> None:
        """See `Journal.fetch`; what is not written yet is waited for."""
        assert isinstance(reader, Kept)
        self._fetches.append(Fetch(reader, mqueue, numbers, receipts))
        self.begin()

    def recall(self, numbers: list[int], receipts: list[int], v5: bool) -> list[object]:
        """See `Journal.recall`."""
        found: list[bytes | None] = [None] * len(numbers)
        pieces: Pieces = []
        where: list[int] = []
        gathered: dict[int, bytes] = {}
        for at in range(len(numbers)):
            place = self.ledger.place(numbers[at])
            if place is None:
                continue
            block, start = place
            size = receipts[at] >> 8
            unwritten = self.data_of(block)
            if unwritten is None:
                pieces.append((block.id, start, size))
                where.append(at)
            else:
                data = gathered.get(block.id)
                if data is None:
                    data = b"".join(unwritten)
                    gathered[block.id] = data
                found[at] = data[start : start + size]
        if pieces:
            try:
                read = self.read(pieces)
            except sqlite3.Error:
                return [None] * len(numbers)  # another time they may be read
            for at in range(len(where)):
                found[where[at]] = read[at]
        return [self._entry(numbers[at], receipts[at], found[at], v5) for at in range(len(numbers))]

    def glance(self, number: int, receipt: int, v5: bool) -> object:
        """See `Journal.glance`: while the writer is at work there is nothing."""
        place = self.ledger.place(number)
        if place is None or self.data_of(place[0]) is not None:
            return None
        try:
            read = self.peep([(place[0].id, place[1], receipt >> 8)])
        except sqlite3.Error:
            return None
        return self._entry(number, receipt, read[0], v5) if read else None

    def _entry(self, number: int, receipt: int, data: bytes | None, v5: bool) -> object:
        """What a receipt is for; None, and forgotten, where it cannot be read."""
        try:
            if data is not None and len(data) == receipt >> 8:
                return entry_of(receipt & KIND_MASK, data, v5, self.since)
        except (ValueError, IndexError, TypeError):
            pass
        self.unreadable += 1
        self.forget(number)
        return None

    def serve(self) -> None:
        """Have read what is in the file, as far as there is room; the rest waits for its group."""
        fetches = self._fetches
        unwritten: list[Fetch] = []
        asked: list[tuple[object, Pieces]] = []
        scarce = self.is_scarce()
        self.portion = max(_LEAST, min(PORTION, _TOGETHER // (len(fetches) + 1)))
        count = 0
        while fetches and self.reading < AHEAD and count < _TURN and (self._let or not scarce):
            fetch = fetches.popleft()
            if fetch.reader.channel is None:
                fetch.reader.fetched(fetch.mqueue, [], [])
                continue
            pieces: Pieces = []
            for at in range(min(len(fetch.numbers), self.portion)):
                place = self.ledger.place(fetch.numbers[at])
                if place is None:
                    pieces.append((0, 0, 0))  # dropped meanwhile
                    continue
                block, start = place
                if self.data_of(block) is not None:
                    break
                pieces.append((block.id, start, fetch.receipts[at] >> 8))
            if pieces:
                count += len(pieces)
                fetch.cut(len(pieces))
                fetch.size = sum([receipt >> 8 for receipt in fetch.receipts])
                self.reading += fetch.size
                if scarce:
                    self._let -= 1
                asked.append((fetch, pieces))
            else:
                unwritten.append(fetch)
        fetches.extendleft(reversed(unwritten))
        if asked:
            self.ask(asked)

    def read_on(self, most: int) -> None:
        """See `Journal.read_on`."""
        self._let = most
        if self._fetches:
            self.begin()

    def was_read(self, fetch: object, pieces: Pieces,
                 found: list[bytes | None]) -> None:  # fmt: skip
        """What was asked for is read; it goes to its reader, but for what has moved meanwhile."""
        assert isinstance(fetch, Fetch)
        self.reading -= fetch.size
        if self._fetches:
            self.begin()
        entries: list[object] = []
        for at in range(len(found)):
            data = found[at]
            if data is None:
                place = self.ledger.place(fetch.numbers[at])
                if place is not None and place[0].id != pieces[at][0]:
                    break  # it is elsewhere: the reader asks again
                if place is None:
                    entries.append(None)
                    continue
            entries.append(
                self._entry(fetch.numbers[at], fetch.receipts[at], data, fetch.reader.v5)
            )
        fetch.cut(len(entries))
        fetch.reader.fetched(fetch.mqueue, fetch.numbers, entries)


def _none(pieces: Pieces) -> list[bytes | None]:
    return [None] * len(pieces)


def _nothing(pieces: Pieces) -> list[bytes | None]:
    return []


def _nobody(asked: list[tuple[object, Pieces]]) -> None:
    """There is no file."""
