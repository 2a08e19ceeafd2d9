"""A session that was to leave this node, and whose taker is gone: back here, or on its way again.

So is one whose taker says that it is not for it, and has nothing of it (`Leaving.refused`).

    not all of it was sent   --> nobody has claimed it since --> ours again
                             --> this node has --> it is here; another has --> it goes there
    all was sent: that node may have let its client in, and have more than we have
        --> nobody has it any more, or it was given back --> ours again
        --> somebody has claimed it of that node --> is given what that has left, and asks us if
            that is nothing

Promise: what may be somewhere else is not brought back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.internet.task import deferLater

from mqttd.cluster.etcd.client import EtcdError, absent, equals, get, put
from mqttd.cluster.etcd.keys import Keys, claimed
from mqttd.cluster.etcd.many import Many
from mqttd.cluster.sessions.departures import Leaving
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.silence import Silence
from mqttd.cluster.sessions.tried import Tried
from mqttd.types import SessionState

__all__ = ["bring_back"]

#: Seconds before etcd is asked again, and for a node that is back to say what it has.
_AGAIN: Final = 1.0
_LATE: Final = 10.0


class _Owners(Protocol):
    """See `mqttd.cluster.sessions.owners.Owners`."""

    name: str
    keys: Keys
    many: Many
    reactor: Any
    is_there: Callable[[str], bool]
    lease: int
    home: int
    owned: dict[str, int]
    moves: Moves
    silence: Silence
    tried: Tried

    def user_in(self, client_id: str, state: SessionState) -> str:
        """Whose session this is, for etcd."""

    def keep_here(self, client_id: str, revision: int, state: SessionState) -> None:
        """A session is here whose client is away."""


async def bring_back(owners: _Owners, client_id: str, leaves: Leaving) -> None:
    """Have a session back, or send it on, as etcd says whose it is."""
    departures, arrivals = owners.moves.departures, owners.moves.arrivals
    key = owners.keys.own(client_id)
    own = claimed(owners.name, "", owners.user_in(client_id, leaves.state))
    waits = True
    while waits and departures.of.get(client_id) is leaves:
        # Where that is back, and is not taken over, it has what was for it.
        waits = leaves.refused or not owners.is_there(leaves.to)
        waits = waits or owners.silence.is_left(leaves.to)
        when = [absent(key) if leaves.doubt else equals(key, leaves.revision)]
        if not leaves.refused and not owners.is_there(leaves.to):
            when.append(absent(owners.keys.node(leaves.to)))  # else it is back, and waits for it
        if not owners.lease:
            await deferLater(owners.reactor, _AGAIN)
            continue
        try:
            then = [put(key, own, owners.home)] if waits else []
            if then:
                owners.tried.claims(client_id, leaves.to, leaves.revision)  # also without an answer
            answer = await owners.many.transaction(when, then, [get(key)])
        except EtcdError:
            await deferLater(owners.reactor, _AGAIN)
            continue
        if departures.of.get(client_id) is not leaves:
            return
        if answer.done and waits:
            owners.owned[client_id] = answer.revision
            owners.tried.won(client_id, leaves.to)
            owners.keep_here(client_id, answer.revision, departures.recall(client_id))
            return
        if not answer.done and not answer.found:
            leaves.doubt = waits = True  # nobody has it, and nobody will say that he has
            continue
        if answer.found and answer.found[0].changed != leaves.revision:
            kv = answer.found[0]
            owner = owners.keys.owner(kv).node
            if not owner:
                # It cannot be read; who claims it writes it anew.
                await deferLater(owners.reactor, _AGAIN)
                continue
            if leaves.doubt and not leaves.refused:
                awaited = arrivals.is_left(leaves.to) or arrivals.home_of(leaves.to) >= 0
                await deferLater(owners.reactor, _AGAIN if waits else _LATE)
                if departures.of.get(client_id) is not leaves:
                    return
                if waits and awaited:
                    continue
            _give(owners, client_id, owner, kv.changed)
            return
        await deferLater(owners.reactor, _AGAIN)


def _give(owners: _Owners, client_id: str, owner: str, revision: int) -> None:
    """It is for who has claimed it in this revision."""
    departures, arrivals = owners.moves.departures, owners.moves.arrivals
    if owner != owners.name:
        state, remains = departures.take(client_id)  # the store keeps it on its way there, too
        departures.begin(client_id, owner, revision, state, remains)
    elif arrivals.find(client_id, revision) is not None:
        arrivals.brought_back(client_id, revision)
        if client_id in departures.of:
            departures.forget(client_id)  # what has come is later
    else:
        owners.owned[client_id] = revision
        owners.keep_here(client_id, revision, departures.recall(client_id))
