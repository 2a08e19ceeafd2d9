"""How much room a store has: on its file system, and in its own file.

    [ free on the file system ][ pages of the file that nothing is on ]      = left
    '--- reserve ---'

SQLite needs room to delete something, too: on a disk that is full to the last byte the sessions
that fill it cannot end, and nobody's do. So what would have to be kept is refused while less than
the reserve is left, and until it is twice that.

Promise: `look` is for the writer's thread, the rest for the loop's; the reserve is 64 MiB, or an
eighth of the file system where that is less.
"""

from __future__ import annotations

import os
from typing import Any, Final

__all__ = ["RESERVE", "Room"]

#: Bytes: more than what waits for the disk, and what SQLite writes beside its file.
RESERVE: Final = 64 << 20
_PART: Final = 8
#: Bytes written after which to look again.
_OFTEN: Final = 1 << 20


class Room:
    """The room of the file at `path`."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: Bytes free on its file system, and left in all; 0 until somebody has looked.
        self.free = 0
        self.left = 0
        self.reserve = RESERVE
        self.short = False
        self._written = 0

    def look(self, base: Any) -> None:
        """See how much there is; `base` is the connection to the file."""
        found = os.statvfs(os.path.dirname(self.path) or ".")
        pages = base.execute("PRAGMA freelist_count").fetchone()[0]
        size = base.execute("PRAGMA page_size").fetchone()[0]
        self.reserve = min(RESERVE, found.f_blocks * found.f_frsize // _PART)
        self.free = found.f_bavail * found.f_frsize
        self.left = self.free + pages * size

    def wrote(self, size: int) -> bool:
        """So much was written; whether to look again."""
        self._written += size
        if self._written < _OFTEN:
            return False
        self._written = 0
        return True

    def judge(self) -> bool:
        """Whether `short` has changed."""
        least = 2 * self.reserve if self.short else self.reserve
        short = 0 < self.left < least
        changed = short != self.short
        self.short = short
        return changed

    def why(self) -> str:
        """Why the store takes no more, and what helps."""
        return (
            f"{self.left} bytes are left for {self.path}: make room on its file system, or end"
            " sessions that have much waiting"
        )
