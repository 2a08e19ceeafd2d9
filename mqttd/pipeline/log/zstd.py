"""zstd, from wherever it is to be had: the system's library, Python 3.14, or pyarrow.

    libzstd.so.1       by ctypes: contexts are kept and used again, so is where a frame is made
    compression.zstd   the standard library's
    pyarrow.Codec      a context for each frame

The library stands first because of what a context costs: to make one, zstd asks the processor what
it can do, and in a virtual machine that question goes to the host (9.5 us for a column of 400
bytes by pyarrow, 2.6 with a context that was there). It is also 40 MiB less in the broker's memory.
All of them release the interpreter's lock, and a codec may be used by several threads.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final, Protocol

__all__ = ["QUICK", "Codec", "zstd"]

#: The level for much: 0.8 GB/s of text in place of 0.5, and still as small as snappy makes it.
QUICK: Final = -4

#: An older one lacks what is asked of it here; 1.4.0 is of 2019.
_OLDEST: Final = 1_04_00
#: So many contexts are kept: about 1.5 MiB each.
_KEPT: Final = 2
#: A frame that may be longer is made in memory of its own.
_ROOM: Final = 512 << 10


class Codec(Protocol):
    """Compresses bytes."""

    def compress(self, data: bytes) -> bytes:
        """A frame of them."""

    def decompress(self, data: bytes, size: int) -> bytes:
        """The `size` bytes in a frame, or in several that follow one another.

        Raises ValueError or OSError if they are none.
        """


@cache
def _library() -> Any:
    """The system's library; raises OSError where it is missing or too old."""
    found = ctypes.CDLL("libzstd.so.1")
    size, pointer, data = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("versionNumber", ctypes.c_uint, []),
        ("isError", ctypes.c_uint, [size]),
        ("getErrorName", data, [size]),
        ("compressBound", size, [size]),
        ("createCCtx", pointer, []),
        ("createDCtx", pointer, []),
        ("freeCCtx", size, [pointer]),
        ("freeDCtx", size, [pointer]),
        ("compressCCtx", size, [pointer, data, size, data, size, ctypes.c_int]),
        ("decompressDCtx", size, [pointer, data, size, data, size]),
    ):
        try:
            function = getattr(found, f"ZSTD_{name}")
        except AttributeError as error:
            raise OSError(str(error)) from None
        function.restype, function.argtypes = result, arguments
    if found.ZSTD_versionNumber() < _OLDEST:
        raise OSError("libzstd is older than 1.4.0")
    return found


def _of_size(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes where there should be {size}")
    return data


def _room(size: int) -> bytes:
    """Bytes that are new, to be written to before anybody sees them: at least two, for those of
    one byte or none are the interpreter's, and everybody's.
    """
    return bytes(max(size, 2))


class _Contexts:
    """What is needed for one call at a time, and kept for the next."""

    def __init__(self, library: Any) -> None:
        self._free = library.ZSTD_freeCCtx, library.ZSTD_freeDCtx
        self.compressing = library.ZSTD_createCCtx()
        self.decompressing = library.ZSTD_createDCtx()
        if not (self.compressing and self.decompressing):
            raise MemoryError
        self.room = _room(_ROOM)

    def __del__(self) -> None:
        self._free[0](self.compressing)
        self._free[1](self.decompressing)


#: Those that nobody uses: who needs one takes it out, so that no two threads have the same.
_idle: list[_Contexts] = []


def _taken(library: Any) -> _Contexts:
    try:
        return _idle.pop()
    except IndexError:
        return _Contexts(library)


def _put_back(contexts: _Contexts) -> None:
    if len(_idle) < _KEPT:
        _idle.append(contexts)


class _Library:
    """zstd by the system's library."""

    def __init__(self, level: int) -> None:
        self._library = _library()
        self._level = level

    def _checked(self, result: int) -> int:
        if self._library.ZSTD_isError(result):
            raise ValueError(self._library.ZSTD_getErrorName(result).decode())
        return result

    def compress(self, data: bytes) -> bytes:
        library = self._library
        contexts = _taken(library)
        most = library.ZSTD_compressBound(len(data))
        room = contexts.room if most <= _ROOM else _room(most)
        size = self._checked(
            library.ZSTD_compressCCtx(
                contexts.compressing, room, len(room), data, len(data), self._level
            )
        )
        made = bytes(memoryview(room)[:size])
        _put_back(contexts)
        return made

    def decompress(self, data: bytes, size: int) -> bytes:
        library = self._library
        contexts = _taken(library)
        made = _room(size)
        found = self._checked(
            library.ZSTD_decompressDCtx(contexts.decompressing, made, size, data, len(data))
        )
        _put_back(contexts)
        return _of_size(made[:found], size)


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
    for kind in (_Library, _Standard, _Arrow):
        try:
            return kind(level)
        except (ImportError, OSError):
            continue
    raise ImportError(
        "zstd needs the library libzstd, Python 3.14 or pyarrow: apt install libzstd1, or pip"
        " install pyarrow"
    )
