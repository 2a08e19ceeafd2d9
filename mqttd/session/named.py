"""A delivery that knows which message it is of, without a `Message`.

    topic with the gear RECORDED --> Named: the bytes, and a `Run` of one --> windows, queues
                                                        |
         who keeps deliveries <-- sent, acknowledged ---'

One is made for each message of QoS 1 or 2 whose deliveries somebody keeps, and shared by all who
get the message in this shape. MQTT 5.0, 4.3.
"""

from __future__ import annotations

from typing import Final

from mqttd.session.message import Delivery, Message
from mqttd.session.runs import Run

__all__ = ["Named"]

#: Its run, in bytes.
_RUN: Final = 80


class Named(Delivery):
    """A PUBLISH as it came and goes on: neither expiring nor for a shared group."""

    __slots__ = ("run",)

    def __init__(
        self, wire: bytes, v5: bool, packet_id: int, id_at: int, source: str, run: Run
    ) -> None:
        super().__init__(wire, wire[0] >> 1 & 3, v5, packet_id, id_at, source)
        self.run = run

    def identity(self) -> int:
        """See `Delivery.identity`: put together for those who look."""
        return self.run.came << 64 | self.run.number

    def bare(self) -> bool:
        """See `Delivery.bare`."""
        return False

    def weigh(self) -> int:
        """See `Delivery.weigh`."""
        weight = self.weight
        if not weight:
            weight = self.weight = super().weigh() + _RUN
        return weight

    def copy(self) -> Delivery:
        """See `Delivery.copy`."""
        made = super().copy()
        made.id = self.identity()
        return made

    def get_message(self, message_id: int) -> Message:
        """See `Delivery.get_message`."""
        self.id = self.identity()
        return super().get_message(self.id)
