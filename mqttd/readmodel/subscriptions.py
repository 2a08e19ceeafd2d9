"""Subscriptions as operators see them: of one client, of everybody by client id, and by filter.

Promise: a page holds the subscriptions of whole clients, so that it may have more than its limit by
those of one; it costs what it shows, and a slice a turn where clients without any stand between. A
page of filters looks at all of them, and keeps twice what it shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from twisted.internet.defer import Deferred

from mqttd.broker.broker import Broker
from mqttd.readmodel.clients import Clients
from mqttd.readmodel.pages import DEFAULT_LIMIT, read_cursor, write_cursor
from mqttd.readmodel.slices import Slice
from mqttd.session.routes.route import NO_LOCAL, QOS_MASK, RETAIN_AS_PUBLISHED
from mqttd.session.session import Session

__all__ = ["FilterPage", "FilterView", "SubscriptionPage", "SubscriptionView", "Subscriptions"]


class SubscriptionView(Struct, kw_only=True):
    """One subscription of one client."""

    client_id: str
    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    subscription_identifier: int | None


class SubscriptionPage(Struct):
    """A page of subscriptions by client id."""

    subscriptions: list[SubscriptionView]
    cursor: str | None


class FilterView(Struct):
    """A filter that is subscribed to, and by how many."""

    topic_filter: str
    subscribers: int


class FilterPage(Struct):
    """A page of filters in order."""

    topics: list[FilterView]
    cursor: str | None


class Subscriptions:
    """The subscriptions of one broker's clients."""

    def __init__(self, broker: Broker, clients: Clients) -> None:
        self.broker = broker
        self.clients = clients

    def of(self, client_id: str) -> list[SubscriptionView] | None:
        """Those of one client; None if there is no such client."""
        session = self.broker.sessions.get(client_id)
        return _views(session) if session is not None else None

    def page(
        self,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
        topic_filter: str | None = None,
    ) -> Deferred[SubscriptionPage]:
        """A page of everybody's, or of those to one filter. Raises BadWish."""
        place = read_cursor(cursor)
        last = place[1] if place is not None else None
        found: list[SubscriptionView] = []
        ends: list[str] = []

        def work() -> Iterator[None]:
            directory, sessions = self.broker.registry.directory, self.broker.sessions
            after = last
            time = Slice()
            while ids := directory.after(after, 64):
                for client_id in ids:
                    session = sessions[client_id]
                    mine = session.subscriptions
                    if not mine or (topic_filter is not None and topic_filter not in mine):
                        continue
                    if len(found) >= limit:
                        ends.append(found[-1].client_id)
                        return
                    found.extend(
                        view
                        for view in _views(session)
                        if topic_filter is None or view.topic_filter == topic_filter
                    )
                after = ids[-1]
                if time.over():
                    yield
                    time.begin()

        def shown(_: object) -> SubscriptionPage:
            return SubscriptionPage(found, write_cursor("", ends[0]) if ends else None)

        return self.clients.run(work()).addCallback(shown)

    def filters(
        self, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Deferred[FilterPage]:
        """A page of the filters that are subscribed to. Raises BadWish."""
        place = read_cursor(cursor)
        first = _First(limit + 1, "" if place is None else place[1])
        counts = first.counts

        def work() -> Iterator[None]:
            time = Slice()
            for client_id in self.clients.ids():
                session = self.broker.sessions.get(client_id)
                if session is not None and session.subscriptions:
                    first.add(session.subscriptions)
                if time.over():
                    yield
                    time.begin()

        def shown(_: object) -> FilterPage:
            names = sorted(counts)
            page = [FilterView(name, counts[name]) for name in names[:limit]]
            return FilterPage(page, write_cursor("", names[limit - 1]) if names[limit:] else None)

        return self.clients.run(work()).addCallback(shown)


class _First:
    """How often names come, of the first `most` that stand behind `after`; twice as many are kept.

    A name is let go only when there are `most` before it, and is let in only before the last of
    those: whichever stays has been counted from its first time on.
    """

    def __init__(self, most: int, after: str) -> None:
        self.most = most
        self.after = after
        self.counts: dict[str, int] = {}
        self._bound: str | None = None

    def add(self, names: Iterable[str]) -> None:
        """These have come."""
        counts, after = self.counts, self.after
        for name in names:
            if name in counts:
                counts[name] += 1
            elif name > after and (self._bound is None or name < self._bound):
                counts[name] = 1
                if len(counts) > 2 * self.most:
                    self._let_go()

    def _let_go(self) -> None:
        names = sorted(self.counts)
        self._bound = names[self.most]
        for name in names[self.most :]:
            del self.counts[name]


def _views(session: Session) -> list[SubscriptionView]:
    identifiers = session.identifiers or {}
    return [
        SubscriptionView(
            client_id=session.client_id,
            topic_filter=topic_filter,
            qos=options & QOS_MASK,
            no_local=bool(options & NO_LOCAL),
            retain_as_published=bool(options & RETAIN_AS_PUBLISHED),
            subscription_identifier=identifiers.get(topic_filter),
        )
        for topic_filter, options in (session.subscriptions or {}).items()
    ]
