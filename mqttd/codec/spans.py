"""PUBLISHes right behind one another that are of one topic and may go on together, as bytes.

    run    the same but for packet ids and payloads, so all are as long (`frame.run_end`)
    span   the same but for lengths, ids, properties and payloads (`span_end`)

Promise: linear in the packets; nothing but a topic is allocated for one.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.frame import header
from mqttd.codec.scan import ALIAS_SHIFT, END_MASK, scan_publish

__all__ = ["SPAN", "ids_of", "span_end"]

#: Beside the version (4, 5) of packets: they are a span, and no run.
SPAN: Final = 8


def span_end(
    data: bytes, pos: int, p: int, topic_end: int, end: int, most: int, v5: bool, n: int
) -> tuple[int, int]:
    """Where the span ends that the PUBLISH from `pos` to `end` begins, and how many packets it has.

    Of a span are the packets behind it and before `n` with its topic (from `p` to `topic_end`), QoS
    and flags, of `most` bytes at most, whose packet ids are not 0 and whose properties are as they
    should be, without a topic alias. Whether the first one is so, who asks has seen to. None but it
    is longer than 16,386 bytes: what has a longer header gains nothing by this.
    """
    first = data[pos]
    counted = first & 6 != 0
    front = topic_end - p
    same = data[p:topic_end]
    count = 1
    while n - end > 2 and data[end] == first:
        length = data[end + 1]
        at = end + 2
        if length >= 0x80:
            high = data[at]
            if not high or high >= 0x80:
                break  # longer, or with bytes to spare
            length = (length & 0x7F) | high << 7
            at += 1
        stop = at + length
        at += front
        if stop > n or stop - end > most or at > stop or data[at - front : at] != same:
            break
        if counted:
            if at + 2 > stop or not (data[at] or data[at + 1]):
                break
            at += 2
        if v5:
            if at >= stop:
                break
            if data[at]:
                found = scan_publish(data, at, stop)
                if found < 0 or found >> ALIAS_SHIFT or found & END_MASK > stop:
                    break
        end = stop
        count += 1
    return end, count


def ids_of(data: bytes, pos: int, stop: int, front: int) -> list[bytes]:
    """The packet ids of a span of QoS 1, each in its two bytes; `front`: those of its topic."""
    found: list[bytes] = []
    while pos < stop:
        length, body = header(data, pos, stop)
        pos = body + length
        found.append(data[body + front : body + front + 2])
    return found
