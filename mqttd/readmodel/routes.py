"""Where a message to a topic goes: the filters that match it, and who subscribed to them.

Promise: a question costs what the route to that topic costs, and names at most `NAMED` clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from msgspec import Struct

from mqttd.broker.broker import Broker
from mqttd.broker.shared import Group
from mqttd.session.session import Session

__all__ = ["RouteView", "Routes", "TopicRoutes"]

#: Clients named for one filter.
NAMED: Final = 100


class RouteView(Struct):
    """One filter that matches, how many receivers it has, and the first of them."""

    topic_filter: str
    #: The shared subscription, of whose members one gets each message.
    group: str | None
    receivers: int
    clients: list[str]


class TopicRoutes(Struct):
    """All filters that match a topic."""

    topic: str
    routes: list[RouteView]


class Routes:
    """The routes of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def of(self, topic: str) -> TopicRoutes:
        """The routes of a topic name."""
        router = self.broker.router
        found: list[RouteView] = []
        exact = router.exact.get(topic)
        if exact is not None:
            _take(topic, exact if isinstance(exact, dict) else [exact], found)
        for level in router.trie.match(topic):
            _take(level.topic_filter(), level.subscribers or {}, found)
        found.sort(key=lambda one: (one.topic_filter, one.group or ""))
        return TopicRoutes(topic, found)


def _take(topic_filter: str, subscribers: Iterable[object], found: list[RouteView]) -> None:
    alone: list[str] = []
    count = 0
    for subscriber in subscribers:
        if isinstance(subscriber, Group):
            names = [_name_of(member) for member in islice(subscriber.order, NAMED)]
            found.append(RouteView(topic_filter, subscriber.name, len(subscriber), names))
        else:
            count += 1
            if len(alone) < NAMED:
                alone.append(_name_of(subscriber))
    if count:
        found.append(RouteView(topic_filter, None, count, alone))


def _name_of(receiver: object) -> str:
    return receiver.client_id if isinstance(receiver, Session) else type(receiver).__name__
