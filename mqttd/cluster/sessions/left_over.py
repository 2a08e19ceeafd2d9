"""A session that has come, and that nobody waits for: here, its client away, if it is ours.

    claimed, and etcd has answered            --> here, if our lease is still that of then
    claimed, for all that who sends it knows  --> etcd is asked --> ours still --> here
                                                            --> who had it is to look, too

Between what was read when it came and what is so when all of it is here another may have claimed
it, or who had it have it back.

Promise: what is not kept here is where it was.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mqttd.cluster.sessions.coming import Coming
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.tried import Tried
from mqttd.types import Claim, Held, SessionState

__all__ = ["keep_left_over", "take_in"]

#: Seconds until it is looked again whether we are a member.
_AGAIN: Final = 1.0
_log = Logger(namespace="mqttd.cluster")


class _Owners(Protocol):
    """See `mqttd.cluster.sessions.owners.Owners`."""

    name: str
    reactor: Any
    owned: dict[str, int]
    moves: Moves
    tried: Tried

    def whose(self, client_id: str) -> Awaitable[tuple[str, str, int] | None]:
        """Who has it as etcd knows it, from whom, and since when."""

    def has_come(self, client_id: str, state: SessionState | None) -> None:
        """A session has come here, or nothing of it."""

    def keep_here(self, client_id: str, revision: int, state: SessionState) -> None:
        """A session is here whose client is away."""

    def release(self, client_id: str, epoch: int) -> Deferred[None] | None:
        """As `IRegistry.release`."""

    def unclaimed(self, client_id: str) -> None:
        """A session has come that nobody waits for."""


def keep_left_over(owners: _Owners, client_id: str) -> None:
    """Keep what has come and nobody has taken."""
    arrivals = owners.moves.arrivals
    comes = arrivals.of.get(client_id)
    if comes is None or not comes.whole or comes.taken:
        return
    known = owners.owned.get(client_id) == comes.by and comes.lease == owners.moves.lease()
    if not known and comes.state is not None and not comes.sure:
        done = Deferred.fromCoroutine(_ask(owners, client_id, comes))
        done.addErrback(lambda failure: _log.failure("a session that has come", failure))
        return
    revision, state = comes.by, arrivals.given(client_id, comes)
    if owners.owned.get(client_id, 0) <= revision:  # else that of later is here
        owners.owned[client_id] = revision
        owners.has_come(client_id, state)
        take_in(owners, client_id, Claim(revision, Held.NODE, state=state))


async def _ask(owners: _Owners, client_id: str, comes: Coming) -> None:
    arrivals = owners.moves.arrivals
    while (found := await owners.whose(client_id)) is None:
        await deferLater(owners.reactor, _AGAIN)  # we are no member
    if arrivals.of.get(client_id) is not comes or comes.taken:
        return
    if comes.is_by(owners.name, found):
        comes.sure = True
        owners.unclaimed(client_id)
    elif comes.was_here:
        arrivals.drop(client_id, comes, found)
    elif found[1] == owners.name != found[0]:
        owners.tried.taken(client_id, found[2], True)  # of us, unheard: it is what there is of it
        arrivals.passed(client_id, found[0], found[2])
    elif comes.origin in owners.moves.mesh.nodes:
        owners.moves.transit.tell_look(comes.origin, client_id, comes.revision)
        arrivals.drop(client_id, comes, found)
    elif found[0] not in ("", owners.name):
        arrivals.passed(client_id, found[0], found[2])


def take_in(owners: _Owners, client_id: str, claim: Claim) -> None:
    """What was claimed for nobody who is there."""
    if claim.state is not None:
        owners.keep_here(client_id, claim.epoch, claim.state)
    elif claim.held is not Held.HERE:
        owners.release(client_id, claim.epoch)
