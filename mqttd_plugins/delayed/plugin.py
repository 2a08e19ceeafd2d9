"""Holds messages to ``$delayed/SECONDS/topic`` back, and publishes them to `topic` when it is time.

    $delayed/60/lamp/off --> waits --60 s--> lamp/off, with its publisher, id and expiry

    heap  (due, order, message)     one timer, for the first of them

The right to publish to ``$delayed/60/lamp/off`` is the right to publish to ``lamp/off``: the rules
are asked for that. Messages that wait are in memory: they are lost when the plugin is unloaded or
the broker stops, which is logged with their number.

Promise: at most `max_messages` and `max_bytes` wait, none longer than `max_delay`; a message that
does not fit is refused and counted. Messages of the same second come out in the order they came.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from zope.interface import implementer

from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_name
from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.types import ACTION_PUBLISH, OK, STOP, Action, ClientInfo, HookResult, Verdict

__all__ = ["Delayed", "Settings", "parse"]

PREFIX: Final = "$delayed/"
#: The longest delay there can be: EMQ's, 49 days.
LONGEST: Final = 4_294_967
#: Messages that are published before clients have their turn.
BATCH: Final = 32
#: What a place in the heap takes, in bytes.
OVERHEAD: Final = 200


class Settings(Struct, frozen=True, kw_only=True):
    """What ``etc/plugins/delayed.conf`` may say."""

    #: Messages that may wait.
    max_messages: Annotated[int, Meta(ge=1)] = 100_000
    #: Memory that they may take together, in bytes: topics, payloads and properties.
    max_bytes: Annotated[int, Meta(ge=1024)] = 64 << 20
    #: The longest delay in seconds.
    max_delay: Annotated[int, Meta(ge=1, le=LONGEST)] = LONGEST


def parse(topic: str) -> tuple[int, str] | None:
    """Seconds and real topic of ``$delayed/SECONDS/topic``; None if it is malformed."""
    _, seconds, real = (topic.split("/", 2) + ["", ""])[:3]
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) <= 7) or not real:
        return None
    try:
        validate_topic_name(real)
    except MqttError:
        return None
    # One delay is enough, and $SYS is the broker's own.
    return None if real.startswith((PREFIX, "$SYS/")) else (int(seconds), real)


@implementer(IPlugin)
class Delayed:
    """The running part."""

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Hook messages and rights."""
        self.handle = handle
        self.config = config
        self.published = 0
        self.refused = 0
        self.bytes = 0
        self._heap: list[tuple[float, int, Any]] = []
        self._order = 0
        self._timer: Any = None
        # After what rewrites and checks messages, before what only looks at them.
        handle.hook("message.publish", self.publish, priority=-100)
        handle.hook("client.authorize", self.authorize, priority=100)
        handle.add_metric("waiting", "Messages that wait.", lambda: len(self._heap))
        handle.add_metric("waiting_bytes", "Memory that those take.", lambda: self.bytes)
        handle.add_metric("held_bytes", "The same, for memory.budget.", lambda: self.bytes)
        handle.add_metric("published_total", "Messages published late.", lambda: self.published)
        handle.add_metric("refused_total", "Messages that did not fit.", lambda: self.refused)
        handle.add_command("status", self.status, "How many messages wait, and for how long.")

    def unload(self) -> None:
        """What waits is lost."""
        waiting = len(getattr(self, "_heap", ()))
        if waiting:
            self.handle.log.warn("{count} delayed messages are lost", count=waiting)
            self._heap.clear()

    def status(self, argv: list[str]) -> str:
        """`mqttd-ctl delayed status`"""
        text = f"{len(self._heap)} messages wait, {self.bytes} bytes"
        if self._heap:
            text += f", the next for {self._heap[0][0] - self.handle.clock.seconds():.0f} s"
        return f"{text}; {self.published} published, {self.refused} refused"

    def authorize(
        self, client: ClientInfo, action: Action, topic: str, verdict: Verdict
    ) -> HookResult:
        """client.authorize: the right to the real topic."""
        if action.kind != ACTION_PUBLISH or not topic.startswith(PREFIX):
            return OK
        parsed = parse(topic)
        if parsed is None or parsed[0] > self.config.max_delay:
            return STOP(Verdict.DENY)
        allowed = self.handle.authorize(client, action, parsed[1])
        return STOP(Verdict.ALLOW if allowed else Verdict.DENY)

    def publish(self, message: Any) -> HookResult:
        """message.publish: keep what is delayed."""
        if not message.topic.startswith(PREFIX):
            return OK
        parsed = parse(message.topic)
        if parsed is None or parsed[0] > self.config.max_delay:
            return self._refuse(message, "malformed, or too far away")
        seconds, topic = parsed
        message = message.replace(topic=topic)
        if seconds == 0:
            return OK(message)
        size = _size(message)
        config = self.config
        if len(self._heap) >= config.max_messages or self.bytes + size > config.max_bytes:
            return self._refuse(message, "too many wait")
        self._order += 1
        self.bytes += size
        heappush(self._heap, (self.handle.clock.seconds() + seconds, self._order, message))
        if self._heap[0][2] is message:
            self._wind()
        return STOP(None)

    def _refuse(self, message: Any, why: str) -> HookResult:
        self.refused += 1
        if self.refused <= 10 or self.refused % 1000 == 0:
            self.handle.log.warn(
                "message of {client_id!r} to {topic} refused: {why} ({count} so far)",
                client_id=message.client_id,
                topic=message.topic[:200],
                why=why,
                count=self.refused,
            )
        return STOP(None)

    def _wind(self) -> None:
        """Set the timer to the first message."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        if self._heap:
            left = max(self._heap[0][0] - self.handle.clock.seconds(), 0)
            self._timer = self.handle.call_later(left, self._due)

    def _due(self) -> None:
        now = self.handle.clock.seconds()
        for _ in range(BATCH):
            if not self._heap or self._heap[0][0] > now + 1e-6:
                break
            _, _, message = heappop(self._heap)
            self.bytes -= _size(message)
            self.published += 1
            self.handle.republish(message)
        self._wind()


def _size(message: Any) -> int:
    weight: int = message.weight()
    return weight + OVERHEAD
