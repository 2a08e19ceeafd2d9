"""Messages that reach nobody, or not this receiver, are told of: for those who ask why.

    bytes on their way --> nobody there, or a slow reader --> Message --> Router.missed

Promise: nothing is made of a message unless there is room to tell of it in this second.
"""

from __future__ import annotations

from mqttd.session.ground.message import Message
from mqttd.session.ground.runs import Run
from mqttd.session.ground.wheel import milliseconds
from mqttd.session.publish.general import General
from mqttd.session.publish.inbound import Inbound
from mqttd.session.routes.receiver import Receiver
from mqttd.session.routes.route import NOTED, Route

__all__ = ["Missing"]


class Missing(General):
    """A connection that tells of what it cannot forward."""

    __slots__ = ()

    def missed(
        self,
        receiver: Receiver | None,
        route: Route,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        size: int,
    ) -> None:
        """Tell of the packets of a run that this receiver misses; None: there is nobody."""
        router = self.router
        topic = route.topic or data[p + 2 : topic_end].decode()
        first = self.inbound(data, pos, p, topic_end, at, body, pos + size, 0)
        shift = 0
        while pos + shift < end and (router.tap_unheard if receiver is None else router.tap_slow):
            inbound = first.behind(shift, router.now)
            message = inbound.message(topic, router.next_message_id())
            if receiver is None:
                router.missed(message, "no_subscriber", "")
            else:
                router.missed(message, "slow_consumer", receiver.client_id)
            shift += size

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
        """Forward bytes whose deliveries somebody keeps (`RECORDED`); the index behind them."""
        raise NotImplementedError

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
        """One QoS 1 or 2 packet that is named to the sessions of a route, as `_qos1`."""
        raise NotImplementedError

    def name(
        self,
        route: Route,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        count: int,
    ) -> Run:
        """Name a packet, or a run of them, and note it for those who keep it (`NOTED`)."""
        router = self.router
        topic = route.name or router.topics.name_of(route, data, p + 2, topic_end)
        if route.gear & NOTED:
            return router.note(self, topic, data, pos, at, body, end, end - pos, count)
        number = router.guid.reserve(router.instant(), count)
        return Run(router.guid.timestamp, number, topic, data[pos] & 7, end - body, count)

    def inbound(
        self,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        expiry: int,
    ) -> Inbound:
        """The parts of a PUBLISH of this client; see `Inbound` for their names."""
        session = self.session
        assert session is not None
        made = Inbound(
            data,
            pos,
            p,
            topic_end,
            at,
            body,
            end,
            self.v5,
            session.client_id,
            session.username,
        )
        if expiry:
            made.expires(self.router.now, expiry)
        return made

    def one_by_one(
        self,
        receivers: list[Receiver],
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        stop: int,
        size: int,
        expiry: int,
        run: Run | None,
    ) -> None:
        """The packets of a run of QoS 0 for receivers that need single deliveries.

        Of each packet those of a version get the same one: queues and a store have it once.
        """
        number = 0 if run is None else run.number
        first = self.inbound(data, pos, p, topic_end, at, body, pos + size, expiry)
        for shift in range(0, stop - pos, size):
            inbound = first.behind(shift, self.router.now)
            if run is not None:
                inbound.run = Run(run.came, number, run.topic, run.first, run.size)
                number += 1
            inbound.hand_out(receivers)

    def whole_of(self, inbound: Inbound, route: Route, run: Run | None) -> Message:
        """The whole of a message that has this run, or a new id."""
        if run is None:
            return inbound.message(route.topic, self.router.next_message_id())
        return inbound.message(route.topic, run.came << 64 | run.number)

    def whole(
        self, route: Route, data: bytes, pos: int, at: int, body: int, end: int, expiry: int
    ) -> Message:
        """The message of a PUBLISH of this client without RETAIN, as `Inbound.message`."""
        session = self.session
        assert session is not None
        router = self.router
        expires_at = 0
        if expiry:
            seconds = int.from_bytes(data[expiry : expiry + 4], "big")
            expires_at = router.now + milliseconds(seconds) or 1
        made = Message(
            0,
            route.topic,
            data[body:end],
            data[pos] >> 1 & 3,
            False,
            None,
            session.client_id,
            session.username,
            expires_at,
        )
        if self.v5 and data[at]:
            made.block = data[at:body]
        router.name_message(made)
        return made
