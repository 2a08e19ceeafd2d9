"""Answers to wrong tokens wait: longer with each, by address (the /64 of one of IPv6).

    401 --> half a second, one, two, ... at most `MOST` --> answered
              '-- more than `WAITING` of one address wait already: 429, and the connection ends

Promise: who shows a good token waits for nobody, whatever others at its address show. At most
`ADDRESSES` are remembered, each for a minute after its last wrong token.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.web.server import NOT_DONE_YET

from mqttd.net.fair import house_of

__all__ = ["Slow"]

FIRST: Final = 0.5
MOST: Final = 8.0
WAITING: Final = 8
ADDRESSES: Final = 1024
#: Seconds after which an address is as good as any.
FORGIVEN: Final = 60.0


class _Address:
    """What one address has shown."""

    def __init__(self) -> None:
        self.wrong = 0
        self.at = 0.0
        self.waiting = 0


class Slow:
    """Delays the answers of one server; `reactor` has `seconds` and `callLater`."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.log = Logger(namespace="mqttd.admin")
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def refuse(self, request: Any, body: bytes) -> Any:
        """Answer a request, whose status is set, with this body in a while."""
        host = house_of(str(getattr(request.getClientAddress(), "host", "")))
        known = self._of(host)
        if known.waiting >= WAITING:
            request.setResponseCode(429)
            request.setHeader(b"connection", b"close")
            return body
        call = self.reactor.callLater(self._count(known, host), self._answer, known, request, body)
        request.notifyFinish().addErrback(self._gone, known, call)
        return NOT_DONE_YET

    def hold(self, host: str) -> Deferred[None] | None:
        """Fires after the wait of an address that was wrong; None if too many of it wait."""
        host = house_of(host)
        known = self._of(host)
        if known.waiting >= WAITING:
            return None
        held: Deferred[None] = Deferred()
        self.reactor.callLater(self._count(known, host), self._let_go, known, held)
        return held

    def _let_go(self, known: _Address, held: Deferred[None]) -> None:
        known.waiting -= 1
        held.callback(None)

    def _count(self, known: _Address, host: str) -> float:
        """One more that is wrong; the seconds that its answer waits."""
        delay = min(MOST, FIRST * 2.0 ** min(known.wrong, 16))
        known.wrong += 1
        known.at = self.reactor.seconds()
        known.waiting += 1
        # The first, the second, the fourth ...: who tries on and on fills no log.
        if known.wrong & (known.wrong - 1) == 0:
            self.log.warn(
                "wrong token or password: address={address} times={times}",
                address=host, times=known.wrong,
            )  # fmt: skip
        return delay

    def _of(self, host: str) -> _Address:
        now = self.reactor.seconds()
        known = self._addresses.pop(host, None)
        if known is None or now - known.at > FORGIVEN:
            waiting = 0 if known is None else known.waiting
            known = _Address()
            known.waiting = waiting
        self._addresses[host] = known
        if len(self._addresses) > ADDRESSES:
            self._addresses.popitem(False)
        return known

    def _answer(self, known: _Address, request: Any, body: bytes) -> None:
        known.waiting -= 1
        request.write(body)
        request.finish()

    def _gone(self, failure: object, known: _Address, call: Any) -> None:
        """The client has not waited."""
        if call.active():
            call.cancel()
            known.waiting -= 1
