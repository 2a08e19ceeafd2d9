"""What a store holds, read when the broker starts.

    block rows --> who lives: not forgotten, of an owner that is there --> Ledger, as it was
                                           Found, Queue: by owner, in order <-'

Only the words of blocks are read, not their data: how long that takes depends on the number of
records, not on their size. A row whose words are damaged is left out and counted, those around it
are not.
"""

from __future__ import annotations

import sqlite3

from librt.strings import read_i64_le
from librt.vecs import append, vec
from mypy_extensions import i64

from mqttd.checksum import crc32
from mqttd.session.mqueue import one_receipt
from mqttd.storage.blocks import Block, Present, in_order, picked
from mqttd.storage.ledger import (
    DELIVERY,
    FORGET,
    INFLIGHT,
    KIND_MASK,
    LENGTH_MASK,
    MESSAGE3,
    MESSAGE5,
    OWNER_SHIFT,
    SAME,
    Ledger,
    receipt_of,
)

__all__ = ["Contents", "Found", "Queue", "is_damaged", "read"]


class Found:
    """One record that lives."""

    __slots__ = ("at", "block", "kind", "length", "number", "owner", "packet_id")

    def __init__(
        self, owner: int, number: int, kind: int, packet_id: int, block: int, at: int, length: int
    ) -> None:
        self.owner = owner
        self.number = number
        self.kind = kind
        self.packet_id = packet_id
        #: Where its bytes are.
        self.block = block
        self.at = at
        self.length = length


class Queue:
    """What waits for one owner: the numbers of messages, and their receipts.

    Nothing is made for each of them that would not stay: it would leave holes in what does.
    """

    __slots__ = ("numbers", "ordered", "receipts")

    def __init__(self) -> None:
        self.numbers: vec[i64] = vec[i64]()
        self.receipts: list[object] = []
        self.ordered: bool = True

    def put(self, number: i64, receipt: i64) -> None:
        """One more."""
        numbers = self.numbers
        if self.ordered and len(numbers) and number < numbers[len(numbers) - 1]:
            self.ordered = False
        self.numbers = append(numbers, number)
        self.receipts.append(one_receipt(receipt))

    def sort(self) -> None:
        """Bring them into the order in which they were noted."""
        if not self.ordered:
            places = in_order(self.numbers)
            self.numbers = picked(self.numbers, places)
            self.receipts = [self.receipts[at] for at in places]


class Contents:
    """The records of a file by owner, each owner's in the order they were noted."""

    def __init__(self) -> None:
        self.records: dict[int, list[Found]] = {}
        #: What is queued, where it is wanted apart.
        self.queues: dict[int, Queue] = {}
        #: Rows that could not be read.
        self.damaged: int = 0
        self.highest_owner: int = 0


def read(base: sqlite3.Connection, ledger: Ledger, queues: bool = False) -> Contents:
    """Read the blocks of a file into an empty ledger; with `queues` what is queued stands apart.

    Records of owners that have no row in `session` are forgotten. Raises sqlite3.DatabaseError
    where the file itself is damaged.
    """
    contents = Contents()
    owners: set[int] = {0}
    for row in base.execute("SELECT owner FROM session"):
        owners.add(row[0])
    rows: list[tuple[int, bytes]] = []
    blocks: list[Block] = []
    highest: i64 = 0
    for number, words, crc, size in base.execute(
        "SELECT id, words, crc, length(data) FROM block ORDER BY id"
    ):
        if is_damaged(words, crc):
            contents.damaged += 1
            # It is there until somebody drops it, and no other may have its number.
            ledger.next_block = max(ledger.next_block, number + 1)
            continue
        block = Block(number)
        block.count = len(words) // 16
        block.size = size + len(words)
        blocks.append(block)
        rows.append((number, words))
    dead: set[int] = set()
    sent: dict[int, int] = {}
    for index in range(len(rows)):
        found = rows[index][1]
        end: i64 = len(found)
        for at in range(i64(8), end, 16):
            second = read_i64_le(found, at)
            kind = second >> 16 & 15
            number = second >> 20
            if number > highest:
                highest = number
            if kind == FORGET:
                dead.add(number)
            elif kind == INFLIGHT:
                sent[number] = index << 16 | second & 0xFFFF
    present = Present()
    for index in range(len(rows)):
        _read_block(
            rows[index][1], index, blocks[index], owners, dead, sent, present, contents, queues
        )
    present.sort()
    ledger.restore(blocks, present, highest)
    for number, said in sent.items():
        if said:
            ledger.resend(number, said & 0xFFFF)
    for index in range(len(rows)):
        _relate(rows[index][1], blocks[index], ledger)
    ledger.discard_useless(blocks)
    for records in contents.records.values():
        records.sort(key=_number)
    for queue in contents.queues.values():
        queue.sort()
    return contents


def is_damaged(words: object, crc: int) -> bool:
    """Whether the words of a block are not what their checksum says."""
    return not isinstance(words, bytes) or len(words) % 16 != 0 or crc32(words) != crc


def _read_block(
    found: bytes,
    index: int,
    block: Block,
    owners: set[int],
    dead: set[int],
    sent: dict[int, int],
    present: Present,
    contents: Contents,
    queues: bool,
) -> None:
    at: i64 = 0
    start: i64 = 0
    last: i64 = 0
    end: i64 = len(found)
    for i in range(i64(0), end, 16):
        first = read_i64_le(found, i)
        second = read_i64_le(found, i + 8)
        flags = second >> 16 & 15
        kind = flags & KIND_MASK
        if kind == FORGET or kind == INFLIGHT:
            continue
        length = first & LENGTH_MASK
        if length == SAME:
            length = last
        elif length:
            start = at
            at += length
            last = length
        owner = first >> OWNER_SHIFT
        number = second >> 20
        if owner > contents.highest_owner:
            contents.highest_owner = owner
        if number in dead or owner not in owners:
            present.put(number, index, start, False)
            continue
        packet_id = second & 0xFFFF
        if number in sent:
            said = sent[number]
            if packet_id and said >> 16 < index:
                sent[number] = 0  # it was moved since, with the packet id that it had then
            else:
                packet_id = said & 0xFFFF
        present.put(number, index, start, True)
        if queues and not packet_id and (kind == MESSAGE3 or kind == MESSAGE5 or kind == DELIVERY):
            queue = contents.queues.get(owner)
            if queue is None:
                queue = Queue()
                contents.queues[owner] = queue
            queue.put(number, receipt_of(length, flags))
            continue
        records = contents.records.get(owner)
        if records is None:
            records = []
            contents.records[owner] = records
        records.append(Found(owner, number, kind, packet_id, block.id, start, length))


def _relate(found: bytes, block: Block, ledger: Ledger) -> None:
    """What a block says about others keeps it."""
    end: i64 = len(found)
    for i in range(i64(8), end, 16):
        second = read_i64_le(found, i)
        kind = second >> 16 & 15
        if kind == FORGET or kind == INFLIGHT:
            ledger.relate(block, kind, second >> 20)


def _number(record: Found) -> int:
    return record.number
