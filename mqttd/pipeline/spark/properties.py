"""Columns that are read from the properties of messages, of many messages at a time.

    | length | 26 key value | 03 text | 26 key value |      blocks of properties
      block 0   block 1   block 2   ...
        26        03        26       the first property of each     -+
        26        .         26       the second                      +-> where texts lie
        .         .         03       the third                      -+         '--> Arrow arrays

Promise: Python's work is per property of the longest block, not per message; the last few blocks,
which may be longer than all others, are looked at one by one. Texts are copied once, and taken as
they are: the broker has checked them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from mqttd.codec import properties as prop
from mqttd.pipeline.log.blocks import Corrupt
from mqttd.pipeline.spark.columns import binary, bits

__all__ = ["PROPERTIES", "MessageProperties"]

#: Column -> the property it shows.
PROPERTIES: Final = {
    "content_type": prop.CONTENT_TYPE,
    "response_topic": prop.RESPONSE_TOPIC,
    "correlation_data": prop.CORRELATION_DATA,
    "message_expiry": prop.MESSAGE_EXPIRY_INTERVAL,
    "headers": prop.USER_PROPERTY,
    "user_properties": prop.USER_PROPERTY,
}
#: Bytes of those whose length is not said.
_WIDTHS: Final = {
    prop.PAYLOAD_FORMAT_INDICATOR: 1,
    prop.MESSAGE_EXPIRY_INTERVAL: 4,
    prop.TOPIC_ALIAS: 2,
}
_SIZED: Final = (prop.CONTENT_TYPE, prop.RESPONSE_TOPIC, prop.CORRELATION_DATA)
#: So few blocks are quicker one by one.
_FEW: Final = 64
#: What the column holds at most.
_SECONDS: Final = 0x7FFFFFFF

#: Blocks, and where what they have begins and ends; of a pair: begin and end of the key, end.
_Found = list[tuple[Any, ...]]


class MessageProperties:
    """The properties of runs: the length of the block of each (0: none), and the blocks.

    counts: events of each run, None where all have one. Columns have a value for each event.
    """

    def __init__(self, lengths: Any, data: Any, counts: Any) -> None:
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        blocks = binary(pa.binary(), offsets, data, lengths > 0).dictionary_encode()
        #: Which block each event has; -1: none.
        self._numbers = blocks.indices.fill_null(-1).to_numpy()
        if counts is not None:
            self._numbers = np.repeat(self._numbers, counts)
        self._count = len(blocks.dictionary)
        _, bounds, content = blocks.dictionary.buffers()
        self._bounds = np.frombuffer(bounds, np.int32, self._count + 1).astype(np.int64)
        self._data = np.frombuffer(content, np.uint8, int(self._bounds[-1]))
        self._found: dict[int, _Found] = {}
        self._look()

    def _look(self) -> None:
        """Find the properties in the blocks that differ."""
        blocks, at, ends = np.arange(self._count), self._bounds[:-1], self._bounds[1:]
        try:
            at = self._behind_number(at)
            while True:
                on = at < ends
                if (at > ends).any():
                    raise IndexError
                blocks, at, ends = blocks[on], at[on], ends[on]
                if len(blocks) <= _FEW:
                    break
                at = self._step(blocks, at)
            for one in zip(blocks.tolist(), at.tolist(), ends.tolist(), strict=True):
                self._rest(*one)
        except IndexError:
            raise Corrupt("the properties of a message end within one") from None

    def _step(self, blocks: Any, at: Any) -> Any:
        """The next property of each of these blocks; where they end."""
        kinds = self._data[at]
        ends = np.empty_like(at)
        for kind in np.flatnonzero(np.bincount(kinds)).tolist():
            here = kinds == kind
            ends[here] = self._property(kind, blocks[here], at[here] + 1)
        return ends

    def _property(self, kind: int, blocks: Any, at: Any) -> Any:
        """One property of each of these blocks, which begins there; where it ends."""
        place: tuple[Any, ...]
        if kind == prop.USER_PROPERTY:
            middle = at + 2 + self._two(at)
            end = middle + 2 + self._two(middle)
            place = at + 2, middle, end
        elif kind in _SIZED:
            end = at + 2 + self._two(at)
            place = at + 2, end
        elif kind in _WIDTHS:
            end = at + _WIDTHS[kind]
            place = at, end
        elif kind == prop.SUBSCRIPTION_IDENTIFIER:
            end = self._behind_number(at)
            place = at, end
        else:
            raise Corrupt(f"property {kind:#04x} of a message")
        self._found.setdefault(kind, []).append((blocks, *place))
        return end

    def _rest(self, block: int, at: int, end: int) -> None:
        """The other properties of a block: many of them are pairs."""
        data = self._data[at:end].tobytes()
        first = at
        pairs: list[tuple[int, int, int]] = []
        while at < end:
            kind, at = data[at - first], at + 1
            if kind != prop.USER_PROPERTY:
                at = int(self._property(kind, np.array([block]), np.array([at]))[0])
                continue
            key = at + 2
            middle = key + (data[at - first] << 8 | data[at + 1 - first])
            at = middle + 2 + (data[middle - first] << 8 | data[middle + 1 - first])
            pairs.append((key, middle, at))
        if at > end:
            raise IndexError
        if pairs:
            numbers = np.full(len(pairs), block)
            found = self._found.setdefault(prop.USER_PROPERTY, [])
            found.append((numbers, *np.array(pairs).T))

    def _two(self, at: Any) -> Any:
        return self._data[at].astype(np.int64) << 8 | self._data[at + 1]

    def _behind_number(self, at: Any) -> Any:
        """Behind the numbers of variable length that begin there."""
        at = at + 1
        while (longer := self._data[at - 1] >= 0x80).any():
            at = at + longer
        return at

    def column(self, name: str, kind: Any) -> Any:
        """One of `PROPERTIES` as an Arrow array of type `kind`."""
        found = self._found.get(PROPERTIES[name])
        if found is None:
            return pa.nulls(len(self._numbers), kind)
        columns = [np.concatenate(one) for one in zip(*found, strict=True)]
        order = np.argsort(columns[1])
        blocks, *places = (one[order] for one in columns)
        if len(places) == 3:
            return self._pairs(kind, blocks, *places)
        where = np.full(self._count + 1, -1)  # of -1, no block, too
        where[blocks] = np.arange(len(blocks))
        numbers = where[self._numbers]
        if name == "message_expiry":
            four = self._data[places[0][:, None] + np.arange(4)].view(">u4")[:, 0]
            values = pa.array(np.minimum(four, _SECONDS).astype(np.int32))
        else:
            values = self._cut(kind, *places)
            numbers = 2 * numbers
        return values.take(pa.array(numbers, mask=numbers < 0))

    def _cut(self, kind: Any, *bounds: Any) -> Any:
        """What lies between these places, and what between them and the next ones, by turns."""
        offsets = np.empty(len(bounds) * len(bounds[0]) + 1, np.int32)
        for i, one in enumerate(bounds):
            offsets[i : -1 : len(bounds)] = one
        offsets[-1] = len(self._data)
        return binary(kind, offsets, self._data)

    def _pairs(self, kind: Any, blocks: Any, keys: Any, middles: Any, ends: Any) -> Any:
        """User properties, in the order of the blocks, as lists or as maps."""
        texts = self._cut(pa.string(), keys, middles, middles + 2, ends)
        chosen = np.arange(0, len(texts), 4)
        if pa.types.is_map(kind):
            chosen, blocks = _by_name(chosen, blocks, texts)
        counts = np.bincount(blocks, minlength=self._count + 1)  # none of -1, no block
        first = np.cumsum(counts) - counts
        numbers = self._numbers
        each = counts[numbers]
        offsets = np.zeros(len(numbers) + 1, np.int32)
        np.cumsum(each, out=offsets[1:])
        which = chosen[np.repeat(first[numbers] - offsets[:-1], each) + np.arange(offsets[-1])]
        fields = [kind.key_field, kind.item_field] if pa.types.is_map(kind) else [*kind.value_type]
        pair = pa.StructArray.from_arrays(
            [texts.take(pa.array(which)), texts.take(pa.array(which + 2))], fields=fields
        )
        return pa.Array.from_buffers(
            kind, len(numbers), [bits(each > 0), pa.py_buffer(offsets)], children=[pair]
        )


def _by_name(pairs: Any, blocks: Any, texts: Any) -> tuple[Any, Any]:
    """Of pairs with one name in one block the last, in the place of the first; and their blocks."""
    names = texts.take(pa.array(pairs)).dictionary_encode()
    named = blocks * len(names.dictionary) + names.indices.to_numpy()
    sorted_ = np.sort(named)
    if (sorted_[1:] != sorted_[:-1]).all():
        return pairs, blocks
    _, first = np.unique(named, return_index=True)
    _, last = np.unique(named[::-1], return_index=True)
    order = np.argsort(first)
    return pairs[len(named) - 1 - last[order]], blocks[first[order]]
