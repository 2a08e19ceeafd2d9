"""Subscriptions of this node and routes to others: which sessions a topic name reaches.

    literal filters   exact:  filter -> Session | {subscriber: options}
    wildcard filters  trie:   level  -> {subscriber: options}
    shared groups     groups: "$share/name/filter" -> Group, one subscriber in either table
    other nodes       nodes:  filter -> {node}, the same two tables once a cluster announces them

Like the design documents' route layer, a topic trie holds the wildcard filters and a hash table the
literal ones. `route` flattens what matches a topic into a `Route`, which is cached until a
subscription changes that can match it: a literal filter invalidates one Route, a wildcard filter
those below its first level. An invalid Route is never revived: a new one takes its place, so
whoever holds the old one sees `valid` False.

Promise: subscribe and unsubscribe cost O(levels) plus the Routes they invalidate; a cached route
costs one look-up. The cache holds at most `MAX_ROUTES`.
"""

from __future__ import annotations

from typing import Final

from mqttd.broker.shared import Group
from mqttd.broker.trie import Trie
from mqttd.session.metrics import Metrics
from mqttd.session.route import QOS_MASK, Route, Target, merge_options
from mqttd.session.session import Session

__all__ = ["MAX_ROUTES", "Router", "is_wildcard"]

#: Cached routes; past it the cache starts anew (NATS keeps 1024; topics here are many more).
MAX_ROUTES: Final = 200_000


def is_wildcard(topic_filter: str) -> bool:
    """Whether a valid filter holds `+` or `#`."""
    return "+" in topic_filter or "#" in topic_filter


def _first(topic: str) -> str:
    at = topic.find("/")
    return topic if at < 0 else topic[:at]


class Router:
    """The subscription table, the shared groups and the route cache of one node."""

    def __init__(self, metrics: Metrics, shared_strategy: str) -> None:
        self.metrics = metrics
        self.shared_strategy = shared_strategy
        self.exact: dict[str, object] = {}
        self.trie = Trie()
        self.groups: dict[str, Group] = {}
        #: Subscriptions of sessions, shared ones included.
        self.subscriptions: int = 0
        self._cache: dict[str, dict[str, Route]] = {}
        self._cached: int = 0
        #: Filters that other nodes announced: filter -> node names.
        self._node_exact: dict[str, dict[object, int]] = {}
        self._node_trie: Trie | None = None
        self._node_names: dict[str, _Remote] = {}

    # -- subscriptions -------------------------------------------------------------------------

    def subscribe(self, session: Session, topic_filter: str, options: int) -> bool:
        """Add or replace a subscription; True if it is new. Identifiers are the session's."""
        mine = session.subscriptions
        if mine is None:
            mine = {}
            session.subscriptions = mine
        new = topic_filter not in mine
        mine[topic_filter] = options
        if new:
            self.subscriptions += 1
        self._add(topic_filter, session, options)
        return new

    def unsubscribe(self, session: Session, topic_filter: str) -> bool:
        """Remove a subscription; False if there was none."""
        mine = session.subscriptions
        if mine is None or topic_filter not in mine:
            return False
        del mine[topic_filter]
        if not mine:
            session.subscriptions = None
        if session.identifiers is not None:
            session.identifiers.pop(topic_filter, None)
            if not session.identifiers:
                session.identifiers = None
        self.subscriptions -= 1
        self._remove(topic_filter, session)
        return True

    def subscribe_shared(
        self,
        session: Session,
        full_filter: str,
        name: str,
        topic_filter: str,
        options: int,
        identifier: int = 0,
    ) -> bool:
        """Join a shared group (`full_filter` is the filter as the client wrote it)."""
        mine = session.subscriptions
        if mine is None:
            mine = {}
            session.subscriptions = mine
        new = full_filter not in mine
        mine[full_filter] = options
        group = self.groups.get(full_filter)
        if group is None:
            group = Group(name, topic_filter, self.shared_strategy)
            self.groups[full_filter] = group
            self._add(topic_filter, group, 0)
        group.add(session, options, identifier)
        if new:
            self.subscriptions += 1
        return new

    def unsubscribe_shared(self, session: Session, full_filter: str) -> bool:
        """Leave a shared group; the last member takes the group along."""
        mine = session.subscriptions
        if mine is None or full_filter not in mine:
            return False
        del mine[full_filter]
        if not mine:
            session.subscriptions = None
        if session.identifiers is not None:
            session.identifiers.pop(full_filter, None)
        self.subscriptions -= 1
        group = self.groups.get(full_filter)
        if group is not None:
            group.remove(session)
            if len(group) == 0:
                del self.groups[full_filter]
                self._remove(group.topic_filter, group)
        return True

    def _add(self, topic_filter: str, subscriber: object, options: int) -> None:
        if is_wildcard(topic_filter):
            level = self.trie.insert(topic_filter)
            subscribers = level.subscribers
            assert subscribers is not None
            subscribers[subscriber] = options
            self._invalidate_under(topic_filter)
            return
        held = self.exact.get(topic_filter)
        if held is None:
            # A lone session is stored as itself: its options are in its own table.
            self.exact[topic_filter] = (
                subscriber if isinstance(subscriber, Session) else {subscriber: options}
            )
        elif isinstance(held, dict):
            held[subscriber] = options
        elif held is not subscriber:
            assert isinstance(held, Session) and held.subscriptions is not None
            self.exact[topic_filter] = {
                held: held.subscriptions[topic_filter],
                subscriber: options,
            }
        self._invalidate(topic_filter)

    def _remove(self, topic_filter: str, subscriber: object) -> None:
        if is_wildcard(topic_filter):
            level = self.trie.get(topic_filter)
            if level is not None and level.subscribers is not None:
                level.subscribers.pop(subscriber, None)
                if not level.subscribers:
                    self.trie.remove(topic_filter)
            self._invalidate_under(topic_filter)
            return
        held = self.exact.get(topic_filter)
        if isinstance(held, dict):
            held.pop(subscriber, None)
            if not held:
                del self.exact[topic_filter]
        elif held is subscriber:
            del self.exact[topic_filter]
        self._invalidate(topic_filter)

    # -- routes to other nodes -----------------------------------------------------------------

    def add_node(self, topic_filter: str, node: str) -> None:
        """Another node announced `topic_filter`."""
        remote = self._node_names.get(node)
        if remote is None:
            remote = _Remote(node)
            self._node_names[node] = remote
        if is_wildcard(topic_filter):
            if self._node_trie is None:
                self._node_trie = Trie()
            level = self._node_trie.insert(topic_filter)
            assert level.subscribers is not None
            level.subscribers[remote] = 0
            self._invalidate_under(topic_filter)
        else:
            self._node_exact.setdefault(topic_filter, {})[remote] = 0
            self._invalidate(topic_filter)

    def remove_node(self, topic_filter: str, node: str) -> None:
        """Another node withdrew `topic_filter`."""
        remote = self._node_names.get(node)
        if remote is None:
            return
        if is_wildcard(topic_filter):
            trie = self._node_trie
            level = trie.get(topic_filter) if trie is not None else None
            if trie is not None and level is not None and level.subscribers is not None:
                level.subscribers.pop(remote, None)
                if not level.subscribers:
                    trie.remove(topic_filter)
            self._invalidate_under(topic_filter)
        else:
            held = self._node_exact.get(topic_filter)
            if held is not None:
                held.pop(remote, None)
                if not held:
                    del self._node_exact[topic_filter]
            self._invalidate(topic_filter)

    # -- route cache ---------------------------------------------------------------------------

    def route(self, topic: str) -> Route:
        """The valid Route of a topic name, from the cache or built now."""
        first = _first(topic)
        shelf = self._cache.get(first)
        if shelf is None:
            shelf = {}
            self._cache[first] = shelf
        route = shelf.get(topic)
        if route is None:
            if self._cached >= MAX_ROUTES:
                self.invalidate_all()
                shelf = {}
                self._cache[first] = shelf
            route = self.build(topic)
            shelf[topic] = route
            self._cached += 1
        return route

    def build(self, topic: str) -> Route:
        """Flatten all subscriptions that match `topic` (the slow twin of the cache)."""
        self.metrics.routes_built += 1
        route = Route(topic)
        found: dict[Session, int] = {}
        held = self.exact.get(topic)
        if held is not None:
            if isinstance(held, dict):
                for subscriber, options in held.items():
                    self._take(route, found, topic, subscriber, options)
            else:
                assert isinstance(held, Session) and held.subscriptions is not None
                self._take(route, found, topic, held, held.subscriptions[topic])
        if self.trie.filters:
            for level in self.trie.match(topic):
                subscribers = level.subscribers
                if subscribers is None:
                    continue
                topic_filter = ""
                for subscriber, options in subscribers.items():
                    if isinstance(subscriber, Session) and subscriber.identifiers is not None:
                        if not topic_filter:
                            topic_filter = level.topic_filter()
                        self._take(route, found, topic_filter, subscriber, options)
                    else:
                        self._take(route, found, "", subscriber, options)
        route.sessions = list(found)
        route.options = list(found.values())
        if self._node_names:
            self._take_nodes(route, topic)
        for options in route.options:
            if options & ~QOS_MASK:
                route.plain = False
                break
        if route.identifiers is not None or route.groups is not None or route.nodes is not None:
            route.plain = False
        route.valid = True
        return route

    def _take(
        self,
        route: Route,
        found: dict[Session, int],
        topic_filter: str,
        subscriber: object,
        options: int,
    ) -> None:
        if not isinstance(subscriber, Session):
            assert isinstance(subscriber, Target)
            if route.groups is None:
                route.groups = []
            route.groups.append(subscriber)
            return
        identifiers = subscriber.identifiers
        if identifiers is not None:
            identifier = identifiers.get(topic_filter)
            if identifier is not None:
                if route.identifiers is None:
                    route.identifiers = {}
                route.identifiers.setdefault(subscriber, []).append(identifier)
        known = found.get(subscriber, -1)
        found[subscriber] = options if known < 0 else merge_options(known, options)

    def _take_nodes(self, route: Route, topic: str) -> None:
        nodes: list[str] = []
        held = self._node_exact.get(topic)
        if held is not None:
            for remote in held:
                assert isinstance(remote, _Remote)
                nodes.append(remote.name)
        if self._node_trie is not None:
            for level in self._node_trie.match(topic):
                if level.subscribers is not None:
                    for remote in level.subscribers:
                        assert isinstance(remote, _Remote)
                        if remote.name not in nodes:
                            nodes.append(remote.name)
        if nodes:
            route.nodes = nodes

    def invalidate_all(self) -> None:
        """Forget every cached route."""
        for shelf in self._cache.values():
            for route in shelf.values():
                route.valid = False
        self._cache = {}
        self._cached = 0

    def _invalidate(self, topic: str) -> None:
        shelf = self._cache.get(_first(topic))
        if shelf is not None:
            route = shelf.pop(topic, None)
            if route is not None:
                route.valid = False
                self._cached -= 1

    def _invalidate_under(self, topic_filter: str) -> None:
        if not self._cached:
            return
        first = _first(topic_filter)
        if first == "+" or first == "#":
            self.invalidate_all()
            return
        shelf = self._cache.pop(first, None)
        if shelf is not None:
            for route in shelf.values():
                route.valid = False
            self._cached -= len(shelf)


class _Remote:
    """Another node, as a subscriber in the tables."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name
