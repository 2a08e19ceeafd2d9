"""The 128-bit message id: names a message between layers and nodes, in the log and in traces.

    --------------------------------------------------------
    |        Timestamp       |  NodeID + PID  |  Sequence  |
    |<------- 64bits ------->|<--- 48bits --->|<- 16bits ->|
    --------------------------------------------------------

Timestamp is microseconds since 1970; node 16 bits and worker or process 32 bits; the sequence
counts the ids of one microsecond. Ids compare by age.

Promise: the ids of one `Guid` strictly increase, whatever the clock does: when it stands or steps
back, the last timestamp is kept and counted on from (65,536 ids, then one microsecond is
borrowed). An id costs one addition. Two `Guid` with different node or process never give the same
id. The clock is the caller's: nothing here reads one.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Guid", "node_of", "process_of", "sequence_of", "timestamp_of", "to_hex"]

MAX_SEQUENCE: Final = 0xFFFF


class Guid:
    """The source of message ids of one process.

    node_id: 0 to 65,535, unique in the cluster.
    process_id: 0 to 4,294,967,295, the worker or process, unique on the node.

    Raises ValueError when one does not fit its bits.
    """

    __slots__ = ("origin", "sequence", "timestamp")

    def __init__(self, node_id: int, process_id: int) -> None:
        if not 0 <= node_id <= 0xFFFF:
            raise ValueError(f"node id {node_id} does not fit in 16 bits (0 to 65535)")
        if not 0 <= process_id <= 0xFFFFFFFF:
            raise ValueError(f"process id {process_id} does not fit in 32 bits (0 to 4294967295)")
        self.origin: int = node_id << 48 | process_id << 16
        self.timestamp: int = -1
        self.sequence: int = 0

    def next(self, now_us: int) -> int:
        """Return a new id; `now_us` is the time in microseconds since 1970."""
        low = self.reserve(now_us, 1)
        return self.timestamp << 64 | low

    def reserve(self, now_us: int, count: int) -> int:
        """Take `count` ids that follow one another, at most 65,536; the first one's lower half.

        The upper half of all of them is `timestamp`.
        """
        first = self.sequence + 1
        if now_us > self.timestamp:
            self.timestamp = now_us
            first = 0
        elif first + count - 1 > MAX_SEQUENCE:
            self.timestamp += 1
            first = 0
        self.sequence = first + count - 1
        return self.origin | first


def timestamp_of(message_id: int) -> int:
    """Return when the id was made, in microseconds since 1970."""
    return message_id >> 64


def node_of(message_id: int) -> int:
    """Return the node that made the id."""
    return message_id >> 48 & 0xFFFF


def process_of(message_id: int) -> int:
    """Return the worker or process that made the id."""
    return message_id >> 16 & 0xFFFFFFFF


def sequence_of(message_id: int) -> int:
    """Return the id's place in its microsecond."""
    return message_id & MAX_SEQUENCE


def to_hex(message_id: int) -> str:
    """Return the id as logs and traces show it: 32 hexadecimal digits, which sort by age."""
    return f"{message_id:032x}"
