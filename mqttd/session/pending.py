"""What waits for a client that is away, or whose window is full: the pending messages of a session.

    enqueue --> mqueue, in memory            unqueue --> in flight, or gone (`unqueued`)
       |   `--> the journal's, by receipt       ^
       '--> no room: dropped and counted        '-- oldest first, `mqttd.session.mqueue`

Promise: what is kept is charged to its session and user, and one entry too many costs the oldest.
MQTT 5.0, 4.1, items 4 and 5.
"""

from __future__ import annotations

from typing import Final

from mqttd.session.ground.account import QUEUED, RECORD
from mqttd.session.ground.message import Delivery, entry_delivery, entry_qos, entry_weight
from mqttd.session.mqueue import MQueue
from mqttd.session.willed import Willed

__all__ = ["QUEUING", "Pending"]

#: Units of work of an entry that is queued, and of one that is dropped for it: a microsecond each
#: where a journal keeps them. A turn of one connection has a millisecond of it, that of all eight.
QUEUING: Final = 8


class Pending(Willed):
    """A session that keeps what it cannot send yet."""

    __slots__ = ()

    def new_queue(self) -> MQueue:
        """An empty queue with the limits of this session."""
        settings = self.server.settings
        return MQueue(
            settings.mqueue_max_length, settings.mqueue_max_bytes, settings.mqueue_priorities
        )

    def enqueue(self, entry: object) -> None:
        """Keep an entry in the mqueue; what does not fit is dropped and counted."""
        if self.ended:
            self.server.stray(self, entry)
            return
        account = self.account
        if account.tight and not entry_qos(entry):
            self.drop(entry_delivery(entry, self.v5), "memory")
            return
        if self.owner and self.server.journal.full and not entry_qos(entry):
            self.drop(entry_delivery(entry, self.v5), "not_kept")
            return
        self.server.topics.work += QUEUING
        mqueue = self.mqueue
        if mqueue is None:
            mqueue = self.new_queue()
        weight = entry_weight(entry)
        settings = self.server.settings
        apart = self.owner != 0 and mqueue.leaves(entry, weight, account.queued, settings)
        if not self.has_room(QUEUED if apart else weight):
            self.drop(entry_delivery(entry, self.v5), "queue_full")
            return
        if self.owner and not self.may_keep(weight - QUEUED + RECORD):
            self.drop(entry_delivery(entry, self.v5), "store_share")
            return
        self.mqueue = mqueue
        self.waiting = True
        before = mqueue.held
        if self.owner:
            journal = self.server.journal
            number = journal.queued(self.owner, entry, self.v5)
            receipt = journal.receipt if apart else 0
            if receipt:
                dropped = mqueue.push(receipt, number, mqueue.rank(entry))
            else:
                dropped = mqueue.push(entry, number)
        else:
            dropped = mqueue.push(entry)
        self._weigh_queue(mqueue.held, before)
        self.server.metrics.messages_queued += 1
        if self.server.tap_followed and isinstance(entry, Delivery):
            self.server.queued(self, entry)
        if dropped is not None:
            numbers = mqueue.take_dropped()
            self.server.topics.work += QUEUING * len(numbers)
            for at in range(len(dropped)):
                self.lose(dropped[at], numbers[at], "queue_full")

    def lose(self, entry: object, number: int, reason: str) -> None:
        """What was queued under this number of the journal, or 0, is dropped."""
        server = self.server
        journal = server.journal
        if isinstance(entry, int) and (server.tap_dropped or server.tap_lost):
            # A hook is to have it. Who only keeps why waits for no disk: what goes for want of
            # room goes again and again, and the loop stood still for each.
            found = (
                journal.recall([number], [entry], self.v5)[0]
                if server.tap_dropped
                else journal.glance(number, entry, self.v5)
            )
            entry = entry if found is None else found
        if number:
            journal.forget(number)
        if isinstance(entry, int):
            self.dropped += 1
            server.metrics.drop(reason)
        else:
            self.drop(entry_delivery(entry, self.v5), reason)

    def unqueue(self, mqueue: MQueue) -> object | None:
        """Take the next entry out of the queue; `put_inflight` or `unqueued` must follow."""
        before = mqueue.held
        entry = mqueue.pop()
        self._weigh_queue(mqueue.held, before)
        if mqueue.number:
            self.have_numbers().moving = mqueue.number
        return entry

    def unqueued(self) -> None:
        """What was taken out of the queue last is gone, unless it is in flight by now."""
        numbers = self.numbers
        if numbers is not None and numbers.moving:
            number = numbers.moving
            numbers.moving = 0
            self._rest_numbers(numbers)
            self.server.journal.forget(number)
