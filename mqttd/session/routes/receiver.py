"""What a route leads to: sessions of clients, of this process, of other nodes.

A receiver is handed a message as bytes where nothing else is known of it (`take`), or as a
`Delivery`, bytes with what must be remembered beside them. Everything a message's way decides by is
an attribute here, so that handing it over costs no call where it is not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqttd.session.ground.connection import Connection
from mqttd.session.ground.message import Delivery
from mqttd.session.ground.wheel import Timer

if TYPE_CHECKING:
    from mypy_extensions import i32

__all__ = ["NO_LIMIT", "Awaiting", "Receiver"]

#: No Maximum Packet Size given by the client.
NO_LIMIT: Final = 1 << 28


class Awaiting:
    """Something that wants to know when a receiver is online again."""

    __slots__ = ()

    def is_back(self, receiver: Receiver) -> None:
        """It is; this is told once."""
        raise NotImplementedError


class Receiver(Timer):
    """Something that takes deliveries."""

    __slots__ = (
        "awaited_by",
        "bare",
        "channel",
        "client_id",
        "dropped",
        "max_packet",
        "owner",
        "v5",
    )

    def __init__(self, client_id: str) -> None:
        self.due_at = 0
        self.slotted = 0
        # Small things in a row share eight bytes (mypyc): there are as many as sessions.
        #: Its bytes are those of MQTT 5.0.
        self.v5: bool = False
        #: It takes bytes alone; else it wants to know whose message they are.
        self.bare: bool = True
        #: The largest packet it takes, in bytes.
        self.max_packet: i32 = NO_LIMIT
        self.client_id = client_id
        #: The connection that its bytes go to, None while there is none.
        self.channel: Connection | None = None
        #: The journal's number for this session; 0: nobody keeps it, nothing is told.
        self.owner: int = 0
        #: Deliveries to it that were dropped, for any reason.
        self.dropped: int = 0
        #: Who is told when it is online again.
        self.awaited_by: dict[Awaiting, None] | None = None

    def online(self) -> bool:
        """Whether a delivery goes out at once, as far as limits allow."""
        return self.channel is not None

    def says_when_back(self) -> bool:
        """Whether `await_back` may be called; else it is asked whether it is online."""
        return True

    def await_back(self, awaiting: Awaiting) -> None:
        """Have `awaiting` told when it is online again, which it is not now."""
        if self.awaited_by is None:
            self.awaited_by = {}
        self.awaited_by[awaiting] = None

    def await_no_more(self, awaiting: Awaiting) -> None:
        """It does not want to know any more."""
        if self.awaited_by is not None:
            self.awaited_by.pop(awaiting, None)

    def come_back(self) -> None:
        """It is online: those that have waited for that are told."""
        awaited_by = self.awaited_by
        if awaited_by is not None:
            self.awaited_by = None
            for awaiting in awaited_by:
                awaiting.is_back(self)

    def take(self, wire: bytes, packet_id: int, id_at: int) -> None:
        """A QoS 1 or 2 PUBLISH of this receiver's version, of which nothing else is to be kept.

        `packet_id` stands at `id_at` and is kept where it is free here.
        """
        raise NotImplementedError

    def take_named(self, named: Delivery, packet_id: int) -> None:
        """The same as a delivery with a run: told of when it is sent and acknowledged."""
        self.deliver(named, packet_id)

    def take_run(self, run: bytes, count: int, kind: int) -> bool:
        """A run of so many PUBLISHes of QoS 1; False: it takes them one by one."""
        return False

    def deliver(self, delivery: Delivery, packet_id: int) -> None:
        """A QoS 1 or 2 delivery; keeps `packet_id` where it is free."""
        raise NotImplementedError

    def deliver_qos0(self, delivery: Delivery) -> None:
        """A QoS 0 delivery."""
        raise NotImplementedError
