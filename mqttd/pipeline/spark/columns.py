"""The columns of one block as numpy arrays and bytes, whatever its format.

    Plain    a value for each event
    Packed   a value for each run of events (`mqttd.pipeline.log.packed`), unpacked when asked for

Both give values of runs; of a plain block each event is one. Message ids are given for each event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from mqttd.codec import properties as prop
from mqttd.codec.packet_types import PUBLISH
from mqttd.codec.properties import Properties, decode_properties
from mqttd.pipeline.log import packed
from mqttd.pipeline.log.blocks import HAS_SIZE, columns_of

__all__ = ["PROPERTIES", "TEXTS", "Packed", "Plain", "properties_of"]

#: Properties that are a text, or a pair of them.
_TEXTS: Final = frozenset((prop.CONTENT_TYPE, prop.RESPONSE_TOPIC, prop.USER_PROPERTY))

#: Text column -> its number in a plain and in a packed block.
TEXTS: Final = {
    "client_id": (4, packed.CLIENTS),
    "username": (5, packed.USERS),
    "peer": (6, packed.PEERS),
    "topic": (7, packed.TOPICS),
    "reason": (8, packed.REASONS),
}


class Plain:
    """A block with a value for each event."""

    def __init__(self, data: memoryview, rows: int) -> None:
        self.rows = self.runs = rows
        self._data = data
        self._spans = columns_of(data)

    def _raw(self, column: int) -> memoryview:
        start, length = self._spans[column]
        return self._data[start : start + length]

    def counts(self) -> Any:
        """Events of each run."""
        return np.ones(self.rows, np.uint32)

    def codes(self) -> Any:
        """Event codes."""
        return np.frombuffer(self._raw(0), np.uint8)

    def times(self) -> Any:
        """Times, µs."""
        return np.frombuffer(self._raw(1), np.int64)

    def flags(self) -> Any:
        """Flags."""
        return np.frombuffer(self._raw(2), np.uint8)

    def sizes(self) -> Any:
        """Payload sizes."""
        return np.frombuffer(self._raw(9), np.uint32)

    def ids(self) -> Any:
        """Message ids of all events: two numbers each, as their bytes are."""
        raw = self._raw(3)
        if not raw:
            return np.zeros((self.rows, 2), np.uint64)
        return np.frombuffer(raw, np.uint64).reshape(self.rows, 2)

    def text(self, name: str) -> bytes:
        """Texts with NULs between them; empty if all are."""
        return bytes(self._raw(TEXTS[name][0]))

    def payloads(self) -> bytes:
        """Payloads, one behind the other."""
        return bytes(self._raw(10))

    def properties(self) -> Iterator[tuple[int, bytes]]:
        """The runs that have a property block, and it."""
        return _cut(np.frombuffer(self._raw(11), np.uint32), bytes(self._raw(12)))


class Packed:
    """A block with a value for each run."""

    def __init__(self, data: memoryview, rows: int) -> None:
        self.rows = rows
        self._columns = packed.Columns(data)
        self.runs = self._columns.size(packed.CODES)

    def _numbers(self, column: int, kind: Any) -> Any:
        raw = self._columns[column]
        return np.frombuffer(raw, kind) if raw else np.zeros(self.runs, kind)

    def counts(self) -> Any:
        """Events of each run."""
        raw = self._columns[packed.COUNTS]
        return np.frombuffer(raw, np.uint32) if raw else np.ones(self.runs, np.uint32)

    def codes(self) -> Any:
        """Event codes."""
        return self._numbers(packed.CODES, np.uint8)

    def times(self) -> Any:
        """Times, µs."""
        return np.cumsum(self._numbers(packed.TIMES, np.int64))

    def flags(self) -> Any:
        """Flags."""
        return self._numbers(packed.FLAGS, np.uint8)

    def sizes(self) -> Any:
        """Payload sizes."""
        return self._numbers(packed.SIZES, np.uint32)

    def ids(self) -> Any:
        """Message ids of all events: two numbers each, as their bytes are."""
        lower = self._numbers(packed.IDS, np.uint64)
        since = self._numbers(packed.ID_TIMES, np.int64)
        upper = (self.times() + since).astype(np.uint64)
        none = ((self.flags() & HAS_SIZE) == 0) & (lower == 0) & (since == 0)
        upper[none] = 0
        if self.rows != self.runs:
            counts = self.counts()
            upper = np.repeat(upper, counts)
            first = np.cumsum(counts, dtype=np.uint64) - counts
            lower = np.repeat(lower - first, counts) + np.arange(self.rows, dtype=np.uint64)
        halves = np.empty((self.rows, 2), ">u8")
        halves[:, 0] = upper
        halves[:, 1] = lower
        return halves.view(np.uint64)

    def text(self, name: str) -> bytes:
        """Texts with NULs between them; empty if all are."""
        return self._columns[TEXTS[name][1]]

    def payloads(self) -> bytes:
        """Payloads, one behind the other."""
        return self._columns[packed.PAYLOADS]

    def properties(self) -> Iterator[tuple[int, bytes]]:
        """The runs that have a property block, and it."""
        lengths = self._numbers(packed.LENGTHS, np.uint32)
        return _cut(lengths, self._columns[packed.PROPERTIES])


def _cut(lengths: Any, data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    for i in np.flatnonzero(lengths).tolist():
        end = at + int(lengths[i])
        yield i, data[at:end]
        at = end


def properties_of(block: bytes) -> Properties:
    """What is in the property block of a message, its length included.

    The broker has checked it: texts and pairs are cut out here, all else is left to the codec.
    """
    found: Properties = {}
    pairs: list[tuple[str, str]] = []
    at = 1
    while block[at - 1] & 0x80:
        at += 1
    while at < len(block):
        identifier = block[at]
        start = at + 3
        if identifier not in _TEXTS:
            return decode_properties(block, 0, len(block), PUBLISH)[0]
        at = start + (block[at + 1] << 8 | block[at + 2])
        text = block[start:at].decode()
        if identifier == prop.USER_PROPERTY:
            start = at + 2
            at = start + (block[at] << 8 | block[at + 1])
            pairs.append((text, block[start:at].decode()))
        else:
            found[identifier] = text
    if pairs:
        found[prop.USER_PROPERTY] = pairs
    return found


def _pairs(given: Properties) -> list[tuple[str, str]]:
    found: Any = given.get(prop.USER_PROPERTY)
    return found or []


def _headers(given: Properties) -> list[dict[str, str]] | None:
    return [{"key": key, "value": value} for key, value in _pairs(given)] or None


def _user_properties(given: Properties) -> list[tuple[str, str]] | None:
    return list(dict(_pairs(given)).items()) or None


def _expiry(given: Properties) -> int | None:
    """Of more seconds than the column holds, the most."""
    seconds: Any = given.get(prop.MESSAGE_EXPIRY_INTERVAL)
    return None if seconds is None else min(seconds, 0x7FFFFFFF)


#: Column -> what it is of a message's properties.
PROPERTIES: Final[dict[str, Callable[[Properties], Any]]] = {
    "content_type": lambda given: given.get(prop.CONTENT_TYPE),
    "response_topic": lambda given: given.get(prop.RESPONSE_TOPIC),
    "correlation_data": lambda given: given.get(prop.CORRELATION_DATA),
    "message_expiry": _expiry,
    "headers": _headers,
    "user_properties": _user_properties,
}
