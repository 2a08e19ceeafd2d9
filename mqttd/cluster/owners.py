"""Who has a client id, of all nodes: asked of etcd between *authenticated* and *accepted*.

    claim --> nobody has it --> written, if still nobody has --> ours
          --> a node has it --> written, if nothing has changed, and with it `taken/<node>/<client>`
                                  that node's watch --> its session ends --`moves`--> here
                                                   '-- not within `PATIENCE` s: try again

The epoch of an ownership is the revision of etcd in which it was written: of two that claim at the
same time one is told that something has changed, and begins anew. All that a node has is under its
lease; when that has ended, and it is a member again, what nobody has taken is written anew, and the
sessions of client ids that somebody has taken end.

Promise: what is ours already is answered at once; while etcd does not answer nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, TimeoutError
from zope.interface import implementer

from mqttd.cluster.etcd import Etcd, EtcdError, absent, equals, get, put, remove
from mqttd.cluster.keys import Keys
from mqttd.cluster.moves import Moves
from mqttd.interfaces import IRegistry
from mqttd.types import Claim, Held, SessionState

__all__ = ["Owners"]

#: Seconds that a session which moves is waited for.
PATIENCE: Final = 4.0
#: How often a claim begins anew because somebody else was faster.
_TRIES: Final = 10
#: Client ids in one request.
_MANY: Final = 100


@implementer(IRegistry)
class Owners:
    """The client ids of one node; `is_there` says whether another node is a member."""

    def __init__(self, etcd: Etcd, keys: Keys, name: str, reactor: Any,
                 is_there: Callable[[str], bool]) -> None:  # fmt: skip
        self.etcd = etcd
        self.keys = keys
        self.name = name
        self.reactor = reactor
        self.is_there = is_there
        self.lease = 0
        #: Client id -> revision in which etcd has written that it is ours.
        self.owned: dict[str, int] = {}
        #: What is ours may be somebody else's by now: nobody is let in.
        self.strict = False
        #: Takes a session of ours away, and how many have come and gone.
        self.hand_over: Callable[[str, int], SessionState | None] = lambda client_id, epoch: None
        #: Set by who makes both: brings the sessions.
        self.moves: Moves
        self.came = 0
        self.went = 0
        self.without = 0
        #: Claims under way, and those who have taken a client id from one: node and revision.
        self._claiming: dict[str, int] = {}
        self._passed: dict[str, tuple[str, int]] = {}
        #: Is told of a session that is lost, and why.
        self.lost: Callable[[str, str], object] = lambda *_: None
        #: Takes in a session whose client is away: client id, epoch, state.
        self.keeps: Callable[[str, int, SessionState], object] = lambda *_: None

    # -- IRegistry -----------------------------------------------------------------------------

    def claim(self, client_id: str, principal: str | None) -> Claim | Deferred[Claim]:
        """As `IRegistry.claim`."""
        revision = self.owned.get(client_id)
        origin = self.moves.origin_of(client_id)
        if revision is not None and not self.strict and not origin:
            return Claim(revision, Held.HERE)
        if not self.lease:
            raise EtcdError("etcd does not answer")
        if revision is None or not origin:
            revision = 0
        return Deferred.fromCoroutine(self._claim(client_id, origin, revision))

    async def _claim(self, client_id: str, origin: str, revision: int) -> Claim:
        self._claiming[client_id] = self._claiming.get(client_id, 0) + 1
        try:
            if revision:
                claim = await self._moved(client_id, origin, revision)
            else:
                claim = await self._claim_now(client_id)
            return self._still(client_id, claim)
        finally:
            self._passed.pop(client_id, None)
            self._claiming[client_id] -= 1
            if not self._claiming[client_id]:
                del self._claiming[client_id]
                self._keep_left_over(client_id)

    def _still(self, client_id: str, claim: Claim) -> Claim:
        """A claim that is answered, unless another has taken the client id meanwhile."""
        passed = self._passed.pop(client_id, None)
        if passed is None:
            return claim
        by, revision = passed
        if revision < claim.epoch:
            return claim  # and was ours again after that
        self.owned.pop(client_id, None)
        self.moves.hand(client_id, by, revision, claim.state)
        raise EtcdError(f"node {by!r} has claimed it after this one")

    async def _claim_now(self, client_id: str) -> Claim:
        key, own = self.keys.own(client_id), self.name.encode()
        lease = self.lease
        answer = await self.etcd.transaction([absent(key)], [put(key, own, lease)], [get(key)])
        if answer.done:
            self.owned[client_id] = answer.revision
            return Claim(answer.revision, Held.NOWHERE)
        for _ in range(_TRIES):
            found = answer.found[0] if answer.found else None
            when = absent(key) if found is None else equals(key, found.changed)
            other = "" if found is None else found.value.decode()
            then = [put(key, own, lease)]
            moves = other not in ("", self.name) and self.is_there(other)
            if moves:
                then.append(put(self.keys.taken(other, client_id), own, lease))
            answer = await self.etcd.transaction([when], then, [get(key)])
            if answer.done:
                self.owned[client_id] = answer.revision
                if not moves:
                    return Claim(answer.revision, Held.NOWHERE)
                return await self._moved(client_id, other, answer.revision)
        raise EtcdError(f"{_TRIES} others have claimed this client id meanwhile")

    async def _moved(self, client_id: str, origin: str, revision: int) -> Claim:
        """The claim of a session that another node has, when that has come."""
        moved = self.moves.wanted(client_id, origin, revision)
        moved.addTimeout(PATIENCE, self.reactor)
        try:
            state = await moved
        except TimeoutError:
            self.without += 1
            raise EtcdError(f"its session has not come from node {origin!r} yet") from None
        finally:
            self.moves.unwanted(client_id)
        self.came += state is not None
        return Claim(revision, Held.NODE, origin, state)

    def expects(self, client_id: str, revision: int) -> bool:
        """Whether a session is asked for that another node sends, as far as is known here."""
        return client_id in self._claiming or self.owned.get(client_id) == revision

    async def is_ours(self, client_id: str, revision: int) -> bool:
        """The same as etcd knows it: its answer to a claim may not have come."""
        while self.lease:
            try:
                answer = await self.etcd.transaction([], [get(self.keys.own(client_id))])
            except EtcdError:
                continue
            kv = answer.found[0] if answer.found else None
            return kv is not None and kv.changed == revision and kv.value == self.name.encode()
        return False

    def pull(self, client_id: str) -> None:
        """Claim what another node gives away."""
        if client_id not in self.owned and client_id not in self._claiming and self.lease:
            pulled = Deferred.fromCoroutine(self._pull(client_id))
            pulled.addErrback(lambda failure: None)  # it is offered again

    async def _pull(self, client_id: str) -> None:
        claim = await self._claim(client_id, "", 0)
        if claim.state is not None:
            self.keeps(client_id, claim.epoch, claim.state)
        elif claim.held is not Held.HERE:
            self.release(client_id, claim.epoch)

    def unclaimed(self, client_id: str, revision: int, back: SessionState | None) -> None:
        """A session has come that nobody waits for, or is `back`: who claimed it is gone."""
        if back is not None:
            taken = Deferred.fromCoroutine(self._take_back(client_id, back))
            taken.addErrback(lambda failure: self.lost(client_id, failure.getErrorMessage()))
        elif client_id not in self._claiming:
            self._keep_left_over(client_id)

    def _keep_left_over(self, client_id: str) -> None:
        revision, state = self.moves.left_over(client_id)
        if revision:
            self.owned[client_id] = revision
            if state is not None:
                self.came += 1
                self.keeps(client_id, revision, state)
            else:
                self.release(client_id, revision)

    async def _take_back(self, client_id: str, state: SessionState) -> None:
        key = self.keys.own(client_id)
        answer = await self.etcd.transaction(
            [absent(key)], [put(key, self.name.encode(), self.lease)], [get(key)]
        )
        if not answer.done:
            raise EtcdError("another node has claimed it as new")
        self.owned[client_id] = answer.revision
        self.keeps(client_id, answer.revision, state)

    def release(self, client_id: str, epoch: int) -> Deferred[None] | None:
        """As `IRegistry.release`."""
        revision = self.owned.pop(client_id, None)
        if revision is None or not self.lease:
            return None
        return Deferred.fromCoroutine(self._release(client_id, revision))

    async def _release(self, client_id: str, revision: int) -> None:
        key = self.keys.own(client_id)
        try:
            await self.etcd.transaction([equals(key, revision)], [remove(key)])
        except EtcdError:
            pass  # it stays ours in name, until somebody takes it or the lease ends

    def watch(self, taken: Callable[[str, int], SessionState | None]) -> None:
        """As `IRegistry.watch`."""
        self.hand_over = taken

    def description(self) -> str:
        """As `IRegistry.description`."""
        return f"the nodes of a cluster, by etcd at {', '.join(self.etcd.endpoints)}"

    # -- others take, and the lease begins anew ------------------------------------------------

    def taken(self, client_id: str, by: str, revision: int) -> None:
        """A node has this client id since `revision`: the session ends here, and goes there."""
        if self.owned.get(client_id, 0) > revision:
            return  # it is ours again
        self.owned.pop(client_id, None)
        if client_id in self._claiming:
            # Its session, if it has one, is on its way to us: it goes on when it has come.
            self._passed[client_id] = (by, revision)
            return
        state = self.hand_over(client_id, revision)
        self.went += state is not None
        self.moves.hand(client_id, by, revision, state)

    def forget_taken(self, client_id: str, revision: int) -> None:
        """We know that it was taken: etcd need not say so any longer."""
        Deferred.fromCoroutine(self._forget_taken(client_id, revision))

    async def _forget_taken(self, client_id: str, revision: int) -> None:
        key = self.keys.taken(self.name, client_id)
        try:
            await self.etcd.transaction([equals(key, revision)], [remove(key)])
        except EtcdError:
            pass  # it is under the lease of who has taken it

    async def claim_all(self, client_ids: list[str]) -> int:
        """Claim those that nobody has; the sessions of the others end. Returns how many."""
        lost = 0
        own = self.name.encode()
        for at in range(0, len(client_ids), _MANY):
            some = client_ids[at : at + _MANY]
            wanted = [self.keys.own(client_id) for client_id in some]
            answer = await self.etcd.transaction(
                [absent(key) for key in wanted],
                [put(key, own, self.lease) for key in wanted],
                [get(key) for key in wanted],
            )
            if answer.done:
                self.owned.update(dict.fromkeys(some, answer.revision))
                continue
            held = {kv.key: kv for kv in answer.found}
            for client_id, key in zip(some, wanted, strict=True):
                lost += await self._claim_one(client_id, key, held.get(key))
        return lost

    async def _claim_one(self, client_id: str, key: bytes, held: Any) -> bool:
        """Claim a client id that nobody has; whether somebody had it."""
        own = self.name.encode()
        if held is not None and held.value == own and held.lease == self.lease:
            self.owned[client_id] = held.changed
            return False
        if held is None or held.value == own:
            when = absent(key) if held is None else equals(key, held.changed)
            answer = await self.etcd.transaction([when], [put(key, own, self.lease)], [get(key)])
            if answer.done:
                self.owned[client_id] = answer.revision
                return False
            held = answer.found[0] if answer.found else None
        if held is not None:
            # Of two sessions the one of the newer epoch stays: nobody has asked for ours.
            self.owned.pop(client_id, None)
            if client_id in self._claiming:
                self._passed[client_id] = (held.value.decode(), held.changed)
            self.hand_over(client_id, held.changed)
        return True
