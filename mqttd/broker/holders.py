"""Who holds acknowledgements: each is asked about the topics it wants.

    PUBLISH --> hold(release, client_id), of each holder that wants its topic
                       '-- release() by all of them, for it and for those before --> PUBACK, PUBREC

What is held waits with its connection (`mqttd.session.promise`); here is only who holds. A holder
that is removed may still release what it holds, but nothing waits for that any more.

MQTT 5.0: 4.6 (MQTT-4.6.0-2 and 4.6.0-3, order of acknowledgements).
"""

from __future__ import annotations

from collections.abc import Callable

from mqttd.broker.trie import Trie
from mqttd.session.promise import Promise

__all__ = ["Hold", "Holder", "Holders"]

#: Called as ``hold(release, client_id)``.
Hold = Callable[[Callable[[], None], str], object]


class Holder:
    """One who holds acknowledgements: of messages on these topics, or (None) of all."""

    def __init__(self, name: str, hold: Hold, topic_filters: list[str] | None) -> None:
        #: Under which it has asked for its topics (`mqttd.broker.gears`).
        self.name = name
        self.hold = hold
        self.topics: Trie | None = None
        if topic_filters is not None:
            self.topics = Trie()
            for topic_filter in topic_filters:
                self.topics.insert(topic_filter)

    def wants(self, topic: str) -> bool:
        """Whether it holds the acknowledgements of messages on this topic."""
        return self.topics is None or bool(self.topics.match(topic))


class Holders:
    """Everybody who holds; `flush_later` has what was released written."""

    def __init__(self, flush_later: Callable[[], None]) -> None:
        self.flush_later = flush_later
        self.holders: list[Holder] = []
        self._made: int = 0

    def add(self, hold: Hold, topic_filters: list[str] | None) -> Holder:
        """One more from now on."""
        self._made += 1
        holder = Holder(f"holder {self._made}", hold, topic_filters)
        self.holders.append(holder)
        return holder

    def remove(self, holder: Holder) -> None:
        """One less."""
        self.holders.remove(holder)

    def hold(self, promise: Promise, client_id: str, topic: str) -> None:
        """Ask all who want this topic; an acknowledgement goes when all have released it."""
        for holder in tuple(self.holders):
            if holder.wants(topic):
                promise.ask(holder)
                holder.hold(_Release(self, promise, holder), client_id)


class _Release:
    """What a holder calls."""

    def __init__(self, holders: Holders, promise: Promise, holder: Holder) -> None:
        self.holders = holders
        self.promise = promise
        self.holder = holder

    def __call__(self) -> None:
        if self.promise.keep(self.holder):
            self.holders.flush_later()
