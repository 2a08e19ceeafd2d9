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

from collections.abc import Callable, Mapping
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredLock, TimeoutError
from twisted.internet.task import deferLater
from zope.interface import implementer

from mqttd.cluster.back import bring_back
from mqttd.cluster.departures import Leaving
from mqttd.cluster.etcd import (
    Answer,
    Etcd,
    EtcdError,
    Json,
    absent,
    equals,
    get,
    nested,
    put,
    remove,
)
from mqttd.cluster.keys import Keys, claimed, owner_of
from mqttd.cluster.many import Many
from mqttd.cluster.moves import Moves
from mqttd.cluster.silence import Silence
from mqttd.cluster.willed import will_in, will_of, with_will
from mqttd.interfaces import IRegistry
from mqttd.session.session import Session
from mqttd.types import Claim, Held, SessionState

__all__ = ["Owners"]

#: Seconds that a session which moves is waited for.
PATIENCE: Final = 4.0
#: How often a claim begins anew because somebody else was faster.
_TRIES: Final = 10
#: Client ids in one request, claims of one that wait for one that is under way, and seconds before
#: etcd is asked again.
_MANY: Final = 100
_LINE: Final = 2
_AGAIN: Final = 1.0
_SOON: Final = 0.1


@implementer(IRegistry)
class Owners:
    """The client ids of one node; `is_there` says whether another node is a member."""

    def __init__(self, etcd: Etcd, keys: Keys, name: str, reactor: Any,
                 is_there: Callable[[str], bool]) -> None:  # fmt: skip
        self.etcd = etcd
        self.many = Many(etcd, reactor)
        self.keys = keys
        self.name = name
        self.reactor = reactor
        self.is_there = is_there
        #: What is ours is under the first; what outlasts its connection, under the second: all of
        #: it, where others take sessions over.
        self.lease = 0
        self.home = 0
        self.all_lasts = False
        #: Client id -> revision in which etcd has written that it is ours.
        self.owned: dict[str, int] = {}
        #: While others take sessions over; a claim is written while all of this is so, too.
        self.silence, self.fence = Silence(), list[Json]()
        #: What is ours may be somebody else's by now: nobody is let in.
        self.strict = False
        #: Takes a session of ours away, and how many have come and gone.
        self.hand_over: Callable[..., SessionState | None] = lambda *_: None
        #: Set by who makes both: brings the sessions.
        self.moves: Moves
        self.came = 0
        self.went = 0
        self.without = 0
        #: Claims under way, one after the other; those that etcd is asked for now, who has taken
        #: them meanwhile, and from whom one was claimed that etcd has not answered.
        self._turns: dict[str, DeferredLock] = {}
        self._asking: set[str] = set()
        self._passed: dict[str, tuple[str, int]] = {}
        self._tried: dict[str, str] = {}
        #: What we were told was taken, in which revision, until etcd says it no more.
        self._heard: dict[str, int] = {}
        #: Is told of a session that is lost, and why.
        self.lost: Callable[[str, str], object] = lambda *_: None
        #: The sessions that are here; takes in one whose client is away: client id, epoch, state;
        #: and has it end, and its will be published, in time.
        self.sessions: Mapping[str, Session] = {}
        self.keeps: Callable[[str, int, SessionState], object] = lambda *_: None
        self.resumes: Callable[[Session], object] = lambda session: None
        #: Sessions that have just begun.
        self._staying: dict[str, None] = {}

    # -- IRegistry -----------------------------------------------------------------------------

    def claim(self, client_id: str, principal: str | None) -> Claim | Deferred[Claim]:
        """As `IRegistry.claim`."""
        turn = self._turns.get(client_id)
        if turn is None and (claim := self._had(client_id)) is not None:
            return claim
        if not self.lease:
            raise EtcdError("etcd does not answer")
        if turn is not None and len(turn.waiting) >= _LINE:
            raise EtcdError("others claim this client id, and are not done")
        return Deferred.fromCoroutine(self._claim(client_id, ""))

    def _had(self, client_id: str) -> Claim | None:
        """What is ours, with its session, if it has one."""
        revision = self.owned.get(client_id)
        if revision is None or self.strict or self.moves.arrivals.pending(client_id):
            return None
        return Claim(revision, Held.HERE)

    async def _claim(self, client_id: str, giver: str) -> Claim:
        """One claim after the other; `giver`: the node that gives it away, or nobody."""
        turn = self._turns.setdefault(client_id, DeferredLock())
        await turn.acquire()
        try:
            claim = self._had(client_id) or await self._claim_now(client_id, giver)
            if giver:
                self._take_in(client_id, claim)
            return claim
        finally:
            if not turn.waiting:
                del self._turns[client_id]
                self._keep_left_over(client_id)
            turn.release()

    async def _claim_now(self, client_id: str, giver: str) -> Claim:
        """As etcd has it: by one transaction on what was read."""
        self.silence.check()
        revision = self.moves.arrivals.pending(client_id)
        if revision and self.owned.get(client_id) == revision:
            return await self._moved(client_id, revision)
        key, own = self.keys.own(client_id), self.name.encode()
        brief = self.home if self.all_lasts else self.lease
        when, then, origin = [absent(key)], [put(key, own, brief)], ""
        refused, lasts, earlier = 0, False, ""
        if giver:
            then = []  # only look
        for _ in range(_TRIES):
            answer = await self._asked(client_id, when, then, origin)
            if answer.done and then:
                return await self._won(client_id, answer.revision, origin, earlier, lasts)
            found = answer.found[0] if answer.found else None
            owner, before = ("", "") if found is None else owner_of(found.value)
            if giver and owner != giver:
                raise EtcdError(f"node {giver!r} does not have it any more")
            if found is not None and owner == self.name:
                if self.moves.arrivals.pending(client_id) == found.changed:
                    return await self._won(client_id, found.changed, before, "", lasts)
                # Ours, and we do not know: the answer to a claim has not come, or the end of it
                # was not written. Who had it before us may still have it for us.
                owner = before
            self.silence.check_of(owner)
            earlier = before if owner != self.name else ""
            origin = owner if owner != self.name and self.is_there(owner) else ""
            if found is None:
                when, then = [absent(key)], [put(key, own, brief)]
                continue
            when = [equals(key, found.changed)]
            if origin:
                lasts = found.lease in (self.home, self.moves.arrivals.home_of(origin))
                lasts = lasts or self.all_lasts
                lease = self.home if lasts else self.lease
                taken = self.keys.taken(origin, client_id)
                then = [put(key, claimed(self.name, origin), lease), put(taken, own, self.lease)]
            else:
                then = [put(key, own, brief)]
                if owner not in ("", self.name):
                    if refused == found.changed:
                        raise EtcdError(f"its session waits for node {owner!r}, which is away")
                    refused = found.changed
                    when += [absent(self.keys.node(owner)), absent(self.keys.home(owner))]
        raise EtcdError(f"{_TRIES} others have claimed this client id meanwhile")

    async def _asked(
        self, client_id: str, when: list[Json], then: list[Json], origin: str
    ) -> Answer:
        """One step of a claim of what `origin` has; who takes it from us meanwhile is held up."""
        self._asking.add(client_id)
        try:
            own = get(self.keys.own(client_id))
            answer = await self.many.transaction([*self.fence, *when], then, [own])
            self._tried.pop(client_id, None)
            return answer
        except EtcdError:
            if origin:
                self._tried[client_id] = origin  # it may be ours all the same
            raise
        finally:
            self._asking.discard(client_id)
            passed = self._passed.pop(client_id, None)
            if passed is not None:
                self.reactor.callLater(0, self.taken, client_id, *passed)

    async def _won(
        self, client_id: str, revision: int, origin: str, before: str, lasts: bool
    ) -> Claim:
        """It is ours from this revision on; where another had it, its session comes from there,
        or from who had it `before`."""
        self.owned[client_id] = revision
        if not origin:
            return Claim(revision, Held.NOWHERE)
        comes = self.moves.arrivals.expect(client_id, origin, revision)
        comes.lasts = comes.lasts or lasts
        comes.before = before
        return await self._moved(client_id, revision)

    async def _moved(self, client_id: str, revision: int) -> Claim:
        """The claim of a session that another node has, when that has come."""
        arrivals = self.moves.arrivals
        comes = arrivals.find(client_id, revision)
        origin = "" if comes is None else comes.origin
        moved = arrivals.wanted(client_id, revision)
        moved.addTimeout(PATIENCE, self.reactor)
        try:
            state = await moved
        except TimeoutError:
            self.without += 1
            raise EtcdError(f"its session has not come from node {origin!r} yet") from None
        finally:
            arrivals.unwanted(client_id, revision)
        self.came += state is not None
        return Claim(revision, Held.NODE, origin, state)

    def expects(self, client_id: str, revision: int) -> bool:
        """Whether a session is asked for that another node sends, as far as is known here."""
        if client_id in self._asking or self.owned.get(client_id) == revision:
            return True
        return self.moves.arrivals.find(client_id, revision) is not None

    async def whose(self, client_id: str) -> tuple[str, str, int] | None:
        """Who has it as etcd knows it, from whom, and since when: our answer may not have come.

        Nobody is "". None: we are no member, and not told.
        """
        while self.lease:
            try:
                answer = await self.many.transaction([], [get(self.keys.own(client_id))])
            except EtcdError:
                await deferLater(self.reactor, _AGAIN)
                continue
            kv = answer.found[0] if answer.found else None
            return ("", "", 0) if kv is None else (*owner_of(kv.value), kv.changed)
        return None

    def pull(self, client_id: str, giver: str) -> None:
        """Claim what another node gives away, if it still has it."""
        if client_id not in self.owned and client_id not in self._turns and self.lease:
            pulled = Deferred.fromCoroutine(self._claim(client_id, giver))
            pulled.addErrback(lambda failure: None)  # it is offered again

    def _take_in(self, client_id: str, claim: Claim) -> None:
        """What was claimed for nobody who is there."""
        if claim.state is not None:
            self.keep_here(client_id, claim.epoch, claim.state)
        elif claim.held is not Held.HERE:
            self.release(client_id, claim.epoch)

    def unclaimed(self, client_id: str) -> None:
        """A session has come that nobody waits for."""
        if client_id not in self._turns:
            self._keep_left_over(client_id)

    def _keep_left_over(self, client_id: str) -> None:
        revision, state = self.moves.arrivals.left_over(client_id)
        if revision and self.owned.get(client_id, 0) <= revision:  # else that of later is here
            self.owned[client_id] = revision
            self.came += state is not None
            self._take_in(client_id, Claim(revision, Held.NODE, state=state))

    def release(self, client_id: str, epoch: int) -> Deferred[None] | None:
        """As `IRegistry.release`."""
        revision = self.owned.pop(client_id, None)
        if revision is None or not self.lease:
            return None
        return Deferred.fromCoroutine(self._release(client_id, revision))

    async def _release(self, client_id: str, revision: int) -> None:
        key = self.keys.own(client_id)
        try:
            await self.many.transaction([equals(key, revision)], [remove(key)])
        except EtcdError:
            pass  # it stays ours in name, until somebody takes it or the lease ends

    def watch(self, taken: Callable[..., SessionState | None]) -> None:
        """As `IRegistry.watch`; it is told what becomes of what the store keeps of a session."""
        self.hand_over = taken

    def description(self) -> str:
        """As `IRegistry.description`."""
        return f"the nodes of a cluster, by etcd at {', '.join(self.etcd.endpoints)}"

    # -- others take, and the lease begins anew ------------------------------------------------

    def taken(self, client_id: str, by: str, revision: int) -> None:
        """A node has this client id since `revision`: the session ends here, and goes there."""
        if revision <= self._heard.get(client_id, 0):
            return  # etcd has said so already
        if self.silence.keeps(lambda: self.taken(client_id, by, revision)):
            return
        if client_id in self._asking:
            self._passed[client_id] = (by, revision)
            return  # whether it was ours before that is about to be known
        self._heard[client_id] = revision
        if self.owned.get(client_id, 0) < revision:
            self.owned.pop(client_id, None)
        tried = self._tried.pop(client_id, None)
        if tried is not None:
            self.moves.arrivals.expect(client_id, tried, 0)
        self._hand(client_id, by, revision)
        self._forget_taken(client_id, revision)

    def _hand(self, client_id: str, by: str, revision: int) -> None:
        state = self._hand_over(client_id, revision)
        self.went += state is not None
        self.moves.hand(client_id, by, revision, state)

    def wanted(self, client_id: str, by: str, revision: int) -> None:
        """A node asks again for what it has claimed: it, or we, may have begun anew."""
        if self.silence.keeps(lambda: self.wanted(client_id, by, revision)):
            return
        if client_id in self._asking:
            self.reactor.callLater(_SOON, self.wanted, client_id, by, revision)
        elif self.owned.get(client_id, 0) < revision:
            self.owned.pop(client_id, None)
            self._hand(client_id, by, revision)

    def _forget_taken(self, client_id: str, revision: int) -> None:
        """We know that it was taken: etcd need not say so any longer."""
        key = self.keys.taken(self.name, client_id)

        def forgotten(result: object) -> None:
            if self._heard.get(client_id) == revision:
                del self._heard[client_id]

        asked = self.many.transaction([equals(key, revision)], [remove(key)])
        # Where that fails it is under the lease of who has taken it.
        asked.addCallbacks(forgotten, lambda failure: None)

    def gone(self, client_id: str, leaves: Leaving) -> None:
        """Who has claimed a session that leaves is not there."""
        back = Deferred.fromCoroutine(bring_back(self, client_id, leaves))
        back.addErrback(lambda failure: self.lost(client_id, failure.getErrorMessage()))

    async def claim_all(self, client_ids: list[str]) -> int:
        """Claim those that nobody has; the sessions of the others go there. Returns how many."""
        lost = 0
        for at in range(0, len(client_ids), _MANY):
            some = {
                self.keys.own(client_id): client_id for client_id in client_ids[at : at + _MANY]
            }
            found = (await self.etcd.transaction([], [get(key) for key in some])).found
            held = {kv.key: kv for kv in found}
            wanted: list[tuple[str, Json, Json]] = []
            for key, client_id in some.items():
                kv = held.get(key)
                owner = "" if kv is None else owner_of(kv.value)[0]
                lease = self._lease_of(client_id)
                if kv is not None and owner != self.name:
                    lost += 1
                    self._is_elsewhere(client_id, owner, kv.changed)
                elif kv is not None and kv.lease == lease:
                    self.owned[client_id] = kv.changed
                else:
                    when = absent(key) if kv is None else equals(key, kv.changed)
                    wanted.append((client_id, when, put(key, self.name.encode(), lease)))
            await self._put_all(wanted)
        return lost

    async def _put_all(self, wanted: list[tuple[str, Json, Json]]) -> None:
        """Each of these, if its condition holds."""
        if not wanted:
            return
        answer = await self.etcd.transaction([], [nested(when, then) for _, when, then in wanted])
        for (client_id, _, _), done in zip(wanted, answer.nested, strict=True):
            if done:
                self.owned[client_id] = answer.revision
            elif client_id in self.owned:
                del self.owned[client_id]  # who has claimed it has told us, or is about to

    def _lease_of(self, client_id: str) -> int:
        session = self.sessions.get(client_id)
        stays = self.all_lasts or (session is not None and session.expiry_interval)
        return self.home if stays else self.lease

    def _is_elsewhere(self, client_id: str, owner: str, revision: int) -> None:
        """Of two sessions that of the newer epoch stays: whose it is says whether it has one."""
        self.owned.pop(client_id, None)
        state = self._hand_over(client_id, revision)
        if state is not None:
            self.moves.hand(client_id, owner, revision, state)

    # -- sessions that outlast their connections -------------------------------------------------

    def entered(self, session: Session) -> None:
        """A session is here: when it is to stay, its client id is to wait for this node."""
        if self.home != self.lease and not self.all_lasts:
            if not self._staying:
                self.reactor.callLater(0, self._stay)
            self._staying[session.client_id] = None

    def _stay(self) -> None:
        staying, self._staying = self._staying, {}
        some = [
            client_id
            for client_id in staying
            if client_id in self.owned and self._lease_of(client_id) == self.home
        ]
        if some and self.lease:
            done = Deferred.fromCoroutine(self._stay_all(some))
            done.addErrback(lambda failure: None)  # they are given up with the lease, then

    async def _stay_all(self, client_ids: list[str]) -> None:
        for at in range(0, len(client_ids), _MANY):
            some = [each for each in client_ids[at : at + _MANY] if each in self.owned]
            before = {each: self.owned[each] for each in some}
            own = self.name.encode()
            changes = [
                nested(equals(self.keys.own(each), before[each]),
                       put(self.keys.own(each), own, self.home))
                for each in some
            ]  # fmt: skip
            if not changes:
                continue
            answer = await self.etcd.transaction([], changes)
            for client_id, done in zip(some, answer.nested, strict=True):
                if done and self.owned.get(client_id) == before[client_id]:
                    self.owned[client_id] = answer.revision
                elif done and client_id not in self.owned:
                    await self._release(client_id, answer.revision)  # it has ended meanwhile

    # -- wills of clients that are away ----------------------------------------------------------

    def _hand_over(self, client_id: str, revision: int) -> SessionState | None:
        """End a session here, for who has it now: what it was, with a will that is to come."""
        will = will_of(self.sessions.get(client_id))
        state = self.hand_over(client_id, revision, self.moves.leaves)
        if state is None or will is None:
            return state
        self.moves.willed(client_id, *will)
        return with_will(state, *will)

    def keep_here(self, client_id: str, revision: int, state: SessionState) -> None:
        """A session is here whose client is away."""
        self.keeps(client_id, revision, state)
        session = self.sessions.get(client_id)
        if session is not None and session.channel is None and session.will is None:
            found = will_in(state, client_id, session.username)
            if found is not None:
                session.set_will(*found)
                self.resumes(session)
