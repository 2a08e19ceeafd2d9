"""PUBLISH on its way through: a span of QoS 0 goes as the bytes it came in.

    PUBLISH a/b x, a/b xyz, a/b xy --one slice--> all receivers

Of a span are packets of one client right behind one another and of one topic that needs nothing
but their bytes (`mqttd.codec.spans`), to receivers that all take them as they are. All else goes
run by run, which gives its receivers the same (tests/unit/session/test_differential.py). Looked for
where the last message was of this topic, too. MQTT 5.0, 4.6.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.frame import cut
from mqttd.codec.spans import span_end
from mqttd.session.publish.carrying import Carrying
from mqttd.session.routes.receiver import NO_LIMIT
from mqttd.session.routes.route import LIGHT0, Route

__all__ = ["Spanning", "to_all"]

#: More than a frame before them has.
_HEAD: Final = 8


def to_all(route: Route, data: bytes, pos: int, stop: int, v5: bool) -> bool:
    """Hand packets of QoS 0 to every session as they are, if all take them so and have room."""
    sessions = route.sessions
    for receiver in sessions:
        channel = receiver.channel
        if (
            channel is None
            or channel.special
            or (channel.v5 != v5 and not channel.wraps)
            or receiver.max_packet != NO_LIMIT
            or channel.out_bytes + stop - pos + _HEAD > channel.limit
        ):
            return False
    if not sessions:
        return True
    same = cut(data, pos, stop)
    for receiver in sessions:
        channel = receiver.channel
        assert channel is not None
        if channel.v5 != v5:
            channel.send(channel.older(len(same)))
        channel.send(same)
    return True


class Spanning(Carrying):
    """A connection that forwards spans."""

    __slots__ = ()

    def spanned(self, route: Route, data: bytes, pos: int, p: int, topic_end: int, end: int) -> int:
        """Hand on the span that begins here, plain QoS 0; the index behind it, 0: there is none."""
        router = self.router
        count = len(route.sessions)
        if not count and router.tap_unheard:
            return 0
        most = min(pos + route.room(), len(data))
        stop, packets = span_end(data, pos, p, topic_end, end, self.largest, self.v5, most)
        if packets == 1 or not to_all(route, data, pos, stop, self.v5):
            return 0
        metrics = router.metrics
        metrics.packets_received += packets - 1
        metrics.messages_received_qos0 += packets
        if count:
            metrics.messages_sent += packets * count
        else:
            metrics.messages_no_subscriber += packets
        router.topics.send_on(stop - pos, count, LIGHT0)
        return stop
