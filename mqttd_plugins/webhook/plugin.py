"""Sends events to an HTTP server: a POST with a JSON array, batch after batch.

    hook points --> chosen? --> queue (bounded) --batch_size, _bytes or _seconds--> POST
                                   |                                              |
                                 full: dropped, counted      2xx: done   5xx, 408, 429, no answer:
                                                             other: dropped   again, later

    [{"event": "message.publish", "ts": 1700000000000, "node": "mqttd", "clientid": "alice", ...}]

The queue is shared by user: of one no more waits than is left free behind it. A single user who is
busier than the server has half of the queue, two have a third each; there is always room for
another. An event is charged to the client that it is about, a message's to its publisher, those of
its delivery to the subscriber; the broker's own messages to nobody.

Promise: clients never wait for the server. At most `queue` events and `queue_bytes` wait; one that
does not fit is dropped and counted, so the order of those that are sent is theirs. One request is
under way at a time. A batch is tried `attempts` times, with growing pauses, then dropped and
counted; an alarm tells that the server is not there, until it is. Delivery is at least once: a
server that answers too late gets a batch twice, with the same ``X-Mqttd-Batch``.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field
from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.codec.topic import match, validate_topic_filter
from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.types import ClientInfo

__all__ = ["EVENTS", "Settings", "Webhook"]

#: Sees what all others have made of a message.
LAST: Final = -900_000

Event = Literal[
    "client.connected",
    "client.disconnected",
    "session.created",
    "session.subscribed",
    "session.unsubscribed",
    "session.terminated",
    "message.publish",
    "message.delivered",
    "message.acked",
    "message.dropped",
]
EVENTS: Final[tuple[str, ...]] = Event.__args__  # type: ignore[attr-defined]

#: An event that waits beside its bytes: the objects that hold it, and its place.
_EVENT: Final = 128

#: Posts a body: gives a Deferred of the HTTP status.
Post = Callable[[bytes, dict[str, str]], Deferred[int]]


class Settings(Struct, frozen=True, kw_only=True):
    """What ``etc/plugins/webhook.conf`` may say. Times are in seconds."""

    #: Where to, http or https.
    url: Annotated[str, Meta(min_length=1)]
    #: What is sent.
    events: tuple[Event, ...] = ("client.connected", "client.disconnected", "message.publish")
    #: Only messages of topics that one of these filters matches.
    topics: Annotated[tuple[str, ...], Meta(min_length=1)] = ("#",)
    #: More headers, ``Authorization = "Bearer ..."``.
    headers: dict[str, str] = field(default_factory=dict)
    #: Payloads as text where they are UTF-8 (and base64 where not), always as base64, or not sent.
    payload: Literal["text", "base64", "none"] = "text"
    #: Longest payload that is sent; of a longer one its size is.
    payload_bytes: Annotated[int, Meta(ge=0)] = 65536
    #: A batch goes when it has so many events or bytes, or its first one has waited so long. An
    #: event that is larger goes alone.
    batch_size: Annotated[int, Meta(ge=1, le=10_000)] = 100
    batch_bytes: Annotated[int, Meta(ge=1024)] = 1 << 20
    batch_seconds: Annotated[float, Meta(gt=0, le=3600)] = 1.0
    #: Events and bytes that may wait; of one user no more than is left free.
    queue: Annotated[int, Meta(ge=1)] = 10_000
    queue_bytes: Annotated[int, Meta(ge=1024)] = 16 << 20
    #: Time for one request, from connection to answer.
    timeout: Annotated[float, Meta(gt=0, le=300)] = 10.0
    #: Requests for one batch, and the pauses between them: the first, doubled up to the longest.
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 6
    retry_after: Annotated[float, Meta(gt=0)] = 0.5
    retry_most: Annotated[float, Meta(gt=0)] = 30.0


class _Part:
    """What waits of one user."""

    __slots__ = ("bytes", "events")

    def __init__(self) -> None:
        self.events = 0
        self.bytes = 0


@implementer(IPlugin)
class Webhook:
    """The running part. `post` is how tests stand in for the server."""

    def __init__(self, post: Post | None = None) -> None:
        self._post = post
        self._close: Callable[[], Deferred[None]] | None = None

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Check what a schema cannot, hook what is chosen."""
        self.handle = handle
        self.config = config
        _check(config)
        if self._post is None:
            self._post, self._close = _poster(handle.clock, config)
        self.sent = 0
        self.dropped_full = 0
        self.dropped_failed = 0
        self.failures = 0
        #: Events and whose they are.
        self._queue: deque[tuple[bytes, str | None]] = deque()
        self._bytes = 0
        #: User name -> its part; "" for clients without one.
        self._parts: dict[str, _Part] = {}
        self._batches = 0
        #: Batches of another load have other names.
        self._series = f"{handle.node}-{int(handle.clock.seconds() * 1000):x}"
        self._timer: Any = None
        #: A batch is under way, or waits for its next attempt.
        self._busy = False
        self._under_way: Deferred[Any] | None = None
        self._ended = False
        self._all_topics = "#" in config.topics
        callbacks: dict[str, Callable[..., None]] = {
            "client.connected": self._connected,
            "client.disconnected": self._disconnected,
            "session.created": self._created,
            "session.subscribed": self._subscribed,
            "session.unsubscribed": self._unsubscribed,
            "session.terminated": self._terminated,
            "message.publish": self._publish,
            "message.delivered": self._delivered,
            "message.acked": self._acked,
            "message.dropped": self._dropped,
        }
        for event in dict.fromkeys(config.events):
            handle.hook(event, callbacks[event], priority=LAST)
        handle.add_metric("sent_total", "Events that the server took.", lambda: self.sent)
        handle.add_metric("waiting", "Events that wait.", lambda: len(self._queue))
        handle.add_metric(
            "dropped_queue_full_total",
            "Events dropped because too many waited.",
            lambda: self.dropped_full,
        )
        handle.add_metric(
            "dropped_failed_total",
            "Events dropped because the server did not take them.",
            lambda: self.dropped_failed,
        )
        handle.add_metric("failures_total", "Requests that failed.", lambda: self.failures)

    def unload(self) -> Deferred[None] | None:
        """What waits is lost, and logged."""
        self._ended = True
        waiting = len(getattr(self, "_queue", ()))
        if waiting:
            self.handle.log.warn("{count} events are not sent any more", count=waiting)
            self._queue.clear()
            self._parts.clear()
        under_way: Deferred[Any] | None = getattr(self, "_under_way", None)
        if under_way is not None:
            under_way.cancel()
        return self._close() if self._close is not None else None

    # -- hook points ---------------------------------------------------------------------------

    def _connected(self, client: ClientInfo, acc: None) -> None:
        more = {
            "proto_ver": client.protocol_version,
            "keepalive": client.keep_alive,
            "clean_start": client.clean_start,
        }
        self._event("client.connected", client, more)

    def _disconnected(self, client: ClientInfo, reason: str, acc: None) -> None:
        self._event("client.disconnected", client, {"reason": reason})

    def _created(self, client: ClientInfo, acc: None) -> None:
        self._event("session.created", client, {})

    def _subscribed(self, client: ClientInfo, subscription: Any, acc: None) -> None:
        more = {"topic": subscription.topic_filter, "qos": subscription.qos}
        self._event("session.subscribed", client, more)

    def _unsubscribed(self, client: ClientInfo, topic_filter: str, acc: None) -> None:
        self._event("session.unsubscribed", client, {"topic": topic_filter})

    def _terminated(self, client: ClientInfo, reason: str, acc: None) -> None:
        self._event("session.terminated", client, {"reason": reason})

    def _publish(self, message: Any) -> None:
        if message is not None:
            self._message("message.publish", None, message, {})

    def _delivered(self, client: ClientInfo, message: Any) -> None:
        self._message("message.delivered", client, message, {})

    def _acked(self, client: ClientInfo, message: Any) -> None:
        self._message("message.acked", client, message, {})

    def _dropped(self, client: ClientInfo | None, reason: str, message: Any) -> None:
        self._message("message.dropped", client, message, {"reason": reason})

    def _event(
        self, event: str, client: ClientInfo | None, more: dict[str, Any], user: str | None = None
    ) -> None:
        made: dict[str, Any] = {
            "event": event,
            "ts": int(self.handle.clock.seconds() * 1000),
            "node": self.handle.node,
        }
        if client is not None:
            made |= {
                "clientid": client.client_id,
                "username": client.username,
                "ipaddress": client.peerhost,
            }
            user = client.username or ""
        self._put(json.dumps(made | more, ensure_ascii=False).encode(), user)

    def _message(
        self, event: str, client: ClientInfo | None, message: Any, more: dict[str, Any]
    ) -> None:
        topic = message.topic
        if not self._all_topics and not any(match(topic, each) for each in self.config.topics):
            return
        if client is not None:
            user: str | None = client.username or ""
        else:
            user = (message.username or "") if message.client_id else None
        payload: bytes | None = message.payload
        if self.config.payload == "none" or len(message.payload) > self.config.payload_bytes:
            payload = None
        if not self._fits(len(payload or b"") + _EVENT, user):
            self._refuse(user)  # before it has cost an encoding
            return
        made = {
            "id": f"{message.id:032x}",
            "from": message.client_id,
            "from_username": message.username,
            "topic": topic,
            "qos": message.qos,
            "retain": message.retain,
            "size": len(message.payload),
        }
        if payload is not None:
            made |= self._payload(payload)
        self._event(event, client, made | more, user)

    def _payload(self, payload: bytes) -> dict[str, str]:
        if self.config.payload == "text":
            try:
                return {"payload": payload.decode()}
            except UnicodeDecodeError:
                pass
        return {"payload_base64": base64.b64encode(payload).decode()}

    # -- queue and batches ---------------------------------------------------------------------

    def _put(self, event: bytes, user: str | None) -> None:
        if not self._fits(len(event) + _EVENT, user):
            self._refuse(user)
            return
        self._queue.append((event, user))
        self._charge(user, 1, len(event) + _EVENT)
        if self._busy:
            return
        if self._is_batch():
            self._send_soon(0)
        elif self._timer is None:
            self._send_soon(self.config.batch_seconds)

    def _refuse(self, user: str | None) -> None:
        """There is no room for an event of this user."""
        self.dropped_full += 1
        if self.dropped_full <= 3 or self.dropped_full % 10_000 == 0:
            self.handle.log.warn(
                "the queue has no room for events of {user}, they are dropped ({count} so far)",
                user="the broker" if user is None else repr(user[:200]),
                count=self.dropped_full,
            )

    def _is_batch(self) -> bool:
        """Whether enough waits for one."""
        config = self.config
        return len(self._queue) >= config.batch_size or self._bytes >= config.batch_bytes

    def _fits(self, size: int, user: str | None) -> bool:
        """Whether there is room, and as much left behind it as this user has."""
        events = self.config.queue - len(self._queue) - 1
        left = self.config.queue_bytes - self._bytes - size
        if events < 0 or left < 0:
            return False
        part = None if user is None else self._parts.get(user)
        return part is None or (part.events + 1 <= events and part.bytes + size <= left)

    def _charge(self, user: str | None, events: int, size: int) -> None:
        """So many events of this user wait more (or fewer), with so many bytes."""
        self._bytes += size
        if user is None:
            return
        part = self._parts.get(user)
        if part is None:
            part = self._parts[user] = _Part()
        part.events += events
        part.bytes += size
        if not part.events:
            del self._parts[user]

    def _send_soon(self, seconds: float) -> None:
        if self._timer is not None:
            if seconds or self._timer.getTime() <= self.handle.clock.seconds():
                return
            self._timer.cancel()
        self._timer = self.handle.call_later(seconds, self._send)

    def _send(self) -> None:
        self._timer = None
        if self._busy or not self._queue:
            return
        batch: list[bytes] = []
        room = self.config.batch_bytes - 1
        while self._queue and len(batch) < self.config.batch_size:
            event, user = self._queue[0]
            room -= len(event) + 1  # a comma, or a bracket
            if room < 0 and batch:
                break
            self._queue.popleft()
            self._charge(user, -1, -len(event) - _EVENT)
            batch.append(event)
        self._batches += 1
        self._busy = True
        self._try(batch, f"{self._series}-{self._batches}", 1)

    def _try(self, batch: list[bytes], number: str, attempt: int) -> None:
        assert self._post is not None
        headers = {
            **self.config.headers,
            "Content-Type": "application/json",
            "X-Mqttd-Batch": number,
            "X-Mqttd-Attempt": str(attempt),
        }
        waiting = self._post(b"[" + b",".join(batch) + b"]", headers)
        waiting.addTimeout(self.config.timeout, self.handle.clock)
        self._under_way = waiting
        waiting.addCallbacks(
            self._answered,
            self._failed,
            callbackArgs=(batch, number, attempt),
            errbackArgs=(batch, number, attempt),
        )
        waiting.addErrback(lambda failure: self.handle.log.failure("webhook", failure))

    def _answered(self, status: int, batch: list[bytes], number: str, attempt: int) -> None:
        self._under_way = None
        if self._ended:
            return
        if 200 <= status < 300:
            self.sent += len(batch)
            self.handle.clear_alarm("server")
            self._next()
        elif status >= 500 or status in (408, 429):
            self._again(f"status {status}", batch, number, attempt)
        else:
            self.failures += 1
            self._give_up(f"status {status}", batch)

    def _failed(self, failure: Any, batch: list[bytes], number: str, attempt: int) -> None:
        self._under_way = None
        if not self._ended:
            self._again(failure.getErrorMessage() or failure.type.__name__, batch, number, attempt)

    def _again(self, why: str, batch: list[bytes], number: str, attempt: int) -> None:
        self.failures += 1
        config = self.config
        if attempt >= config.attempts:
            self._give_up(why, batch)
            return
        self.handle.alarm("server", f"{_shown(config.url)} does not take events: {why}")
        pause = min(config.retry_after * 2.0 ** min(attempt - 1, 30), config.retry_most)
        self.handle.call_later(pause, self._try, batch, number, attempt + 1)

    def _give_up(self, why: str, batch: list[bytes]) -> None:
        self.dropped_failed += len(batch)
        self.handle.alarm("server", f"{_shown(self.config.url)} refuses events: {why}")
        self.handle.log.warn("{count} events dropped: {why}", count=len(batch), why=why)
        self._next()

    def _next(self) -> None:
        self._busy = False
        if self._is_batch():
            self._send_soon(0)
        elif self._queue:
            self._send_soon(self.config.batch_seconds)


def _check(config: Settings) -> None:
    parts = urlsplit(config.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url = {_shown(config.url)!r}: expected http://host/ or https://host/")
    for topic_filter in config.topics:
        validate_topic_filter(topic_filter)
    for name, value in config.headers.items():
        if not name or not name.isascii() or any(char in name + value for char in "\r\n\0"):
            raise ValueError(f"headers: {name!r} is no header, or has a line break")


def _shown(url: str) -> str:
    """A URL without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"


def _poster(reactor: Any, config: Settings) -> tuple[Post, Callable[[], Deferred[None]]]:
    """Posts with treq on one kept connection; certificates verified, redirects not followed."""
    import treq
    from treq.client import HTTPClient
    from twisted.web.client import Agent, HTTPConnectionPool

    pool = HTTPConnectionPool(reactor)
    pool.maxPersistentPerHost = 1
    agent = Agent(reactor, connectTimeout=config.timeout, pool=pool)
    client: Any = HTTPClient(agent)

    def post(body: bytes, headers: dict[str, str]) -> Deferred[int]:
        answer = client.post(config.url, data=body, headers=headers, allow_redirects=False)

        def read(response: Any) -> Deferred[int]:
            # The connection can be used again when the body is read; its text is not wanted.
            done: Deferred[Any] = treq.collect(response, lambda data: None)
            return done.addCallback(lambda _: int(response.code))

        posted: Deferred[int] = answer.addCallback(read)
        return posted

    return post, pool.closeCachedConnections
