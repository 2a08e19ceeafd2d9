"""Work on finished segments, beside the writer: a child process at a time, at low priority.

    sealed segment --> child: merge --> NAME.events.merged --> put in its place (writer's thread)

Only the thread that writes the log changes what is in its folder, so that retention and this never
meet; the child writes a file beside. What a crash leaves beside is removed at the next start.

Promise: `step` waits for nothing. A child that fails is told once, and its segment left alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from mqttd.pipeline.log.files import segments_in, sync_directory

__all__ = ["Background"]

_BESIDE: Final = ".merged"
_NOTHING: Final = 3


class Background:
    """The children of one node's folder; `how`: as `merge` takes it, zstd or none."""

    def __init__(self, folder: str, how: str, told: Callable[[str], None]) -> None:
        self.folder = folder
        self.how = how
        self.told = told
        #: Segments merged since the start.
        self.merged = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._at = ""
        self._done: set[str] = set()
        for name in os.listdir(folder):
            if name.endswith(_BESIDE):
                os.unlink(os.path.join(folder, name))

    @property
    def busy(self) -> bool:
        """Whether a child is running."""
        return self._child is not None

    def step(self) -> None:
        """See what the child has done, and start the next one."""
        if self._child is not None:
            status = self._child.poll()
            if status is None:
                return
            self._child = None
            self._finish(status)
        for name in segments_in(self.folder)[:-1]:
            if name not in self._done:
                self._start(name)
                return

    def _start(self, name: str) -> None:
        self._done.add(name)
        path = os.path.join(self.folder, name)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "mqttd.pipeline.log.merge", path, path + _BESIDE, self.how],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            self._at = path
        except OSError as error:
            self.told(f"{name} could not be merged: {error}")

    def _finish(self, status: int) -> None:
        path, beside = self._at, self._at + _BESIDE
        if status == 0 and os.path.exists(path):
            os.replace(beside, path)
            sync_directory(self.folder)
            self.merged += 1
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        if status not in (0, _NOTHING):
            self.told(f"{os.path.basename(path)} could not be merged: status {status}")

    def stop(self) -> None:
        """End the child; what it has written is removed."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._at + _BESIDE)
