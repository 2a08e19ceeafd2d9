"""What a callback is for: the topics of messages, and the clients, that it was hooked with.

    topic_filter="a/#"            messages on these topics
    topic_filter=["a/#", "b/+"]   on one of these
    client="pump-*"               clients whose id begins so; without `*` the one with this id
    both                          messages that fit both

The topic is the whole one (with the mountpoint), as the callbacks before left it. Where a right is
asked for it is the one in question, of a subscription its filter: the callback is called if a topic
may go to both. The client is the one the point is told of, such as the subscriber at
`message.delivered`; where there is none, as at `message.publish`, the publisher.

Promise: to ask costs one walk through a trie and one look-up, however many filters there are; no
regular expression meets what a client has sent. Topic filters: MQTT 5.0, 4.7.
"""

from __future__ import annotations

from collections.abc import Sequence

from mqttd.broker.hooks.points import Point
from mqttd.broker.routing.trie import Trie
from mqttd.codec.reasons import TopicFilterInvalid
from mqttd.codec.topic import overlap, split_shared, validate_topic_filter
from mqttd.session.ground.message import Message
from mqttd.types import ClientInfo, HookError

__all__ = ["HookFilter", "Patterns", "hook_filter", "valid_topic_filters"]

#: One pattern, several, or None for all there is.
Patterns = str | Sequence[str] | None


class HookFilter:
    """The filters of one callback; empty ones take everything."""

    __slots__ = ("_at", "_ids", "_prefixes", "_topics", "clients", "topic_filters")

    def __init__(
        self, topic_filters: tuple[str, ...], clients: tuple[str, ...], topic_at: int = -1
    ) -> None:
        self.topic_filters = topic_filters
        self.clients = clients
        #: Which argument is the topic; -1: the accumulator is a message.
        self._at = topic_at
        self._topics = Trie()
        for topic_filter in topic_filters:
            self._topics.insert(topic_filter)
        self._ids = frozenset(client for client in clients if not client.endswith("*"))
        self._prefixes = tuple(client[:-1] for client in clients if client.endswith("*"))

    def takes(self, args: Sequence[object], acc: object) -> bool:
        """Whether the callback is called with these; never raises, whatever they are."""
        message = acc if isinstance(acc, Message) else None
        if self._at >= 0 and self.topic_filters:
            asked = args[self._at]
            if not isinstance(asked, str):
                return False
            if not any(overlap(topic_filter, asked) for topic_filter in self.topic_filters):
                return False
        elif self.topic_filters:
            # An earlier callback may have left anything there.
            topic: object = message.topic if message is not None else None
            if not isinstance(topic, str) or not self._topics.match(topic):
                return False
        if not self.clients:
            return True
        client = args[0] if args else None
        if isinstance(client, ClientInfo):
            client_id = client.client_id
        elif message is not None:
            client_id = message.client_id
        else:
            return False
        return client_id in self._ids or client_id.startswith(self._prefixes)


def hook_filter(point: Point, topic_filter: Patterns, client: Patterns) -> HookFilter | None:
    """The filter of a callback at `point`; None if it takes everything.

    :raises HookError: the point has nothing to compare with, or a pattern is none.
    """
    if topic_filter is None and client is None:
        return None
    if topic_filter is not None and not point.has_topic:
        raise HookError(f"topic_filter = {topic_filter!r}: {point.name} is told of no message")
    if client is not None and not (point.has_client or point.has_message):
        raise HookError(f"client = {client!r}: {point.name} is told of no client")
    topic_filters = valid_topic_filters(topic_filter)
    clients = _patterns("client", client)
    for pattern in clients:
        if not pattern or "*" in pattern[:-1]:
            raise HookError(
                f"client = {pattern!r}: expected a client id, or how it begins and a * at the end"
            )
    return HookFilter(topic_filters, clients, point.topic_at)


def valid_topic_filters(given: Patterns) -> tuple[str, ...]:
    """The topic filters, each once; HookError if one of them is none, or a shared subscription."""
    topic_filters = _patterns("topic_filter", given)
    for pattern in topic_filters:
        try:
            validate_topic_filter(pattern, 0)
            shared = split_shared(pattern)[0] is not None
        except TopicFilterInvalid as error:
            raise HookError(f"topic_filter = {pattern!r}: {error.detail}") from None
        if shared:
            raise HookError(f"topic_filter = {pattern!r}: only a client can share a subscription")
    return topic_filters


def _patterns(what: str, given: Patterns) -> tuple[str, ...]:
    if given is None:
        return ()
    patterns = (given,) if isinstance(given, str) else tuple(given)
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise HookError(f"{what} = {given!r}: expected a str, or some of them")
    return tuple(dict.fromkeys(patterns))
