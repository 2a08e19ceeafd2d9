"""The message queue of a session: what waits while the client is away or its window is full.

           |<----------------- Max Len ----------------->|
           -----------------------------------------------
     IN -> |      Messages Queue   |  Inflight Window    | -> Out
           -----------------------------------------------
                                   |<---   Win Size  --->|

Bounded by count and by bytes, wherever these are. When full it drops the oldest QoS 0 message first
if any is queued (`store_qos0`), otherwise the oldest. With priorities, topics with a higher number
leave first and lose last; within one priority the order is that of arrival.

An entry is a `Delivery` or, where nothing is remembered beside them, the bytes of a PUBLISH; it is
counted with what it takes in memory (`mqttd.session.ground.account`). Beside it stands the number
by which a journal knows it, where there is one: 8 bytes each. What a journal keeps may wait there
alone: the entry is its receipt then (`mqttd.session.ground.message`), `peek` gives None and the
queue is not `done`, until who drains it has had the next ones read (`wanted`, `fill`).

Promise: push and pop are O(1) amortised, except that a QoS 0 message that is dropped from among
others has those behind it move up; it is looked for from where the last one was. Without priorities
one list serves.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import append, pop, vec
from mypy_extensions import i64

from mqttd.codec.topic import match
from mqttd.session.ground.message import (
    Delivery,
    entry_delivery,
    entry_qos,
    entry_size,
    entry_weight,
)
from mqttd.session.ground.settings import Settings

__all__ = ["UNSAID", "MQueue", "one_receipt"]

_COMPACT_AT = 1024
#: The priority of an entry that says it itself, by its topic.
UNSAID: Final = -(1 << 60)
#: Receipts that are there once however many queues hold them, and how many of them.
_RECEIPTS: Final[dict[object, object]] = {}
_MOST_RECEIPTS: Final = 4096


class _Lane:
    """Entries of one priority: a list with a read index."""

    __slots__ = ("head", "items", "numbers", "past", "priority", "taken")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.items: list[object] = []
        self.head: int = 0
        #: Before this place is none of QoS 0.
        self.past: int = 0
        #: The journal's number of each item, nothing while none has one; of the item taken last.
        self.numbers: vec[i64] = vec[i64]()
        self.taken: i64 = 0

    def put(self, entry: object, number: i64) -> None:
        numbers = self.numbers
        if number or len(numbers):
            while len(numbers) < len(self.items):
                numbers = append(numbers, 0)
            self.numbers = append(numbers, number)
        self.items.append(entry)

    def take(self) -> object:
        items = self.items
        head = self.head
        taken = items[head]
        # It would be held until the list is compacted: a thousand messages, of any size.
        items[head] = None
        numbers = self.numbers
        if len(numbers):
            self.taken = numbers[head]
        head += 1
        if head >= _COMPACT_AT and head * 2 >= len(items):
            del items[:head]
            if len(numbers):
                self.numbers = numbers[head:]
            self.past = max(0, self.past - head)
            head = 0
        self.head = head
        return taken

    def pick(self, at: int) -> object:
        if len(self.numbers):
            self.numbers, self.taken = pop(self.numbers, at)
        if at < self.past:
            self.past -= 1
        return self.items.pop(at)

    def next_qos0(self) -> int:
        """Where the first entry of QoS 0 is; behind all where there is none."""
        at = max(self.head, self.past)
        while at < len(self.items) and entry_qos(self.items[at]):
            at += 1
        self.past = at
        return at


class MQueue:
    """A bounded queue of entries.

    `max_length` counts messages (0: no limit), `max_bytes` their bytes, in memory or not (0: no
    limit); `priorities` maps topic filters to numbers (default priority 0).
    """

    __slots__ = (
        "_dropped",
        "_lane",
        "_lanes",
        "_priorities",
        "asked",
        "held",
        "length",
        "max_bytes",
        "max_length",
        "number",
        "qos0",
        "size",
    )

    def __init__(
        self, max_length: int, max_bytes: int, priorities: dict[str, int] | None = None
    ) -> None:
        self.max_length = max_length
        self.max_bytes = max_bytes
        self._priorities = priorities
        self._lane = _Lane(0)
        #: Lanes by falling priority, only with priorities.
        self._lanes: list[_Lane] | None = [self._lane] if priorities else None
        self.length: int = 0
        #: Bytes of all entries, and what they take in memory.
        self.size: int = 0
        self.held: int = 0
        self.qos0: int = 0
        #: The journal is reading what is wanted next.
        self.asked: bool = False
        #: The journal's number of the entry that was popped last; 0: it has none.
        self.number: int = 0
        #: Those of entries that were dropped.
        self._dropped: list[int] | None = None

    def __len__(self) -> int:
        return self.length

    def push(self, entry: object, number: int = 0, priority: int = UNSAID) -> list[object] | None:
        """Append `entry`; returns what had to be dropped for it (maybe itself), or None.

        number: the journal's; see `take_dropped`. priority: that of a receipt's message (`rank`).
        """
        size = entry_size(entry)
        qos = entry_qos(entry)
        dropped: list[object] | None = None
        if self.max_bytes and size > self.max_bytes:
            self._note_dropped(number)
            return [entry]
        while (self.max_length and self.length >= self.max_length) or (
            self.max_bytes and self.size + size > self.max_bytes
        ):
            if dropped is None:
                dropped = []
            if self.qos0 == 0 and qos == 0:
                dropped.append(entry)  # QoS 0 never pushes a QoS 1 or 2 message out
                self._note_dropped(number)
                return dropped
            dropped.append(self._drop())
            self._note_dropped(self.number)
        lane = self._lane
        if self._lanes is not None:
            lane = self._lane_of(self.rank(entry) if priority == UNSAID else priority)
        lane.put(one_receipt(entry), number)
        self.length += 1
        self.size += size
        self.held += entry_weight(entry)
        if qos == 0:
            self.qos0 += 1
        return dropped

    def pop(self) -> object | None:
        """The next entry, or None when the queue is empty."""
        if self.length == 0:
            return None
        lane = self._first()
        return self._account(lane, lane.take())

    def peek(self) -> object | None:
        """The entry that `pop` would return, left in place; None if it is not in memory."""
        if self.length == 0:
            return None
        lane = self._first()
        entry = lane.items[lane.head]
        return None if isinstance(entry, int) else entry

    def done(self) -> bool:
        """Whether nothing is left when `peek` gives None."""
        return self.length == 0

    def _first(self) -> _Lane:
        """Where the next entry is, if there is one."""
        if self._lanes is not None:
            for lane in self._lanes:
                if lane.head < len(lane.items):
                    return lane
        return self._lane

    def leaves(self, entry: object, weight: int, queued: int, settings: Settings) -> bool:
        """Whether an entry of this weight is left to the journal, there being enough in memory.

        queued: what all queues weigh. One of a shared group is not: the journal does not know that.
        """
        if (
            self.held + weight <= settings.mqueue_in_memory
            and queued + weight <= settings.mqueue_in_memory_total
        ):
            return False
        return not (isinstance(entry, Delivery) and entry.group is not None)

    def wanted(self, most: int, size: int) -> tuple[list[int], list[int]]:
        """The numbers and receipts of what is next, at most so many and (but the first) so big."""
        numbers: list[int] = []
        receipts: list[int] = []
        lane = self._first()
        if len(lane.numbers):
            for at in range(lane.head, min(lane.head + most, len(lane.items))):
                entry = lane.items[at]
                if not isinstance(entry, int):
                    break
                size -= entry >> 8
                if size < 0 and receipts:
                    break
                numbers.append(lane.numbers[at])
                receipts.append(entry)
        return numbers, receipts

    def fill(self, numbers: list[int], entries: list[object]) -> None:
        """What was wanted has been read, None where it is lost; in its place unless it has gone."""
        found: dict[int, object] = dict(zip(numbers, entries, strict=True))
        for lane in self._lanes if self._lanes is not None else [self._lane]:
            at = lane.head
            while found and at < len(lane.items) and len(lane.numbers):
                number: int = lane.numbers[at]
                if number not in found:
                    break
                entry = found.pop(number)
                if entry is None:
                    self._account(lane, lane.pick(at))
                else:
                    self._replace(lane, at, entry)
                    at += 1

    def _replace(self, lane: _Lane, at: int, entry: object) -> None:
        before = lane.items[at]
        lane.items[at] = entry
        lane.past = min(lane.past, at)
        self.size += entry_size(entry) - entry_size(before)
        self.held += entry_weight(entry) - entry_weight(before)
        self.qos0 += (entry_qos(entry) == 0) - (entry_qos(before) == 0)

    def items(self) -> list[object]:
        """All queued entries in the order in which they would leave."""
        if self._lanes is None:
            return self._lane.items[self._lane.head :]
        result: list[object] = []
        for lane in self._lanes:
            result.extend(lane.items[lane.head :])
        return result

    def ranks(self) -> list[int]:
        """The priorities of `items`; empty without priorities."""
        result: list[int] = []
        if self._lanes is not None:
            for lane in self._lanes:
                result.extend([lane.priority] * (len(lane.items) - lane.head))
        return result

    def remember(self, v5: bool) -> None:
        """Bytes are of version `v5`, and the session speaks another one from now on."""
        lanes = self._lanes if self._lanes is not None else [self._lane]
        for lane in lanes:
            for at in range(lane.head, len(lane.items)):
                entry = lane.items[at]
                if isinstance(entry, bytes):
                    self._replace(lane, at, entry_delivery(entry, v5))

    def numbers(self) -> list[int]:
        """The journal's numbers of `items`; empty while none has one."""
        lanes = self._lanes if self._lanes is not None else [self._lane]
        result: list[int] = []
        some = False
        for lane in lanes:
            if len(lane.numbers):
                some = True
                result.extend(lane.numbers[lane.head :])
            else:
                result.extend([0] * (len(lane.items) - lane.head))
        return result if some else []

    def unnumber(self) -> None:
        """The journal knows none of them any more."""
        for lane in self._lanes if self._lanes is not None else [self._lane]:
            lane.numbers = vec[i64]()
            lane.taken = 0

    def take_dropped(self) -> list[int]:
        """The journal's numbers, or 0, of what was dropped since this was asked last."""
        dropped = self._dropped
        self._dropped = None
        return [] if dropped is None else dropped

    def _note_dropped(self, number: int) -> None:
        if self._dropped is None:
            self._dropped = []
        self._dropped.append(number)

    def _account(self, lane: _Lane, entry: object) -> object:
        self.number = lane.taken
        self.length -= 1
        self.size -= entry_size(entry)
        self.held -= entry_weight(entry)
        if entry_qos(entry) == 0:
            self.qos0 -= 1
        return entry

    def _drop(self) -> object:
        lanes = self._lanes if self._lanes is not None else [self._lane]
        for i in range(len(lanes) - 1, -1, -1):
            lane = lanes[i]
            head = lane.head
            if head >= len(lane.items):
                continue
            if self.qos0 == 0:
                return self._account(lane, lane.take())
            at = lane.next_qos0()
            if at == head:
                return self._account(lane, lane.take())
            if at < len(lane.items):
                return self._account(lane, lane.pick(at))
        raise AssertionError("an empty queue cannot be full")

    def rank(self, entry: object) -> int:
        """The priority of an entry, by its topic."""
        priorities = self._priorities
        if priorities is None or isinstance(entry, int):
            return 0
        topic = entry_delivery(entry, False).topic()
        for topic_filter, number in priorities.items():
            if match(topic, topic_filter):
                return number
        return 0

    def _lane_of(self, priority: int) -> _Lane:
        lanes = self._lanes
        assert lanes is not None
        at = 0
        while at < len(lanes):
            if lanes[at].priority == priority:
                return lanes[at]
            if lanes[at].priority < priority:
                break
            at += 1
        lane = _Lane(priority)
        lanes.insert(at, lane)
        return lane


def one_receipt(entry: object) -> object:
    """An entry; a receipt as the one object that stands for all that are equal.

    Messages of one size are many, and each would be an int of 32 bytes in its queue.
    """
    if not isinstance(entry, int):
        return entry
    found = _RECEIPTS.get(entry)
    if found is not None:
        return found
    made: object = entry
    if len(_RECEIPTS) < _MOST_RECEIPTS:
        _RECEIPTS[made] = made
    return made
