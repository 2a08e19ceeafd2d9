"""How a session's messages go out on its connection: the window, their packet ids, their shape.

    take (bytes) / deliver (a delivery) --> window has room --> packet id --> connection
                                        `--> it has none, or nobody is there --> mqueue

A delivery keeps the publisher's packet id where that is free here: then its bytes are shared by
every receiver. What is of another version, expires, or is too large for this client is sent apart.

Promise: taking bytes costs one dict insert and one list append. MQTT 5.0, 4.3, 4.6, 4.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttd.codec.frame import packet_id_at, with_id
from mqttd.session.charged import flight_weight
from mqttd.session.ground.account import INFLIGHT
from mqttd.session.ground.connection import Connection
from mqttd.session.ground.message import Delivery, entry_delivery
from mqttd.session.kept import Kept
from mqttd.session.replays import Replays
from mqttd.session.state import Keeper

if TYPE_CHECKING:
    from mypy_extensions import i32

__all__ = ["Sending"]


class Sending(Kept):
    """A session that sends what it is given, or queues it."""

    __slots__ = ("next_id", "replaying", "replays", "window")

    def __init__(self, server: Keeper, client_id: str, username: str | None) -> None:
        super().__init__(server, client_id, username)
        self.next_id: i32 = 0
        self.window: i32 = server.settings.max_inflight
        #: The retained messages that it is still to get, by topic filter; one is being sent.
        self.replays: Replays | None = None
        self.replaying: bool = False

    def go_ahead(self, delivery: Delivery) -> None:
        """What `replays` have of the topic goes before this delivery."""
        raise NotImplementedError

    def take(self, wire: bytes, packet_id: int, id_at: int) -> None:
        """Send or queue a QoS 1 or 2 PUBLISH of this version that is nothing but its bytes."""
        if self.replays is not None:
            self.deliver(entry_delivery(wire, self.v5), packet_id)
            return
        channel = self.channel
        if channel is None or self.mqueue is not None:
            self.enqueue(wire)
            return
        inflight = self.inflight
        if inflight is None:
            inflight = {}
            self.inflight = inflight
        elif len(inflight) >= self.window:
            self.enqueue(wire)
            return
        size = len(wire)
        if channel.out_bytes + size > channel.limit and channel.over(size):
            channel.thirsty = True
            self.enqueue(wire)
            return
        if self.account.rations() and self.overdrawn(wire, size):
            return
        server = self.server
        if channel.special or size > self.max_packet:
            self._send_apart(channel, entry_delivery(wire, self.v5), packet_id)
            return
        if self.owner:
            self._send_kept(channel, inflight, wire, packet_id, id_at)
            return
        self.fly(INFLIGHT + size)
        if inflight.setdefault(packet_id, wire) is wire:
            channel.send(wire)
        else:
            channel.send(self._renumber(inflight, wire, id_at, None))
        server.metrics.messages_sent += 1
        if server.tap_delivered:
            server.delivered(self, entry_delivery(wire, self.v5))

    def take_named(self, named: Delivery, packet_id: int) -> None:
        """The same of one that is told of when it is sent and acknowledged: it has a run."""
        channel = self.channel
        wire = named.wire
        size = len(wire)
        inflight = self.inflight
        if (
            channel is None
            or self.mqueue is not None
            or self.owner
            or channel.special
            or (inflight is not None and len(inflight) >= self.window)
            or size > self.max_packet
            or channel.out_bytes + size > channel.limit
            or self.account.rations()
        ):
            self.deliver(named, packet_id)
            return
        if inflight is None:
            inflight = {}
            self.inflight = inflight
        self.fly(flight_weight(named))
        if inflight.setdefault(packet_id, named) is named:
            channel.send(wire)
        else:
            channel.send(self._renumber(inflight, wire, named.id_at, named))
        server = self.server
        server.metrics.messages_sent += 1
        if server.tap_delivered:
            server.delivered(self, named)

    def _renumber(
        self, inflight: dict[int, object], wire: bytes, id_at: int, entry: object | None
    ) -> bytes:
        """The same packet under an id that is free: the last receiver's of it, if it is here.

        `entry` is in flight under it; None: the packet itself.
        """
        server = self.server
        if server.renumbered is wire:
            known = server.renumbered_as
            packet_id = known[id_at] << 8 | known[id_at + 1]
            kept = known if entry is None else entry
            if inflight.setdefault(packet_id, kept) is kept:
                return known
        packet_id = self._free_id(inflight)
        made = with_id(wire, id_at, packet_id)
        inflight[packet_id] = made if entry is None else entry
        server.renumbered = wire
        server.renumbered_as = made
        return made

    def _send_kept(
        self,
        channel: Connection,
        inflight: dict[int, object],
        wire: bytes,
        packet_id: int,
        id_at: int,
    ) -> None:
        """The same where a journal keeps it."""
        packet = wire
        if packet_id in inflight:
            packet_id = self._free_id(inflight)
            packet = with_id(wire, id_at, packet_id)
        self.add_inflight(packet_id, wire)
        self.send_kept(channel, packet, wire[0] >> 1 & 3)
        server = self.server
        server.metrics.messages_sent += 1
        if server.tap_delivered:
            server.delivered(self, entry_delivery(wire, self.v5))

    def deliver(self, delivery: Delivery, packet_id: int) -> None:
        """Send a QoS 1 or 2 delivery, or queue it; keeps `packet_id` where it is free."""
        if self.replays is not None and not self.replaying:
            self.go_ahead(delivery)
        channel = self.channel
        if channel is None or self.mqueue is not None:
            self.enqueue(delivery)
            return
        inflight = self.inflight
        if inflight is not None and len(inflight) >= self.window:
            self.enqueue(delivery)
            return
        wire = delivery.wire
        size = len(wire)
        if channel.out_bytes + size > channel.limit and channel.over(size):
            channel.thirsty = True
            self.enqueue(delivery)
            return
        if self.account.rations() and self.overdrawn(delivery, size):
            return
        if channel.special or size > self.max_packet or delivery.v5 != self.v5:
            self._send_apart(channel, delivery, packet_id)
            return
        self._send_as(channel, delivery, packet_id, delivery)

    def _send_as(
        self, channel: Connection, delivery: Delivery, packet_id: int, entry: object
    ) -> None:
        """Send the bytes of a delivery under this packet id, or a free one; `entry` is kept."""
        inflight = self.inflight
        if inflight is not None and packet_id in inflight:
            packet_id = self._free_id(inflight)
        self.add_inflight(packet_id, entry)
        wire = delivery.packet(packet_id, False)
        if self.owner:
            self.send_kept(channel, wire, delivery.qos)
        else:
            channel.send(wire)
        self._sent(delivery)

    def _sent(self, delivery: Delivery) -> None:
        """A delivery is on its way: count it, tell those who listen or follow it."""
        server = self.server
        server.metrics.messages_sent += 1
        if server.tap_delivered or (server.tap_followed and delivery.message is not None):
            server.delivered(self, delivery)

    def send_kept(self, channel: Connection, data: bytes, qos: int) -> None:
        """Send bytes; with `qos` 2 when what they say is kept, and where `Journal.bind` says so.

        A restart would deliver a QoS 2 message twice if it had forgotten under which id it went.
        What is sent at QoS 0 waits for nothing itself, but behind others that wait: retained
        messages behind SUBACK. Then what is new goes behind it (MQTT-4.6.0-5).
        """
        journal = self.server.journal
        if self.owner and (
            qos == 2
            or (journal.holding and (journal.holds(channel) or (journal.once and qos == 1)))
        ):
            journal.hold(channel, data)
            if not qos:
                channel.special = True
        else:
            channel.send(data)

    def see_apart(self, channel: Connection) -> None:
        """See whether what is new still goes one by one on this connection."""
        journal = self.server.journal
        channel.special = (
            channel.apart()
            or self.replays is not None
            or (self.mqueue is not None and self.mqueue.qos0 > 0)
            or (self.owner != 0 and journal.holding and journal.holds(channel))
        )

    def _send_apart(self, channel: Connection, delivery: Delivery, packet_id: int) -> None:
        """Another version, an expiry to count down, a topic alias, a packet size limit."""
        server = self.server
        if delivery.expires_at and delivery.expires_at <= server.now:
            self.drop(delivery, "expired")
            return
        if delivery.v5 != self.v5 or delivery.expires_at:
            delivery = self.freshen(delivery)
        wire = delivery.wire
        if channel.mount is not None:
            wire = channel.mount.leave(wire, self.v5)
        if not wire or len(wire) > self.max_packet:
            self.drop(delivery, "too_large" if wire else "denied")
            return
        if not channel.special:
            self._send_as(channel, delivery, packet_id, delivery)
            return
        self.see_apart(channel)
        wire = channel.shorten(wire, self.max_packet)
        inflight = self.inflight
        if packet_id == 0 or (inflight is not None and packet_id in inflight):
            packet_id = self._free_id(inflight if inflight is not None else {})
        self.put_inflight(packet_id, delivery)
        at = packet_id_at(wire)
        wire = with_id(wire, at, packet_id)
        self.send_kept(channel, wire, delivery.qos)
        self._sent(delivery)

    def deliver_qos0(self, delivery: Delivery) -> None:
        """Send a QoS 0 delivery, keep it for later, or drop it."""
        if self.replays is not None and not self.replaying:
            self.go_ahead(delivery)
        channel = self.channel
        if channel is None:
            if self.ended or self.server.settings.mqueue_store_qos0 and not self.clean:
                self.enqueue(delivery)
            else:
                self.drop(delivery, "offline_qos0")
        elif self.mqueue is not None and self.mqueue.qos0:
            self.enqueue(delivery)
        else:
            self._send_qos0(channel, delivery)

    def _send_qos0(self, channel: Connection, delivery: Delivery) -> None:
        server = self.server
        if delivery.expires_at or delivery.v5 != self.v5:
            if delivery.expires_at and delivery.expires_at <= server.now:
                self.drop(delivery, "expired")
                return
            delivery = self.freshen(delivery)
        wire = delivery.wire
        if channel.mount is not None:
            wire = channel.mount.leave(wire, self.v5)
        if not wire or len(wire) > self.max_packet:
            self.drop(delivery, "too_large" if wire else "denied")
            return
        if channel.out_bytes + len(wire) > channel.limit and channel.over(len(wire)):
            self.drop(delivery, "slow_consumer")
            return
        if channel.special:
            self.see_apart(channel)
            wire = channel.shorten(wire, self.max_packet)
        self.send_kept(channel, wire, 0)
        self._sent(delivery)

    def freshen(self, delivery: Delivery) -> Delivery:
        """The delivery as it goes out now: in this version, with what is left of its expiry."""
        server = self.server
        if delivery.v5 != self.v5 and not delivery.id:
            delivery.id = server.next_message_id()
        return delivery.fresh(self.v5, server.now)

    def _free_id(self, inflight: dict[int, object]) -> int:
        """The next packet id that is not in flight; wraps 65535 -> 1."""
        packet_id = self.next_id
        while True:
            packet_id = packet_id + 1 if packet_id < 65535 else 1
            if packet_id not in inflight:
                break
        self.next_id = packet_id
        return packet_id

    def send_queued(self, channel: Connection, entry: object) -> None:
        """Send what has waited in the queue."""
        delivery = entry_delivery(entry, self.v5)
        if delivery.qos == 0:
            self._send_qos0(channel, delivery)
        elif (
            channel.special
            or delivery.expires_at
            or delivery.v5 != self.v5
            or len(delivery.wire) > self.max_packet
        ):
            self._send_apart(channel, delivery, delivery.packet_id)
        else:
            self._send_as(channel, delivery, delivery.packet_id, entry)
