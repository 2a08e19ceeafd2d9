"""Retained messages and topics over HTTP, found by filter.

    GET    /api/v1/retained?filter=a/#[&limit=&cursor=]    a page of topics that have a message
    GET    /api/v1/retained/{topic}                        one message, with its payload
    DELETE /api/v1/retained?filter=a/#[&dry_run=true]      forget those of a filter
    GET    /api/v1/topics[?limit=&cursor=]                 filters subscribed to, with how often

Promise: whatever there is to look through is looked through a little at a time, the broker goes
on in between. A filter that begins with a wildcard leaves topics out that begin with `$`.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import cooperate
from twisted.logger import Logger
from twisted.web.iweb import IRequest

from mqttd.admin.requests import ApiError, answer, argument_of, page_of
from mqttd.broker.broker import Broker
from mqttd.broker.retained import Retained
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_filter

__all__ = ["RetainedApi"]

#: Entries looked at in one turn.
SLICE: Final = 500

Json = dict[str, Any]


def in_turns(work: Iterator[None]) -> Deferred[Any]:
    """Run an iterator a little at a time; fires when it has ended."""
    return cast("Deferred[Any]", cooperate(work).whenDone())


class RetainedApi:
    """What the API answers about retained messages and topics; `run` works an iterator off."""

    def __init__(
        self, broker: Broker, run: Callable[[Iterator[None]], Deferred[Any]] = in_turns
    ) -> None:
        self.broker = broker
        self.run = run
        self.log = Logger(namespace="mqttd")

    def find(self, request: IRequest) -> Deferred[bytes]:
        """A page of the topics of a filter."""
        names: list[str] = []

        def page(_: object) -> bytes:
            topics, cursor = page_of(request, names)
            kept = [self._kept(topic) for topic in topics]
            found = [self._describe(one) for one in kept if one is not None]
            return answer(request, {"retained": found, "cursor": cursor})

        return self.run(self._match(_filter_of(request), names)).addCallback(page)

    def show(self, request: IRequest, topic: str) -> bytes:
        """One message with its payload."""
        kept = self._kept(topic)
        if kept is None:
            raise ApiError(404, "not_found", f"no retained message for {topic!r}")
        payload = kept.get_message(self.broker.next_message_id()).payload
        encoded = base64.b64encode(payload).decode()
        return answer(request, {**self._describe(kept), "payload_base64": encoded})

    def delete(self, request: IRequest) -> Deferred[bytes]:
        """Forget the messages of a filter, or only say how many there are."""
        topic_filter = _filter_of(request)
        dry_run = argument_of(request, b"dry_run") == "true"
        names: list[str] = []

        def forget() -> Iterator[None]:
            yield from self._match(topic_filter, names)
            if dry_run:
                return
            for number, topic in enumerate(names, 1):
                self.broker.retainer.delete(topic)
                if number % SLICE == 0:
                    yield
            self.log.info(
                "{count} retained messages of {filter!r} deleted by administrator",
                count=len(names),
                filter=topic_filter,
            )

        def told(_: object) -> bytes:
            some = sorted(names[:1000])
            return answer(request, {"deleted": not dry_run, "count": len(names), "topics": some})

        return self.run(forget()).addCallback(told)

    def topics(self, request: IRequest) -> Deferred[bytes]:
        """A page of the filters that are subscribed to."""
        filters: Counter[str] = Counter()

        def count() -> Iterator[None]:
            for number, client_id in enumerate(list(self.broker.sessions), 1):
                session = self.broker.sessions.get(client_id)
                if session is not None and session.subscriptions:
                    filters.update(session.subscriptions.keys())
                if number % SLICE == 0:
                    yield

        def page(_: object) -> bytes:
            names, cursor = page_of(request, list(filters))
            found = [{"topic_filter": name, "subscribers": filters[name]} for name in names]
            return answer(request, {"topics": found, "cursor": cursor})

        return self.run(count()).addCallback(page)

    def _match(self, topic_filter: str, names: list[str]) -> Iterator[None]:
        """Find the topics of a filter, with every step a bounded number of levels."""
        cursor = self.broker.retainer.match(topic_filter, self.broker.now)
        try:
            while not cursor.done:
                for kept in cursor.next(SLICE, self.broker.now):
                    assert isinstance(kept, Retained)
                    names.append(kept.topic())
                yield
        finally:
            cursor.close()

    def _kept(self, topic: str) -> Retained | None:
        return cast("Retained | None", self.broker.retainer.get(topic, self.broker.now))

    def _describe(self, kept: Retained) -> Json:
        now = self.broker.now
        return {
            "topic": kept.topic(),
            "qos": kept.qos,
            "bytes": len(kept.wire),
            "publisher": kept.source,
            "username": kept.username,
            "expires_in": (kept.expires_at - now) // 1000 if kept.expires_at else None,
        }


def _filter_of(request: IRequest) -> str:
    text = argument_of(request, b"filter") or "#"
    try:
        validate_topic_filter(text)
    except MqttError as error:
        raise ApiError(400, "bad_topic", error.detail) from None
    return text
