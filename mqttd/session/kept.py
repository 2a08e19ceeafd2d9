"""What a session holds, as a whole: found again, shown, and taken away from it.

    journal, another worker --> restored, restore     as `mqttd.session.state` has changed it
    operators, the next member of a group --> shared, pending, queued
    rights that were lost --> withdraw

MQTT 5.0, 4.1.
"""

from __future__ import annotations

from collections.abc import Callable

from mqttd.session.account import AWAITING
from mqttd.session.charged import flight_weight
from mqttd.session.message import RELEASED, Delivery, Message, entry_delivery
from mqttd.session.state import State

__all__ = ["Kept"]


class Kept(State):
    """A session whose state can be put in and looked at."""

    __slots__ = ()

    # -- recovery ------------------------------------------------------------------------------

    def restored(self, owner: int, expiry_seconds: int, away_since: int, v5: bool) -> None:
        """The journal has kept this session; its client is away, and spoke this version."""
        self.owner = owner
        self.expiry_interval = expiry_seconds
        self.clean = False
        self.away_since = away_since
        self.v5 = v5

    def restore(self, entry: object, packet_id: int, number: int) -> list[int]:
        """The journal has kept an entry, in flight (with a packet id) or queued, in their order.

        Returns the numbers of what does not fit any more, and is dropped.
        """
        if packet_id:
            if self.inflight is None:
                self.inflight = {}
            self.inflight[packet_id] = entry
            self.account.inflight += flight_weight(entry)
            self.have_numbers().inflight[packet_id] = number
            return []
        mqueue = self.mqueue
        if mqueue is None:
            mqueue = self.new_queue()
            self.mqueue = mqueue
        self.waiting = True
        before = mqueue.size
        mqueue.push(entry, number)
        self._weigh_queue(mqueue.size, before)
        return mqueue.take_dropped()

    def restore_received(self, packet_id: int, number: int) -> None:
        """The journal has kept an incoming QoS 2 id that awaits PUBREL."""
        if self.awaiting_rel is None:
            self.awaiting_rel = {}
        if packet_id not in self.awaiting_rel:
            self.account.awaiting_rel += AWAITING
            self.charge(AWAITING)
        self.awaiting_rel[packet_id] = self.server.now
        self.number_received(packet_id, number)

    def restore_will(self, will: Message, delay_seconds: int) -> None:
        """The journal has kept this will."""
        self._weigh_will(will, self.will)
        self.will = will
        self.will_delay = delay_seconds

    # -- taken away ---------------------------------------------------------------------------

    def withdraw(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out what is queued, or waits to be sent again, and is unwanted; returns it."""
        gone: list[Delivery] = []
        inflight = self.inflight
        if inflight and self.channel is None:
            for packet_id, entry in list(inflight.items()):
                if entry is not RELEASED:
                    delivery = entry_delivery(entry, self.v5)
                    if unwanted(delivery):
                        self.pop_inflight(packet_id)
                        if delivery.qos == 1 or delivery.group is None:
                            gone.append(delivery)
        if self.mqueue is not None:
            kept = self.new_queue()
            numbers = self.mqueue.numbers()
            at = 0
            for entry in self.mqueue.items():
                delivery = entry_delivery(entry, self.v5)
                number = numbers[at] if numbers else 0
                at += 1
                if unwanted(delivery):
                    gone.append(delivery)
                    if number:
                        self.server.journal.forget(number)
                else:
                    kept.push(entry, number)
            self._weigh_queue(kept.size, self.mqueue.size)
            self.mqueue = kept
        return gone

    # -- shown ---------------------------------------------------------------------------------

    def shared(self) -> list[Delivery]:
        """What came through shared groups and may go to another member, oldest first.

        Not a QoS 2 message that was sent: its first receiver has to finish it (MQTT-4.8.2-5).
        """
        result: list[Delivery] = []
        if self.inflight is not None:
            for entry in self.inflight.values():
                if isinstance(entry, Delivery) and entry.group is not None and entry.qos == 1:
                    result.append(entry)
        if self.mqueue is not None:
            for entry in self.mqueue.items():
                if isinstance(entry, Delivery) and entry.group is not None and entry.qos:
                    result.append(entry)
        return result

    def pending(self) -> list[Delivery]:
        """What was in flight (not yet released) and queued, oldest first."""
        result: list[Delivery] = []
        if self.inflight is not None:
            for entry in self.inflight.values():
                if entry is not RELEASED:
                    result.append(entry_delivery(entry, self.v5))
        result.extend(self.queued())
        return result

    def queued(self) -> list[Delivery]:
        """What waits in the queue, in the order in which it would leave."""
        if self.mqueue is None:
            return []
        return [entry_delivery(entry, self.v5) for entry in self.mqueue.items()]
