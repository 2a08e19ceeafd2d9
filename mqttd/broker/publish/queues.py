"""How much room receivers have, for who can wait with what he publishes.

    room(topics, size) --> look at the mqueue of each receiver that is connected: the fullest counts
                       '-> full, and nothing was taken from it for a while: it counts no more

A publisher of the network is not slowed by who receives: a queue that is full loses messages. Who
has a batch on the disk may give it piece by piece instead.

Promise: a call looks at `_LOOKED` receivers at most, those beyond count as if they had room; one
that takes nothing keeps nobody for longer than `patience`, once, until it takes something.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.routing.shared import Group
from mqttd.session.pending import Pending
from mqttd.session.routes.receiver import Receiver
from mqttd.session.routes.route import QOS_MASK, Route

__all__ = ["PATIENCE", "PLENTY", "Queues"]

#: Milliseconds for which a full queue of which nothing is taken is waited for.
PATIENCE: Final = 5_000
#: The room of those that have no bound.
PLENTY: Final = 1 << 30
#: Receivers that a call looks at, each in less than half a microsecond.
_LOOKED: Final = 4096
#: Full queues that are remembered; the one that was full first is forgotten.
_MOST: Final = 1000


class Queues:
    """The queues of one broker; `patience` in milliseconds."""

    def __init__(self, broker: Publishing, patience: int = PATIENCE) -> None:
        self._broker = broker
        self._patience = patience
        #: Of a receiver whose queue was full: what it had taken, and when that was seen first.
        self._full: dict[str, tuple[tuple[int, int], int]] = {}

    def room(self, topics: Iterable[str], size: int) -> int:
        """How many messages of so many bytes, of QoS 1 or 2, all of these have room for."""
        least = PLENTY
        left = _LOOKED
        for topic in topics:
            for receiver, options in _receivers(self._broker.topics.of(topic)):
                if not left:
                    return least
                left -= 1
                if options & QOS_MASK and isinstance(receiver, Pending) and receiver.online():
                    least = min(least, self._room_of(receiver, size))
        return least

    def _room_of(self, session: Pending, size: int) -> int:
        queue = session.mqueue
        if queue is None:
            return self._broker.settings.mqueue_max_length or PLENTY
        room = queue.max_length - queue.length if queue.max_length else PLENTY
        if queue.max_bytes:
            room = min(room, (queue.max_bytes - queue.size) // (size or 1))
        if room > 0 and session.has_room(size):
            self._full.pop(session.client_id, None)
            return room
        return PLENTY if self._is_stuck(session, (session.gone, queue.length)) else 0

    def _is_stuck(self, session: Pending, taken: tuple[int, int]) -> bool:
        now = self._broker.now
        known = self._full.get(session.client_id)
        if known is not None and known[0] == taken:
            return now - known[1] >= self._patience
        self._full[session.client_id] = (taken, now)
        if len(self._full) > _MOST:
            del self._full[next(iter(self._full))]
        return False


def _receivers(route: Route) -> Iterator[tuple[Receiver, int]]:
    """Each with its options; of a shared group all who may be chosen."""
    yield from zip(route.sessions, route.options, strict=True)
    for group in route.groups or ():
        if isinstance(group, Group):
            for receiver, (options, _, _) in group.members.items():
                yield receiver, options
