"""What was done to the newest segment while nobody wrote it, and what is to be done about it.

    nothing                                     go on where it ends
    a tail behind which no whole block follows  cut it, go on there
    a format that this program does not know    refuse it, touch nothing
    anything else                               set the file aside, put in its place a copy of what
                                                is whole, with gaps for what is not; go on behind
                                                every offset that may have been given

What ought to be there is known from the state at the last close, or from the mark: how far the
writer had come, noted after each write in the page cache, which outlives the process.

Promise: no whole block is ever cut, no offset given twice, and what is missing is a gap.
"""

from __future__ import annotations

import os
import zlib
from typing import Final, NamedTuple

from mqttd.pipeline.log.blocks import FLAG_DAMAGE, Block, encode_gap
from mqttd.pipeline.log.files import LOCK, STATE_FILE, aside, base_of, read_json, sync_directory
from mqttd.pipeline.log.scan import Harm, walk

__all__ = [
    "GIVEN",
    "Found",
    "boot_id",
    "examine",
    "mark_in",
    "read_mark",
    "repair",
    "write_mark",
    "written_to",
]

_MARK_SIZE: Final = 29
#: Where in the file lock it stands up to which offset events had come, when a stop could not write
#: them. It is written in place: a full disk takes that.
GIVEN: Final = 32


class Found(NamedTuple):
    """What a segment holds: `blocks` in order of their offsets, and what else was seen."""

    path: str
    blocks: list[Block]
    #: Offset behind the last block, and the place behind the last whole one.
    end: int
    whole: int
    size: int
    #: The blocks do not lie one behind the other from the beginning up to `whole`.
    harmed: bool


def examine(path: str) -> Found:
    """Look at every block of the newest segment.

    Raises ValueError for one that has another format.
    """
    name = os.path.basename(path)
    first = base_of(name)
    blocks: list[Block] = []
    harmed, whole, at, torn = False, 0, first, False
    with open(path, "rb", buffering=0) as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size

        def read(position: int, count: int) -> bytes:
            return os.pread(fd, count, position)

        for one in walk(read, 0, size, True, "", name):
            if isinstance(one, Harm):
                if one.foreign:
                    raise ValueError(
                        f"{path}: at byte {one.position} is a block of a format that this program"
                        f" does not know ({one.why}); nothing was changed. Use the program that"
                        " wrote it, or move the file away"
                    )
                torn = True
                continue
            harmed = harmed or torn or one.base != at
            blocks.append(one)
            at = one.end
            whole = one.position + one.size
    kept: list[Block] = []
    end = first
    for block in sorted(blocks, key=lambda block: block.base):
        if block.base >= end:
            kept.append(block)
            end = block.end
    return Found(path, kept, end, whole, size, harmed)


def repair(found: Found, epoch: int, now: int) -> str:
    """Set the segment aside and put what is whole of it in its place; returns the kept file's name.

    After a crash in the middle it is the old file or the new one.
    """
    folder, name = os.path.split(found.path)
    kept = aside(folder, name)
    beside = found.path + ".new"
    at, time = base_of(name), now
    with open(found.path, "rb") as old, open(beside, "wb") as new:
        for block in found.blocks:
            if block.base > at:
                why = f"damaged; the file is kept as {kept}"
                time = block.first_time
                new.write(encode_gap(at, block.base - at, time, why, epoch, FLAG_DAMAGE))
            old.seek(block.position)
            new.write(old.read(block.size))
            at = block.end
        new.flush()
        os.fsync(new.fileno())
    os.chmod(beside, os.stat(found.path).st_mode & 0o777)
    os.link(found.path, os.path.join(folder, kept))
    os.replace(beside, found.path)
    sync_directory(folder)
    return kept


def write_mark(fd: int, offset: int, place: int = 0) -> None:
    """Note that everything before `offset` is written; at `GIVEN`: is lost, unless it is."""
    text = b"%020d" % offset
    os.pwrite(fd, b"%b %08x" % (text, zlib.crc32(text)), place)


def read_mark(fd: int, place: int = 0) -> int | None:
    """The offset that was noted; None if there is none that can be believed."""
    data = os.pread(fd, _MARK_SIZE, place)
    text = data[:20]
    if len(data) < _MARK_SIZE or not text.isdigit() or data[21:] != b"%08x" % zlib.crc32(text):
        return None
    return int(text)


def mark_in(folder: str) -> int | None:
    """The mark of a node that somebody else may be writing. Raises OSError without a lock."""
    fd = os.open(os.path.join(folder, LOCK), os.O_RDONLY)
    try:
        return read_mark(fd)
    finally:
        os.close(fd)


def boot_id() -> str:
    """A text that differs after each start of the machine; empty where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def written_to(folder: str) -> int:
    """How far a node is written for certain: up to its close, else its mark; -1: nobody can tell.

    A mark of another start of the machine, or of another machine, tells nothing: that one may have
    lost what was behind it.
    """
    try:
        state = read_json(os.path.join(folder, STATE_FILE))
        closed = int(state.get("end", -1))
        if closed >= 0 or not (boot := boot_id()) or state.get("boot") != boot:
            return closed
        mark = mark_in(folder)
    except (OSError, ValueError, TypeError):
        return -1
    return -1 if mark is None else mark
