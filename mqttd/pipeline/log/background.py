"""Work on finished segments, beside the writer: a child process at a time, at low priority.

    sealed segment --> child: merge    --> NAME.events.merged --> put in its place (writer's thread)
                   --> child: archive  --> copied, compared   --> noted in archive.json

A segment is merged in a quiet moment: while much is written, the processor is needed for that.
Where there is an archive it is at once, since what is there is never written again.
Only the thread that writes the log changes what is in its folder, so that retention and this never
meet; the child writes a file beside, and ends when the writer does. What a crash leaves beside is
removed at the next start.
Segments are archived in order; everything before `safe` is.

Promise: `step` waits for nothing. A child that fails is told, and an archive that hangs; a segment
that cannot be merged is left alone, one that cannot be archived is tried again.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO, Final

from mqttd.pipeline.log.child import PARENT
from mqttd.pipeline.log.files import (
    Damaged,
    base_of,
    read_json,
    segments_in,
    sync_directory,
    write_json,
)
from mqttd.pipeline.log.merge import Held

__all__ = ["Background"]

_BESIDE: Final = ".merged"
_NOTE: Final = "archive.json"
_NOTHING: Final = 3
#: Seconds until what could not be archived is tried again.
AGAIN: Final = 30.0
#: Seconds after which an archive that has not taken a segment is told.
SLOW: Final = 60.0


class Background:
    """The children of one node's folder.

    how: as `merge` takes it, zstd or none; archive: where to, empty for nowhere.
    told: called in the writer's thread with what is wrong, and with "" when it is well again.
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
    ) -> None:
        self.folder = folder
        self.how = how
        self.told = told
        self.archive = archive
        self.log = log
        self.again = again
        self.slow = slow
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
        self._wait_until = 0.0
        #: When it is told that the child takes long; infinite once that is done.
        self._late_at = math.inf
        self._failed = False
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
        names = segments_in(self.folder)
        self._done.intersection_update(names)
        waiting = [name for name in names[:-1] if name not in self._done]
        self.waiting = len(waiting)
        if waiting and (quiet or self.archive):
            self._done.add(waiting[0])
            self._start(waiting[0], -1)
            return
        if self.archive and time.monotonic() >= self._wait_until:
            for name, following in zip(names, names[1:], strict=False):
                if base_of(following) > self.safe:
                    self._start(name, base_of(following))
                    return

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

    def _finish(self, status: int) -> None:
        if self._end >= 0:
            self._finish_archive(status)
            return
        path, beside = self._at, self._at + _BESIDE
        if status == 0 and os.path.exists(path):
            os.replace(beside, path)
            sync_directory(self.folder)
            self.merged += 1
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        if status not in (0, _NOTHING) and os.path.exists(path):  # else retention was quicker
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
