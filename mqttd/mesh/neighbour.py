"""One other process, as `mqttd.mesh.mesh` knows it."""

from __future__ import annotations

from mqttd.broker.broker import Broker
from mqttd.mesh.arriving import Arriving
from mqttd.mesh.link import Link
from mqttd.mesh.peer import NEVER, Ferry, Peer

__all__ = ["Neighbour"]


class Neighbour:
    """One other process."""

    def __init__(
        self,
        broker: Broker,
        number: int,
        place: str,
        ferry: Ferry | None = None,
        once: Ferry | None = None,
    ) -> None:
        self.broker = broker
        self.number = number
        self.ferry = Ferry(broker) if ferry is None else ferry
        self.peer = Peer(broker, self.ferry, self.ferry if once is None else once, place)
        self.link: Link | None = None
        self.arriving: Arriving | None = None
        #: It has told all its filters, and, where it was asked for, all retained messages.
        self.met: bool = False
        #: It takes moments in milliseconds since 1970.
        self.dated: bool = True
        #: Retained topics that anybody has told, while it tells all of them.
        self.topics: set[str] | None = None
        #: Counted frames that it must have taken before changes that went by then are forgotten.
        self.due: int = NEVER

    def since(self, expires_at: int) -> int:
        """What is added to the broker's milliseconds to get those that are said to it.

        0 where nothing expires: the clock is not asked for that.
        """
        return self.broker.since() if expires_at and self.dated else 0
