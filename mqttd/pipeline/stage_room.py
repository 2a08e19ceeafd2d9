"""How much room receivers at other workers and nodes have: the plugin there is asked.

    $mqttd/room         {"to": ASKER, "number": 7, "topics": [...], "size": 80}    to all of them
    $mqttd/room/ASKER   {"number": 7, "room": 500}                                 from each of them

They are messages as any other, to subscriptions of the plugin: publishing says how many will hear
of it, and a neighbour that knows nothing of this has not subscribed, and is not waited for.

Promise: a question has `MOST` topics at most, those beyond count as if there were room, and takes
`WAIT` seconds at most; who has not answered by then is not waited for in the next `FORGET`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from twisted.internet.defer import Deferred, TimeoutError

__all__ = ["PLENTY", "Room"]

ASK: Final = "$mqttd/room"
#: Where nobody has a bound.
PLENTY: Final = 1 << 30
MOST: Final = 1000
WAIT: Final = 1.0
FORGET: Final = 10.0


class Room:
    """Asks, and answers the others; `handle` is the plugin's."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._name = secrets.token_hex(8)
        self._number = 0
        #: Of the questions that wait: how many answers are to come, the least room, who is told.
        self._open: dict[int, tuple[int, int, Deferred[None]]] = {}
        #: How many did not answer, and until when that is remembered.
        self._silent = 0
        self._silent_until = 0.0

    def start(self) -> None:
        """Hear what is asked, and answered."""
        self._handle.subscribe(ASK, self._asked, qos=1)
        self._handle.subscribe(f"{ASK}/{self._name}", self._answered, qos=1)

    async def of(self, topics: Iterable[str], size: int) -> int:
        """The room of those who are connected elsewhere, as `IPluginHandle.room` has it."""
        handle = self._handle
        self._number = number = self._number + 1
        told: Deferred[None] = Deferred()
        question = {
            "to": self._name, "number": number, "topics": list(islice(topics, MOST)), "size": size,
        }  # fmt: skip
        others = handle.publish(ASK, json.dumps(question).encode(), 1) - 1  # we hear it, too
        if handle.clock.seconds() >= self._silent_until:
            self._silent = 0
        left = others - self._silent
        if left <= 0:
            return PLENTY
        self._open[number] = left, PLENTY, told
        told.addTimeout(WAIT, handle.clock)
        try:
            await told
        except TimeoutError:
            self._silent += self._open[number][0]
            self._silent_until = handle.clock.seconds() + FORGET
        return self._open.pop(number)[1]

    def _asked(self, message: Any) -> None:
        if message.client_id:
            return  # a client of a node that has no such plugin
        asked = json.loads(message.payload)
        if asked["to"] == self._name:
            return
        room = self._handle.room(asked["topics"], asked["size"])
        answer = json.dumps({"number": asked["number"], "room": room}).encode()
        self._handle.publish(f"{ASK}/{asked['to']}", answer, 1)

    def _answered(self, message: Any) -> None:
        answer = json.loads(message.payload)
        known = self._open.get(answer["number"])
        if message.client_id or known is None:
            return
        left, room, told = known
        self._open[answer["number"]] = left - 1, min(room, answer["room"]), told
        if left == 1 and not told.called:
            told.callback(None)
