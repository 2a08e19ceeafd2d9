"""What one process has for another, so that a death of either brings no message twice.

    publisher --QoS 2--> received, for 2: 17  --written--> Link --> taken from 1: 17, sessions
                         one group of the store                     one group of the store

Messages to another process have numbers that go on over its deaths and ours. Who takes them keeps
the number of the last one with what its sessions keep, in one group of its store, and says it when
a link begins (`HAVE`): what was taken is not sent again. Who sends keeps what may come once only,
QoS 2, with the publisher's packet id, in one group as well, and lets it go when that is written:
of a message that its publisher sends again nothing has gone, and what has gone is not taken from
its publisher again. A publisher whose session ends with its connection sends nothing again as the
same message: of it nothing is kept. Whose numbers they are says the *book*, which is that of one
store.

While the other process is away everything that is carried is kept in the store, of QoS 1 too: what
is acknowledged meanwhile outlives both. Between workers that is all; between nodes QoS 2, which
has a lane of its own (`mqttd.mesh.lane`).

Promise: QoS 1 costs nothing more; QoS 2 a row of the store for all messages of a turn, and the time
in which it is written. Without a store nothing of a session outlives its process, and nothing is
kept for it but in memory. MQTT 5.0, 4.3.3.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.broker.ground.drawers import Drawer
from mqttd.broker.routing.abroad import Taken
from mqttd.codec.frame import ONE_BYTE
from mqttd.mesh.arriving import Arriving
from mqttd.mesh.frames import (
    AT,
    HAVE,
    RUN1,
    STATE,
    frame,
    number_of,
    numbered,
    packed,
    unpacked,
)
from mqttd.mesh.landing import unrolled
from mqttd.mesh.link import Gate, Link
from mqttd.mesh.peer import NEVER, Ferry
from mqttd.storage.journal import StoreJournal
from mqttd.types import StoreFull

__all__ = ["ROOM", "LastingFerry", "fails", "kept_rows", "opened", "taken_of"]

#: Bytes that the drawer of all this may weigh.
ROOM: Final = 1 << 30
#: Bytes of messages in a row, if they are not of one turn.
_ROW: Final = 1 << 20
#: A start has numbers of its own.
_START: Final = 1 << 40


def opened(drawer: Drawer | None) -> tuple[int, int]:
    """Which start this is, higher each time, and the book of what is kept there."""
    if drawer is None:
        return 1, random.getrandbits(62)
    start = 1
    known = drawer.get("start")
    if known is not None:
        start = int(known) + 1
    drawer.put("start", str(start).encode())
    book = drawer.get("book")
    if book is None:
        # One that was begun before there were books has none.
        book = (0 if start > 1 else random.getrandbits(62)).to_bytes(8, "big")
        drawer.put("book", book)
    return start, number_of(book)


def fails(broker: Broker) -> bool:
    """Whether the store takes nothing: it keeps nothing from others then."""
    journal = broker.journal
    return isinstance(journal, StoreJournal) and journal.failing


def taken_of(value: bytes) -> tuple[int, int]:
    """The number of the last message that was taken, as a store has it, and of which book."""
    return number_of(value), number_of(value[8:]) if len(value) > 8 else 0


def kept_rows(rows: list[bytes]) -> list[tuple[int, bytes]]:
    """The messages in these rows with their numbers, in their order; each counts once."""
    found: dict[int, bytes] = {}
    for row in rows:
        fields = unpacked(row)
        for at in range(0, len(fields) - 1, 2):
            found[int.from_bytes(fields[at], "big")] = fields[at + 1]
    return sorted(found.items())


class LastingFerry(Ferry):
    """What must arrive at the process that rows of the store call `label`."""

    __slots__ = (
        "book",
        "coming",
        "drawer",
        "fresh",
        "gate",
        "have",
        "label",
        "meets",
        "old",
        "rows",
        "seq",
        "server",
        "theirs",
        "told",
    )

    def __init__(self, broker: Broker, label: str) -> None:
        super().__init__(broker)
        self.server = broker
        self.label = label
        #: Where what is under way is kept; None without a store.
        self.drawer: Drawer | None = None
        #: The number of the last message that was carried; those kept have the last ones.
        self.seq: int = 0
        #: Of which book our numbers are.
        self.book: int = 0
        #: The number of the last message that has come from there, its book, and that of the link.
        self.have: int = 0
        self.theirs: int = 0
        self.coming: int = 0
        #: What it has said last that it has of our book.
        self.told: int = 0
        #: There is a link, and the other is about to say what it has: what is kept goes then.
        self.meets: bool = False
        #: Messages of this turn that are to be kept, each behind its number, and where they wait.
        self.fresh: list[bytes] = []
        self.gate: Gate | None = None
        #: Rows: the number of the last message in each.
        self.rows: deque[int] = deque()
        #: The numbers under which the first of those kept were sent before our last start, or its.
        self.old: deque[int] = deque()

    def begin(self, drawer: Drawer | None, start: int, book: int = 0) -> None:
        """Our store is read: take in what it has kept. `start` and `book`: see `opened`."""
        self.drawer = drawer
        self.book = book
        found: list[tuple[int, bytes]] = []
        if drawer is not None:
            known = drawer.get(f"from {self.label}")
            if known is not None:
                self.have, self.theirs = taken_of(known)
            found = kept_rows([drawer.get(key) or b"" for key in drawer.keys(f"for {self.label} ")])
        for number, data in found:
            self.old.append(number)
            self.kept.append((NEVER, data))
            self.kept_bytes += len(data)
        self.seq = start * _START + len(self.old)

    def keep(self, data: bytes) -> None:
        """See `Ferry.keep`; it has a number, too."""
        self.seq += 1
        super().keep(data)

    def carry(self, data: bytes, once: bool) -> None:
        """See `Ferry.carry`."""
        data = self.flagged(data)
        link = self.link
        if self.drawer is not None and (once or link is None):
            if not self.fresh:
                self.server.endings.append(self)
                if link is not None and self.gate is None:
                    self.gate = link.shut()
            self.fresh.append((self.seq + 1).to_bytes(8, "big"))
            self.fresh.append(data)
        super().carry(data, once)

    def carry_run(self, run: bytes, count: int, kind: int) -> bool:
        """See `Receiver.take_run`; until they are taken each is kept, as the run."""
        link = self.link
        if link is None:
            return False
        data = frame(RUN1, ONE_BYTE[kind] + run)
        kept = self.kept
        posted = self.posted
        for _ in range(count):
            posted += 1
            kept.append((posted, data))
        self.posted = posted
        self.kept_bytes += len(data) * count
        self.seq += count
        link.put(data)
        self.cross()
        return True

    def end_turn(self) -> None:
        """See `Ending`: keep what has come in this turn, then it may go."""
        self._note()
        gate = self.gate
        if gate is not None:
            self.gate = None
            self.server.journal.when_kept(gate.open)

    def _note(self) -> None:
        fresh = self.fresh
        if fresh:
            self.fresh = []
            self._put(int.from_bytes(fresh[-2], "big"), packed(fresh))

    def _put(self, last: int, row: bytes) -> None:
        drawer = self.drawer
        if drawer is None:
            return
        try:
            drawer.put(_row_key(self.label, last), row)
        except StoreFull:
            return  # it is kept in memory, as all that goes on then
        self.rows.append(last)

    def acknowledge(self, count: int) -> None:
        """See `Ferry.acknowledge`."""
        super().acknowledge(count)
        if self.rows:
            self._trim(self.seq - len(self.kept))

    def _trim(self, gone: int) -> None:
        """The messages up to this one are taken."""
        drawer = self.drawer
        rows = self.rows
        while drawer is not None and rows and rows[0] <= gone:
            drawer.delete(_row_key(self.label, rows.popleft()))

    def _keep_all(self) -> None:
        """Have every message that waits in the store, under the numbers that it has now."""
        drawer = self.drawer
        if drawer is None:
            return
        self._forget_rows()
        self.fresh = []
        fields: list[bytes] = []
        size = 0
        last = 0
        for number, data in self.numbers():
            if data[0] == STATE:
                continue  # of this life
            last = number
            fields.append(number.to_bytes(8, "big"))
            fields.append(data)
            size += len(data)
            if size >= _ROW:
                self._put(last, packed(fields))
                fields = []
                size = 0
        if fields:
            self._put(last, packed(fields))

    def _forget_rows(self) -> None:
        drawer = self.drawer
        if drawer is not None:
            for key in drawer.keys(f"for {self.label} "):
                drawer.delete(key)
        self.rows.clear()

    def numbers(self) -> list[tuple[int, bytes]]:
        """All that is kept, each with the number under which the other may have it."""
        old = list(self.old)
        number = self.seq - len(self.kept)
        made: list[tuple[int, bytes]] = []
        for at, (_, data) in enumerate(self.kept):
            number += 1
            made.append((old[at] if at < len(old) else number, data))
        return made

    # -- the other process comes and goes ------------------------------------------------------

    def down(self) -> None:
        """See `Ferry.down`: of runs, what is not taken goes on packet by packet."""
        self.meets = False
        self.kept = unrolled(self.kept)
        self.kept_bytes = 0
        for _, data in self.kept:
            self.kept_bytes += len(data)
        super().down()

    def safe(self) -> None:
        """See `Ferry.safe`: when the store has it."""
        if self.drawer is None:
            super().safe()
            return
        self._keep_all()
        self.server.journal.when_kept(self._safe_now)

    def _safe_now(self) -> None:
        super().safe()

    def wait(self, promise: object) -> None:
        """See `Ferry.wait`."""
        if self.meets:
            self.waiting.append((NEVER, promise))
        else:
            super().wait(promise)

    def call(self, taken: Taken) -> bool:
        """See `Ferry.call`."""
        if self.meets and self.kept:
            self.waiting.append((NEVER, taken))
            return True
        return super().call(taken)

    def greet(self, arriving: Arriving, link: Link) -> None:
        """A link begins: say what has come from there, when the store has that."""
        arriving.carried = self.have  # until it says where it goes on
        self.coming = self.theirs
        self.server.journal.hold(link, numbered(HAVE, self.have, self.theirs.to_bytes(8, "big")))

    def met(self, link: Link, body: bytes) -> None:
        """The other process has said so (`HAVE`): what it lacks goes."""
        self.continue_from(*taken_of(body))
        self.up(link)

    def goes_on(self, arriving: Arriving, body: bytes) -> None:
        """It has said with which number it goes on (`AT`), and of which book."""
        arriving.carried, self.coming = taken_of(body)

    def continue_from(self, have: int, book: int) -> None:
        """The other process has taken the messages of a book up to this one; before `up`."""
        if book != self.book:
            have = 0  # it speaks of a store that we have no more
        self.told = have
        old = self.old
        count = 0
        renumbered = False
        if old:
            while old and old[0] <= have:
                old.popleft()
                count += 1
            renumbered = True
            old.clear()
        elif have <= self.seq:  # else it speaks of what our store had later
            count = have - (self.seq - len(self.kept))
        while count > 0 and self.kept:
            count -= 1
            self.kept_bytes -= len(self.kept.popleft()[1])
        if renumbered:
            self._keep_all()
        else:
            self._trim(self.seq - len(self.kept))

    def begin_anew(self) -> None:
        """The other process is another life of itself: what was said to the last one is not kept.

        Messages are, under the numbers that they had.
        """
        found = self.numbers()
        self.kept.clear()
        self.kept_bytes = 0
        self.old.clear()
        for number, data in found:
            if data[0] != STATE:
                self.old.append(number)
                self.kept.append((NEVER, data))
                self.kept_bytes += len(data)

    def inherits(self, number: int, book: int) -> bool:
        """Its heir has this message of it: whether that has not come yet; it has now."""
        if self.theirs == book and number <= self.have:
            return False
        coming = self.coming
        self.coming = book
        self.came(number, True)
        self.coming = coming
        return True

    def part(self) -> LastingFerry:
        """What is kept for it, as another's: nothing of that is here any more, nor in the store."""
        parted = LastingFerry(self.server, self.label)
        parted.book = self.book
        parted.seq = self.seq
        for number, data in self.numbers():
            parted.old.append(number)
            parted.kept.append((NEVER, data))
            parted.kept_bytes += len(data)
        self.drop()
        return parted

    def regain(self, parted: LastingFerry) -> None:
        """It is not another's after all: what it has not had goes before all else, or at once."""
        messages = [each for each in parted.numbers() if each[1][0] != STATE]
        parted.drop()
        if self.link is not None:
            crossed = self.broker.crossed
            for number, data in messages:
                if number > self.told:
                    self.carry(data, True)
            self.broker.crossed = crossed
            return
        messages += self.numbers()
        self.kept.clear()
        self.kept_bytes = 0
        self.old.clear()
        for number, data in messages:
            self.old.append(number)
            self.kept.append((NEVER, data))
            self.kept_bytes += len(data)
        self._keep_all()

    def drop(self) -> list[bytes]:
        """See `Ferry.drop`: nor does the store keep any of it."""
        self._forget_rows()
        self.fresh = []
        self.old.clear()
        return super().drop()

    def up(self, link: Link) -> None:
        """See `Ferry.up`: what is not written yet waits for that."""
        self.meets = False
        self._note()
        gate = link.shut()
        link.send(numbered(AT, self.seq - len(self.kept), self.book.to_bytes(8, "big")))
        super().up(link)
        self.server.journal.when_kept(gate.open)

    def came(self, carried: int, touched: bool) -> None:
        """This one was the last that has come from there."""
        if carried == self.have and self.coming == self.theirs:
            return
        self.have = carried
        self.theirs = self.coming
        drawer = self.drawer
        if drawer is not None and touched:
            value = carried.to_bytes(8, "big") + self.theirs.to_bytes(8, "big")
            try:
                drawer.put(f"from {self.label}", value)
            except StoreFull:
                pass  # nor is there what it speaks of


def _row_key(label: str, last: int) -> str:
    return f"for {label} {last:x}"
