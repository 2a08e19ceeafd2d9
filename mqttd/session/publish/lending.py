"""PUBLISH on its way to a shared group alone: its bytes to the member whose turn it is.

    $share/g/a --> Route.lone --> choose --> the bytes, as they came, in a `Delivery` of the group
                                       `--> another shape, version or process: `Inbound.lend`

The slow twin is `Inbound.fan`; both give the same (tests/unit/session/test_differential.py).
MQTT 5.0, 4.8.2.
"""

from __future__ import annotations

from mqttd.codec.frame import cut
from mqttd.codec.reasons import MalformedPacket
from mqttd.session.ground.message import Lent
from mqttd.session.ground.runs import Run
from mqttd.session.publish.general import PUBREC
from mqttd.session.publish.spans import Spanning
from mqttd.session.routes.route import (
    IDENTIFIED,
    MISSED,
    NOTED,
    QOS_MASK,
    RECORDED,
    UNHEARD,
    Route,
    Target,
)

__all__ = ["Lending"]


class Lending(Spanning):
    """A connection that forwards to shared groups."""

    __slots__ = ()

    def _lent(
        self,
        route: Route,
        group: Target,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        expiry: int,
    ) -> None:
        """Forward one packet to a member of the only shared group that gets it; acknowledge it."""
        router = self.router
        session = self.session
        assert session is not None
        first = data[pos]
        qos = first >> 1 & 3
        packet_id = 0
        if qos:
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            router.journal.touched = False
            if not self._accept(route, packet_id, data, pos, at, body, end):
                return
        else:
            router.metrics.messages_received_qos0 += 1
        run: Run | None = None
        if route.gear & (MISSED | NOTED | RECORDED):
            run = self.name(route, data, pos, p, topic_end, at, body, end, 1)
        kept = run if route.gear & RECORDED else None
        member = group.choose(session.client_id, route.topic)
        if member is None:
            if route.gear & UNHEARD:
                inbound = self.inbound(data, pos, p, topic_end, at, body, end, expiry)
                router.unheard(self.whole_of(inbound, route, run), "no_subscriber")
            elif run is not None and route.gear & MISSED:
                router.unheard_run(self, run)
            if router.tap_unheard and not route.gear & UNHEARD:
                size = end - pos
                self.missed(None, route, data, pos, p, topic_end, at, body, end, size)
            self.published(first, packet_id, 0, route.gear, route.topic)
            return
        router.topics.work += 2
        packed = group.options(member)
        if (
            packed & QOS_MASK < qos
            or packed & IDENTIFIED
            or expiry
            or first & 8
            or member.v5 != self.v5
            or not member.bare
        ):
            inbound = self.inbound(data, pos, p, topic_end, at, body, end, expiry)
            inbound.run = kept
            inbound.lend(group, member, route.topic, None)
        else:
            id_at = topic_end - pos if qos else 0
            made = Lent(cut(data, pos, end), qos, self.v5, packet_id, id_at, session.client_id)
            made.group = group
            made.run = kept
            if qos:
                member.deliver(made, packet_id)
            else:
                member.deliver_qos0(made)
        self.published(first, packet_id, 1, route.gear, route.topic)

    def _accept(
        self, route: Route, packet_id: int, data: bytes, pos: int, at: int, body: int, end: int
    ) -> bool:
        """Count a QoS 1 or 2 packet and note its id at QoS 2; False if it is known (4.3.3)."""
        first = data[pos]
        if packet_id == 0:
            raise MalformedPacket("PUBLISH with packet id 0")
        metrics = self.router.metrics
        if first & 2:
            metrics.messages_received_qos1 += 1
            return True
        metrics.messages_received_qos2 += 1
        if self.record(packet_id):
            return True
        if self.is_noted_again(route.gear, packet_id):
            topic = route.topic.encode()
            self.router.note(self, topic, data, pos, at, body, end, end - pos, 1)
        self.settle(self.answer(PUBREC, packet_id, 0), route.gear, route.topic)
        return False
