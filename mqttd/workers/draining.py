"""A broker of several workers is taken out of service: one rate for all of them.

    once a second: who is left where --> the rate, by shares of that --> every worker
                   nobody is left    --> the broker ends, if it is to

Promise: no more than the rate go in a second, however they are spread; a worker that is started
again while it lasts lets nobody in either.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall

from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask
from mqttd.workers.asking import Asker, Json

__all__ = ["Draining", "shares_of"]

_TARGET: Final = "/api/v1/drain"
#: Clients a second of a worker that has none.
_LEAST: Final = 0.01


def shares_of(rate: float, left: dict[int, int]) -> dict[int, float]:
    """What each worker may end in a second.

    >>> shares_of(100.0, {1: 30, 2: 10})
    {1: 75.0, 2: 25.0}
    """
    total = sum(left.values())
    if not total:
        return dict.fromkeys(left, rate / len(left))
    return {number: max(rate * count / total, _LEAST) for number, count in left.items()}


class Draining:
    """The rule about draining; `drained` is called when nobody is left, and that is the end."""

    def __init__(self, asker: Asker, drained: Callable[[], object]) -> None:
        self.asker = asker
        self.drained = drained
        #: What was asked for, None while clients are let in.
        self.wanted: Json | None = None
        self._looking = LoopingCall(lambda: Deferred.fromCoroutine(self._look()))
        self._looking.clock = asker.service.reactor

    async def drain(self, ask: Ask) -> Json:
        """Show it, begin it, or end it."""
        if ask.request.method == b"POST":
            self.asker.whole()
            self.wanted = msgspec.to_builtins(ask.body)
            await self._share()
            ask.changed(None, ask.body)
            if not self._looking.running:
                self._looking.start(1.0, now=False)
        elif ask.request.method == b"DELETE":
            if self.wanted is None:
                raise ApiError(404, "not_found", "this node is not being drained")
            self.asker.whole()
            await self.asker.each(self.asker.whole(), ask)
            self.stop()
        return self._view(await self._told())

    def stop(self) -> None:
        """It is over."""
        self.wanted = None
        if self._looking.running:
            self._looking.stop()

    async def _look(self) -> None:
        """Once a second; a worker that does not answer is asked again."""
        try:
            told = await self._share()
        except ApiError:
            return
        wanted = self.wanted
        count = self.asker.service.count
        if wanted is None or len(told) < count or not all(one["draining"] for one in told.values()):
            return
        if wanted["exit"] and not any(one["left"] for one in told.values()):
            self.stop()
            self.drained()

    async def _share(self) -> dict[int, Json]:
        """Give each worker its share of the rate; what they say then."""
        told = await self._told()
        wanted = self.wanted
        if wanted is None:
            return told
        for number, rate in shares_of(
            wanted["rate"], {number: one["left"] for number, one in told.items()}
        ).items():
            body = json.dumps({**wanted, "rate": rate, "exit": False}).encode()
            said = await self.asker.tell(number, "POST", _TARGET, body)
            told[number] = said.json()
        return told

    async def _told(self) -> dict[int, Json]:
        found: dict[int, Any] = {}
        for number in self.asker.there():
            found[number] = (await self.asker.tell(number, "GET", _TARGET)).json()
        return found

    def _view(self, told: dict[int, Json]) -> Json:
        wanted = self.wanted or {"rate": 0.0, "to": "", "exit": False}
        return {
            "draining": self.wanted is not None,
            "rate": wanted["rate"],
            "to": wanted["to"],
            "exit": wanted["exit"],
            "ended": sum(one["ended"] for one in told.values()),
            "left": sum(one["left"] for one in told.values()),
        }
