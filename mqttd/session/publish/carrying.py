"""PUBLISH on its way to another worker: runs and spans of QoS 1 go as the bytes they came in.

    PUBLISH a/b 1, a/b 2, a/b 3 --one slice--> Peer       one look-up, one frame
                     '--ack 1, ack 2, ack 3--> Promises   held until that worker has all of it

Of a run are packets of one client right behind one another that differ in packet ids and payloads
alone (`counted_run_end`), of a span in lengths and properties, too (`mqttd.codec.spans`), whose
topic nobody subscribes to but at one other worker. All else goes packet by packet, which gives its
receivers the same (tests/unit/workers/test_runs.py). MQTT 5.0, 4.3.2, 4.6.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.frame import counted_run_end
from mqttd.codec.spans import SPAN, ids_of, span_end
from mqttd.session.publish.missing import Missing
from mqttd.session.routes.route import QOS_MASK, Route

__all__ = ["Carrying"]

_ACK1: Final = b"\x40\x02"


class Carrying(Missing):
    """A connection whose runs of QoS 1 another worker may take."""

    __slots__ = ()

    def carried(
        self, route: Route, data: bytes, pos: int, p: int, topic_end: int, body: int, end: int
    ) -> int:
        """Hand on what begins here, plain QoS 1; the index behind it, 0: it is one packet."""
        sessions = route.sessions
        if len(sessions) != 1 or not (data[topic_end] or data[topic_end + 1]):
            return 0
        receiver = sessions[0]
        channel = receiver.channel
        if channel is None or not channel.wraps or not route.options[0] & QOS_MASK:
            return 0
        router = self.router
        promises = self.promised()
        # Who sends more than Receive Maximum is told so at the packet that is too much.
        most = len(data)
        if self.v5:
            most = router.settings.receive_maximum - len(promises)
        kind = 5 if self.v5 else 4
        stop = end
        count = 1
        if not self.v5 or body == topic_end + 3:
            stop = counted_run_end(data, pos, topic_end, body, end)
            count = (stop - pos) // (end - pos)
        if count == 1:
            if route is not router.topics.latest:
                router.topics.latest = route
                return 0
            stop, count = span_end(data, pos, p, topic_end, end, self.largest, self.v5, len(data))
            if count > most:
                return 0
            kind |= SPAN
        elif count > most:
            count = most
            stop = pos + count * (end - pos)
        if count < 2:
            return 0
        router.journal.touched = False
        if not receiver.take_run(data[pos:stop], count, kind):
            return 0
        metrics = router.metrics
        metrics.packets_received += count - 1
        metrics.messages_received_qos1 += count
        acks = _ACK1 + _ACK1.join(ids_of(data, pos, stop, topic_end - p))
        keepers = router.with_journal(None, route.topic, self.listener)
        promises.hold_run(acks, count, keepers)
        return stop
