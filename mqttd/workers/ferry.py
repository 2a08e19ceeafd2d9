"""What one worker has for another, so that a death of either brings no message twice.

    publisher --QoS 2--> received, for 2: 17  --written--> Link --> taken from 1: 17, sessions
                         one group of the store                     one group of the store

Messages to another worker have numbers that go on over its deaths and ours. Who takes them keeps
the number of the last one with what its sessions keep, in one group of its store, and says it when
a link begins (`HAVE`): what was taken is not sent again. Who sends keeps what may come once only,
QoS 2, with the publisher's packet id, in one group as well, and lets it go when that is written:
of a message that its publisher sends again nothing has gone, and what has gone is not taken from
its publisher again.

While the other worker is away everything for it is kept in the store, of QoS 1 too: what is
acknowledged meanwhile outlives both.

Promise: QoS 1 costs nothing more; QoS 2 a row of the store for all messages of a turn, and the time
in which it is written. Without a store nothing of a session outlives its worker, and nothing is
kept for it but in memory. MQTT 5.0, 4.3.3.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.broker.drawers import Drawer
from mqttd.mesh.frames import AT, RUN1, frame, numbered, packed, unpacked
from mqttd.mesh.landing import unrolled
from mqttd.mesh.link import Gate, Link
from mqttd.mesh.peer import NEVER, Ferry
from mqttd.types import StoreFull

__all__ = ["UNDER_WAY", "WorkerFerry"]

#: The drawer of all this.
UNDER_WAY: Final = "$workers"
#: Bytes of messages in a row, if they are not of one turn.
_ROW: Final = 1 << 20
#: A start has numbers of its own.
_START: Final = 1 << 40


class WorkerFerry(Ferry):
    """What must arrive at worker `number`."""

    __slots__ = (
        "book",
        "drawer",
        "fresh",
        "gate",
        "have",
        "number",
        "old",
        "rows",
        "seq",
        "server",
    )

    def __init__(self, broker: Broker, number: int) -> None:
        super().__init__(broker)
        self.server = broker
        self.number = number
        #: Where what is under way is kept; None without a store.
        self.drawer: Drawer | None = None
        #: The number of the last message that was carried; those kept have the last ones.
        self.seq: int = 0
        #: The number of the last message that has come from there.
        self.have: int = 0
        #: Messages of this turn that are to be kept, each behind its number, and where they wait.
        self.fresh: list[bytes] = []
        self.gate: Gate | None = None
        #: Rows: the number of the last message in each.
        self.rows: deque[int] = deque()
        #: The numbers under which the first of those kept were sent before our last start.
        self.old: deque[int] = deque()

    def begin(self, drawer: Drawer | None, start: int) -> None:
        """Our store is read: take in what it has kept. `start` is higher each time."""
        self.drawer = drawer
        found: dict[int, bytes] = {}
        if drawer is not None:
            known = drawer.get(f"from {self.number}")
            if known is not None:
                self.have = int.from_bytes(known, "big")
            for key in drawer.keys(f"for {self.number} "):
                fields = unpacked(drawer.get(key) or b"")
                for at in range(0, len(fields) - 1, 2):
                    found[int.from_bytes(fields[at], "big")] = fields[at + 1]
        for number in sorted(found):
            data = found[number]
            self.old.append(number)
            self.kept.append((NEVER, data))
            self.kept_bytes += len(data)
        self.seq = start * _START + len(self.old)

    def carry(self, data: bytes, once: bool) -> None:
        """See `Ferry.carry`."""
        self.seq += 1
        link = self.link
        if self.drawer is not None and (once or link is None):
            if not self.fresh:
                self.server.endings.append(self)
                if link is not None:
                    self.gate = link.shut()
            self.fresh.append(self.seq.to_bytes(8, "big"))
            self.fresh.append(data)
        super().carry(data, once)

    def carry_run(self, run: bytes, count: int, v5: bool) -> bool:
        """See `Receiver.take_run`; until they are taken each is kept, as the run."""
        link = self.link
        if link is None:
            return False
        data = frame(RUN1, (b"\5" if v5 else b"\4") + run)
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
            drawer.put(_row_key(self.number, last), row)
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
            drawer.delete(_row_key(self.number, rows.popleft()))

    def _keep_all(self) -> None:
        """Have everything that waits in the store, under the numbers that it has now."""
        drawer = self.drawer
        if drawer is None:
            return
        for key in drawer.keys(f"for {self.number} "):
            drawer.delete(key)
        self.rows.clear()
        self.fresh = []
        number = self.seq - len(self.kept)
        fields: list[bytes] = []
        size = 0
        for _, data in self.kept:
            number += 1
            fields.append(number.to_bytes(8, "big"))
            fields.append(data)
            size += len(data)
            if size >= _ROW:
                self._put(number, packed(fields))
                fields = []
                size = 0
        if fields:
            self._put(number, packed(fields))

    # -- the other worker comes and goes -------------------------------------------------------

    def down(self) -> None:
        """See `Ferry.down`: of runs, what is not taken goes on packet by packet."""
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

    def continue_from(self, have: int) -> None:
        """The other worker has taken the messages up to this one; before `up`."""
        old = self.old
        count = 0
        renumbered = False
        if old:
            while old and old[0] <= have:
                old.popleft()
                count += 1
            renumbered = True
            old.clear()
        elif have <= self.seq:  # else it speaks of a store that we have no more
            count = have - (self.seq - len(self.kept))
        while count > 0 and self.kept:
            count -= 1
            self.kept_bytes -= len(self.kept.popleft()[1])
        if renumbered:
            self._keep_all()
        else:
            self._trim(self.seq - len(self.kept))

    def up(self, link: Link) -> None:
        """See `Ferry.up`: what is not written yet waits for that."""
        self._note()
        gate = link.shut()
        link.send(numbered(AT, self.seq - len(self.kept)))
        super().up(link)
        self.server.journal.when_kept(gate.open)

    def came(self, carried: int, touched: bool) -> None:
        """This one was the last that has come from there."""
        if carried == self.have:
            return
        self.have = carried
        drawer = self.drawer
        if drawer is not None and touched:
            try:
                drawer.put(f"from {self.number}", carried.to_bytes(8, "big"))
            except StoreFull:
                pass  # nor is there what it speaks of


def _row_key(number: int, last: int) -> str:
    return f"for {number} {last:x}"
