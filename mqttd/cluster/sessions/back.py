"""A session that was to leave this node, and whose taker is gone: back here, or on its way again.

So is one whose taker says that it is not for it, and has nothing of it (`Leaving.refused`).

    not all of it was sent   --> nobody has claimed it since --> ours again
                             --> this node has --> it is here, unless that was of a third, which has
                                 one of later; another has --> it goes there
    all was sent, or that node had not claimed it of us: it may have let its client in, and have
    more than we have
        --> nobody has it any more, or it was given back --> ours again
        --> somebody has claimed it of that node --> is given what that has left, and asks us if
            that is nothing; so do we, if it is us

Promise: what may be somewhere else is not brought back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.internet.task import deferLater

from mqttd.cluster.etcd.client import EtcdError, Json, absent, equals, get, put
from mqttd.cluster.etcd.keys import Keys, Owner, claimed
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
    fence: list[Json]
    tried: Tried

    def user_in(self, client_id: str, state: SessionState) -> str:
        """Whose session this is, for etcd."""

    def keep_here(self, client_id: str, revision: int, state: SessionState) -> None:
        """A session is here whose client is away."""


async def bring_back(owners: _Owners, client_id: str, leaves: Leaving) -> None:
    """Have a session back, or send it on, as etcd says whose it is."""
    departures, arrivals = owners.moves.departures, owners.moves.arrivals
    key, told = owners.keys.own(client_id), owners.keys.taken(owners.name, client_id)
    own = claimed(owners.name, "", owners.user_in(client_id, leaves.state))
    waits, ours = True, 0
    while waits and departures.of.get(client_id) is leaves:
        # Where that is back, and is not taken over, it has what was for it.
        waits = leaves.refused or not owners.is_there(leaves.to)
        waits = waits or owners.silence.is_left(leaves.to)
        there = arrivals.brief_of(leaves.to)
        when = [absent(key) if leaves.doubt else equals(key, leaves.revision)]
        if not leaves.refused and not owners.is_there(leaves.to):
            when.append(absent(owners.keys.node(leaves.to)))  # else it is back, and waits for it
        if not owners.lease:
            await deferLater(owners.reactor, _AGAIN)
            continue
        lease = owners.lease
        try:
            then = [put(key, own, owners.home)] if waits else []
            if then:
                owners.tried.claims(client_id, leaves.to, leaves.revision)  # also without an answer
            asks = [get(key), get(told)]
            answer = await owners.many.transaction([*owners.fence, *when], then, asks)
        except EtcdError:
            await deferLater(owners.reactor, _AGAIN)
            continue
        if departures.of.get(client_id) is not leaves:
            return
        is_written = answer.done and waits
        if is_written:
            ours = answer.revision
        if lease != owners.lease:
            waits = True  # others may have claimed it since, and have told who we were
            continue
        read = {kv.key: kv for kv in answer.found}
        kv = read.get(key)
        changed = 0 if kv is None else kv.changed
        if (is_written or 0 < ours == changed) and not _is_awaited(owners, client_id, ours):
            owners.owned[client_id] = ours
            owners.tried.won(client_id, leaves.to)
            owners.keep_here(client_id, ours, departures.recall(client_id))
            return
        if is_written:
            continue
        if not answer.done and kv is None:
            if leaves.doubt:  # it is something else: that node is back, or we are no member
                await deferLater(owners.reactor, _AGAIN)
            leaves.doubt = waits = True  # nobody has it, and nobody will say that he has
            continue
        if kv is not None and changed != leaves.revision:
            known = owners.keys.owner(kv)
            if not known.node:
                # It cannot be read; who claims it writes it anew.
                await deferLater(owners.reactor, _AGAIN)
                continue
            if owners.name not in (known.node, known.origin):
                owners.tried.is_anothers(client_id, changed, told in read)
            if leaves.may_be_there:
                awaited = arrivals.is_left(leaves.to) or arrivals.home_of(leaves.to) >= 0
                await deferLater(owners.reactor, _AGAIN if waits else _LATE)
                if departures.of.get(client_id) is not leaves:
                    return
                if waits and awaited:
                    continue
                if not waits and arrivals.brief_of(leaves.to) != there:
                    return  # it was gone once more, which has begun this anew
            _give(owners, client_id, known, kv.changed, leaves)
            if departures.of.get(client_id) is not leaves or not leaves.refused:
                return
            # It is for who waits for something else first, which may be nothing: nobody asks then.
        await deferLater(owners.reactor, _AGAIN)


def _is_awaited(owners: _Owners, client_id: str, revision: int) -> bool:
    """Whether it comes for a claim of ours of then, or for who has claimed it of us since."""
    return any(each.by >= revision for each in owners.moves.arrivals.line(client_id))


def _give(owners: _Owners, client_id: str, known: Owner, revision: int, leaves: Leaving) -> None:
    """It is for who has claimed it in this revision."""
    departures, arrivals = owners.moves.departures, owners.moves.arrivals
    if known.node != owners.name:
        if arrivals.passed(client_id, known.node, revision):
            return  # by way of what we have claimed meanwhile: who waits for that has nothing else
        had = leaves.doubt or leaves.whole  # by who has nothing of it any more: so that one may
        state, remains = departures.take(client_id)  # the store keeps it on its way there, too
        departures.begin(client_id, known.node, revision, state, remains, doubt=had)
    elif known.origin and (known.origin != leaves.to or leaves.may_be_there):
        # Who has had it since, or may have, though no answer has told us that we have claimed it of
        # him: what leaves here is older, and is back only if that one has nothing.
        arrivals.suppose(client_id, known.origin, revision - 1, revision)
    elif (comes := arrivals.find(client_id, revision)) is not None:
        # Not where that node has claimed it anew since, of nobody or a third.
        same = comes.since in (0, leaves.revision) and comes.before in ("", owners.name)
        if same and not leaves.may_be_there:
            arrivals.brought_back(client_id, revision)
            if departures.of.get(client_id) is leaves:  # else it has gone on from here
                departures.drop(client_id)  # what has come is later
    else:
        owners.owned[client_id] = revision
        owners.keep_here(client_id, revision, departures.recall(client_id))
