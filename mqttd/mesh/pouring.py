"""What comes from another worker goes to the sessions here as bytes, wherever they fit.

    Arriving --PUBLISH--> one packet, each receiver its shape
            --runs, spans of QoS 0--> one slice for each receiver

Runs and spans: `mqttd.codec.spans`.
"""

from __future__ import annotations

from typing import Final

from mqttd.broker.broker import Broker
from mqttd.broker.publish.fans import Fan
from mqttd.codec.frame import cut, run_end
from mqttd.codec.spans import span_end
from mqttd.mesh.landing import Local
from mqttd.mesh.peer import Choice
from mqttd.session.ground.message import Message
from mqttd.session.publish.inbound import Inbound, recast
from mqttd.session.publish.spans import to_all
from mqttd.session.routes.receiver import NO_LIMIT, Receiver
from mqttd.session.routes.route import LIGHT0, Route

__all__ = ["Pouring"]

#: Routes without peers that are remembered.
_ROUTES: Final = 20_000


class Pouring:
    """Hands messages of other workers to the sessions here."""

    def __init__(self, broker: Broker, choice: Choice) -> None:
        self.broker = broker
        self.choice = choice
        #: Of the packet that follows: who published it, its id, the group it is for.
        self.source: str = ""
        self.username: str | None = None
        self.message_id: int = 0
        #: It is followed from hand to hand there, and so here.
        self.followed: bool = False
        self.full_filter: str = ""
        #: That of the last message of QoS 0: what follows may be of it, too.
        self.latest: Route | None = None
        self._routes: dict[bytes, Local] = {}

    def fan(self, inbound: Inbound, route: Route, size: int) -> None:
        """A packet of `size` bytes to all, each in its shape."""
        broker = self.broker
        if broker.settings.upgrade_qos:
            broker.pubsub.dispatch(self.message_of(inbound, route.topic), route)
        elif route.is_wide(size):
            broker.fan_out(inbound, route)
        else:
            count = inbound.fan(route)
            broker.topics.work += count + 1
            broker.topics.pour(size, count)
            return
        later = broker.later
        broker.later = None
        if isinstance(later, Fan):
            later.link = self.choice.link
        if isinstance(later, Fan) and inbound.qos:
            # Its number is kept with this turn, and it is not sent again: see `mqttd.mesh.ferry`.
            broker.fans.hold(later)
            broker.journal.touched = True

    def together(
        self,
        route: Route,
        local: Local,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        end: int,
        expiry: int,
        v5: bool,
        most: int,
    ) -> int:
        """The run or span of plain QoS 0 before `most` that begins here; the index behind it."""
        size = end - pos
        stop = run_end(data, pos, topic_end, body, end)
        most = min(most, pos + max(local.route.room(), size))
        if stop > most:
            stop = most - (most - pos) % size
        if stop == end and route is self.latest:
            stop, count = span_end(data, pos, p, topic_end, end, NO_LIMIT, v5, most)
            if count > 1 and self.pour(local.route, data, pos, stop, count, v5):
                return stop
            stop = end
        self.latest = route
        self.broker.metrics.messages_crossed += (stop - pos) // size
        self.run(local.route, data, pos, p, topic_end, at, body, stop, size, expiry, v5)
        return stop

    def pour(self, route: Route, data: bytes, pos: int, stop: int, count: int, v5: bool) -> bool:
        """So many packets of QoS 0 to all at once, if all take them as they are."""
        if not to_all(route, data, pos, stop, v5):
            return False
        self.broker.topics.send_on(stop - pos, len(route.sessions), LIGHT0)
        metrics = self.broker.metrics
        metrics.messages_crossed += count
        metrics.messages_sent += count * len(route.sessions)
        return True

    def forget(self) -> None:
        self.source = ""
        self.username = None
        self.message_id = 0
        self.followed = False
        self.full_filter = ""

    def message_of(self, inbound: Inbound, topic: str) -> Message:
        message = inbound.whole
        if message is None:
            message = inbound.message(topic, self.message_id or self.broker.next_message_id())
        return message

    def whole(self, inbound: Inbound, topic: str) -> None:
        """Somebody looks at it."""
        broker = self.broker
        inbound.whole = self.message_of(inbound, topic)
        if self.followed and broker.trail is not None:
            broker.trail.crossed(inbound.whole)

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
        v5: bool = True,
    ) -> Inbound:
        made = Inbound(data, pos, p, topic_end, at, body, end, v5, self.source, self.username)
        if expiry:
            made.expires(self.broker.now, expiry)
        return made

    def local(self, route: Route) -> Local:
        """The route without peers and groups."""
        local = self._routes.get(route.key)
        if local is None or not local.is_of(route):
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            local = Local(route)
            self.broker.topics.work += len(route.sessions) >> LIGHT0
            self._routes[route.key] = local
        return local

    def run(
        self,
        route: Route,
        data: bytes,
        pos: int,
        p: int,
        topic_end: int,
        at: int,
        body: int,
        stop: int,
        size: int,
        expiry: int,
        v5: bool,
    ) -> None:
        """A run of QoS 0 packets of `size` bytes each, as bytes wherever they fit."""
        broker = self.broker
        same: bytes | None = None
        other: bytes | None = None
        apart: list[Receiver] = []
        count = (stop - pos) // size
        sent = 0
        for receiver in route.sessions:
            channel = receiver.channel
            if channel is None or channel.special or size > receiver.max_packet:
                apart.append(receiver)
                continue
            if channel.v5 == v5:
                if same is None:
                    same = cut(data, pos, stop)
                wire = same
            else:
                if other is None:
                    other = recast(data, pos, p, topic_end, body, stop, size, v5)
                wire = other
            if channel.out_bytes + len(wire) > channel.limit and channel.over(len(wire)):
                broker.metrics.dropped_slow_consumer += count
                receiver.dropped += count
                continue
            channel.send(wire)
            sent += 1
        if apart:
            first = self.inbound(data, pos, p, topic_end, at, body, pos + size, expiry, v5)
            for shift in range(0, stop - pos, size):
                first.behind(shift, broker.now).hand_out(apart)
        broker.metrics.messages_sent += sent * count
        broker.topics.send_on(stop - pos, len(route.sessions), LIGHT0)
