"""A packed block: runs of events that differ in id and payload alone, compressed column by column.

    | header 64 | 15 x (stored, raw) | counts | code | time | flags | id time | id | client ...
                        u32            u32      u8     i64    u8      i64       u64
      ... user | peer | topic | reason | size | payloads | lengths | properties | 0 |
          text, NUL between              u32    bytes      u32       bytes

A *run* is one event, or several that came together: the same but for their payloads, with message
ids that follow one another. Every column but `payloads` has one value a run. Times are differences
to the run before, the first to 0; `id time` is the upper half of the first message id less the
time, `id` the lower half. A column without any value takes no byte, nor do counts that are all 1
and id times that are all 0.

With `FLAG_ZSTD` a column whose `stored` is less than `raw` is a zstd frame, or several that follow
one another; before they were made, the bytes of numbers were sorted by their place (all lowest
bytes first). Else columns are as they are. `FLAG_LOOSE` changes nothing for a reader: what would
become less is left for a quiet moment.

Promise: what it costs is in docs/design/pipeline.md. Format: docs/reference/event-log.md.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

from mqttd.pipeline.log.blocks import (
    FLAG_LOOSE,
    HAS_PAYLOAD,
    HAS_SIZE,
    HEADER_SIZE,
    NO_ID,
    PACKED,
    Corrupt,
    Row,
    Taken,
    sealed,
    text_column,
)
from mqttd.pipeline.log.zstd import Codec, zstd

__all__ = [
    "FLAG_ZSTD",
    "MOST",
    "START",
    "WIDTHS",
    "Columns",
    "gathered",
    "joined",
    "pack",
    "parts",
    "taken_of",
    "unpack",
    "unpacked",
    "unpacked_size",
]

#: In the header's flags: columns may be compressed.
FLAG_ZSTD: Final = 8

(COUNTS, CODES, TIMES, FLAGS, ID_TIMES, IDS, CLIENTS, USERS, PEERS, TOPICS, REASONS, SIZES,
 PAYLOADS, LENGTHS, PROPERTIES) = range(15)  # fmt: skip

#: Bytes of a number in each column, 1 for those that hold none.
WIDTHS: Final = (4, 1, 8, 1, 8, 8, 1, 1, 1, 1, 1, 4, 1, 4, 1)
_TABLE: Final = struct.Struct("<30I")
#: Header and table of a packed block.
START: Final = HEADER_SIZE + _TABLE.size
#: So that no block ends as the next one begins.
_END: Final = b"\0"
#: A shorter column is not worth a frame.
_WORTH: Final = 48
#: Bytes of payloads in a frame. With all of a block in one, what does not compress took three
#: times as long: their frame was memory fresh from the kernel, page by page.
_FRAME: Final = 256 << 10
#: With so many bytes of payloads in a block, what one costs counts more than what it takes.
_MANY: Final = 1 << 20
#: The same where they can be left for later, which takes nothing now: some 13 MB a second.
_LATER: Final = 256 << 10
#: And of each column of a block in haste, if that has fewer bytes in all.
_HASTY: Final = 2 << 10
_LITTLE: Final = 64 << 10
#: They are looked at in so many places, one byte in so many (of the middle of pieces: what begins
#: alike may go on as noise), and compressed if those become less than this part.
_LOOKS: Final = 32
_SAMPLE: Final = 32
_MOST_LOOKED_AT: Final = 32 << 10
_GAIN: Final = 0.9
#: With less than this it takes less time to compress them than to write them.
_NOTHING: Final = 0.1
#: A longer column is taken for garbage.
MOST: Final = 1 << 30


def pack(taken: Taken, base: int, epoch: int = 0, codec: Codec | None = None) -> bytes:
    """The bytes of a packed block of what was taken, the first event of which has offset `base`."""
    return b"".join(parts(taken, base, epoch, codec))


def parts(
    taken: Taken,
    base: int,
    epoch: int = 0,
    codec: Codec | None = None,
    quick: Codec | None = None,
    loose: bool = False,
    hasty: bool = False,
) -> list[bytes]:
    """The same in parts that follow one another: what is stored as it came is not copied.

    quick: for payloads where there are many of them; what hardly becomes less is left.
    loose: so is what would become less, but not next to nothing: the block is marked for
    `mqttd.pipeline.log.merge`. hasty: with `loose`, of a small block payloads are left as many are,
    and short columns: zstd's tables cost more than all else (0.4 of 0.6 us an event, of 200).
    """
    flags = 0 if codec is None else FLAG_ZSTD
    worth, many = _WORTH, _LATER if loose else _MANY
    if hasty and loose and taken.size < _LITTLE:
        worth = many = _HASTY
        flags |= FLAG_LOOSE
    made = [b"", b""]
    table: list[int] = []
    columns = [[column] for column in taken.columns]
    columns[PAYLOADS] += taken.pieces
    for number, (width, pieces) in enumerate(zip(WIDTHS, columns, strict=True)):
        raw = size = sum(map(len, pieces))
        by = codec
        if number == PAYLOADS and quick is not None and raw >= many:
            share = _share(pieces, raw, quick)
            by = quick if share < _GAIN else None
            if loose and _NOTHING < share < _GAIN:
                by = None
                flags |= FLAG_LOOSE
        if by is not None and raw >= worth:
            frames = [by.compress(shuffled(each, width)) for each in _together(pieces)]
            stored = sum(map(len, frames))
            if stored < raw:
                pieces, size = frames, stored
        made += pieces
        table += (size, raw)
    made[1] = _TABLE.pack(*table)
    made.append(_END)
    return sealed(made, flags, base, taken.rows, taken.mask, taken.first, taken.last, epoch, PACKED)


def _share(pieces: Sequence[bytes], size: int, codec: Codec) -> float:
    """What part of their `size` these have compressed, from a look into some of them."""
    some = pieces[:: -(-len(pieces) // _LOOKS)]
    each = min(size // _SAMPLE, _MOST_LOOKED_AT) // len(some)
    sample = b"".join([piece[len(piece) // 2 :][:each] for piece in some])
    return len(codec.compress(sample)) / len(sample)


def _together(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """The same bytes in parts of `_FRAME` bytes or a piece more."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _FRAME:
            yield b"".join(waiting)
            waiting, size = [], 0
    if size:
        yield b"".join(waiting)


def taken_of(rows: Sequence[Row]) -> Taken:
    """Events as a batch, each a run of its own."""
    codes, times, flags, names, clients, users, peers, topics, reasons, sizes, payloads, blocks = (
        zip(*rows, strict=True)
    )
    count = len(rows)
    ids = [int.from_bytes(name[8:], "big") for name in names]
    id_times = [
        _signed(int.from_bytes(name[:8], "big") - time) if name != NO_ID or flag & HAS_SIZE else 0
        for name, time, flag in zip(names, times, flags, strict=True)
    ]
    since = [_signed(time - before) for before, time in pairwise((0, *times))]
    columns = [
        b"",
        bytes(codes),
        array("q", since).tobytes(),
        bytes(flags),
        array("q", id_times).tobytes() if any(id_times) else b"",
        array("Q", ids).tobytes(),
        *(text_column(texts, count) for texts in (clients, users, peers, topics, reasons)),
        array("I", sizes).tobytes(),
        b"".join(payloads),
        array("I", map(len, blocks)).tobytes() if any(blocks) else b"",
        b"".join(blocks),
    ]
    mask = 0
    for code in set(codes):
        mask |= 1 << code
    return Taken(columns, count, mask, min(times), max(times))


def shuffled(data: bytes, width: int) -> bytes:
    """The bytes of numbers sorted by their place in them."""
    if width == 1:
        return data
    return b"".join([data[i::width] for i in range(width)])


def gathered(data: bytes, width: int) -> bytes:
    """The numbers again."""
    if width == 1:
        return data
    made = bytearray(len(data))
    count = len(data) // width
    for i in range(width):
        made[i::width] = data[i * count : (i + 1) * count]
    return bytes(made)


class Columns:
    """The columns of a packed block (its checksum holds), each unpacked when it is asked for."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        table = _TABLE.unpack_from(data, HEADER_SIZE)
        self._spans: list[tuple[int, int, int]] = []
        at = START
        for stored, raw in zip(table[::2], table[1::2], strict=True):
            self._spans.append((at, stored, raw))
            at += stored
        if at + len(_END) != len(self._data) or max(table) > MOST:
            raise Corrupt("a packed block whose columns do not fit it")
        self._known: dict[int, bytes] = {}

    def all(self) -> list[bytes]:
        """All of them."""
        return [self[column] for column in range(len(WIDTHS))]

    def size(self, column: int) -> int:
        """Bytes of a column, without unpacking it."""
        return self._spans[column][2]

    def __getitem__(self, column: int) -> bytes:
        found = self._known.get(column)
        if found is None:
            at, stored, raw = self._spans[column]
            found = bytes(self._data[at : at + stored])
            if stored != raw:
                found = gathered(unpacked(found, raw), WIDTHS[column])
            self._known[column] = found
        return found


def unpacked_size(start: bytes) -> int:
    """Bytes of the columns of a packed block when they are unpacked, by its first `START` bytes."""
    return sum(_TABLE.unpack_from(start, HEADER_SIZE)[1::2])


def unpacked(data: bytes, size: int) -> bytes:
    """The `size` bytes of a column that is compressed, its bytes still sorted; or Corrupt."""
    try:
        return zstd().decompress(data, size)
    except (ValueError, OSError) as error:
        raise Corrupt(f"a column that cannot be unpacked: {error}") from None


def unpack(found: Columns, rows: int) -> Iterator[Row]:
    """The events of a packed block one by one, as they were appended."""
    codes, flags = found[CODES], found[FLAGS]
    runs = len(codes)
    counts = _numbers("I", found[COUNTS]) or [1] * runs
    if sum(counts) != rows:
        raise Corrupt(f"a packed block of {rows} events with runs of {sum(counts)}")
    times = [_signed(time) for time in accumulate(_numbers("q", found[TIMES]))]
    id_times = _numbers("q", found[ID_TIMES]) or [0] * runs
    ids = _numbers("Q", found[IDS]) or [0] * runs
    texts = [_texts(found[column], runs) for column in range(CLIENTS, REASONS + 1)]
    sizes = _numbers("I", found[SIZES])
    lengths = _numbers("I", found[LENGTHS]) or [0] * runs
    payloads, blocks = found[PAYLOADS], found[PROPERTIES]
    paid = kept = 0
    for i in range(runs):
        flag, time, size = flags[i], times[i], sizes[i]
        named = flag & HAS_SIZE or ids[i] or id_times[i]
        upper = (time + id_times[i]) & 0xFFFFFFFFFFFFFFFF
        block = blocks[kept : kept + lengths[i]]
        kept += lengths[i]
        client, user, peer, topic, reason = (column[i] for column in texts)
        for k in range(counts[i]):
            payload = b""
            if flag & HAS_PAYLOAD:
                payload = payloads[paid : paid + size]
                paid += size
            name = (upper << 64 | ids[i] + k).to_bytes(16, "big") if named else NO_ID
            yield (
                codes[i], time, flag, name, client, user, peer, topic, reason, size, payload, block
            )  # fmt: skip


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _numbers(kind: str, data: bytes) -> list[int]:
    return array(kind, data).tolist() if data else []


def _texts(data: bytes, count: int) -> Sequence[str]:
    return data.decode().split("\0") if data else [""] * count


def joined(parts: Sequence[Taken]) -> Taken:
    """Batches that follow one another, as one."""
    made: list[bytes] = []
    runs = [len(part.columns[CODES]) for part in parts]
    for column in range(len(WIDTHS)):
        values = [part.columns[column] for part in parts]
        if not any(values):
            made.append(b"")
        elif column == TIMES:
            made.append(_joined_times(values))
        elif CLIENTS <= column <= REASONS:
            texts = zip(values, runs, strict=True)
            made.append(b"\0".join([value or bytes(count - 1) for value, count in texts]))
        elif column == COUNTS:
            counted = zip(values, runs, strict=True)
            made.append(b"".join([v or array("I", [1] * n).tobytes() for v, n in counted]))
        elif column in (ID_TIMES, LENGTHS):
            width = WIDTHS[column]
            counted = zip(values, runs, strict=True)
            made.append(b"".join([v or bytes(width * n) for v, n in counted]))
        else:
            made.append(b"".join(values))
    mask = 0
    for part in parts:
        mask |= part.mask
    return Taken(
        made,
        sum(part.rows for part in parts),
        mask,
        min(part.first for part in parts),
        max(part.last for part in parts),
    )


def _joined_times(values: Sequence[bytes]) -> bytes:
    """The first time of each batch is the difference to the last one of the batch before."""
    made = []
    before = 0
    for value in values:
        since = array("q", value)
        end = _signed(sum(since))
        since[0] = _signed(since[0] - before)
        before = end
        made.append(since.tobytes())
    return b"".join(made)
