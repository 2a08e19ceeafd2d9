"""Who has a client id, of all nodes: asked of etcd between *authenticated* and *accepted*.

    claim --> nobody has it --> written, if still nobody has --> ours
          --> it is another user's --> refused, and nothing is touched
          --> a node has it --> written, if nothing has changed, and with it `taken/<node>/<client>`
                                  that node's watch --> its session ends --`moves`--> here
                                                   '-- not within `PATIENCE` s: try again

The epoch of an ownership is the revision of etcd in which it was written: of two that claim at the
same time one is told that something has changed, and begins anew. All that a node has is under its
lease; when that has ended, and it is a member again, what nobody has taken is written anew, and the
sessions of client ids that somebody has taken end.

Whose a session is stands beside who has it, and what was read is what the claim is written on: so
a node is told of claims of its session's user alone. Where that is not said yet (`Amends`), who
claims it is told when the session has come, as long as `session.owner` is `"user"`.

Promise: what is ours already is answered at once; while etcd does not answer nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredLock, TimeoutError
from twisted.internet.task import deferLater
from zope.interface import implementer

from mqttd.broker.broker import Broker
from mqttd.broker.sessions.records import Record
from mqttd.cluster.etcd.client import (
    Answer,
    Etcd,
    EtcdError,
    Json,
    absent,
    equals,
    get,
    put,
    remove,
)
from mqttd.cluster.etcd.keys import Keys, Owner, claimed, user_of
from mqttd.cluster.etcd.many import Many
from mqttd.cluster.sessions.amends import Amends
from mqttd.cluster.sessions.back import bring_back
from mqttd.cluster.sessions.departures import Leaving
from mqttd.cluster.sessions.left_over import keep_left_over, take_in
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.moving import Moving
from mqttd.cluster.sessions.silence import Silence
from mqttd.cluster.sessions.tried import Tried
from mqttd.cluster.wills.willed import will_of, with_will
from mqttd.interfaces import IRegistry
from mqttd.session.session import Session
from mqttd.types import Claim, Held, SessionState

__all__ = ["Owners"]

#: Seconds that a session which moves is waited for.
PATIENCE: Final = 4.0
#: How often a claim begins anew because somebody else was faster.
_TRIES: Final = 10
#: Claims of one client id that wait for one that is under way, and seconds before etcd is asked
#: again.
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
        self.moving = Moving(reactor)
        #: Why nothing is claimed where it is not etcd that does not answer.
        self.apart: Callable[[], str] = str
        #: What is ours may be somebody else's by now: nobody is let in.
        self.strict = False
        #: Takes a session of ours away, and how many have come and gone.
        self.hand_over: Callable[..., SessionState | None] = lambda *_: None
        #: Set by who makes both: brings the sessions.
        self.moves: Moves
        self.came = self.went = self.without = 0
        #: Claims under way, one after the other; those that etcd is asked for now, who has taken
        #: them meanwhile, and what was claimed, or may have been, without an answer.
        self.turns: dict[str, DeferredLock] = {}
        self._asking: set[str] = set()
        self._passed: dict[str, tuple[str, int]] = {}
        self.tried = Tried(keys, name)
        #: What we were told was taken, in which revision, until etcd says it no more.
        self._heard: dict[str, int] = {}
        #: A session is for its user alone (`session.owner`).
        self.by_user = True
        self.amends = Amends(self)
        #: Is told of a session that is lost, and why.
        self.lost: Callable[[str, str], object] = lambda *_: None
        #: The sessions that are here; takes in one whose client is away: client id, epoch, state,
        #: with its will.
        self.sessions: Mapping[str, Session] = {}
        self.keeps: Callable[[str, int, SessionState], object] = lambda *_: None

    def serve(self, broker: Broker, moves: Moves) -> None:
        """The sessions are those of this broker, and come and go by `moves`."""
        self.sessions = broker.sessions
        self.keeps = broker.registry.keep
        self.by_user = broker.settings.owned_by_user
        self.moves = moves
        moves.given, moves.asked, moves.gone = self.pull, self.wanted, self.gone
        moves.expects, moves.whose, moves.here = self.expects, self.whose, self.amends.entered
        moves.arrivals.unclaimed, moves.arrivals.overtaken = self.unclaimed, self.wanted
        moves.tried, self.tried.ask = self.tried.has, moves.arrivals.suppose

    # -- IRegistry -----------------------------------------------------------------------------

    def claim(self, client_id: str, principal: str | None) -> Claim | Deferred[Claim]:
        """As `IRegistry.claim`."""
        turn = self.turns.get(client_id)
        if turn is None and (claim := self._had(client_id)) is not None:
            return claim
        if not self.lease:
            raise EtcdError(self.apart() or "etcd does not answer")
        if turn is not None and len(turn.waiting) >= _LINE:
            raise EtcdError("others claim this client id, and are not done")
        return Deferred.fromCoroutine(self._claim(client_id, principal, ""))

    def _had(self, client_id: str) -> Claim | None:
        """What is ours, with its session: whose that is the registry has looked at."""
        revision = self.owned.get(client_id)
        if revision is None or self.strict or self.moves.arrivals.pending(client_id):
            return None
        return Claim(revision, Held.HERE) if client_id in self.sessions else None

    async def _claim(self, client_id: str, principal: str | None, giver: str) -> Claim:
        """One claim after the other; `giver`: the node that gives it away, or nobody."""
        turn = self.turns.setdefault(client_id, DeferredLock())
        await turn.acquire()
        try:
            claim = self._had(client_id) or await self._claim_now(client_id, principal, giver)
            if giver:
                take_in(self, client_id, claim)
            return claim
        finally:
            if not turn.waiting:
                del self.turns[client_id]
                keep_left_over(self, client_id)
            turn.release()
            self.moving.end(client_id)

    async def _claim_now(self, client_id: str, principal: str | None, giver: str) -> Claim:
        """As etcd has it: by one transaction on what was read."""
        self.silence.check()
        user = "" if giver else self.user(client_id, principal)
        arrivals = self.moves.arrivals
        revision = arrivals.pending(client_id)
        if revision and self.owned.get(client_id) == revision:
            comes = arrivals.find(client_id, revision)
            if comes is not None and Owner(self.name, "", comes.user).is_other(user):
                raise _anothers(client_id)
            return await self._moved(client_id, revision)
        key, own = self.keys.own(client_id), self.name.encode()
        brief = self.home if self.all_lasts else self.lease
        nobodys = [put(key, claimed(self.name, "", user), brief)]
        when, then, origin, said = [absent(key)], nobodys, "", user
        since, refused, lasts, earlier = 0, 0, False, ""
        if giver:
            then = []  # only look
        for _ in range(_TRIES):
            if not self.lease:
                raise EtcdError("this node is no member any more")
            answer = await self._asked(client_id, when, then, origin, since)
            if answer.done and then:
                return await self._won(client_id, answer.revision, origin, earlier, lasts, said)
            read = {kv.key: kv for kv in answer.found}
            if key not in read:
                if giver:
                    raise _not_any_more(giver)
                when, then, origin, said = [absent(key)], nobodys, "", user
                continue
            found = read.pop(key)
            known, since = self.keys.owner(found), found.changed
            owner, before = known.node, known.origin
            is_other = known.is_other(user)
            if giver and owner != giver and (owner, before) != (self.name, giver):
                raise _not_any_more(giver)
            if owner == self.name:
                is_here = self.owned.get(client_id) == found.changed
                comes_here = arrivals.pending(client_id) == found.changed
                if is_other and (comes_here or client_id in self.sessions):
                    raise _anothers(client_id)
                if comes_here:
                    before = arrivals.origin_of(client_id)
                    return await self._won(client_id, found.changed, before, "", lasts, known.user)
                if is_here and not is_other:
                    return Claim(found.changed, Held.HERE)
                # Ours, and we do not know: the answer to a claim has not come, or the end of it
                # was not written. Who had it before us may still have it for us.
                owner = "" if is_here else before
                if owner:
                    self.tried.claims(client_id, owner, since - 1)
            elif before != self.name:
                self.tried.is_anothers(client_id, since, bool(read))
            self.silence.check_of(owner)
            earlier = before if owner != self.name else ""
            if owner != self.name and self.is_there(owner) and not (giver or is_other):
                await self._keep_pace(client_id, principal)
            origin = owner if owner != self.name and self.is_there(owner) else ""
            when = [equals(key, found.changed)]
            if origin:
                if is_other:
                    raise _anothers(client_id)
                # A node that has just begun anew has another home than the one that this is under.
                lasts = self.all_lasts or found.lease not in (self.lease, arrivals.brief_of(origin))
                lease = self.home if lasts else self.lease
                said = known.user if self.by_user else ""
                taken = self.keys.taken(origin, client_id)
                then = [
                    put(key, claimed(self.name, origin, said), lease),
                    put(taken, own, self.lease),
                ]
            else:
                then, said = nobodys, user
                if owner not in ("", self.name):
                    if refused == found.changed:
                        if is_other:
                            raise _anothers(client_id)
                        raise EtcdError(f"its session waits for node {owner!r}, which is away")
                    refused = found.changed
                    when += [absent(self.keys.node(owner)), absent(self.keys.home(owner))]
        raise EtcdError(f"{_TRIES} others have claimed this client id meanwhile")

    async def _asked(
        self, client_id: str, when: list[Json], then: list[Json], origin: str, since: int
    ) -> Answer:
        """One step of a claim of what `origin` has; who takes it from us meanwhile is held up."""
        self._asking.add(client_id)
        if origin:
            self.tried.claims(client_id, origin, since)  # it may be ours though no answer comes
        reads = [get(self.keys.own(client_id)), *self.tried.reads(client_id)]
        try:
            return await self.many.transaction([*self.fence, *when], then, reads)
        except EtcdError:
            if then:
                self.amends.ended(client_id)
            raise
        finally:
            self._asking.discard(client_id)
            passed = self._passed.pop(client_id, None)
            if passed is not None:
                self.reactor.callLater(0, self.taken, client_id, *passed)

    async def _won(
        self, client_id: str, revision: int, origin: str, before: str, lasts: bool, user: str
    ) -> Claim:
        """It is ours from this revision on; where another had it, its session comes from there,
        or from who had it `before`. `user`: whose it is, as etcd says."""
        self.owned[client_id] = revision
        self.tried.won(client_id, origin)
        self.amends.claimed(client_id, user, lasts)
        if not origin:
            state = self.moves.recall(client_id, revision)
            held = Held.NOWHERE if state is None else Held.NODE
            return Claim(revision, held, self.name if state else "", state)
        comes = self.moves.arrivals.expect(client_id, origin, revision)
        comes.user = user
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
            self.without += arrivals.missed(client_id, revision)
            raise EtcdError(f"its session has not come from node {origin!r} yet") from None
        finally:
            arrivals.unwanted(client_id, revision)
        self.has_come(client_id, state)
        return Claim(revision, Held.NODE, origin, state)

    def has_come(self, client_id: str, state: SessionState | None) -> None:
        """A session has come here from another node, or nothing of it."""
        if state is not None:
            self.came += 1
            self.moving.charge(client_id, state)

    async def _keep_pace(self, client_id: str, principal: str | None) -> None:
        if self.moves.broker.stuck:
            raise EtcdError("the store of this node takes nothing: what another has stays there")
        await self.moving.begin(client_id, principal)

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
            if kv is None:
                return "", "", 0
            known = self.keys.owner(kv)
            return known.node, known.origin, kv.changed
        return None

    def pull(self, client_id: str, giver: str) -> None:
        """Claim what another node gives away, if it still has it."""
        if client_id not in self.owned and client_id not in self.turns and self.lease:
            pulled = Deferred.fromCoroutine(self._claim(client_id, None, giver))
            pulled.addErrback(lambda failure: None)  # it is offered again

    def unclaimed(self, client_id: str) -> None:
        """A session has come that nobody waits for."""
        if client_id not in self.turns:
            keep_left_over(self, client_id)

    def release(self, client_id: str, epoch: int) -> Deferred[None] | None:
        """As `IRegistry.release`."""
        self.amends.forget(client_id)
        revision = self.owned.pop(client_id, None)
        if revision is None:
            return None
        return Deferred.fromCoroutine(self.let_go(client_id, revision))

    async def let_go(self, client_id: str, revision: int) -> None:
        """Etcd is to say no more that this is ours; later, where it does not answer."""
        key = self.keys.own(client_id)
        try:
            if not self.lease:
                raise EtcdError("etcd does not answer")
            await self.many.transaction([equals(key, revision)], [remove(key)])
        except EtcdError:
            self.amends.ended(client_id, revision)

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
        self._hand(client_id, by, revision)
        self._forget_taken(client_id, revision)

    def _hand(self, client_id: str, by: str, revision: int) -> None:
        if client_id not in self.owned:
            self.amends.forget(client_id)
        state = self._hand_over(client_id, revision)
        if state is None and client_id in self.sessions:
            self.moves.tell_look(client_id, by, revision)  # it is here by a later claim than that
            return
        self.tried.taken(client_id, revision, state is not None)
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
        elif client_id in self.sessions:
            self.moves.tell_look(client_id, by, revision)
        else:
            # We have claimed it of that node since: it waits for what left here before, or for our
            # word that nothing did, and we for it.
            self.tried.taken(client_id, revision, False)
            self.moves.hand(client_id, by, revision, None)

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

    # -- whose they are ------------------------------------------------------------------------

    def user(self, client_id: str, username: str | None) -> str:
        """Whose a session is, for etcd; empty where the client id alone decides."""
        return user_of(client_id, username) if self.by_user else ""

    def user_in(self, client_id: str, state: SessionState) -> str:
        """As `user`, of a session that is a state; empty where that cannot be read."""
        try:
            return self.user(client_id, Record(state.record).username)
        except ValueError:
            return ""

    def value_of(self, client_id: str, otherwise: str = "") -> bytes:
        """What etcd is to say of a client id that is ours: whose the session is that is here."""
        session = self.sessions.get(client_id)
        if session is None:
            return claimed(self.name, self.moves.arrivals.origin_of(client_id), otherwise)
        return claimed(self.name, "", self.user(client_id, session.username))

    def lease_of(self, client_id: str) -> int:
        """Under which lease it is to say that; of one on its way here it may be the second."""
        session = self.sessions.get(client_id)
        stays = self.all_lasts or session is None or session.expiry_interval
        return self.home if stays else self.lease

    def is_elsewhere(self, client_id: str, owner: str, revision: int) -> None:
        """Of two sessions that of the newer epoch stays: whose it is says whether it has one."""
        self.owned.pop(client_id, None)
        state = self._hand_over(client_id, revision)
        if state is not None:
            self.moves.hand(client_id, owner, revision, state)
        else:
            self.moves.arrivals.passed(client_id, owner, revision)

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
        if client_id not in self.sessions:
            self.release(client_id, revision)  # it cannot be read


def _not_any_more(giver: str) -> EtcdError:
    return EtcdError(f"node {giver!r} does not have it any more")


def _anothers(client_id: str) -> PermissionError:
    return PermissionError(f"the session of {client_id!r} is another user's")
