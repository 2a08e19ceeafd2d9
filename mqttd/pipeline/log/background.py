"""Work on finished segments, beside the writer: a child process at a time, at low priority.

    sealed segment --> child: merge    --> NAME.events.merged --> put in its place (writer's thread)
                   --> child: archive  --> copied, compared   --> noted in archive.json

A segment is merged in a quiet moment: while much is written, the processor is needed for that.
Where there is an archive it is at once, since what is there is never written again.
Only the thread that writes the log changes what is in its folder, so that retention and this never
meet; the child writes a file beside, and ends when the writer does. What a crash leaves beside is
removed at the next start.
Segments are archived in order, each as soon as it is merged; everything before `safe` is.

Of a part that nobody writes (of a worker that is there no longer) it is all the same, and the
newest segment is merged, too. It is never archived: a worker that comes back goes on in it. The
folder's lock is held meanwhile, as who writes does (`Parts`).

Promise: `step` waits for nothing. A child that fails is told, and an archive that hangs; a segment
that cannot be archived is tried again soon, one that cannot be merged (a full disk) after a while.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Final

from mqttd.pipeline.log.child import PARENT
from mqttd.pipeline.log.files import (
    LOCK,
    Damaged,
    base_of,
    read_json,
    segments_in,
    sync_directory,
    write_json,
)
from mqttd.pipeline.log.merge import Held

__all__ = ["Background", "Parts"]

_BESIDE: Final = ".merged"
_NOTE: Final = "archive.json"
_NOTHING: Final = 3
#: Seconds until what could not be archived is tried again.
AGAIN: Final = 30.0
#: And what could not be merged: without an archive nobody waits for it.
MERGE_AGAIN: Final = 600.0
#: Seconds after which an archive that has not taken a segment is told.
SLOW: Final = 60.0


class Background:
    """The children of one node's folder.

    how: as `merge` takes it, zstd or none; archive: where to, empty for nowhere.
    told: called in the writer's thread with what is wrong, and with "" when it is well again.
    written: whether somebody writes there; if not, the lock is ours while a child runs.
    """

    def __init__(
        self,
        folder: str,
        how: str,
        told: Callable[[str], None],
        archive: str = "",
        log: str = "",
        again: float = AGAIN,
        slow: float = SLOW,
        written: bool = True,
    ) -> None:
        self.folder = folder
        self.how = how
        self.told = told
        self.archive = archive
        self.log = log
        self.again = again
        self.slow = slow
        self.written = written
        #: Segments merged and archived since the start.
        self.merged = 0
        self.archived = 0
        #: Finished segments that are to be merged, as it was seen last.
        self.waiting = 0
        #: Everything before this offset is in the archive.
        self.safe = self._noted()
        self._child: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._at = ""
        #: The offset behind the segment that is being archived; -1: it is being merged.
        self._end = -1
        self._done: set[str] = set()
        #: What could not be merged, and when it is tried again.
        self._unmerged: dict[str, float] = {}
        self._wait_until = 0.0
        #: When it is told that the child takes long; infinite once that is done.
        self._late_at = math.inf
        self._failed = False
        #: It is told that something could not be merged.
        self._told = False
        self._lock = -1
        if not written:
            return  # whoever wrote there has left it, or will find it when it writes again
        for name in os.listdir(folder):
            if name.endswith(_BESIDE):
                os.unlink(os.path.join(folder, name))

    @property
    def busy(self) -> bool:
        """Whether a child is running."""
        return self._child is not None

    def may_go(self, end: int) -> bool:
        """Whether a segment that ends there may be deleted here."""
        return not self.archive or end <= self.safe

    def closed(self, name: str, held: Held) -> None:
        """A segment was closed that has this.

        One that is well as it is needs no child to find that out: to start it takes some 60 ms, and
        a log of 400 MB/s closes six segments a second.
        """
        if not held.worth:
            self._done.add(name)
            return
        self.waiting += 1

    def _noted(self) -> int:
        try:
            found = read_json(os.path.join(self.folder, _NOTE))
        except (FileNotFoundError, Damaged):
            return 0
        same = (found.get("url"), found.get("log")) == (self.archive, self.log)
        return int(found.get("end", 0)) if same else 0

    def step(self, quiet: bool = True) -> None:
        """See what the child has done, and start the next one; `quiet`: little is written."""
        if self._child is not None:
            status = self._child.poll()
            if status is None:
                if time.monotonic() >= self._late_at:
                    self._late_at = math.inf
                    # It may only be slow: ended, it would begin anew.
                    self._bad(f"nothing came of it in {self.slow:.0f} s; it is waited for")
                return
            self._child = None
            self._finish(status)
            self._let_go()
        names = segments_in(self.folder)
        self._done.intersection_update(names)
        for name in [name for name, at in self._unmerged.items() if time.monotonic() >= at]:
            del self._unmerged[name]
            self._done.discard(name)
        ends = [base_of(name) for name in names[1:]]
        # What is in the archive was merged before: a start does not begin with all of it again.
        there = self.safe if self.archive else -1
        closed = [(name, end) for name, end in zip(names, ends, strict=False) if end > there]
        if names and not self.written:
            closed.append((names[-1], -1))
        self.waiting = sum(name not in self._done for name, _ in closed)
        archives = self.archive and time.monotonic() >= self._wait_until
        for name, end in closed:
            if name not in self._done:
                if (quiet or self.archive) and self._hold():
                    self._done.add(name)
                    self._start(name, -1)
                return
            if archives and end >= 0:
                if self._hold():
                    self._start(name, end)
                return

    def _hold(self) -> bool:
        """Whether nobody else changes what is in the folder, until `_let_go`."""
        if self.written:
            return True
        self._lock = os.open(os.path.join(self.folder, LOCK), os.O_RDWR | os.O_CREAT, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._let_go()
            return False
        return True

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _start(self, name: str, end: int) -> None:
        path = os.path.join(self.folder, name)
        if end < 0:
            work = ["mqttd.pipeline.log.merge", path, path + _BESIDE, self.how]
        else:
            node = os.path.basename(self.folder)
            work = ["mqttd.pipeline.log.archive", self.archive, self.log, node, path, str(end)]
            work.append(str(self.safe))
        self._at, self._end = path, end
        self._late_at = time.monotonic() + self.slow if end >= 0 else math.inf
        self._said = tempfile.TemporaryFile()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", *work],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    PARENT: str(os.getpid()),
                },
            )
        except OSError as error:
            self._bad(str(error))
            self._let_go()

    def _finish(self, status: int) -> None:
        if self._end >= 0:
            self._finish_archive(status)
            return
        path, beside = self._at, self._at + _BESIDE
        if status == 0 and os.path.exists(path):
            os.replace(beside, path)
            sync_directory(self.folder)
            self.merged += 1
            if self._told and not (self._unmerged or self._failed):
                self._told = False
                self.told("")
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        if status not in (0, _NOTHING) and os.path.exists(path):  # else retention was quicker
            self._unmerged[os.path.basename(path)] = time.monotonic() + MERGE_AGAIN
            self._told = True
            self._bad(f"status {status}")

    def _finish_archive(self, status: int) -> None:
        if status:
            self._wait_until = time.monotonic() + self.again
            self._bad(f"status {status}")
            return
        note = {"url": self.archive, "log": self.log, "end": self._end}
        write_json(os.path.join(self.folder, _NOTE), note)
        self.safe = self._end
        self.archived += 1
        if self._failed:
            self._failed = False
            self.told("")

    def _bad(self, why: str) -> None:
        said = ""
        if self._said is not None:
            self._said.seek(0)
            said = self._said.read().decode("utf-8", "replace").strip()[-500:]
        what = "merged" if self._end < 0 else "archived"
        self._failed = self._failed or self._end >= 0
        self.told(f"{os.path.basename(self._at)} could not be {what}: {said or why}")

    def stop(self) -> None:
        """End the child; what it has written beside is removed."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._at + _BESIDE)
        self._let_go()


class Parts:
    """The part of a log that is written here, and those that nobody writes: a child at a time."""

    def __init__(self, own: Background, left: Sequence[Background] = ()) -> None:
        self.own = own
        self._all = (own, *left)

    @property
    def merged(self) -> int:
        """Segments merged since the start."""
        return sum(part.merged for part in self._all)

    @property
    def archived(self) -> int:
        """Segments archived since the start."""
        return sum(part.archived for part in self._all)

    @property
    def waiting(self) -> int:
        """Finished segments that are to be merged, as it was seen last."""
        return sum(part.waiting for part in self._all)

    @property
    def busy(self) -> bool:
        """Whether a child is running."""
        return any(part.busy for part in self._all)

    def step(self, quiet: bool = True) -> None:
        """See what the child has done, and start the next one, of our own part first."""
        for part in sorted(self._all, key=lambda part: not part.busy):
            part.step(quiet)
            if part.busy:
                return

    def stop(self) -> None:
        """End the child."""
        for part in self._all:
            part.stop()
