"""Topics that were seen once: a cache need not hold what does not come again.

    new topic --> seen before? --no---> its mark is left; its route serves this message alone
                       |
                       +---------yes--> the table of routes

A mark is a byte of the topic's hash, in two places that the rest of it says; a newer one takes the
place of an older, and of two places it rarely takes both. Where each message has a topic of its
own, nothing is made, kept and thrown out for them (the doorkeeper of TinyLFU: Einziger, Friedman,
Manes, ACM Transactions on Storage 13, 2017).

Promise: a topic that comes again before some 50,000 others have is known, most often; one in 128
that is new is taken for known, which costs its place in the cache. 128 KiB in all.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Sights"]

_PLACES: Final = 1 << 17
_LAST: Final = _PLACES - 1


class Sights:
    """What topics were seen lately."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks = bytearray(_PLACES)

    def again(self, key: bytes) -> bool:
        """Whether this topic was seen before; it was from now on."""
        number = hash(key) >> 4
        here = number & _LAST
        there = number >> 24 & _LAST
        mark = number >> 48 & 255 or 1
        marks = self._marks
        if marks[here] == mark or marks[there] == mark:
            return True
        marks[here] = mark
        marks[there] = mark
        return False
