"""What a reader remembers of a segment, and how it learns more.

complete     headers are believed, one read of 64 bytes a block; if anything is odd, every body is
             looked at as well, and what is whole is taken in the order of offsets
the newest   every block is verified; behind the last one is what is being written just now

Which there are is looked at when their folder has changed. A stream that has nothing to read asks a
hundred times a second, and a log of small events that is kept for a year has 20,000 of them.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from mqttd.pipeline.log.blocks import (
    HEADER_SIZE,
    Block,
    Corrupt,
    foreign_span,
    parse_header,
    span,
    verify,
)
from mqttd.pipeline.log.files import base_of, segment_inodes
from mqttd.pipeline.log.scan import Harm, behind, block_at, next_block, walk

__all__ = ["Folder", "Segment", "index"]

#: Bytes of a segment that is being written to, read at a time.
AHEAD: Final = 256 << 10

#: Nanoseconds after which a change would give a folder another time, whatever notes it; and after
#: which nobody's word is taken for it that there was none.
SETTLED: Final = 3_000_000_000
LOOK_AGAIN: Final = 5_000_000_000


class Segment:
    """What is known of one segment: its blocks in the order of their offsets."""

    __slots__ = ("blocks", "done", "end", "ends", "foreign", "harms", "inode", "name", "size")

    def __init__(self, name: str, inode: int) -> None:
        self.name = name
        self.inode = inode
        self.blocks: list[Block] = []
        #: `end` of each block, to search in.
        self.ends: list[int] = []
        #: Offset behind the last block, and how far the file was looked at.
        self.end = base_of(name)
        self.size = 0
        #: What is no block, with the offset that was expected there.
        self.harms: list[tuple[int, Harm]] = []
        #: Offset behind blocks of another format at its end; they are among `harms`.
        self.foreign = 0
        #: Nothing will change any more.
        self.done = False

    def add(self, block: Block, limit: int) -> None:
        """Take a block, unless what it holds is there already or does not belong here."""
        if block.base >= self.end:
            if block.end <= limit:
                self.blocks.append(block)
                self.ends.append(block.end)
                self.end = block.end
            return
        at = bisect_right(self.ends, block.base)
        first = base_of(self.name)
        if block.base >= (self.ends[at - 1] if at else first):
            if at < len(self.blocks) and block.end <= self.blocks[at].base:
                self.blocks.insert(at, block)
                self.ends.insert(at, block.end)


class Folder:
    """The segments of a node as they were seen last, in order; `path` is the log's."""

    def __init__(self, path: str, node: str, clock: Callable[[], int] = time.time_ns) -> None:
        self.path = path
        self.node = node
        self.segments: dict[str, Segment] = {}
        self._clock = clock
        #: When the folder had changed last, and when it was looked at; None: look again.
        self._changed: int | None = None
        self._looked = 0

    def changes(self) -> None:
        """It may be another one by now."""
        self._changed = None

    def refresh(self) -> list[Segment]:
        """The segments, indexed as far as they are written."""
        now, changed = self._clock(), _changed(os.path.join(self.path, self.node))
        same = changed == self._changed and self._looked <= now < self._looked + LOOK_AGAIN
        if not same or not self._follow():
            whole = self._look()
            settled = changed is not None and now - changed >= SETTLED
            self._changed = changed if whole and settled else None
            self._looked = now
        return list(self.segments.values())

    def _follow(self) -> bool:
        """Index the newest segment; False if it is there no more, or there was none."""
        name = next(reversed(self.segments), None)
        if name is None:
            return False
        try:
            self.segments[name] = index(self.path, self.node, self.segments[name], None)
        except FileNotFoundError:
            return False
        return True

    def _look(self) -> bool:
        """Look at all that there is; False if some of it was deleted meanwhile."""
        names = segment_inodes(os.path.join(self.path, self.node))
        known, present = self.segments, {}
        for i, (name, inode) in enumerate(names):
            segment = known.get(name)
            if segment is None or segment.inode != inode:
                segment = Segment(name, inode)  # new, or put in the place of a damaged one
            limit = base_of(names[i + 1][0]) if i + 1 < len(names) else None
            if limit is None or not segment.done:
                try:
                    segment = index(self.path, self.node, segment, limit)
                except FileNotFoundError:
                    continue  # deleted since the directory was read
            present[name] = segment
        self.segments = present
        return len(present) == len(names)


def _changed(folder: str) -> int | None:
    try:
        return os.stat(folder).st_mtime_ns
    except FileNotFoundError:
        return None


def index(path: str, node: str, segment: Segment, limit: int | None) -> Segment:
    """Read the headers of the blocks that are new; in the newest segment verify them.

    :param limit: the first offset of the next segment, None for the newest.
    :return: the segment, or a new one if its file is not what it was.
    """
    fd = os.open(os.path.join(path, node, segment.name), os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if size < segment.size:
            segment = Segment(segment.name, segment.inode)  # it was cut: nothing is sure

        def read(at: int, count: int) -> bytes:
            return os.pread(fd, count, at)

        if limit is None:
            if segment.done:  # the newer ones were taken away
                segment = Segment(segment.name, segment.inode)
            if not _follow(node, segment, read, size):
                segment = Segment(segment.name, segment.inode)
                _follow(node, segment, read, size)
            return segment
        if not _take(node, segment, read, size, limit, False):
            # Not as it was written: then no header is believed before its body was seen.
            segment = Segment(segment.name, segment.inode)
            _take(node, segment, read, size, limit, True)
        segment.size, segment.done = size, True
        return segment
    finally:
        os.close(fd)


def _take(
    node: str,
    segment: Segment,
    read: Callable[[int, int], bytes],
    size: int,
    limit: int,
    deep: bool,
) -> bool:
    """Take the blocks of a segment that is complete; whether they lie there as written."""
    right = True
    for one in walk(read, segment.size, size, deep, node, segment.name):
        if isinstance(one, Harm):
            segment.harms.append((segment.end, one))
            right = False
        else:
            right = right and one.base == segment.end
            segment.add(one, limit)
    return right and segment.end == limit


def _follow(node: str, segment: Segment, read: Callable[[int, int], bytes], size: int) -> bool:
    """Take the whole blocks of a segment that is being written to.

    Behind its last one is what is being written just now, or torn; a block behind that shows
    that it is harmed. False if the last one is not there any more: the file was cut meanwhile.
    """
    name = segment.name
    sure = not segment.blocks
    while segment.size < size:
        if _ahead(node, segment, read):
            sure = True
            continue
        at = segment.size
        try:
            block = block_at(read, at, size, True, node, name)
            harmed = ""
        except Corrupt as error:
            harmed = str(error)
        if not sure and (harmed or block.base != segment.end):
            if not _is_there(max(segment.blocks, key=lambda block: block.position), read):
                return False
            sure = True
        if harmed:
            found, foreign = next_block(read, behind(read, at, size), size, node, name)
            if found is None:
                _see_foreign(segment, read, at, size, harmed)
                return True
            try:  # it was being written when it was looked at first
                block = block_at(read, at, size, True, node, name)
            except Corrupt as error:
                harm = Harm(at, found.position - at, str(error), foreign)
                segment.harms.append((segment.end, harm))
                block = found
        segment.add(block, 1 << 63)
        segment.size = block.position + block.size
        sure = True
    return True


def _see_foreign(
    segment: Segment, read: Callable[[int, int], bytes], at: int, size: int, why: str
) -> None:
    """Note the whole blocks of another format that a segment ends with: they are no torn tail."""
    begin, end = at, segment.end
    while at < size:
        base, stop, length = foreign_span(read(at, HEADER_SIZE))
        if base != end or len(data := read(at, length)) < length or not verify(data):
            break
        at, end = at + length, stop
    known = max(segment.end, segment.foreign)
    if end > known:
        segment.harms.append((known, Harm(begin, at - begin, why, True)))
        segment.foreign = end


def _is_there(block: Block, read: Callable[[int, int], bytes]) -> bool:
    """Whether what lies where a block was is still that block."""
    data = read(block.position, block.size)
    try:
        return verify(data) and parse_header(data)[4:] == block[4:]
    except Corrupt:
        return False  # of a format that is not known


def _ahead(node: str, segment: Segment, read: Callable[[int, int], bytes]) -> bool:
    """Take the blocks that follow as they should, of one read; whether there were any.

    Small blocks are as many as events: two reads for each of them took longer than all the rest.
    """
    data = memoryview(read(segment.size, AHEAD))
    at = 0
    while True:
        base, _, size = span(data, at)
        piece = data[at : at + size]
        if base != segment.end or len(piece) < size or not verify(piece):
            return at > 0
        try:
            block = parse_header(piece, node, segment.name, segment.size)
        except Corrupt:
            return at > 0
        segment.add(block, 1 << 63)
        segment.size += size
        at += size
