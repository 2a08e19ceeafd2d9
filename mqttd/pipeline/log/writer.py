"""Writes one node's log: blocks at the end of the newest segment, and nothing anywhere else.

    open    cut a torn tail by checksum -> go on at the next offset
    write   reserve offsets ahead -> roll to a new segment when it is time -> append (-> fsync)
    close   sync, note the end

Offsets are never given twice. After a crash of the process the file holds what was written, so
the log goes on where it ends. After a crash of the machine it may have lost blocks that somebody
had read already: the log then goes on behind the offsets reserved ahead, and a gap covers what is
between. The id of this boot of the machine tells one from the other.

Promise: `write` leaves whole blocks only, whatever fails. A segment is synced before the next one
exists, so only the newest can be torn. Not for the reactor's thread: it waits for the disk.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mqttd.pipeline.log.blocks import HEADER_SIZE, Corrupt, encode_gap, parse_header, verify
from mqttd.pipeline.log.files import (
    NAME,
    STATE_FILE,
    base_of,
    create_log,
    read_json,
    segment_name,
    segments_in,
    sync_directory,
    write_json,
)
from mqttd.pipeline.log.retention import Retention, Segment, expired, slowest

__all__ = ["RESERVE", "Encoded", "Writer", "boot_id"]

#: Offsets reserved at a time.
RESERVE: Final = 1 << 20
#: Blocks handed to the kernel in one call.
MOST_AT_ONCE: Final = 64


class Encoded(NamedTuple):
    """A block ready to be written."""

    base: int
    rows: int
    data: bytes


def boot_id() -> str:
    """A text that differs after each start of the machine; empty where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class Writer:
    """The log of `node` below `path`, opened for writing; one writer at a time.

    segment_bytes, segment_seconds: a segment is closed when it has one of them.
    fsync: every `write` waits until the disk has it.
    boot: see `boot_id`; clock: seconds since 1970.

    Raises OSError if the directory cannot be used, BlockingIOError if another process writes
    there, ValueError for files that are not a log's.
    """

    def __init__(
        self,
        path: str,
        node: str,
        segment_bytes: int = 64 << 20,
        segment_seconds: float = 3600.0,
        fsync: bool = False,
        retention: Retention | None = None,
        boot: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not NAME.match(node):
            raise ValueError(f"node {node!r}: expected letters, digits and _ . @ -, at most 100")
        self.path = path
        self.node = node
        self.segment_bytes = segment_bytes
        self.segment_seconds = segment_seconds
        self.fsync = fsync
        self.retention = retention or Retention()
        self.clock = clock
        self.log = create_log(path)
        self.folder = os.path.join(path, node)
        os.makedirs(self.folder, mode=0o750, exist_ok=True)
        self._lock = os.open(os.path.join(self.folder, "lock"), os.O_CREAT | os.O_RDWR, 0o640)
        #: Bytes of a torn tail that were cut when the log was opened.
        self.cut = 0
        #: The offset the next block must have.
        self.next = 0
        #: Segments deleted since the log was opened, and their bytes.
        self.deleted_segments = 0
        self.deleted_bytes = 0
        self._fd = -1
        self._size = 0
        self._born = clock()
        self._reserved = 0
        self._boot = boot_id() if boot is None else boot
        self.epoch = 0
        try:
            self._take_lock()
            self._open()
        except BaseException:
            self._let_go()
            raise

    # -- open

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(
                error.errno, "another process writes this event log", self.folder
            ) from None

    def _open(self) -> None:
        state_file = os.path.join(self.folder, STATE_FILE)
        state = read_json(state_file) if os.path.exists(state_file) else {}
        segments = segments_in(self.folder)
        if segments:
            self._open_segment(segments[-1])
        self.epoch = (int(state.get("epoch", 0)) + 1) & 0xFFFFFFFF
        self._reserved = int(state.get("reserved", 0))
        same_boot = bool(self._boot) and state.get("boot") == self._boot
        closed_at = int(state.get("end", -1))
        if not segments:
            self.next = max(closed_at, self._reserved if state else 0)
            self._roll()
        elif self.next != closed_at and not same_boot and self.next < self._reserved:
            base, missing = self.next, self._reserved - self.next
            self._save()
            now = int(self.clock() * 1e6)
            gap = encode_gap(base, missing, now, "the machine stopped", self.epoch)
            self.write([Encoded(base, missing, gap)])
            return
        self._save()

    def _open_segment(self, name: str) -> None:
        """Find the end of the newest segment, and cut what is no whole block behind it."""
        path = os.path.join(self.folder, name)
        self._fd = os.open(path, os.O_RDWR)
        self.next = base_of(name)
        size = os.fstat(self._fd).st_size
        at = 0
        while at < size:
            try:
                head = parse_header(os.pread(self._fd, HEADER_SIZE, at))
            except Corrupt:
                break
            data = os.pread(self._fd, head.size, at)
            if len(data) < head.size or not verify(data) or head.base != self.next:
                break
            if at == 0:
                self._born = head.first_time / 1e6
            self.next = head.end
            at += head.size
        self.cut = size - at
        if self.cut:
            os.ftruncate(self._fd, at)
            os.fdatasync(self._fd)
        os.lseek(self._fd, at, os.SEEK_SET)
        self._size = at

    def _save(self, end: int = -1) -> None:
        """Note what is reserved; `end` only when nothing will be written any more."""
        write_json(
            os.path.join(self.folder, STATE_FILE),
            {
                "node": self.node,
                "epoch": self.epoch,
                "boot": self._boot,
                "reserved": self._reserved,
                "end": end,
            },
        )

    # -- write

    def write(self, blocks: Sequence[Encoded]) -> None:
        """Append blocks, the first of which has offset `next`.

        Raises OSError when the disk does not take them: those before `next` are in the log.
        With `fsync`, what is in the log is on the disk only when a later call succeeds, which
        may be one without blocks.
        """
        at = 0
        while at < len(blocks):
            first = blocks[at]
            if first.base != self.next:
                raise ValueError(f"{self.node}: block at {first.base}, expected {self.next}")
            if self._due():
                self._roll()
            group = blocks[at : at + MOST_AT_ONCE]
            last = group[-1]
            if last.base + last.rows > self._reserved:
                before = self._reserved
                self._reserved = last.base + last.rows + RESERVE
                try:
                    self._save()
                except OSError:
                    self._reserved = before
                    raise
            self._append(group)
            at += len(group)
        if self.fsync:
            os.fdatasync(self._fd)

    def _due(self) -> bool:
        if not self._size:
            return False
        return self._size >= self.segment_bytes or self.clock() - self._born >= self.segment_seconds

    def _append(self, group: Sequence[Encoded]) -> None:
        waiting = [memoryview(block.data) for block in group]
        done = 0
        try:
            while waiting:
                count = os.writev(self._fd, waiting)
                done += count
                while waiting and count >= len(waiting[0]):
                    count -= len(waiting.pop(0))
                if count:
                    waiting[0] = waiting[0][count:]
        finally:
            for block in group:
                if len(block.data) > done:
                    break
                done -= len(block.data)
                self._size += len(block.data)
                self.next = block.base + block.rows
            if waiting:
                os.ftruncate(self._fd, self._size)
                os.lseek(self._fd, self._size, os.SEEK_SET)

    def _roll(self) -> None:
        """Close the segment and begin the next; clean up behind it."""
        if self._fd >= 0:
            os.fdatasync(self._fd)
        name = os.path.join(self.folder, segment_name(self.next))
        fd = os.open(name, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o640)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._born = fd, 0, self.clock()
        sync_directory(self.folder)
        self.clean_up()

    def clean_up(self) -> None:
        """Close a segment that is old enough, delete those that are past retention."""
        if self._due():
            self._roll()
            return
        names = segments_in(self.folder)
        segments = []
        for name, end in zip(names, [*map(base_of, names[1:]), self.next], strict=True):
            about = os.stat(os.path.join(self.folder, name))
            segments.append(Segment(name, end, about.st_size, about.st_mtime))
        now = self.clock()
        read = slowest(self.path, self.node, self.retention, now)
        for segment in expired(segments, self.retention, now, read):
            os.unlink(os.path.join(self.folder, segment.name))
            self.deleted_segments += 1
            self.deleted_bytes += segment.size

    def close(self) -> None:
        """Sync and note the end; a machine that stops later loses nothing."""
        if self._fd < 0:
            return
        try:
            os.fdatasync(self._fd)
            self._save(self.next)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
