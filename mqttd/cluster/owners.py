"""Who has a client id, of all nodes: asked of etcd between *authenticated* and *accepted*.

    claim --> nobody has it --> written, if still nobody has --> ours
          --> a node has it --> written, if nothing has changed, and with it `taken/<node>/<client>`
                                  that node's watch --> its session ends --STATE--> here
                                                   '-- not within `PATIENCE` s: without its state

The epoch of an ownership is the revision of etcd in which it was written: of two that claim at the
same time one is told that something has changed, and begins anew. All that a node has is under its
lease; when that has ended, and it is a member again, what nobody has taken is written anew, and the
sessions of client ids that somebody has taken end.

Promise: what is ours already is answered at once; while etcd does not answer nothing else is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from zope.interface import implementer

from mqttd.cluster.etcd import Etcd, EtcdError, absent, equals, get, put, remove
from mqttd.cluster.keys import Keys
from mqttd.interfaces import IRegistry
from mqttd.types import Claim, Held, SessionState

__all__ = ["Owners"]

#: Seconds that a session which moves is waited for.
PATIENCE: Final = 2.0
#: How often a claim begins anew because somebody else was faster.
_TRIES: Final = 10
#: Client ids in one request.
_MANY: Final = 100


async def _nothing(state: SessionState) -> None:
    pass


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
        #: Is told of a session that comes, before its client is accepted.
        self.arrives: Callable[[SessionState], Awaitable[None]] = _nothing
        self.came = 0
        self.went = 0
        self.without = 0
        #: Claims under way, and those who have taken a client id from one: node and revision.
        self._claiming: dict[str, int] = {}
        self._passed: dict[str, tuple[str, int]] = {}
        #: Sessions that came before etcd had said that the client id is ours.
        self._early: dict[str, tuple[int, SessionState | None]] = {}
        #: Takes in a session whose client is away: client id, epoch, state.
        self.keeps: Callable[[str, int, SessionState], object] = lambda *_: None
        #: Sends a session on: client id, node, revision, state.
        self.hands: Callable[[str, str, int, SessionState | None], object] = lambda *_: None
        self._waiting: dict[str, tuple[int, Deferred[SessionState | None]]] = {}

    # -- IRegistry -----------------------------------------------------------------------------

    def claim(self, client_id: str, principal: str | None) -> Claim | Deferred[Claim]:
        """As `IRegistry.claim`."""
        revision = self.owned.get(client_id)
        if revision is not None and not self.strict:
            return Claim(revision, Held.HERE)
        if not self.lease:
            raise EtcdError("etcd does not answer")
        return Deferred.fromCoroutine(self._claim(client_id))

    async def _claim(self, client_id: str) -> Claim:
        self._claiming[client_id] = self._claiming.get(client_id, 0) + 1
        try:
            claim = await self._claim_now(client_id)
            return self._still(client_id, claim)
        finally:
            self._passed.pop(client_id, None)
            self._claiming[client_id] -= 1
            if not self._claiming[client_id]:
                del self._claiming[client_id]
            revision, state = self._early.pop(client_id, (0, None))
            if state is not None:
                # etcd has not told us so in time, but it is ours.
                self.owned[client_id] = revision
                self.keeps(client_id, revision, state)

    def _still(self, client_id: str, claim: Claim) -> Claim:
        """A claim that is answered, unless another has taken the client id meanwhile."""
        passed = self._passed.pop(client_id, None)
        if passed is None:
            return claim
        by, revision = passed
        if revision < claim.epoch:
            return claim  # and was ours again after that
        self.owned.pop(client_id, None)
        self.hands(client_id, by, revision, claim.state)
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
                state = await self._moved(client_id, answer.revision)
                if state is not None:
                    await self.arrives(state)
                return Claim(answer.revision, Held.NODE, other, state)
        raise EtcdError(f"{_TRIES} others have claimed this client id meanwhile")

    def _moved(self, client_id: str, revision: int) -> Deferred[SessionState | None]:
        early = self._early.pop(client_id, None)
        if early is not None and early[0] == revision:
            self.came += early[1] is not None
            return succeed(early[1])
        moved: Deferred[SessionState | None] = Deferred()
        self._waiting[client_id] = (revision, moved)
        late = self.reactor.callLater(PATIENCE, self._late, client_id, revision)

        def done(result: SessionState | None) -> SessionState | None:
            try:
                late.cancel()
            except (AlreadyCalled, AlreadyCancelled):
                pass
            return result

        return moved.addCallback(done)

    def _late(self, client_id: str, revision: int) -> None:
        self.without += 1
        self.moved(client_id, revision, None)

    def moved(self, client_id: str, revision: int, state: SessionState | None) -> bool:
        """A session has come, or there was none; False if nobody waits for it."""
        waiting = self._waiting.get(client_id)
        if waiting is None and client_id in self._claiming:
            # It was faster than etcd's answer to us.
            self._early[client_id] = (revision, state)
            return True
        if waiting is None or waiting[0] != revision:
            return False
        del self._waiting[client_id]
        if state is not None:
            self.came += 1
        waiting[1].callback(state)
        return True

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
        self.went += 1
        self.hands(client_id, by, revision, state)

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
            self.taken(client_id, held.value.decode(), held.changed)
        return True
