"""Blocks back to events, one by one: for tools, tests and replay. Spark reads columns.

PLAIN    a value of each column for each event       --+--> rows --> Event
PACKED   a value for each run of events (`packed`)   --+
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from mqttd.pipeline.log.blocks import (
    FLAG_GAP,
    HAS_PAYLOAD,
    HAS_QOS,
    HAS_SIZE,
    HEADER_SIZE,
    NO_ID,
    QOS,
    RETAIN,
    Corrupt,
    Row,
    columns_of,
    encode_gap,
    gap_reason,
    is_packed,
    parse_header,
    verify,
)
from mqttd.pipeline.log.packed import Columns, pack, taken_of, unpack
from mqttd.pipeline.log.schema import EVENTS, Event

__all__ = ["decode_block", "part_of", "rows_of"]


def decode_block(data: bytes | memoryview, node: str) -> Iterator[Event]:
    """The events of a whole block; of a gap one `log.gap`.

    Raises Corrupt if the checksum does not hold.
    """
    head = parse_header(data, node)
    if not verify(data):
        raise Corrupt(f"{node}: wrong checksum in the block at offset {head.base}")
    if head.gap:
        yield Event(
            head.base, node, "log.gap", head.first_time, reason=gap_reason(data), lost=head.rows
        )
        return
    for seq, row in enumerate(rows_of(data), head.base):
        code, time, flag, name, client, user, peer, topic, reason, size, payload, block = row
        yield Event(
            seq,
            node,
            EVENTS[code] if code < len(EVENTS) else f"code.{code}",
            time,
            name if name != NO_ID else None,
            client or None,
            user or None,
            peer or None,
            topic or None,
            flag & QOS if flag & HAS_QOS else None,
            bool(flag & RETAIN) if flag & HAS_QOS else None,
            reason or None,
            payload if flag & HAS_PAYLOAD else None,
            size if flag & HAS_SIZE else None,
            block,
        )


def rows_of(data: bytes | memoryview) -> Iterator[Row]:
    """The events of a whole block that is no gap, as they were appended."""
    head = parse_header(data)
    if is_packed(data):
        return unpack(Columns(data), head.rows)
    return _plain(data, head.rows)


def part_of(data: memoryview, start: int, end: int) -> memoryview:
    """A block of the events [start, end) of a whole block."""
    head = parse_header(data)
    if head.gap:
        reason = str(data[HEADER_SIZE:], "utf-8", "replace")
        kind = head.flags & ~FLAG_GAP
        return memoryview(encode_gap(start, end - start, head.first_time, reason, 0, kind))
    rows = list(rows_of(data))[start - head.base : end - head.base]
    return memoryview(pack(taken_of(rows), start))


def _plain(data: bytes | memoryview, count: int) -> Iterator[Row]:
    spans = columns_of(data)

    def raw(column: int) -> bytes:
        start, length = spans[column]
        return bytes(data[start : start + length])

    def texts(column: int) -> list[str]:
        return raw(column).decode().split("\0") if spans[column][1] else [""] * count

    codes, flags, ids = raw(0), raw(2), raw(3)
    times = struct.unpack(f"<{count}q", raw(1))
    clients, users, peers, topics, reasons = (texts(column) for column in range(4, 9))
    sizes = struct.unpack(f"<{count}I", raw(9))
    payloads, properties = raw(10), raw(12)
    lengths = struct.unpack(f"<{count}I", raw(11)) if spans[11][1] else (0,) * count
    paid = kept = 0
    for i in range(count):
        payload = b""
        if flags[i] & HAS_PAYLOAD:
            payload = payloads[paid : paid + sizes[i]]
            paid += sizes[i]
        yield (
            codes[i], times[i], flags[i], ids[16 * i : 16 * i + 16] or NO_ID, clients[i], users[i],
            peers[i], topics[i], reasons[i], sizes[i], payload,
            properties[kept : kept + lengths[i]],
        )  # fmt: skip
        kept += lengths[i]
