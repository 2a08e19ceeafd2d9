"""The broker's end of the log: events go in one by one, a thread writes them in blocks.

    columns --16,384 or 20 ms--> queue, bounded --> thread: pack --> Writer --> disk
         reactor's thread            |
                                     full: drop (a gap) | block (`congested`)

Offsets are given when a block is made; events that are dropped keep theirs, and a gap takes their
place in the log. `when_written(offset, f)` calls `f` once everything before `offset` is written (or
synced, as the writer does): what an acknowledgement waits for.

Promise: an event costs what `Columns` says, a block about 0.05 ms, and neither waits for
anything. The queue holds at most `queue_bytes` and one block; with ``overflow="block"`` twice that,
because publishers stop a little later than they are told. When the disk fails, blocks wait in the
queue and are tried again. What a stop cannot write is counted (`unwritten`), and the next start
puts a gap in its place.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal

from mqttd.pipeline.log.background import Parts
from mqttd.pipeline.log.blocks import Taken, encode_gap, is_loose
from mqttd.pipeline.log.columns import Columns
from mqttd.pipeline.log.pace import Pace
from mqttd.pipeline.log.packed import parts
from mqttd.pipeline.log.writer import Encoded, Writer
from mqttd.pipeline.log.zstd import Codec

__all__ = ["Appender", "Overflow"]

Overflow = Literal["drop", "block"]

#: Seconds between two looks at retention.
CLEAN_UP_EVERY: Final = 30.0
#: Seconds that a disk which does not follow has to take the note of how much it has not.
NOTE_WITHIN: Final = 0.5
#: And between two looks at what is done in the background.
LOOK_EVERY: Final = 5.0
LOOK_SOON: Final = 0.25
#: Seconds after the block before within which one comes in haste: who waits for them to be written
#: sends the next ones then.
CLOSE: Final = 0.005
#: So many bytes a second, or more, are no quiet moment.
BUSY: Final = 10 << 20
#: Seconds without an event after which nothing is expected to follow.
LONG: Final = 60.0


class _Waiting:
    """A block that waits to be written: its thread packs it, once."""

    __slots__ = ("base", "gap", "parts", "rows", "size", "taken")

    def __init__(
        self, base: int, rows: int, size: int, taken: Taken | None, data: bytes = b""
    ) -> None:
        self.base = base
        self.rows = rows
        self.size = size
        self.taken = taken
        self.gap = taken is None
        self.parts = [data]

    def packed(
        self, epoch: int, codec: Codec | None, quick: Codec | None, loose: bool, hasty: bool
    ) -> Encoded:
        if self.taken is not None:
            self.parts = parts(self.taken, self.base, epoch, codec, quick, loose, hasty)
            self.taken = None
        first = self.parts[0]
        later = not self.gap and is_loose(first)
        return Encoded(self.base, self.rows, first, self.parts[1:], self.gap, later)


class Appender:
    """Takes events in one thread, and has them written by another.

    writer: opened; it is closed by `stop`.
    later: ``later(seconds, f)`` calls `f` in this thread; what it gives can be cancelled.
    soon: ``soon(f)`` does so as soon as possible, and may be called from the other one.
    changed: told when `congested` or `failing` is not what it was.
    retry_every: seconds between two tries to write to a disk that fails.
    codec: compresses columns, in the other thread; None does not. quick, loose: see `packed.parts`.
    background: work on finished segments, which that thread looks after.
    """

    def __init__(
        self,
        writer: Writer,
        later: Callable[[float, Callable[[], None]], Any],
        soon: Callable[[Callable[[], None]], object],
        block_events: int = 16384,
        flush_after: float = 0.02,
        queue_bytes: int = 64 << 20,
        overflow: Overflow = "drop",
        changed: Callable[[], None] = lambda: None,
        retry_every: float = 1.0,
        codec: Codec | None = None,
        quick: Codec | None = None,
        background: Parts | None = None,
        loose: bool = False,
    ) -> None:
        self.writer = writer
        self.block_events = block_events
        self.flush_after = flush_after
        self.queue_bytes = queue_bytes
        self.overflow: Overflow = overflow
        self.changed = changed
        self.retry_every = retry_every
        self.codec = codec
        self.quick = quick
        self.loose = loose
        self.background = background
        #: What went in, what was dropped and how often the disk failed, since the start.
        self.appended = 0
        self.dropped = 0
        self.failures = 0
        self.written_events = 0
        self.written_bytes = 0
        #: Events are being dropped, from the first one until the queue is half empty again; and
        #: how many were, this time or the last.
        self.losing = False
        self.lost = 0
        #: The offset behind what is written.
        self.written = writer.next
        #: How many events a stop has not written.
        self.unwritten = 0
        #: Why the disk does not take anything, empty if it does; and what the thread knows.
        self.failing = ""
        self._fails = ""
        #: The queue is over its bound and publishers should wait (``overflow="block"``).
        self.congested = False
        self._later = later
        self._soon = soon
        #: What is not in a block yet: events are added here.
        self.columns = Columns(block_events, self._started, self.flush)
        self.append = self.columns.append
        self._base = writer.next
        self._timer: Any = None
        self._lost = 0
        self._lost_at = 0
        self._lost_why = ""
        #: Whose acknowledgements wait, group by group; and how the other thread wakes this one.
        self.pace: Pace | None = None
        self.wake: Callable[[], object] = lambda: soon(self.progress)
        #: How far of `written` this thread has told.
        self._told_of = writer.next
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()
        # Between the threads, without a lock: who holds one may not get the processor for long.
        self._queue: deque[_Waiting] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        #: Bytes that were put into the queue; and that were written, counted by the other thread.
        self._put_bytes = 0
        self._done_bytes = 0
        #: Of the queue, what the other thread has taken out and not written yet.
        self._taken: deque[_Waiting] = deque()
        self._stopping = False
        self._told = False
        self._thread = threading.Thread(target=self._run, name="event log", daemon=True)
        self._thread.start()

    # -- in the reactor's thread

    @property
    def next(self) -> int:
        """The offset the next event gets."""
        return self._base + self.columns.count

    @property
    def full(self) -> bool:
        """Whether what comes now would be dropped."""
        return self.queued_bytes > (2 if self.overflow == "block" else 1) * self.queue_bytes

    @property
    def trouble(self) -> str:
        """Why nothing is written now, as the other thread knows it; may be empty."""
        return self._fails

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._put_bytes - self._done_bytes

    def _started(self) -> None:
        if self._timer is None:
            self._timer = self._later(self.flush_after, self._flush_in_time)

    def _flush_in_time(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Hand what is there to the thread, as a block."""
        end = self.next
        self._hand_over()
        if self.pace is not None and self.pace.gathering.waits():
            gathering = self.pace.gathering
            gathering.close(end)
            if self.written >= end:  # nobody has to write anything for these
                gathering.keep_soon(end)

    def _hand_over(self) -> None:
        if self.columns.count:
            taken = self.columns.take()
            self.appended += taken.rows
            if self.full:
                self._lose(taken)
                return
            self._put_gap()
            self._put(_Waiting(self._base, taken.rows, taken.size, taken))
            if self.overflow == "block" and self.queued_bytes > self.queue_bytes:
                self._congest(True)
                if self.queued_bytes > 2 * self.queue_bytes:
                    self.changed()  # full
        elif self.queued_bytes <= self.queue_bytes:
            self._put_gap()

    def _put(self, block: _Waiting) -> None:
        self._base = block.base + block.rows
        self._put_bytes += block.size
        self._queue.append(block)
        self._ring()

    def _ring(self) -> None:
        """Wake the other thread: it looks at the queue after it has taken what is in the bell."""
        if self._bell.empty():
            self._bell.put(None)

    def _lose(self, taken: Taken) -> None:
        if not self._lost:
            self._lost_at = taken.first
            self._lost_why = self.failing or "queue full"
        if not self.losing:
            self.losing = True
            self.lost = 0
        self._lost += taken.rows
        self.lost += taken.rows
        self.dropped += taken.rows
        self.changed()

    def _put_gap(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            data = encode_gap(self._base, lost, self._lost_at, self._lost_why, self.writer.epoch)
            self._put(_Waiting(self._base, lost, len(data), None, data))
            self.changed()

    def _congest(self, now: bool) -> None:
        if self.congested is not now:
            self.congested = now
            self.changed()

    def when_written(self, offset: int, f: Callable[[], None]) -> None:
        """Call `f` in this thread when all events before `offset` are written; it may be at once.

        Offsets are given in rising order, none beyond `next`.
        """
        if self.written >= offset:
            f()
            return
        self._waiters.append((offset, f))
        if self.written >= offset:
            self._tell()

    @property
    def waiters(self) -> int:
        """How many wait for something to be written."""
        return len(self._waiters) + (0 if self.pace is None else len(self.pace.gathering))

    def idle(self) -> bool:
        """Whether all that was handed over is written, and who waited for it was told."""
        return self._told_of >= self._base

    def _failed(self) -> None:
        """The disk has begun to fail, or has ended it."""
        self.failing = self._fails
        self.changed()

    def progress(self) -> None:
        """The thread has written something, or failed to."""
        self._told = False
        self._told_of = written = self.written
        waiters = self._waiters
        while waiters and waiters[0][0] <= written:
            waiters.popleft()[1]()
        if self.pace is not None:
            self.pace.gathering.release(written)
            self.pace.written()
        if self.queued_bytes * 2 < self.queue_bytes:
            self._congest(False)
            if self._lost and not self.columns.count:
                self._put_gap()
            if self.losing and not self._lost:
                self.losing = False
                self.changed()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self.wake()

    def stop(self) -> None:
        """Hand over what is left; the thread writes it, closes the writer and ends. See `join`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.flush()
        self._put_gap()
        self._stopping = True
        self._ring()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread's end (elsewhere than in the reactor's); True if it has ended.

        If it has not, the process may end before everything is written: that is noted.
        """
        self._thread.join(timeout)
        if not self._thread.is_alive():
            return True
        end = self._base
        self.unwritten = end - self.writer.next
        # The disk may answer nobody any more.
        noting = threading.Thread(target=self._give_up, args=(end,), daemon=True)
        noting.start()
        noting.join(NOTE_WITHIN)
        return False

    # -- in the thread of its own

    def _run(self) -> None:
        clean_up_at = time.monotonic() + CLEAN_UP_EVERY
        looked_at = time.monotonic()
        look_at = looked_at + LOOK_EVERY
        wrote_at = looked_at
        last = looked_at
        seen = 0
        wait = LOOK_EVERY
        while True:
            self._wait(wait)
            stopping = self._stopping  # before the queue is looked at: nothing comes behind it
            while self._queue:
                self._taken.append(self._queue.popleft())
            blocks = list(self._taken)
            error: Any = None
            try:
                if blocks or self._fails:
                    epoch = self.writer.epoch
                    hasty = time.monotonic() - last < CLOSE
                    self.writer.write(
                        [
                            block.packed(epoch, self.codec, self.quick, self.loose, hasty)
                            for block in blocks
                        ]
                    )
                    last = time.monotonic()
                if self.background is not None and time.monotonic() >= look_at:
                    now = time.monotonic()
                    quiet = self.written_bytes - seen < BUSY * (now - looked_at)
                    if self.written_bytes != seen:
                        wrote_at = now
                    looked_at, seen = now, self.written_bytes
                    if quiet and self.codec is not None:
                        self.writer.rest(now - wrote_at >= LONG)
                    self.background.step(quiet)
                    every = LOOK_SOON if self.background.busy else LOOK_EVERY
                    look_at = time.monotonic() + every
                if time.monotonic() >= clean_up_at:
                    clean_up_at = time.monotonic() + CLEAN_UP_EVERY
                    before = self.writer.set_aside
                    self.writer.clean_up()
                    if self.writer.set_aside != before or self.writer.skipped:
                        self._soon(self.changed)
            except Exception as caught:  # a full disk, a disk gone: whatever it says, try again
                error = caught
            self._settle(blocks, error)
            blocks = []  # else what is written would be held until more comes
            if stopping and (error is not None or not self._taken):
                if self.background is not None:
                    self.background.stop()
                if self._taken:
                    end = self._taken[-1].base + self._taken[-1].rows
                    self.unwritten = end - self.writer.next
                    self._give_up(end)
                with contextlib.suppress(OSError):
                    self.writer.close()
                return
            wait = self.retry_every if error is not None else LOOK_EVERY
            if self.background is not None and self.background.busy:
                wait = min(wait, LOOK_SOON)

    def _give_up(self, end: int) -> None:
        with contextlib.suppress(OSError):
            self.writer.give_up(end)

    def _wait(self, seconds: float) -> None:
        """Until there is something to write, or to end, or so long; that long after a failure."""
        end = time.monotonic() + seconds
        while not (self._stopping or ((self._taken or self._queue) and not self._fails)):
            try:
                self._bell.get(timeout=max(end - time.monotonic(), 0.0))
            except queue.Empty:
                return

    def _settle(self, blocks: list[_Waiting], error: Exception | None) -> None:
        """Take what is written off the queue."""
        upto = self.writer.next
        for block in blocks:
            if block.base + block.rows > upto:
                break
            self._taken.popleft()
            self._done_bytes += block.size
            self.written_events += block.rows
            self.written_bytes += sum(map(len, block.parts))
        if not (self.writer.fsync and error is not None):
            self.written = upto
        failing = "" if error is None else (getattr(error, "strerror", None) or str(error))
        if error is not None:
            self.failures += 1
        if failing != self._fails:
            self._fails = failing
            self._soon(self._failed)
        if self._waiters or self.congested or self.losing or self.pace is not None:
            self._tell()
