"""Tells glibc to keep large blocks that are freed, because the next large message needs them.

By itself malloc gives a block of a megabyte back to the kernel when its message has gone, and asks
for another with the next: every page of it is then cleared and mapped anew. Measured with payloads
of 1 MiB that was a third of the broker's CPU time, more than the reads.

The 7 MiB that argon2 takes are not kept: that costs a hash some milliseconds, but the process stays
closer to its budget (with 12 MiB, of attacks mixed under 256 MiB 3 of 344 seeds were 1 MiB
beyond 64 more; with a threshold of 16 MiB 16 of 795, up to 17 MiB).

    below MMAP_THRESHOLD   from the heap, where freed blocks are used again
    TRIM_THRESHOLD         as much free memory may stay at the heap's end

Promise: never more than `TRIM_THRESHOLD` is kept that would have been given back. For the whole
process, so it is done where the process is the broker's own; without glibc nothing happens. When
memory is short, `trim` gives back what is free wherever it lies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

__all__ = ["keep_freed", "trim"]

MMAP_THRESHOLD = 4 << 20
TRIM_THRESHOLD = 32 << 20
# Of <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed() -> bool:
    """Set the thresholds; says whether there was somebody to take them."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # The order is that of the manual: either ends malloc's own adjusting of both.
    return bool(
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD) and mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD)
    )


def trim() -> bool:
    """Give free memory back to the system; says whether there was some, and somebody to ask."""
    malloc_trim = _malloc_trim()
    return malloc_trim is not None and bool(malloc_trim(0))


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    # Looked up once: a library that is opened leaves circles of classes.
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
