"""Publish and subscribe on one node: dispatching messages to receivers, retained messages.

    Publish(message) -> hooks -> retainer -> Route -> sessions, peers, one of each shared group

`PubSub.publish` is the general path of every message that is not forwarded as bytes by
`mqttd.session.publish.forward`: wills, messages of this process, those that hooks changed. It
serialises a message at most once per shape, whatever the number of receivers and groups.

MQTT 5.0: 3.3.1 (retain), 3.8.4 (subscribe), 4.8 (subscriptions), 4.8.2 (shared subscriptions).
"""

from __future__ import annotations

from mqttd.broker.publish.fans import Fan, Fans
from mqttd.broker.retained.retained import Retained, RetainedReplay, retained_of
from mqttd.broker.retained.retainer import RetainedLevel, Retainer
from mqttd.broker.retained.tree import has_head
from mqttd.broker.routing.mounts import mounted
from mqttd.broker.routing.router import Router, is_wildcard
from mqttd.broker.routing.shared import Group
from mqttd.codec import reasons
from mqttd.codec.packets import Subscription
from mqttd.codec.topic import is_shared, split_shared
from mqttd.session.ground.account import ROW, filter_room, filter_weight
from mqttd.session.ground.message import Delivery, Message
from mqttd.session.routes.receiver import Receiver
from mqttd.session.routes.route import (
    NO_LOCAL,
    OWN,
    OWN_SHIFT,
    QOS_MASK,
    RETAIN_AS_PUBLISHED,
    Route,
    Target,
    options_of,
)
from mqttd.session.session import Session
from mqttd.session.state import Keeper

__all__ = ["PubSub", "RetainedReplay"]


class PubSub:
    """The node's dispatcher."""

    def __init__(self, server: Keeper, router: Router, retainer: Retainer, fans: Fans) -> None:
        self.server = server
        self.fans = fans
        self.router = router
        self.retainer = retainer

    # -- publish -------------------------------------------------------------------------------

    def publish(
        self,
        message: Message,
        origin: tuple[str, str] = ("", ""),
        epoch: int = 0,
        last_words: bool = False,
    ) -> int:
        """Retain and dispatch; the number of receivers, or minus a reason code.

        origin: the publisher's address and listener, if its right may be looked at again.
        last_words: there is nobody to refuse it to, so who is there hears it all the same.
        """
        if message.retain and self.server.settings.retain_available:
            if not message.payload:
                self.retainer.delete(message.topic, message.qos)
            else:
                shape = Delivery.of(message, message.qos, True, True, None, self.server.now)
                code = self.retain(
                    message.topic,
                    retained_of(shape, message.username),
                    len(message.payload),
                    origin,
                    epoch,
                )
                if code and message.qos and not last_words:
                    return -code
        return self.dispatch(message, self.router.of(message.topic))

    def retain(
        self,
        topic: str,
        kept: Retained,
        size: int,
        origin: tuple[str, str],
        epoch: int = 0,
        level: RetainedLevel | None = None,
        accepted: bool = False,
    ) -> int:
        """Keep the last message of a topic; 0, or the reason code of a refusal.

        size: of its payload, which the limits count; level, accepted: see `Retainer.store`. The
        broker's own figures have their place however full clients have made it.
        """
        server = self.server
        figure = topic.startswith("$SYS/")
        if figure and not kept.source:
            accepted = True
        expires_at = kept.expires_at
        expiry = server.settings.retained_expiry
        if expiry:
            latest = server.now + expiry
            if not expires_at or expires_at > latest:
                expires_at = latest
            if not kept.id and not figure:
                kept.id = server.next_message_id()  # a restart counts from the time in it
        kept.peerhost, kept.listener = origin
        kept.checked = epoch
        if server.account.full and not accepted:
            server.account.refused = True
            server.metrics.memory_refused += 1
        elif not accepted and server.journal.full and not self._heard(size):
            server.metrics.refused_not_kept += 1
        elif (
            self.retainer.store(topic, kept, size, expires_at, kept.weigh(), level, accepted)
            == reasons.SUCCESS
        ):
            if not figure:
                kept.number = server.journal.retained(kept)
            if self.router.abroad is not None:
                self.router.abroad.retained(topic, kept)
            return 0
        server.metrics.dropped_retained_full += 1
        if server.tap_lost:
            self.server.dropped_retained(kept, "memory" if server.account.full else "")
        return reasons.QUOTA_EXCEEDED

    def _heard(self, size: int) -> bool:
        """Whether so many bytes are of last words, and there is room in the journal for these."""
        server = self.server
        return server.last_words and server.journal.has_room(size, True)

    def dispatch(self, message: Message, route: Route) -> int:
        """Deliver a message to every receiver of its route, and to one of each shared group.

        To very many in later turns too, and behind what its publisher has under way.
        """
        self.server.journal.fleeting = 0
        if route.is_wide(len(message.payload)) or self.fans.busy_with(message.client_id):
            return self.fans.run(_Dispatch(self, message, route))
        shapes: dict[tuple[int, ...], Delivery] = {}
        receivers = self.to_sessions(message, route, shapes, 0, len(route.sessions))
        if route.groups is not None:
            receivers += self.to_groups(message, route, shapes, 0, len(route.groups))
        return receivers

    def to_sessions(
        self,
        message: Message,
        route: Route,
        shapes: dict[tuple[int, ...], Delivery],
        at: int,
        end: int,
    ) -> int:
        """Deliver to the sessions of a route from one place to another.

        To those that are away last, one QoS and version after another, as `Inbound.fan_sessions`.
        """
        receivers = 0
        away: dict[int, list[int]] = {}
        sessions = route.sessions
        options = route.options
        identifiers = route.identifiers
        for i in range(at, end):
            session = sessions[i]
            packed = options[i]
            named = identifiers.get(session) if identifiers is not None else None
            if packed & (NO_LOCAL | OWN) and session.client_id == message.client_id:
                if packed & NO_LOCAL:
                    continue
                packed >>= OWN_SHIFT
                if route.owns is not None:
                    named = route.owns.get(session, named) or None
            receivers += 1
            if session.channel is None and packed == options[i]:
                number = packed << 1 | session.v5
                away.setdefault(number, []).append(i)
                continue
            self._deliver(session, message, packed, named, shapes, None)
        for places in away.values():
            for i in places:
                session = sessions[i]
                named = identifiers.get(session) if identifiers is not None else None
                self._deliver(session, message, options[i], named, shapes, None)
        return receivers

    def to_groups(
        self,
        message: Message,
        route: Route,
        shapes: dict[tuple[int, ...], Delivery],
        at: int,
        end: int,
    ) -> int:
        """Deliver to a member of each of these groups of a route."""
        groups = route.groups
        assert groups is not None
        receivers = 0
        for i in range(at, end):
            group = groups[i]
            member = group.choose(message.client_id, message.topic)
            if member is not None:
                self._deliver(
                    member,
                    message,
                    group.options(member),
                    group.identifiers(member),
                    shapes,
                    group,
                )
                receivers += 1
        return receivers

    def lend(self, group: Target, member: Receiver, message: Message) -> None:
        """Deliver a message to the member that a shared group has chosen."""
        self.server.journal.fleeting = 0
        options, identifiers = group.options(member), group.identifiers(member)
        self._deliver(member, message, options, identifiers, {}, group)

    def deliver_to(self, session: Session, message: Message) -> None:
        """Deliver a message to one session that has not subscribed to it, with its own QoS."""
        self._deliver(session, message, options_of(message.qos, False, True), None, {}, None)

    def _deliver(
        self,
        session: Receiver,
        message: Message,
        packed: int,
        identifiers: list[int] | None,
        shapes: dict[tuple[int, ...], Delivery],
        group: Target | None,
    ) -> None:
        granted = packed & QOS_MASK
        qos = message.qos
        if self.server.settings.upgrade_qos:
            # A neighbour, which has no client id, is handed it as published, and upgrades it.
            qos = granted if granted > qos and session.client_id else qos
        elif granted < qos:
            qos = granted
        retain = message.retain and packed & RETAIN_AS_PUBLISHED != 0
        number = qos | (4 if retain else 0) | (8 if session.v5 else 0)
        key = (number,) if identifiers is None else (number, *identifiers)
        shape = shapes.get(key)
        if shape is None:
            shape = Delivery.of(message, qos, retain, session.v5, identifiers, self.server.now)
            shapes[key] = shape
        if group is not None:
            shape = shape.lent(group)
        if qos and session.owner and self.server.last_words and isinstance(session, Session):
            if self.server.journal.full and not self._heard(len(shape.wire)):
                session.drop(shape, "not_kept")
                return
        if qos:
            session.deliver(shape, shape.packet_id)
        else:
            session.deliver_qos0(shape)

    # -- subscribe -----------------------------------------------------------------------------

    def subscribe(
        self, session: Session, subscription: Subscription, qos: int, identifier: int
    ) -> int:
        """Add or replace one allowed subscription; returns the reason code (the granted QoS)."""
        server = self.server
        settings = server.settings
        full_filter = subscription.topic_filter
        shared = is_shared(full_filter)
        if not settings.wildcard_subscription and is_wildcard(full_filter):
            return reasons.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        if shared and not settings.shared_subscription:
            return reasons.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        beyond = session.subscribed() >= settings.max_subscriptions
        account = server.account
        if (
            beyond or account.full or not session.has_room(filter_room(full_filter))
        ) and session.options_of(full_filter) < 0:
            if beyond:
                return reasons.QUOTA_EXCEEDED
            if account.full:
                account.refused = True
                server.metrics.memory_refused += 1
                return reasons.QUOTA_EXCEEDED
            if not session.has_room(filter_weight(full_filter, identifier != 0)):
                return reasons.QUOTA_EXCEEDED
        packed = options_of(qos, subscription.no_local, subscription.retain_as_published)
        if (
            session.owner
            and not session.has(full_filter, packed, identifier)
            and not self._keeps(session, full_filter)
        ):
            server.metrics.refused_not_kept += 1
            return reasons.QUOTA_EXCEEDED
        if shared:
            new = self.put_back(session, full_filter, packed, identifier)
        else:
            new = self.router.subscribe(session, full_filter, packed, identifier)
        handling = subscription.retain_handling
        if not shared and settings.retain_available and (handling == 0 or (handling == 1 and new)):
            self._replay_retained(session, full_filter, packed, identifier)
        return qos

    def _keeps(self, session: Session, full_filter: str) -> bool:
        """Whether there is room for a subscription in the journal, and its user may have it."""
        size = len(full_filter.encode())
        return self.server.journal.takes(size) and session.may_keep(ROW + size)

    def put_back(self, session: Session, full_filter: str, options: int, identifier: int) -> bool:
        """Add or replace a subscription that was accepted once; True if it is new.

        Limits, full memory and what is not offered any more are asked of what comes: a client that
        goes on with its session is not told of subscriptions that are not in it any more. No
        retained messages: they were sent when it subscribed, or `owe` has them sent.
        """
        group, topic_filter = split_shared(full_filter)
        if group is None:
            return self.router.subscribe(session, topic_filter, options, identifier)
        return self.router.subscribe_shared(
            session, full_filter, group, topic_filter, options, identifier
        )

    def _replay_retained(
        self, session: Session, topic_filter: str, options: int, identifier: int
    ) -> None:
        retainer = self.retainer
        if not has_head(retainer.words, topic_filter) or (
            not is_wildcard(topic_filter) and topic_filter not in retainer.topics
        ):
            return
        below = mounted(session, topic_filter) != 0
        cursor = retainer.match(topic_filter, self.server.now, below)
        if cursor.done:
            return
        identifiers = [identifier] if identifier else None
        own = session.client_id if options & NO_LOCAL else ""
        qos = options & QOS_MASK
        session.add_replay(RetainedReplay(topic_filter, cursor, qos, identifiers, own))

    def owe(self, session: Session, topic_filter: str, options: int, identifier: int) -> None:
        """A session that is back, here or from elsewhere, was still to get what is retained."""
        self._replay_retained(session, topic_filter, options, identifier)
        session.start_replays()

    def unsubscribe(self, session: Session, full_filter: str) -> bool:
        """Remove one subscription, and stop its retained messages; False if there was none."""
        session.stop_replay(full_filter)
        if is_shared(full_filter):
            return self.router.unsubscribe_shared(session, full_filter)
        return self.router.unsubscribe(session, full_filter)

    def forget(self, session: Session) -> int:
        """A session ends: remove its subscriptions, and give its groups back what it held.

        Returns how much that was.
        Shared messages that were not acknowledged go to another member of their group
        (4.8.2: the server may re-send them when the session ends).
        """
        held = session.subscriptions
        if held is None:
            return 0
        for full_filter in list(held):
            self.unsubscribe(session, full_filter)
        count = 0
        for delivery in session.shared():
            count += 1 if self.redispatch(delivery) else 0
        return count

    def redispatch(self, delivery: Delivery) -> bool:
        """Give a delivery of a shared group to another member; False if none gets it."""
        group = delivery.group
        assert isinstance(group, Group)
        if not len(group):
            group = self.router.again(group)
        if not len(group):
            # There is no other; of a large message a copy would be made, for each group.
            return False
        known = delivery.message is not None
        message = delivery.get_message(self.server.next_message_id())
        if message.expires_at and message.expires_at <= self.server.now:
            return False
        member = group.choose(message.client_id, message.topic)
        if not known:
            # Beside the bytes it is them once more, for each message of a session that ends.
            delivery.message = None
        if member is not None:
            self._deliver(
                member,
                message,
                group.options(member),
                group.identifiers(member),
                {} if delivery.expires_at else _as_it_is(delivery),
                group,
            )
        return member is not None


def _as_it_is(delivery: Delivery) -> dict[tuple[int, ...], Delivery]:
    """The shape that a delivery has, for another receiver who is to get the same bytes."""
    number = delivery.qos | (4 if delivery.wire[0] & 1 else 0) | (8 if delivery.v5 else 0)
    identifiers = delivery.identifiers
    key = (number,) if identifiers is None else (number, *identifiers)
    return {key: delivery}


class _Dispatch(Fan):
    """A whole message on its way to a wide route."""

    def __init__(self, pubsub: PubSub, message: Message, route: Route) -> None:
        size = len(message.payload)
        super().__init__(message.client_id, route, message.weight(), size, message.qos)
        self.pubsub = pubsub
        self.message = message
        self.shapes: dict[tuple[int, ...], Delivery] = {}

    def made(self) -> int:
        """See `Fan.made`."""
        return len(self.shapes)

    def forget(self) -> None:
        """See `Fan.forget`."""
        self.shapes.clear()

    def sessions(self, at: int, end: int) -> int:
        """See `Fan.sessions`."""
        return self.pubsub.to_sessions(self.message, self.route, self.shapes, at, end)

    def groups(self, at: int, end: int) -> int:
        """See `Fan.groups`."""
        return self.pubsub.to_groups(self.message, self.route, self.shapes, at, end)
