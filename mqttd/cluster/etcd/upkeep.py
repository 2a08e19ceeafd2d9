"""What etcd has to keep is kept small, and that it takes no writes is said.

    every 5 s --> how large is it, are there alarms (NOSPACE, CORRUPT)?
              --> the first node: a minute is over, 64 MiB more are in use, it is full?
                  --> history up to what was 5 s ago or more is compacted
    an answer says that there is no space --> the alarm `cluster_etcd_refuses`
              --> a write that changes nothing is made --> the alarm ends

etcd keeps each value that a key has ever had until it is told not to, and takes no writes when its
database has as many bytes as it may (2 GiB, unless it was given more). A watch that is behind what
is compacted ends, and its node reads all anew (`Cluster._look`). The history is that of all users
of an etcd: where others need more of it, `cluster.compact` is false.

Promise: one request of this at a time; nothing here is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqttd.broker.ground.alarms import Alarms
from mqttd.cluster.etcd.client import Etcd, EtcdError, Json, get

__all__ = ["ALARM", "Upkeep"]

#: The alarm of a node whose etcd answers, and takes no writes.
ALARM: Final = "cluster_etcd_refuses"
#: Seconds between two looks, between two compactions where little is written, and bytes that are
#: much.
ROUND: Final = 5.0
_EVERY: Final = 60.0
_MUCH: Final = 64 << 20

#: In answers of an etcd that takes no writes: its quota, its disk, its data.
_FULL: Final = ("space exceeded", "no space", "corrupt")
_DENIED: Final = "permission denied"


class Upkeep:
    """That of `etcd` by one node.

    `compacts`: nodes do that, and this is the one if `is_first` says so. `key` may be read; `write`
    writes what is there already, and raises EtcdError.
    """

    def __init__(
        self,
        etcd: Etcd,
        compacts: bool,
        key: bytes,
        write: Callable[[], Awaitable[object]],
        is_first: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.etcd = etcd
        self.compacts = compacts
        self.key = key
        self.write = write
        self.is_first = is_first
        self.clock = clock
        self.alarms: Alarms | None = None
        self.log = Logger(namespace="mqttd.cluster")
        etcd.refused = self.refused
        #: Why etcd takes no writes; empty: it does.
        self.why = ""
        #: What a node that begins has been told last, and waits for another answer.
        self.waits = ""
        self.compactions = 0
        #: Bytes of the database of the member that is asked, and those of them that are in use.
        self.size = self.used = 0
        self._asking = False
        self._next = 0.0
        #: Of the look before; and what was in use at least since the last compaction.
        self._revision = self._used = 0
        self._compacted = 0
        self._least = 0
        self._at = clock()
        self._denied = False

    def refused(self, text: str) -> None:
        """etcd has answered this in place of what was asked for."""
        if any(each in text for each in _FULL):
            self._raise(text)

    def _raise(self, why: str) -> None:
        if self.why:
            return
        self.why = why
        text = (
            f"etcd takes no writes ({why.strip()}): new filters are refused, bans and roles do not"
            " spread, no node joins; `etcdctl defrag`, or give it more (--quota-backend-bytes),"
            " then `etcdctl alarm disarm`"
        )
        self.log.critical("{text}", text=text)
        if self.alarms is not None:
            self.alarms.activate(ALARM, text)

    def tick(self) -> None:
        """A few times a second."""
        if self._asking or self.clock() < self._next:
            return
        self._asking = True
        self._next = self.clock() + ROUND
        done = Deferred.fromCoroutine(self._round())
        done.addErrback(self._failed).addBoth(self._done)

    def _done(self, result: object) -> None:
        self._asking = False

    def _failed(self, failure: Any) -> None:
        if failure.check(EtcdError) is None:
            self.log.failure("upkeep of etcd", failure)

    async def _round(self) -> None:
        said = await self._status()
        self.size = int(said.get("dbSize", 0))
        self.used = int(said.get("dbSizeInUse", 0))
        if found := [text for text in said.get("errors", ()) if "alarm:" in text]:
            self._raise(", ".join(found))
        await self._compact(said)
        if self.why and not found:
            await self.write()
            self.why = ""
            if self.alarms is not None:
                self.alarms.clear(ALARM)
            self.log.info("etcd takes writes again")

    async def _status(self) -> Json:
        try:
            return await self.etcd.status()
        except EtcdError as error:
            if _DENIED not in str(error):
                raise
        revision = (await self.etcd.transaction([], [get(self.key)])).revision
        return {"header": {"revision": revision}}

    async def _compact(self, said: Json) -> None:
        before, self._revision = self._revision, int(said["header"].get("revision", 0))
        used, self._used = self._used, self.used
        self._least = min(self._least, self.used) if self._least else self.used
        now = self.clock()
        much = (bool(self.why) or self.used - self._least > _MUCH) and not self._denied
        if not self.compacts or not self.is_first() or (now - self._at < _EVERY and not much):
            return
        if before <= self._compacted or before > self._revision:
            return  # nothing was written, or another member is asked, which does not have all yet
        self._at = now
        try:
            await self.etcd.compact(before)
        except EtcdError as error:
            self._not_compacted(str(error))
        else:
            self.compactions += 1
            self._denied = False
        self._compacted = before
        self._least = used  # what has come since is not compacted yet

    def _not_compacted(self, error: str) -> None:
        """Another has done so, or it is not ours to do."""
        if _DENIED in error and not self._denied:
            self._denied = True
            text = (
                "etcd does not let this node compact its history ({error}), without which it fills:"
                " start it with --auto-compaction-mode=periodic --auto-compaction-retention=5m"
            )
            self.log.warn(text, error=error)

    def shown(self) -> dict[str, str]:
        """For operators: why etcd takes no writes, or does not have this node begin."""
        waits = "" if self.etcd.errors else self.waits
        return {"etcd_refuses": self.etcd.older or self.why or waits}

    def counters(self) -> dict[str, float]:
        """For the metrics."""
        return {
            "cluster_etcd_bytes": self.size,
            "cluster_etcd_bytes_used": self.used,
            "cluster_etcd_compactions": self.compactions,
            "cluster_etcd_refuses": float(bool(self.why)),
        }
