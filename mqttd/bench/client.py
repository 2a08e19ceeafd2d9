"""One benchmark client: an asyncio protocol on the project's codec.

    connect() ... on_open()          on_publish(packet)          closed

Promise: a PUBLISH leaves in the turn it was asked for, several together in one write; QoS 1 and 2
never have more than `inflight` messages without their last acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mqttd.codec.client import ClientCore
from mqttd.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
)
from mqttd.codec.reasons import MqttError, name_of

__all__ = ["Client", "Refused"]


class Refused(Exception):
    """The broker refused a connection or a subscription, or ended the connection."""


class Client(asyncio.Protocol):
    """A client; `opened` is done after CONNACK, `ended` when the connection is gone."""

    def __init__(
        self,
        client_id: str,
        version: int = 4,
        keep_alive: int = 60,
        username: str | None = None,
        password: bytes | None = None,
        on_message: Callable[[Publish], None] | None = None,
        on_room: Callable[[Client], None] | None = None,
        inflight: int = 20,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.client_id = client_id
        self.version = version
        self.keep_alive = keep_alive
        self.username = username
        self.password = password
        self.on_message = on_message
        self.on_room = on_room
        self.room = inflight
        self.opened: asyncio.Future[None] = loop.create_future()
        self.subscribed: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        #: The output is full: do not publish QoS 0.
        self.full = False
        self.core = ClientCore(version)
        self.transport: asyncio.Transport | None = None

    # -- asked for -----------------------------------------------------------------------------

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe; `subscribed` is done after SUBACK."""
        self._write(Subscribe(1, [Subscription(topic_filter, qos)]))

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        """Send a PUBLISH; with QoS 1 or 2 only while there is `room`."""
        packet_id = 0
        if qos:
            self.room -= 1
            packet_id = self.core.packet_id()
        packet = Publish(topic, payload, qos, retain, packet_id=packet_id)
        if qos:
            self.core.in_flight[packet_id] = packet
        self._write(packet)

    def ping(self) -> None:
        """Keep the connection alive."""
        self._write(Pingreq())

    def close(self) -> None:
        """DISCONNECT, then close."""
        if self.transport is not None and not self.transport.is_closing():
            self._write(Disconnect())
            self.transport.close()

    # -- asyncio -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there: CONNECT."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._write(
            Connect(
                self.client_id,
                self.version,
                keep_alive=self.keep_alive,
                username=self.username,
                password=self.password,
            )  # fmt: skip
        )

    def data_received(self, data: bytes) -> None:
        """Handle every packet of a chunk, answer with one write."""
        try:
            packets = self.core.feed(data)
        except MqttError as error:
            self._fail(f"the broker sent what is no MQTT: {error.detail}")
            return
        room = self.room
        for packet in packets:
            self._packet(packet)
        if self.core.unsent and self.transport is not None:
            self.transport.write(self.core.take_out())
        if self.room > room and self.on_room is not None:
            self.on_room(self)

    def pause_writing(self) -> None:
        """The kernel takes no more."""
        self.full = True

    def resume_writing(self) -> None:
        """The kernel takes more again."""
        self.full = False
        if self.on_room is not None:
            self.on_room(self)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._fail(str(error or "the broker closed the connection"))
        if not self.ended.done():
            self.ended.set_result(None)

    # -- inside --------------------------------------------------------------------------------

    def _packet(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            if self.on_message is not None:
                self.on_message(packet)
        elif isinstance(packet, Puback | Pubrec | Pubcomp):
            self.core.in_flight.pop(packet.packet_id, None)
            self.room += 1
        elif isinstance(packet, Connack):
            if packet.reason_code:
                self._fail(f"CONNECT was refused: {name_of(packet.reason_code)}")
            elif not self.opened.done():
                self.opened.set_result(None)
        elif isinstance(packet, Suback):
            if packet.reason_codes[0] >= 0x80:
                self._fail(f"SUBSCRIBE was refused: {name_of(packet.reason_codes[0])}")
            elif not self.subscribed.done():
                self.subscribed.set_result(None)
        elif isinstance(packet, Disconnect):
            self._fail(f"the broker said DISCONNECT: {name_of(packet.reason_code)}")

    def _write(self, packet: Packet) -> None:
        if self.transport is not None:
            self.core.send(packet)
            self.transport.write(self.core.take_out())

    def _fail(self, text: str) -> None:
        for waiting in (self.opened, self.subscribed):
            if not waiting.done():
                waiting.set_exception(Refused(text))
                waiting.exception()  # somebody may not wait for it
