"""The records of a store: gathered into groups, counted as long as they live, moved together.

    group     the records of one turn or more: one row of the file, a *block*; a large one several
      words   two numbers a record:  owner << 29 | length     number << 20 | kind << 16 | packet id
      data    the bytes of the records, one behind the other

A record has a number, which it keeps for life. It lives until `forget` is told that number; that is
a record too (FORGET), unless it was the last that lived in its block: then the row is deleted and
nothing is written. So a block stays while one of its records lives, or while it holds a FORGET or
INFLIGHT for a block that is there (`needed`). Blocks of which a good part is wasted, and several
small ones together, are read again, a few at a time, and what lives of them becomes part of the
group that is being gathered, sorted by owner: their row goes in the same transaction. What was dead
by then is in no block any more, and nothing is said of it again (`Home.gone`); what was in flight
has its packet id with it. So a block says something about older ones alone, and no two blocks ever
keep each other.

Bytes that several owners are to get are kept once in a group (`SAME`).

Promise: a record costs three appends, forgetting one a binary search; memory is a few words a
block, and 4 bytes and a bit a record, 2 more where one beside it went in flight. Nothing here knows
files or threads.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_le, write_i64_le
from librt.vecs import append
from mypy_extensions import i32, i64

from mqttd.storage.blocks import Block, Group, Home, Homes, Present

__all__ = ["DELIVERY", "FORGET", "FULL", "INFLIGHT", "KIND_MASK", "LENGTH_MASK", "MESSAGE3",
           "MESSAGE5", "OWNER_SHIFT", "QUIET", "RECEIVED", "RELEASED", "RETAINED", "SAME", "Ledger",
           "receipt_of"]  # fmt: skip

#: Kinds of records. FORGET and INFLIGHT are about the record whose number they bear.
FORGET: Final = 0
#: A PUBLISH as bytes, of MQTT 3.x or 5.0; in flight where it has a packet id.
MESSAGE3: Final = 1
MESSAGE5: Final = 2
#: A PUBLISH with what is remembered beside it (`mqttd.storage.entries`).
DELIVERY: Final = 3
#: An incoming QoS 2 packet id that awaits PUBREL.
RECEIVED: Final = 4
#: An outgoing QoS 2 packet id that awaits PUBCOMP.
RELEASED: Final = 5
#: The record of this number is in flight under this packet id.
INFLIGHT: Final = 6
#: A retained message; its owner is no session (0).
RETAINED: Final = 7
#: Beside one of the kinds: it has QoS 0.
QUIET: Final = 8
KIND_MASK: Final = 7

OWNER_SHIFT: Final = 29
LENGTH_MASK: Final = (1 << 29) - 1
#: In place of a length: the bytes of the record before.
SAME: Final = LENGTH_MASK
#: Blocks that are looked at for compaction with each group, and how many are read at once.
_SWEPT: Final = 16
_READ: Final = 8
#: A block of which more than this part is wasted is moved. FORGETs are half of what a busy store
#: is told, and count as long as they are needed: with half of it nothing would ever be moved.
_WASTED: Final = 4
#: A block of fewer records is small: many of them are made one.
_SMALL: Final = 16
#: Bytes of such a block at most, and of those that are read at once.
_LIGHT: Final = 256 << 10
_READ_BYTES: Final = 4 << 20
#: Bytes with which a block is full: what is moved stands in memory, with more each time it was.
FULL: Final = 2 << 20
#: And bytes of words: what many get has few bytes, and a block is moved in one turn.
_WORDS: Final = 256 << 10
#: Numbers between two that live, beyond which a home ends (recovery).
_GAP: Final = 64


class Ledger:
    """The records of one store, and the group that is being gathered."""

    def __init__(self) -> None:
        #: The number of the next record, and of the next block.
        self.number: i64 = 1
        self.next_block: int = 1
        self.blocks: dict[int, Block] = {}
        self.homes: Homes = Homes()
        #: Bytes of all blocks.
        self.bytes: i64 = 0
        self._hand: list[int] = []
        self._reading: bool = False
        #: How old a block must be to be moved, in groups.
        self.old: int = 64
        #: Passes over all blocks that move whatever is not whole (`compact`).
        self.thorough: int = 0
        #: As `FULL`, or less where the disk is small; and bytes of a block that may be moved: it is
        #: written before the place where it was can be used again.
        self.full: i64 = FULL
        self.movable: i64 = 1 << 62
        #: Records that were moved by compaction, ever.
        self.moved: int = 0
        self.group: Group = self._begin()

    def _begin(self) -> Group:
        block = self._block()
        return Group(block, Home(self.number, block))

    def _block(self) -> Block:
        block = Block(self.next_block)
        self.next_block += 1
        self.blocks[block.id] = block
        return block

    def _part(self) -> None:
        """The block of this group is full: it goes on with another."""
        group = self.group
        full = group.block
        self.bytes += group.measure()
        block = self._block()
        group.part(block, Home(self.number, block))
        if full.live == 0 and full.needed == 0:
            self._drop(full)
        else:
            full.stored = True

    # -- records -------------------------------------------------------------------------------

    def note(self, owner: i64, kind: i64, packet_id: i64, data: bytes) -> i64:
        """One more record, which lives; returns its number."""
        group = self.group
        if group.size >= self.full or len(group.words) >= _WORDS:
            self._part()
        number = self.number
        self.number = number + 1
        size: i64 = len(data)
        length = size
        if size:
            if data is group.last:
                length = SAME
            else:
                group.last = data
                group.data.append(data)
                group.size += size
        words = group.words
        write_i64_le(words, owner << OWNER_SHIFT | length)
        write_i64_le(words, number << 20 | kind << 16 | packet_id)
        block = group.block
        block.live += 1
        home = group.home
        if not len(home.at):
            block.homes.append(home)
            self.homes.add(home)
        home.live += 1
        home.at = append(home.at, i32(group.size - size))
        return number

    def forget(self, number: i64) -> None:
        """A record is not needed any more; nothing happens to one that is unknown."""
        block = self._bury(number)
        if block is not None:
            self._say(FORGET, number, 0, block)

    def lose(self, number: i64) -> None:
        """A record whose owner is gone: its row in `session` says so, nothing else has to."""
        self._bury(number)

    def _bury(self, number: i64) -> Block | None:
        """A record is dead; returns its block, None if that went with it or before."""
        home = self.find(number)
        if home is None:
            return None
        at = number - home.start
        if home.is_dead(at):
            return None
        home.bury(at)
        home.live -= 1
        block = home.block
        block.live -= 1
        if block.live == 0 and block.needed == 0 and block is not self.group.block:
            self._drop(block)
            return None
        return block

    def send(self, number: i64, packet_id: i64) -> None:
        """A record is in flight under this packet id from now on."""
        home = self.find(number)
        if home is not None:
            home.send(number - home.start, packet_id)
            self._say(INFLIGHT, number, packet_id, home.block)

    def _say(self, kind: i64, number: i64, packet_id: i64, about: Block) -> None:
        group = self.group
        if len(group.words) >= _WORDS:
            self._part()
            if about.id not in self.blocks:
                return  # nothing was left of it when it was full
        write_i64_le(group.words, 0)
        write_i64_le(group.words, number << 20 | kind << 16 | packet_id)
        if about is not group.block:
            about.keeps(group.block)

    def row(self, statement: int, parameters: tuple[object, ...]) -> None:
        """A statement of the next transaction (`mqttd.storage.database`)."""
        self.group.row(statement, parameters)

    def place(self, number: i64) -> tuple[Block, int] | None:
        """The block of a record that lives, and where its bytes begin there."""
        home = self.find(number)
        if home is None or home.is_dead(number - home.start):
            return None
        return home.block, home.at[number - home.start]

    def find(self, number: i64) -> Home | None:
        """Where a record is; None if its block is gone."""
        group = self.group
        home: Home | None = group.home
        assert home is not None
        if number < home.start:
            home = self.homes.before(number)
            if home is None:
                return None
        if number - home.start >= len(home.at):
            return None
        return home

    # -- blocks --------------------------------------------------------------------------------

    def close(self) -> Group | None:
        """The group as it is to be written, and the next one begins; None if it is empty."""
        group = self.group
        block = group.block
        if group.empty():
            return None
        group.settle()
        group.parts = [part for part in group.parts if part.block.stored]
        self.bytes += group.measure()
        if not group.said() or (block.live == 0 and block.needed == 0):
            group.unsay()
            self._drop(block)
        else:
            block.stored = True
        self.group = self._begin()
        return group

    def _drop(self, dropped: Block) -> None:
        stack = [dropped]
        while stack:
            block = stack.pop()
            if self.blocks.pop(block.id, None) is None:
                continue  # moved elsewhere already
            for home in block.homes:
                self.homes.remove(home)
            block.homes = []  # or they would be a circle
            self.bytes -= block.size
            if block.stored:
                block.stored = False
                self.group.drop(block)
            self._release(block, stack)

    def _release(self, block: Block, stack: list[Block]) -> None:
        """What others say about a block that goes is not needed any more."""
        by = block.noted_by
        if by is None:
            return
        noted = block.noted
        block.noted_by = None
        for at in range(len(by)):
            other = by[at]
            other.needed -= noted[at]
            if other.needed == 0 and other.live == 0 and other is not self.group.block:
                stack.append(other)

    # -- compaction ----------------------------------------------------------------------------

    def sweep(self) -> None:
        """Look at a few blocks, and have those that are mostly dead read with this group."""
        if self._reading:
            return
        hand = self._hand
        if not hand:
            hand = list(self.blocks)
            hand.reverse()
            self._hand = hand
            if self.thorough:
                self.thorough -= 1
        thorough = self.thorough > 0
        oldest = self.group.block.id - (1 if thorough else self.old)
        many = len(self.blocks) > 1024
        wanted = self.group.reads
        movable = self.movable
        most = movable if movable < _READ_BYTES else _READ_BYTES
        small: list[int] = []
        size: i64 = 0
        parts = len(self.group.parts)  # of a group that has brought more, more go
        for _ in range(_SWEPT + parts):
            if not hand or len(wanted) >= _READ + parts or size > most:
                break
            block = self.blocks.get(hand.pop())
            if block is None or not block.stored or block.id > oldest:
                continue
            if block.size > movable:
                continue
            if block.wasted() * _WASTED > block.count or (
                thorough and (block.live < block.count or block.count < _SMALL)
            ):
                if size and size + block.size > most:
                    hand.append(block.id)
                    break
                wanted.append(block.id)
                size += block.size
            elif many and block.count < _SMALL and block.size < _LIGHT:
                small.append(block.id)
        # Each time something must be gained, or a store at rest would go on for ever.
        if len(small) >= _READ // 2:
            wanted.extend(small[: max(0, _READ - len(wanted))])
        self._reading = len(wanted) > 0

    def compact(self) -> None:
        """Have one pass over all blocks, by `sweep`, move what lives of those that are not whole.

        It is over when `thorough` is 0.
        """
        self._hand = []
        self.thorough = 2

    def rewrite(self, found: list[tuple[int, bytes, bytes]], some: bool = False) -> None:
        """What lives of blocks that were read again (`some` of them) goes into this group."""
        self._reading = some  # and the others follow
        living: list[tuple[i64, i64, i64, i64, bytes]] = []
        said: list[tuple[i64, i64, i64]] = []
        rewritten: list[Block] = []
        shared = False
        for block_id, words, data in found:
            block = self.blocks.get(block_id)
            if block is not None:
                rewritten.append(block)
                if self._read(words, data, living, said):
                    shared = True
        group = self.group
        into = group.block
        for block in rewritten:
            for home in block.homes:
                if home.live:
                    home.clear()
                    home.block = into
                    into.homes.append(home)
                else:
                    self.homes.remove(home)
            block.homes = []
        if not shared:
            # What a session is to get is read together; shared bytes stay beside each other.
            living.sort(key=_owner)
        for owner, number, kind, packet_id, data in living:
            size: i64 = len(data)
            length = size
            if size:
                if data is group.last:  # many may have the same large one
                    length = SAME
                else:
                    group.last = data
                    group.data.append(data)
                    group.size += size
            write_i64_le(group.words, owner << OWNER_SHIFT | length)
            write_i64_le(group.words, number << 20 | kind << 16 | packet_id)
            into.live += 1
            moved = self.find(number)
            assert moved is not None
            moved.at[number - moved.start] = i32(group.size - size)
        self.moved += len(living)
        for kind, number, packet_id in said:
            target = self.find(number)
            if target is not None and target.block is not into:
                self._say(kind, number, packet_id, target.block)
        for block in rewritten:
            if block.id in self.blocks:
                self._drop(block)

    def _read(
        self,
        words: bytes,
        data: bytes,
        living: list[tuple[i64, i64, i64, i64, bytes]],
        said: list[tuple[i64, i64, i64]],
    ) -> bool:
        """Find what lives in a block, and what it still has to say; whether bytes are shared."""
        shared = False
        at: i64 = 0
        start: i64 = 0
        end: i64 = len(words)
        piece = b""  # what many have is cut out once
        for i in range(i64(0), end, 16):
            first = read_i64_le(words, i)
            second = read_i64_le(words, i + 8)
            number = second >> 20
            kind = second >> 16 & 15
            packet_id = second & 0xFFFF
            if kind == FORGET or kind == INFLIGHT:
                home = self.find(number)
                if home is None or home.is_gone(number - home.start):
                    continue
                if (kind == FORGET) == home.is_dead(number - home.start):
                    said.append((kind, number, packet_id))
                continue
            length = first & LENGTH_MASK
            if length == SAME:
                shared = True
            elif length:
                start = at
                at += length
                piece = b""
            home = self.find(number)
            if home is None or home.is_dead(number - home.start):
                continue
            # What INFLIGHT has said goes with it: that is needed no more.
            packet_id = home.packet_id(number - home.start) or packet_id
            piece = piece or data[start:at]
            found = piece if length else b""
            living.append((first >> OWNER_SHIFT, number, kind, packet_id, found))
        return shared

    # -- recovery ------------------------------------------------------------------------------

    def restore(self, blocks: list[Block], present: Present, highest: i64) -> None:
        """Begin with the blocks of a file, what is in them (sorted), the highest number given."""
        self.number = highest + 1
        del self.blocks[self.group.block.id]
        for block in blocks:
            block.stored = True
            self.bytes += block.size
            self.blocks[block.id] = block
            if block.id >= self.next_block:
                self.next_block = block.id + 1
        home: Home | None = None
        place: i64 = -1
        numbers, places = present.numbers, present.places
        for i in range(i64(len(numbers))):
            number = numbers[i]
            found = places[i]
            index = found >> 33
            if home is None or index != place or number - home.start - len(home.at) > _GAP:
                home = Home(number, blocks[index])
                place = index
                home.block.homes.append(home)
                self.homes.add(home)
            at = number - home.start
            while len(home.at) < at:
                home.lack()
            home.at = append(home.at, i32(found >> 1 & 0x7FFFFFFF))
            if found & 1:
                home.live += 1
                home.block.live += 1
            else:
                home.bury(at)
        self.group = self._begin()

    def discard_useless(self, blocks: list[Block]) -> None:
        """While restoring: blocks in which nothing lives and that say nothing go."""
        for block in blocks:
            if block.live == 0 and block.needed == 0:
                self._drop(block)

    def relate(self, by: Block, kind: i64, number: i64) -> None:
        """While restoring: `by` says something about this record."""
        home = self.find(number)
        if home is None or home.is_gone(number - home.start) or home.block is by:
            return
        at = number - home.start
        if kind == FORGET or (home.packet_id(at) and not home.is_dead(at)):
            home.block.keeps(by)

    def resend(self, number: i64, packet_id: i64) -> None:
        """While restoring: a record was in flight under this packet id, as INFLIGHT says."""
        home = self.find(number)
        if home is not None:
            home.send(number - home.start, packet_id)


def receipt_of(length: i64, kind: i64) -> i64:
    """What a queue holds of a record (`mqttd.session.ground.message`); kind: with QUIET, if so."""
    return length << 8 | (kind >> 3) << 7 | (kind & KIND_MASK)


def _owner(record: tuple[i64, i64, i64, i64, bytes]) -> tuple[i64, i64]:
    return record[0], record[1]
