"""Finds the blocks in a segment, whatever was done to it.

    block | block | harmed | block | ...      walk() -> Block, Block, Harm, Block, ...
                    `-- a header that can be believed: its end is where the next block begins
                    `-- none: the next place that holds a block with a good checksum

Promise: what is no block is never taken for one, and no whole block is passed over. A walk that
believes headers reads 64 bytes a block; the cost of a search is that of the bytes searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from mqttd.pipeline.log.blocks import (
    HEADER_SIZE,
    MAGIC,
    MAX_BLOCK,
    Block,
    Corrupt,
    UnknownFormat,
    has_header_crc,
    is_foreign,
    parse_header,
    span,
    verify,
)

__all__ = ["Harm", "behind", "block_at", "next_block", "walk"]

#: Bytes searched at a time.
WINDOW: Final = 1 << 20

#: ``read(position, size)``: at most so many bytes from there.
Read = Callable[[int, int], bytes]


class Harm(NamedTuple):
    """Bytes where blocks should be and are not."""

    position: int
    size: int
    why: str
    #: It is a block of a format that this program does not know.
    foreign: bool = False


def block_at(
    read: Read, at: int, size: int, deep: bool = True, node: str = "", segment: str = ""
) -> Block:
    """The block at `at` of `size` bytes; its checksum is looked at if `deep`.

    Raises Corrupt if there is none.
    """
    block = parse_header(read(at, HEADER_SIZE), node, segment, at)
    if at + block.size > size:
        raise Corrupt(f"{segment}:{at}: a block of {block.size} bytes, {size - at} are there")
    if deep and not verify(read(at, block.size)):
        raise Corrupt(
            f"{segment}:{at}: wrong checksum, events {block.base} to {block.end - 1}"
            + (f" of node {node}" if node else "")
        )
    return block


def next_block(
    read: Read, at: int, size: int, node: str = "", segment: str = ""
) -> tuple[Block | None, bool]:
    """The first whole block at `at` or behind; and whether one of another format was met."""
    foreign = False
    while at < size:
        data = read(at, WINDOW + HEADER_SIZE)
        found = data.find(MAGIC)
        while 0 <= found < WINDOW:
            try:
                return block_at(read, at + found, size, True, node, segment), foreign
            except UnknownFormat:
                foreign = foreign or foreign_at(read, at + found, True)
            except Corrupt:
                pass
            found = data.find(MAGIC, found + 1)
        at += WINDOW
    return None, foreign


def foreign_at(read: Read, at: int, searched: bool = False) -> bool:
    """Whether what begins here with an unknown version is a block of another format.

    :param searched: it was found by a search, perhaps in a payload: it must have a good checksum,
        or end where a whole one begins, or the file ends.
    """
    size = HEADER_SIZE + int.from_bytes(read(at, HEADER_SIZE)[8:12], "little")
    if size > MAX_BLOCK:
        return False
    data = read(at, size)
    if len(data) == size and verify(data):
        return True
    if not is_foreign(data):
        return False
    return not searched or (len(data) == size and _may_end(read, at + size))


def _may_end(read: Read, at: int) -> bool:
    """Whether a block may end there: the file does, or a whole one begins."""
    header = read(at, HEADER_SIZE)
    size = span(header, 0)[2]
    return not header or (size > 0 and verify(read(at, size)))


def walk(
    read: Read, at: int, size: int, deep: bool, node: str = "", segment: str = ""
) -> Iterator[Block | Harm]:
    """The blocks from `at` up to `size` in the order of the file, and what is between them.

    Without `deep` headers are believed, as long as each block begins where the last one ends and
    with the next offset; before anything else the last one is looked at more closely.
    """
    last: Block | None = None  # found, not yet told: its header may be wrong
    while at < size or last is not None:
        harm: tuple[int, int, str, bool] | None = None
        try:
            block = block_at(read, at, size, deep, node, segment) if at < size else None
            if deep and block is not None:
                yield block
                at += block.size
                continue
            if block is not None and (last is None or block.base == last.end):
                if last is not None:
                    yield last
                last = block
                at += block.size
                continue
        except Corrupt as error:
            foreign = isinstance(error, UnknownFormat) and foreign_at(read, at)
            harm = at, behind(read, at, size), str(error), foreign
        if last is not None:
            before, last = last, None
            try:
                block_at(read, before.position, size, True, node, segment)
                yield before
            except Corrupt as error:
                harm = before.position, behind(read, before.position, size), str(error), False
        if harm is None:
            continue  # both are whole: a hole is between them, or the end
        begin, search, why, foreign = harm
        found, met = next_block(read, search, size, node, segment)
        at = found.position if found is not None else size
        yield Harm(begin, at - begin, why, foreign or met)


def behind(read: Read, at: int, size: int) -> int:
    """Where to search behind a block that is harmed.

    Where it says it ends, if the block that should follow does follow, or one of another format: a
    payload that looks like a block is then not taken for one.
    """
    try:
        block = block_at(read, at, size, False)
        end = at + block.size
    except Corrupt:
        return at + 1
    try:
        deep = not has_header_crc(read(end, HEADER_SIZE))
        return end if block_at(read, end, size, deep).base == block.end else at + 1
    except UnknownFormat:
        # The header may be a copy that lies elsewhere, and its end in a payload.
        sure = has_header_crc(read(at, HEADER_SIZE)) and foreign_at(read, end, True)
        return end if sure else at + 1
    except Corrupt:
        return at + 1
