"""The model's Session State (4.1), and what its client is sent of it while it is connected.

Messages of QoS 1 and 2 go out through a window (4.9), each with the next free packet id, behind
what is sent again after a reconnection (4.4) and before retained messages of a new subscription
that had no room at SUBACK. None is ever dropped for want of room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fuzz.lockstep.reading import Message, Will
from tests.support import packets as mq

if TYPE_CHECKING:
    from fuzz.lockstep.model import Connection

__all__ = ["MAX_INFLIGHT", "Outgoing", "Replay", "Session", "Subscription"]

#: mqttd's `session.max_inflight`, the most that a Receive Maximum gives.
MAX_INFLIGHT: Final = 100


@dataclass
class Subscription:
    """Options and identifier of a subscription (3.8.3.1)."""

    options: int
    identifier: int

    @property
    def qos(self) -> int:
        """Maximum QoS."""
        return self.options & 3

    @property
    def no_local(self) -> bool:
        """Nothing of what this client publishes comes back."""
        return bool(self.options & 4)

    @property
    def retain_as_published(self) -> bool:
        """RETAIN stays as it was."""
        return bool(self.options & 8)

    @property
    def retain_handling(self) -> int:
        """Whether retained messages come: 0 always, 1 if it is new, 2 never."""
        return self.options >> 4 & 3


@dataclass
class Outgoing:
    """A message that has a packet id, until it is acknowledged."""

    message: Message
    #: PUBREC came: it is PUBREL that is sent again.
    received: bool = False


@dataclass
class Replay:
    """Retained messages of a subscription that are still to come, by topic; None: went ahead."""

    qos: int
    messages: dict[str, Message | None]
    #: Some have had their turn; in the order of this replay.
    begun: bool = False
    in_order: bool = False

    def take(self, topic: str) -> Message | None:
        """The message of this topic has its turn."""
        message, self.messages[topic] = self.messages.get(topic), None
        self.begun = True
        return message

    def waiting(self) -> list[Message]:
        """Those that are still to come."""
        return [message for message in self.messages.values() if message is not None]


class Session:
    """One session; `connection` is None while its client is away."""

    def __init__(self, client_id: str, clock: Callable[[], float]) -> None:
        self.client_id = client_id
        self.clock = clock
        self.connection: Connection | None = None
        self.subscriptions: dict[str, Subscription] = {}
        #: Sent and not acknowledged, by packet id, in the order of the first sending.
        self.unacked: dict[int, Outgoing] = {}
        #: Packet ids of QoS 2 messages that came and were not released.
        self.received: set[int] = set()
        self.queue: list[Message] = []
        #: By filter: each SUBSCRIBE has all of it sent (3.8.4), one behind the other.
        self.replays: dict[str, list[Replay]] = {}
        self.last_id = 0
        #: Session Expiry Interval, and since when the client is away.
        self.expiry = 0
        self.gone_at = 0.0
        #: A will that waits for its delay, and when it is due.
        self.will: Will | None = None
        self.will_at: float | None = None
        #: Packet ids used on this connection, and those to be sent again (4.4).
        self.sent: set[int] = set()
        self.again: list[int] = []
        #: What comes next is not for the model to say: retained messages wait for the window, and
        #: the order of topics among them is nobody's rule.
        self.unsure = False

    def resume(self, connection: Connection) -> None:
        """The client is there: what it has not acknowledged comes again, then what waits."""
        self.connection = connection
        self.sent, self.again = set(), []
        for packet_id, outgoing in list(self.unacked.items()):
            # PUBREL waits for no room (4.9), but takes some.
            if outgoing.received or (self.has_room() and not self.again):
                self.send_again(packet_id)
            else:
                self.again.append(packet_id)
        self.send()

    # -- towards the client --------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        """A message for this session, its QoS, RETAIN and identifiers as they are sent.

        What is retained of its topic and still to come goes before it (4.6). At QoS 0 it reaches
        a client that is there (`mqueue.store_qos0` is false).
        """
        for replay in self.all_replays():
            if message.topic in replay.messages and (ahead := replay.take(message.topic)):
                self.put(ahead)
        self.put(message)

    def put(self, message: Message) -> None:
        """Send it, or let it wait for the window."""
        if message.qos:
            self.queue.append(message)
            self.send()
        elif self.connection and not self.expired(message):
            self.write(message, 0)

    def send(self) -> None:
        """Whatever the window has room for (4.9)."""
        if self.connection is None:
            return
        while self.again and self.has_room():
            self.send_again(self.again.pop(0))
        while self.queue and self.has_room() and not self.again:
            queued = self.queue.pop(0)
            if self.expired(queued):
                continue
            packet_id = self.next_id()
            if self.write(queued, packet_id):
                self.unacked[packet_id] = Outgoing(queued)
                self.sent.add(packet_id)
        while self.replays and not self.queue and not self.again:
            topic_filter, line = next(iter(self.replays.items()))
            replay = line[0]
            waiting = replay.waiting()
            if not self.has_room() and any(message.qos for message in waiting):
                # The order of topics is a broker's business, and so is when it sees that one of
                # them has expired.
                self.unsure |= len(waiting) > 1 or replay.in_order
                self.unsure |= any(self.expired(message) for message in waiting)
                return
            if not self.has_room() and not waiting and replay.begun:
                # So is when it sees that none is left.
                self.unsure |= any(other.waiting() for other in self.all_replays())
            if not replay.messages:
                del self.replays[topic_filter]
                if line[1:]:
                    self.replays[topic_filter] = line[1:]
                continue
            topic = next(iter(replay.messages))
            message = replay.take(topic)
            del replay.messages[topic]
            replay.in_order = True
            if message:
                self.put(message)

    def send_again(self, packet_id: int) -> None:
        """What was not acknowledged: PUBREL, or the message with DUP (4.4)."""
        outgoing = self.unacked[packet_id]
        assert self.connection is not None
        self.sent.add(packet_id)
        if outgoing.received:
            self.connection.write(mq.pubrel(packet_id, self.connection.version))
        elif self.expired(outgoing.message) or not self.write(
            outgoing.message, packet_id, dup=True
        ):
            del self.unacked[packet_id]
            self.sent.discard(packet_id)

    def write(self, message: Message, packet_id: int, dup: bool = False) -> bool:
        """A PUBLISH to the client; False where it is longer than that takes (MQTT-3.1.2-24)."""
        connection = self.connection
        assert connection is not None
        left = 0 if message.until is None else int(message.until - self.clock())
        props = [(i, left if i == mq.MESSAGE_EXPIRY else value) for i, value in message.props]
        props += [(mq.SUBSCRIPTION_ID, identifier) for identifier in message.identifiers]
        return connection.write(
            mq.publish(
                message.topic,
                message.payload,
                message.qos,
                packet_id,
                version=connection.version,
                retain=message.retain,
                dup=dup,
                props=props,
            )
        )

    def has_room(self) -> bool:
        """Whether one more may be unacknowledged on this connection."""
        assert self.connection is not None
        return len(self.sent) < self.connection.window

    def all_replays(self) -> list[Replay]:
        """Those of each filter."""
        return [replay for line in self.replays.values() for replay in line]

    def next_id(self) -> int:
        """The next packet id that is not in use (2.2.1)."""
        while True:
            self.last_id = self.last_id % 65535 + 1
            if self.last_id not in self.unacked:
                return self.last_id

    def expired(self, message: Message) -> bool:
        """Whether its Message Expiry Interval has passed (3.3.2.3.3)."""
        return message.until is not None and self.clock() >= message.until

    def replaced(self, topic: str) -> None:
        """Another message is retained there now, or none: one that still waits does not come."""
        for replay in self.all_replays():
            if topic in replay.messages:
                replay.take(topic)

    # -- from the client -----------------------------------------------------------------------

    def outgoing(self, packet_id: int) -> Outgoing | None:
        """What an acknowledgement on this connection is of."""
        return self.unacked.get(packet_id) if packet_id in self.sent else None

    def done(self, packet_id: int) -> None:
        """A message is acknowledged; the next ones follow."""
        del self.unacked[packet_id]
        self.sent.discard(packet_id)
        self.send()

    def replay(
        self, topic_filter: str, subscription: Subscription, messages: list[Message]
    ) -> None:
        """Retained messages for a subscription that was just made (3.3.1.3)."""
        mine: dict[str, Message | None] = {
            message.topic: replace(
                message,
                qos=min(message.qos, subscription.qos),
                retain=True,
                identifiers=[subscription.identifier] if subscription.identifier else [],
            )
            for message in messages
            if not self.expired(message)
            and not (subscription.no_local and message.source == self.client_id)
        }
        self.replays.setdefault(topic_filter, []).append(Replay(subscription.qos, mine))
