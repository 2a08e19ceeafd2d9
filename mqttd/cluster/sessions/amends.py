"""What etcd says of this node's client ids, put right afterwards.

    a lease has ended, `session.owner` is another --> all that is here is claimed anew; what another
                                                      has goes to who has taken it from here, though
                                                      we have not heard of that, else to that one
    it had left when we were killed               --> leaves again, and is asked for: `Left`
    a new session that outlasts its connection    --> waits for this node: under its home
    one has come, and etcd does not say whose     --> it says so when our store has it
    an end that was not written, a claim whose
    answer has not come                           --> nobody's, if nobody here knows of it

A client id that is nobody's any more, and somebody's in etcd, would keep out all but that user.

Promise: each key is changed as it was read, and as the member that read it (`Owners.fence`), or not
at all: what comes late to etcd would have a session dropped that another is taking over. While that
is so, nothing is said. Where etcd does not answer, it is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred, DeferredLock

from mqttd.cluster.etcd.client import (
    Answer,
    Etcd,
    EtcdError,
    Json,
    Kv,
    absent,
    equals,
    get,
    nested,
    put,
    remove,
)
from mqttd.cluster.etcd.keys import Keys, Owner, owner_of
from mqttd.cluster.etcd.many import Many
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.silence import Silence
from mqttd.cluster.sessions.tried import Tried
from mqttd.cluster.wills.willed import end_for_another
from mqttd.session.session import Session
from mqttd.types import SessionState

__all__ = ["Amends"]

#: Client ids in one request; ends that are still to be told, the oldest go; and seconds until then.
_MANY: Final = 100
MOST: Final = 100_000
_AGAIN: Final = 1.0


class _Owners(Protocol):
    """See `mqttd.cluster.sessions.owners.Owners`."""

    etcd: Etcd
    many: Many
    name: str
    keys: Keys
    reactor: Any
    lease: int
    home: int
    all_lasts: bool
    silence: Silence
    fence: list[Json]
    owned: dict[str, int]
    sessions: Mapping[str, Session]
    moves: Moves
    turns: dict[str, DeferredLock]
    tried: Tried
    hand_over: Callable[..., SessionState | None]

    def user(self, client_id: str, username: str | None) -> str:
        """Whose a session is, for etcd."""

    def value_of(self, client_id: str, otherwise: str = "") -> bytes:
        """What etcd is to say of it, with the session that is here."""

    def lease_of(self, client_id: str) -> int:
        """Under which lease it is to say that."""

    def is_elsewhere(self, client_id: str, owner: str, revision: int, of: str) -> None:
        """Another node has it, which has claimed it of this one."""

    def taken(self, client_id: str, by: str, revision: int) -> None:
        """A node has claimed it of this one."""


class Amends:
    """Those of one node."""

    def __init__(self, owners: _Owners) -> None:
        self.owners = owners
        #: Client ids that were claimed, and have no session here yet: whose they are by etcd.
        self.said: dict[str, str] = {}
        #: Of those, what went under the lease, by which nothing outlasts this node.
        self.brief: set[str] = set()
        #: And what nobody had, and went under our home: etcd says all of it.
        self.lasting: set[str] = set()
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
            fence = owners.fence
            some = {owners.keys.own(each): each for each in client_ids[at : at + _MANY]}
            before = {each: owners.owned.get(each, 0) for each in some.values()}
            found = (await owners.etcd.transaction([], [get(key) for key in some])).found
            held = {kv.key: kv for kv in found}
            wanted: list[tuple[str, Json, Json]] = []
            elsewhere: list[tuple[str, Owner, int]] = []
            for key, client_id in some.items():
                if not self._is_as(client_id, before[client_id]):
                    continue  # it has left, or was claimed, since that was asked
                kv = held.get(key)
                said = self.said.get(client_id, "")
                known = Owner("", "", said) if kv is None else owners.keys.owner(kv)
                lease = owners.lease_of(client_id)
                value = owners.value_of(client_id, known.user)
                changed = 0 if kv is None else kv.changed
                was_away = not changed or (known.node == owners.name and known.origin)
                if was_away and self.leave_again(client_id, known.origin, changed):
                    continue
                if kv is not None and known.node not in (owners.name, ""):
                    elsewhere.append((client_id, known, kv.changed))
                elif (
                    known.node and kv is not None and kv.lease == lease
                    and known.user == owner_of(value).user
                ):  # fmt: skip
                    self._is_ours(client_id, kv.changed, before[client_id])
                else:
                    when = absent(key) if kv is None else equals(key, kv.changed)
                    wanted.append((client_id, when, put(key, value, lease)))
            await self._let_go(elsewhere)
            await self._put_all(wanted, before, fence)
            lost += len(elsewhere)
        owners.moves.seen()  # who waits for what is on its way here has it, or not
        return lost

    def leave_again(self, client_id: str, of: str = "", revision: int = 0) -> bool:
        """What our store has of one that had left when we were killed leaves again, if it had.

        of: of whom we have claimed it since, in this revision; empty: of that one, if at all, as
        far as is known (`Tried`).
        """
        owners = self.owners
        found = owners.moves.transit.left.of(client_id)
        if found is None or client_id not in owners.sessions:
            return False
        state = end_for_another(owners.moves, owners.hand_over, client_id, found[1])
        if state is None:
            return False
        owners.tried.claims(client_id, *found)
        owners.moves.hand(client_id, *found, state, doubt=True)
        if of:
            before = "" if of == found[0] else found[0]
            owners.moves.arrivals.suppose(client_id, of, revision - 1, revision, before)
        return True

    async def _let_go(self, some: list[tuple[str, Owner, int]]) -> None:
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
                owners.is_elsewhere(client_id, owner.node, revision, owner.origin)

    async def _put_all(
        self, wanted: list[tuple[str, Json, Json]], before: dict[str, int], fence: list[Json]
    ) -> None:
        """Each of these, if its condition holds; `before`: as what they were known to be ours."""
        if not wanted:
            return
        owners = self.owners
        answer = await self._changed(fence, [nested(when, then) for _, when, then in wanted])
        for (client_id, _, _), done in zip(wanted, answer.nested, strict=True):
            if done:
                self._is_ours(client_id, answer.revision, before[client_id])
            elif owners.owned.get(client_id) == before[client_id]:
                del owners.owned[client_id]  # who has claimed it has told us, or is about to

    async def _changed(self, fence: list[Json], changes: list[Json]) -> Answer:
        """Etcd's answer to these. Raises EtcdError, also where `fence` does not hold any more."""
        answer = await self.owners.etcd.transaction(fence, changes)
        if not answer.done:
            raise EtcdError("this node is no member any more")
        return answer

    def _is_as(self, client_id: str, before: int) -> bool:
        """Whether it is here, or comes, as it did when etcd was asked: that may be a while ago."""
        owners = self.owners
        is_here = client_id in owners.sessions or owners.moves.arrivals.pending(client_id)
        return owners.owned.get(client_id, 0) == before and bool(before or is_here)

    def _is_ours(self, client_id: str, revision: int, before: int) -> None:
        if self._is_over(client_id):
            self.ended(client_id, revision)  # meanwhile
        elif self._is_as(client_id, before):
            self.owners.owned[client_id] = revision
            self.owners.moves.transit.left.over(client_id)
            self.owners.moves.arrivals.renewed(client_id, revision, self.owners.lease)

    # -- what has come, and stays ----------------------------------------------------------------

    def claimed(self, client_id: str, user: str, lasts: bool, new: bool) -> None:
        """It is ours, this user's by etcd, and has no session here yet; `lasts`: by our home;
        `new`: nobody had it."""
        self.said[client_id] = user
        if not lasts:
            self.brief.add(client_id)
        elif new:
            self.lasting.add(client_id)

    def forget(self, client_id: str) -> None:
        """It is ours no more."""
        self.said.pop(client_id, None)
        self.brief.discard(client_id)
        self.lasting.discard(client_id)

    def entered(self, session: Session, with_state: bool) -> None:
        """A session is here."""
        owners, client_id = self.owners, session.client_id
        said, brief = self.said.get(client_id), client_id in self.brief
        anew = brief or not (with_state or client_id in self.lasting)
        self.forget(client_id)
        owners.tried.is_here(client_id, owners.owned.get(client_id, 0))
        if said is not None and said != owners.user(client_id, session.username):
            journal = session.server.journal
            journal.when_kept(partial(self._write_later, client_id, False))
        elif anew and owners.home != owners.lease and not owners.all_lasts:
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
            done = Deferred.fromCoroutine(self._write_all(some, owners.fence))
            done.addErrback(lambda failure: self._write_again({each: anew[each] for each in some}))

    def _write_again(self, some: dict[str, bool]) -> None:
        """Etcd has not answered; where the lease ends meanwhile all is claimed anew."""
        for client_id, stays in some.items():
            self._write_later(client_id, stays, _AGAIN)

    async def _write_all(self, client_ids: list[str], fence: list[Json]) -> None:
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
            answer = await self._changed(fence, changes)
            for client_id, done in zip(some, answer.nested, strict=True):
                if done and owners.owned.get(client_id) == before[client_id]:
                    owners.owned[client_id] = answer.revision
                elif done and client_id not in owners.owned:
                    await self.let_go(client_id, answer.revision)  # it has ended meanwhile

    # -- what has ended --------------------------------------------------------------------------

    async def let_go(self, client_id: str, revision: int) -> None:
        """Etcd is to say no more that this is ours; later, where it does not answer."""
        owners, key = self.owners, self.owners.keys.own(client_id)
        try:
            if not owners.lease:
                raise EtcdError("etcd does not answer")
            owners.silence.check()
            when = [*owners.fence, equals(key, revision)]
            answer = await owners.many.transaction(when, [remove(key)], [get(key)])
            if any(kv.changed == revision for kv in answer.found):
                raise EtcdError("this node is no member any more")
        except EtcdError:
            self.ended(client_id, revision)

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

        if self.owners.lease and not self.owners.silence.lasts():
            Deferred.fromCoroutine(self._end_some(self.owners.fence)).addBoth(done)
        else:
            done(None)

    async def _end_some(self, fence: list[Json]) -> None:
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
            await self._changed(fence, over)
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
