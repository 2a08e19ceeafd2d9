"""PUBLISH on its way to another worker: a run of QoS 1 goes as the bytes it came in.

    PUBLISH a/b 1, a/b 2, a/b 3 --one slice--> Peer       one look-up, one frame
                     '--ack 1, ack 2, ack 3--> Promises   held until that worker has all of it

Of a run are packets of one client right behind one another that differ in packet ids and payloads
alone (`counted_run_end`), without properties, whose topic nobody subscribes to but at one other
worker. All else goes packet by packet, which gives its receivers the same
(tests/unit/workers/test_runs.py). MQTT 5.0, 4.3.2, 4.6.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.frame import counted_run_end
from mqttd.session.missing import Missing
from mqttd.session.route import QOS_MASK, Route

__all__ = ["Carrying"]

_ACK1: Final = b"\x40\x02"


class Carrying(Missing):
    """A connection whose runs of QoS 1 another worker may take."""

    __slots__ = ()

    def carried(
        self, route: Route, data: bytes, pos: int, topic_end: int, body: int, end: int
    ) -> int:
        """Hand on the run that begins here, plain QoS 1; the index behind it, 0: there is none."""
        sessions = route.sessions
        if len(sessions) != 1 or (self.v5 and body != topic_end + 3):
            return 0
        receiver = sessions[0]
        channel = receiver.channel
        if channel is None or not channel.wraps or not route.options[0] & QOS_MASK:
            return 0
        stop = counted_run_end(data, pos, topic_end, body, end)
        if stop == end or not (data[topic_end] or data[topic_end + 1]):
            return 0
        size = end - pos
        count = (stop - pos) // size
        router = self.router
        promises = self.promised()
        if self.v5:
            # Who sends more than Receive Maximum is told so at the packet that is too much.
            most = router.settings.receive_maximum - len(promises)
            if most < 2:
                return 0
            if count > most:
                count = most
                stop = pos + count * size
        router.journal.touched = False
        if not receiver.take_run(data[pos:stop], count, self.v5):
            return 0
        metrics = router.metrics
        metrics.packets_received += count - 1
        metrics.messages_received_qos1 += count
        parts: list[bytes] = []
        at = topic_end
        while at < stop:
            parts.append(_ACK1)
            parts.append(data[at : at + 2])
            at += size
        keepers = router.with_journal(None, route.topic, self.listener)
        promises.hold_run(b"".join(parts), count, keepers)
        return stop
