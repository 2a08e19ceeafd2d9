"""Turns what happens at hook points into rows of the event log.

    hook point --> chosen? (event, topic, client, sample) --> one tuple --> Columns
    a message that is routed, as bytes ------------------------------------> Columns
    a delivery, an acknowledgement, what a receiver misses ----------------> Columns
    what a client may not do ----------------------------------------------> Columns

Promise: an event of a hook costs about a microsecond here, one that is not chosen a look-up.
Nothing waits. Only points whose events are chosen are hooked; what every message may have is none
of them: the broker hands messages, what becomes of them, and denials to `Columns` itself, on no
plugin's budget.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable
from typing import Any, Final

from mqttd.codec.reasons import name_of
from mqttd.pipeline.log.appender import Appender
from mqttd.pipeline.log.blocks import HAS_QOS, NO_ID
from mqttd.pipeline.log.columns import Columns, peer_text
from mqttd.pipeline.log.schema import CODES, EVENTS
from mqttd.types import ClientInfo, HookResult
from mqttd_plugins.spark.config import SparkConfig

__all__ = ["Exporter", "chosen_events"]

#: Exporting sees what all other plugins have made of it.
LAST: Final = -1_000_000

#: Events that the broker hands to `Columns`.
NOTED: Final = frozenset(
    (
        "client.authorize",
        "message.publish",
        "message.delivered",
        "message.acked",
        "message.dropped",
        "delivery.dropped",
    )
)

#: Answers about topics and clients that are remembered.
MOST_ANSWERS: Final = 50_000

#: Reason codes of CONNACK that say: not you.
DENIED: Final = frozenset((0x86, 0x87, 0x8A, 0x8C))


def chosen_events(patterns: tuple[str, ...]) -> list[str]:
    """The events that `patterns` name; ValueError for one that names none."""
    known = [name for name in EVENTS if name != "log.gap"]
    found: set[str] = set()
    for pattern in patterns:
        names = fnmatch.filter(known, pattern)
        if not names:
            raise ValueError(f"events: {pattern!r} is no event; there are: {', '.join(known)}")
        found.update(names)
    return [name for name in known if name in found]


class Exporter:
    """What is chosen, and the callbacks for it."""

    def __init__(self, config: SparkConfig, log: Appender) -> None:
        self.log = log
        self.events = chosen_events(config.events)
        self._topics = () if "#" in config.topics else config.topics
        self._clients = () if "*" in config.clients else config.clients
        self._limit = config.payload_limit if config.payload else -1
        self._sample = round(config.sample * 65536)
        redact = set(config.redact)
        if "payload" in redact:
            self._limit = -1
        self._hide_client = "client_id" in redact
        self._hide_user = "username" in redact
        self._hide_peer = "peer" in redact
        self._hide_topic = "topic" in redact
        self._hide_headers = "headers" in redact
        self._client_answers: dict[str, bool] = {}
        self._append = log.append

    def callbacks(self) -> list[tuple[str, Callable[..., HookResult | None]]]:
        """(hook point, callback) for the events that were chosen."""
        special: dict[str, Callable[..., HookResult | None]] = {
            "client.disconnected": self._with_reason(CODES["client.disconnected"]),
            "session.terminated": self._with_reason(CODES["session.terminated"]),
            "client.subscribe": self.client_subscribe,
            "client.unsubscribe": self.client_unsubscribe,
            "session.subscribed": self.session_subscribed,
            "session.unsubscribed": self.session_unsubscribed,
        }
        points: dict[str, tuple[str, Callable[..., HookResult | None]]] = {
            "client.authenticate": ("client.connack", self.client_connack),
        }
        return [
            points.get(name) or (name, special.get(name) or self._of_client(CODES[name]))
            for name in self.events
            if name not in NOTED
        ]

    def choose(self, columns: Columns) -> None:
        """Have `columns`, which is told of messages and denials itself, keep what was chosen."""
        columns.limit = self._limit
        columns.hide_client = self._hide_client
        columns.hide_user = self._hide_user
        columns.hide_peer = self._hide_peer
        columns.hide_topic = self._hide_topic
        columns.hide_headers = self._hide_headers
        columns.wants = self.wants_client if self._clients else None
        columns.sample = self._sample

    # -- what is chosen

    def wants_client(self, client_id: str) -> bool:
        """Whether events of this client are exported."""
        if not self._clients:
            return True
        answer = self._client_answers.get(client_id)
        if answer is None:
            answer = any(fnmatch.fnmatchcase(client_id, one) for one in self._clients)
            if len(self._client_answers) >= MOST_ANSWERS:
                self._client_answers.clear()
            self._client_answers[client_id] = answer
        return answer

    # -- clients and sessions

    def client_event(
        self, code: int, client: ClientInfo, topic: str = "", reason: str = "", flags: int = 0
    ) -> None:
        """Export an event of a client."""
        if not self.wants_client(client.client_id):
            return
        self._append(
            (
                code,
                time.time_ns() // 1000,
                flags,
                NO_ID,
                "" if self._hide_client else client.client_id,
                "" if self._hide_user or client.username is None else client.username,
                "" if self._hide_peer else peer_text(client.peerhost, client.peerport),
                "" if self._hide_topic else topic,
                reason,
                0,
                b"",
                b"",
            )
        )

    def _of_client(self, code: int) -> Callable[..., HookResult | None]:
        def happened(client: ClientInfo, acc: object) -> None:
            self.client_event(code, client)

        return happened

    def _with_reason(self, code: int) -> Callable[..., HookResult | None]:
        def happened(client: ClientInfo, reason: str, acc: object) -> None:
            self.client_event(code, client, "", reason)

        return happened

    def client_connack(self, client: ClientInfo, reason_code: int, acc: object) -> None:
        """A client was refused because of who it is, or is not."""
        if reason_code in DENIED:
            code = CODES["client.authenticate"]
            self.client_event(code, client, "", name_of(reason_code))

    def client_subscribe(self, client: ClientInfo, properties: object, asked: list[Any]) -> None:
        """One event for each filter a client asks for."""
        code = CODES["client.subscribe"]
        for one in asked:
            self.client_event(code, client, one.topic_filter, "", HAS_QOS | one.qos)

    def client_unsubscribe(
        self, client: ClientInfo, properties: object, filters: list[str]
    ) -> None:
        """One event for each filter a client gives up."""
        for topic_filter in filters:
            self.client_event(CODES["client.unsubscribe"], client, topic_filter)

    def session_subscribed(self, client: ClientInfo, subscription: Any, acc: object) -> None:
        """A subscription was granted."""
        flags = HAS_QOS | subscription.qos
        code = CODES["session.subscribed"]
        self.client_event(code, client, subscription.topic_filter, "", flags)

    def session_unsubscribed(self, client: ClientInfo, topic_filter: str, acc: object) -> None:
        """A subscription has ended."""
        self.client_event(CODES["session.unsubscribed"], client, topic_filter)
