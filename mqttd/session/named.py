"""A delivery that knows which message it is of, without a `Message`.

    topic with the gear RECORDED --> Named: the bytes; id, topic and size --> windows, queues
                                                        |
         who keeps deliveries <-- sent, acknowledged ---'

One is made for each message of QoS 1 or 2 whose deliveries somebody keeps, and shared by all who
get the message in this shape. MQTT 5.0, 4.3.
"""

from __future__ import annotations

from mqttd.session.message import Delivery, Message

__all__ = ["Named"]


class Named(Delivery):
    """A PUBLISH as it came and goes on: neither expiring nor for a shared group.

    Its id is ``came << 64 | number`` (`mqttd.session.guid`), `size` that of the payload in bytes.
    """

    __slots__ = ("came", "number", "size", "topic_name")

    def __init__(
        self,
        wire: bytes,
        v5: bool,
        packet_id: int,
        id_at: int,
        source: str,
        topic_name: str,
        came: int,
        number: int,
        size: int,
    ) -> None:
        super().__init__(wire, wire[0] >> 1 & 3, v5, packet_id, id_at, source)
        self.topic_name = topic_name
        self.came = came
        self.number = number
        self.size = size

    def identity(self) -> int:
        """See `Delivery.identity`: put together for those who look."""
        return self.came << 64 | self.number

    def bare(self) -> bool:
        """See `Delivery.bare`."""
        return False

    def copy(self) -> Delivery:
        """See `Delivery.copy`."""
        made = super().copy()
        made.id = self.identity()
        return made

    def get_message(self, message_id: int) -> Message:
        """See `Delivery.get_message`."""
        self.id = self.identity()
        return super().get_message(self.id)
