"""One PUBLISH as it came, and the shapes in which it goes on.

    data   | b0 | length | key: topic | id | block: properties | payload |
            pos            p           topic_end  at             body      end

A message is forwarded as the bytes received wherever they fit the receiver; else they are *cut*:
the same parts put together for another QoS, version, RETAIN flag or with Subscription Identifiers,
once for each shape, whatever the number of receivers. Nothing is decoded.

Promise: a shape costs one join of its parts. MQTT 5.0, 3.3.
"""

from __future__ import annotations

from mqttd.codec.frame import ONE_BYTE, body_at, cut, topic_end_at
from mqttd.codec.native import mypyc_attr
from mqttd.codec.properties import decode_varint
from mqttd.codec.serializer import varint
from mqttd.session.ground.message import Delivery, Message
from mqttd.session.ground.runs import Run
from mqttd.session.ground.wheel import milliseconds
from mqttd.session.routes.receiver import Receiver
from mqttd.session.routes.route import (
    IDENTIFIED,
    NO_LOCAL,
    OWN,
    OWN_SHIFT,
    QOS_MASK,
    RETAIN_AS_PUBLISHED,
    Route,
    Target,
    identifier_block,
)

__all__ = ["Inbound", "inbound_of", "lift", "lower", "recast"]


@mypyc_attr(acyclic=True, free_list_len=1)
class Inbound:
    """The parts of a PUBLISH by their places in `data`; `qos` and `retain` as published.

    expires_at: in the node's milliseconds, 0 for never; expiry_at: where those four bytes are.
    """

    __slots__ = (
        "at",
        "body",
        "data",
        "end",
        "expires_at",
        "expiry_at",
        "p",
        "pos",
        "published",
        "qos",
        "retain",
        "run",
        "source",
        "topic_end",
        "username",
        "v5",
        "whole",
    )

    def __init__(
        self,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        v5: bool,
        source: str,
        username: str | None,
    ) -> None:
        self.data = data
        self.pos = pos
        self.p = p
        self.topic_end = topic_end
        self.at = at
        self.body = body
        self.end = end
        self.v5 = v5
        first = data[pos]
        self.qos: int = first >> 1 & 3
        self.retain: bool = first & 1 == 1
        self.source = source
        self.username = username
        #: The message that deliveries remember, where somebody hears of them.
        self.whole: Message | None = None
        #: What they know it by instead, where they are only kept (`RECORDED`).
        self.run: Run | None = None
        #: The message as published, once a member of a shared group was sent it in another shape.
        self.published: Message | None = None
        self.expires_at: int = 0
        self.expiry_at: int = 0

    def expires(self, now: int, expiry_at: int) -> None:
        """There is a Message Expiry Interval, at `expiry_at`."""
        if expiry_at:
            self.expiry_at = expiry_at
            seconds = int.from_bytes(self.data[expiry_at : expiry_at + 4], "big")
            self.expires_at = now + milliseconds(seconds) or 1

    def behind(self, shift: int, now: int) -> Inbound:
        """The packet of the same run that begins so many bytes behind this one."""
        made = Inbound(
            self.data,
            self.pos + shift,
            self.p + shift,
            self.topic_end + shift,
            self.at + shift,
            self.body + shift,
            self.end + shift,
            self.v5,
            self.source,
            self.username,
        )
        if self.expiry_at:
            made.expires(now, self.expiry_at + shift)
        return made

    def packet_id(self) -> int:
        """The publisher's packet id; 0 at QoS 0."""
        if not self.qos:
            return 0
        return self.data[self.topic_end] << 8 | self.data[self.topic_end + 1]

    def identity(self) -> int:
        """The id of the message; 0: not yet named."""
        run = self.run
        if run is not None:
            return run.came << 64 | run.number
        return 0 if self.whole is None else self.whole.id

    def payload(self) -> bytes:
        """The payload."""
        return self.data[self.body : self.end]

    def message(self, topic: str, message_id: int) -> Message:
        """The whole of it, for those who look."""
        made = Message(
            message_id,
            topic,
            self.payload(),
            self.qos,
            self.retain,
            None,
            self.source,
            self.username,
            self.expires_at,
        )
        if self.v5 and self.data[self.at]:
            made.block = self.data[self.at : self.body]
        return made

    # -- shapes --------------------------------------------------------------------------------

    def cut(self, qos: int, v5: bool, retain: bool, block: bytes) -> Delivery:
        """The PUBLISH of another shape; `block`: further properties for the front, of 5.0."""
        data = self.data
        pos = self.pos
        first = 0x30 | qos << 1 | (1 if retain else 0)
        packet_id = self.packet_id() if qos else 0
        at = 0
        if qos == self.qos and v5 == self.v5 and (not block or not v5):
            if data[pos] != first:
                wire = ONE_BYTE[first] + data[pos + 1 : self.end]
            else:
                wire = cut(data, pos, self.end)
            made = Delivery(
                wire, qos, v5, packet_id, self.topic_end - pos if qos else 0, self.source
            )
            at = self.expiry_at - pos
        else:
            head = data[self.p : self.topic_end]
            identifier = data[self.topic_end : self.topic_end + 2] if qos else b""
            properties = b""
            if v5:
                properties = self._properties(block)
            length = varint(len(head) + len(identifier) + len(properties) + self.end - self.body)
            start = 1 + len(length) + len(head)
            made = Delivery(
                b"".join(
                    (
                        ONE_BYTE[first],
                        length,
                        head,
                        identifier,
                        properties,
                        data[self.body : self.end],
                    )
                ),
                qos,
                v5,
                packet_id,
                start if qos else 0,
                self.source,
            )
            # The publisher's properties come last, whatever was put before them.
            at = start + len(identifier) + len(properties) - (self.body - self.expiry_at)
            if self.v5 and not v5 and data[self.at]:
                made.original = data[pos : self.end]
        whole = self.whole
        if whole is not None:
            made.message = whole
            made.id = whole.id
        made.run = self.run
        if self.expires_at:
            made.expires_at = self.expires_at
            if v5 and self.expiry_at:
                made.expiry_at = at
        return made

    def _properties(self, block: bytes) -> bytes:
        """The property block for a receiver of 5.0."""
        if not self.v5:
            return varint(len(block)) + block
        if not block:
            return self.data[self.at : self.body]
        start = self.at + 1
        while self.data[start - 1] & 0x80:
            start += 1
        own = self.data[start : self.body]
        return varint(len(block) + len(own)) + block + own

    # -- fan -----------------------------------------------------------------------------------

    def fan(self, route: Route) -> int:
        """Deliver to all of a route, one shape each at most; returns how many receivers."""
        shapes: dict[int, Delivery] = {}
        count = self.fan_sessions(route, shapes, 0, len(route.sessions))
        groups = route.groups
        if groups is not None:
            count += self.fan_groups(route, shapes, 0, len(groups))
        return count

    def fan_sessions(self, route: Route, shapes: dict[int, Delivery], at: int, end: int) -> int:
        """Deliver to the sessions of a route from one place to another.

        To those that are away last, one shape after another: a store has each of them once.
        """
        count = 0
        away: dict[int, list[int]] | None = None
        options = route.options
        kinds = route.kinds
        blocks = route.blocks
        names = route.identifiers
        sessions = route.sessions
        source = self.source
        packet_id = self.packet_id()
        for i in range(at, end):
            receiver = sessions[i]
            packed = options[i]
            if packed & (NO_LOCAL | OWN) and receiver.client_id == source:
                if packed & NO_LOCAL:
                    continue
                packed >>= OWN_SHIFT
                if route.owns is not None and receiver in route.owns:
                    self._hand(receiver, self._own(receiver, packed, route), packet_id)
                    count += 1
                    continue
            kind = 0 if kinds is None else kinds[i]
            count += 1
            if receiver.channel is None and packed == options[i]:
                number = self._number(packed, receiver.v5) | kind << 4
                if away is None:
                    away = {}
                away.setdefault(number, []).append(i)
                continue
            self.give(receiver, packed, kind, blocks[kind] if blocks else b"", names, shapes)
        if away is not None:
            for number, places in away.items():
                kind = number >> 4
                block = blocks[kind] if blocks else b""
                for i in places:
                    self.give(sessions[i], options[i], kind, block, names, shapes)
        return count

    def give(
        self,
        receiver: Receiver,
        packed: int,
        kind: int,
        block: bytes,
        names: dict[Receiver, list[int]] | None,
        shapes: dict[int, Delivery],
    ) -> None:
        """Deliver to one, in the shape that others have had; for the others see `Route`."""
        number = self._number(packed, receiver.v5) | kind << 4
        shape = shapes.get(number)
        if shape is None:
            shape = self.cut(number & 3, receiver.v5, number & 8 != 0, block)
            if kind and names is not None:
                shape.identifiers = names.get(receiver)
            shapes[number] = shape
        self._hand(receiver, shape, self.packet_id())

    def hand_out(self, receivers: list[Receiver]) -> None:
        """Deliver to these at QoS 0, without RETAIN, one shape for all of a version."""
        for v5 in (True, False):
            shape: Delivery | None = None
            for receiver in receivers:
                if receiver.v5 == v5:
                    if shape is None:
                        shape = self.cut(0, v5, False, b"")
                    receiver.deliver_qos0(shape)

    def fan_groups(self, route: Route, shapes: dict[int, Delivery], at: int, end: int) -> int:
        """Deliver to a member of each of these groups of a route."""
        groups = route.groups
        assert groups is not None
        alone = len(groups) == 1 and not shapes
        count = 0
        for i in range(at, end):
            group = groups[i]
            member = group.choose(self.source, route.topic)
            if member is not None:
                self.lend(group, member, route.topic, None if alone else shapes)
                count += 1
        return count

    def lend(
        self,
        group: Target,
        member: Receiver,
        topic: str,
        shapes: dict[int, Delivery] | None,
    ) -> None:
        """Deliver to the member that a shared group has chosen; `shapes`: those made for others."""
        packed = group.options(member)
        number = self._number(packed, member.v5)
        named: list[int] | None = None
        if packed & IDENTIFIED:
            named = group.identifiers(member)
            if named is not None:
                number |= -1 - named[0] << 4
        shape = shapes.get(number) if shapes is not None else None
        if shape is None:
            shape = self.cut(number & 3, member.v5, number & 8 != 0, identifier_block(named))
            shape.identifiers = named
            if shapes is not None:
                shapes[number] = shape
        own = shape.lent(group)
        if own.message is None and (own.qos != self.qos or self.retain):
            # Another member may get it as it was published.
            if self.published is None:
                self.published = self.message(topic, self.identity())
            own.message = self.published
        if own.run is not None and own.message is None and not member.bare:
            own.message = self.message(topic, self.identity())
        self._hand(member, own, self.packet_id())

    def _number(self, packed: int, v5: bool) -> int:
        """What sets the bytes for one receiver apart, in four bits: QoS, version, RETAIN."""
        granted = packed & QOS_MASK
        number = granted if granted < self.qos else self.qos
        if v5:
            number |= 4
        if self.retain and packed & RETAIN_AS_PUBLISHED:
            number |= 8
        return number

    def _own(self, receiver: Receiver, packed: int, route: Route) -> Delivery:
        """The publisher's own copy, where its subscriptions with No Local have identifiers."""
        number = self._number(packed, receiver.v5)
        assert route.owns is not None and route.own_blocks is not None
        named = route.owns[receiver]
        shape = self.cut(number & 3, receiver.v5, number & 8 != 0, route.own_blocks[receiver])
        if named:
            shape.identifiers = named
        return shape

    def _hand(self, receiver: Receiver, shape: Delivery, packet_id: int) -> None:
        if not shape.qos:
            receiver.deliver_qos0(shape)
        elif receiver.bare and shape.bare() and shape.v5 == receiver.v5:
            receiver.take(shape.wire, packet_id, shape.id_at)
        else:
            receiver.deliver(shape, packet_id)


def inbound_of(delivery: Delivery) -> Inbound:
    """The parts of a PUBLISH of our own making, to cut it in another shape."""
    wire = delivery.wire
    p = body_at(wire)
    topic_end = topic_end_at(wire, p)
    at = topic_end + 2 if delivery.qos else topic_end
    body = at
    if delivery.v5:
        size, body = decode_varint(wire, at, len(wire))
        body += size
    made = Inbound(wire, 0, p, topic_end, at, body, len(wire), delivery.v5, delivery.source, None)
    made.expires_at = delivery.expires_at
    made.expiry_at = delivery.expiry_at
    return made


def lift(data: bytes, pos: int, p: int, topic_end: int, end: int) -> bytes:
    """A QoS 1 or 2 packet of 3.1.1 as one of 5.0 without properties; RETAIN and DUP are 0."""
    return b"".join(
        (
            ONE_BYTE[data[pos] & 0xF6],
            varint(end - p + 1),
            data[p : topic_end + 2],
            b"\0",
            data[topic_end + 2 : end],
        )
    )


def lower(data: bytes, pos: int, p: int, topic_end: int, end: int) -> bytes:
    """The same the other way round, for a packet without properties."""
    return b"".join(
        (
            ONE_BYTE[data[pos] & 0xF6],
            varint(end - p - 1),
            data[p : topic_end + 2],
            data[topic_end + 3 : end],
        )
    )


def recast(
    data: bytes, pos: int, p: int, topic_end: int, body: int, end: int, size: int, v5: bool
) -> bytes:
    """A run of QoS 0 packets of `size` bytes for the other version: what precedes payloads differs.

    Of 5.0 (`v5`) the properties go, of 3.1.1 there are none: an empty block.
    """
    head = data[p:topic_end] if v5 else data[p:topic_end] + b"\0"
    prefix = b"\x30" + varint(len(head) + pos + size - body) + head
    parts: list[bytes] = []
    shift = 0
    while pos + shift < end:
        parts.append(prefix)
        parts.append(data[body + shift : pos + shift + size])
        shift += size
    return b"".join(parts)
