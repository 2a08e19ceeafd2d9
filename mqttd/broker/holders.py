"""Acknowledgements that are held: one goes when all who promise something by it have released it.

    PUBLISH --> hold(release, client_id), of each holder that wants its topic
                       '-- release() by all of them, for it and for those before --> PUBACK, PUBREC

Promise: the acknowledgements of one connection go in the order of its messages, in whatever order
they are released; one that nobody holds waits for those before it. What a holder still holds when
it is removed, it may still release, but nothing waits for that any more. Nothing is kept of a
connection that has gone.

MQTT 5.0: 4.6 (MQTT-4.6.0-2 and 4.6.0-3, order of acknowledgements).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mqttd.broker.trie import Trie
from mqttd.session.channel import Channel

__all__ = ["Hold", "Holder", "Holders"]

#: Called as ``hold(release, client_id)``.
Hold = Callable[[Callable[[], None], str], object]


class Holder:
    """One who holds acknowledgements: of messages on these topics, or (None) of all."""

    def __init__(self, hold: Hold, topic_filters: list[str] | None) -> None:
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
    """Everybody who holds, and what is held; `flush_later` has what was released written."""

    def __init__(self, flush_later: Callable[[], None]) -> None:
        self.flush_later = flush_later
        self.holders: list[Holder] = []
        #: What is held, and what waits for it, by connection.
        self.waiting: dict[Channel, deque[_Held]] = {}

    def add(self, hold: Hold, topic_filters: list[str] | None) -> Holder:
        """One more from now on."""
        holder = Holder(hold, topic_filters)
        self.holders.append(holder)
        return holder

    def remove(self, holder: Holder) -> None:
        """One less; what only it holds is not waited for any more."""
        self.holders.remove(holder)
        for channel, queue in list(self.waiting.items()):
            kept: deque[_Held] = deque()
            for held in queue:
                if holder in held.holders:
                    held.queued = False
                else:
                    kept.append(held)
            self.waiting[channel] = kept
            self._send(channel)

    def hold(
        self, channel: Channel, client_id: str, topic: str, first: int, packet_id: int, code: int
    ) -> None:
        """Have `channel.release` called when this acknowledgement may go, perhaps now."""
        holders: list[Holder] = []
        for holder in self.holders:
            if holder.wants(topic):
                holders.append(holder)
        queue = self.waiting.get(channel)
        if queue is None:
            if not holders:
                channel.release(first, packet_id, code)
                return
            queue = deque()
            self.waiting[channel] = queue
        held = _Held(channel, first, packet_id, code, holders)
        queue.append(held)
        for holder in tuple(holders):
            holder.hold(_Release(self, held, holder), client_id)

    def release(self, held: _Held, holder: Holder) -> None:
        """`holder` has kept its promise; a second time is no error."""
        if holder not in held.holders:
            return
        held.holders.remove(holder)
        if held.holders:
            return
        if held.queued:
            self._send(held.channel)
        else:
            held.channel.release(held.first, held.packet_id, held.code)
            self.flush_later()

    def closed(self, channel: Channel) -> None:
        """A connection has gone: nobody is left to be told."""
        self.waiting.pop(channel, None)

    def _send(self, channel: Channel) -> None:
        """Send what nobody holds and nothing is before."""
        queue = self.waiting.get(channel)
        if queue is None:
            return
        sent = False
        while queue and not queue[0].holders:
            held = queue.popleft()
            channel.release(held.first, held.packet_id, held.code)
            sent = True
        if not queue:
            self.waiting.pop(channel, None)
        if sent:
            self.flush_later()


class _Held:
    """One acknowledgement, and who has not released it."""

    def __init__(
        self, channel: Channel, first: int, packet_id: int, code: int, holders: list[Holder]
    ) -> None:
        self.channel = channel
        self.first = first
        self.packet_id = packet_id
        self.code = code
        self.holders = holders
        #: Those behind it wait for it.
        self.queued: bool = True


class _Release:
    """What a holder calls."""

    def __init__(self, holders: Holders, held: _Held, holder: Holder) -> None:
        self.holders = holders
        self.held = held
        self.holder = holder

    def __call__(self) -> None:
        self.holders.release(self.held, self.holder)
