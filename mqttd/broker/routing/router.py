"""Subscriptions of this node and of its peers: which receivers a topic name reaches.

    literal filters   exact:  filter -> Receiver | {subscriber: options}
    wildcard filters  trie:   level  -> subscriber | {subscriber: options}
    shared groups     groups: "$share/name/filter" -> Group, one subscriber in either table

Like the design documents' route layer, a topic trie holds the wildcard filters and a hash table the
literal ones. `build` flattens what matches a topic into its `Route`; `mqttd.session.routes.topics`
keeps the routes and knows when one has to be built again. A peer (another worker, another node) is
a receiver like a session: it stands in the same tables with the filters it announced.

Promise: subscribe and unsubscribe cost O(levels), whatever the number of routes.
"""

from __future__ import annotations

from typing import Final

from mqttd.broker.routing.abroad import Abroad
from mqttd.broker.routing.gears import Gears
from mqttd.broker.routing.mounts import Mounts, mounted, wildcard_at
from mqttd.broker.routing.shared import MAX_TURNS, STRATEGIES, Group
from mqttd.broker.routing.trie import Level, Trie
from mqttd.broker.routing.walks import Walks
from mqttd.session.filters import NEW, SAME
from mqttd.session.ground.metrics import Metrics
from mqttd.session.ground.settings import Settings
from mqttd.session.routes.receiver import Receiver
from mqttd.session.routes.route import (
    HELD,
    MISSED,
    MOUNTED,
    NAMED,
    NO_LOCAL,
    NOTED,
    RECORDED,
    RETAIN_AS_PUBLISHED,
    SPREAD,
    STEP,
    TOLD,
    UNHEARD,
    WIDE,
    Route,
    Target,
    merge_options,
)
from mqttd.session.routes.topics import Topics
from mqttd.session.session import Session

__all__ = ["Router", "is_wildcard"]

#: A peer gets messages with the QoS they were published with, and sees to its own receivers. That
#: one was retained it is told by who tells it of retained messages.
_AS_PUBLISHED: Final = 2
#: Groups that remember as many publishers as a group may; the fewest that any remembers.
_GROUPS: Final = 64
_FEW_TURNS: Final = 8
#: Routes to more receivers than this have lists of their own.
_SHARED_RECEIVERS: Final = 8
#: Levels of a walk that are a unit of work, as a power of two: a microsecond.
_WALK: Final = 5
#: Sets of wildcard filters whose receivers are remembered until one of these filters changes.
_MATCHES: Final = 4096
#: Bytes that they take, and one takes for each of its filters.
_MATCHED: Final = 16 << 20
_MATCH: Final = 40


def is_wildcard(topic_filter: str) -> bool:
    """Whether a valid filter holds `+` or `#`."""
    return "+" in topic_filter or "#" in topic_filter


class Router(Topics):
    """The subscription table and the shared groups of one node."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            settings.topic_cache_bytes, settings.topic_cache_entries, settings.topic_cache_selective
        )
        self.shared_strategy: str = settings.shared_strategy
        self.exact: dict[str, object] = {}
        self.trie = Trie()
        self.groups: dict[str, Group] = {}
        #: Subscriptions of sessions, shared ones included.
        self.subscriptions: int = 0
        #: What the messages of a topic need, whoever receives them.
        self.gears = Gears()
        #: Where wildcards of mounted clients do not match `$`.
        self.mounts = Mounts()
        self.walks = Walks(self.trie, self.gears, self.mounts, self._lead)
        self.stems = self.walks
        #: Receivers with their options -> the lists of the routes that lead to them.
        self._shared: dict[tuple[tuple[Receiver, int], ...], tuple[list[Receiver], list[int]]] = {}
        #: The same for a single receiver; and its options, of which there are few.
        self._alone: dict[Receiver, list[Receiver]] = {}
        self._options: dict[int, list[int]] = {}
        #: What is the same for all topics that match the same wildcard filters and no other: by
        #: the level of the filter, or by the levels.
        self._matches: dict[object, Route] = {}
        #: Bytes that these take.
        self._matched: int = 0
        #: The broker's, once there is one.
        self.metrics = Metrics()
        #: Who tells other processes of the filters that are wanted here.
        self.abroad: Abroad | None = None

    def take_over(self, settings: Settings) -> None:
        """Hold to settings that have changed."""
        self.max_bytes = settings.topic_cache_bytes
        self.max_entries = settings.topic_cache_entries
        if settings.shared_strategy != self.shared_strategy:
            self.shared_strategy = settings.shared_strategy
            for group in self.groups.values():
                group.strategy = STRATEGIES[self.shared_strategy]

    def sweep(self, now: int) -> None:
        """As `Topics.sweep`; lists that were shared so far stay with their routes."""
        super().sweep(now)
        if self._shared:
            self._shared = {}
        if self._alone:
            self._alone = {}
        if self._matches:
            self._forget_matches()

    def drop_cache(self) -> None:
        """As `Topics.drop_cache`, with the lists that routes share."""
        super().drop_cache()
        self._shared = {}
        self._forget_matches()

    def _forget_matches(self) -> None:
        self._matches = {}
        self._matched = 0

    # -- subscriptions -------------------------------------------------------------------------

    def subscribe(
        self, session: Session, topic_filter: str, options: int, identifier: int = 0
    ) -> bool:
        """Add or replace a subscription; True if it is new.

        The same once more changes no route. Only MOUNTED, which comes with the connection, may
        have changed then.
        """
        mount = mounted(session, topic_filter)
        change = session.add_subscription(topic_filter, options, identifier)
        if change == SAME and not mount and not self.mounts.prefixes:
            return False
        if change == NEW:
            self._began(topic_filter)
        self._add(topic_filter, session, options | mount)
        return change == NEW

    def _began(self, full_filter: str) -> None:
        self.subscriptions += 1
        if self.abroad is not None:
            self.abroad.added(full_filter)

    def _ended(self, full_filter: str) -> None:
        self.subscriptions -= 1
        if self.abroad is not None:
            self.abroad.removed(full_filter)

    def unsubscribe(self, session: Session, topic_filter: str) -> bool:
        """Remove a subscription; False if there was none."""
        if not session.remove_subscription(topic_filter):
            return False
        self._ended(topic_filter)
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
        new = session.add_subscription(full_filter, options, identifier) == NEW
        options |= mounted(session, topic_filter)
        self._group(full_filter, name, topic_filter).add(session, options, identifier)
        if new:
            self._began(full_filter)
        return new

    def _group(self, full_filter: str, name: str, topic_filter: str) -> Group:
        """The group of this filter, which is made if there is none."""
        group = self.groups.get(full_filter)
        if group is None:
            # Turns of all groups together are bounded: of many groups each remembers fewer.
            most = MAX_TURNS * _GROUPS // max(len(self.groups), _GROUPS)
            group = Group(name, topic_filter, self.shared_strategy, None, max(most, _FEW_TURNS))
            self.groups[full_filter] = group
            self._add(topic_filter, group, 0)
        return group

    def unsubscribe_shared(self, session: Session, full_filter: str) -> bool:
        """Leave a shared group; the last member takes the group along."""
        if not session.remove_subscription(full_filter):
            return False
        self._ended(full_filter)
        self._leave(full_filter, session)
        return True

    def again(self, group: Group) -> Group:
        """The group of this name and filter as it is now: the last member has taken it along."""
        start = "" if group.name == "$queue" else "$share/"
        return self.groups.get(f"{start}{group.name}/{group.topic_filter}", group)

    def _leave(self, full_filter: str, member: Receiver) -> None:
        group = self.groups.get(full_filter)
        if group is not None:
            group.remove(member)
            if len(group) == 0:
                del self.groups[full_filter]
                self._remove(group.topic_filter, group)

    def add_peer(self, topic_filter: str, peer: Receiver) -> None:
        """A peer announced `topic_filter`."""
        self._add(topic_filter, peer, _AS_PUBLISHED)

    def remove_peer(self, topic_filter: str, peer: Receiver) -> None:
        """A peer withdrew `topic_filter`."""
        self._remove(topic_filter, peer)

    def add_peer_member(
        self, full_filter: str, name: str, topic_filter: str, member: Receiver
    ) -> Group:
        """A peer has members of a shared group, for which `member` stands; returns the group."""
        group = self._group(full_filter, name, topic_filter)
        # No frame of retained messages comes with it, so its own flag says that it was retained.
        group.add(member, _AS_PUBLISHED | RETAIN_AS_PUBLISHED)
        return group

    def remove_peer_member(self, full_filter: str, member: Receiver) -> None:
        """A peer has no members of a shared group any more."""
        self._leave(full_filter, member)

    def _add(self, topic_filter: str, subscriber: object, options: int) -> None:
        if is_wildcard(topic_filter):
            words = topic_filter.split("/")
            level = self.trie.place(words)
            if options & MOUNTED or self.mounts.prefixes:
                if (options ^ max(level.options_of(subscriber), 0)) & MOUNTED:
                    self.mounts.changed(topic_filter, options)
            level.put(subscriber, options)
            self.wildcard_changed(words)
            return
        held = self.exact.get(topic_filter)
        if held is None:
            # A lone session is stored as itself: its options are in its own table.
            self.exact[topic_filter] = (
                subscriber if isinstance(subscriber, Session) else {subscriber: options}
            )
            if self.walks.literal_came(topic_filter):
                self.forget_stems()
        elif isinstance(held, dict):
            held[subscriber] = options
        elif held is not subscriber:
            assert isinstance(held, Session)
            self.exact[topic_filter] = {
                held: held.options_of(topic_filter),
                subscriber: options,
            }
        self.literal_changed(topic_filter)

    def _remove(self, topic_filter: str, subscriber: object) -> None:
        if is_wildcard(topic_filter):
            words = topic_filter.split("/")
            level = self.trie.find(words)
            options = -1 if level is None else level.options_of(subscriber)
            if level is not None and options >= 0:
                if options & MOUNTED:
                    self.mounts.changed(topic_filter, 0)
                if level.take(subscriber):
                    self.trie.remove_at(level)
            self.wildcard_changed(words)
            return
        held = self.exact.get(topic_filter)
        if isinstance(held, dict):
            held.pop(subscriber, None)
            if not held:
                self._empty(topic_filter)
        elif held is subscriber:
            self._empty(topic_filter)
        self.literal_changed(topic_filter)

    def _empty(self, topic_filter: str) -> None:
        """Nobody is left that has this literal filter."""
        del self.exact[topic_filter]
        self.walks.literal_went(topic_filter, len(self.exact))

    def wildcard_changed(self, words: list[str]) -> None:
        """See `Topics.wildcard_changed`."""
        if self._matches:
            self._forget_matches()
        super().wildcard_changed(words)

    # -- routes --------------------------------------------------------------------------------

    def build(self, route: Route) -> None:
        """Collect the receivers of `route.topic`, and what its messages need (see `Topics`)."""
        self.metrics.routes_built += 1
        topic = route.topic
        held = self.exact.get(topic)
        hidden = self.mounts.hide(topic)
        if held is not None or hidden:
            found: dict[Receiver, int] = {}
            if isinstance(held, dict):
                for subscriber, options in held.items():
                    self._take(route, found, topic, subscriber, options)
            elif held is not None:
                assert isinstance(held, Session)
                route.topic = held.own(topic)
                self._take(route, found, topic, held, held.options_of(topic))
            if self.trie.filters:
                self._collect(route, found, self._match(topic), topic if hidden else "")
            self._close(route, found)
        elif self.trie.filters:
            levels = self._match(topic)
            if levels:
                self._along(route, levels)
        self._need(route, self.gears.of(topic))

    def _need(self, route: Route, gear: int) -> None:
        """What the messages of a route need beside their receivers."""
        route.gear |= gear
        route.hear()
        if route.gear & RECORDED and not _is_plain(route):
            route.gear = route.gear & ~RECORDED | TOLD

    def _match(self, topic: str) -> list[Level]:
        """The filters that fit; the walk is work though it finds nothing."""
        levels = self.trie.match(topic)
        self.work += self.trie.visited >> _WALK
        return levels

    def _along(self, route: Route, levels: list[Level]) -> None:
        """To the receivers of these filters, as the topics before it that they match."""
        matched: object = levels[0] if len(levels) == 1 else tuple(levels)
        known = self._matches.get(matched)
        if known is None:
            known = Route("")
            found: dict[Receiver, int] = {}
            self._collect(known, found, levels, "")
            self._close(known, found)
            weight = _MATCH * len(levels) + known.heft
            if len(self._matches) >= _MATCHES or self._matched + weight > _MATCHED:
                self._forget_matches()
            self._matched += weight
            self._matches[matched] = known
        self.work += len(levels)
        route.share(known)

    def _lead(self, levels: list[Level]) -> Route:
        """A route to the receivers of these filters, for all topics that match no other."""
        self.metrics.routes_built += 1
        route = Route("")
        if levels:
            self._along(route, levels)
        self._need(route, self.gears.alike())
        route.seq = self.changes.seq
        return route

    def _collect(
        self, route: Route, found: dict[Receiver, int], levels: list[Level], topic: str
    ) -> None:
        """Take what these levels have; `topic` is named where a mountpoint may hide it."""
        for level in levels:
            hidden = bool(topic) and topic.startswith("$", wildcard_at(level.topic_filter()))
            held = level.held
            named = ""
            if isinstance(held, dict):
                # Thousands of filters may lead to a few receivers.
                self.work += 1 + len(held)
                for subscriber, options in held.items():
                    if not named and _is_named(subscriber):
                        named = level.topic_filter()
                    if not (hidden and options & MOUNTED):
                        self._take(route, found, named, subscriber, options & ~MOUNTED)
            elif held is not None:
                self.work += 2
                if _is_named(held):
                    named = level.topic_filter()
                if not (hidden and level.options & MOUNTED):
                    self._take(route, found, named, held, level.options & ~MOUNTED)

    def _close(self, route: Route, found: dict[Receiver, int]) -> None:
        """All receivers are found."""
        if found:
            self._lists(route, found)
            owns = route.owns
            if owns is not None:
                for receiver, hidden in owns.items():
                    owns[receiver] = _without(route.identifiers, receiver, hidden)
        route.settle()

    def _lists(self, route: Route, found: dict[Receiver, int]) -> None:
        """Many topics lead to the same receivers: their routes share lists that nobody changes."""
        if len(found) == 1:
            for receiver, packed in found.items():
                alone = self._alone.get(receiver)
                if alone is None:
                    alone = [receiver]
                    self._alone[receiver] = alone
                options = self._options.get(packed)
                if options is None:
                    options = [packed]
                    self._options[packed] = options
                route.sessions = alone
                route.options = options
            return
        if self.abroad is not None and (len(found) > STEP or route.identifiers is not None):
            # Of a message that goes out in slices other processes have the first (`Fan.others`).
            found = {each: found[each] for each in sorted(found, key=_is_session)}
        pairs = tuple(found.items())
        shared = self._shared.get(pairs)
        if shared is None:
            shared = (list(found), list(found.values()))
            if len(pairs) <= _SHARED_RECEIVERS:
                self._shared[pairs] = shared
        route.sessions = shared[0]
        route.options = shared[1]

    def _take(
        self,
        route: Route,
        found: dict[Receiver, int],
        topic_filter: str,
        subscriber: object,
        options: int,
    ) -> None:
        if isinstance(subscriber, Target):
            if route.groups is None:
                route.groups = []
            route.groups.append(subscriber)
            return
        assert isinstance(subscriber, Receiver)
        if not subscriber.bare:
            route.gear |= SPREAD
        if isinstance(subscriber, Session):
            identifiers = subscriber.identifiers
            if identifiers is not None:
                identifier = identifiers.get(topic_filter)
                if identifier is not None:
                    if route.identifiers is None:
                        route.identifiers = {}
                    route.identifiers.setdefault(subscriber, []).append(identifier)
                    if options & NO_LOCAL:
                        # Until all are collected: those that its own messages do not carry.
                        if route.owns is None:
                            route.owns = {}
                        route.owns.setdefault(subscriber, []).append(identifier)
        known = found.get(subscriber, -1)
        found[subscriber] = options if known < 0 else merge_options(known, options)


def _is_named(subscriber: object) -> bool:
    """Whether some of its filters have Subscription Identifiers."""
    return isinstance(subscriber, Session) and subscriber.identifiers is not None


def _is_session(receiver: Receiver) -> bool:
    return isinstance(receiver, Session)


def _is_plain(route: Route) -> bool:
    """Whether nobody looks at its messages, and they go to sessions of clients of this process."""
    if route.gear & ~(HELD | MISSED | NAMED | NOTED | RECORDED | SPREAD | UNHEARD | WIDE):
        return False
    for receiver in route.sessions:
        if not (receiver.bare and isinstance(receiver, Session)):
            return False
    return True


def _without(
    identifiers: dict[Receiver, list[int]] | None, receiver: Receiver, hidden: list[int]
) -> list[int]:
    """The identifiers of a receiver's subscriptions but those that are hidden, each once."""
    gone: dict[int, int] = {}
    for identifier in hidden:
        gone[identifier] = gone.get(identifier, 0) + 1
    left: list[int] = []
    for identifier in identifiers[receiver] if identifiers is not None else []:
        count = gone.get(identifier, 0)
        if count:
            gone[identifier] = count - 1
        else:
            left.append(identifier)
    return left
