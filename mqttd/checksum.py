"""CRC-32, as zlib has it, from wherever it is quickest.

Of 64 KiB that do not compress the checksum took more than their way into the page cache: zlib's
makes 1.7 to 4.2 GB/s of it, that of the package isal 24. But that one lets go of the interpreter's
lock for 16 bytes too, and a thread that is not the loop's has to get it again: 25 us a group of a
store that is told 1,000 messages a second. Both give the same number.
"""

from __future__ import annotations

import zlib
from typing import Final

__all__ = ["crc32"]

try:
    from isal.isal_zlib import crc32 as _of_many
except ImportError:  # an executor that has pyspark alone, an install without the extra spark
    from zlib import crc32 as _of_many

#: Bytes from which on zlib lets go of the lock as well.
_MANY: Final = 5 << 10


def crc32(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """The checksum of bytes, behind what had the checksum `value`."""
    return _of_many(data, value) if len(data) > _MANY else zlib.crc32(data, value)
