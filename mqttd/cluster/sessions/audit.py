"""What is here is asked of etcd by and by: a session that has gone unheard of is found to have.

    each second --> the next hundred client ids --> ours --> nothing
                                                --> another's --> goes there
                                                --> nobody's --> written anew

What a node is told of claims goes by a watch, which may be cut, and stands in etcd as long as who
has claimed lives. Where both fail at once it would go on with a session that others have had since.

Promise: one small question at a time, and none of what is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final, Protocol

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from mqttd.broker.sessions.directory import Directory
from mqttd.cluster.sessions.amends import Amends
from mqttd.cluster.sessions.moves import Moves

__all__ = ["EVERY", "Audit"]

#: Client ids in one request, and seconds from one to the next.
_MANY: Final = 100
EVERY: Final = 1.0


class _Owners(Protocol):
    """See `mqttd.cluster.sessions.owners.Owners`."""

    lease: int
    owned: dict[str, int]
    turns: dict[str, DeferredLock]
    moves: Moves
    amends: Amends


class Audit:
    """That of the sessions in `directory`; `rests`: nothing is asked now."""

    def __init__(self, owners: _Owners, directory: Directory, rests: Callable[[], bool]) -> None:
        self.owners = owners
        self.directory = directory
        self.rests = rests
        self.log = Logger(namespace="mqttd.cluster")
        #: Up to which client id all have been asked for.
        self._at: str | None = None
        self._next = 0.0
        self._asks = False

    def tick(self, now: float, apart: bool = False) -> None:
        """A few times a second; `apart`: the others may not count with us, and have our sessions
        by now with what they have been acknowledged, which ours may lack."""
        if apart or now < self._next or self._asks or not self.owners.lease or self.rests():
            return
        self._next = now + EVERY
        some = self.directory.after(self._at, _MANY)
        self._at = some[-1] if len(some) == _MANY else None
        some = [each for each in some if self._stays(each)]
        if some:
            self._asks = True
            asked = Deferred.fromCoroutine(self.owners.amends.claim_all(some))
            # Where etcd does not answer they are asked for in the next turn.
            asked.addCallbacks(self._found, lambda failure: None).addBoth(self._over)

    def _stays(self, client_id: str) -> bool:
        """Whether it is ours as far as we know, and nobody is about to claim or send it."""
        owners, moves = self.owners, self.owners.moves
        known: tuple[Container[str], ...] = (owners.turns, moves.arrivals.of, moves.departures.of)
        return client_id in owners.owned and not any(client_id in each for each in known)

    def _found(self, lost: int) -> None:
        if lost:
            text = "{count} sessions go to other nodes, which have claimed them unheard"
            self.log.warn(text, count=lost)

    def _over(self, result: object) -> None:
        self._asks = False
