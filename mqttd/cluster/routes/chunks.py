"""Puts what changes in the filters that are wanted here into chunks, from which others read them.

    changed --> came, gone --.
    all that is there, anew --'-- a share of each --> a chunk: BEGIN REMOVE ADD END

So who has just come does not wait for all that others take away together, nor for what is written
anew, and a chunk is no larger than etcd takes in one request.

What was written and is no more, or twice, is dead, and is read by everybody who reads it all. When
there is more of it than of what is there, in bytes, or three times as much in number, everything
is written anew, beginning with the next change, and what was before that is removed with the last
chunk of it.

Promise: sans-I/O. Filters are in the chunks in the order in which they came. Whoever reads chunks
in their order, from whichever is the first that is left and up to any, has what was there then.
"""

from __future__ import annotations

from typing import Final

from mqttd.mesh.frames import ADD, BEGIN, END, REMOVE, frame, packed

__all__ = ["SHARE", "Change", "Chunks"]

#: Bytes of a chunk for those that come, for those that go, and for what is written anew, and one
#: filter more; what etcd takes in one request is 1.5 MiB by default.
SHARE: Final = 64 << 10
#: Dead bytes, or filters, that are not worth it.
_SPARE: Final = 1 << 20
_FEW: Final = 1000
#: Everything is written anew when so many times as many were written as there are.
_TIMES: Final = 4
#: Bytes of a chunk beside its filters: its key, and what etcd and its answers have around it.
_KEY: Final = 256
#: Bytes of a filter beside its text.
_LENGTH: Final = 4


class Change:
    """A chunk that is to be written.

    value: its bytes, empty if nothing has to be said; came: filters that are there with it; gone:
    those that are not any more; settled: those that came up to this one are there then. below: all
    chunks before this number are to be removed with it, 0: none.
    """

    __slots__ = ("below", "came", "gone", "settled", "value", "written")

    def __init__(self) -> None:
        self.value = b""
        self.came: list[str] = []
        self.gone: list[str] = []
        self.settled = 0
        self.below = 0
        #: How many filters it names.
        self.written = 0


class Chunks:
    """Those of a node that has written nothing yet; `filters` are wanted, each came so."""

    def __init__(self, filters: dict[str, int]) -> None:
        #: What etcd has said to have, and its bytes.
        self.there: set[str] = set()
        self.size = 0
        #: The number of the next chunk.
        self.number = 0
        #: Filters that others are to be told of, and how many had come when each changed last.
        self._came = filters
        self._gone: dict[str, int] = {}
        #: What was written since the first chunk that is left: filters, and bytes.
        self._names = self._bytes = 0
        #: What is to be written anew, where that began, and what was written since.
        self._anew: list[str] | None = None
        self._first = 0
        self._names_before = self._bytes_before = 0

    def __bool__(self) -> bool:
        return bool(self._came or self._gone or self._anew is not None)

    def changed(self, full_filter: str, wanted: bool, came: int) -> None:
        """It is wanted now, or is not; so many have come by now."""
        self._came.pop(full_filter, None)
        self._gone.pop(full_filter, None)
        (self._came if wanted else self._gone)[full_filter] = came

    def next(self, came: int) -> Change:
        """What is to be written next, if so many have come by now. `done` must follow."""
        if self._anew is None and self._has_much_dead():
            self._anew = list(self.there)
            self._first = self.number
            self._names_before, self._bytes_before = self._names, self._bytes
        begins = self._anew is not None and self.number == self._first
        change = Change()
        added, numbers = self._take(self._came, False)
        change.came = list(numbers)
        # Who waits for one that has gone meanwhile waits for no other.
        change.settled = max(numbers.values()) if self._came else came
        removed, numbers = self._take(self._gone, True)
        self._again(numbers, added, removed)
        change.gone = list(numbers)
        ends = self._anew is not None and not self._anew
        parts = [
            frame(BEGIN, b"\0") if begins else b"",
            frame(REMOVE, packed(removed)) if removed else b"",
            frame(ADD, packed(added)) if added else b"",
            frame(END, b"\0") if ends else b"",
        ]
        change.value = b"".join(parts)
        change.written = len(added) + len(removed)
        if ends:
            change.below = self._first
        return change

    def _take(self, some: dict[str, int], told: bool) -> tuple[list[bytes], dict[str, int]]:
        """Take a share out of these, the first ones: the bytes of those that others have been
        `told` of, or have not; and all of them."""
        data: list[bytes] = []
        taken: dict[str, int] = {}
        size = 0
        for full_filter, came in some.items():
            taken[full_filter] = came
            if (full_filter in self.there) is told:
                data.append(full_filter.encode())
                size += len(data[-1]) + _LENGTH
                if size >= SHARE:
                    break
        for full_filter in taken:
            del some[full_filter]
        return data, taken

    def _again(self, gone: dict[str, int], added: list[bytes], removed: list[bytes]) -> None:
        """Add a share of what is to be written anew; those that are about to go do so now."""
        size = 0
        while self._anew and size < SHARE:
            full_filter = self._anew.pop()
            if full_filter in gone or full_filter not in self.there:
                continue
            data = full_filter.encode()
            size += len(data) + _LENGTH
            if full_filter in self._gone:
                gone[full_filter] = self._gone.pop(full_filter)
                removed.append(data)
            else:
                added.append(data)

    def done(self, change: Change) -> None:
        """It is written."""
        self.number += 1
        there = self.there
        for each in change.came:
            if each not in there:
                there.add(each)
                self.size += _size(each)
        for each in change.gone:
            if each in there:
                there.discard(each)
                self.size -= _size(each)
        self._names += change.written
        self._bytes += len(change.value) + _KEY
        if change.below:
            self._anew = None
            self._names -= self._names_before
            self._bytes -= self._bytes_before

    def _has_much_dead(self) -> bool:
        if self._bytes - self.size > max(_SPARE, self.size):
            return True
        return self._names > _TIMES * len(self.there) + _FEW


def _size(full_filter: str) -> int:
    return len(full_filter.encode()) + _LENGTH
