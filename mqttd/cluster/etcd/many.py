"""Many small transactions with etcd in one request: a thousand clients that come at once are ten.

    transaction, transaction, ... --a turn, or until one of `AT_ONCE` is answered--> one request,
                                    each nested in it --> each its own answer

Promise: as `Etcd.transaction`, each by itself, asked again where a member hangs: who asks looks at
what there is where it has been done already. No two that change one key are in one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred

from mqttd.cluster.etcd.client import Answer, Etcd, EtcdError, Json

__all__ = ["Many"]

#: Requests under way, and transactions in one: etcd takes 128 changes in all.
AT_ONCE: Final = 4
MOST: Final = 50


class Many:
    """Transactions with `etcd`."""

    def __init__(self, etcd: Etcd, reactor: Any) -> None:
        self.etcd = etcd
        self.reactor = reactor
        self._waiting: list[tuple[Json, Deferred[Answer]]] = []
        self._under_way = 0
        self._called = False

    def transaction(
        self, when: Sequence[Json], then: Sequence[Json], otherwise: Sequence[Json] = ()
    ) -> Deferred[Answer]:
        """As `Etcd.transaction`; its revision is that of all of its request."""
        said = {"compare": list(when), "success": list(then), "failure": list(otherwise)}
        answer: Deferred[Answer] = Deferred()
        self._waiting.append((said, answer))
        self._go()
        return answer

    def _go(self) -> None:
        if self._waiting and not self._called and self._under_way < AT_ONCE:
            self._called = True
            self.reactor.callLater(0, self._send)

    def _send(self) -> None:
        self._called = False
        some = self._next()
        self._under_way += 1
        done = Deferred.fromCoroutine(self._ask(some))
        done.addErrback(lambda failure: None)
        self._go()

    def _next(self) -> list[tuple[Json, Deferred[Answer]]]:
        """What goes into one request: each key is changed once in it."""
        some: list[tuple[Json, Deferred[Answer]]] = []
        left: list[tuple[Json, Deferred[Answer]]] = []
        keys: set[str] = set()
        for at, each in enumerate(self._waiting):
            if len(some) >= MOST:
                left += self._waiting[at:]
                break
            own = {change["key"] for step in each[0]["success"] for change in step.values()}
            if keys.isdisjoint(own):
                some.append(each)
                keys |= own
            else:
                left.append(each)
        self._waiting = left
        return some

    async def _ask(self, some: list[tuple[Json, Deferred[Answer]]]) -> None:
        said = [each for each, _ in some]
        try:
            found = await self.etcd.nested(said)
        except EtcdError as error:
            for _, answer in some:
                answer.errback(EtcdError(str(error)))
            return
        finally:
            self._under_way -= 1
            self._go()
        for (_, answer), each in zip(some, found, strict=True):
            answer.callback(each)
