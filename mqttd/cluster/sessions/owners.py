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

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredLock, TimeoutError
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
from mqttd.cluster.sessions.audit import Audit
from mqttd.cluster.sessions.back import bring_back
from mqttd.cluster.sessions.departures import Leaving
from mqttd.cluster.sessions.left_over import keep_left_over, take_in
from mqttd.cluster.sessions.moves import Moves
from mqttd.cluster.sessions.moving import Moving
from mqttd.cluster.sessions.refusals import anothers, not_any_more
from mqttd.cluster.sessions.silence import Silence
from mqttd.cluster.sessions.tried import Tried
from mqttd.cluster.sessions.whose import whose
from mqttd.cluster.wills.willed import end_for_another
from mqttd.interfaces import IRegistry
from mqttd.session.session import Session
from mqttd.types import Claim, Held, SessionState

__all__ = ["Owners"]

#: Seconds that a session which moves is waited for.
PATIENCE: Final = 4.0
#: How often a claim begins anew because somebody else was faster.
_TRIES: Final = 10
#: Claims of one client id that wait for one that is under way, and seconds until then.
_LINE: Final = 2
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
        #: What is ours may be somebody else's by now: nobody is let in. And the lease by which all
        #: of it was claimed: while we have another one, it is asked for one by one; 0: none yet,
        #: -1: something was missed since.
        self.strict = False
        self.known = 0
        #: Takes a session of ours away, and how many have come and gone.
        self.hand_over: Callable[..., SessionState | None] = lambda *_: None
        #: Set by who makes both: brings the sessions; asks for those that are here by and by.
        self.moves: Moves
        self.audit: Audit
        self.came = self.went = self.without = 0
        #: Claims under way, one after the other; those that etcd is asked for now, who has taken
        #: them meanwhile, and what was claimed, or may have been, without an answer.
        self.turns: dict[str, DeferredLock] = {}
        self._asking: set[str] = set()
        self._passed: dict[str, list[tuple[str, int]]] = {}
        self.tried = Tried()
        #: What we were told was taken, in which revision, until etcd says it no more.
        self._heard: dict[str, int] = {}
        #: Whether a session is for its user alone (`session.owner`), and was when etcd was told so.
        self.is_by_user: Callable[[], bool] = lambda: True
        self.was_by_user = True
        self.amends = Amends(self)
        self.lost: Callable[[str, str], object] = lambda *_: None  # a session, and why
        #: The sessions that are here; takes in one whose client is away: client id, epoch, state,
        #: with its will.
        self.sessions: Mapping[str, Session] = {}
        self.keeps: Callable[[str, int, SessionState], object] = lambda *_: None

    def serve(self, broker: Broker, moves: Moves) -> None:
        """The sessions are those of this broker, and come and go by `moves`."""
        self.sessions, self.keeps = broker.sessions, broker.registry.keep
        self.is_by_user = lambda: broker.settings.owned_by_user
        self.was_by_user = broker.settings.owned_by_user
        self.moves = moves
        rests = lambda: self.strict or self.silence.lasts()  # noqa: E731
        self.audit = Audit(self, broker.registry.directory, rests)
        moves.given, moves.asked, moves.gone = self.pull, self.wanted, self.gone
        moves.expects, moves.whose, moves.here = self.expects, self.whose, self.amends.entered
        moves.is_silent = lambda: self.silence.lasts()
        moves.arrivals.unclaimed, moves.arrivals.overtaken = self.unclaimed, self.wanted
        moves.lease = lambda: self.lease if self.known >= 0 else -1
        moves.tried, self.tried.ask = self.tried.has, moves.arrivals.suppose
        moves.claimed_of, moves.arrivals.before = self.tried.last, self.tried.before

    # -- IRegistry -----------------------------------------------------------------------------

    def claim(self, client_id: str, principal: str | None, lasts: bool) -> Claim | Deferred[Claim]:
        """As `IRegistry.claim`."""
        turn = self.turns.get(client_id)
        if turn is None and (claim := self._had(client_id, lasts)) is not None:
            return claim
        if not self.lease:
            raise EtcdError(self.apart() or "etcd does not answer")
        if turn is not None and len(turn.waiting) >= _LINE:
            raise EtcdError("others claim this client id, and are not done")
        return Deferred.fromCoroutine(self._claim(client_id, principal, lasts))

    def _had(self, client_id: str, lasts: bool) -> Claim | None:
        """What is ours, with its session: whose that is the registry has looked at."""
        revision = self.owned.get(client_id)
        if revision is None or self.strict or self.moves.arrivals.pending(client_id):
            return None
        if self.lease and self.known not in (0, self.lease):
            return None
        session = self.sessions.get(client_id)
        if session is None or (lasts and self.lease_of(client_id) != self.home):
            return None  # one that outlasts its connection is about to begin
        return Claim(revision, Held.HERE)

    async def _claim(
        self, client_id: str, principal: str | None, lasts: bool, giver: str = ""
    ) -> Claim:
        """One claim after the other; `giver`: the node that gives it away, or nobody."""
        turn = self.turns.setdefault(client_id, DeferredLock())
        await turn.acquire()
        try:
            claim = self._had(client_id, lasts)
            claim = claim or await self._claim_now(client_id, principal, lasts, giver)
            if giver:
                take_in(self, client_id, claim)
            return claim
        finally:
            if not turn.waiting:
                del self.turns[client_id]
                keep_left_over(self, client_id)
            turn.release()
            self.moving.end(client_id)

    async def _claim_now(
        self, client_id: str, principal: str | None, stays: bool, giver: str
    ) -> Claim:
        """As etcd has it: by one transaction on what was read. `stays`: beyond its connection."""
        self.silence.check()
        user = "" if giver else self.user(client_id, principal)
        arrivals = self.moves.arrivals
        revision = arrivals.pending(client_id)
        comes = arrivals.of[client_id] if revision else None
        if comes and self.owned.get(client_id) == revision and comes.lease == self.lease:
            if Owner(self.name, "", comes.user).is_other(user):
                raise anothers(client_id)
            return await self._moved(client_id, revision)
        key, own = self.keys.own(client_id), self.name.encode()
        stays = stays or self.all_lasts
        nobodys = [put(key, claimed(self.name, "", user), self.home if stays else self.lease)]
        when, then, origin, said = [absent(key)], [] if giver else nobodys, "", user  # only look
        since, refused, lasts, past = 0, 0, stays, ""
        for _ in range(_TRIES):
            if not self.lease:
                raise EtcdError("this node is no member any more")
            answer = await self._asked(client_id, when, then, origin, since, past)
            if answer.done and then:
                return await self._won(client_id, answer.revision, origin, past, lasts, said, since)
            read = {kv.key: kv for kv in answer.found}
            if key not in read:
                if giver:
                    raise not_any_more(giver)
                when, then, origin, said = [absent(key)], nobodys, "", user
                lasts = stays
                continue
            found = read.pop(key)
            known, since = self.keys.owner(found), found.changed
            for kv in read.values():  # who has taken it from us may have to be told before that
                self.taken(client_id, kv.value.decode(errors="replace"), kv.changed)
            owner, before = known.node, known.origin
            is_other = known.is_other(user)
            if giver and owner != giver and (owner, before) != (self.name, giver):
                raise not_any_more(giver)
            if owner == self.name:
                is_here = self.owned.get(client_id) == found.changed
                is_here = is_here and (not before or client_id in self.sessions)
                comes_here = arrivals.pending(client_id) == found.changed
                if is_other and (comes_here or client_id in self.sessions):
                    raise anothers(client_id)
                if comes_here:
                    origin = arrivals.origin_of(client_id)
                    lasts = stays or found.lease != self.lease  # it may be under a home of before
                    if found.lease != self.home:
                        self.amends.brief.add(client_id)
                    before = arrivals.of[client_id].before or self.tried.before(client_id, origin)
                    return await self._won(
                        client_id, found.changed, origin, before, lasts, known.user, 0
                    )
                if is_here and not is_other and (not stays or found.lease == self.home):
                    return Claim(found.changed, Held.HERE)
                # Ours, and we do not know: the answer to a claim has not come, or the end of it
                # was not written. Who had it before us may still have it for us.
                owner = "" if is_here else before
                if owner:
                    self.tried.claims(client_id, owner, since - 1)
                    before = self.tried.before(client_id, owner)
            elif before != self.name:
                self.tried.is_anothers(client_id, since, bool(read))
            if owner not in ("", self.name) and client_id in self.sessions:
                self.is_elsewhere(client_id, owner, since, before)  # we were gone, and not told
            self.silence.check_of(owner)
            past = before if owner != self.name else ""
            if owner != self.name and self.is_there(owner) and not (giver or is_other):
                await self._keep_pace(client_id, principal)
            origin = owner if owner != self.name and self.is_there(owner) else ""
            when = [equals(key, found.changed)]
            if origin:
                if is_other:
                    raise anothers(client_id)
                # A node that has just begun anew has another home than the one that this is under.
                lasts = stays or found.lease not in (self.lease, arrivals.brief_of(origin))
                lease = self.home if lasts else self.lease
                said = known.user if self.is_by_user() else ""
                taken = self.keys.taken(origin, client_id)
                then = [
                    put(key, claimed(self.name, origin, said), lease),
                    put(taken, own, self.lease),
                ]
            else:
                then, said, lasts = nobodys, user, stays
                if owner not in ("", self.name):
                    if refused == found.changed:
                        if is_other:
                            raise anothers(client_id)
                        raise EtcdError(f"its session waits for node {owner!r}, which is away")
                    refused = found.changed
                    when += [absent(self.keys.node(owner)), absent(self.keys.home(owner))]
        raise EtcdError(f"{_TRIES} others have claimed this client id meanwhile")

    async def _asked(self, client_id: str, when: list[Json], then: list[Json],
                     origin: str, since: int, before: str) -> Answer:  # fmt: skip
        """One step of a claim of what `origin` has; who takes it from us meanwhile is held up."""
        self._asking.add(client_id)
        if origin:
            # It may be ours though no answer comes.
            self.tried.claims(client_id, origin, since, before)
        reads = [get(self.keys.own(client_id)), get(self.keys.taken(self.name, client_id))]
        arrivals = self.moves.arrivals
        leases = self.lease, arrivals.brief_of(origin)
        try:
            answer = await self.many.transaction([*self.fence, *when], then, reads)
            if then and leases != (self.lease, arrivals.brief_of(origin)):
                raise EtcdError("one of both nodes was gone to the other, with what it had said")
            return answer
        except EtcdError:
            if then:
                self.amends.ended(client_id)
            raise
        finally:
            self._asking.discard(client_id)
            for passed in self._passed.pop(client_id, ()):
                self.reactor.callLater(0, self.taken, client_id, *passed)

    async def _won(self, client_id: str, revision: int, origin: str, before: str, lasts: bool,
                   user: str, since: int) -> Claim:  # fmt: skip
        """It is ours from this revision on; where another had it, its session comes from there,
        or from who had it `before`. `user`: whose it is, as etcd says."""
        self.owned[client_id] = revision
        self.tried.won(client_id, origin)
        self.amends.claimed(client_id, user, lasts, not origin)
        if not origin:
            state = self.moves.recall(client_id, revision)
            held = Held.NOWHERE if state is None else Held.NODE
            return Claim(revision, held, self.name if state else "", state)
        comes = self.moves.arrivals.expect(client_id, origin, revision)
        comes.user, comes.before, comes.since = user, before, since
        comes.lasts, comes.lease = lasts, self.lease
        if before and comes.is_nothing:  # so it was said before etcd has answered
            comes.whole = False
            self.moves.arrivals.nothing(client_id, comes)
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

    def whose(self, client_id: str) -> Awaitable[tuple[str, str, int] | None]:
        """See `mqttd.cluster.sessions.whose`."""
        return whose(self, client_id)

    def pull(self, client_id: str, giver: str) -> None:
        """Claim what another node gives away, if it still has it."""
        if client_id not in self.owned and client_id not in self.turns and self.lease:
            pulled = Deferred.fromCoroutine(self._claim(client_id, None, False, giver))
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
        return Deferred.fromCoroutine(self.amends.let_go(client_id, revision))

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
            self._passed.setdefault(client_id, []).append((by, revision))
            return  # whether it was ours before that is about to be known
        self._heard[client_id] = revision
        self._hand(client_id, by, revision)
        self._forget_taken(client_id, revision)

    def _hand(self, client_id: str, by: str, revision: int) -> None:
        known = self.owned.get(client_id, 0)
        if known < revision:
            self.owned.pop(client_id, None)
        if client_id not in self.owned:
            self.amends.forget(client_id)
        state = self._hand_over(client_id, revision)
        if state is None and client_id in self.sessions:
            # It is here by a later claim than that.
            self.moves.transit.tell_look(by, client_id, revision)
            return
        self.tried.taken(client_id, revision, state is not None, self.moves.has_of(client_id, by))
        self.went += state is not None
        self.moves.hand(client_id, by, revision, state, doubt=not known)

    def wanted(self, client_id: str, by: str, revision: int) -> None:
        """A node asks again for what it has claimed: it, or we, may have begun anew."""
        if self.silence.keeps(lambda: self.wanted(client_id, by, revision)):
            return
        if client_id in self._asking:
            self.reactor.callLater(_SOON, self.wanted, client_id, by, revision)
        elif self.owned.get(client_id, 0) < revision:
            self._hand(client_id, by, revision)
        elif client_id in self.sessions:
            self.moves.transit.tell_look(by, client_id, revision)
        else:
            # We have claimed it of that node since: it waits for what left here before, or for our
            # word that nothing did, and we for it.
            self.tried.taken(client_id, revision, False, self.moves.has_of(client_id, by))
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
        return user_of(client_id, username) if self.is_by_user() else ""

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

    def is_elsewhere(self, client_id: str, owner: str, revision: int, of: str) -> None:
        """Of two sessions that of the newer epoch stays: who has it, `of` us or not, says whether
        there is one there. Where it was never ours since we began, it may have been sent before."""
        known = self.owned.pop(client_id, 0)
        state = self._hand_over(client_id, revision)
        if state is not None:
            doubt = not known or of != self.name
            self.moves.hand(client_id, owner, revision, state, doubt=doubt)
        else:
            self.moves.arrivals.passed(client_id, owner, revision)

    # -- wills of clients that are away ----------------------------------------------------------

    def _hand_over(self, client_id: str, revision: int) -> SessionState | None:
        """End a session here, for who has it now: what it was, with a will that is to come."""
        self.amends.leave_again(client_id)
        return end_for_another(self.moves, self.hand_over, client_id, revision)

    def keep_here(self, client_id: str, revision: int, state: SessionState) -> None:
        """A session is here whose client is away."""
        self.keeps(client_id, revision, state)
        if client_id not in self.sessions:
            self.release(client_id, revision)  # it cannot be read
