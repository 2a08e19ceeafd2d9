"""The fixed header of a packet, and what lies at known places behind it: walked here only.

     pos                body                                              pos + size
      | first | length 1..4 | topic length 2 | topic | packet id 2 | ...  |
                                                     `-- PUBLISH of QoS 1 and 2

`header` and `size_at` read what a peer sent and believe nothing of it; `body_at`, `topic_end_at`
and `packet_id_at` read packets that are whole and were checked or written by us.

Promise: at most four bytes of length are looked at, whatever follows; nothing is copied. The loop
of the channel holds a copy of `header` of its own, for speed; both are told to agree by
tests/unit/codec/test_frame.py. MQTT 3.1.1 and 5.0, 2.1 and 1.5.5.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.reasons import MalformedPacket

__all__ = [
    "ONE_BYTE",
    "body_at",
    "counted_run_end",
    "cut",
    "cut_plain",
    "header",
    "packet_id_at",
    "run_end",
    "size_at",
    "topic_end_at",
    "with_id",
]

#: Every byte ready made: ``bytes((n,))`` costs a tuple and a call, 60 ns compiled.
ONE_BYTE: Final[list[bytes]] = [bytes((n,)) for n in range(256)]


def header(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Remaining length of the packet at `pos`, and where its body begins.

    (0, 0) while bytes up to `end` do not tell. :raises MalformedPacket: a fifth byte of length.
    """
    length = 0
    shift = 0
    at = pos + 1
    while at < end:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, at
        shift += 7
        if shift == 28:
            raise MalformedPacket("remaining length of more than four bytes")
    return 0, 0


def size_at(data: bytes, pos: int, end: int) -> int:
    """Bytes of the packet at `pos`, its header included; -1 while that cannot be told."""
    length, body = header(data, pos, end)
    return body - pos + length if body else -1


def body_at(wire: bytes, pos: int = 0) -> int:
    """Where the body of the packet at `pos` begins, whose header is whole."""
    at = pos + 1
    while wire[at] & 0x80:
        at += 1
    return at + 1


def topic_end_at(wire: bytes, body: int) -> int:
    """Offset behind the topic name of a PUBLISH whose body begins at `body`."""
    return body + 2 + (wire[body] << 8 | wire[body + 1])


def cut(data: bytes, pos: int, end: int) -> bytes:
    """The bytes from `pos` to `end`: not a copy where they are all there are.

    Python's own slice does so, the compiled one does not.
    """
    if pos == 0 and end == len(data):
        return data
    return data[pos:end]


def cut_plain(data: bytes, pos: int, end: int) -> bytes:
    """The PUBLISH from `pos` to `end` without DUP and RETAIN, as `cut` where it has neither."""
    first = data[pos]
    if first & 9:
        return ONE_BYTE[first & 0xF6] + data[pos + 1 : end]
    return cut(data, pos, end)


def run_end(data: bytes, pos: int, topic_end: int, body: int, end: int) -> int:
    """Where the run ends that the PUBLISH from `pos` to `end` begins.

    Of a run are the packets right behind it that are as long, and the same but for their payloads:
    header, topic and properties. Where topics vary, most differ in their last byte.
    """
    size = end - pos
    last = topic_end - 1
    n = len(data)
    if n - end < size or data[last + size] != data[last]:
        return end
    front = body - pos
    same = data[pos:body]
    while end + size <= n and data[end : end + front] == same:
        end += size
    return end


def counted_run_end(data: bytes, pos: int, topic_end: int, body: int, end: int) -> int:
    """As `run_end`, of QoS 1: packet ids differ as well, and none is 0."""
    size = end - pos
    last = topic_end - 1
    n = len(data)
    if n - end < size or data[last + size] != data[last]:
        return end
    front = topic_end - pos
    same = data[pos:topic_end]
    at = topic_end + 2
    block = data[at:body]
    step = size
    while end + size <= n and data[end : end + front] == same:
        if not data[topic_end + step] and not data[topic_end + step + 1]:
            break
        if block and data[at + step : body + step] != block:
            break
        end += size
        step += size
    return end


def packet_id_at(wire: bytes) -> int:
    """Offset of the packet id in a PUBLISH of QoS 1 or 2."""
    return topic_end_at(wire, body_at(wire))


def with_id(wire: bytes, at: int, packet_id: int) -> bytes:
    """The packet with another id, which stands at `at`: put together in one step, compiled."""
    high = ONE_BYTE[packet_id >> 8]
    return b"%b%b%b%b" % (wire[:at], high, ONE_BYTE[packet_id & 255], wire[at + 2 :])
