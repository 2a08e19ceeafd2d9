"""Where a message to a topic goes: the filters that match it, and who subscribed to them.

A receiver that stands for another process (`place`) is none of this broker's; a trail names it.

Promise: a question costs what the route to that topic costs, and names at most `NAMED` clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from mqttd.broker.broker import Broker
from mqttd.broker.routing.mounts import wildcard_at
from mqttd.broker.routing.shared import Group
from mqttd.session.routes.route import MOUNTED
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

    def of(self, topic: str, elsewhere: bool = False) -> TopicRoutes:
        """The routes of a topic name; `elsewhere`: those that lead to other processes, too."""
        router = self.broker.router
        found: list[RouteView] = []
        exact = router.exact.get(topic)
        if exact is not None:
            _take(topic, exact if isinstance(exact, dict) else [exact], found, elsewhere)
        for level in router.trie.match(topic):
            topic_filter = level.topic_filter()
            subscribers = level.subscribers
            if topic.startswith("$", wildcard_at(topic_filter)):
                outside = [one for one in subscribers if not subscribers[one] & MOUNTED]
                _take(topic_filter, outside, found, elsewhere, MOUNTED)
            else:
                _take(topic_filter, subscribers, found, elsewhere)
        found.sort(key=lambda one: (one.topic_filter, one.group or ""))
        return TopicRoutes(topic, found)


def _take(
    topic_filter: str,
    subscribers: Iterable[object],
    found: list[RouteView],
    elsewhere: bool,
    without: int = 0,
) -> None:
    """`without`: an option that no member of a group has that gets the topic."""
    alone: list[str] = []
    count = 0
    for subscriber in subscribers:
        if isinstance(subscriber, Group):
            members = [
                one
                for one in subscriber.order
                if (elsewhere or not _place_of(one)) and not subscriber.options(one) & without
            ]
            if members:
                names = [_name_of(member) for member in members[:NAMED]]
                found.append(RouteView(topic_filter, subscriber.name, len(members), names))
        elif elsewhere or not _place_of(subscriber):
            count += 1
            if len(alone) < NAMED:
                alone.append(_name_of(subscriber))
    if count:
        found.append(RouteView(topic_filter, None, count, alone))


def _place_of(receiver: object) -> str:
    """Which other process a receiver stands for; "" for one of this."""
    place: str = getattr(receiver, "place", "")
    return place


def _name_of(receiver: object) -> str:
    if isinstance(receiver, Session):
        return receiver.client_id
    return _place_of(receiver) or type(receiver).__name__
