"""SUBSCRIBE and UNSUBSCRIBE: each filter is looked at by hooks and rights, then by the router.

    SUBSCRIBE --> mountpoint --> client.subscribe --> authorize each --> router --> SUBACK
                                                                           '--> retained messages
    UNSUBSCRIBE --> mountpoint --> client.unsubscribe --> router --> UNSUBACK

Promise: as many reason codes as filters, in their order, whatever hooks do to the list. Of a long
list some are served in each turn (`SLICE`); what the client sends behind it waits. While other
processes have yet to take the filters the SUBACK waits alone, `_UNDER_WAY` of a client at most:
what is sent behind it is served, but for an UNSUBSCRIBE.

MQTT 5.0: 3.8 to 3.11 (MQTT-3.8.4-6, MQTT-3.10.4-4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqttd.broker.ground.actions import SUBSCRIBING
from mqttd.broker.publish.asked import Asked
from mqttd.broker.publish.on_behalf import OnBehalf
from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.routing.abroad import Pacer, Taken
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packet_types import SUBSCRIBE
from mqttd.codec.packets import Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from mqttd.codec.serializer import serialize, varint
from mqttd.codec.topic import split_shared, validate_topic_filter
from mqttd.session.channel.channel import OPEN, Channel
from mqttd.session.journal import Doubt
from mqttd.session.routes.receiver import NO_LIMIT
from mqttd.session.session import Session
from mqttd.types import ClientInfo

__all__ = ["Subscribing"]

#: Filters of a slice from which on it is asked what the client may subscribe to at all.
_MANY: Final = 8
#: Units of work of a right that is asked for.
_RIGHT: Final = 20
#: Bytes of a character, at most.
_WIDEST: Final = 4
#: SUBSCRIBEs of one client whose SUBACKs wait for other processes.
_UNDER_WAY: Final = 16
#: Filters in one log line.
_TOLD: Final = 8


class Subscribing:
    """Serves the subscriptions of a broker's clients."""

    def __init__(self, broker: Publishing) -> None:
        self.broker = broker
        #: How many SUBACKs of a connection wait for other processes, and who waits for them.
        self.under_way: dict[Channel, int] = {}
        self.behind: dict[Channel, _Unsubscribe] = {}
        #: Who says when somebody has to wait; set by a cluster.
        self.pacer: Pacer | None = None

    def subscribe(self, channel: Channel, packet: Subscribe) -> None:
        """Serve a SUBSCRIBE: one reason code per filter in the order asked (MQTT-3.8.4-6)."""
        broker = self.broker
        session = channel.session
        assert session is not None
        subscriptions: list[Subscription] = packet.subscriptions
        if not self._answerable(channel, session, len(subscriptions)):
            return
        identifier = 0
        if packet.properties is not None:
            named = packet.properties.get(prop.SUBSCRIPTION_IDENTIFIER)
            if isinstance(named, list) and named and isinstance(named[0], int):
                identifier = named[0]
        mount = channel.mount
        if mount is not None:
            for subscription in subscriptions:
                subscription.topic_filter = mount.enter_filter(subscription.topic_filter)
        asked = _Subscribe(self, channel, session, packet.packet_id, len(subscriptions))
        asked.client = broker.client_of(session)
        asked.properties = packet.properties
        asked.subscriptions = subscriptions
        asked.identifier = identifier
        asked.begin()

    def _answerable(self, channel: Channel, session: Session, count: int) -> bool:
        """Whether so many reason codes fit a packet that the client takes; else it has to go.

        MQTT-3.1.2-24: nothing was done of what could not be answered.
        """
        largest = session.max_packet
        if largest >= NO_LIMIT:
            return True
        body = 3 + count
        if 1 + len(varint(body)) + body <= largest:
            return True
        detail = f"{count} reason codes are more than the {largest} bytes that the client takes"
        channel.part(reasons.PACKET_TOO_LARGE, detail)
        return False

    def say(self, event: str, session: Session, filters: list[str], codes: list[int]) -> None:
        """A log line; of many filters the first."""
        self.broker.log(
            event,
            {
                "client_id": session.client_id,
                "filters": filters[:_TOLD],
                "codes": codes[:_TOLD],
                "more": len(filters) - _TOLD if len(filters) > _TOLD else None,
            },
        )

    def subscribe_client(
        self,
        client_id: str,
        subscription: Subscription,
        told: Callable[[bool], object] | None = None,
    ) -> int:
        """Subscribe a session on its client's behalf: the reason code a SUBACK would carry.

        Where it is granted `told` is called when the other processes have the filter, with False
        where they cannot be told: then the session has it no more. Raises KeyError if there is no
        such session, TopicFilterInvalid for what is no filter.
        """
        broker = self.broker
        session = broker.sessions[client_id]
        code = self.one(session, broker.client_of(session), subscription, 0)
        if code < 0x80:
            asked = OnBehalf(broker, session, subscription, told)
            abroad = broker.router.abroad
            if abroad is None or not abroad.waits(asked):
                asked.taken()
        return code

    def are_subscriptions(self, changed: object, count: int) -> bool:
        """Whether a hook has answered with so many subscriptions that can be."""
        if not isinstance(changed, list) or len(changed) != count:
            return False
        for subscription in changed:
            if not isinstance(subscription, Subscription) or subscription.qos not in (0, 1, 2):
                return False
            try:
                _, topic_filter = split_shared(subscription.topic_filter)
                validate_topic_filter(topic_filter, 0)
            except Exception:
                return False
        return True

    def one(
        self,
        session: Session,
        client: ClientInfo,
        subscription: Subscription,
        identifier: int,
        valid: bool = False,
        realms: list[str] | None = None,
    ) -> int:
        """Subscribe a session if its client may; the reason code.

        valid: the filter is as it was parsed; realms: what the client may subscribe to, where that
        was asked (`Rights.listening`).
        """
        broker = self.broker
        settings = broker.settings
        topic_filter = subscription.topic_filter
        if topic_filter[:1] == "$":
            _, topic_filter = split_shared(topic_filter)
        size = len(topic_filter)
        if (
            size >= settings.max_topic_levels
            and topic_filter.count("/") >= settings.max_topic_levels
        ) or (
            size * _WIDEST > settings.max_topic_length
            and len(topic_filter.encode()) > settings.max_topic_length
        ):
            return reasons.TOPIC_FILTER_INVALID
        if not valid:
            validate_topic_filter(topic_filter, 0)  # its levels are counted
        if realms is None or not _is_within(topic_filter, realms):
            broker.router.work += _RIGHT
            if not broker.authorize(client, SUBSCRIBING[min(subscription.qos, 2)], topic_filter):
                broker.metrics.subscribes_denied += 1
                return reasons.NOT_AUTHORIZED
        qos = subscription.qos if subscription.qos < settings.max_qos else settings.max_qos
        return broker.pubsub.subscribe(session, subscription, qos, identifier)

    def unsubscribe(self, channel: Channel, packet: Unsubscribe) -> None:
        """Serve an UNSUBSCRIBE: always an UNSUBACK (MQTT-3.10.4-4)."""
        session = channel.session
        assert session is not None
        filters: list[str] = packet.topic_filters
        if not self._answerable(channel, session, len(filters)):
            return
        mount = channel.mount
        if mount is not None:
            filters = [mount.enter_filter(topic_filter) for topic_filter in filters]
        asked = _Unsubscribe(self, channel, session, packet.packet_id, filters)
        asked.properties = packet.properties
        if channel in self.under_way:
            self.behind[channel] = asked
            asked.work()
        else:
            asked.begin()


def _is_within(topic_filter: str, realms: list[str]) -> bool:
    """Whether a filter begins as one of these; "": with anything but `$`."""
    for realm in realms:
        if topic_filter.startswith(realm) if realm else topic_filter[:1] != "$":
            return True
    return False


class _Subscribe(Asked):
    """A SUBSCRIBE."""

    client: ClientInfo
    subscriptions: list[Subscription]

    def __init__(
        self,
        subscribing: Subscribing,
        channel: Channel,
        session: Session,
        packet_id: int,
        count: int,
    ) -> None:
        super().__init__(subscribing.broker, channel, session, packet_id, count)
        self.subscribing = subscribing
        self.packet_type = SUBSCRIBE
        self.identifier: int = 0
        self.granted: list[Subscription] = []
        #: Places of those of which the journal was told, and of those that were not there before.
        self.kept: set[int] = set()
        self.new: list[int] = []
        #: It was put off, and counted as such.
        self.late: bool = False
        #: The filters are as they were parsed.
        self.valid: bool = False
        #: What the client may subscribe to, while a slice of many filters is seen to and nobody who
        #: hears of one of them changes the rules.
        self.realms: list[str] | None = None
        self.epoch: int = 0

    def begin(self) -> None:
        """As `Asked.begin`, when its user may have others told of filters."""
        if self._may():
            super().begin()

    def slice(self) -> bool:
        """As `Asked.slice`, as long as it may."""
        return self._may() and super().slice()

    def _may(self) -> bool:
        pacer = self.subscribing.pacer
        if pacer is None or self.channel.state != OPEN or pacer.begin(self.channel, self._again):
            return True
        if not self.late:
            self.late = True
            pacer.waits()
        self.work()
        return False

    def _again(self) -> None:
        if self._may():
            self.broker.turns.add(self)

    def _some(self) -> bool:
        left = self.count - self.at
        self.realms = self.broker.listening(self.client) if left >= _MANY else None
        self.epoch = self.broker.epoch
        done = super()._some()
        if self.subscribing.pacer is not None:
            self.subscribing.pacer.charge(self.channel)
        return done

    def change(self, end: int) -> None:
        """See `Asked.change`."""
        broker = self.broker
        if "client.subscribe" not in broker.points:
            self.valid = self.channel.mount is None
            return
        self.valid = False
        some = self.subscriptions[self.at : end]
        _, changed = broker.hooks.run_hooks(
            "client.subscribe", (self.client, self.properties), some
        )
        count = end - self.at
        same = changed is some and len(some) == count
        if same or self.subscribing.are_subscriptions(changed, count):
            self.subscriptions[self.at : end] = changed
        else:
            broker.hooks.unusable("client.subscribe", changed)

    def one(self) -> None:
        """The next filter."""
        subscription = self.subscriptions[self.at]
        if self.epoch != self.broker.epoch:
            self.realms = None
        changes = self.broker.journal.changes
        new = self.session.options_of(subscription.topic_filter) < 0
        code = self.subscribing.one(
            self.session, self.client, subscription, self.identifier, self.valid, self.realms
        )
        if code < 0x80:
            self.granted.append(subscription)
            if self.broker.journal.changes != changes:
                self.kept.add(self.at)
                if new:
                    self.new.append(self.at)
        self.codes.append(code if self.channel.v5 or code < 0x80 else 0x80)

    def waits(self) -> bool:
        """Whether other processes have yet to take the filters."""
        abroad = self.broker.router.abroad
        if abroad is None or not abroad.waits(_Told(self)):
            return False
        under_way = self.subscribing.under_way
        count = under_way.get(self.channel, 0) + 1
        under_way[self.channel] = count
        if count < _UNDER_WAY:
            self._rest()
        else:
            self.work()
        return True

    def told(self) -> None:
        """They have, or are not waited for any longer."""
        under_way = self.subscribing.under_way
        count = under_way.pop(self.channel) - 1
        if count:
            under_way[self.channel] = count
        self.finish()
        if not count:
            behind = self.subscribing.behind.pop(self.channel, None)
            if behind is not None:
                self.broker.turns.add(behind)
            elif self.channel.leaving:
                self.channel.leave()

    def refuse(self) -> None:
        """What the others could not be told of is not subscribed to."""
        abroad = self.broker.router.abroad
        if abroad is None or self.channel.session is not self.session:
            return
        granted = self.granted
        self.granted = []
        for at in range(len(self.subscriptions)):
            subscription = self.subscriptions[at]
            if subscription not in granted:
                continue
            if abroad.lacks(subscription.topic_filter):
                self.broker.pubsub.unsubscribe(self.session, subscription.topic_filter)
                self.codes[at] = reasons.IMPLEMENTATION_SPECIFIC_ERROR if self.channel.v5 else 0x80
            else:
                self.granted.append(subscription)

    def answer(self) -> None:
        """SUBACK, and what follows from it."""
        broker = self.broker
        channel = self.channel
        session = self.session
        codes = self.codes
        broker.metrics.subscribes += 1
        if broker.tells("subscribed"):
            names = [subscription.topic_filter for subscription in self.subscriptions]
            self.subscribing.say("subscribed", session, names, codes)
        answer = serialize(Suback(self.packet_id, codes, None), channel.version)
        if session.owner:
            broker.journal.hold_answer(channel, answer, _Doubt(self))
        else:
            session.send_kept(channel, answer, 2)
        if broker.settings.deny_disconnect and reasons.NOT_AUTHORIZED in codes:
            channel.part(reasons.NOT_AUTHORIZED, "subscribe denied")
            return
        if "session.subscribed" in broker.points:
            for subscription in self.granted:
                broker.tell("session.subscribed", session, subscription)
        if self.granted and "client.subscribe.after" in broker.points:
            broker.hooks.run_hooks("client.subscribe.after", (self.client,), self.granted)
        session.start_replays()

    def fail(self) -> None:
        """What it was granted could not be written: it is refused, and not subscribed to."""
        channel = self.channel
        session = self.session
        self.broker.metrics.refused_not_kept += len(self.kept)
        if session.ended:
            return
        for at in self.new:
            topic_filter = self.subscriptions[at].topic_filter
            if self.broker.pubsub.unsubscribe(session, topic_filter):
                self.broker.tell("session.unsubscribed", session, topic_filter)
        for at in range(self.count):
            lost = session.options_of(self.subscriptions[at].topic_filter) < 0
            if self.codes[at] < 0x80 and (lost or at in self.kept):
                self.codes[at] = reasons.QUOTA_EXCEEDED if channel.v5 else 0x80
        self.granted = [self.subscriptions[at] for at in range(self.count) if self.codes[at] < 0x80]
        if channel.state == OPEN and channel.session is session:
            if self.kept and self.broker.tells("subscribed"):
                names = [subscription.topic_filter for subscription in self.subscriptions]
                self.subscribing.say("subscribed", session, names, self.codes)
            channel.send(serialize(Suback(self.packet_id, self.codes, None), channel.version))


class _Doubt(Doubt):
    """A SUBACK of what may not be kept."""

    def __init__(self, asked: _Subscribe) -> None:
        self.asked = asked

    def fail(self) -> None:
        """See `Doubt.fail`."""
        self.asked.fail()


class _Told(Taken):
    """The other processes have the filters of a SUBSCRIBE."""

    def __init__(self, asked: _Subscribe) -> None:
        self.asked = asked

    def taken(self) -> None:
        """See `Taken.taken`."""
        self.asked.told()

    def refused(self) -> None:
        """See `Taken.refused`."""
        self.asked.refuse()
        self.asked.told()

    def filters(self) -> list[str]:
        """See `Taken.filters`."""
        return [subscription.topic_filter for subscription in self.asked.granted]


class _Unsubscribe(Asked):
    """An UNSUBSCRIBE."""

    def __init__(
        self,
        subscribing: Subscribing,
        channel: Channel,
        session: Session,
        packet_id: int,
        filters: list[str],
    ) -> None:
        super().__init__(subscribing.broker, channel, session, packet_id, len(filters))
        self.subscribing = subscribing
        self.filters = filters

    def change(self, end: int) -> None:
        """See `Asked.change`."""
        broker = self.broker
        if "client.unsubscribe" not in broker.points:
            return
        some = self.filters[self.at : end]
        client = broker.client_of(self.session)
        _, changed = broker.hooks.run_hooks("client.unsubscribe", (client, self.properties), some)
        if isinstance(changed, list) and len(changed) == end - self.at:
            self.filters[self.at : end] = [str(topic_filter) for topic_filter in changed]
        else:
            broker.hooks.unusable("client.unsubscribe", changed)

    def one(self) -> None:
        """The next filter."""
        topic_filter = self.filters[self.at]
        if self.broker.pubsub.unsubscribe(self.session, topic_filter):
            self.codes.append(0)
            if "session.unsubscribed" in self.broker.points:
                self.broker.tell("session.unsubscribed", self.session, topic_filter)
        else:
            self.codes.append(reasons.NO_SUBSCRIPTION_EXISTED)

    def answer(self) -> None:
        """UNSUBACK."""
        broker = self.broker
        channel = self.channel
        broker.metrics.unsubscribes += 1
        if broker.tells("unsubscribed"):
            self.subscribing.say("unsubscribed", self.session, self.filters, self.codes)
        answer = serialize(Unsuback(self.packet_id, self.codes, None), channel.version)
        self.session.send_kept(channel, answer, 2)
