"""Owning a client id before its client is accepted: at once, or in a bounded wait.

    authenticated --> claim --> Ownership: here | another worker | another node | nowhere
                        |           '--> SessionStore: the state, where neither has one
                        |                    '--> owned --> accepted
                        '--> another claim for this id is under way: wait in line behind it

    no answer in 5 s    CONNACK 0x89 (3.x: 3)      claims_timed_out
    it fails            CONNACK 0x88 (3.x: 3)      claims_failed
    another's session   CONNACK 0x87 (3.x: 5)

Promise: where both answer at once nothing is made and nobody waits; of those that wait for one
client id the next is served when the one before is accepted, refused or gone, each in a turn of its
own. A state that arrives when its client has gone stays here, as of a client that is away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.sessions.partings import Partings
from mqttd.broker.sessions.records import Record
from mqttd.broker.sessions.registry import FIRST_EPOCH, Registry
from mqttd.codec import reasons
from mqttd.codec.packets import Connect
from mqttd.session.channel.channel import WAITING, Channel
from mqttd.session.ground.wheel import Timer
from mqttd.types import Claim, ClientInfo, Held, SessionState

__all__ = ["TIMEOUT", "Claims", "Owned", "Refusal"]

#: Milliseconds that a client waits for its client id.
TIMEOUT: Final = 5000


class Owned:
    """A client id is ours, with the state that came with it, if any."""

    def __init__(self, epoch: int, state: SessionState | None, record: Record | None) -> None:
        self.epoch = epoch
        self.state = state
        self.record = record


class Refusal:
    """A client id cannot be had."""

    def __init__(self, code: int, detail: str) -> None:
        self.code = code
        self.detail = detail


_OWNED: Final = Owned(FIRST_EPOCH, None, None)
_FOREIGN: Final = Refusal(
    reasons.NOT_AUTHORIZED, "the session of this client id belongs to another user"
)
_LATE: Final = Refusal(reasons.SERVER_BUSY, "who owns this client id was not known in time")


class Claims:
    """The claims of one broker."""

    def __init__(self, broker: Publishing, registry: Registry, partings: Partings) -> None:
        self.broker = broker
        self.registry = registry
        self.partings = partings
        self.timeout: int = TIMEOUT
        #: Client id -> the claim under way and those behind it.
        self.lines: dict[str, _Line] = {}

    def claim(
        self, channel: Channel, client: ClientInfo, connect: Connect, then: Callable[[Any], None]
    ) -> object | None:
        """`Owned` or `Refusal`; None if that takes time, and `then` is called with it.

        `then` is called in a later turn, unless the channel has been closed by then. Of who starts
        afresh what is stored is not read but removed. Where a session with much in it ends, that
        has its turn first (`Partings`).
        """
        if self.lines:
            line = self.lines.get(client.client_id)
            if line is not None:
                line.behind.append(_Wait(self, line, channel, client, connect, then))
                return None
        ends = self.registry.ended_by(client, connect.clean_start)
        if ends is not None:
            line = _Line(self, client.client_id)
            if self.partings.follows(ends, line):
                self.lines[client.client_id] = line
                wait = _Wait(self, line, channel, client, connect, then)
                self.broker.wheel.cancel(wait)  # nobody is slow to answer
                line.behind.append(wait)
                return None
        answer = self.ask(client, connect)
        if not isinstance(answer, _Pending):
            return answer
        line = _Line(self, client.client_id)
        self.lines[client.client_id] = line
        wait = _Wait(self, line, channel, client, connect, then)
        wait.waits = False
        wait.begin(answer)
        wait.waits = wait.outcome is None
        return wait.outcome

    def ask(self, client: ClientInfo, connect: Connect) -> object:
        """`Owned`, `Refusal`, or `_Pending` for what is not known yet."""
        if self.registry.is_foreign(client):
            return _FOREIGN
        if self.registry.alone:
            return _OWNED
        try:
            lasts = self.registry.expiry_of(connect) > 0
            claim = self.registry.ownership.claim(client.client_id, client.username, lasts)
            if not isinstance(claim, Claim):
                return _Pending(None, claim)
            state = self.state(claim, client, connect.clean_start)
            if state is None or isinstance(state, SessionState):
                return self.owned(claim, client, state)
            return _Pending(claim, state)
        except Exception as error:
            return self.failed(client, error)

    def state(self, claim: Claim, client: ClientInfo, clean: bool) -> Any:
        """The state of a session that was claimed: handed over, or stored; may be a Deferred."""
        if claim.state is not None or client.client_id in self.registry.sessions:
            return claim.state
        store = self.registry.store
        if not clean:
            return store.load(client.client_id)
        return store.remove(client.client_id, claim.epoch) if store.keeps else None

    def owned(self, claim: Claim, client: ClientInfo, state: SessionState | None) -> object:
        """What the client gets now that claim and state are there."""
        if state is None and claim.epoch == FIRST_EPOCH:
            return _OWNED
        if claim.held is Held.WORKER or claim.held is Held.NODE:
            self.broker.log(
                "session claimed",
                {"client_id": client.client_id, "held": claim.held.value, "peer": claim.peer},
            )
        record: Record | None = None
        if state is not None:
            record = self.registry.read(client.client_id, state)
            if record is not None and record.username != client.username:
                if self.broker.settings.owned_by_user:
                    self.registry.keep(client.client_id, claim.epoch, state)
                    return _FOREIGN
        return Owned(claim.epoch, state, record)

    def failed(self, client: ClientInfo, error: BaseException) -> Refusal:
        """The registry or the store could not say."""
        if isinstance(error, PermissionError):
            return _FOREIGN
        self.broker.metrics.claims_failed += 1
        return Refusal(reasons.SERVER_UNAVAILABLE, f"the client id cannot be claimed: {error!r}")

    def give_back(self, client: ClientInfo, owned: Owned) -> None:
        """A client that has its client id may not have it after all."""
        claim = Claim(owned.epoch, Held.HERE, state=owned.state)
        self.unwanted(claim, client, owned.state)

    def unwanted(self, claim: Claim, client: ClientInfo, state: SessionState | None) -> None:
        """An answer for a client that has gone: keep its state, or give the client id back."""
        client_id = client.client_id
        if client_id in self.registry.sessions:
            return
        if state is not None:
            self.registry.keep(client_id, claim.epoch, state)
            return
        line = self.lines.get(client_id)
        if line is None or (line.current is None and not line.behind):
            self.registry.release(client_id, claim.epoch)


class _Pending:
    """What is waited for: the claim (`claim` is None), then the state."""

    def __init__(self, claim: Claim | None, asked: Any) -> None:
        self.claim = claim
        self.asked: Any = asked


class _Wait(Timer):
    """One client that waits, for an answer or in line."""

    def __init__(
        self,
        claims: Claims,
        line: _Line,
        channel: Channel,
        client: ClientInfo,
        connect: Connect,
        then: Callable[[Any], None],
    ) -> None:
        super().__init__()
        self.claims = claims
        self.line = line
        self.channel = channel
        self.client = client
        self.connect = connect
        self.then = then
        self.claim: Claim | None = None
        self.outcome: object | None = None
        #: Its outcome is told by `then`.
        self.waits: bool = True
        broker = claims.broker
        broker.wheel.schedule(self, broker.now + claims.timeout)

    def begin(self, pending: _Pending) -> None:
        """Wait for what was asked."""
        broker = self.claims.broker
        if not self.due_at:
            broker.wheel.schedule(self, broker.now + self.claims.timeout)
        self.line.current = self
        self.claim = pending.claim
        if pending.claim is None:
            pending.asked.addCallbacks(self.claimed, self.failed)
        else:
            pending.asked.addCallbacks(self.loaded, self.failed)

    def claimed(self, claim: Any) -> None:
        """The registry has answered."""
        claims = self.claims
        if not isinstance(claim, Claim):
            self.conclude(claims.failed(self.client, TypeError(f"{claim!r} is no Claim")))
            return
        self.claim = claim
        if self.outcome is not None or self.channel.state != WAITING:
            self.loaded(claim.state)
            return
        try:
            state = claims.state(claim, self.client, self.connect.clean_start)
        except Exception as error:
            self.conclude(claims.failed(self.client, error))
            return
        if state is None or isinstance(state, SessionState):
            self.loaded(state)
        else:
            state.addCallbacks(self.loaded, self.failed)

    def loaded(self, state: Any) -> None:
        """The state has come too: handed over, stored, or None."""
        claim = self.claim
        assert claim is not None
        claims = self.claims
        if self.outcome is not None:
            claims.unwanted(claim, self.client, claim.state)
        elif self.channel.state != WAITING:
            self.conclude(_LATE)
            claims.unwanted(claim, self.client, claim.state)
        elif claims.registry.is_foreign(self.client):
            self.conclude(_FOREIGN)  # it has come here meanwhile
        else:
            self.conclude(claims.owned(claim, self.client, state))

    def failed(self, failure: Any) -> None:
        """The registry or the store has failed."""
        if self.outcome is None:
            error: Any = getattr(failure, "value", failure)
            self.conclude(self.claims.failed(self.client, error))

    def due(self, now: int) -> None:
        """Nobody has answered in time."""
        if self.outcome is None:
            self.claims.broker.metrics.claims_timed_out += 1
            self.conclude(_LATE)

    def conclude(self, outcome: object) -> None:
        """The client has its answer; whoever is behind it gets his in a later turn."""
        self.outcome = outcome
        broker = self.claims.broker
        broker.wheel.cancel(self)
        if self.line.current is self:
            self.line.current = None
            broker.soon(self.line)
        if self.waits:
            self.then(outcome)


class _Line:
    """Those who wait for one client id; called in a turn of its own when the next may go."""

    def __init__(self, claims: Claims, client_id: str) -> None:
        self.claims = claims
        self.client_id = client_id
        #: Whose claim is under way.
        self.current: _Wait | None = None
        self.behind: deque[_Wait] = deque()

    def __call__(self) -> None:
        claims = self.claims
        while self.behind:
            wait = self.behind.popleft()
            if wait.outcome is not None or wait.channel.state != WAITING:
                claims.broker.wheel.cancel(wait)
                if wait.outcome is None:
                    wait.outcome = _LATE
                    wait.then(_LATE)
                continue
            self.current = wait
            answer = claims.ask(wait.client, wait.connect)
            if isinstance(answer, _Pending):
                wait.begin(answer)
            else:
                wait.conclude(answer)
            return
        del claims.lines[self.client_id]
