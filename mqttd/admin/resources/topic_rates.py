"""Topics with their rates: counted by filter for as long as wanted, by topic for some seconds."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct
from twisted.internet.defer import Deferred

from mqttd.admin.http.checks import checked_topic
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask, delete, get, post
from mqttd.readmodel.topic_rates import Busiest, TopicCounts, TopicFigures

__all__ = ["TopicRatesResource"]

#: Questions that count at the same time.
_MOST = 4


class One(Struct, forbid_unknown_fields=True):
    """The topics of one filter."""

    topic_filter: Annotated[str, Meta(min_length=1)]


class Wish(Struct, forbid_unknown_fields=True):
    """Which topics, for how many seconds, and how many of them are told."""

    topic_filter: Annotated[str, Meta(min_length=1)] = "#"
    seconds: Annotated[float, Meta(ge=0.1, le=10)] = 2.0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50


class TopicRatesResource:
    """How many messages come to which topics."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._asked = 0

    @get("/topic-metrics", answer=TopicCounts)
    def counts(self, ask: Ask) -> TopicCounts:
        """What came to the topics of each filter that is counted, and how much a second."""
        return self._figures().counts()

    @post("/topic-metrics", body=One, answer=TopicCounts, errors=(409,))
    def add(self, ask: Ask) -> TopicCounts:
        """Count what comes to the topics of a filter, until it is taken back or the broker ends."""
        topic_filter = checked_topic("topic_filter", ask.body.topic_filter)
        if not self._figures().add(topic_filter):
            raise ApiError(409, "refused", "there are as many filters as are counted")
        ask.changed(None, ask.body)
        return self._figures().counts()

    @delete("/topic-metrics", query=One, answer=TopicCounts)
    def remove(self, ask: Ask) -> TopicCounts:
        """Count the topics of a filter no more."""
        topic_filter = checked_topic("topic_filter", ask.query.topic_filter)
        if not self._figures().remove(topic_filter):
            raise ApiError(404, "not_found", f"{topic_filter[:80]!r} is not counted")
        ask.changed(ask.query)
        return self._figures().counts()

    @get("/topics/busiest", query=Wish, answer=Busiest, errors=(409,))
    def busiest(self, ask: Ask) -> Deferred[Busiest]:
        """Count what comes by topic for some seconds: those with most messages."""
        wish = ask.query
        topic_filter = checked_topic("topic_filter", wish.topic_filter)
        if self._asked >= _MOST:
            raise ApiError(409, "busy", f"{_MOST} such questions are being answered")
        self._asked += 1
        found = self._figures().busiest(topic_filter, wish.seconds, wish.limit)
        found.addBoth(self._done)
        return found

    def _done(self, result: Any) -> Any:
        self._asked -= 1
        return result

    def _figures(self) -> TopicFigures:
        figures: TopicFigures = self.parts.need(self.parts.topic_figures, "topics are not counted")
        return figures
