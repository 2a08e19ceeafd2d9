"""Keeps what becomes of messages, in a ring of files: what `why` reads (`mqttd.readmodel.why`).

    lost for a reason     --> room in this second? --> one line       always
                                  '-- no: counted, told once a second as `more`
    followed              --> published, asked, routed, queued, sent, acked     one line each
      a traced topic          FOLLOWED, a gear of its routes
      a traced client         asked by itself at each message (`Publisher.is_watched`)
      a sample                one client's next message, each time so many packets have come
      another worker says so  crossed, queued, sent, acked

A message that is not followed and not lost is never looked at. Where a flood is told of from the
hot path itself, a flag says whether there is room (`Keeper.tap_slow`, `tap_unheard`).

Promise: lines are written by a thread; their files have `trace.ring` bytes; payloads are not kept.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from mqttd.broker.broker import Broker
from mqttd.codec import properties as prop
from mqttd.config.schema import Trace
from mqttd.monitor.log.targets import FileTarget
from mqttd.monitor.log.writer import Writer
from mqttd.readmodel.routes import Routes
from mqttd.readmodel.why import FILES, Matched, Step, Why, trace_of
from mqttd.session.ground.guid import to_hex
from mqttd.session.ground.message import Message
from mqttd.session.routes.route import FOLLOWED

__all__ = ["Traced", "Trail"]

#: Bursts are so many seconds of the rate.
_BURST: Final = 4
#: Messages that are followed at once; the oldest is followed no further.
_FOLLOWED: Final = 20_000
#: Filters, and clients of each, that are told.
_FILTERS: Final = 50
#: Bytes of lines that wait for the disk.
_QUEUE: Final = 8 << 20
#: Clients whose next message is awaited for a sample.
_AWAITED: Final = 1000
_NAME: Final = "trail"
#: Characters of a name or a text that a client has chosen.
_TEXT: Final = 1024


class Traced(msgspec.Struct, kw_only=True):
    """A client or a topic filter whose messages are followed; `until` in s since 1970."""

    kind: str
    value: str
    until: float | None = None
    #: By the configuration, which takes it back.
    configured: bool = False


class Trail:
    """The trail of one broker.

    Arguments: the broker; the table `[trace]`; the file; `rule(client_id, message)` says which rule
    lets it be published. Raises OSError if the file cannot be opened.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Trace,
        path: str,
        rule: Callable[[Message], str] = lambda message: "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.broker = broker
        self.path = path
        self.rule = rule
        self.clock = clock
        self.routes = Routes(broker)
        target = FileTarget(path, max(settings.ring // FILES, 1 << 16), FILES - 1, private=True)
        self.writer = Writer(target, _QUEUE, _lines_lost)
        self.why = Why(path, lambda: self.writer.waiting)
        #: Told of each step of a message that is followed, and of the message.
        self.listeners: list[Callable[[Step, Message], None]] = []
        self.traced: dict[tuple[str, str], Traced] = {}
        self.sampled = 0.0
        self._rate = 0
        #: Reason -> how many more are wanted now, and how many were not.
        self._left: dict[str, float] = {}
        self._more: dict[str, int] = {}
        self._told_at = 0.0
        self._filled_at = clock()
        self._ids: dict[int, None] = {}
        self._because = ""
        #: The message that a hook stops next though it is not lost, and where it is.
        self._held = (0, "")
        self._topics: list[str] = []
        self._encode = msgspec.json.Encoder().encode
        self._slow = self._unheard = 0
        broker.trail = self
        self.take_over(settings)

    def start(self) -> None:
        """Have a thread write from here on."""
        self.writer.start()

    def stop(self) -> None:
        """Write what waits."""
        self._tell_more()
        self.broker.trail = None
        self.broker.tap_followed = self.broker.tap_lost = False
        self.broker.tap_slow = self.broker.tap_unheard = False
        self.writer.stop()

    # -- who is followed -----------------------------------------------------------------------

    def take_over(self, settings: Trace) -> None:
        """Other settings; what was traced by hand stays."""
        self._rate = settings.rate
        self.sampled = settings.sample
        wanted = [("topic", one) for one in settings.topics]
        wanted += [("client", one) for one in settings.clients]
        for key, one in list(self.traced.items()):
            if one.configured and key not in wanted:
                del self.traced[key]
        for kind, value in wanted:
            self.traced[kind, value] = Traced(kind=kind, value=value, configured=True)
        self._next_sample()
        self._changed()
        self._flags()

    def trace(self, kind: str, value: str, seconds: float | None = None) -> Traced:
        """Follow the messages of a client, or to topics, so long or until `untrace`."""
        until = None if seconds is None else self.clock() + seconds
        made = Traced(kind=kind, value=value, until=until)
        self.traced[kind, value] = made
        self._changed()
        return made

    def untrace(self, kind: str, value: str) -> bool:
        """Follow them no more; False if they were not."""
        if self.traced.pop((kind, value), None) is None:
            return False
        self._changed()
        return True

    def _changed(self) -> None:
        broker = self.broker
        topics = [value for kind, value in self.traced if kind == "topic"]
        clients = {value for kind, value in self.traced if kind == "client"}
        if topics != self._topics:
            self._topics = topics
            broker.router.gears.ask(_NAME, FOLLOWED, topics)
            if broker.router.table:
                broker.router.all_changed()
        for client_id, count in list(broker.watched.items()):
            if count < 0 and client_id not in clients:
                self._unwatch(client_id)
        for client_id in clients:
            if broker.watched.get(client_id) != -1:
                broker.watched[client_id] = -1
                self._ask_again(client_id)
        if self.traced or self.sampled:
            broker.tap_followed = True

    def _unwatch(self, client_id: str) -> None:
        self.broker.watched.pop(client_id, None)
        self._ask_again(client_id)

    def _ask_again(self, client_id: str) -> None:
        """Have its connection, if there is one, ask whether it is watched."""
        session = self.broker.sessions.get(client_id)
        channel = self.broker.channel_of(session) if session is not None else None
        if channel is not None:
            channel.forget_rights()

    # -- a sample ------------------------------------------------------------------------------

    def _next_sample(self) -> None:
        broker = self.broker
        if self.sampled:
            after = 1 + int(random.expovariate(self.sampled)) if self.sampled < 1 else 1
            broker.sample_at = broker.metrics.packets_received + after
        else:
            broker.sample_at = 0

    def sample(self, client_id: str) -> None:
        """See `Trail.sample` of `mqttd.broker.ground.seams`."""
        watched = self.broker.watched
        if len(watched) >= _AWAITED:
            for known, count in list(watched.items()):
                if count > 0:
                    self._unwatch(known)
                    break
        watched.setdefault(client_id, 1)
        self._next_sample()

    # -- told by the broker --------------------------------------------------------------------

    def follows(self, topic: str, client_id: str) -> bool:
        """See `Trail.follows`."""
        watched = self.broker.watched
        count = watched.get(client_id, 0) if watched else 0
        if count > 0 and client_id:
            del watched[client_id]
            self._ask_again(client_id)
        if not count and not self._is_traced(topic):
            return False
        return self.room("followed")

    def _is_traced(self, topic: str) -> bool:
        return bool(self._topics) and bool(self.broker.router.of(topic).gear & FOLLOWED)

    def published(self, message: Message) -> None:
        """See `Trail.published`."""
        self._follow(message.id)
        self._put(self._step(message, "published", rule=self.rule(message)), message)

    def is_followed(self, message_id: int) -> bool:
        """See `Trail.is_followed`."""
        return message_id in self._ids

    def crossed(self, message: Message) -> None:
        """See `Trail.crossed`."""
        self.broker.tap_followed = True
        self._follow(message.id)
        self._put(self._step(message, "crossed"), message)

    def _follow(self, message_id: int) -> None:
        ids = self._ids
        if len(ids) >= _FOLLOWED:
            del ids[next(iter(ids))]
        ids[message_id] = None

    def asked(self, message: Message, told: Sequence[tuple[str, str]]) -> None:
        """See `Trail.asked`."""
        self._put(self._step(message, "asked", hooks=list(told)), message)

    def routed(self, message: Message, receivers: int) -> None:
        """See `Trail.routed`."""
        found = [
            Matched(one.topic_filter, one.group, one.receivers, one.clients)
            for one in self.routes.of(message.topic, elsewhere=True).routes[:_FILTERS]
        ]
        self._put(self._step(message, "routed", filters=found, count=max(receivers, 0)), message)

    def step(self, message: Message, what: str, client_id: str, detail: str) -> None:
        """See `Trail.step`."""
        if message.id in self._ids:
            made = Step(
                at=self._now(), id=to_hex(message.id), what=what, receiver=client_id, detail=detail
            )
            self._put(made, message)

    def left(self, reason: str) -> int:
        """See `Trail.left`."""
        return int(self._left.get(reason, self._rate * _BURST))

    def room(self, reason: str) -> bool:
        """See `Trail.room`."""
        left = self._left.get(reason, self._rate * _BURST)
        if left < 1:
            self._more[reason] = self._more.get(reason, 0) + 1
            self._flags()
            return False
        self._left[reason] = left - 1
        return True

    def passed_over(self, reason: str, count: int) -> None:
        """So many more were lost for a reason for which there was no `room`."""
        self._more[reason] = self._more.get(reason, 0) + count

    def lost(self, message: Message, reason: str, client_id: str, detail: str) -> None:
        """See `Trail.lost`."""
        if reason == "hook" and message.id == self._held[0]:
            self._put(self._step(message, "held", detail=self._held[1]), message)
            return
        if reason == "no_subscriber" and message.retain and self._is_retained(message.topic):
            self._put(self._step(message, "retained"), message)
            return
        if reason == "denied" and not detail:
            detail = self._because
        self._put(
            self._step(message, "lost", reason=reason, receiver=client_id, detail=detail), message
        )

    def holds(self, message: Message, where: str) -> None:
        """See `Trail.holds`."""
        self._held = message.id, where

    def _is_retained(self, topic: str) -> bool:
        level = self.broker.retainer.topics.get(topic)
        return level is not None and level.stored > 0

    def many(self, reason: str, client_id: str, count: int, detail: str) -> None:
        """See `Trail.many`."""
        self._write(
            Step(at=self._now(), what="more", receiver=client_id, reason=reason, count=count,
                 detail=detail[:_TEXT])
        )  # fmt: skip

    def because(self, rule: str) -> None:
        """See `Trail.because`."""
        self._because = rule

    # -- time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """A few times a second: there is room again."""
        now = self.clock()
        more = max(0.0, now - self._filled_at) * self._rate
        self._filled_at = now
        most = self._rate * _BURST
        for reason, left in list(self._left.items()):
            if left + more >= most:
                del self._left[reason]
            else:
                self._left[reason] = left + more
        self._flags()
        if now - self._told_at >= 1:
            self._told_at = now
            self._tell_more()
        over = [key for key, one in self.traced.items() if one.until and one.until <= now]
        for key in over:
            del self.traced[key]
        if over:
            self._changed()

    def _flags(self) -> None:
        broker = self.broker
        left = self._left
        broker.tap_slow = left.get("slow_consumer", 1) >= 1
        broker.tap_unheard = left.get("no_subscriber", 1) >= 1
        broker.tap_lost = left.get("queue_full", 1) >= 1

    def _tell_more(self) -> None:
        """How many were lost that nobody was told of one by one."""
        more, self._more = self._more, {}
        for reason, count in more.items():
            self._write(Step(at=self._now(), what="more", reason=reason, count=count))

    # -- lines ---------------------------------------------------------------------------------

    def _now(self) -> float:
        return round(self.clock(), 6)

    def _step(self, message: Message, what: str, **more: Any) -> Step:
        carried: Any = (message.properties or {}).get(prop.USER_PROPERTY)
        if "detail" in more:
            more["detail"] = more["detail"][:_TEXT]
        return Step(
            at=self._now(),
            id=to_hex(message.id),
            what=what,
            topic=message.topic[:_TEXT],
            client_id=message.client_id,
            username=message.username,
            qos=message.qos,
            retain=message.retain,
            bytes=len(message.payload),
            traceparent=trace_of(carried) if carried else "",
            **more,
        )

    def _put(self, step: Step, message: Message) -> None:
        self._write(step)
        if self.listeners and message.id in self._ids:
            for listener in self.listeners:
                listener(step, message)

    def _write(self, step: Step) -> None:
        self.writer.put(self._encode(step) + b"\n")


def _lines_lost(count: int) -> bytes:
    step = Step(at=round(time.time(), 6), what="more", reason="trail", count=count)
    return msgspec.json.encode(step) + b"\n"
