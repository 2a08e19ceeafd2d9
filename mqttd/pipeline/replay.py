"""Feeds recorded messages back: from an event log to a broker, as they were or at another pace.

    data/events or pull endpoint --> message.publish events of a range, all nodes by time
        --> topic filter --> pace --> --to-topic PREFIX   same broker, topics below PREFIX
                                      --to-client ID      one client only, told as messages to it
                                      --to-broker ADDR    another broker, same topics

Runs in a process of its own (`mqttd-ctl replay`), with a plain MQTT client: the broker's reactor
sees ordinary publishes and nothing else. What has no payload in the log is counted, not sent.

Promise: order within a node is kept, nodes are merged by time; a message is sent once, or twice
if the connection breaks in between; a hole in the log stops it, with the missing range named.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from mqttd.codec import properties as prop
from mqttd.codec.packet_types import PUBLISH
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import match
from mqttd.pipeline.log.reader import EventLog
from mqttd.pipeline.log.schema import Event
from mqttd.pipeline.log.tools import select

__all__ = ["Replayed", "Target", "parse_speed", "recorded", "replay"]

#: Properties that were meant for the first delivery only.
_DROPPED: Final = (prop.TOPIC_ALIAS, prop.SUBSCRIPTION_IDENTIFIER)


class Target(Protocol):
    """What takes the messages: `mqttd.pipeline.client.Client`, or a test's list."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: prop.Properties | None,
    ) -> None:
        """Take one."""

    def flush(self) -> None:
        """Send what has been taken."""


@dataclass
class Replayed:
    """What a replay has done."""

    sent: int = 0
    #: Events whose payload is not in the log.
    without_payload: int = 0
    #: Events that a gap stands for.
    lost: int = 0


def parse_speed(text: str) -> float:
    """``10x``, ``0.5x`` or ``max`` (0: as fast as it goes); raises ValueError."""
    if text == "max":
        return 0.0
    if re.fullmatch(r"\d{1,6}(\.\d{1,6})?x?", text) and (speed := float(text.rstrip("x"))) > 0:
        return speed
    raise ValueError(f"{text!r}: expected a speed such as 1x, 10x, 0.5x or max")


def recorded(
    log: EventLog, start: str | None = None, end: str | None = None, node: str | None = None
) -> Iterator[Event]:
    """The message.publish events of a range, and its gaps; all nodes, merged by time.

    Raises ValueError for a range that is none, DataLoss for one that is gone.
    """
    names = [node] if node is not None else list(log.bounds())
    if len(names) > 1 and any(
        place is not None and place.isascii() and place.isdigit() for place in (start, end)
    ):
        raise ValueError(
            f"offsets count per node, and there are {', '.join(names)}: name one, or give times"
        )
    streams = [select(log, start, end, name) for name in names]
    for event in heapq.merge(*streams, key=lambda event: event.timestamp):
        if event.event in ("message.publish", "log.gap"):
            yield event


def replay(
    found: Iterator[Event],
    target: Target,
    topic_filter: str | None = None,
    prefix: str = "",
    speed: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    retain: bool = False,
) -> Replayed:
    """Send recorded messages to `target`; returns what was done.

    :param prefix: put before each topic.
    :param speed: times the recorded pace, 0 for as fast as it goes.
    :param retain: send messages that were retained as retained ones again.
    """
    done = Replayed()
    first: int | None = None
    began = clock()
    for event in found:
        if event.event == "log.gap":
            done.lost += 0 if " skipped: " in (event.reason or "") else event.lost
            continue
        if event.topic is None:
            continue
        if topic_filter is not None and not match(event.topic, topic_filter):
            continue
        if event.payload is None:
            done.without_payload += 1
            continue
        if first is None:
            first = event.timestamp
        if speed:
            wait = began + (event.timestamp - first) / 1e6 / speed - clock()
            if wait > 0.001:
                target.flush()
                sleep(wait)
        target.publish(
            f"{prefix}{event.topic}",
            event.payload,
            event.qos or 0,
            bool(event.retain) and retain,
            _properties(event),
        )
        done.sent += 1
    target.flush()
    return done


def _properties(event: Event) -> prop.Properties | None:
    if not event.properties:
        return None
    try:
        found, _ = prop.decode_properties(event.properties, 0, len(event.properties), PUBLISH)
    except MqttError:
        return None
    for one in _DROPPED:
        found.pop(one, None)
    return found or None
