"""How far a batch that Spark's sink has released has come, when its broker dies.

    slice of messages --> sessions, what crosses   --+
    "so many are routed, so many have arrived"     --+--> one transaction of the broker's store
                       '-> event log, some milliseconds before or after

The store says which messages receivers have, or will have; the log, which has the ids of its
messages, says which of them it has. What one has and the other lacks goes half the way again. What
crosses to another process at QoS 1 is in no store before it has arrived there: what is not known
to have is routed again.

Promise: with a store that outlives the process, no message of QoS 2 is routed twice, none is lost
to a session that is kept, and the log has each once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mqttd.interfaces import IPluginStore
from mqttd.pipeline.log.reader import DataLoss, LogReader, events, find_time
from mqttd.pipeline.stage_store import Batch, StageError
from mqttd.types import StoreFull

__all__ = ["Before", "Progress", "logged_ids"]

_PREFIX: Final = "batch "


class Before:
    """What a batch has come to in lives of the broker before this one.

    :param routed: how many of its messages receivers have; None if no store knows.
    :param arrived: how many of them have also arrived at other processes; None if it is not known.
    :param logged: places of those that the event log has.
    """

    def __init__(
        self,
        routed: int | None = 0,
        arrived: int | None = 0,
        logged: Iterable[int] = (),
    ) -> None:
        self._logged = frozenset(logged)
        self._last = max(self._logged, default=-1)
        #: The first that was not routed.
        self.routed = self._last + 1 if routed is None else routed
        self.arrived = arrived

    def halves(self, place: int, qos: int) -> tuple[bool, bool]:
        """Whether the log has noted the message at this place, and whether it was routed.

        What crosses to another process at QoS 1 dies on the way with this one, whatever the log
        has: it comes again if it is not known to have arrived.
        """
        noted = place in self._logged
        arrived = noted if self.arrived is None else place < self.arrived
        routed = place < self.routed and (qos != 1 or arrived)
        # What the log has left out between others is no event: stopped by a hook, or not exported.
        return noted or (routed and place < self._last), routed


class Progress:
    """Keeps in the broker's store how far batches are."""

    def __init__(self, store: IPluginStore) -> None:
        self._store = store

    def reach(self, batch: Batch, count: int, arrived: int) -> None:
        """So many of its messages are routed in this turn, and so many had arrived before.

        Raises StageError: none may be.
        """
        try:
            self._store.put(_key(batch), b"%d %d" % (count, arrived))
        except StoreFull as error:
            raise StageError(f"the store takes nothing: {error}") from None

    def of(self, batch: Batch) -> tuple[int | None, int | None]:
        """How many of its messages were routed, how many had arrived; None: it is not known."""
        known = self._store.get(_key(batch))
        if known is None:
            return None, None
        routed, _, arrived = known.partition(b" ")
        return int(routed), int(arrived) if arrived else None

    def end(self, batch: Batch) -> None:
        """All of it is published and known to be."""
        self._store.delete(_key(batch))

    def known(self) -> list[str]:
        """What there is, for `forget`."""
        return list(self._store.keys(_PREFIX))

    def forget(self, known: list[str], batches: Iterable[Batch]) -> None:
        """Forget what was there, but for these batches."""
        for key in set(known).difference(_key(batch) for batch in batches):
            self._store.delete(key)


def _key(batch: Batch) -> str:
    return f"{_PREFIX}{batch.first_id:032x}"


def logged_ids(path: str, batch: Batch, node: str) -> set[int]:
    """Which message ids of a batch the event log has.

    They are behind the place where it was released, and, if the process that writes the log as
    `node` is another (of another number of workers), among what that one has written since.
    """
    log = LogReader(path)
    starts = {batch.node: batch.position}
    if node != batch.node:
        starts[node] = find_time(log, node, batch.first_id >> 64)
    found: set[int] = set()
    first = batch.first_id
    for name, position in starts.items():
        bounds = log.bounds().get(name)
        if bounds is None:
            continue
        start = max(position, bounds.earliest)
        try:
            if start < bounds.latest:
                for event in events(log, name, start, bounds.latest):
                    if event.event == "message.publish" and event.message_id is not None:
                        number = int.from_bytes(event.message_id, "big")
                        if first <= number < first + batch.rows:
                            found.add(number)
        except DataLoss:
            pass
    return found
