"""Retained messages as operators see them: found by filter, shown, forgotten.

Promise: whatever there is to look through is looked through a slice a turn, the broker goes on in
between. A filter that begins with a wildcard leaves topics out that begin with `$`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from msgspec import Struct
from twisted.internet.defer import Deferred

from mqttd.broker.broker import Broker
from mqttd.broker.retained.retained import Retained
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_filter
from mqttd.readmodel.pages import DEFAULT_LIMIT, BadWish, read_cursor, write_cursor
from mqttd.readmodel.slices import Run, Slice, in_slices

__all__ = ["Forgotten", "RetainedMessage", "RetainedMessages", "RetainedPage", "RetainedView"]

#: Entries looked at between two looks at the clock; topics that a deletion names.
_STEP: Final = 50
_NAMED: Final = 1000


class RetainedView(Struct, kw_only=True):
    """One retained message without its payload."""

    topic: str
    qos: int
    #: Of the packet that a subscriber gets.
    bytes: int
    publisher: str | None
    username: str | None
    #: Seconds, None for ever.
    expires_in: int | None


class RetainedMessage(RetainedView, kw_only=True):
    """One retained message with its payload."""

    payload_base64: str


class RetainedPage(Struct):
    """A page of retained messages by topic."""

    retained: list[RetainedView]
    cursor: str | None


class Forgotten(Struct):
    """What a deletion has done, or would do; at most 1000 topics are named."""

    deleted: bool
    count: int
    topics: list[str]


class RetainedMessages:
    """The retained messages of one broker; `run` works an iterator off."""

    def __init__(self, broker: Broker, run: Run = in_slices) -> None:
        self.broker = broker
        self.run = run

    def get(self, topic: str) -> RetainedMessage | None:
        """One message with its payload."""
        kept = self._kept(topic)
        if kept is None:
            return None
        payload = kept.get_message(self.broker.next_message_id()).payload
        return RetainedMessage(
            **_fields(self._view(kept)), payload_base64=base64.b64encode(payload).decode()
        )

    def page(
        self, topic_filter: str, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Deferred[RetainedPage]:
        """A page of the messages of a filter. Raises BadWish."""
        place = read_cursor(cursor)
        first = _First(limit + 1, "" if place is None else place[1])

        def shown(_: object) -> RetainedPage:
            page = first.all()
            more = len(page) > limit
            del page[limit:]
            kept = [self._kept(topic) for topic in page]
            found = [self._view(one) for one in kept if one is not None]
            return RetainedPage(found, write_cursor("", page[-1]) if more else None)

        return self.run(self._match(_checked(topic_filter), first.add)).addCallback(shown)

    def forget(self, topic_filter: str, dry_run: bool) -> Deferred[Forgotten]:
        """Forget the messages of a filter, or only say how many there are. Raises BadWish."""
        topic_filter = _checked(topic_filter)
        names: list[str] = []
        first = _First(_NAMED, "")

        def work() -> Iterator[None]:
            yield from self._match(topic_filter, names.append)
            time = Slice()
            for topic in names:
                first.add(topic)
                if not dry_run:
                    self.broker.retainer.delete(topic)
                if time.over():
                    yield
                    time.begin()

        def told(_: object) -> Forgotten:
            return Forgotten(not dry_run, len(names), first.all())

        return self.run(work()).addCallback(told)

    def _match(self, topic_filter: str, found: Callable[[str], object]) -> Iterator[None]:
        """Call `found` with each topic of a filter, with every step a bounded number of levels."""
        cursor = self.broker.retainer.match(topic_filter, self.broker.now)
        time = Slice()
        try:
            while not cursor.done:
                for kept in cursor.next(_STEP, self.broker.now):
                    assert isinstance(kept, Retained)
                    found(kept.topic())
                if time.over():
                    yield
                    time.begin()
        finally:
            cursor.close()

    def _kept(self, topic: str) -> Retained | None:
        return cast("Retained | None", self.broker.retainer.get(topic, self.broker.now))

    def _view(self, kept: Retained) -> RetainedView:
        now = self.broker.now
        return RetainedView(
            topic=kept.topic(),
            qos=kept.qos,
            bytes=len(kept.wire),
            publisher=kept.source,
            username=kept.username,
            expires_in=(kept.expires_at - now) // 1000 if kept.expires_at else None,
        )


class _First:
    """The first `most` of names that stand behind `after`; up to twice as many are kept."""

    def __init__(self, most: int, after: str) -> None:
        self.most = most
        self.after = after
        self._names: list[str] = []
        self._bound: str | None = None

    def add(self, name: str) -> None:
        """One more."""
        if name > self.after and (self._bound is None or name < self._bound):
            self._names.append(name)
            if len(self._names) >= 2 * self.most:
                self._bound = self.all()[-1]

    def all(self) -> list[str]:
        """Those that are the first by now, in order."""
        self._names.sort()
        del self._names[self.most :]
        return self._names


def _fields(view: RetainedView) -> dict[str, Any]:
    return {name: getattr(view, name) for name in view.__struct_fields__}


def _checked(topic_filter: str) -> str:
    try:
        validate_topic_filter(topic_filter)
    except MqttError as error:
        raise BadWish(f"filter = {topic_filter[:80]!r}: {error.detail}") from None
    return topic_filter
