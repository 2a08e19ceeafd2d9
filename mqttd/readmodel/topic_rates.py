"""Which topics have how many messages: by filter while that is counted, by topic for a while.

Promise: nobody asks, nothing is counted; a filter costs its own messages alone
(`mqttd.broker.routing.topic_rates`).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest
from typing import Any

from msgspec import Struct
from twisted.internet.defer import Deferred

from mqttd.broker.broker import Broker
from mqttd.broker.routing.topic_rates import Top, TopicRates

__all__ = ["Busiest", "TopicCount", "TopicCounts", "TopicFigures"]


class TopicCount(Struct, kw_only=True):
    """Messages and bytes of payload that came, and how many a second."""

    #: A topic filter, or a topic.
    topic: str
    messages: int
    bytes: int
    message_rate: float
    byte_rate: float
    #: Seconds that have been counted.
    seconds: float


class TopicCounts(Struct):
    """What is counted by filter."""

    topics: list[TopicCount]


class Busiest(Struct):
    """The topics with most messages; `others` came to topics beyond those told apart."""

    topics: list[TopicCount]
    others: int


class TopicFigures:
    """The figures of one broker's topics; `later(seconds, call)` calls in a while."""

    def __init__(self, broker: Broker, later: Callable[..., Any]) -> None:
        self.broker = broker
        self.rates = TopicRates()
        self._later = later
        self._token: object | None = None

    def tick(self, now: int) -> None:
        """A few times a second."""
        if self.rates.counts:
            self.rates.tick(now)

    def counts(self) -> TopicCounts:
        """All filters, by name."""
        now = self.broker.now
        return TopicCounts(
            [
                TopicCount(
                    topic=one.name,
                    messages=one.messages,
                    bytes=one.bytes,
                    message_rate=round(one.message_rate, 1),
                    byte_rate=round(one.byte_rate, 1),
                    seconds=(now - one.since) / 1000,
                )
                for _, one in sorted(self.rates.counts.items())
            ]
        )

    def add(self, topic_filter: str) -> bool:
        """Count what comes to these topics; False if there are too many filters."""
        done = self.rates.add(topic_filter, self.broker.now)
        self._note()
        return done

    def remove(self, topic_filter: str) -> bool:
        """Count it no more; False if it was not."""
        done = self.rates.remove(topic_filter)
        self._note()
        return done

    def busiest(self, topic_filter: str, seconds: float, limit: int) -> Deferred[Busiest]:
        """Count by topic for so long; the result fires then."""
        broker = self.broker
        top = Top(broker.now)
        token = broker.add_notes(top, None if topic_filter == "#" else [topic_filter])
        result: Deferred[Busiest] = Deferred()

        def done() -> None:
            broker.remove_notes(token)
            found = nlargest(limit, top.topics.values(), key=lambda one: one.messages)
            views = [
                TopicCount(
                    topic=one.name,
                    messages=one.messages,
                    bytes=one.bytes,
                    message_rate=round(one.messages / seconds, 1),
                    byte_rate=round(one.bytes / seconds, 1),
                    seconds=seconds,
                )
                for one in found
            ]
            result.callback(Busiest(views, top.others))

        self._later(seconds, done)
        return result

    def _note(self) -> None:
        """Be told of the messages of the filters there are now."""
        if self._token is not None:
            self.broker.remove_notes(self._token)
            self._token = None
        if self.rates.counts:
            self._token = self.broker.add_notes(self.rates, list(self.rates.counts))
