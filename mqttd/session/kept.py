"""What a session holds, as a whole: found again, shown, and taken away from it.

    journal, another worker --> restored, restore     as `mqttd.session.state` has changed it
    queued, but only in the journal --> fetch, fetched     a slice at a time, before it is sent
    operators, the next member of a group --> shared, pending, queued
    rights that were lost --> withdraw

MQTT 5.0, 4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from mqttd.session.charged import flight_weight
from mqttd.session.ground.account import AWAITING, INFLIGHT, QUEUED, RECORD, ROW
from mqttd.session.ground.message import (
    RELEASED,
    Delivery,
    Message,
    entry_delivery,
    entry_qos,
    entry_size,
)
from mqttd.session.mqueue import UNSAID, MQueue
from mqttd.session.pending import Pending

__all__ = ["Kept"]

#: Bytes of messages that are read again at once.
_FETCHED: Final = 256 << 10
#: Bytes of a queue that are looked at together where all of it is looked at.
_PART: Final = 1 << 20


class Kept(Pending):
    """A session whose state can be put in and looked at."""

    __slots__ = ()

    # -- recovery ------------------------------------------------------------------------------

    def restored(self, owner: int, expiry_seconds: int, away_since: int, v5: bool) -> None:
        """The journal has kept this session; its client is away, and spoke this version."""
        self.owner = owner
        if owner:
            self.enter_rows(ROW + len(self.client_id))
            for full_filter in self.subscriptions or ():
                self.enter_rows(ROW + len(full_filter))
        self.expiry_interval = expiry_seconds
        self.clean = False
        self.away_since = away_since
        self.v5 = v5

    def restore(self, entry: object, packet_id: int, number: int) -> None:
        """The journal has kept an entry in flight under this packet id; in their order."""
        if self.inflight is None:
            self.inflight = {}
        self.inflight[packet_id] = entry
        self.fly(flight_weight(entry))
        self.have_numbers().inflight[packet_id] = number

    def restore_queue(
        self, entries: list[object], numbers: vec[i64], ranks: list[int]
    ) -> list[int]:
        """The journal has kept what was queued, as entries or receipts.

        ranks: their priorities, or nothing where there are none. Returns the numbers of what does
        not fit any more, and is dropped.
        """
        mqueue = self.new_queue()
        for at in range(len(entries)):
            mqueue.push(entries[at], numbers[at], ranks[at] if ranks else UNSAID)
        self.mqueue = mqueue
        self.waiting = True
        self._weigh_queue(mqueue.held, 0)
        return mqueue.take_dropped()

    def restore_received(self, packet_id: int, number: int) -> None:
        """The journal has kept an incoming QoS 2 id that awaits PUBREL."""
        if self.awaiting_rel is None:
            self.awaiting_rel = {}
        if packet_id not in self.awaiting_rel:
            self.account.awaiting_rel += AWAITING
            self.charge(AWAITING)
        self.awaiting_rel[packet_id] = self.server.now
        self.number_received(packet_id, number)
        numbers = self.have_numbers()
        if numbers.restored is None:
            numbers.restored = set()
        numbers.restored.add(packet_id)

    def restore_will(self, will: Message, delay_seconds: int) -> None:
        """The journal has kept this will."""
        self._weigh_will(will, self.will)
        self.will = will
        self.will_delay = delay_seconds

    # -- taken away ---------------------------------------------------------------------------

    def withdraw(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out what is queued, or waits to be sent again, and is unwanted; returns it."""
        gone: list[Delivery] = []
        inflight = self.inflight
        if inflight and self.channel is None:
            for packet_id, entry in list(inflight.items()):
                if entry is not RELEASED:
                    delivery = entry_delivery(entry, self.v5)
                    if unwanted(delivery):
                        self.pop_inflight(packet_id)
                        if delivery.qos == 1 or delivery.group is None:
                            gone.append(delivery)
        if self.mqueue is not None:
            kept = self.new_queue()
            numbers = self.mqueue.numbers()
            entries = self.mqueue.items()
            ranks = self.mqueue.ranks()
            for at, delivery in self._in_parts(entries, numbers):
                number = numbers[at] if numbers else 0
                if unwanted(delivery):
                    gone.append(delivery)
                    if number:
                        self.server.journal.forget(number)
                else:
                    kept.push(entries[at], number, ranks[at] if ranks else UNSAID)
            self._weigh_queue(kept.held, self.mqueue.held)
            self.mqueue = kept
        return gone

    def drop_qos0(self) -> None:
        """Take out what is queued with QoS 0, for lack of memory."""
        mqueue = self.mqueue
        if mqueue is None:
            return
        kept = self.new_queue()
        numbers = mqueue.numbers()
        ranks = mqueue.ranks()
        at = 0
        for entry in mqueue.items():
            number = numbers[at] if numbers else 0
            rank = ranks[at] if ranks else UNSAID
            at += 1
            if entry_qos(entry) or isinstance(entry, int):
                kept.push(entry, number, rank)
            else:
                self.lose(entry, number, "memory")
        self._weigh_queue(kept.held, mqueue.held)
        self.mqueue = kept

    def _in_parts(
        self, entries: list[object], numbers: list[int]
    ) -> Iterator[tuple[int, Delivery]]:
        """Entries with their places, as `whole` gives them, `_PART` bytes of them at a time."""
        first = 0
        while first < len(entries):
            end = first
            size = 0
            while end < len(entries) and size < _PART:
                size += entry_size(entries[end])
                end += 1
            for place, delivery in self.whole(entries[first:end], numbers[first:end]):
                yield first + place, delivery
            first = end

    def whole(self, entries: list[object], numbers: list[int]) -> list[tuple[int, Delivery]]:
        """Entries with their places, those that are in the journal alone read again."""
        found: dict[int, object] = {}
        wanted = [at for at in range(len(entries)) if isinstance(entries[at], int)]
        if wanted:
            receipts: list[int] = []
            for at in wanted:
                entry = entries[at]
                assert isinstance(entry, int)
                receipts.append(entry)
            read = self.server.journal.recall([numbers[at] for at in wanted], receipts, self.v5)
            found = dict(zip(wanted, read, strict=True))
        result: list[tuple[int, Delivery]] = []
        for at in range(len(entries)):
            made = found.get(at) if isinstance(entries[at], int) else entries[at]
            if made is not None:
                result.append((at, entry_delivery(made, self.v5)))
        return result

    # -- read again ----------------------------------------------------------------------------

    def fetch(self, mqueue: MQueue) -> None:
        """Have the journal read what comes next of the queue, once; `fetched` follows."""
        if not mqueue.asked:
            if self.server.scarce:
                self.server.metrics.memory_waited += 1
            journal = self.server.journal
            numbers, receipts = mqueue.wanted(journal.portion, _FETCHED)
            mqueue.asked = True
            journal.fetch(self, mqueue, numbers, receipts)

    def fetched(self, mqueue: object, numbers: list[int], entries: list[object]) -> None:
        """The journal has read this, and knows nothing of what is None."""
        if mqueue is self.mqueue:
            assert isinstance(mqueue, MQueue)
            mqueue.asked = False
            if self.channel is None:
                return  # it is read again for the next connection, and takes no memory until then
            before = mqueue.held
            mqueue.fill(numbers, entries)
            self._weigh_queue(mqueue.held, before)
        self.drain()

    # -- shown ---------------------------------------------------------------------------------

    def shared(self) -> list[Delivery]:
        """What came through shared groups and may go to another member, oldest first.

        Not a QoS 2 message that was sent: its first receiver has to finish it (MQTT-4.8.2-5).
        """
        result: list[Delivery] = []
        if self.inflight is not None:
            for entry in self.inflight.values():
                if isinstance(entry, Delivery) and entry.group is not None and entry.qos == 1:
                    result.append(entry)
        if self.mqueue is not None:
            for entry in self.mqueue.items():
                if isinstance(entry, Delivery) and entry.group is not None and entry.qos:
                    result.append(entry)
        return result

    def pending(self) -> list[Delivery]:
        """What was in flight (not yet released) and queued, oldest first."""
        return self.pending_in_flight() + self.queued()

    def pending_in_flight(self) -> list[Delivery]:
        """What was in flight (not yet released), oldest first."""
        result: list[Delivery] = []
        if self.inflight is not None:
            for entry in self.inflight.values():
                if entry is not RELEASED:
                    result.append(entry_delivery(entry, self.v5))
        return result

    def queued(self) -> list[Delivery]:
        """What waits in the queue, in the order in which it would leave."""
        if self.mqueue is None:
            return []
        whole = self.whole(self.mqueue.items(), self.mqueue.numbers())
        return [delivery for _, delivery in whole]

    def each_queued(self) -> Iterator[Delivery]:
        """As `queued`, of what is in the journal alone no more than some in memory at once."""
        if self.mqueue is not None:
            for _, delivery in self._in_parts(self.mqueue.items(), self.mqueue.numbers()):
                yield delivery

    def held(self) -> int:
        """How many `pending` would give."""
        count = 0 if self.mqueue is None else self.mqueue.length
        if self.inflight is not None:
            for entry in self.inflight.values():
                if entry is not RELEASED:
                    count += 1
        return count

    def recorded(self) -> int:
        """What there is of it takes so many bytes in the journal, or a little less."""
        size = self.rows
        if self.mqueue is not None:
            size += self.mqueue.size - (QUEUED - RECORD) * self.mqueue.length
        if self.inflight is not None:
            size += self.flying() - (INFLIGHT - RECORD) * len(self.inflight)
        return size

    # -- held to its user's limit --------------------------------------------------------------

    def overdrawn(self, entry: object, size: int) -> bool:
        """Whether an entry may not go out, since its user holds too much already.

        It waits where an acknowledgement will let it out; else nobody would ask for it again.
        """
        if not self.has_room(INFLIGHT + size):
            reason = "queue_full"
        elif self.owner and not self.may_keep(RECORD + size):
            reason = "store_share"
        else:
            return False
        if self.inflight:
            self.enqueue(entry)
        else:
            self.drop(entry_delivery(entry, self.v5), reason)
        return True
