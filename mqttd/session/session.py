"""A client's session: what the broker keeps between (and during) its connections.

Exactly five kinds of state (the design documents' list; MQTT 5.0, 4.1):

1. the subscriptions, with their granted QoS;
2. outgoing QoS 1 and 2 messages in flight: sent, not completely acknowledged;
3. incoming QoS 2 packet ids that await PUBREL;
4. QoS 1 and 2 messages pending, while the client is away or the window is full;
5. optionally, QoS 0 messages pending while it is away.

The inflight window is an insertion-ordered dict packet id -> Delivery, so redelivery keeps the old
order. A delivery keeps the publisher's packet id where that is free here: then its bytes are shared
by every receiver.

Promise: delivering a shared packet costs one dict insert and one list append; nothing is allocated
for an idle session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttd.codec.frame import packet_id_at
from mqttd.session.message import RELEASED, Delivery
from mqttd.session.mqueue import MQueue
from mqttd.session.server import Server
from mqttd.session.settings import NEVER
from mqttd.session.wheel import Timer

if TYPE_CHECKING:
    from mqttd.session.channel import Channel
    from mqttd.session.message import Message

__all__ = ["Replay", "Session"]

#: No Maximum Packet Size given by the client.
_NO_LIMIT = 1 << 28


class Replay:
    """A paced source of deliveries for one session: retained messages of a new subscription."""

    __slots__ = ()

    def next(self, session: Session) -> Delivery | None:
        """The next delivery; None at the end, or when the search goes on in a later turn."""
        raise NotImplementedError

    def done(self) -> bool:
        """Whether the end was reached."""
        raise NotImplementedError

    def close(self) -> None:
        """Given up before the end."""
        raise NotImplementedError


class Session(Timer):
    """The state of one client id."""

    __slots__ = (
        "awaiting_rel",
        "away_since",
        "channel",
        "clean",
        "client",
        "client_id",
        "created_at",
        "expiry_interval",
        "identifiers",
        "inflight",
        "max_packet",
        "mqueue",
        "next_id",
        "server",
        "replays",
        "retry_marks",
        "subscriptions",
        "unsent",
        "username",
        "v5",
        "waiting",
        "will",
        "will_delay",
        "window",
    )

    def __init__(self, server: Server, client_id: str, username: str | None) -> None:
        self.due_at = 0
        self.slotted = 0
        self.server = server
        self.client_id = client_id
        #: The principal: only the same user may resume or take over this session.
        self.username = username
        #: What access control must remember of the client (a ClientInfo), None for nothing.
        self.client: object | None = None
        self.channel: Channel | None = None
        #: The last connection spoke MQTT 5.0.
        self.v5: bool = False
        #: Ends with its connection.
        self.clean: bool = True
        #: Seconds the session lives after its connection; NEVER for ever.
        self.expiry_interval: int = 0
        self.created_at: int = server.now
        self.away_since: int = 0
        self.subscriptions: dict[str, int] | None = None
        self.identifiers: dict[str, int] | None = None
        self.inflight: dict[int, Delivery] | None = None
        #: Packet id -> when it came, in order of arrival.
        self.awaiting_rel: dict[int, int] | None = None
        self.mqueue: MQueue | None = None
        self.replays: list[Replay] | None = None
        #: Packet ids in flight that this connection has not been sent yet (small window).
        self.unsent: list[int] | None = None
        #: Something waits for room in the window: mqueue, replays or unsent.
        self.waiting: bool = False
        self.retry_marks: list[int] | None = None
        self.next_id: int = 0
        self.window: int = server.settings.max_inflight
        self.max_packet: int = _NO_LIMIT
        self.will: Message | None = None
        self.will_delay: int = 0

    # -- connection ----------------------------------------------------------------------------

    def attach(self, channel: Channel, receive_maximum: int, max_packet: int) -> None:
        """A connection opened for this session; its limits hold until it closes."""
        self.channel = channel
        self.v5 = channel.v5
        window = self.server.settings.max_inflight
        if receive_maximum and receive_maximum < window:
            window = receive_maximum
        self.window = window
        self.max_packet = max_packet if max_packet else _NO_LIMIT
        self.server.wheel.cancel(self)
        self.retry_marks = None
        if not self.v5 and self.server.settings.retry_interval:
            self.server.wheel.schedule(self, self.server.now + self.server.settings.retry_interval)

    def detach(self) -> None:
        """The connection is gone."""
        self.channel = None
        if self.replays is not None:
            for replay in self.replays:
                replay.close()
            self.replays = None
        self.unsent = None
        self.retry_marks = None

    def online(self) -> bool:
        """Whether a delivery goes out at once, as far as limits allow."""
        return self.channel is not None

    def resend(self) -> None:
        """After a reconnection: everything unacknowledged again, in the old order (4.4)."""
        channel = self.channel
        inflight = self.inflight
        if channel is None:
            return
        if inflight:
            sent = 0
            unsent: list[int] = []
            for packet_id in list(inflight):
                if inflight[packet_id] is RELEASED:
                    channel.send(b"\x62\x02" + packet_id.to_bytes(2, "big"))
                    sent += 1
                elif sent >= self.window:
                    unsent.append(packet_id)
                elif self._resend_one(channel, inflight, packet_id):
                    sent += 1
            if unsent:
                self.unsent = unsent
                self.waiting = True
        self.drain()
        if self.mqueue is not None and self.mqueue.qos0:
            channel.special = True  # new QoS 0 messages go behind those that wait

    def _resend_one(self, channel: Channel, inflight: dict[int, Delivery], packet_id: int) -> bool:
        """Send what is in flight under `packet_id` again, with DUP; False if it cannot go."""
        delivery = inflight[packet_id]
        if delivery.expires_at or delivery.v5 != self.v5:
            delivery = delivery.fresh(self.v5, self.server.now)
            inflight[packet_id] = delivery
        wire = delivery.packet(packet_id, True)
        if channel.mount is not None:
            wire = channel.mount.leave(wire, self.v5)
        if not wire or len(wire) > self.max_packet:
            del inflight[packet_id]
            self._drop(delivery, "too_large" if wire else "denied")
            return False
        metrics = self.server.metrics
        metrics.messages_retransmitted += 1
        metrics.messages_sent += 1
        channel.send(wire)
        return True

    def _resend_more(self, channel: Channel) -> bool:
        """Go on with `unsent` as the window allows; True when all of it went."""
        unsent = self.unsent
        inflight = self.inflight
        if unsent is None or inflight is None:
            self.unsent = None
            return True
        while unsent:
            delivery = inflight.get(unsent[0])
            if delivery is None or delivery is RELEASED:
                unsent.pop(0)  # a client may acknowledge what this connection did not send yet
                continue
            if len(inflight) - len(unsent) >= self.window:
                return False
            self._resend_one(channel, inflight, unsent.pop(0))
        self.unsent = None
        return True

    def due(self, now: int) -> None:
        """The session's deadline: retry on a live 3.x connection, else will delay or expiry."""
        channel = self.channel
        if channel is None:
            self.server.session_due(self)
            return
        retry = self.server.settings.retry_interval
        if self.v5 or not retry:
            return
        inflight = self.inflight
        marks = self.retry_marks
        self.retry_marks = None
        if inflight:
            if marks is not None and not channel.blocked:
                for packet_id in marks:
                    delivery = inflight.get(packet_id)
                    if delivery is None:
                        continue
                    self.server.metrics.messages_retransmitted += 1
                    if delivery is RELEASED:
                        channel.send(b"\x62\x02" + packet_id.to_bytes(2, "big"))
                    else:
                        wire = delivery.packet(packet_id, True)
                        if channel.mount is not None:
                            wire = channel.mount.leave(wire, self.v5)
                        channel.send(wire)
            self.retry_marks = list(inflight)
        self._expire_awaiting_rel(now)
        self.server.wheel.schedule(self, now + retry)

    def _expire_awaiting_rel(self, now: int) -> None:
        awaiting = self.awaiting_rel
        if awaiting is None:
            return
        oldest = now - self.server.settings.await_rel_timeout
        for packet_id in list(awaiting):
            if awaiting[packet_id] > oldest:
                break
            del awaiting[packet_id]

    # -- outgoing ------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery, packet_id: int) -> None:
        """Send a QoS 1 or 2 delivery, or queue it; keeps `packet_id` where it is free."""
        channel = self.channel
        if channel is None or self.mqueue is not None:
            self.enqueue(delivery)
            return
        inflight = self.inflight
        if inflight is None:
            inflight = {}
            self.inflight = inflight
        elif len(inflight) >= self.window:
            self.enqueue(delivery)
            return
        wire = delivery.wire
        size = len(wire)
        if channel.out_bytes + size > channel.limit and channel.over(size):
            channel.thirsty = True
            self.enqueue(delivery)
            return
        if channel.special or size > self.max_packet or delivery.v5 != self.v5:
            self._deliver_special(channel, delivery, packet_id)
            return
        if packet_id in inflight:
            packet_id = self._free_id(inflight)
        if packet_id != delivery.packet_id:
            at = delivery.id_at
            wire = wire[:at] + packet_id.to_bytes(2, "big") + wire[at + 2 :]
        inflight[packet_id] = delivery
        channel.send(wire)
        self.server.metrics.messages_sent += 1
        if self.server.tap_delivered:
            self.server.delivered(self, delivery)

    def _deliver_special(self, channel: Channel, delivery: Delivery, packet_id: int) -> None:
        """Another version, an expiry to count down, a topic alias, a packet size limit."""
        server = self.server
        if delivery.expires_at and delivery.expires_at <= server.now:
            self._drop(delivery, "expired")
            return
        delivery = delivery.fresh(self.v5, server.now)
        wire = delivery.wire
        if channel.mount is not None:
            wire = channel.mount.leave(wire, self.v5)
        if not wire or len(wire) > self.max_packet:
            self._drop(delivery, "too_large" if wire else "denied")
            return
        if channel.special:
            wire = channel.shorten(wire, self.max_packet)
        inflight = self.inflight
        assert inflight is not None
        if packet_id == 0 or packet_id in inflight:
            packet_id = self._free_id(inflight)
        inflight[packet_id] = delivery
        if channel.special:
            at = packet_id_at(wire)
            wire = wire[:at] + packet_id.to_bytes(2, "big") + wire[at + 2 :]
        else:
            wire = delivery.packet(packet_id, False)
        channel.send(wire)
        server.metrics.messages_sent += 1
        if server.tap_delivered:
            server.delivered(self, delivery)

    def deliver_qos0(self, delivery: Delivery) -> None:
        """Send a QoS 0 delivery, keep it for later, or drop it."""
        channel = self.channel
        if channel is None:
            if self.server.settings.mqueue_store_qos0 and not self.clean:
                self.enqueue(delivery)
            else:
                self._drop(delivery, "offline_qos0")
        elif self.mqueue is not None and self.mqueue.qos0:
            self.enqueue(delivery)
        else:
            self._send_qos0(channel, delivery)

    def _send_qos0(self, channel: Channel, delivery: Delivery) -> None:
        server = self.server
        if delivery.expires_at or delivery.v5 != self.v5:
            if delivery.expires_at and delivery.expires_at <= server.now:
                self._drop(delivery, "expired")
                return
            delivery = delivery.fresh(self.v5, server.now)
        wire = delivery.wire
        if channel.mount is not None:
            wire = channel.mount.leave(wire, self.v5)
        if not wire or len(wire) > self.max_packet:
            self._drop(delivery, "too_large" if wire else "denied")
            return
        if channel.out_bytes + len(wire) > channel.limit and channel.over(len(wire)):
            self._drop(delivery, "slow_consumer")
            return
        if channel.special:
            wire = channel.shorten(wire, self.max_packet)
        channel.send(wire)
        server.metrics.messages_sent += 1
        if server.tap_delivered:
            server.delivered(self, delivery)

    def _free_id(self, inflight: dict[int, Delivery]) -> int:
        """The next packet id that is not in flight; wraps 65535 -> 1."""
        packet_id = self.next_id
        while True:
            packet_id = packet_id + 1 if packet_id < 65535 else 1
            if packet_id not in inflight:
                break
        self.next_id = packet_id
        return packet_id

    def enqueue(self, delivery: Delivery) -> None:
        """Keep a delivery in the mqueue; what does not fit is dropped and counted."""
        mqueue = self.mqueue
        if mqueue is None:
            settings = self.server.settings
            mqueue = MQueue(
                settings.mqueue_max_length, settings.mqueue_max_bytes, settings.mqueue_priorities
            )
            self.mqueue = mqueue
        self.waiting = True
        dropped = mqueue.push(delivery)
        self.server.metrics.messages_queued += 1
        if dropped is not None:
            for lost in dropped:
                self._drop(lost, "queue_full")

    def drain(self) -> None:
        """Move what waits into the window, as far as window and output allow."""
        mqueue = self.mqueue
        channel = self.channel
        if channel is None:
            return
        if self.unsent is not None and not self._resend_more(channel):
            return
        if mqueue is not None:
            inflight = self.inflight
            if inflight is None:
                inflight = {}
                self.inflight = inflight
            now = self.server.now
            while True:
                delivery = mqueue.peek()
                if delivery is None:
                    self.mqueue = None
                    channel.special = channel.apart()
                    break
                if delivery.expires_at and delivery.expires_at <= now:
                    mqueue.pop()
                    self._drop(delivery, "expired")
                    continue
                if delivery.qos and len(inflight) >= self.window:
                    return
                size = len(delivery.wire)
                if channel.out_bytes + size > channel.limit and channel.over(size):
                    channel.thirsty = True
                    return
                mqueue.pop()
                self._send_queued(channel, inflight, delivery)
        if self.replays is not None:
            self.replay()
        self.waiting = self.mqueue is not None or self.replays is not None

    def _send_queued(
        self, channel: Channel, inflight: dict[int, Delivery], delivery: Delivery
    ) -> None:
        if delivery.qos == 0:
            self._send_qos0(channel, delivery)
            return
        if (
            channel.special
            or delivery.expires_at
            or delivery.v5 != self.v5
            or len(delivery.wire) > self.max_packet
        ):
            self._deliver_special(channel, delivery, delivery.packet_id)
            return
        packet_id = delivery.packet_id
        if packet_id in inflight:
            packet_id = self._free_id(inflight)
        inflight[packet_id] = delivery
        channel.send(delivery.packet(packet_id, False))
        self.server.metrics.messages_sent += 1
        if self.server.tap_delivered:
            self.server.delivered(self, delivery)

    def replay(self) -> None:
        """Go on with retained messages while the window and the output have room."""
        channel = self.channel
        replays = self.replays
        if channel is None or replays is None:
            return
        settings = self.server.settings
        while replays:
            if self.mqueue is not None:
                return  # goes on when the queue has drained
            inflight = self.inflight
            if inflight is not None and len(inflight) >= self.window:
                return  # goes on with the next acknowledgement
            if channel.out_bytes >= settings.low_watermark:
                if not channel.blocked:
                    channel.edge.flush(channel)
                if channel.out_bytes >= settings.low_watermark:
                    channel.thirsty = True
                    return
            delivery = replays[0].next(self)
            if delivery is None:
                if not replays[0].done():
                    self.server.resume_later(self)
                    return
                replays.pop(0)
                continue
            if delivery.qos:
                self.deliver(delivery, delivery.packet_id)
            else:
                self.deliver_qos0(delivery)
        self.replays = None

    # -- acknowledgements ------------------------------------------------------------------------

    def acknowledge(self, packet_id: int) -> bool:
        """PUBACK or a failing PUBREC/PUBCOMP: the message is done. False for an unknown id."""
        inflight = self.inflight
        if inflight is None:
            return False
        delivery = inflight.pop(packet_id, None)
        if delivery is None:
            return False
        self.server.metrics.messages_acked += 1
        if self.waiting:
            self.drain()
        return True

    # -- end -------------------------------------------------------------------------------------

    def _drop(self, delivery: Delivery, reason: str) -> None:
        metrics = self.server.metrics
        if reason == "queue_full":
            metrics.dropped_queue_full += 1
        elif reason == "expired":
            metrics.dropped_expired += 1
        elif reason == "too_large":
            metrics.dropped_too_large += 1
        elif reason == "slow_consumer":
            metrics.dropped_slow_consumer += 1
        elif reason == "offline_qos0":
            metrics.dropped_offline_qos0 += 1
        elif reason == "denied":
            metrics.dropped_denied += 1
        else:
            metrics.dropped_session_ended += 1
        self.server.dropped(self, delivery, reason)

    def shared(self) -> list[Delivery]:
        """What came through shared groups and may go to another member, oldest first.

        Not a QoS 2 message that was sent: its first receiver has to finish it (MQTT-4.8.2-5).
        """
        result: list[Delivery] = []
        if self.inflight is not None:
            for delivery in self.inflight.values():
                if delivery.group is not None and delivery.qos == 1:
                    result.append(delivery)
        if self.mqueue is not None:
            for delivery in self.mqueue.items():
                if delivery.group is not None and delivery.qos:
                    result.append(delivery)
        return result

    def pending(self) -> list[Delivery]:
        """What was in flight (not yet released) and queued, oldest first."""
        result: list[Delivery] = []
        if self.inflight is not None:
            for delivery in self.inflight.values():
                if delivery is not RELEASED:
                    result.append(delivery)
        if self.mqueue is not None:
            result.extend(self.mqueue.items())
        return result

    def expires(self) -> bool:
        """Whether the session ends some time after its connection."""
        return self.expiry_interval != NEVER

    def info(self) -> dict[str, object]:
        """What the control API shows of a session."""
        return {
            "client_id": self.client_id,
            "username": self.username,
            "connected": self.channel is not None,
            "protocol": "5.0" if self.v5 else "3.x",
            "subscriptions": len(self.subscriptions) if self.subscriptions is not None else 0,
            "inflight": len(self.inflight) if self.inflight is not None else 0,
            "awaiting_rel": len(self.awaiting_rel) if self.awaiting_rel is not None else 0,
            "mqueue": self.mqueue.length if self.mqueue is not None else 0,
            "mqueue_bytes": self.mqueue.size if self.mqueue is not None else 0,
            "expiry_interval": self.expiry_interval,
        }
