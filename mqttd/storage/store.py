"""The store of one worker: its file, its writer, its journal, from start to stop.

    check()     may this broker use the file?      before it turns into a daemon
    open()      what is kept under keys            in the reactor, before plugins are loaded
    recover()   file --> broker                    before clients are let in
    stop()      what was told is written, closed

The writer's thread begins with `recover`, so nothing of it crosses a fork. What it has written it
tells by `mqttd.net.wake`.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, fail
from twisted.internet.task import LoopingCall, deferLater
from twisted.internet.threads import deferToThreadPool

from mqttd.broker.broker import Broker
from mqttd.config.schema import Config
from mqttd.net.pause import Pause
from mqttd.net.wake import Wake, Watcher
from mqttd.storage.blocks import Group
from mqttd.storage.copies import Copies
from mqttd.storage.database import MOVE_CLOCK, Damaged, StoreError, connect, look, set_aside
from mqttd.storage.durability import NAMES, Durability
from mqttd.storage.fetching import Reading
from mqttd.storage.journal import StoreJournal
from mqttd.storage.ledger import Ledger
from mqttd.storage.place import close_to_others, remove
from mqttd.storage.recovery import Contents, read
from mqttd.storage.restore import Restored, restore
from mqttd.storage.room import Room
from mqttd.storage.shares import Shares
from mqttd.storage.tools import backup, drop_rows, finish, shrink
from mqttd.storage.writer import Writer

__all__ = ["Store", "StoreError", "store_of"]

T = TypeVar("T")

#: Seconds between two steps of `compact`, for everybody else.
_PAUSE: Final = 0.001
#: Seconds between two looks at how much room the disk has.
_LOOK: Final = 10.0
#: Messages that were read and go to their sessions in one turn, or a few more.
_READ: Final = 256
#: Seconds that the clock of the day moves at once when somebody sets it, and not when it is slewed.
_SET: Final = 5


class Store:
    """Keeps what outlasts the process in the file `path`.

    reactor: whose turns the writer wakes; log(event, fields): one structured event.
    """

    def __init__(
        self,
        path: str,
        reactor: Any,
        durability: Durability,
        log: Callable[[str, dict[str, object]], None],
        max_bytes: int = 0,
        min_free: int = 0,
    ) -> None:
        self.path = path
        self.reactor = reactor
        self.durability = durability
        self.log = log
        self.ledger = Ledger()
        self.journal: StoreJournal | None = None
        self.writer: Writer | None = None
        self._broker: Broker | None = None
        self._wake = Wake(self.turn)
        self._pause = Pause(self._resume, reactor.callLater)
        #: Who has all of it elsewhere, too; and the groups that are written and not there yet.
        self.copies: Copies | None = None
        self._written: deque[Group] = deque()
        self._alone = False
        #: See `_clock`, as it was last.
        self._clock = 0
        self._failing = False
        self._opened: tuple[sqlite3.Connection, Contents] | None = None
        #: What would have to be kept is refused, since this is so: it fails, is full, alone.
        self._stuck = (False, False, False)
        self._copying = False
        self._unreadable = 0
        self.room = Room(path, log, max_bytes, min_free)
        self.shares: Shares | None = None
        self._looking = LoopingCall(self._look)
        self._looking.clock = reactor

    def check(self) -> None:
        """See whether the file can be used, without touching it. Raises StoreError."""
        look(self.path)

    def open(self, broker: Broker) -> None:
        """Open the file, and give plugins what they have kept; `recover` follows.

        Raises StoreError if it cannot be used.
        """
        base, contents = self._open(broker)
        try:
            kept = base.execute("SELECT plugin, key, value FROM kept").fetchall()
        except sqlite3.DatabaseError as error:
            base.close()
            base, contents = self._anew(broker, str(error))
            kept = []
        self._opened = base, contents
        broker.drawers.restore(kept)

    def recover(self, broker: Broker, engine: Watcher | None = None) -> Restored:
        """Read the file into a broker that has just begun, and keep what happens from now on.

        engine: polls for the writer; without one the reactor does.
        Raises StoreError if it cannot be used.
        """
        # What is made here stays: to look for garbage among it takes a quarter of the time.
        collects = gc.isenabled()
        gc.disable()
        try:
            return self._recover(broker, engine)
        finally:
            if collects:
                gc.enable()

    def _recover(self, broker: Broker, engine: Watcher | None) -> Restored:
        self._broker = broker
        if self._opened is None:
            self.open(broker)
        assert self._opened is not None
        base, contents = self._opened
        self._opened = None
        now = time.time_ns()
        since = now // 1_000_000 - broker.now
        self._wake.start(self.reactor, engine)
        self.room.look(base)
        self.room.bound_log(base)
        self.writer = writer = Writer(base, self._wake.wake, self._measure)
        submit = writer.submit if self.copies is None else partial(self._submit, writer)
        journal = StoreJournal(self.ledger, broker, submit, _seconds, since, self.durability)
        journal.listeners = broker.listeners
        journal.read, journal.peep = writer.now, writer.at_once
        journal.ask = lambda asked: writer.fetch([Reading(*each) for each in asked])
        self.room.limit(journal, self.ledger.bytes)
        self.journal = broker.journal = journal
        if engine is not None:
            self._pause.start(engine)
            journal.pause, journal.unpause = self._pause.begin, self._pause.end
        self.shares = Shares(broker, self.log)
        writer.start()
        broker.drawers.follow()
        self._clock = _clock()
        self._looking.start(_LOOK)
        restored = restore(broker, journal, base, contents)
        damaged = contents.damaged + restored.unreadable
        if damaged:
            self._alarm(broker, f"{damaged} records of {self.path} could not be read")
        self.log(
            "store ready",
            {
                "path": self.path,
                "sessions": restored.sessions,
                "messages": restored.messages,
                "retained": restored.retained,
            },
        )
        broker.perform()
        return restored

    def _resume(self) -> None:
        """A pause between two groups is over: the next one is closed at the end of a turn."""
        if self.journal is not None and self._broker is not None:
            self.journal.begin()
            self._broker.perform()

    def _submit(self, writer: Writer, group: Group) -> None:
        """Have a group written here and elsewhere."""
        writer.submit(group)
        if self.copies is not None:
            self.copies.submit(group)

    def _open(self, broker: Broker) -> tuple[sqlite3.Connection, Contents]:
        """Open and read the file; a damaged one is set aside, and one made anew."""
        close_to_others(self.path)
        try:
            base = connect(self.path)
        except Damaged as error:
            return self._anew(broker, str(error))
        try:
            return base, read(base, self.ledger, queues=True)
        except sqlite3.DatabaseError as error:
            base.close()
            return self._anew(broker, str(error))

    def _anew(self, broker: Broker, why: str) -> tuple[sqlite3.Connection, Contents]:
        aside = set_aside(self.path)
        self._alarm(broker, f"{why}; it is kept as {aside}")
        self.ledger = Ledger()
        base = connect(self.path)
        return base, read(base, self.ledger)

    def _alarm(self, broker: Broker, detail: str) -> None:
        self.log("store damaged", {"detail": detail})
        broker.alarms.activate("store_damaged", detail)

    def turn(self) -> None:
        """The writer has something to say (called in the reactor)."""
        writer, journal, broker = self.writer, self.journal, self._broker
        if writer is None or journal is None or broker is None:
            return
        fault = writer.fault
        if fault is not None and not self._failing:
            self._failing = True
            journal.fail(True)
            self.log("store failed", {"path": self.path, "error": str(fault)})
            broker.alarms.activate("store_failed", f"{self.path}: {fault}")
        elif fault is None and self._failing:
            self._failing = False
            journal.fail(self._alone)
            self.log("store works again", {"path": self.path})
            broker.alarms.clear("store_failed")
            writer.between(self._ask)
        size = self.ledger.bytes + broker.account.rows
        self.room.weigh(broker, size)
        self.room.limit(journal, size)
        if self.shares is not None:
            self.shares.see(size, self.room.spare(size))
        if self.copies is not None:
            self._see_copies(broker, journal, self.copies)
        if (now := (self._failing, self.room.full, self._alone)) != self._stuck:
            self._stuck = now
            broker.set_stuck(any(now))
            drawers = broker.drawers
            drawers.stuck, drawers.why = any(now), self._why()
            drawers.halt("" if not (self._failing or self._alone) else drawers.why)
            journal.stuck = any(now)
            journal.weigh()
        if journal.moving():
            journal.move()
        while writer.done:
            group = writer.done.popleft()
            if self.room.wrote(group.spent):
                writer.between(self._ask)
            if self.copies is None:
                journal.written(group)
            else:
                self._written.append(group)
        while self._written and self.copies is not None and self.copies.has(self._written[0]):
            journal.written(self._written.popleft())
        if journal.release() or journal.moving():
            self._wake.wake()  # thousands of acknowledgements may have waited
        count = 0
        while writer.read and count < _READ:
            reading = writer.read.popleft()
            count += len(reading.pieces)
            journal.was_read(reading.of, reading.pieces, reading.found)
        if writer.read:
            self._wake.wake()  # in the next turn: a thousand sessions may come back at once
        if journal.unreadable > self._unreadable:
            lost = journal.unreadable - self._unreadable
            self._unreadable = journal.unreadable
            broker.metrics.dropped_unreadable += lost
            self._alarm(broker, f"{lost} messages of {self.path} could not be read")
        broker.perform()

    def _why(self) -> str:
        """Why it takes no more, and what helps."""
        if self._failing and self.writer is not None:
            helps = "make room on its file system, or see to that; it is tried again by itself"
            return f"{self.path} cannot be written, {self.writer.fault}: {helps}"
        if self._alone and self.copies is not None:
            return f"no NATS server takes copies of {self.path}: {self.copies.fault}"
        return self.room.why()

    def _see_copies(self, broker: Broker, journal: StoreJournal, copies: Copies) -> None:
        """What cannot be copied is refused as what cannot be written is."""
        if (fault := copies.fault) and not self._alone:
            self.log("replication failed", {"error": fault})
            text = f"what has to be kept is refused until NATS servers take it: {fault}"
            broker.alarms.activate("replication_failed", text)
        elif not fault and self._alone:
            self.log("replication works again", {})
            broker.alarms.clear("replication_failed")
        else:
            return
        self._alone = not self._alone
        journal.fail(self._failing or self._alone)

    def _look(self) -> None:
        """Have the writer ask how much room there is; see whether the clock was set."""
        if self.writer is not None:
            self._see_clock()
            if not self._failing:  # then each try looks
                self.writer.between(self._ask)

    def _see_clock(self) -> None:
        """Where the clock of the day was set, sessions went as long ago as before.

        While the broker runs, what expires goes by a clock that nobody sets; a restart has rows.
        """
        moved = _clock() - self._clock
        if abs(moved) < _SET or self.journal is None:
            return
        self._clock += moved
        self.log("clock was set", {"seconds": moved})
        now = _seconds()  # those that went since then have the new time
        self.ledger.row(MOVE_CLOCK, (moved, now - min(abs(moved), int(_LOOK)) + 1, now))
        self.journal.begin()

    def _ask(self, base: sqlite3.Connection) -> None:
        self._measure(base)
        self._wake.wake()

    def _measure(self, base: sqlite3.Connection) -> None:
        """See how much room there is behind the last group (in the writer's thread)."""
        self.room.look(base, 0 if self.writer is None else self.writer.told)

    def stop(self) -> None:
        """Write what was told, and close the file."""
        if self._looking.running:
            self._looking.stop()
        writer, journal, broker = self.writer, self.journal, self._broker
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None
        if writer is None or journal is None or broker is None:
            return
        self.writer = journal.pause = None
        self._pause.stop()
        broker.fans.finish()
        journal.release_all()
        broker.perform()
        journal.finish()
        writer.stop()
        self._wake.stop()

    def describe(self) -> dict[str, object]:
        """Where it is and what is in it."""
        ledger, journal = self.ledger, self.journal
        return {
            "path": self.path,
            "durability": NAMES[self.durability.default],
            "blocks": len(ledger.blocks),
            "block_bytes": ledger.bytes,
            "file_bytes": os.path.getsize(self.path) if os.path.exists(self.path) else 0,
            "groups_written": journal.groups if journal is not None else 0,
            "records_moved": ledger.moved,
            "max_bytes": self.room.max_bytes,
            "free_bytes": self.room.free,
            "failing": self._failing,
            "full": self.room.full,
        }

    def backup(self, path: str) -> Deferred[tuple[int, int]]:
        """Copy it to a new file, with all that was told before; fires as `finish` says.

        Groups are written meanwhile, between some pages and the next. It has its name when it is
        whole: what a kill leaves is called `.making`, and goes with the next copy.
        """
        writer = self.writer
        making = f"{path}.making"

        def copy(base: sqlite3.Connection) -> None:
            assert writer is not None
            if os.path.lexists(path):
                raise StoreError("File exists")
            remove(making)
            backup(base, making, writer.pass_by)

        if self._copying:
            return fail(StoreError("it is being copied already"))
        self._copying = True
        pool = self.reactor.getThreadPool()
        copied = self.between(copy).addCallback(
            lambda _: deferToThreadPool(self.reactor, pool, finish, making, path)
        )
        return copied.addBoth(self._copied)

    def _copied(self, result: T) -> T:
        self._copying = False
        return result

    async def compact(self) -> dict[str, object]:
        """Move what lives together, then give unused space back; what came of it.

        What could not be read when the broker started, and so is nobody's, is dropped. All goes a
        few blocks or pages at a time, between the groups of clients that go on. Raises StoreError
        where it cannot be done now, sqlite3.Error and OSError.
        """
        journal = self.journal
        if journal is None or not self._writes() or self._compacting():
            raise StoreError("the store is not open, cannot be written, or is compacted already")
        moved = self.ledger.moved
        before = await self.between(self._size)
        self.ledger.compact()
        last = 0
        while self._compacting() or (journal.busy() and journal.groups < last):
            if self._compacting():
                last = journal.groups + 3  # what was read is moved, then its rows go
            if not self._writes():
                self.ledger.thorough = 0
                raise StoreError("the store was closed, or cannot be written")
            journal.nudge()
            await deferLater(self.reactor, _PAUSE)
        dropped = await self._drop_damaged()
        while await self.between(shrink):
            await deferLater(self.reactor, _PAUSE)
        after = await self.between(self._size)
        done = {"before": before, "after": after, "moved": self.ledger.moved - moved}
        return {"path": self.path, **done, "dropped": dropped}

    async def _drop_damaged(self) -> list[str]:
        """Take out the rows that the ledger does not know, being damaged; their names."""
        rows = await self.between(lambda base: base.execute("SELECT id FROM block").fetchall())
        unknown = [row[0] for row in rows if row[0] not in self.ledger.blocks]
        dropped = await self.between(lambda base: drop_rows(base, unknown)) if unknown else []
        names = [f"{self.path}: block {number}" for number in dropped]
        for name in names:
            self.log("store row dropped", {"row": name})
        return names

    def _compacting(self) -> bool:
        return self.ledger.thorough > 0

    def _writes(self) -> bool:
        return self.writer is not None and not self._failing

    def _size(self, base: sqlite3.Connection) -> int:
        """Bytes of the file and of what waits beside it."""
        base.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return sum(
            os.path.getsize(path)
            for path in (self.path, f"{self.path}-wal")
            if os.path.exists(path)
        )

    def between(self, job: Callable[[sqlite3.Connection], T]) -> Deferred[T]:
        """What `job` gives of the connection, called by the writer between two groups."""
        fired: Deferred[T] = Deferred()
        writer = self.writer
        if writer is None:
            fired.errback(StoreError("the store is not open"))
            return fired

        def run(base: sqlite3.Connection) -> None:
            try:
                found = job(base)
            except Exception as error:
                self.reactor.callFromThread(fired.errback, error)
            else:
                self.reactor.callFromThread(fired.callback, found)

        writer.between(run)
        return fired

    def description(self) -> str:
        """One line for operators."""
        return f"SQLite, {self.path}, durability {NAMES[self.durability.default]}"


def store_of(
    config: Config, reactor: Any, log: Callable[[str, dict[str, object]], None]
) -> Store | None:
    """The store of a configuration, None for none; its file is looked at, not opened.

    Raises StoreError.
    """
    path = os.path.join(config.node.data_dir, "store.db")
    if config.store.kind == "memory":
        if os.path.exists(path):
            why = 'store.kind is "memory": no session, message or ban in it is used'
            log("store not used", {"path": path, "why": why})
        return None
    promised = config.durability
    filters = {name: NAMES.index(level) for name, level in promised.topics.items()}
    durability = Durability(NAMES.index(promised.default), filters)
    settings = config.store
    store = Store(path, reactor, durability, log, settings.max_bytes, settings.min_free)
    store.check()
    return store


def _clock() -> int:
    """Seconds since 1970 when the clock that nobody sets was 0."""
    return (time.time_ns() - time.monotonic_ns()) // 1_000_000_000


def _seconds() -> int:
    return time.time_ns() // 1_000_000_000
