"""PUBLISH on its way where somebody keeps its deliveries: the gear RECORDED.

    run of QoS 0  --> bytes to each session, and one call: so many of them delivered to it
    QoS 1 and 2   --> one `Delivery` with its run for all, told when it is sent, and acknowledged

The slow twin is a topic of gear `TOLD`, whose deliveries remember a `Message`; both tell the same
(tests/unit/pipeline/test_deliveries.py). MQTT 5.0, 3.3, 4.3.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.frame import cut, cut_plain, run_end
from mqttd.session.ground.message import Delivery
from mqttd.session.ground.runs import Run
from mqttd.session.ground.wheel import milliseconds
from mqttd.session.publish.forward import Forwarding
from mqttd.session.publish.inbound import recast
from mqttd.session.routes.receiver import Receiver
from mqttd.session.routes.route import LIGHT0, LIGHT1, MISSED, Route
from mqttd.session.state import State

__all__ = ["Recording"]

_ACK1: Final = b"\x40\x02"
_ACK2: Final = b"\x50\x02"


class Recording(Forwarding):
    """A connection that forwards bytes, and names them for those who keep what becomes of them."""

    __slots__ = ()

    def recorded(
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
        """See `Missing.recorded`."""
        router = self.router
        first = data[pos]
        if first & 6:
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            router.journal.touched = False
            if self._accept(route, packet_id, data, pos, at, body, end):
                name = self.name(route, data, pos, p, topic_end, at, body, end, 1)
                self.recorded_one(route, name, data, pos, p, topic_end, at, body, end, expiry)
            return end
        size = end - pos
        stop = end
        run = 1
        if router.settings.coalesce_runs:
            stop = route.cut(pos, run_end(data, pos, topic_end, body, end), size)
            run = (stop - pos) // size
            router.metrics.packets_received += run - 1
        router.metrics.messages_received_qos0 += run
        name = self.name(route, data, pos, p, topic_end, at, body, end, run)
        if not route.sessions:
            self._qos0(route, data, pos, p, topic_end, at, body, stop, size, expiry)
            if route.gear & MISSED:
                router.unheard_run(self, name)
            return stop
        apart: list[Receiver] = []
        same: bytes | None = None
        other: bytes | None = None
        sent = 0
        for receiver in route.sessions:
            channel = receiver.channel
            wire = b""
            if channel is None or channel.special:
                pass
            elif channel.v5 == self.v5:
                if same is None:
                    same = cut(data, pos, stop)
                wire = same
            else:
                if other is None:
                    other = recast(data, pos, p, topic_end, body, stop, size, self.v5)
                wire = other
            full = channel is not None and channel.out_bytes + len(wire) > channel.limit
            if (
                channel is None
                or not wire
                or len(wire) // run > receiver.max_packet
                or (full and router.tap_missed)  # each that it misses is told
            ):
                apart.append(receiver)
                continue
            if full and channel.over(len(wire)):
                router.metrics.dropped_slow_consumer += run
                receiver.dropped += run
                if router.tap_slow:
                    self.missed(receiver, route, data, pos, p, topic_end, at, body, stop, size)
                continue
            channel.send(wire)
            sent += run
            assert isinstance(receiver, State)
            router.delivered_run(receiver, name)
        if apart:
            self.one_by_one(apart, data, pos, p, topic_end, at, body, stop, size, expiry, name)
        router.metrics.messages_sent += sent
        router.topics.send_on(stop - pos, len(route.sessions), LIGHT0)
        return stop

    def recorded_one(
        self,
        route: Route,
        run: Run,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        expiry: int,
    ) -> None:
        """See `Missing.recorded_one`."""
        router = self.router
        if not route.sessions:
            self._qos1(route, data, pos, p, topic_end, at, body, end, expiry)
            if route.gear & MISSED:
                router.unheard_run(self, run)
            return
        first = data[pos]
        packet_id = data[topic_end] << 8 | data[topic_end + 1]
        router.topics.send_on(end - pos, len(route.sessions), LIGHT1)
        if self._same(route, first >> 1 & 3):
            session = self.session
            assert session is not None
            wire = cut_plain(data, pos, end)
            id_at = topic_end - pos
            made = Delivery(wire, first >> 1 & 3, self.v5, packet_id, id_at, session.client_id)
            made.run = run
            if expiry:
                seconds = int.from_bytes(data[expiry : expiry + 4], "big")
                made.expires_at = router.now + milliseconds(seconds) or 1
                made.expiry_at = expiry - pos
            for receiver in route.sessions:
                receiver.take_named(made, packet_id)
        else:
            inbound = self.inbound(data, pos, p, topic_end, at, body, end, expiry)
            inbound.run = run
            inbound.fan(route)
        ack = (_ACK1 if first & 2 else _ACK2) + data[topic_end : topic_end + 2]
        self._settled(ack, route, data, p, topic_end)
