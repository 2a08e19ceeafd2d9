"""The broker's own topics, `$SYS/broker/...`: its figures as messages.

    metrics (counters) --+
    stats   (gauges)   --+--> topics() --every `interval`--> retained messages
    clock, version     --+

The names are mosquitto's wherever it has one, so that its dashboards work unchanged; what it has
no name for (drops by reason, wills, takeovers) stands beside them. Payloads are text.

Each figure that EMQ has a name for stands under that, too, and alarms are told as EMQ does.

Promise: every figure is retained, so a subscriber has all figures at once; all of them are
published in every interval; nothing is computed in between.

MQTT 5.0, 4.7.2 (topics that begin with `$`). See docs/reference/sys-topics.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from mqttd import __version__, compiled
from mqttd.broker.broker import Broker
from mqttd.session.ground.metrics import DROP_REASONS

__all__ = ["EMQ_PREFIX", "PREFIX", "SysTopics"]

PREFIX: Final = "$SYS/broker/"
#: Of EMQ's names; the name of the node follows.
EMQ_PREFIX: Final = "$SYS/brokers/"

#: Topic below `PREFIX` -> counter of `Metrics`.
COUNTER_TOPICS: Final[dict[str, str]] = {
    "bytes/received": "bytes_received",
    "bytes/sent": "bytes_sent",
    "clients/expired": "sessions_expired",
    "clients/takenover": "sessions_takenover",
    "connections/accepted": "connections_accepted",
    "connections/refused": "connections_refused",
    "connections/closed": "connections_closed",
    "connections/malformed": "malformed_packets",
    "connections/timeout": "keepalive_timeouts",
    "messages/received": "packets_received",
    "publish/messages/sent": "messages_sent",
    "publish/messages/denied": "publishes_denied",
    "publish/messages/wills": "wills_published",
}

#: Topic below `PREFIX` -> gauge of `Broker.stats`.
GAUGE_TOPICS: Final[dict[str, str]] = {
    "alarms/count": "alarms",
    "clients/connected": "clients_connected",
    "clients/total": "sessions",
    "connections/count": "connections",
    "plugins/quarantined": "plugins_quarantined",
    "retained messages/bytes": "retained_bytes",
    "retained messages/count": "retained_messages",
    "shared_subscriptions/count": "shared_groups",
    "subscriptions/count": "subscriptions",
}

#: The same figures under EMQ's names, below `EMQ_PREFIX` and the node's name.
EMQ_COUNTERS: Final[dict[str, str]] = {
    "metrics/bytes/received": "bytes_received",
    "metrics/bytes/sent": "bytes_sent",
    "metrics/messages/received": "messages_received",
    "metrics/messages/sent": "messages_sent",
    "metrics/messages/dropped": "dropped",
    "metrics/messages/dropped/no_subscribers": "messages_no_subscriber",
    "metrics/packets/received": "packets_received",
}
EMQ_GAUGES: Final[dict[str, str]] = {
    "stats/connections/count": "connections",
    "stats/live_connections/count": "clients_connected",
    "stats/retained/count": "retained_messages",
    "stats/sessions/count": "sessions",
    "stats/subscriptions/count": "subscriptions",
    "stats/subscriptions/shared/count": "shared_groups",
    "stats/topics/count": "topics_cached",
}
#: Each alarm as it is raised and cleared, as EMQ has them.
ALARM_TOPICS: Final = {"alarm raised": "alarms/activate", "alarm cleared": "alarms/deactivate"}


class SysTopics:
    """Publishes the `$SYS` topics of a broker while it is started.

    Arguments: the broker; `interval` in seconds (0 publishes nothing); `clock`, a reactor or a
    test's clock; `wall`, which gives seconds since 1970.
    """

    def __init__(
        self,
        broker: Broker,
        interval: float,
        clock: Any,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.broker = broker
        self.interval = interval
        self.wall = wall
        #: Called for more topics (below `PREFIX`) and their payloads.
        self.more: list[Callable[[], dict[str, str]]] = []
        #: Gives gauges and counters, where there are those of other workers to add.
        self.figures: Callable[[], tuple[dict[str, int], dict[str, int]]] = self._own
        #: Another worker of this broker publishes them.
        self.silent = False
        #: Alarms that are told nevertheless: that other worker may be what they are about.
        self.told_if_silent: frozenset[str] = frozenset()
        self._started = False
        #: The most clients that were connected when the figures were taken.
        self.clients_maximum: int = 0
        self._publishing = LoopingCall(self.publish)
        self._publishing.clock = clock
        self._log = Logger(namespace="mqttd.monitor")

    def start(self) -> None:
        """Publish now and in every interval from here on."""
        self._started = True
        if self.interval > 0 and not self._publishing.running and not self.silent:
            done: Deferred[LoopingCall] = self._publishing.start(self.interval, now=True)
            done.addErrback(lambda failure: self._log.failure("$SYS topics stopped", failure))

    def stop(self) -> None:
        """Publish no more; what is retained stays."""
        self._started = False
        if self._publishing.running:
            self._publishing.stop()

    def take_over(self, interval: float) -> None:
        """Publish in another interval; 0 publishes no more."""
        running = self._publishing.running
        if running:
            self._publishing.stop()
        before, self.interval = self.interval, interval
        if running or not before:
            self.start()

    def publish(self) -> None:
        """Publish all figures as they are now."""
        for topic, payload in self.topics().items():
            self.broker.publish_text(topic, payload.encode(), retain=True)

    def _own(self) -> tuple[dict[str, int], dict[str, int]]:
        return self.broker.stats(), self.broker.metrics.snapshot()

    def topics(self) -> dict[str, str]:
        """Topic name -> payload, as of now."""
        stats, counters = self.figures()
        connected = stats["clients_connected"]
        self.clients_maximum = max(self.clients_maximum, connected)
        values: dict[str, object] = {
            "version": f"mqttd {__version__}",
            "compiled": "true" if compiled() else "false",
            "name": self.broker.name,
            "datetime": datetime.fromtimestamp(self.wall(), UTC).isoformat(timespec="seconds"),
            "uptime": f"{stats['uptime_seconds']} seconds",
            "clients/disconnected": stats["sessions"] - connected,
            "clients/maximum": self.clients_maximum,
            "publish/messages/received": counters["messages_received"],
            "publish/messages/dropped": counters["dropped"],
        }
        for topic, gauge in GAUGE_TOPICS.items():
            values[topic] = stats[gauge]
        for topic, counter in COUNTER_TOPICS.items():
            values[topic] = counters[counter]
        for reason in DROP_REASONS:
            values[f"publish/messages/dropped/{reason}"] = counters[f"dropped_{reason}"]
        for more in self.more:
            values.update(more())
        found = {PREFIX + topic: str(values[topic]) for topic in sorted(values)}
        found.update(self._emq_topics(stats, counters, values))
        return found

    def _emq_topics(
        self, stats: dict[str, int], counters: dict[str, int], values: dict[str, object]
    ) -> dict[str, str]:
        prefix = self._emq_prefix()
        more: dict[str, object] = {topic: stats[name] for topic, name in EMQ_GAUGES.items()}
        more.update({topic: counters[name] for topic, name in EMQ_COUNTERS.items()})
        more["stats/connections/max"] = self.clients_maximum
        more["version"] = __version__
        more["sysdescr"] = "mqttd"
        more["uptime"] = stats["uptime_seconds"] * 1000
        more["datetime"] = values["datetime"]
        found = {prefix + topic: str(value) for topic, value in sorted(more.items())}
        found[EMQ_PREFIX[:-1]] = self.broker.name
        return found

    def _emq_prefix(self) -> str:
        return f"{EMQ_PREFIX}{self.broker.name}/"

    def alarm(self, event: str, fields: dict[str, object]) -> None:
        """An alarm was raised or cleared: tell it in the next turn, in a message of its own."""
        topic = ALARM_TOPICS.get(event)
        if topic is not None and self._tells(fields["alarm"]):
            told = {"name": fields["alarm"], "message": fields["text"], "at": self.wall()}
            payload = json.dumps(told).encode()
            # Alarms are raised in the middle of other things.
            clock = self._publishing.clock
            clock.callLater(0, self.broker.publish_text, self._emq_prefix() + topic, payload)

    def _tells(self, alarm: object) -> bool:
        """Whether it is ours to publish that this alarm was raised or cleared."""
        if self.silent:
            return self._started and self.interval > 0 and alarm in self.told_if_silent
        return bool(self._publishing.running)
