"""Writes one node's log: blocks at the end of the newest segment, and nothing anywhere else.

    open    what was done to the newest segment? -> `recovery` -> go on at the next offset
    write   reserve offsets ahead -> roll to a new segment when it is time -> append (-> fsync)
            -> mark how far it came
    close   sync, note the end

Offsets are never given twice. After a crash of the process the file holds what was written, so
the log goes on where it ends. After a crash of the machine it may have lost blocks that somebody
had read already: the log then goes on behind the offsets reserved ahead, and a gap covers what is
between. The id of this boot of the machine tells one from the other. If the file holds less than
was marked, or is harmed, it is the same: on behind what was reserved, with gaps that say which
events are missing.

What a stop cannot write, because the disk is full or too slow, is noted in place in the file
`lock`: up to which offset events had come. The next start writes a gap up to there.

Promise: `write` leaves whole blocks only, whatever fails. A segment is synced before the next one
exists, so only the newest can be torn. Not for the reactor's thread: it waits for the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from mqttd.pipeline.log.beside import Beside
from mqttd.pipeline.log.blocks import FLAG_DAMAGE, FLAG_SKIP, encode_gap
from mqttd.pipeline.log.files import (
    LOCK,
    NAME,
    STATE_FILE,
    Damaged,
    aside,
    base_of,
    check_place,
    create_log,
    note_deleted,
    read_json,
    reserve,
    reserved_by,
    segment_name,
    segments_in,
    set_aside_in,
    strangers_in,
    sync_directory,
    write_json,
)
from mqttd.pipeline.log.groups import readers, standing
from mqttd.pipeline.log.merge import Held, held_by
from mqttd.pipeline.log.recovery import (
    GIVEN,
    Found,
    boot_id,
    examine,
    read_mark,
    repair,
    write_mark,
)
from mqttd.pipeline.log.retention import Retention, delete_expired

__all__ = ["RESERVE", "Encoded", "Writer"]

#: Offsets reserved at a time.
RESERVE: Final = 1 << 20
#: Blocks handed to the kernel in one call.
MOST_AT_ONCE: Final = 64
#: And parts of them: what every system takes (IOV_MAX).
_MOST_PARTS: Final = 1024
#: What is a number in state.json.
_NUMBERS: Final = ("epoch", "reserved", "end", "first", "deleted")
#: Blocks of a segment: a new reader looks at each of the newest one, and they are merged only when
#: it is closed.
MOST_BLOCKS: Final = 16_384
#: Bytes of loose blocks for which a segment is closed in the first quiet moment.
LOOSE_SOON: Final = 4 << 20
#: Why events are lost that a stop has not written.
UNWRITTEN: Final = "not written before the broker stopped"
#: Offsets that one gap covers.
MOST_LOST: Final = (1 << 32) - 1


class Encoded(NamedTuple):
    """A block ready to be written: its bytes, or the first of them and what follows.

    loose: see `FLAG_LOOSE`.
    """

    base: int
    rows: int
    data: bytes
    more: Sequence[bytes] = ()
    gap: bool = False
    loose: bool = False

    @property
    def parts(self) -> list[bytes]:
        """All of its bytes, none of them empty."""
        return [part for part in (self.data, *self.more) if part]

    @property
    def size(self) -> int:
        """How many they are."""
        return len(self.data) + sum(map(len, self.more))


class Writer:
    """The log of `node` below `path`, opened for writing; one writer at a time.

    segment_bytes, segment_seconds: a segment is closed when it has one of them, or `MOST_BLOCKS`;
    and sooner where that lets what was left for later be compressed (`rest`).
    fsync: every `write` waits until the disk has it.
    boot: see `recovery.boot_id`; clock: seconds since 1970.

    Raises OSError if the directory cannot be used, BlockingIOError if another process writes
    there, ValueError for files of a format that this program does not know: they stay as they are.
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
        #: Whether a segment that ends at this offset may be deleted: it may have to be safe first.
        self.may_go: Callable[[int], bool] = lambda end: True
        #: Told of each segment that is closed: its name, and what it has.
        self.closed: Callable[[str, Held], None] = lambda name, held: None
        #: Parts of the log that nobody writes any more, and that we clean up: the same of each.
        self.left: dict[str, Callable[[int], bool]] = {}
        self.log = create_log(path, node)
        self._beside = Beside(path, node, self.log)
        self.folder = os.path.join(path, node)
        os.makedirs(self.folder, mode=0o750, exist_ok=True)
        self._lock = os.open(os.path.join(self.folder, LOCK), os.O_CREAT | os.O_RDWR, 0o640)
        #: Bytes of a torn tail that were cut when the log was opened.
        self.cut = 0
        #: What was found to be wrong, empty if nothing was; files that are kept because of such.
        self.damage = ""
        self.set_aside = 0
        #: Files in `groups/` that are no reader's, and why, as it was looked last.
        self.skipped: list[str] = []
        #: The offset the next block must have.
        self.next = 0
        #: Segments deleted since the log was opened, and their bytes.
        self.deleted_segments = 0
        self.deleted_bytes = 0
        self._fd = -1
        #: Held while `_lock` is closed, or written to by another thread than the log's.
        self._ending = threading.Lock()
        self._size = 0
        self._born = clock()
        self._blocks = 0
        self._name = ""
        self._has = Held()
        self._reserved = 0
        #: What log.json has of it.
        self._noted = 0
        #: The first offset there was when it was looked last.
        self._first = 0
        #: What is before it was deleted by retention.
        self._deleted = 0
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
        self._find_end()
        self._leap(read_mark(self._lock, GIVEN) or 0, UNWRITTEN)
        if given := self._beside.given(self._reserved):
            self.damage = "an older copy of the log was put back"
            self._leap(given, self.damage)
        self._save()
        write_mark(self._lock, self.next)
        write_mark(self._lock, 0, GIVEN)

    def _find_end(self) -> None:
        """Go on in the newest segment, or begin one, and behind what may have been given."""
        state = self._state()
        known = state or {}
        self.epoch = (int(known.get("epoch", 0)) + 1) & 0xFFFFFFFF
        self._reserved = max(int(known.get("reserved", 0)), reserved_by(self.path, self.node))
        same_boot = bool(self._boot) and known.get("boot") == self._boot
        closed_at = int(known.get("end", -1))
        mark = read_mark(self._lock) if same_boot and closed_at < 0 else None
        # How far it had come, None if nobody knows.
        came = closed_at if closed_at >= 0 else mark
        segments = self._own_segments()
        self._first = base_of(segments[0]) if segments else int(known.get("first", 0))
        # Older writers have not noted it: then what is missing counts as deleted.
        self._deleted = min(int(known.get("deleted", self._first)), self._first)
        self.set_aside = len(set_aside_in(self.folder))
        if not segments:
            self.next = self._first
            self._roll()
            if self.next < max(closed_at, self._reserved):
                self.damage = "its segments are gone"
                self._go_on(came, self.damage)
            return
        found = examine(os.path.join(self.folder, segments[-1]))
        kept = ""
        if found.harmed or (came is not None and found.end < came and found.size > found.whole):
            kept = repair(found, self.epoch, int(self.clock() * 1e6))
            self.set_aside += 1
        self._continue(found, not kept)
        if kept or (came is not None and found.end < came):
            self.damage = (
                f"{segments[-1]} is damaged, and kept as {kept}" if kept
                else f"events from {found.end} on are gone"
            )  # fmt: skip
            self._go_on(came, self.damage)
        elif state is None and self._reserved:
            self.damage = "state.json is gone or damaged"
            self._leap(self._reserved, self.damage, FLAG_SKIP)
        elif closed_at < 0 and same_boot and mark is None and "log" in known:
            self.damage = "the mark in the file lock is gone or damaged"
            self._leap(self._reserved, self.damage, FLAG_SKIP)
        elif self.next != closed_at and not same_boot:
            self._leap(self._reserved, "the machine stopped")
        elif 0 <= closed_at < self.next:
            self.damage = "state.json is of an earlier time"
            self._leap(self._reserved, self.damage, FLAG_SKIP)

    def _own_segments(self) -> list[str]:
        """The segments in order; what only has the name of one is set aside.

        That is a number that is no offset, or one beyond what was reserved and no block there.
        """
        segments = segments_in(self.folder)
        strangers = strangers_in(self.folder)
        while segments and 0 < self._reserved < base_of(segments[-1]):
            if examine(os.path.join(self.folder, segments[-1])).blocks:
                break
            strangers.append(segments.pop())
        for name in strangers:
            kept = aside(self.folder, name)
            os.rename(os.path.join(self.folder, name), os.path.join(self.folder, kept))
            self.damage = f"{name} is no segment of it, and kept as {kept}"
        return segments

    def _state(self) -> dict[str, Any] | None:
        """What the last writer noted; None if it is not there or harmed."""
        name = os.path.join(self.folder, STATE_FILE)
        try:
            found = read_json(name)
            if all(type(found.get(key, 0)) is int for key in _NUMBERS):
                return found
        except (FileNotFoundError, Damaged):
            pass
        return None

    def _continue(self, found: Found, cut: bool) -> None:
        """Go on in this segment behind its last whole block; what follows that is cut."""
        self._fd = os.open(found.path, os.O_RDWR)
        size = os.fstat(self._fd).st_size
        self._size = found.whole if cut else size
        self.next = found.end
        self._blocks = len(found.blocks)
        self._name = os.path.basename(found.path)
        self._has = held_by(found.blocks)
        if found.blocks:
            self._born = found.blocks[0].first_time / 1e6
        self.cut = size - self._size
        if self.cut:
            os.ftruncate(self._fd, self._size)
            os.fdatasync(self._fd)
        os.lseek(self._fd, self._size, os.SEEK_SET)

    def _go_on(self, came: int | None, why: str) -> None:
        """After damage: events before `came` are missing, those behind it were not given."""
        if came is not None and self.next < came:
            self._gap(came, why, FLAG_DAMAGE)
        self._leap(self._reserved, why, 0 if came is None else FLAG_SKIP)

    def _leap(self, target: int, why: str, kind: int = 0) -> None:
        """Go on at `target`: offsets before it may have been given."""
        if self.next < target:
            self._gap(target, why, kind)

    def _gap(self, end: int, why: str, kind: int) -> None:
        self._reserved = max(self._reserved, end)
        self._save()
        now = int(self.clock() * 1e6)
        while self.next < end:
            base, count = self.next, min(end - self.next, MOST_LOST)
            data = encode_gap(base, count, now, why, self.epoch, kind)
            self.write([Encoded(base, count, data, gap=True)])

    def _save(self, end: int = -1) -> None:
        """Note what is reserved; `end` only when nothing will be written any more."""
        check_place(self.folder, self._lock)
        if self._reserved > self._noted:
            reserve(self.path, self.node, self._reserved, self.log)
            self._beside.note(self._reserved)
            self._noted = self._reserved
        write_json(
            os.path.join(self.folder, STATE_FILE),
            {
                "log": self.log,
                "node": self.node,
                "epoch": self.epoch,
                "boot": self._boot,
                "reserved": self._reserved,
                "end": end,
                "first": self._first,
                "deleted": self._deleted,
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
            if self._due() or self._gone():
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
        return (
            self._size >= self.segment_bytes
            or self._blocks >= MOST_BLOCKS
            or self.clock() - self._born >= self.segment_seconds
        )

    def _gone(self) -> bool:
        """Whether somebody has taken away the file that is written to."""
        return not os.fstat(self._fd).st_nlink

    def _append(self, group: Sequence[Encoded]) -> None:
        waiting: deque[bytes | memoryview] = deque()
        for block in group:
            waiting += block.parts
        done = 0
        try:
            while waiting:
                count = os.writev(self._fd, list(islice(waiting, _MOST_PARTS)))
                done += count
                while waiting and count >= len(waiting[0]):
                    count -= len(waiting.popleft())
                if count:
                    waiting[0] = memoryview(waiting[0])[count:]
        finally:
            before = self.next
            for block in group:
                size = block.size
                if size > done:
                    break
                done -= size
                self._size += size
                self._blocks += 1
                self.next = block.base + block.rows
                if not block.gap:
                    self._has = self._has.more(block.rows, size, block.loose)
            if waiting:
                os.ftruncate(self._fd, self._size)
                os.lseek(self._fd, self._size, os.SEEK_SET)
            if self.next > before:
                write_mark(self._lock, self.next)

    def _roll(self) -> None:
        """Close the segment and begin the next; clean up behind it."""
        check_place(self.folder, self._lock)
        if self._fd >= 0:
            os.fdatasync(self._fd)
        name = segment_name(self.next)
        path = os.path.join(self.folder, name)
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o640)
        if self._fd >= 0:
            os.close(self._fd)
            self.closed(self._name, self._has)
        self._fd, self._size, self._blocks, self._born = fd, 0, 0, self.clock()
        self._name, self._has = name, Held()
        sync_directory(self.folder)
        self.clean_up()

    def rest(self, long: bool) -> None:
        """Little is written, or for long nothing: what was left for later waits no longer.

        Only what is written to no more is written again. So the segment is closed, where it has
        many loose blocks, or nothing follows them.
        """
        if self._has.worth and self._has.loose >= (1 if long else LOOSE_SOON):
            self._roll()

    def clean_up(self) -> None:
        """Close a segment that is old enough, delete those that are past retention."""
        if self._due() or self._gone():
            self._roll()
            return
        self.set_aside = len(set_aside_in(self.folder))
        now = self.clock()
        skipped: list[str] = []
        groups = standing(readers(self.path, skipped=skipped)).values()
        self.skipped = skipped
        for segment in delete_expired(
            self.path, self.log, self.node, self.next, self.retention, now, groups, self.may_go,
            self._note_deleted,
        ):  # fmt: skip
            self.deleted_segments += 1
            self.deleted_bytes += segment.size
            self._first = segment.end
        for node, may_go in self.left.items():
            note = partial(note_deleted, os.path.join(self.path, node))
            with contextlib.suppress(BlockingIOError):  # somebody writes it after all
                delete_expired(
                    self.path, self.log, node, 0, self.retention, now, groups, may_go, note
                )

    def _note_deleted(self, offset: int) -> None:
        self._deleted = offset
        with contextlib.suppress(OSError):  # a disk that is full: what is deleted makes room
            self._save()

    def give_up(self, offset: int) -> None:
        """Events before `offset` may not be written any more: note it, from any thread."""
        with self._ending:
            if self._lock >= 0:
                write_mark(self._lock, offset, GIVEN)
                os.fdatasync(self._lock)

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
        with self._ending:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1
