"""How much room a store has: on its file system, and in its own file.

    [ free on the file system ][ pages of the file that nothing is on ]      = left
    '--- reserve ---'

SQLite needs room to delete something, too: on a disk that is full to the last byte the sessions
that fill it cannot end, and nobody's do. So what would have to be kept is refused while less than
the reserve is left, and until it is twice that; and while the store has more than `max_bytes`,
until it has a tenth less. `weigh` tells: `store_full`, `disk_low`.

Promise: `look` is for the writer's thread, the rest for the loop's; the reserve is 64 MiB, or an
eighth of the file system where that is less. What nobody knows yet raises and clears nothing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mqttd.broker.broker import Broker
from mqttd.storage.ledger import FULL
from mqttd.storage.sparing import BEHIND, UNLIMITED, Sparing

__all__ = ["RESERVE", "Room"]

#: Bytes: more than what waits for the disk, and what SQLite writes beside its file.
RESERVE: Final = 64 << 20
_PART: Final = 8
#: Bytes written after which to look again, and the part of a small reserve that they are.
_OFTEN: Final = 1 << 20
_FEW: Final = 16
#: Pages of the log from which on it begins anew, and their bytes.
_LOG: Final = 1000
_PAGE: Final = 4096
#: The part of the reserve that last words may have, that may wait for the disk, and of the log.
_PART_OF: Final = 4


class Room:
    """The room of the file at `path`.

    log(event, fields): one structured event; max_bytes, min_free: see `[store]`; 0: no limit.
    """

    def __init__(
        self,
        path: str,
        log: Callable[[str, dict[str, object]], None],
        max_bytes: int = 0,
        min_free: int = 0,
    ) -> None:
        self.path = path
        self.log = log
        self.max_bytes = max_bytes
        self.min_free = min_free
        #: Bytes free on its file system, and left in all; None until somebody has looked.
        self.free: int | None = None
        self.left: int | None = None
        self.reserve = RESERVE
        #: What was left behind the group with this sum (`Group.told`); None as `left`.
        self.measured: tuple[int, int] | None = None
        #: Less than the reserve is left; there is more than `max_bytes`; the alarm `disk_low`.
        self.short = False
        self._over = False
        self._low = False
        self._size = 0
        #: Bytes of pages that nothing is on.
        self._unused = 0
        self._written = 0

    @property
    def full(self) -> bool:
        """Whether what would have to be kept is refused, for want of either."""
        return self.short or self._over

    def spare(self, size: int) -> int | None:
        """Bytes that a store of this size may have more; None: there is no limit, or none known."""
        spare = None if self.left is None else self.left - self.reserve
        if self.max_bytes:
            own = self.max_bytes - size
            spare = own if spare is None else min(own, spare)
        return None if spare is None else max(spare, 0)

    def bound_log(self, base: sqlite3.Connection) -> None:
        """Have the log beside the file take no more than a part of a small reserve, as a rule."""
        pages = min(_LOG, self.reserve // _PART_OF // _PAGE)
        base.execute(f"PRAGMA wal_autocheckpoint = {pages}")
        base.execute(f"PRAGMA journal_size_limit = {pages * _PAGE}")

    def limit(self, journal: Sparing, size: int) -> None:
        """Have the journal of a store of so many bytes know how much more there is room for."""
        most = UNLIMITED
        if self.measured is not None:
            left, told = self.measured
            most = told + left - self.reserve
        if self.max_bytes:
            most = min(most, journal.told + self.max_bytes - size)
        journal.most, journal.full = most, self.full
        journal.more = min(self.reserve, self.max_bytes or self.reserve) // _PART_OF
        journal.behind = min(BEHIND, self.reserve // _PART_OF)
        journal.ledger.full = min(FULL, self.reserve // _PART)
        journal.ledger.movable = UNLIMITED if self.free is None else self.free // 2

    def look(self, base: sqlite3.Connection, told: int = 0) -> None:
        """See how much there is; `base` is the connection to the file.

        told: `Group.told` of the group that was written last.
        A disk that fails may say neither: then what is known of it stays.
        """
        with suppress(sqlite3.Error):
            pages = base.execute("PRAGMA freelist_count").fetchone()[0]
            self._unused = pages * base.execute("PRAGMA page_size").fetchone()[0]
        try:
            found = os.statvfs(os.path.dirname(self.path) or ".")
        except OSError:
            return
        self.reserve = min(RESERVE, found.f_blocks * found.f_frsize // _PART)
        self.free = found.f_bavail * found.f_frsize
        self.left = self.free + self._unused
        self.measured = self.left, told

    def wrote(self, size: int) -> bool:
        """So much was written; whether to look again."""
        self._written += size
        if self._written < min(_OFTEN, self.reserve // _FEW):
            return False
        self._written = 0
        return True

    def weigh(self, broker: Broker, size: int) -> None:
        """Raise an alarm if the store, of so many bytes, is too large or the disk too small."""
        self._size = size
        most = self.max_bytes
        over = most > 0 and (size > most or (self._over and size > most - most // 10))
        if self._judge() or over != self._over:
            self._over = over
            self.log(
                "store full" if self.full else "store has room", {"path": self.path, "bytes": size}
            )
            text = f"{self.path} has {size} bytes, store.max_bytes are {most}"
            self._tell(broker, "store_full", self.full, self.why() if self.short else text)
        if self.free is None:
            return
        low = self.free < self.min_free
        if low != self._low:
            self._low = low
            fields: dict[str, object] = {"path": self.path, "bytes": self.free}
            self.log("disk low" if low else "disk has room", fields)
            self._tell(broker, "disk_low", low, f"{self.free} bytes are free for {self.path}")

    def _judge(self) -> bool:
        """Whether `short` has changed."""
        if self.left is None:
            return False
        short = self.left < (2 * self.reserve if self.short else self.reserve)
        changed = short != self.short
        self.short = short
        return changed

    def why(self) -> str:
        """Why the store takes no more, and what helps."""
        if self.short:
            return (
                f"{self.left} bytes are left for {self.path}: make room on its file system, or end"
                " sessions that have much waiting"
            )
        return (
            f"{self.path} has {self._size} bytes, store.max_bytes are {self.max_bytes}:"
            " let that be more, or end sessions that have much waiting"
        )

    def _tell(self, broker: Broker, alarm: str, on: bool, text: str) -> None:
        if on:
            broker.alarms.activate(alarm, text)
        else:
            broker.alarms.clear(alarm)
