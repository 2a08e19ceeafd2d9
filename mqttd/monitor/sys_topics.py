"""The broker's own topics, `$SYS/broker/...`: its figures as messages.

    metrics (counters) --+
    stats   (gauges)   --+--> topics() --every `interval`--> retained messages
    clock, version     --+

The names are mosquitto's wherever it has one, so that its dashboards work unchanged; what it has
no name for (drops by reason, wills, takeovers) stands beside them. Payloads are text.

Promise: every message is retained, so a subscriber has all figures at once; all of them are
published in every interval; nothing is computed in between.

MQTT 5.0, 4.7.2 (topics that begin with `$`). See docs/reference/sys-topics.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from mqttd import __version__, compiled
from mqttd.broker.broker import Broker
from mqttd.session.metrics import DROP_REASONS

__all__ = ["PREFIX", "SysTopics"]

PREFIX: Final = "$SYS/broker/"

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
        #: The most clients that were connected when the figures were taken.
        self.clients_maximum: int = 0
        self._publishing = LoopingCall(self.publish)
        self._publishing.clock = clock
        self._log = Logger(namespace="mqttd.monitor")

    def start(self) -> None:
        """Publish now and in every interval from here on."""
        if self.interval > 0 and not self._publishing.running:
            done: Deferred[LoopingCall] = self._publishing.start(self.interval, now=True)
            done.addErrback(lambda failure: self._log.failure("$SYS topics stopped", failure))

    def stop(self) -> None:
        """Publish no more; what is retained stays."""
        if self._publishing.running:
            self._publishing.stop()

    def take_over(self, interval: float) -> None:
        """Publish in another interval; 0 publishes no more."""
        running = self._publishing.running
        self.stop()
        before, self.interval = self.interval, interval
        if running or not before:
            self.start()

    def publish(self) -> None:
        """Publish all figures as they are now."""
        for topic, payload in self.topics().items():
            self.broker.publish_text(topic, payload.encode(), retain=True)

    def topics(self) -> dict[str, str]:
        """Topic name -> payload, as of now."""
        stats = self.broker.stats()
        counters = self.broker.metrics.snapshot()
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
        return {PREFIX + topic: str(values[topic]) for topic in sorted(values)}
