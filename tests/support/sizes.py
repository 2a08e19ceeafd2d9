"""Sizes at which a packet's own shape changes: what tests of the codec and of its users draw from.

    first | remaining length 1..4 | topic 2+ | packet id 2 | property length 1..4 | ... | payload
                     ^                               ^
                     `-- changes at 127, 16,383, 2,097,151 bytes behind it

A message that is sent on may be longer or shorter than it came: by an identifier, an alias, the
property length of 5.0, another topic. So the places around a border matter as much as the border:
what came just below it goes out above it. Lists hold for Hypothesis (`st.sampled_from`) and for
`random.Random.choice` alike; nothing here knows the broker's own codec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hypothesis import strategies as st

from tests.support.packets import varint

__all__ = [
    "BORDERS",
    "IDENTIFIERS",
    "LENGTHS",
    "PACKET_IDS",
    "SPREAD",
    "TEXT_LENGTHS",
    "around",
    "fill",
    "near",
    "text",
]

#: The largest values that a variable byte integer of one, two, three bytes holds (1.5.5).
BORDERS: Final = (127, 16_383, 2_097_151)
#: What a message may gain or lose on its way, in bytes: two lengths, an identifier, an alias.
SPREAD: Final = 8

#: Values of a variable byte integer on both sides of each border; the least and the largest.
IDENTIFIERS: Final = [1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455]
#: Lengths on both sides of each border.
LENGTHS: Final = [0, 1, *(border + by for border in BORDERS for by in (-1, 0, 1))]
#: Packet ids of which one byte is 0 or the largest, and the last one.
PACKET_IDS: Final = [1, 2, 255, 256, 257, 65_534, 65_535]
#: Lengths of topics and other texts: where a property length, or their own second byte, grows.
TEXT_LENGTHS: Final = [1, 2, 126, 127, 128, 129, 255, 256]


def around(border: int, before: int = SPREAD, behind: int = SPREAD) -> range:
    """The places around a border, both ends included."""
    return range(max(0, border - before), border + behind + 1)


@st.composite
def near(draw: st.DrawFn, *borders: int) -> int:
    """A length around one of these borders, unless told the first two."""
    return draw(st.sampled_from(around(draw(st.sampled_from(borders or BORDERS[:2])))))


def text(length: int, mark: str = "a") -> str:
    """A topic level, or another text, of so many bytes."""
    return (mark + "." * length)[:length]


def fill(made: Callable[[bytes], bytes], remaining: int, mark: bytes = b"") -> bytes:
    """The payload with which `made(payload)` is a packet of this remaining length.

    It begins with `mark`, which it is alone where that is as long already.
    """
    empty = made(b"")
    at = 1
    while empty[at] & 0x80:
        at += 1
    rest = remaining - (len(empty) - at - 1)
    assert empty[1 : at + 1] == varint(len(empty) - at - 1)
    return mark + b"." * (rest - len(mark))
