"""PUBLISH on its way to receivers whose Subscription Identifiers alone set their bytes apart.

    run    | head | own, payload | head | own, payload |        head: up to the length of properties
    parts  [head, own+payload+head, own+payload]                own: the publisher's properties
    block  0b 07  -->  block.join(parts)                        what a receiver with 7 gets

Packets for identifiers of one length differ in these bytes alone, so the parts are put together
once for each length, and each receiver's packet, or its run of QoS 0, is one join of them. Where
many receivers share an identifier, or have none, they share the bytes, too.

The slow twin is `Inbound.fan`; both give the same (tests/unit/session/test_naming.py).
MQTT 5.0, 3.3.2.3.8.
"""

from __future__ import annotations

from mqttd.codec.frame import ONE_BYTE, body_at, run_end
from mqttd.codec.serializer import varint
from mqttd.session.ground.message import Delivery
from mqttd.session.publish.inbound import recast
from mqttd.session.publish.lending import Lending
from mqttd.session.routes.receiver import NO_LIMIT
from mqttd.session.routes.route import LIGHT1, NOTED, QOS_MASK, Route

__all__ = ["Naming"]


class Naming(Lending):
    """A connection that forwards to receivers with Subscription Identifiers."""

    __slots__ = ()

    def named(
        self,
        route: Route,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        expiry: int,
    ) -> int:
        """Forward a PUBLISH without RETAIN, or a run of QoS 0; the index behind it."""
        router = self.router
        metrics = router.metrics
        qos = data[pos] >> 1 & 3
        size = end - pos
        stop = end
        run = 1
        packet_id = 0
        if qos:
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            router.journal.touched = False
            if not self._accept(route, packet_id, data, pos, at, body, end):
                return end
        else:
            stop = route.cut(pos, run_end(data, pos, topic_end, body, end), size)
            run = (stop - pos) // size
            metrics.packets_received += run - 1
            metrics.messages_received_qos0 += run
        if route.gear & NOTED:
            router.note(self, data[p + 2 : topic_end], data, pos, at, body, end, size, run)
        sessions = route.sessions
        options = route.options
        kinds = route.kinds
        blocks = route.blocks
        names = route.identifiers
        assert kinds is not None and blocks is not None
        count = len(sessions)
        #: Whether most identifiers have several receivers, which share the bytes.
        shared = 2 * len(blocks) <= count
        wires: dict[int, bytes] = {}
        known: dict[int, list[bytes]] = {}
        parts: list[bytes] = []
        latest = -1
        older: bytes | None = None
        #: Those that need deliveries of their own.
        apart: list[int] = []
        sent = 0
        for i in range(count):
            receiver = sessions[i]
            granted = options[i] & QOS_MASK
            if granted > qos:
                granted = qos
            channel = receiver.channel
            if granted:
                if not receiver.v5:
                    apart.append(i)
                    continue
            elif channel is None or channel.special or channel.wraps:
                apart.append(i)
                continue
            if receiver.v5:
                kind = kinds[i]
                common = shared or not kind
                made = wires.get(kind << 2 | granted) if common else None
                if made is not None:
                    wire = made
                else:
                    block = blocks[kind]
                    number = len(block) << 2 | granted
                    if number != latest:
                        latest = number
                        if number not in known:
                            known[number] = _parts(
                                data, pos, p, topic_end, at, body, stop, size, self.v5, number
                            )
                        parts = known[number]
                    wire = block.join(parts)
                    if common:
                        wires[kind << 2 | granted] = wire
                if granted:
                    # By its own head: with a longer identifier that may be longer by a byte.
                    receiver.take(wire, packet_id, body_at(wire) + topic_end - p)
                    continue
            else:
                if older is None:
                    older = recast(data, pos, p, topic_end, body, stop, size, True)
                wire = older
            if (
                channel is None
                or channel.out_bytes + len(wire) > channel.limit
                or (receiver.max_packet != NO_LIMIT and len(wire) > receiver.max_packet * run)
            ):
                apart.append(i)
                continue
            channel.send(wire)
            sent += run
        metrics.messages_sent += sent
        if apart:
            first = self.inbound(data, pos, p, topic_end, at, body, end, expiry)
            for shift in range(0, stop - pos, size):
                inbound = first.behind(shift, router.now)
                shapes: dict[int, Delivery] = {}
                for i in apart:
                    kind = kinds[i]
                    inbound.give(sessions[i], options[i], kind, blocks[kind], names, shapes)
        router.topics.send_on(stop - pos, count, LIGHT1)
        if qos:
            self.published(data[pos], packet_id, count, route.gear, route.topic)
        return stop


def _parts(
    data: bytes,
    pos: int,
    p: int,
    topic_end: int,
    at: int,
    body: int,
    stop: int,
    size: int,
    v5: bool,
    number: int,
) -> list[bytes]:
    """What stands around the identifiers of a packet, or of a run, for receivers of 5.0.

    number: how many bytes of them, in four times; and the QoS.
    """
    named = number >> 2
    qos = number & 3
    own = at  # where the publisher's own properties begin
    if v5:
        own += 1
        while data[own - 1] & 0x80:
            own += 1
    key = data[p:topic_end]
    packet_id = data[topic_end : topic_end + 2] if qos else b""
    properties = varint(named + body - own)
    rest = pos + size - own
    length = varint(len(key) + len(packet_id) + len(properties) + named + rest)
    head = b"".join((ONE_BYTE[0x30 | qos << 1], length, key, packet_id, properties))
    parts = [head]
    shift = 0
    while pos + shift + size < stop:
        parts.append(data[own + shift : pos + shift + size] + head)
        shift += size
    parts.append(data[own + shift : stop])
    return parts
