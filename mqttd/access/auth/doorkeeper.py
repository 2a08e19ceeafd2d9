"""Stands before the authentication chain, and keeps account of who fails there.

    CONNECT --barred?--> chain --yes--> let in, its failures are forgotten
               |           '--no---> counted; the answer may be put off
               (`mqttd.access.auth.failures`) '--> 0x8A, nobody is asked

What counts is a no: neither a back end that has failed nor a broker that is busy. Each ban gets one
line in the log.

Promise: answers are put off for at most `MOST_LATE` clients at a time, others get theirs at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from mqttd.access.auth.authentication import AuthenticationChain, Exchange
from mqttd.access.auth.failures import Failures
from mqttd.access.auth.guard import Gone, OnEvent, stays
from mqttd.codec.reasons import (
    BAD_USER_NAME_OR_PASSWORD,
    BANNED,
    CLIENT_IDENTIFIER_NOT_VALID,
    NOT_AUTHORIZED,
)
from mqttd.types import AuthContinue, AuthResult, ClientInfo

__all__ = ["MOST_LATE", "Doorkeeper", "WatchedExchange"]

#: Clients whose answer is put off at the same time.
MOST_LATE: Final = 10_000

_NO: Final = frozenset((BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, CLIENT_IDENTIFIER_NOT_VALID))


class Doorkeeper:
    """Asks `chain`, and lets nobody try for ever.

    `reactor` is the clock, None puts nothing off; ``count(name)`` adds one to a counter.
    """

    def __init__(
        self,
        chain: AuthenticationChain,
        failures: Failures,
        reactor: Any,
        on_event: OnEvent,
        count: Callable[[str], None],
    ) -> None:
        self.chain = chain
        self.failures = failures
        self._reactor = reactor
        self._on_event = on_event
        self._count = count
        self._late = 0
        chain.barred = lambda client: failures.bars(client, chain.now()) > 0

    def authenticate(
        self, client: ClientInfo, password: bytes | None, gone: Gone = stays
    ) -> AuthResult | Deferred[AuthResult]:
        """As `AuthenticationChain.authenticate`."""
        barred = self.bars(client)
        if barred is not None:
            return barred
        said = client.username
        answer = self.chain.authenticate(client, password, gone)
        if isinstance(answer, AuthResult):
            return self.judged(answer, client, said)
        return cast("Deferred[AuthResult]", answer.addCallback(self.judged, client, said))

    def watched(self, exchange: Exchange) -> WatchedExchange:
        """An enhanced authentication whose end is noted as that of a password."""
        return WatchedExchange(self, exchange)

    def bars(self, client: ClientInfo) -> AuthResult | None:
        """The refusal of a client that is not asked about for a while."""
        if not self.failures.counts:
            return None
        left = self.failures.bars(client, self._now())
        if not left:
            return None
        self._count("auth_failures_refused")
        return AuthResult(False, BANNED, f"too many failed log-ins; barred for {left:.0f} s")

    def judged(
        self, result: AuthResult, client: ClientInfo, said: str | None
    ) -> AuthResult | Deferred[AuthResult]:
        """Note the result for a client that `said` this user name, and hand it on, perhaps late."""
        failures = self.failures
        if result.ok:
            failures.let_in(client, said)
            return result
        if result.reason_code not in _NO:
            return result
        delay, ban = failures.note(client, said, self._now())
        self._count("auth_failures")
        if ban:
            self._count("auth_failures_bans")
            fields: dict[str, object] = {
                "address": client.peerhost,
                "username": said and said[:256],
            }
            self._on_event("log-ins barred", {**fields, "seconds": ban})
        if not delay or self._reactor is None or self._late >= MOST_LATE:
            return result
        self._count("auth_failures_delayed")
        self._late += 1
        later: Deferred[AuthResult] = deferLater(self._reactor, delay, self._at_last, result)
        return later

    def _at_last(self, result: AuthResult) -> AuthResult:
        self._late -= 1
        return result

    def _now(self) -> float:
        return self.chain.now()


class WatchedExchange:
    """An `Exchange` under the eyes of the doorkeeper."""

    def __init__(self, doorkeeper: Doorkeeper, exchange: Exchange) -> None:
        self.method = exchange.method
        self.client = exchange.client
        self._doorkeeper = doorkeeper
        self._exchange = exchange
        self._said = exchange.client.username

    def step(self, data: bytes) -> AuthContinue | AuthResult | Deferred[AuthContinue | AuthResult]:
        """As `Exchange.step`."""
        barred = self._doorkeeper.bars(self.client)
        if barred is not None:
            return barred
        answer = self._exchange.step(data)
        if isinstance(answer, Deferred):
            return cast("Deferred[AuthContinue | AuthResult]", answer.addCallback(self._judged))
        judged: AuthContinue | AuthResult | Deferred[AuthContinue | AuthResult]
        judged = self._judged(answer)
        return judged

    def _judged(self, answer: Any) -> Any:
        if isinstance(answer, AuthContinue):
            return answer
        return self._doorkeeper.judged(answer, self.client, self._said)
