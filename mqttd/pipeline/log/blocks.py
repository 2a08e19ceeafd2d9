"""A block: up to some hundred events as columns, behind a header of 64 bytes with a checksum.

    | header 64 | 14 lengths | code | time | flags | id | client … reason | size | payload | props |
                              u8     i64    u8      16   text, NUL between   u32    bytes

Text columns are joined by U+0000, which MQTT forbids in text (MQTT-1.5.4-2; one that occurs all the
same becomes U+FFFD); a column without any value takes no byte. Each column starts on a multiple
of 8, so that a reader may look at it in place. All numbers are little-endian.

A block whose header has `FLAG_GAP` holds no event: it stands for `count` that were lost, its body
is the reason. It keeps offsets dense: blocks in order always cover every offset.

Two checksums: one of the header alone, so that where a block ends and what it covers can be
believed when its body is harmed; and one of all of it.

Numbers of formats have an odd number of bits: one flipped bit makes no format of another.

Promise: encoding costs about 0.5 µs an event in blocks of 256 (benchmarks/event_log.py).
Format: docs/reference/event-log.md.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from mqttd.checksum import crc32
from mqttd.pipeline.log.schema import GAP

__all__ = [
    "FLAG_DAMAGE",
    "FLAG_GAP",
    "FLAG_LOOSE",
    "FLAG_SKIP",
    "HEADER_SIZE",
    "MAGIC",
    "MAX_BLOCK",
    "NO_ID",
    "PACKED",
    "PLAIN",
    "Block",
    "Corrupt",
    "Row",
    "Taken",
    "UnknownFormat",
    "contents",
    "encode_block",
    "encode_gap",
    "is_gap",
    "is_loose",
    "is_packed",
    "parse_header",
    "sealed",
    "span",
    "text_column",
    "place_of",
    "verify",
]

MAGIC: Final = b"MQEB"
#: Formats of blocks: columns with a value for each event; and `mqttd.pipeline.log.packed`.
PLAIN: Final = 1
PACKED: Final = 2
HEADER_SIZE: Final = 64
#: A longer body is taken for garbage.
MAX_BLOCK: Final = 1 << 30

FLAG_GAP: Final = 1
#: With FLAG_GAP: the events were in the log, and damage to its files took them.
FLAG_DAMAGE: Final = 2
#: With FLAG_GAP: no event is known to be lost, the offsets are not used.
FLAG_SKIP: Final = 4
#: Of a packed block: it would be smaller compressed, or its payloads would, and there was no time
#: for it.
FLAG_LOOSE: Final = 16

QOS: Final = 0x03
RETAIN: Final = 0x04
#: QoS and RETAIN mean something.
HAS_QOS: Final = 0x08
#: The payload is in the block.
HAS_PAYLOAD: Final = 0x10
#: `size` means something: the event is of a message.
HAS_SIZE: Final = 0x20

NO_ID: Final = bytes(16)

# magic, version, flags, body, crc, base, count, mask of codes, first and last time, epoch, crc of
# the header (0: it has none)
_HEADER: Final = struct.Struct("<4sHHIIQIIqqII8x")
_SPAN: Final = struct.Struct("<4sHHIIQI")
_CRC_AT: Final = 12
#: Number of events and mask alone.
_CONTENTS: Final = struct.Struct("<II")
_CONTENTS_AT: Final = 24
_HEADER_CRC_AT: Final = 52
_LENGTHS: Final = struct.Struct("<14I")
_PADDING: Final = [bytes(count) for count in range(8)]


#: code, time (µs), flags, message id, client id, user name, peer, topic, reason, size, payload,
#: properties: what the broker appends per event.
Row = tuple[int, int, int, bytes, str, str, str, str, str, int, bytes, bytes]


class Taken(NamedTuple):
    """What becomes a packed block (see `packed`): columns, events, codes, first and last time.

    pieces: the payloads, where the column of them is empty: whoever packs joins them.
    """

    columns: list[bytes]
    rows: int
    mask: int
    first: int
    last: int
    pieces: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        """Bytes of all columns."""
        return sum(map(len, self.columns)) + sum(map(len, self.pieces))


class Corrupt(Exception):
    """Bytes that should be a block are none; the text says where and why."""


class UnknownFormat(Corrupt):
    """A block of a format that this program does not know."""

    def __init__(self, text: str, version: int) -> None:
        super().__init__(text)
        self.version = version


class Block(NamedTuple):
    """What a header says, and where the block lies (`position` and `size` in `segment`).

    A gap has as many `rows` as events are lost; `flags` says of what kind it is.
    """

    node: str
    segment: str
    position: int
    size: int
    base: int
    rows: int
    mask: int
    first_time: int
    last_time: int
    gap: bool
    flags: int = 0

    @property
    def end(self) -> int:
        """The offset behind the last event."""
        return self.base + self.rows

    @property
    def damaged(self) -> bool:
        """Whether it is a gap for events that damage has taken."""
        return self.flags & FLAG_DAMAGE > 0

    @property
    def loose(self) -> bool:
        """Whether something of it waits to be compressed."""
        return self.flags & FLAG_LOOSE > 0

    @property
    def lost(self) -> int:
        """How many events are lost here."""
        return self.rows if self.gap and not self.flags & FLAG_SKIP else 0


def encode_block(rows: Sequence[Row], base: int, epoch: int = 0) -> bytes:
    """The bytes of a block of `rows` (at least one), the first of which has offset `base`."""
    codes, times, flags, ids, clients, users, peers, topics, reasons, sizes, payloads, blocks = zip(
        *rows, strict=True
    )
    count = len(rows)
    has_blocks = any(blocks)
    columns = [
        bytes(codes),
        array("q", times).tobytes(),
        bytes(flags),
        b"".join(ids) if any(flag & HAS_SIZE for flag in set(flags)) else b"",
        text_column(clients, count),
        text_column(users, count),
        text_column(peers, count),
        text_column(topics, count),
        text_column(reasons, count),
        array("I", sizes).tobytes(),
        b"".join(payloads),
        array("I", map(len, blocks)).tobytes() if has_blocks else b"",
        b"".join(blocks) if has_blocks else b"",
        b"",
    ]
    mask = 0
    for code in set(codes):
        mask |= 1 << code
    parts = [b"", _LENGTHS.pack(*map(len, columns))]
    for column in columns:
        if column:
            parts.append(column)
            if len(column) & 7:
                parts.append(_PADDING[-len(column) & 7])
    return b"".join(sealed(parts, 0, base, count, mask, min(times), max(times), epoch))


def encode_gap(
    base: int, count: int, time: int, reason: str, epoch: int = 0, kind: int = 0
) -> bytes:
    """The bytes of a block that stands for `count` lost events, the first at µs `time`.

    :param kind: FLAG_DAMAGE, FLAG_SKIP or 0.
    """
    flags = FLAG_GAP | kind
    parts = [b"", reason.encode()]
    return b"".join(sealed(parts, flags, base, count, 1 << GAP, time, time, epoch))


def sealed(
    parts: list[bytes],
    flags: int,
    base: int,
    count: int,
    mask: int,
    first: int,
    last: int,
    epoch: int,
    version: int = PLAIN,
) -> list[bytes]:
    """The parts of a block: `parts` behind a header, which takes the place of the first of them."""
    size = sum(map(len, parts))
    header = bytearray(
        _HEADER.pack(MAGIC, version, flags, size, 0, base, count, mask, first, last, epoch, 0)
    )
    header[_HEADER_CRC_AT : _HEADER_CRC_AT + 4] = _header_crc(header).to_bytes(4, "little")
    crc = crc32(header)
    for part in parts:
        crc = crc32(part, crc)
    header[_CRC_AT : _CRC_AT + 4] = crc.to_bytes(4, "little")
    parts[0] = bytes(header)
    return parts


def _header_crc(header: bytes | bytearray | memoryview) -> int:
    """The checksum of what a header says, but for the two checksums; never 0."""
    crc = crc32(header[_CRC_AT + 4 : _HEADER_CRC_AT], crc32(header[:_CRC_AT]))
    return crc or 1


def text_column(values: Sequence[str], count: int) -> bytes:
    """Texts joined by U+0000; empty if all of them are."""
    text = "\0".join(values)
    if len(text) == count - 1:
        return b""  # separators alone
    if text.count("\0") != count - 1:
        text = "\0".join([value.replace("\0", "\ufffd") for value in values])
    return text.encode("utf-8", "replace")


def parse_header(
    data: bytes | memoryview, node: str = "", segment: str = "", position: int = 0
) -> Block:
    """What the 64 bytes at the start of `data` say.

    Raises Corrupt if they are no header of a version this program knows.
    """
    if len(data) < HEADER_SIZE:
        raise Corrupt(f"{place_of(segment, position)}{len(data)} bytes are no header")
    magic, version, flags, size, _, base, count, mask, first, last, _, crc = _HEADER.unpack_from(
        data
    )
    if magic != MAGIC:
        raise Corrupt(f"{place_of(segment, position)}no block")
    if version not in (PLAIN, PACKED):
        raise UnknownFormat(
            f"{place_of(segment, position)}format {version}, this program reads {PLAIN} and"
            f" {PACKED}",
            version,
        )
    if not count or size > MAX_BLOCK or (crc and crc != _header_crc(data)):
        raise Corrupt(f"{place_of(segment, position)}a harmed header")
    size += HEADER_SIZE
    gap = bool(flags & FLAG_GAP)
    return Block(node, segment, position, size, base, count, mask, first, last, gap, flags)


def place_of(segment: str, position: int) -> str:
    """Where that is, before a text that says what is wrong there.

    Empty without a segment: who has the bytes from a broker knows of no file.
    """
    return f"{segment}:{position}: " if segment else ""


def is_packed(data: bytes | memoryview) -> bool:
    """Whether a block, whose header was parsed, is a packed one."""
    return int.from_bytes(data[4:6], "little") == PACKED


def is_loose(data: bytes | memoryview) -> bool:
    """Whether something of such a block waits to be compressed."""
    return int.from_bytes(data[6:8], "little") & FLAG_LOOSE > 0


def is_gap(data: bytes | memoryview, kind: int = 0) -> bool:
    """Whether a block, whose header was parsed, is a gap, with FLAG_DAMAGE one of that kind."""
    return data[6] & (FLAG_GAP | kind) == FLAG_GAP | kind


def span(data: bytes | memoryview, at: int) -> tuple[int, int, int]:
    """First offset of the block there, the one behind its last, and its size: -1 if it is none.

    Half of `parse_header`, for who looks at each block's checksum: what that holds for is whole.
    """
    if len(data) - at < HEADER_SIZE:
        return -1, -1, -1
    magic, version, _, size, _, base, count = _SPAN.unpack_from(data, at)
    if magic != MAGIC or version not in (PLAIN, PACKED) or not count or size > MAX_BLOCK:
        return -1, -1, -1
    return base, base + count, HEADER_SIZE + size


def foreign_span(header: bytes) -> tuple[int, int, int]:
    """The same of a block of a format that is not known, as far as its header is one of ours."""
    if len(header) < HEADER_SIZE:
        return -1, -1, -1
    magic, version, _, size, _, base, count = _SPAN.unpack_from(header)
    if magic != MAGIC or version in (PLAIN, PACKED) or not count or size > MAX_BLOCK:
        return -1, -1, -1
    return base, base + count, HEADER_SIZE + size


def contents(data: bytes | memoryview) -> tuple[int, int]:
    """How many events are in a block, whose header was parsed, and the mask of their codes."""
    rows, mask = _CONTENTS.unpack_from(data, _CONTENTS_AT)
    return rows, mask


def is_foreign(data: bytes | memoryview) -> bool:
    """Whether these bytes, which begin with an unknown version, are a block of another format.

    If not they are one of ours, harmed; a block whose checksum holds is foreign in any case.
    """
    version = int.from_bytes(data[4:6], "little")
    return version < 256 and version.bit_count() % 2 == 1


def has_header_crc(data: bytes | memoryview) -> bool:
    """Whether a header has a checksum of its own; `parse_header` looks at it."""
    return data[_HEADER_CRC_AT : _HEADER_CRC_AT + 4] != b"\0\0\0\0"


def verify(data: bytes | memoryview) -> bool:
    """Whether `data`, a whole block, has the checksum its header names."""
    header = bytearray(data[:HEADER_SIZE])
    crc = int.from_bytes(header[_CRC_AT : _CRC_AT + 4], "little")
    header[_CRC_AT : _CRC_AT + 4] = b"\0\0\0\0"
    return crc32(memoryview(data)[HEADER_SIZE:], crc32(header)) == crc


def columns_of(data: bytes | memoryview) -> list[tuple[int, int]]:
    """(start, length) of each column in a block's bytes."""
    found = []
    at = HEADER_SIZE + _LENGTHS.size
    for length in _LENGTHS.unpack_from(data, HEADER_SIZE):
        found.append((at, length))
        at += length + (-length & 7)
    return found


def gap_reason(data: bytes | memoryview, count: int = 0) -> str:
    """The text of a gap's block: how many are lost and why; `count` of them if that is given."""
    head = parse_header(data)
    count = count or head.rows
    why = str(data[HEADER_SIZE:], "utf-8", "replace")
    if head.flags & FLAG_SKIP:
        return f"{count} offset{'s' if count > 1 else ''} skipped: {why}"
    return lost_text(count, why)


def lost_text(count: int, why: str) -> str:
    """How a gap says what is missing."""
    return f"{count} event{'s' if count > 1 else ''} lost: {why}"
