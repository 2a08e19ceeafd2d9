"""What etcd says of this node's client ids, put right afterwards.

    a lease has ended, `session.owner` is another --> all that is here is claimed anew; what another
                                                      has goes to who has taken it from here, though
                                                      we have not heard of that, else to that one
    a new session that outlasts its connection    --> waits for this node: under its home
    one has come, and etcd does not say whose     --> it says so when our store has it
    an end that was not written, a claim whose
    answer has not come                           --> nobody's, if nobody here knows of it

A client id that is nobody's any more, and somebody's in etcd, would keep out all but that user.

Promise: each key is changed as it was read, or not at all; where etcd does not answer, it is tried
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred, DeferredLock

from mqttd.cluster.etcd.client import Etcd, Json, Kv, absent, equals, get, nested, put, remove
from mqttd.cluster.etcd.keys import Keys, Owner, owner_of
from mqttd.cluster.sessions.moves import Moves
from mqttd.session.session import Session

__all__ = ["Amends"]

#: Client ids in one request; ends that are still to be told, the oldest go; and seconds until then.
_MANY: Final = 100
MOST: Final = 100_000
_AGAIN: Final = 1.0


class _Owners(Protocol):
    """See `mqttd.cluster.sessions.owners.Owners`."""

    etcd: Etcd
    name: str
    keys: Keys
    reactor: Any
    lease: int
    home: int
    all_lasts: bool
    owned: dict[str, int]
    sessions: Mapping[str, Session]
    moves: Moves
    turns: dict[str, DeferredLock]

    def user(self, client_id: str, username: str | None) -> str:
        """Whose a session is, for etcd."""

    def value_of(self, client_id: str, otherwise: str = "") -> bytes:
        """What etcd is to say of it, with the session that is here."""

    def lease_of(self, client_id: str) -> int:
        """Under which lease it is to say that."""

    def is_elsewhere(self, client_id: str, owner: str, revision: int) -> None:
        """Another node has it."""

    def taken(self, client_id: str, by: str, revision: int) -> None:
        """A node has claimed it of this one."""

    async def let_go(self, client_id: str, revision: int) -> None:
        """Etcd is to say no more that this is ours."""


class Amends:
    """Those of one node."""

    def __init__(self, owners: _Owners) -> None:
        self.owners = owners
        #: Client ids that were claimed, and have no session here yet: whose they are by etcd.
        self.said: dict[str, str] = {}
        #: Of those, what went under the lease, by which nothing outlasts this node.
        self.brief: set[str] = set()
        #: Those that are to be written anew; whether only if they are to stay.
        self._anew: dict[str, bool] = {}
        #: Those that have ended, or may have; the revision in which they were ours, 0: not known.
        self._ended: dict[str, int] = {}
        self._called = False

    # -- all of them -----------------------------------------------------------------------------

    async def claim_all(self, client_ids: list[str]) -> int:
        """Claim those that nobody has; the sessions of the others go there. Returns how many."""
        owners, lost = self.owners, 0
        for at in range(0, len(client_ids), _MANY):
            some = {owners.keys.own(each): each for each in client_ids[at : at + _MANY]}
            found = (await owners.etcd.transaction([], [get(key) for key in some])).found
            held = {kv.key: kv for kv in found}
            wanted: list[tuple[str, Json, Json]] = []
            elsewhere: list[tuple[str, str, int]] = []
            for key, client_id in some.items():
                kv = held.get(key)
                said = self.said.get(client_id, "")
                known = Owner("", "", said) if kv is None else owners.keys.owner(kv)
                lease = owners.lease_of(client_id)
                value = owners.value_of(client_id, known.user)
                if kv is not None and known.node not in (owners.name, ""):
                    elsewhere.append((client_id, known.node, kv.changed))
                elif (
                    known.node and kv is not None and kv.lease == lease
                    and known.user == owner_of(value).user
                ):  # fmt: skip
                    self._is_ours(client_id, kv.changed)
                else:
                    when = absent(key) if kv is None else equals(key, kv.changed)
                    wanted.append((client_id, when, put(key, value, lease)))
            await self._let_go(elsewhere)
            await self._put_all(wanted)
            lost += len(elsewhere)
        return lost

    async def _let_go(self, some: list[tuple[str, str, int]]) -> None:
        """These go to who has taken them from us, if etcd says who: others ask that one for them.

        Who has them by now may have been told so already, and have claimed them anew.
        """
        owners = self.owners
        keys = {owners.keys.taken(owners.name, each): each for each, _, _ in some}
        read = [get(key) for key in keys]
        found = (await owners.etcd.transaction([], read)).found if read else ()
        taken = {keys[kv.key]: kv for kv in found}
        for client_id, owner, revision in some:
            kv, ours = taken.get(client_id), owners.owned.get(client_id, 0)
            if kv is not None and kv.changed > ours:
                owners.taken(client_id, kv.value.decode(errors="replace"), kv.changed)
            elif revision > ours:
                owners.is_elsewhere(client_id, owner, revision)

    async def _put_all(self, wanted: list[tuple[str, Json, Json]]) -> None:
        """Each of these, if its condition holds."""
        if not wanted:
            return
        owners = self.owners
        answer = await owners.etcd.transaction([], [nested(when, then) for _, when, then in wanted])
        for (client_id, _, _), done in zip(wanted, answer.nested, strict=True):
            if done:
                self._is_ours(client_id, answer.revision)
            elif client_id in owners.owned:
                del owners.owned[client_id]  # who has claimed it has told us, or is about to

    def _is_ours(self, client_id: str, revision: int) -> None:
        if self._is_over(client_id):
            self.ended(client_id, revision)  # meanwhile
        else:
            self.owners.owned[client_id] = revision
            self.owners.moves.arrivals.renewed(client_id, revision)

    # -- what has come, and stays ----------------------------------------------------------------

    def claimed(self, client_id: str, user: str, lasts: bool) -> None:
        """It is ours, this user's by etcd, and has no session here yet; `lasts`: by our home."""
        self.said[client_id] = user
        if not lasts:
            self.brief.add(client_id)

    def forget(self, client_id: str) -> None:
        """It is ours no more."""
        self.said.pop(client_id, None)
        self.brief.discard(client_id)

    def entered(self, session: Session, with_state: bool) -> None:
        """A session is here."""
        owners, client_id = self.owners, session.client_id
        said, brief = self.said.get(client_id), client_id in self.brief
        self.forget(client_id)
        if said is not None and said != owners.user(client_id, session.username):
            journal = session.server.journal
            journal.when_kept(partial(self._write_later, client_id, False))
        elif (brief or not with_state) and owners.home != owners.lease and not owners.all_lasts:
            self._write_later(client_id, True)

    def _write_later(self, client_id: str, stays: bool, seconds: float = 0) -> None:
        if not self._anew:
            self.owners.reactor.callLater(seconds, self._write)
        self._anew[client_id] = stays

    def _write(self) -> None:
        anew, self._anew = self._anew, {}
        owners = self.owners
        some = [
            client_id
            for client_id, stays in anew.items()
            if client_id in owners.owned
            and (not stays or owners.lease_of(client_id) == owners.home)
        ]
        if some and owners.lease:
            done = Deferred.fromCoroutine(self._write_all(some))
            done.addErrback(lambda failure: self._write_again({each: anew[each] for each in some}))

    def _write_again(self, some: dict[str, bool]) -> None:
        """Etcd has not answered; where the lease ends meanwhile all is claimed anew."""
        for client_id, stays in some.items():
            self._write_later(client_id, stays, _AGAIN)

    async def _write_all(self, client_ids: list[str]) -> None:
        owners = self.owners
        for at in range(0, len(client_ids), _MANY):
            some = client_ids[at : at + _MANY]
            some = [each for each in some if each in owners.owned and each in owners.sessions]
            before = {each: owners.owned[each] for each in some}
            changes = [
                nested(equals(owners.keys.own(each), before[each]),
                       put(owners.keys.own(each), owners.value_of(each), owners.lease_of(each)))
                for each in some
            ]  # fmt: skip
            if not changes:
                continue
            answer = await owners.etcd.transaction([], changes)
            for client_id, done in zip(some, answer.nested, strict=True):
                if done and owners.owned.get(client_id) == before[client_id]:
                    owners.owned[client_id] = answer.revision
                elif done and client_id not in owners.owned:
                    await owners.let_go(client_id, answer.revision)  # it has ended meanwhile

    # -- what has ended --------------------------------------------------------------------------

    def ended(self, client_id: str, revision: int = 0) -> None:
        """Etcd may say that it is ours, in this revision (0: that is not known), and it is not."""
        if len(self._ended) >= MOST:
            del self._ended[next(iter(self._ended))]
        self._ended[client_id] = revision
        self._end_later()

    def _end_later(self) -> None:
        if self._ended and not self._called:
            self._called = True
            self.owners.reactor.callLater(_AGAIN, self._end)

    def _end(self) -> None:
        def done(result: object) -> None:
            self._called = False
            self._end_later()

        if self.owners.lease:
            Deferred.fromCoroutine(self._end_some()).addBoth(done)
        else:
            done(None)

    async def _end_some(self) -> None:
        owners = self.owners
        some = dict(islice(self._ended.items(), _MANY))
        keys = {owners.keys.own(each): each for each in some if self._is_over(each)}
        found: tuple[Kv, ...] = ()
        if keys:
            found = (await owners.etcd.transaction([], [get(key) for key in keys])).found
        over = []
        for kv in found:
            revision = some[keys[kv.key]]
            # One that was claimed of another node comes from there, and is ours then.
            if kv.changed == revision or (
                not revision and owners.keys.owner(kv)[:2] == (owners.name, "")
            ):
                over.append(nested(equals(kv.key, kv.changed), remove(kv.key)))
        if over:
            await owners.etcd.transaction([], over)
        looked_at = set(keys.values())
        for client_id, revision in some.items():
            if self._ended.get(client_id) != revision:
                continue
            del self._ended[client_id]
            if client_id not in looked_at and client_id not in owners.owned:
                self._ended[client_id] = revision  # it is claimed, and that may fail

    def _is_over(self, client_id: str) -> bool:
        """Whether nobody here has it, claims it, or waits for its session."""
        owners = self.owners
        known = (owners.owned, owners.turns, owners.sessions, owners.moves.arrivals.of)
        return not any(client_id in each for each in (*known, owners.moves.departures.of))
