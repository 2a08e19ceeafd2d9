"""zstd, from wherever it is to be had: the package zstandard, Python 3.14, or pyarrow.

    zstandard          contexts are kept and used again
    compression.zstd   the standard library's
    pyarrow.Codec      a context for each frame

zstandard stands first because of what a context costs: to make one, zstd asks the processor what
it can do, and in a virtual machine that question goes to the host (13 us for a column of 400 bytes
by pyarrow, 1.7 to 3 with a context that was there). It is also 40 MiB less in the broker's memory.
All of them release the interpreter's lock, and a codec may be used by several threads.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Final, Protocol

__all__ = ["QUICK", "Codec", "zstd"]

#: The level for much: 0.8 GB/s of text in place of 0.5, and still as small as snappy makes it.
QUICK: Final = -4


class Codec(Protocol):
    """Compresses bytes."""

    def compress(self, data: bytes) -> bytes:
        """A frame of them."""

    def decompress(self, data: bytes, size: int) -> bytes:
        """The `size` bytes in a frame, or in several that follow one another.

        Raises ValueError or OSError if they are none.
        """


def _of_size(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes where there should be {size}")
    return data


class _Zstandard:
    """zstd by the package zstandard, whose contexts serve one thread each."""

    def __init__(self, level: int) -> None:
        import zstandard

        self._module = zstandard
        self._level = level
        self._own = threading.local()

    def compress(self, data: bytes) -> bytes:
        own = self._own
        try:
            by = own.compressor
        except AttributeError:
            by = own.compressor = self._module.ZstdCompressor(level=self._level)
        made: bytes = by.compress(data)
        return made

    def decompress(self, data: bytes, size: int) -> bytes:
        own, module = self._own, self._module
        try:
            by = own.decompressor
        except AttributeError:
            by = own.decompressor = module.ZstdDecompressor()
        made: bytes
        try:
            if module.frame_content_size(data) == size:
                made = by.decompress(data, size, allow_extra_data=False)
            else:
                with by.stream_reader(data, read_across_frames=True) as frames:
                    made = frames.read(size + 1)
        except module.ZstdError as error:
            raise ValueError(str(error)) from None
        return _of_size(made, size)


class _Standard:
    """zstd by the standard library (Python 3.14)."""

    def __init__(self, level: int) -> None:
        from compression import zstd as module  # type: ignore[import-not-found, unused-ignore]

        self._module = module
        self._level = level

    def compress(self, data: bytes) -> bytes:
        made: bytes = self._module.compress(data, self._level)
        return made

    def decompress(self, data: bytes, size: int) -> bytes:
        made: bytes = self._module.decompress(data)
        return _of_size(made, size)


class _Arrow:
    """zstd by pyarrow."""

    def __init__(self, level: int) -> None:
        import pyarrow

        self._codec = pyarrow.Codec("zstd", compression_level=level)

    def compress(self, data: bytes) -> bytes:
        made: bytes = self._codec.compress(data, asbytes=True)
        return made

    def decompress(self, data: bytes, size: int) -> bytes:
        made: bytes = self._codec.decompress(data, size, asbytes=True)
        return _of_size(made, size)


@cache
def zstd(level: int = 1) -> Codec:
    """zstd at this level; raises ImportError where there is none."""
    for kind in (_Zstandard, _Standard, _Arrow):
        try:
            return kind(level)
        except ImportError:
            continue
    raise ImportError(
        "zstd needs the package zstandard, Python 3.14 or pyarrow: pip install zstandard"
    )
