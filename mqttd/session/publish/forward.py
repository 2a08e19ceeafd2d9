"""PUBLISH on its way through: the hot path, by the gear of its route.

    parts --> topic (one look-up) --> right (one comparison) --> gear 0: the bytes to every session
                                                                 else: noted, asked, cut, held

Techniques, each measured in docs/design/hot-path.md:

* a PUBLISH is forwarded as the bytes received; a run of packets with the same fixed header, topic
  and properties is forwarded as one slice;
* topic validation and routing cost one look-up for the whole node, access control one comparison;
* a packet id is unique per receiver only, so the publisher's is kept where it is free.

`General.publish` is the slow twin: it builds a `Message` for one packet. Both give the same bytes
(tests/unit/session/test_differential.py). MQTT 5.0, 3.3, 4.3, 4.6.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec import reasons
from mqttd.codec.frame import cut_plain, run_end
from mqttd.session.ground.connection import OPEN
from mqttd.session.ground.message import Delivery, Message
from mqttd.session.ground.runs import Run
from mqttd.session.ground.wheel import milliseconds
from mqttd.session.publish.general import DENIED, answer_to
from mqttd.session.publish.inbound import lift, recast
from mqttd.session.publish.naming import Naming
from mqttd.session.routes.receiver import Receiver
from mqttd.session.routes.route import (
    FOLLOWED,
    HEARD,
    HELD,
    HOOKED,
    KEPT,
    LIGHT0,
    LIGHT1,
    MISSED,
    NAMED,
    NOTED,
    QOS_MASK,
    RECORDED,
    SMALL,
    SPREAD,
    STUCK,
    TOLD,
    UNHEARD,
    Route,
)

__all__ = ["Forwarding"]

_PUBLISH: Final = 3
#: The first byte of a PUBLISH of QoS 1 that is nothing else.
_PLAIN1: Final = 0x32
_ACK1: Final = b"\x40\x02"
_ACK2: Final = b"\x50\x02"

#: Receivers with Subscription Identifiers, and nothing else that sets their bytes apart.
_NAMED: Final = SPREAD | NAMED
#: Gears that a message for one shared group alone may have beside `SPREAD`.
_BESIDE: Final = HELD | MISSED | NOTED | RECORDED | UNHEARD
#: With one of these a message is put into shapes.
_APART: Final = SPREAD | HEARD | MISSED | UNHEARD


class Forwarding(Naming):
    """A connection that forwards what its client publishes."""

    __slots__ = ()

    def forward(
        self,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        expiry: int,
    ) -> int:
        """Route a PUBLISH whose parts are known, as bytes; see `Inbound` for their names."""
        router = self.router
        first = data[pos]
        topics = router.topics
        ahead = topics.ahead
        route: Route | None = None
        if ahead is not None and ahead.data is data:
            route = ahead.take(p)
        if route is None:
            route = topics.table.get(data[p:topic_end])
        if route is None:
            router.packet_type = _PUBLISH
            route = self.find(data[p:topic_end])
        elif route.seq != topics.changes.seq:
            topics.catch_up(route)
        route.seen = True
        if route.right != self.right or route.epoch != router.epoch or router.by_flags:
            if not route.key:
                route = self.current(data[p + 2 : topic_end])  # a stem's, and rights have changed
            if not self.may(route, first):
                router.journal.touched = False
                if router.tap_denied or not self._refused(route, data, pos, topic_end, end - body):
                    self.deny_bytes(route, first, data[p:end])
                return end
            if route.seq != topics.changes.seq:
                topics.catch_up(route)  # whoever was asked has changed subscriptions
            if router.watched and self.is_watched():
                self._geared(route, data, pos, p, topic_end, at, body, end, expiry)
                return end
        gear, size = route.gear, end - pos
        if first & 4 and router.journal.whole and router.queues(self, route, size):
            return pos
        if size > SMALL and route.is_wide(size):
            if not route.topic:
                route = self.current(data[p + 2 : topic_end])
            self._geared(route, data, pos, p, topic_end, at, body, end, expiry)
            return end
        if gear & ~(HELD | NOTED) or first & 1:
            if not gear & ~KEPT and not first & 1:
                return self.recorded(route, data, pos, p, topic_end, at, body, end, expiry)
            if (
                gear & ~(HELD | NOTED) == _NAMED
                and not first & 1
                and not (expiry and first & 6)
                and router.settings.coalesce_runs
            ):
                return self.named(route, data, pos, p, topic_end, at, body, end, expiry)
            group = route.lone if gear & ~_BESIDE == SPREAD and not first & 1 else None
            if group is not None:
                self._lent(route, group, data, pos, p, topic_end, at, body, end, expiry)
                return end
            self._geared(route, data, pos, p, topic_end, at, body, end, expiry)
            return end
        if first & 6:
            if router.has_workers and first == _PLAIN1 and not gear:
                stop = self.carried(route, data, pos, p, topic_end, body, end)
                if stop:
                    return stop
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            router.journal.touched = False
            if self._accept(route, packet_id, data, pos, at, body, end):
                if gear & NOTED:
                    topic = route.name or router.topics.name_of(route, data, p + 2, topic_end)
                    router.note(self, topic, data, pos, at, body, end, end - pos, 1)
                self._qos1(route, data, pos, p, topic_end, at, body, end, expiry)
            return end
        stop = end
        run = 1
        metrics = router.metrics
        if router.settings.coalesce_runs:
            stop = run_end(data, pos, topic_end, body, end)
            if stop > end:
                stop = route.cut(pos, stop, size)
                run = (stop - pos) // size
                metrics.packets_received += run - 1
            elif route is topics.latest and not (gear or first & 9):
                stop = self.spanned(route, data, pos, p, topic_end, end)
                if stop:
                    return stop
                stop = end
            topics.latest = route
        metrics.messages_received_qos0 += run
        if gear & NOTED:
            topic = route.name or router.topics.name_of(route, data, p + 2, topic_end)
            router.note(self, topic, data, pos, at, body, end, size, run)
        self._qos0(route, data, pos, p, topic_end, at, body, stop, size, expiry)
        return stop

    def _refused(self, route: Route, data: bytes, pos: int, topic_end: int, size: int) -> bool:
        """Refuse what may not be published where no hook hears of it; False: `deny_bytes` does."""
        router = self.router
        first = data[pos]
        qos = first >> 1 & 3
        packet_id = data[topic_end] << 8 | data[topic_end + 1] if qos else 1
        if first & 1 or not packet_id or router.settings.deny_disconnect or not route.key:
            return False
        metrics = router.metrics
        router.topics.work += DENIED
        router.unkept += 1
        metrics.publishes_denied += 1
        metrics.dropped_denied += 1
        if router.tap_refused:
            router.note_refused(self, route.key, first & 7, size)
        if not qos:
            metrics.messages_received_qos0 += 1
            return True
        router.packet_type = _PUBLISH
        if qos == 1:
            metrics.messages_received_qos1 += 1
        else:
            metrics.messages_received_qos2 += 1
            if not self.v5:
                self.record(packet_id)
        answer = self.answer(answer_to(first), packet_id, reasons.NOT_AUTHORIZED)
        self.settle_refusal(answer, route.topic)
        return True

    def _qos0(
        self,
        route: Route,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        size: int,
        expiry: int,
    ) -> None:
        """Forward a run of QoS 0 packets of `size` bytes each to the sessions of a route."""
        v5 = self.v5
        apart: list[Receiver] | None = None
        same: bytes | None = None
        other: bytes | None = None
        sent = 0
        for receiver in route.sessions:
            channel = receiver.channel
            if channel is None or channel.special:
                if apart is None:
                    apart = []
                apart.append(receiver)
                continue
            if channel.v5 == v5 or channel.wraps:
                if same is None:
                    same = cut_plain(data, pos, end)  # a retained one begins no run
                wire = same
                one = size
            else:
                if other is None:
                    other = recast(data, pos, p, topic_end, body, end, size, self.v5)
                wire = other
                one = len(other) * size // (end - pos)
            if one > receiver.max_packet:
                if apart is None:
                    apart = []
                apart.append(receiver)
                continue
            out_bytes = channel.out_bytes + len(wire)
            if out_bytes > channel.limit and channel.over(len(wire)):
                self.router.metrics.dropped_slow_consumer += (end - pos) // size
                receiver.dropped += (end - pos) // size
                if self.router.tap_slow:
                    self.missed(receiver, route, data, pos, p, topic_end, at, body, end, size)
                continue
            if wire is same and channel.v5 != v5:
                channel.send(channel.older(len(same)))
            out = channel.out
            if out is None:
                channel.out = [wire]
            else:
                out.append(wire)
            channel.out_bytes += len(wire)
            if not channel.dirty:
                channel.dirty = True
                self.router.dirty.append(channel)
            sent += 1
        if apart is not None:
            self.one_by_one(apart, data, pos, p, topic_end, at, body, end, size, expiry, None)
        if sent:
            self.router.metrics.messages_sent += sent * ((end - pos) // size)
        elif not route.sessions:
            self.router.metrics.messages_no_subscriber += (end - pos) // size
            if self.router.tap_unheard:
                self.missed(None, route, data, pos, p, topic_end, at, body, end, size)
        self.router.topics.send_on(end - pos, len(route.sessions), LIGHT0)

    def _qos1(
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
    ) -> None:
        """Forward one QoS 1 or 2 packet to the sessions of a route, and acknowledge it."""
        first = data[pos]
        sessions = route.sessions
        count = len(sessions)
        packet_id = data[topic_end] << 8 | data[topic_end + 1]
        if count == 1:
            receiver = sessions[0]
            if route.options[0] & QOS_MASK >= first >> 1 & 3 and (
                receiver.v5 == self.v5 or (receiver.v5 and receiver.bare)
            ):
                if receiver.v5 != self.v5:
                    wire = lift(data, pos, p, topic_end, end)
                    receiver.take(wire, packet_id, len(wire) - (end - topic_end) - 1)
                else:
                    wire = cut_plain(data, pos, end)
                    if expiry:
                        self._expiring(receiver, wire, packet_id, topic_end - pos, expiry - pos)
                    else:
                        receiver.take(wire, packet_id, topic_end - pos)
                ack = (_ACK1 if first & 2 else _ACK2) + data[topic_end : topic_end + 2]
                self._settled(ack, route, data, p, topic_end)
                return
        if count:
            self.router.topics.send_on(end - pos, count, LIGHT1)
            if expiry or not self._same(route, first >> 1 & 3):
                self.inbound(data, pos, p, topic_end, at, body, end, expiry).fan(route)
            else:
                wire = cut_plain(data, pos, end)
                for receiver in sessions:
                    receiver.take(wire, packet_id, topic_end - pos)
            ack = (_ACK1 if first & 2 else _ACK2) + data[topic_end : topic_end + 2]
        else:
            self.router.metrics.messages_no_subscriber += 1
            if self.router.tap_unheard:
                size = end - pos
                self.missed(None, route, data, pos, p, topic_end, at, body, end, size)
            if self.v5:
                ack = self.answer(answer_to(first), packet_id, reasons.NO_MATCHING_SUBSCRIBERS)
            else:
                ack = (_ACK1 if first & 2 else _ACK2) + data[topic_end : topic_end + 2]
        self._settled(ack, route, data, p, topic_end)

    def _settled(self, ack: bytes, route: Route, data: bytes, p: int, topic_end: int) -> None:
        """`settle`, at once where nothing is waited for: the topic's name stays untouched then."""
        if route.gear & HELD or self.promises is not None or self.router.journal.touched:
            self.settle(ack, route.gear, route.topic or data[p + 2 : topic_end].decode())
        else:
            self.send(ack)

    def _same(self, route: Route, qos: int) -> bool:
        """Whether the bytes fit all receivers as they are."""
        v5 = self.v5
        if len(route.sessions) == 1:
            return route.sessions[0].v5 == v5 and route.options[0] & QOS_MASK >= qos
        for options in route.options:
            if options & QOS_MASK < qos:
                return False
        for receiver in route.sessions:
            if receiver.v5 != v5:
                return False
        return True

    def _expiring(
        self, receiver: Receiver, wire: bytes, packet_id: int, id_at: int, expiry_at: int
    ) -> None:
        """Hand over bytes whose Message Expiry Interval must be remembered."""
        session = self.session
        assert session is not None
        made = Delivery(wire, wire[0] >> 1 & 3, self.v5, packet_id, id_at, session.client_id)
        seconds = int.from_bytes(wire[expiry_at : expiry_at + 4], "big")
        made.expires_at = self.router.now + milliseconds(seconds) or 1
        made.expiry_at = expiry_at
        receiver.deliver(made, packet_id)

    # -- gears ---------------------------------------------------------------------------------

    def _geared(
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
    ) -> None:
        """One packet that needs more than its bytes: see `mqttd.session.routes.route`."""
        router = self.router
        router.journal.touched = False
        first = data[pos]
        gear = route.gear
        retain = first & 1 == 1
        if retain and not router.settings.retain_available:
            self.publish(first, data[p:end])  # says so
            return
        packet_id = 0
        if first & 6:
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            if gear & STUCK and self.stuck(route, first, packet_id):
                return
            if not self._accept(route, packet_id, data, pos, at, body, end):
                return
        else:
            router.metrics.messages_received_qos0 += 1
        if gear == HOOKED and not retain and not router.watched:
            self._hooked(route, data, pos, p, topic_end, at, body, end, expiry, packet_id)
            return
        inbound = self.inbound(data, pos, p, topic_end, at, body, end, expiry)
        message: Message | None = None
        if gear & FOLLOWED or (router.watched and self.is_watched()):
            message = inbound.message(route.topic, router.next_message_id())
            receivers = router.publish(message)
            router.topics.work += receivers + 1 if receivers > 0 else 1
            self.published(first, packet_id, receivers, gear, route.topic)
            return
        run: Run | None = None
        if gear & (HOOKED | TOLD):
            message = inbound.message(route.topic, router.next_message_id())
        if gear & HOOKED and message is not None:
            if self._taken(route, message, first, packet_id, gear):
                return
        if gear & TOLD:
            inbound.whole = message
        if message is None and gear & (MISSED | NOTED | RECORDED):
            run = self.name(route, data, pos, p, topic_end, at, body, end, 1)
            if gear & RECORDED:
                inbound.run = run
        elif message is not None and gear & NOTED:
            router.note_message(message)
        if retain:
            code = router.retain(self, inbound, route)
            if code and packet_id:
                if router.tap_dropped:
                    if message is None:
                        message = self.whole_of(inbound, route, run)
                    router.unheard(message, "retained_full")
                self.published(first, packet_id, -code, gear, route.topic)
                return
        wide = route.is_wide(end - pos)
        if not wide and not gear & _APART:
            if packet_id:
                self._qos1(route, data, pos, p, topic_end, at, body, end, expiry)
            else:
                self._qos0(route, data, pos, p, topic_end, at, body, end, end - pos, expiry)
            return
        if packet_id and run is not None and not wide and gear & _APART == RECORDED:
            self.recorded_one(route, run, data, pos, p, topic_end, at, body, end, expiry)
            return
        count = router.fan_out(inbound, route) if wide else inbound.fan(route)
        router.topics.work += count + 1
        router.topics.pour(end - pos, 0 if wide else count)
        if not count and (gear & (TOLD | UNHEARD) or (message is not None and gear & MISSED)):
            if message is None:
                message = self.whole_of(inbound, route, run)
            router.unheard(message, "no_subscriber")
        elif not count:
            if run is not None and gear & MISSED:
                router.unheard_run(self, run)
            if router.tap_unheard:
                self.missed(None, route, data, pos, p, topic_end, at, body, end, end - pos)
        self.published(first, packet_id, count, gear, route.topic)

    def _hooked(
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
        packet_id: int,
    ) -> None:
        """The rest of `_geared` where message.publish is asked and nothing else looks."""
        first = data[pos]
        message = self.whole(route, data, pos, at, body, end, expiry)
        if self._taken(route, message, first, packet_id, HOOKED):
            return
        if packet_id:
            self._qos1(route, data, pos, p, topic_end, at, body, end, expiry)
        else:
            self._qos0(route, data, pos, p, topic_end, at, body, end, end - pos, expiry)

    def _taken(self, route: Route, message: Message, first: int, packet_id: int, gear: int) -> bool:
        """Ask message.publish; whether the bytes cannot go on as they came, and all is done."""
        router = self.router
        changed = router.ask_publish(message)
        if changed is message and self.state == OPEN and route.seq == router.topics.changes.seq:
            return False
        receivers = router.refusal if changed is None else router.route_message(changed)
        self.published(first, packet_id, receivers, gear, route.topic)
        return True
