"""Who holds the broker's memory, and whose reading is slower than what is sent to it.

Promise: the sessions are looked at a slice a turn; at most `LARGEST` of them are told.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct
from twisted.internet.defer import Deferred

from mqttd.broker.broker import Broker
from mqttd.broker.memory.shedding import weight_of
from mqttd.readmodel.clients import Clients
from mqttd.readmodel.slices import Slice
from mqttd.session.channel.channel import Channel
from mqttd.session.session import Session

__all__ = ["Holders", "SlowSubscriber", "SlowSubscribers"]

LARGEST: Final = 20


class SlowSubscriber(Struct):
    """One connection that takes less than is sent to it."""

    client_id: str
    username: str | None
    #: Since it has taken nothing.
    seconds: float
    unsent_bytes: int
    queued: int


class SlowSubscribers(Struct):
    """Those who are slow now, the longest first; `count` has those beyond the first 100 too."""

    slow: list[SlowSubscriber]
    count: int


class Holders:
    """Who holds what of one broker."""

    def __init__(self, broker: Broker, clients: Clients) -> None:
        self.broker = broker
        self.clients = clients

    def memory(self) -> Deferred[dict[str, object]]:
        """What is held by kind, and the sessions and users that hold most."""
        largest: list[tuple[int, str]] = []
        held_by: dict[str, int] = {}

        def work() -> Iterator[None]:
            time = Slice()
            for client_id in self.clients.ids():
                session = self.broker.sessions.get(client_id)
                if session is not None:
                    weight = weight_of(session)
                    entry = (weight, client_id)
                    user = session.username
                    if user is not None:
                        held_by[user] = held_by.get(user, 0) + weight
                    if len(largest) < LARGEST:
                        heapq.heappush(largest, entry)
                    elif entry > largest[0]:
                        heapq.heapreplace(largest, entry)
                if time.over():
                    yield
                    time.begin()

        def shown(_: object) -> dict[str, object]:
            sessions = self.broker.sessions
            kept = [sessions[name] for _, name in sorted(largest, reverse=True) if name in sessions]
            return self.broker.memory.describe(kept, held_by)

        return self.clients.run(work()).addCallback(shown)

    def slow(self) -> SlowSubscribers:
        """The slow subscribers of this moment."""
        now = self.broker.now
        found: list[SlowSubscriber] = []
        slow: Any = self.broker.slow
        for channel, since in heapq.nsmallest(100, slow.items(), key=lambda item: item[1]):
            session = channel.session if isinstance(channel, Channel) else None
            if isinstance(session, Session):
                queue = session.mqueue
                found.append(
                    SlowSubscriber(
                        session.client_id,
                        session.username,
                        (now - since) / 1000,
                        channel.out_bytes,
                        queue.length if queue is not None else 0,
                    )
                )
        return SlowSubscribers(found, len(slow))
