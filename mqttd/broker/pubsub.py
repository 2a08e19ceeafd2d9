"""Publish and subscribe on one node: dispatching messages to sessions, retained messages.

    Publish(message) -> hooks -> retainer -> Route -> sessions, one per shared group, other nodes

`PubSub.publish` is the general path of every message that is not forwarded as raw bytes by
`session.channel`: wills, messages from the API, retained and expiring ones, those with hooks, and
those for subscriptions with options. It serialises a message at most once per shape.

MQTT 5.0: 3.3.1 (retain), 3.8.4 (subscribe), 4.8 (subscriptions), 4.8.2 (shared subscriptions).
"""

from __future__ import annotations

from mqttd.broker.retainer import RetainedCursor, Retainer
from mqttd.broker.router import Router, is_wildcard
from mqttd.broker.shared import Group
from mqttd.codec import reasons
from mqttd.codec.packets import Subscription
from mqttd.codec.topic import split_shared
from mqttd.session.message import Delivery, Message
from mqttd.session.route import (
    NO_LOCAL,
    OWN,
    OWN_SHIFT,
    QOS_MASK,
    RETAIN_AS_PUBLISHED,
    Route,
    Target,
    options_of,
)
from mqttd.session.server import Server
from mqttd.session.session import Replay, Session

__all__ = ["PubSub", "RetainedReplay"]


class RetainedReplay(Replay):
    """Retained messages of one new subscription, taken a page at a time."""

    __slots__ = ("_cursor", "_identifiers", "_page", "_qos", "_at", "topic_filter")

    def __init__(
        self, topic_filter: str, cursor: RetainedCursor, qos: int, identifiers: list[int] | None
    ) -> None:
        self.topic_filter = topic_filter
        self._cursor = cursor
        self._qos = qos
        self._identifiers = identifiers
        self._page: list[object] = []
        self._at: int = 0

    def next(self, session: Session) -> Delivery | None:
        """The next retained message as a delivery with RETAIN set (MQTT-3.3.1-8)."""
        now = session.server.now
        while True:
            if self._at >= len(self._page):
                self._page = self._cursor.next(64, now)
                self._at = 0
                if not self._page:
                    return None
            message = self._page[self._at]
            self._at += 1
            assert isinstance(message, Message)
            if message.expires_at and message.expires_at <= now:
                continue
            if message.peerhost and not session.server.may_still_publish(message):
                continue
            qos = message.qos if message.qos < self._qos else self._qos
            return Delivery.of(message, qos, True, session.v5, self._identifiers, now)

    def done(self) -> bool:
        """Nothing is left on the page or in the store."""
        return self._cursor.done and self._at >= len(self._page)

    def close(self) -> None:
        """Let the store's level go."""
        self._cursor.close()


class PubSub:
    """The node's dispatcher. `forward` gets (node name, message) for other nodes."""

    def __init__(self, server: Server, router: Router, retainer: Retainer) -> None:
        self.server = server
        self.router = router
        self.retainer = retainer

    # -- publish -------------------------------------------------------------------------------

    def publish(self, message: Message) -> int:
        """Retain and dispatch; the number of receivers, or minus a reason code."""
        if message.retain and self.server.settings.retain_available:
            if not message.payload:
                self.retainer.delete(message.topic)
            elif not self._retain(message):
                self.server.metrics.dropped_retained_full += 1
                if message.qos:
                    return -reasons.QUOTA_EXCEEDED
        return self.dispatch(message, self.router.route(message.topic))

    def _retain(self, message: Message) -> bool:
        settings = self.server.settings
        expires_at = message.expires_at
        if settings.retained_expiry:
            latest = self.server.now + settings.retained_expiry
            if not expires_at or expires_at > latest:
                expires_at = latest
        size = len(message.payload)
        return self.retainer.store(message.topic, message, size, expires_at) == reasons.SUCCESS

    def dispatch(self, message: Message, route: Route) -> int:
        """Deliver a message to every session of its route, and to one of each shared group."""
        shapes: dict[int, Delivery] = {}
        receivers = 0
        sessions = route.sessions
        options = route.options
        identifiers = route.identifiers
        for i in range(len(sessions)):
            session = sessions[i]
            packed = options[i]
            if packed & (NO_LOCAL | OWN) and session.client_id == message.client_id:
                if packed & NO_LOCAL:
                    continue
                packed >>= OWN_SHIFT
            named = identifiers.get(session) if identifiers is not None else None
            self._deliver(session, message, packed, named, shapes, None)
            receivers += 1
        if route.groups is not None:
            for group in route.groups:
                member = group.choose(message.client_id, message.topic)
                if member is not None:
                    self._deliver(
                        member, message, group.options(member), group.identifiers(member), {}, group
                    )
                    receivers += 1
        if route.nodes is not None:
            receivers += self.forward(route.nodes, message)
        return receivers

    def deliver_to(self, session: Session, message: Message) -> None:
        """Deliver a message to one session that has not subscribed to it, with its own QoS."""
        self._deliver(session, message, options_of(message.qos, False, True), None, {}, None)

    def forward(self, nodes: list[str], message: Message) -> int:
        """Hand a message to other nodes: the cluster's fabric takes it from here."""
        return 0

    def _deliver(
        self,
        session: Session,
        message: Message,
        packed: int,
        identifiers: list[int] | None,
        shapes: dict[int, Delivery],
        group: Target | None,
    ) -> None:
        granted = packed & QOS_MASK
        qos = message.qos
        if self.server.settings.upgrade_qos:
            qos = granted if granted > qos else qos
        elif granted < qos:
            qos = granted
        retain = message.retain and packed & RETAIN_AS_PUBLISHED != 0
        shape: Delivery | None = None
        key = qos | (4 if retain else 0) | (8 if session.v5 else 0)
        if identifiers is None or not session.v5:
            shape = shapes.get(key)
        if shape is None:
            shape = Delivery.of(message, qos, retain, session.v5, identifiers, self.server.now)
            shape.group = group
            if identifiers is None:
                shapes[key] = shape
        if qos:
            session.deliver(shape, shape.packet_id)
        else:
            session.deliver_qos0(shape)

    # -- subscribe -----------------------------------------------------------------------------

    def subscribe(
        self, session: Session, subscription: Subscription, qos: int, identifier: int
    ) -> int:
        """Add or replace one allowed subscription; returns the reason code (the granted QoS)."""
        settings = self.server.settings
        full_filter = subscription.topic_filter
        group, topic_filter = split_shared(full_filter)
        if is_wildcard(topic_filter) and not settings.wildcard_subscription:
            return reasons.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        if group is not None and not settings.shared_subscription:
            return reasons.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        held = session.subscriptions
        if held is not None and len(held) >= settings.max_subscriptions:
            if full_filter not in held:
                return reasons.QUOTA_EXCEEDED
        if identifier:
            if session.identifiers is None:
                session.identifiers = {}
            session.identifiers[full_filter] = identifier
        elif session.identifiers is not None:
            session.identifiers.pop(full_filter, None)
            if not session.identifiers:
                session.identifiers = None
        packed = options_of(qos, subscription.no_local, subscription.retain_as_published)
        if group is not None:
            self.router.subscribe_shared(
                session, full_filter, group, topic_filter, packed, identifier
            )
            return qos
        new = self.router.subscribe(session, topic_filter, packed)
        handling = subscription.retain_handling
        if settings.retain_available and (handling == 0 or (handling == 1 and new)):
            self._replay_retained(session, topic_filter, qos, identifier)
        return qos

    def _replay_retained(
        self, session: Session, topic_filter: str, qos: int, identifier: int
    ) -> None:
        if not len(self.retainer):
            return
        cursor = self.retainer.match(topic_filter, self.server.now)
        if session.replays is None:
            session.replays = []
        identifiers = [identifier] if identifier else None
        session.replays.append(RetainedReplay(topic_filter, cursor, qos, identifiers))
        session.waiting = True

    def unsubscribe(self, session: Session, full_filter: str) -> bool:
        """Remove one subscription; False if there was none."""
        group, _ = split_shared(full_filter)
        if group is not None:
            return self.router.unsubscribe_shared(session, full_filter)
        return self.router.unsubscribe(session, full_filter)

    def forget(self, session: Session) -> None:
        """A session ends: remove its subscriptions, and give its groups back what it held.

        Shared messages that were not acknowledged go to another member of their group
        (4.8.2: the server may re-send them when the session ends).
        """
        held = session.subscriptions
        if held is None:
            return
        for full_filter in list(held):
            self.unsubscribe(session, full_filter)
        for delivery in session.shared():
            self.redispatch(delivery)

    def redispatch(self, delivery: Delivery) -> None:
        """Give a delivery of a shared group to another member."""
        group = delivery.group
        assert isinstance(group, Group)
        message = delivery.get_message(self.server.next_message_id())
        if message.expires_at and message.expires_at <= self.server.now:
            return
        member = group.choose(message.client_id, message.topic)
        if member is not None:
            self._deliver(
                member, message, group.options(member), group.identifiers(member), {}, group
            )
