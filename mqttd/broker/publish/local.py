"""Subscribers and publishers inside the broker's own process: no socket, no packets, no client id.

    Route --> LocalSession --mqueue--> (a later turn) --> receive(message)
                   |                                          |
                   +-- pause() / resume(), close()            `-- may publish, subscribe, close

A `LocalSession` is one subscription whose deliveries go to a callable. Its mqueue is what the
inflight window is for a client: while the receiver is paused, messages wait there, and what does
not fit is dropped as for any slow client (the oldest QoS 0 message first, then the oldest), counted
as ``dropped_queue_full`` and told to ``delivery.dropped``.

    >>> heard = subscribe(broker, "my plugin", "sensors/#", print, qos=1)
    >>> publish(broker, "sensors/1", b"21.5", qos=1)        # receivers, hooks and all
    >>> heard.pause(); heard.resume(); heard.close()

Promise: ``receive`` is never called inside the turn that delivered (so it may do anything, and
cannot recurse), at most `BATCH` times before clients have their turn, and always in the order of
delivery. It is called with a `Message` whose QoS and RETAIN are the publisher's; retained messages
come first, in pages. What it raises is logged as "local subscriber failed" and counted.

Local sessions are trusted: access control and the hooks of clients do not see them,
`Broker.sessions` does not list them, and no client can take one over.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final

from mqttd.broker.publish.publishing import Publishing
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import Subscription
from mqttd.codec.properties import Properties
from mqttd.codec.topic import validate_topic_filter, validate_topic_name
from mqttd.session.ground.message import Delivery, Message, entry_delivery
from mqttd.session.ground.wheel import milliseconds
from mqttd.session.mqueue import MQueue
from mqttd.session.session import Session

__all__ = ["BATCH", "LocalSession", "publish", "republish", "subscribe"]

#: Messages that one subscriber takes before others have their turn.
BATCH: Final = 64


class LocalSession(Session):
    """One subscription of this process; made by `subscribe`.

    `receive` is called with each `Message`; `max_length` and `max_bytes` bound what waits for it
    (0: no limit).
    """

    __slots__ = (
        "broker",
        "closed",
        "lost",
        "max_bytes",
        "max_length",
        "paused",
        "receive",
        "scheduled",
    )

    def __init__(
        self,
        broker: Publishing,
        name: str,
        receive: Callable[[Message], object],
        max_length: int,
        max_bytes: int,
    ) -> None:
        super().__init__(broker, name, None)
        self.v5 = True
        self.bare = False
        self.broker = broker
        self.receive = receive
        self.max_length = max_length
        self.max_bytes = max_bytes
        self.paused: bool = False
        self.closed: bool = False
        #: Messages that were dropped: the queue was full, or they expired in it.
        self.lost: int = 0
        #: A later turn will call `drain`.
        self.scheduled: bool = False

    def pause(self) -> None:
        """Take no more for now: messages wait in the mqueue."""
        self.paused = True

    def resume(self) -> None:
        """Go on with what waits, in a later turn."""
        self.paused = False
        if not self.closed:
            self.come_back()
        self._schedule()

    def close(self) -> None:
        """Unsubscribe; what waits is not delivered any more. Closing twice is no error."""
        if self.closed:
            return
        self.closed = True
        self.detach()
        handed = self.broker.pubsub.forget(self)
        self.server.metrics.dropped_session_ended += self.waiting_messages() - handed
        self.forget()

    def new_queue(self) -> MQueue:
        """An empty queue with the limits of this subscriber."""
        return MQueue(self.max_length, self.max_bytes)

    def waiting_messages(self) -> int:
        """How many messages wait for the receiver."""
        return self.mqueue.length if self.mqueue is not None else 0

    def drop(self, delivery: Delivery, reason: str) -> None:
        """Count it here too."""
        self.lost += 1
        super().drop(delivery, reason)

    # -- told by the router --------------------------------------------------------------------

    def online(self) -> bool:
        """A shared group may choose it, as long as it is not paused."""
        return not (self.paused or self.closed)

    def take(self, wire: bytes, packet_id: int, id_at: int) -> None:
        """Queue a QoS 1 or 2 PUBLISH for the next turn."""
        self._take(wire)

    def deliver(self, delivery: Delivery, packet_id: int) -> None:
        """Queue a QoS 1 or 2 delivery for the next turn."""
        self._take(delivery)

    def deliver_qos0(self, delivery: Delivery) -> None:
        """Queue a QoS 0 delivery for the next turn."""
        self._take(delivery)

    def _take(self, entry: object) -> None:
        if self.closed:
            return
        self.enqueue(entry)
        self._schedule()

    def _schedule(self) -> None:
        if not (self.scheduled or self.paused or self.closed):
            self.scheduled = True
            self.server.resume_later(self)

    def drain(self) -> None:
        """Hand what waits to the receiver (called in a turn of its own)."""
        self.scheduled = False
        for _ in range(BATCH):
            if self.paused or self.closed:
                return
            delivery = self._next()
            if delivery is None:
                if self.replays is not None:
                    break  # the store goes on in a later turn
                self.waiting = False
                return
            if delivery.expires_at and delivery.expires_at <= self.server.now:
                self.drop(delivery, "expired")
            else:
                self._hand_over(delivery)
        self._schedule()

    def _next(self) -> Delivery | None:
        """The next retained message of the subscription, then of the queue."""
        while self.replays is not None:
            replay = self.replays.first()
            delivery = replay.next(self)
            if delivery is not None:
                return delivery
            if not replay.done():
                return None
            self.stop_replay(replay.topic_filter)
        entry = self.unqueue(self.mqueue) if self.mqueue is not None else None
        return None if entry is None else entry_delivery(entry, True)

    def _hand_over(self, delivery: Delivery) -> None:
        try:
            self.receive(delivery.get_message(self.server.next_message_id()))
        except Exception as error:
            self.server.metrics.crashes += 1
            self.broker.log(
                "local subscriber failed",
                {
                    "name": self.client_id,
                    "topic": delivery.topic(),
                    "traceback": "".join(traceback.format_exception(error)),
                },
            )


def subscribe(
    broker: Publishing,
    name: str,
    topic_filter: str,
    receive: Callable[[Message], object],
    qos: int = 2,
    max_length: int = 1000,
    max_bytes: int = 8 << 20,
    retain_handling: int = 0,
) -> LocalSession:
    """Have ``receive(message)`` called for what matches `topic_filter`; see the module.

    name: for the log and ``delivery.dropped``; qos: the most a message keeps (it decides what is
    dropped first); max_length (messages) and max_bytes: what may wait; retain_handling: 0 sends
    the retained messages first, 2 does not. `$share/group/filter` works as for clients.

    Raises TopicFilterInvalid, and MqttError where the server does not offer such a subscription.
    """
    validate_topic_filter(topic_filter, broker.settings.max_topic_levels)
    session = LocalSession(broker, name, receive, max_length, max_bytes)
    subscription = Subscription(topic_filter, qos, False, False, retain_handling)
    code = broker.pubsub.subscribe(session, subscription, qos, 0)
    if code >= 0x80:
        raise reasons.MqttError(f"cannot subscribe to {topic_filter}", code)
    if session.replays is not None:
        session.resume()
    return session


def publish(
    broker: Publishing,
    topic: str,
    payload: bytes,
    qos: int = 0,
    retain: bool = False,
    properties: Properties | None = None,
    source: str = "",
) -> int:
    """Publish from this process: hooks, retained store and routing as for a client's message.

    properties: as on the wire, Message Expiry Interval included; source: stands as the message's
    client id. May be called anywhere, in hooks and receivers too; the bytes go out with the turn.

    Returns the number of receivers, or minus a reason code. Raises TopicNameInvalid, and
    ValueError for a QoS that is none.
    """
    validate_topic_name(topic, broker.settings.max_topic_levels)
    if qos < 0 or qos > 2:
        raise ValueError(f"QoS {qos}: expected 0, 1 or 2")
    expires_at = 0
    if properties is not None:
        properties = dict(properties)
        expiry = properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, None)
        if isinstance(expiry, int):
            expires_at = broker.now + milliseconds(expiry)
            if expires_at == 0:
                expires_at = 1
        if not properties:
            properties = None
    return republish(
        broker,
        Message(
            broker.next_message_id(),
            topic,
            payload,
            qos if qos < broker.settings.max_qos else broker.settings.max_qos,
            retain,
            properties,
            source,
            None,
            expires_at,
        ),
    )


def republish(broker: Publishing, message: Message) -> int:
    """Route a message that is there already, with its id and expiry; returns as `publish`.

    One that has expired meanwhile is dropped.
    """
    if message.expires_at and message.expires_at <= broker.now:
        broker.metrics.dropped_expired += 1
        broker.missed(message, "expired", "")
        if broker.tap_dropped:
            broker.message_dropped(message, "expired")
        return 0
    # Whoever made the list non-empty performs it at the end of the turn.
    quiet = not broker.dirty
    receivers = broker.publish(message)
    if quiet and broker.dirty:
        broker.perform_later()
    return receivers
