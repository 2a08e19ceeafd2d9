"""A client of the broker in memory: whole exchanges, packets or bytes, as a test likes it.

Promise: each call returns when the broker has come to rest. It speaks real MQTT and acknowledges
what it gets, unless it is told not to.
"""

from __future__ import annotations

from typing import Any, Protocol

from mqttd.broker.broker import Broker
from mqttd.codec import reasons
from mqttd.codec.client import ClientCore
from mqttd.codec.packets import (
    Connack,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from mqttd.codec.properties import Properties
from mqttd.session.session import Session
from mqttd.testing.wire import Peer

__all__ = ["MemoryClient", "Node", "NotConnected"]


class Node(Protocol):
    """What a client needs of the broker in memory it is at."""

    broker: Broker
    #: Clients with something to read, in the order in which it came.
    unread: dict[MemoryClient, None]

    def settle(self) -> None:
        """Everything happens that is due now."""


class NotConnected(Exception):
    """The connection is over, or was refused; the text says why."""


class MemoryClient(Peer):
    """One connection as its peer sees it; made by `MemoryBroker.connect`.

    Attributes: `connack` (None while authentication is under way), `disconnect_packet` (the
    broker's DISCONNECT, 5.0), `received` (every packet but PUBLISH, oldest first), `acknowledge`
    (False: PUBLISH packets are not answered), `reading` (False: nothing is taken off the wire).
    """

    def __init__(self, node: Node, version: int, room: int | None, peer: tuple[str, int]) -> None:
        super().__init__(node.broker, version, room, peer)
        self.node = node
        self.connack: Connack | None = None
        self.disconnect_packet: Disconnect | None = None
        self.received: list[Packet] = []
        self.wire.on_written = self._written
        self._core = ClientCore(version)
        self._messages: list[Publish] = []
        self._answers: dict[int, Packet] = {}
        self._reading = True

    def __repr__(self) -> str:
        session = self.channel.session
        return f"<MemoryClient {session.client_id if session is not None else 'closed'}>"

    @property
    def acknowledge(self) -> bool:
        """Whether PUBLISH packets are answered."""
        return self._core.acknowledge

    @acknowledge.setter
    def acknowledge(self, value: bool) -> None:
        self._core.acknowledge = value

    @property
    def session(self) -> Session:
        """The broker's session behind this connection; raises NotConnected."""
        session = self.channel.session
        if session is None:
            raise NotConnected(self._why())
        return session

    @property
    def reading(self) -> bool:
        """Whether it takes what the broker writes; set it to False to be a slow client."""
        return self._reading

    @reading.setter
    def reading(self, value: bool) -> None:
        self._reading = value
        if value:
            self._written()
            self.node.settle()

    def _written(self) -> None:
        self.node.unread[self] = None

    # -- whole exchanges -----------------------------------------------------------------------

    def subscribe(self, *filters: str | Subscription, qos: int = 0) -> list[int]:
        """Subscribe to filters, all with `qos` (or as a `Subscription` says).

        Returns the reason codes of SUBACK. Retained messages are among `messages` then.
        """
        asked = [Subscription(f, qos) if isinstance(f, str) else f for f in filters]
        answer = self._ask(lambda packet_id: Subscribe(packet_id, asked))
        assert isinstance(answer, Suback), f"expected SUBACK, got {answer}"
        return list(answer.reason_codes)

    def unsubscribe(self, *filters: str) -> list[int]:
        """Unsubscribe; returns the reason codes of UNSUBACK (none in 3.x)."""
        answer = self._ask(lambda packet_id: Unsubscribe(packet_id, list(filters)))
        assert isinstance(answer, Unsuback), f"expected UNSUBACK, got {answer}"
        return list(answer.reason_codes)

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Publish, and see the exchange of QoS 1 or 2 to its end.

        Returns the reason code of PUBACK or PUBREC, 0 for QoS 0; raises NotConnected when the
        broker ends the connection instead.
        """
        if qos == 0:
            self.send(Publish(topic, payload, 0, retain, properties=properties))
            return 0
        answer = self._ask(
            lambda packet_id: Publish(topic, payload, qos, retain, False, packet_id, properties)
        )
        assert isinstance(answer, Puback | Pubrec), f"expected PUBACK or PUBREC, got {answer}"
        if isinstance(answer, Pubrec) and answer.reason_code < 0x80:
            done = self._ask(lambda packet_id: Pubrel(packet_id), answer.packet_id)
            assert isinstance(done, Pubcomp), f"expected PUBCOMP, got {done}"
        return answer.reason_code

    def messages(self) -> list[Publish]:
        """The messages received since the last time, as PUBLISH packets."""
        messages = self._messages
        self._messages = []
        return messages

    def disconnect(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        """Send DISCONNECT; the broker closes."""
        self.send(Disconnect(reason_code, properties))

    def drop(self) -> None:
        """The connection breaks without a word: the will is published."""
        super().drop()
        self.node.settle()

    # -- packets and bytes ---------------------------------------------------------------------

    def send(self, *packets: Packet) -> None:
        """These packets arrive at the broker in one chunk; raises NotConnected."""
        if self.closed:
            raise NotConnected(self._why())
        super().send(*packets)

    def feed(self, data: bytes) -> None:
        """Bytes arrive at the broker: one turn, and all that follows from it."""
        super().feed(data)
        self.node.settle()

    def take(self) -> None:
        """Read what the broker wrote and answer it (the broker in memory calls this)."""
        if not self._reading:
            return
        for packet in self._core.feed(self.wire.read()):
            if isinstance(packet, Publish):
                self._messages.append(packet)
                continue
            self.received.append(packet)
            if isinstance(packet, Connack):
                self.connack = packet
            elif isinstance(packet, Disconnect):
                self.disconnect_packet = packet
            elif isinstance(packet, Puback | Pubrec | Pubcomp | Suback | Unsuback):
                self._answers[packet.packet_id] = packet
        answers = self._core.take_out()
        if answers and not self.closed:
            super().feed(answers)

    def _ask(self, make: Any, packet_id: int = 0) -> Packet:
        if not packet_id:
            packet_id = self._core.packet_id()
        self._answers.pop(packet_id, None)
        asked: Packet = make(packet_id)
        self.send(asked)
        answer = self._answers.pop(packet_id, None)
        if answer is None:
            if self.closed:
                raise NotConnected(self._why())
            raise AssertionError(f"no answer to {asked}")
        return answer

    def _why(self) -> str:
        if self.connack is not None and self.connack.reason_code:
            code = self.connack.reason_code
            name = reasons.name_of(code) if self.version == 5 else "return code"
            return f"refused: {name} ({code:#x})"
        return f"the connection is over: {self.channel.close_reason}"
