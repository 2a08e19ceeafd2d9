"""What a store is made of: rows, records numbered together, and what is written at once.

Group    what is gathered, then written in one transaction; it becomes a
Block    one row of the file, or several where it is large: a
Part     of a group that is a block already
Home     records with numbers one behind the other, and the block that they are in now
Homes    all of them, by number
Present  what a file says of each record, before it is a part of a home
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from librt.vecs import append, pop, vec
from mypy_extensions import i16, i32, i64

from mqttd.codec.native import mypyc_attr
from mqttd.storage.database import (
    END_SESSION,
    FORGET_WILL,
    KEEP,
    LEAVE_SESSION,
    MOVE_CLOCK,
    OPEN_SESSION,
    SET_WILL,
    SUBSCRIBE,
    UNSUBSCRIBE_ALL,
)

__all__ = ["Block", "Group", "Home", "Homes", "Part", "Present", "in_order", "picked", "row_cost"]

#: To delete a row takes as long as to write so many bytes, and its own by this power of two.
_DELETED: Final = 512
_PAGES: Final = 6
_NONE: Final[list[int]] = []
#: A row in memory beside the bytes of its parameters.
_ROW: Final = 200
#: Bytes of a page, of it what a row of a table leaves to others, and of a longer row what stays.
_PAGE: Final = 4096
_WITHIN: Final = 950
_STAYS: Final = 489
#: A row on the disk beside its bytes.
_LITTLE: Final = 512
#: Blocks that say something about another, from which on it is seen whether they are there.
_MANY: Final = 8


# A block and its homes name each other until it goes (`Ledger._drop`). There is one of each for a
# group: with both the collector passes twice as often over what a store keeps.
@mypyc_attr(acyclic=True)
class Block:
    """One row of the file."""

    __slots__ = (
        "count",
        "homes",
        "id",
        "live",
        "needed",
        "noted",
        "noted_by",
        "size",
        "stored",
    )

    def __init__(self, id: int) -> None:
        self.id = id
        #: Records, those that live, those that say something about blocks that are there; bytes.
        self.count: i64 = 0
        self.live: i64 = 0
        self.needed: i64 = 0
        self.size: i64 = 0
        #: The blocks that say something about its records, all of them newer; how often each does.
        self.noted_by: list[Block] | None = None
        self.noted: list[int] = _NONE
        self.homes: list[Home] = []
        #: There is a row, or one is being written, and it is to stay.
        self.stored: bool = False

    def wasted(self) -> i64:
        """How many records in it are needed no more."""
        return self.count - self.live - self.needed

    def keeps(self, by: Block) -> None:
        """Another block says something about a record of this one, and stays as long."""
        noted_by = self.noted_by
        if noted_by is None:
            self.noted_by = [by]
            self.noted = [1]
        elif noted_by[-1] is by:
            self.noted[-1] += 1
        else:
            size = len(noted_by)
            if size >= _MANY and size & (size - 1) == 0:
                self._let_go(by)
            noted_by.append(by)
            self.noted.append(1)
        by.needed += 1

    def _let_go(self, by: Block) -> None:
        """Forget blocks that are gone: what they said was moved, maybe to one that is named too."""
        noted_by, noted = self.noted_by, self.noted
        assert noted_by is not None
        kept = 0
        for at in range(len(noted_by)):
            other = noted_by[at]
            if other.stored or other is by:
                noted_by[kept] = other
                noted[kept] = noted[at]
                kept += 1
        del noted_by[kept:]
        del noted[kept:]


@mypyc_attr(acyclic=True)
class Home:
    """Records that were numbered together, and the block that they are in now."""

    __slots__ = ("at", "block", "dead", "gone", "ids", "live", "start")

    def __init__(self, start: i64, block: Block) -> None:
        self.start: i64 = start
        self.block = block
        #: Where the bytes of each record begin in the block.
        self.at: vec[i32] = vec[i32]()
        #: The packet ids of those that INFLIGHT was said of, 0 for others, as far as there are any;
        #: those above 32,767 less 65,536.
        self.ids: vec[i16] = vec[i16]()
        self.live: i64 = 0
        #: A bit for each record that is forgotten.
        self.dead: bytearray | None = None
        #: Those of them that no block has any more: they were dead when the others were moved.
        self.gone: bytearray | None = None

    def send(self, at: i64, packet_id: i64) -> None:
        """The record at this place is in flight."""
        ids = self.ids
        while len(ids) <= at:
            ids = append(ids, 0)
        self.ids = ids
        ids[at] = i16(packet_id - 0x10000 if packet_id > 0x7FFF else packet_id)

    def packet_id(self, at: i64) -> i64:
        """The packet id that INFLIGHT has said for the record at this place, 0 if it has not."""
        ids = self.ids
        return i64(ids[at]) & 0xFFFF if at < len(ids) else 0

    def is_dead(self, at: i64) -> bool:
        """Whether the record at this place was forgotten."""
        dead = self.dead
        return dead is not None and at >> 3 < len(dead) and dead[at >> 3] >> (at & 7) & 1 == 1

    def is_gone(self, at: i64) -> bool:
        """Whether the dead record at this place is in no block: FORGET need not be said of it."""
        gone = self.gone
        return gone is not None and at >> 3 < len(gone) and gone[at >> 3] >> (at & 7) & 1 == 1

    def clear(self) -> None:
        """The dead ones are in no block any more."""
        dead = self.dead
        if dead is not None:
            self.gone = bytearray(dead)

    def lack(self) -> None:
        """While restoring: no block has the next record."""
        at: i64 = len(self.at)
        self.at = append(self.at, 0)
        self.bury(at)
        self.gone = _with(self.gone, at)

    def bury(self, at: i64) -> None:
        """Note that the record at this place is forgotten."""
        self.dead = _with(self.dead, at)


class Homes:
    """The homes of a ledger, in the order of their numbers."""

    __slots__ = ("all", "starts")

    def __init__(self) -> None:
        self.all: list[Home] = []
        #: The first number of each.
        self.starts: vec[i64] = vec[i64]()

    def __len__(self) -> int:
        return len(self.all)

    def add(self, home: Home) -> None:
        """One more, behind all others."""
        self.all.append(home)
        self.starts = append(self.starts, home.start)

    def before(self, number: i64) -> Home | None:
        """The last one that does not begin behind this number."""
        at = self._after(number)
        return self.all[at - 1] if at else None

    def remove(self, home: Home) -> None:
        """It has no block any more."""
        at = self._after(home.start) - 1
        del self.all[at]
        self.starts, _ = pop(self.starts, at)

    def _after(self, number: i64) -> i64:
        """`bisect.bisect_right`, without a call of an object for each comparison."""
        starts = self.starts
        low: i64 = 0
        high: i64 = len(starts)
        while low < high:
            middle: i64 = (low + high) >> 1
            if number < starts[middle]:
                high = middle
            else:
                low = middle + 1
        return low


class Part:
    """A block that is full, of a group that is still gathered or being written."""

    __slots__ = ("block", "data", "size", "words")

    def __init__(self, block: Block, words: bytes, data: list[bytes], size: int) -> None:
        self.block = block
        self.words = words
        self.data = data
        self.size = size

    def directory(self) -> bytes:
        """The words of its records."""
        return self.words


class Group:
    """What is written in one transaction."""

    __slots__ = ("away", "block", "cost", "data", "drops", "drops_size", "ends", "error", "found",
                 "fsync", "full", "home", "last", "parts", "reads", "rows", "rows_size",
                 "size", "spent", "told", "wills", "words")  # fmt: skip

    def __init__(self, block: Block, home: Home) -> None:
        self.block = block
        self.home = home
        #: The words of its records: native numbers of 8 bytes.
        self.words: BytesWriter = BytesWriter()
        self.data: list[bytes] = []
        #: Bytes in `data`, the last of them.
        self.size: i64 = 0
        self.last: bytes = b""
        #: Blocks that are full, and the bytes that they take in memory.
        self.parts: list[Part] = []
        self.full: int = 0
        #: Statements and their parameters (`mqttd.storage.database`), in their order.
        self.rows: list[tuple[int, tuple[object, ...]]] = []
        #: What becomes rows behind these when it is closed, each said once however often it has
        #: changed: since when the client of an owner is away (0: it is there), whose will is what.
        self.away: dict[int, int] = {}
        self.wills: dict[str, tuple[object, ...] | None] = {}
        self.ends: list[int] = []
        #: Bytes that all of them take in memory, and may take on the disk.
        self.rows_size: int = 0
        self.cost: int = 0
        #: What it may take there, and that with all groups before (`mqttd.storage.sparing`).
        self.spent: int = 0
        self.told: int = 0
        #: Blocks whose rows go, and how many bytes would take as long to write.
        self.drops: list[int] = []
        self.drops_size: int = 0
        #: Somebody waits for the disk, not only for the system.
        self.fsync: bool = False
        #: Blocks to be read again when this is written, and what was read: (id, words, data).
        self.reads: list[int] = []
        self.found: list[tuple[int, bytes, bytes]] = []
        #: Why it could not be written.
        self.error: BaseException | None = None

    def weight(self) -> int:
        """Bytes that it takes in memory."""
        return self.full + self.size + self.rows_size + len(self.words)

    def costs(self) -> int:
        """Bytes that it may take on the disk, in the file and the log."""
        return self.cost + 2 * (self.full + self.size + len(self.words))

    def directory(self) -> bytes:
        """The words of the records of the block at hand."""
        return self.words.getvalue()

    def row(self, statement: int, parameters: tuple[object, ...]) -> None:
        """One more statement (`mqttd.storage.database`)."""
        if statement == MOVE_CLOCK:
            self.settle()  # it is about all who have gone before
        self.rows.append((statement, parameters))
        size = _ROW
        for one in parameters:
            if isinstance(one, bytes):
                size += len(one)
            elif isinstance(one, str):
                size += len(one) if one.isascii() else len(one.encode())
        self.rows_size += size
        if statement == SUBSCRIBE or statement == OPEN_SESSION or statement == KEEP:
            self.cost += row_cost(size - _ROW)

    def leave(self, owner: int, since: int) -> None:
        """The client of a session is away since then; 0: it is there again."""
        self.away[owner] = since
        self.rows_size += _ROW

    def end(self, owner: int) -> None:
        """A session is over."""
        self.away.pop(owner, None)
        self.ends.append(owner)
        self.rows_size += _ROW

    def will(self, client_id: str, parameters: tuple[object, ...] | None, size: int) -> None:
        """The will of a client, of so many bytes, or that it has none any more."""
        self.wills[client_id] = parameters
        self.rows_size += _ROW + len(client_id) + size
        if parameters is not None:
            self.cost += row_cost(len(client_id) + size)

    def settle(self) -> None:
        """Make rows of what was gathered beside them."""
        rows = self.rows
        for owner, since in self.away.items():
            rows.append((LEAVE_SESSION, (since, owner)))
        for client_id, parameters in self.wills.items():
            if parameters is None:
                rows.append((FORGET_WILL, (client_id,)))
            else:
                rows.append((SET_WILL, parameters))
        for statement in (END_SESSION, UNSUBSCRIBE_ALL):
            for owner in self.ends:
                rows.append((statement, (owner,)))
        self.away = {}
        self.wills = {}
        self.ends = []

    def drop(self, block: Block) -> None:
        """The row of a block goes with this."""
        self.drops.append(block.id)
        self.drops_size += _DELETED + (block.size >> _PAGES)

    def unsay(self) -> None:
        """The records of the block at hand are over already."""
        self.words = BytesWriter()

    def said(self) -> bool:
        """Whether there are records in the block at hand."""
        return len(self.words) > 0

    def measure(self) -> i64:
        """Have the block at hand know how large it is; returns its bytes."""
        block = self.block
        self.home.at = self.home.at[:]  # what it had room for beyond goes
        block.count = len(self.words) >> 4
        if block.live == 0:
            self.data = []
            self.size = 0
        block.size = self.size + len(self.words)
        return block.size

    def part(self, block: Block, home: Home) -> None:
        """The block at hand is full; go on with this one."""
        self.parts.append(Part(self.block, self.words.getvalue(), self.data, self.size))
        self.full += self.size + len(self.words)
        self.block = block
        self.home = home
        self.words = BytesWriter()
        self.data = []
        self.size = 0
        self.last = b""

    def data_of(self, block: Block) -> list[bytes] | None:
        """The bytes of one of its blocks, in pieces; None for any other."""
        if block is self.block:
            return self.data
        for part in self.parts:
            if block is part.block:
                return part.data
        return None

    def empty(self) -> bool:
        """Whether there is nothing to write or read."""
        return not (
            self.said() or self.parts or self.rows or self.away or self.wills or self.ends
            or self.drops or self.reads
        )  # fmt: skip


class Present:
    """The records of a file by their numbers, 16 bytes each."""

    __slots__ = ("numbers", "ordered", "places")

    def __init__(self) -> None:
        self.numbers: vec[i64] = vec[i64]()
        #: The index of its block << 33 | where its bytes begin there << 1 | does it live?
        self.places: vec[i64] = vec[i64]()
        self.ordered: bool = True

    def put(self, number: i64, index: i64, at: i64, lives: bool) -> None:
        """One more."""
        numbers = self.numbers
        if self.ordered and len(numbers) and number < numbers[len(numbers) - 1]:
            self.ordered = False
        self.numbers = append(numbers, number)
        self.places = append(self.places, index << 33 | at << 1 | (1 if lives else 0))

    def sort(self) -> None:
        """Bring them into the order of their numbers."""
        if not self.ordered:
            order = in_order(self.numbers)
            self.numbers = picked(self.numbers, order)
            self.places = picked(self.places, order)
            self.ordered = True


def row_cost(size: int) -> int:
    """Bytes that a new row of so many may take on the disk: in the file, and in the log before.

    A page is half full at worst; what does not fit it is in pages that are nobody else's.
    """
    if size <= _WITHIN:
        return _LITTLE + 4 * size
    pages = (size - _STAYS + _PAGE - 1) // _PAGE
    return _LITTLE + 2 * (_WITHIN + pages * _PAGE)


def in_order(numbers: vec[i64]) -> list[int]:
    """The places of numbers, the lowest first."""
    keys: list[int] = [numbers[at] for at in range(len(numbers))]
    return sorted(range(len(keys)), key=keys.__getitem__)


def picked(numbers: vec[i64], places: list[int]) -> vec[i64]:
    """The numbers at these places."""
    found = vec[i64](capacity=len(places))
    for at in places:
        found = append(found, numbers[at])
    return found


def _with(bits: bytearray | None, at: i64) -> bytearray:
    """Bits, and one more."""
    if bits is None:
        bits = bytearray(at // 8 + 8)
    elif at >> 3 >= len(bits):
        bits.extend(bytes((at >> 3) - len(bits) + 8))
    bits[at >> 3] |= 1 << (at & 7)
    return bits
