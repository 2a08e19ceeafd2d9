"""A finished segment becomes smaller: python -m mqttd.pipeline.log.merge FROM TO HOW

    | 20 | 20 | 20 | gap | 20 | 20 | ...  -->  | 60 | gap | 40 ... |      the same events, offsets

What comes slowly is written in small blocks, a few dozen events each; a reader pays for every block
and they compress badly. So once nothing is written to a segment any more, a process of its own
writes it again with blocks of up to 65,536 events, compressed harder. What comes quickly is written
in large blocks whose payloads are left as they came (`FLAG_LOOSE`): they are compressed here. The
writer puts the new file in the place of the old one (`mqttd.pipeline.log.background`).

Promise: every event keeps its offset and all else; a file that is harmed is left as it is. A reader
that had planned to read the old blocks gets the same events of the new ones (`reader.salvage`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from mqttd.pipeline.log.blocks import Block, Taken, is_packed, parse_header
from mqttd.pipeline.log.child import begin
from mqttd.pipeline.log.decode import rows_of
from mqttd.pipeline.log.packed import START, Columns, joined, pack, taken_of, unpacked_size
from mqttd.pipeline.log.scan import Harm, walk
from mqttd.pipeline.log.zstd import Codec, zstd

__all__ = ["Held", "held_by", "merge", "worth"]

#: Events and bytes (as they are written) of a merged block, about.
MOST_ROWS: Final = 65_536
MOST_BYTES: Final = 1 << 20
#: And bytes as they are unpacked: payloads may compress to nothing, and whoever reads a block has
#: all of it in memory.
MOST_UNPACKED: Final = 16 << 20
#: Blocks of a segment that is worth it, and events and bytes in its blocks on average at most.
FEWEST_BLOCKS: Final = 32
FEW_ROWS: Final = 1024
FEW_BYTES: Final = MOST_BYTES // 8
#: Or whose loose blocks are one in so many bytes.
LOOSE: Final = 4
LEVEL: Final = 3
#: For loose blocks: text takes two thirds of the CPU, and half of what Parquet takes with snappy.
LOOSE_LEVEL: Final = 1
_EPOCH_AT: Final = 48


class Held(NamedTuple):
    """What a segment has besides gaps; `loose` of its bytes are in blocks with `FLAG_LOOSE`."""

    blocks: int = 0
    events: int = 0
    size: int = 0
    loose: int = 0

    def more(self, events: int, size: int, loose: bool) -> Held:
        """With one more block."""
        return Held(
            self.blocks + 1,
            self.events + events,
            self.size + size,
            self.loose + (size if loose else 0),
        )

    @property
    def small(self) -> bool:
        """Whether its blocks should be merged."""
        return (
            self.blocks >= FEWEST_BLOCKS
            and self.events < FEW_ROWS * self.blocks
            and self.size < FEW_BYTES * self.blocks
        )

    @property
    def worth(self) -> bool:
        """Whether it should be written again: for small blocks, or for loose ones."""
        return self.small or 0 < self.size <= LOOSE * self.loose


def held_by(blocks: Iterable[Block]) -> Held:
    """What these blocks are together."""
    held = Held()
    for block in blocks:
        if not block.gap:
            held = held.more(block.rows, block.size, block.loose)
    return held


def worth(path: str) -> bool:
    """Whether a finished segment should be written again."""
    return held_by(_blocks(path, False)).worth


def merge(source: str, target: str, codec: Codec | None) -> bool:
    """Write the segment `source` to `target` with large blocks.

    False if it is not whole, or would become no other.
    """
    try:
        blocks = list(_blocks(source, True))
    except ValueError:
        return False
    with open(source, "rb") as old:

        def read(block: Block) -> bytes:
            old.seek(block.position)
            return old.read(block.size)

        def unpacked(block: Block) -> int:
            old.seek(block.position)
            start = old.read(START)
            return unpacked_size(start) if is_packed(start) else block.size

        groups = list(_groups(blocks, unpacked))
        if len(groups) == len(blocks) and not any(block.loose for block in blocks):
            return False
        _write(groups, read, target, codec)
    about = os.stat(source)
    os.chmod(target, about.st_mode & 0o777)
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))
    return True


def _write(
    groups: Sequence[list[Block]],
    read: Callable[[Block], bytes],
    target: str,
    codec: Codec | None,
) -> None:
    with open(target, "wb") as new:
        for group in groups:
            if len(group) == 1 and not group[0].loose:
                new.write(read(group[0]))
                continue
            found = [read(block) for block in group]
            epoch = int.from_bytes(found[-1][_EPOCH_AT : _EPOCH_AT + 4], "little")
            taken = joined([_part(data) for data in found])
            new.write(pack(taken, group[0].base, epoch, codec))
        new.flush()
        os.fsync(new.fileno())


def _blocks(path: str, deep: bool) -> Iterator[Block]:
    """The blocks of a segment that are there as written; raises ValueError at anything else."""
    with open(path, "rb", buffering=0) as file:
        fd = file.fileno()
        end = -1
        for one in walk(lambda at, count: os.pread(fd, count, at), 0, os.fstat(fd).st_size, deep):
            if isinstance(one, Harm) or (end >= 0 and one.base != end):
                raise ValueError(f"{path}: not whole")
            end = one.end
            yield one


def _groups(blocks: Sequence[Block], unpacked: Callable[[Block], int]) -> Iterator[list[Block]]:
    """Blocks that become one; a gap stays by itself."""
    group: list[Block] = []
    rows = size = large = 0
    for block in blocks:
        becomes = 0 if block.gap else unpacked(block)
        if group and (
            block.gap
            or group[0].gap
            or rows + block.rows > MOST_ROWS
            or size + block.size > MOST_BYTES
            or large + becomes > MOST_UNPACKED
        ):
            yield group
            group, rows, size, large = [], 0, 0, 0
        group.append(block)
        rows += block.rows
        size += block.size
        large += becomes
    if group:
        yield group


def _part(data: bytes) -> Taken:
    if not is_packed(data):
        return taken_of(list(rows_of(data)))
    head = parse_header(data)
    return Taken(Columns(data).all(), head.rows, head.mask, head.first_time, head.last_time)


def main(arguments: Sequence[str]) -> int:
    """The process: 0 if the new file is there, 3 if there is nothing to do."""
    source, target, how = arguments
    held = held_by(_blocks(source, False))
    if not held.worth:
        return 3
    level = LEVEL if held.small else LOOSE_LEVEL
    return 0 if merge(source, target, zstd(level) if how == "zstd" else None) else 3


if __name__ == "__main__":
    begin()
    sys.exit(main(sys.argv[1:]))
