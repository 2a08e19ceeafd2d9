"""Who holds acknowledgements: each is asked about the topics it wants.

    a turn's PUBLISHes --> hold(release, client_id), once, of each holder that wants their topics
                        '-- release() by all, for these and those before --> PUBACK, PUBREC

What is held waits with its connection (`mqttd.session.promise`); here is only who holds. A holder
that is removed may still release what it holds, but nothing waits for that any more. Of one that is
gone for good nothing comes: what it held is acknowledged as if it had not been asked, or, where
nothing may be acknowledged that it has not kept (`required`), its publisher's connection ends; the
client sends that again.

MQTT 5.0: 4.6 (MQTT-4.6.0-2 and 4.6.0-3, order of acknowledgements).
"""

from __future__ import annotations

from collections.abc import Callable

from mqttd.broker.routing.trie import Trie
from mqttd.session.gathering import Gathering
from mqttd.session.journal import Journal
from mqttd.session.promise import Asker, Promise

__all__ = ["Asking", "Hold", "Holder", "Holders"]

#: Called as ``hold(release, client_id)``.
Hold = Callable[[Callable[[], None], str], object]


class Holder:
    """One who holds acknowledgements: of messages on these topics, or (None) of all.

    required: without its release nothing is acknowledged, also when it is gone.
    gathering: where what it holds waits, unless it has to be asked about each client.
    """

    def __init__(
        self,
        name: str,
        hold: Hold,
        topic_filters: list[str] | None,
        required: bool = False,
        gathering: Gathering | None = None,
    ) -> None:
        #: Under which it has asked for its topics (`mqttd.broker.routing.gears`).
        self.name = name
        self.hold = hold
        self.required = required
        self.gathering = gathering
        if gathering is not None:
            gathering.holder = self
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
        self.holders: tuple[Holder, ...] = ()
        self._made: int = 0
        #: Some of them want some topics only.
        self._choosy: bool = False
        #: The topic that was asked for last, and who wants it: a burst has one topic, mostly.
        self._topic: str = ""
        self._wanting: tuple[Holder, ...] = ()

    def add(
        self,
        hold: Hold,
        topic_filters: list[str] | None,
        required: bool = False,
        gathering: Gathering | None = None,
    ) -> Holder:
        """One more from now on."""
        self._made += 1
        holder = Holder(f"holder {self._made}", hold, topic_filters, required, gathering)
        self._set((*self.holders, holder))
        return holder

    def remove(self, holder: Holder) -> None:
        """One less."""
        self._set(tuple(other for other in self.holders if other is not holder))

    def of(self, topic: str) -> tuple[Holder, ...]:
        """Those who want to hold the acknowledgements of messages on this topic."""
        if not self._choosy:
            return self.holders
        if topic != self._topic:
            self._topic = topic
            self._wanting = tuple(holder for holder in self.holders if holder.wants(topic))
        return self._wanting

    def _set(self, holders: tuple[Holder, ...]) -> None:
        self.holders = holders
        self._choosy = any(holder.topics is not None for holder in holders)
        self._topic = ""
        self._wanting = ()


class Asking(Asker):
    """Asks holders about what one client has published."""

    def __init__(self, holders: Holders, client_id: str) -> None:
        self.holders = holders
        self.client_id = client_id

    def ask(self, promise: Promise, keepers: object) -> None:
        """See `Asker.ask`: these holders, as far as they still hold, and the journal."""
        assert isinstance(keepers, tuple)
        for holder in keepers:
            if isinstance(holder, Journal):
                promise.ask(holder)
                holder.wait(promise)
            elif holder in self.holders.holders:
                promise.ask(holder)
                gathering = holder.gathering
                if gathering is None or gathering.careful:
                    holder.hold(_Release(self.holders, promise, holder), self.client_id)
                else:
                    gathering.wait(promise)

    def joins(self, promise: Promise, keepers: object) -> bool:
        """See `Asker.joins`: the journal alone was asked, and is again."""
        asked = promise.keepers
        if asked is None or len(asked) != 1:
            return False
        journal = asked[0]
        return (
            isinstance(journal, Journal) and keepers is journal.alone and journal.gathers(promise)
        )


class _Release:
    """What a holder calls."""

    def __init__(self, holders: Holders, promise: Promise, holder: Holder) -> None:
        self.holders = holders
        self.promise = promise
        self.holder = holder

    def __call__(self) -> None:
        if self.promise.keep(self.holder):
            self.holders.flush_later()
