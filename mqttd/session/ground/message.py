"""A message between its publisher's session and its subscribers', and its form on the wire.

    PktId <- session -> MsgId <- router -> MsgId <- session -> PktId

The packet id and QoS of a PUBLISH end in the session. `Message` is the whole of a message, for
those who look at it: one immutable object, named by a 128-bit id. `Delivery` is one PUBLISH packet
in one (QoS, protocol version, property shape) with what must be remembered beside the bytes, shared
by every session that needs that shape. Where nothing must be remembered, inflight windows and
queues hold the bytes alone (an *entry* is either); `entry_delivery` makes the other of the one.
Where a journal keeps the bytes a queue may hold an int, its *receipt* for them, until they are due.

Promise: a message is serialised at most once per shape; a receiver whose packet id differs costs
two patched bytes. MQTT 3.1.1 and 5.0, 3.3 and 4.3.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec import properties as prop
from mqttd.codec.frame import ONE_BYTE, body_at, packet_id_at, topic_end_at, with_id
from mqttd.codec.native import mypyc_attr
from mqttd.codec.packet_types import PUBLISH
from mqttd.codec.packets import Publish
from mqttd.codec.parser import parse_packet
from mqttd.codec.properties import Properties, decode_properties
from mqttd.codec.serializer import serialize
from mqttd.session.ground.account import QUEUED, properties_weight
from mqttd.session.ground.runs import Run

__all__ = [
    "QUIET",
    "RELEASED",
    "Delivery",
    "Lent",
    "Message",
    "entry_delivery",
    "entry_qos",
    "entry_size",
    "entry_weight",
    "entry_wire",
]

#: A receipt is the number of bytes << 8, with this if they are of QoS 0, and 7 bits of the journal.
QUIET: Final = 0x80

#: A message beside its topic, payload and properties, in bytes; a delivery beside its wire.
_MESSAGE: Final = 320
_DELIVERY: Final = 220
#: Its run, where somebody keeps what becomes of it.
_RUN: Final = 80
#: A larger block of properties is decoded each time somebody looks; decoded it takes so many times
#: its bytes.
_REMEMBERED: Final = 256
_DECODED: Final = 16


@mypyc_attr(acyclic=True, free_list_len=1)
class Message:
    """One application message. Never changed after it is made: `replace` gives a new one.

    `id` is the 128-bit message id, `timestamp` (µs since 1970) its upper half; `expires_at` is in
    the server's milliseconds, 0 for never; `properties` holds what MQTT 5.0 forwards unchanged (no
    Topic Alias, no Message Expiry Interval, no Subscription Identifier).
    """

    __slots__ = (
        "_half",
        "_id",
        "_properties",
        "_when",
        "block",
        "client_id",
        "expires_at",
        "payload",
        "qos",
        "retain",
        "topic",
        "username",
    )

    def __init__(
        self,
        id: int,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        client_id: str = "",
        username: str | None = None,
        expires_at: int = 0,
    ) -> None:
        self._id = id
        self._when: int = -1
        self._half: int = 0
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self._properties = properties
        #: A property block that is decoded when somebody looks, as on the wire.
        self.block: bytes | None = None
        self.client_id = client_id
        self.username = username
        self.expires_at = expires_at

    @property
    def id(self) -> int:
        """The 128-bit message id; 0: it has none."""
        number = self._id
        if not number and self._when >= 0:
            number = self._id = self._when << 64 | self._half
        return number

    @id.setter
    def id(self, number: int) -> None:
        self._id = number

    def named(self, when: int, half: int) -> None:
        """Its id in halves (`mqttd.session.ground.guid`), put together only for those who look."""
        self._when = when
        self._half = half

    @property
    def properties(self) -> Properties | None:
        """The MQTT 5.0 properties that are forwarded, None for none."""
        block = self.block
        if block is None or self._properties is not None:
            return self._properties
        found, _ = decode_properties(block, 0, len(block), PUBLISH)
        found.pop(prop.MESSAGE_EXPIRY_INTERVAL, None)
        if not found:
            self.block = None
            return None
        if len(block) <= _REMEMBERED:
            self._properties = found
        return found

    @property
    def timestamp(self) -> int:
        """When the message arrived, in µs since 1970."""
        return self.id >> 64

    def weight(self) -> int:
        """The bytes it is counted with where it is kept; does not change."""
        weight = _MESSAGE + len(self.topic) + len(self.payload)
        block = self.block
        if block is None:
            return weight + properties_weight(self._properties)
        size = len(block)
        return weight + (size * _DECODED if size <= _REMEMBERED else size)

    def replace(
        self,
        topic: str | None = None,
        payload: bytes | None = None,
        qos: int | None = None,
        retain: bool | None = None,
        properties: Properties | None = None,
    ) -> Message:
        """The same message (same id) with some fields changed, for hooks."""
        made = Message(
            self.id,
            self.topic if topic is None else topic,
            self.payload if payload is None else payload,
            self.qos if qos is None else qos,
            self.retain if retain is None else retain,
            self._properties if properties is None else properties,
            self.client_id,
            self.username,
            self.expires_at,
        )
        if properties is None:
            made.block = self.block
        return made

    def wire(
        self,
        qos: int,
        retain: bool,
        v5: bool,
        identifiers: list[int] | None,
        now: int,
        packet_id: int = 1,
    ) -> bytes:
        """The PUBLISH for one shape, with the remaining Message Expiry Interval at `now`."""
        properties: Properties | None = None
        if v5 and (self.properties is not None or identifiers is not None or self.expires_at):
            properties = dict(self.properties) if self.properties is not None else {}
            if identifiers is not None:
                properties[prop.SUBSCRIPTION_IDENTIFIER] = identifiers
            if self.expires_at:
                left = (self.expires_at - now + 999) // 1000
                properties[prop.MESSAGE_EXPIRY_INTERVAL] = left if left > 0 else 0
        packet = Publish(
            self.topic, self.payload, qos, retain, False, packet_id if qos else 0, properties
        )
        return serialize(packet, 5 if v5 else 4)


@mypyc_attr(acyclic=True)
class Delivery:
    """A PUBLISH in one shape: the bytes, and what is remembered beside them.

    `wire` carries `packet_id` at offset `id_at` (QoS 1 and 2); `source` is the publisher's client
    id. `message` is None while only the bytes have been needed; `id` names it (0: not yet named),
    or its `run`. Queues hold very many, and none leads back to its queue: but for `Lent` the
    garbage collector need not look at them.
    """

    __slots__ = (
        "expires_at",
        "expiry_at",
        "group",
        "id",
        "id_at",
        "identifiers",
        "message",
        "original",
        "packet_id",
        "qos",
        "run",
        "source",
        "v5",
        "weight",
        "wire",
    )

    def __init__(
        self, wire: bytes, qos: int, v5: bool, packet_id: int, id_at: int, source: str
    ) -> None:
        self.wire = wire
        self.qos = qos
        self.v5 = v5
        self.packet_id = packet_id
        self.id_at = id_at
        self.source = source
        self.id: int = 0
        #: The bytes it is counted with, once that was asked for.
        self.weight: int = 0
        self.message: Message | None = None
        #: The message, of gear `RECORDED`: shared by all its deliveries, and told when they are
        #: sent and acknowledged.
        self.run: Run | None = None
        #: The PUBLISH of MQTT 5.0 that these bytes were made from, where they lost its properties:
        #: the session may come back with MQTT 5.0.
        self.original: bytes | None = None
        #: Subscription Identifiers; the bytes of MQTT 5.0 have them, those of 3.1.1 go without.
        self.identifiers: list[int] | None = None
        self.expires_at: int = 0
        #: Where the Message Expiry Interval stands in `wire`, 0 where it is not known.
        self.expiry_at: int = 0
        #: The shared group that chose the receiver, None for a subscription of its own (`lent`).
        self.group: object | None = None

    @staticmethod
    def of(
        message: Message,
        qos: int,
        retain: bool,
        v5: bool,
        identifiers: list[int] | None,
        now: int,
        packet_id: int = 1,
    ) -> Delivery:
        """Serialise `message` for one shape."""
        wire = message.wire(qos, retain, v5, identifiers, now, packet_id)
        made = Delivery(
            wire, qos, v5, packet_id, packet_id_at(wire) if qos else 0, message.client_id
        )
        made.message = message
        made.id = message.id
        made.identifiers = identifiers
        made.expires_at = message.expires_at
        return made

    def identity(self) -> int:
        """The id of its message; 0: not yet named. Of a run it is put together for who looks."""
        run = self.run
        return self.id if run is None else run.came << 64 | run.number

    def bare(self) -> bool:
        """Whether nothing is remembered beside the bytes."""
        return (
            not self.expires_at
            and not self.id
            and self.run is None
            and self.group is None
            and self.original is None
            and self.message is None
            and (self.v5 or self.identifiers is None)
        )

    def whole(self) -> bytes | None:
        """The PUBLISH of MQTT 5.0 with what these bytes lack of it; None: they lack nothing.

        Its Message Expiry Interval says nothing: that is `expires_at`.
        """
        message = self.message
        if self.v5 or (
            self.identifiers is None
            and (self.original is not None or message is None or message.properties is None)
        ):
            return self.original
        if message is None:
            message = self.copy().get_message(self.id)
        return message.wire(self.qos, False, True, self.identifiers, message.expires_at)

    def copy(self) -> Delivery:
        """The same, for one receiver of its own."""
        group = self.group
        if group is not None:
            return self.lent(group)
        made = Delivery(self.wire, self.qos, self.v5, self.packet_id, self.id_at, self.source)
        self._give(made)
        return made

    def lent(self, group: object) -> Delivery:
        """The same, for the member that this shared group has chosen."""
        made = Lent(self.wire, self.qos, self.v5, self.packet_id, self.id_at, self.source)
        self._give(made)
        made.group = group
        return made

    def _give(self, made: Delivery) -> None:
        made.id = self.id
        made.run = self.run
        made.message = self.message
        made.original = self.original
        made.identifiers = self.identifiers
        made.expires_at = self.expires_at
        made.expiry_at = self.expiry_at

    def weigh(self) -> int:
        """The bytes it is counted with, the same from the first time on."""
        weight = self.weight
        if not weight:
            weight = _DELIVERY + len(self.wire)
            if self.run is not None:
                weight += _RUN + len(self.run.topic)
            if self.original is not None:
                weight += len(self.original)
            if self.message is not None:
                weight += self.message.weight()
            self.weight = weight
        return weight

    def get_message(self, message_id: int) -> Message:
        """The message behind the bytes; `message_id` names it if it has no id yet."""
        if self.run is not None:
            message_id = self.identity()
        message = self.message
        if message is None:
            packet = self._parsed()
            properties = packet.properties
            if properties is not None:
                properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, None)
                named = properties.pop(prop.SUBSCRIPTION_IDENTIFIER, None)
                if self.identifiers is None and isinstance(named, list):
                    self.identifiers = [number for number in named if isinstance(number, int)]
                if not properties:
                    properties = None
            if not self.id:
                self.id = message_id
            message = Message(
                self.id,
                packet.topic,
                packet.payload,
                self.qos,
                self.wire[0] & 1 == 1,
                properties,
                self.source,
                None,
                self.expires_at,
            )
            self.message = message
        elif not message.id:
            message.id = message_id
        return message

    def _parsed(self) -> Publish:
        wire = self.wire if self.original is None else self.original
        v5 = self.v5 or self.original is not None
        packet = parse_packet(wire[0], wire[body_at(wire) :], 5 if v5 else 4)
        assert isinstance(packet, Publish)
        return packet

    def topic(self) -> str:
        """The topic name, read from the bytes."""
        wire = self.wire
        body = body_at(wire)
        return wire[body + 2 : topic_end_at(wire, body)].decode()

    def packet(self, packet_id: int, dup: bool) -> bytes:
        """The bytes with another packet id, and with DUP if it is sent again."""
        wire = self.wire
        if packet_id != self.packet_id:
            wire = with_id(wire, self.id_at, packet_id)
        if dup:
            wire = ONE_BYTE[wire[0] | 8] + wire[1:]
        return wire

    def fresh(self, v5: bool, now: int) -> Delivery:
        """This delivery for a receiver of version `v5` at `now`: other bytes where they differ.

        They differ when the session came back with another protocol version, and when some of the
        Message Expiry Interval has passed in the queue (MQTT-3.3.2-6).
        """
        if v5 == self.v5 and (not self.expires_at or not v5):
            return self
        if v5 == self.v5 and self.expiry_at:
            return self._counted_down(now)
        message = self.get_message(self.id)
        retain = self.wire[0] & 1 == 1
        made = Delivery.of(message, self.qos, retain, v5, self.identifiers, now)
        made.source = self.source
        made.run = self.run
        return made if self.group is None else made.lent(self.group)

    def _counted_down(self, now: int) -> Delivery:
        """The same bytes with what is left of the Message Expiry Interval."""
        left = (self.expires_at - now + 999) // 1000
        patch = (left if left > 0 else 0).to_bytes(4, "big")
        at = self.expiry_at
        wire = self.wire
        if wire[at : at + 4] == patch:
            return self
        made = self.copy()
        made.wire = wire[:at] + patch + wire[at + 4 :]
        return made


class Lent(Delivery):
    """One whose receiver a shared group has chosen: the group leads to its members, and to it."""

    __slots__ = ()


def entry_delivery(entry: object, v5: bool) -> Delivery:
    """An entry of an inflight window or a queue as a delivery; bytes are of version `v5`."""
    if isinstance(entry, Delivery):
        return entry
    assert isinstance(entry, bytes)
    qos = entry[0] >> 1 & 3
    if not qos:
        return Delivery(entry, 0, v5, 0, 0, "")
    at = packet_id_at(entry)
    return Delivery(entry, qos, v5, entry[at] << 8 | entry[at + 1], at, "")


def entry_wire(entry: object) -> bytes:
    """The bytes of an entry."""
    if isinstance(entry, bytes):
        return entry
    assert isinstance(entry, Delivery)
    return entry.wire


def entry_weight(entry: object) -> int:
    """The bytes that an entry is counted with in a queue."""
    if isinstance(entry, bytes):
        return QUEUED + len(entry)
    if isinstance(entry, int):
        return QUEUED
    assert isinstance(entry, Delivery)
    return entry.weigh()


def entry_size(entry: object) -> int:
    """The bytes that it has in a queue, in memory or not."""
    if isinstance(entry, int):
        return QUEUED + (entry >> 8)
    return entry_weight(entry)


def entry_qos(entry: object) -> int:
    """The QoS of an entry; of a receipt 0, or 1 for any other."""
    if isinstance(entry, bytes):
        return entry[0] >> 1 & 3
    if isinstance(entry, int):
        return 0 if entry & QUIET else 1
    assert isinstance(entry, Delivery)
    return entry.qos


#: In an inflight window: PUBREC has come, PUBREL is sent, PUBCOMP is awaited (QoS 2).
RELEASED: Final = Delivery(b"\x62\x02\x00\x00", 2, False, 0, 2, "")
