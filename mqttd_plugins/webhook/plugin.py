"""Sends events to an HTTP server: a POST with a JSON array, batch after batch.

    hook points --> chosen? --> is there room? --> lane --batch after batch--> POST
                                   |          '--> lane of those whose events were refused
                                 full: dropped, counted

    [{"event": "message.publish", "ts": 1700000000000, "node": "mqttd", "clientid": "alice", ...}]

The queue is shared by user: of one no more waits than is left free behind it. A single user who is
busier than the server has half of the queue, two have a third each; there is always room for
another. An event is charged to the client that it is about, a message's to its publisher, those of
its delivery to the subscriber; the broker's own messages to nobody.

Promise: clients never wait for the server. At most `queue` events and `queue_bytes` wait; one that
does not fit is dropped and counted, so the order of those that are sent is theirs, but for what
goes apart. What a server refuses is sent again by halves (`mqttd_plugins.webhook.lane`), so that no
event takes those of others along; for an hour its user's go in batches of their own, beside the
others and with a pause after each that is refused. One request of each lane is under way at a time.
A batch is tried `attempts` times, with growing pauses; an alarm tells that the server is not there,
until it is. Delivery is at least once: a server that answers too late gets a batch twice, with the
same ``X-Mqttd-Batch``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field
from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.codec.topic import match, validate_topic_filter
from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.types import ClientInfo
from mqttd_plugins.webhook.lane import Event, Lane

__all__ = ["EVENTS", "Settings", "Webhook"]

#: Sees what all others have made of a message.
LAST: Final = -900_000

Name = Literal[
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
EVENTS: Final[tuple[str, ...]] = Name.__args__  # type: ignore[attr-defined]

#: Seconds for which events of a user go apart, since one of them was refused; the most users.
APART: Final = 3600.0
_BLAMED: Final = 1000

#: An event that waits beside its bytes: the objects that hold it, and its place.
_EVENT: Final = 128

#: Posts a body: gives a Deferred of the HTTP status.
Post = Callable[[bytes, dict[str, str]], Deferred[int]]


class Settings(Struct, frozen=True, kw_only=True):
    """What ``etc/plugins/webhook.conf`` may say. Times are in seconds."""

    #: Where to, http or https.
    url: Annotated[str, Meta(min_length=1)]
    #: What is sent.
    events: tuple[Name, ...] = ("client.connected", "client.disconnected", "message.publish")
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
        self.refusals = 0
        self._lane = Lane(self)
        #: Of users for whose events a server has refused others'; and until when that is so.
        self._apart = Lane(self, config.retry_after)
        self._blamed: dict[str, float] = {}
        self._bytes = 0
        #: User name -> its part; "" for clients without one.
        self._parts: dict[str, _Part] = {}
        self._batches = 0
        #: Batches of another load have other names.
        self._series = f"{handle.node}-{int(handle.time() * 1000):x}"
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
        handle.add_metric("waiting", "Events that wait.", self._waiting)
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
        lanes = [
            lane for lane in (getattr(self, "_lane", None), getattr(self, "_apart", None)) if lane
        ]
        waiting = sum(len(lane.queue) for lane in lanes)
        if waiting:
            self.handle.log.warn("{count} events are not sent any more", count=waiting)
            self._parts.clear()
        for lane in lanes:
            lane.end()
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
            "ts": int(self.handle.time() * 1000),
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
        self._charge(user, 1, len(event) + _EVENT)
        (self._apart if self._is_apart(user) else self._lane).put([(event, user)])

    def _refuse(self, user: str | None) -> None:
        """There is no room for an event of this user."""
        self.dropped_full += 1
        if self.dropped_full <= 3 or self.dropped_full % 10_000 == 0:
            self.handle.log.warn(
                "the queue has no room for events of {user}, they are dropped ({count} so far)",
                user=_named(user),
                count=self.dropped_full,
            )

    def _fits(self, size: int, user: str | None) -> bool:
        """Whether there is room, and as much left behind it as this user has."""
        events = self.config.queue - self._waiting() - 1
        left = self.config.queue_bytes - self._bytes - size
        if events < 0 or left < 0:
            return False
        part = None if user is None else self._parts.get(user)
        return part is None or (part.events + 1 <= events and part.bytes + size <= left)

    def _waiting(self) -> int:
        return len(self._lane.queue) + len(self._apart.queue)

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

    def _is_apart(self, user: str | None) -> bool:
        """Whether events of this user go in batches without others'."""
        until = None if user is None else self._blamed.get(user)
        if until is None:
            return False
        if self.handle.clock.seconds() < until or not self._apart.is_idle():
            return True
        del self._blamed[user or ""]
        return False

    # -- what lanes ask and tell: `Owner` --------------------------------------------------------

    def next_number(self) -> str:
        """Of a batch."""
        self._batches += 1
        return f"{self._series}-{self._batches}"

    def post(self, batch: list[Event], attempt: int, number: str) -> Deferred[int]:
        """Send events; the status."""
        assert self._post is not None
        headers = {
            **self.config.headers,
            "Content-Type": "application/json",
            "X-Mqttd-Batch": number,
            "X-Mqttd-Attempt": str(attempt),
        }
        return self._post(b"[" + b",".join([event for event, _ in batch]) + b"]", headers)

    def leaves(self, event: Event) -> None:
        """It waits no more."""
        self._charge(event[1], -1, -len(event[0]) - _EVENT)

    def took(self, batch: list[Event]) -> None:
        """The server has."""
        self.sent += len(batch)
        self.handle.clear_alarm("server")

    def failed(self, why: str) -> None:
        """The server has not; `why` where it is asked again."""
        self.failures += 1
        if why:
            text = f"{_shown(self.config.url)} does not take events: {why}"
            self.handle.alarm("server", text)

    def refused(self, lane: Lane, event: Event, why: str) -> None:
        """It is for this event that the server has refused others."""
        user = event[1]
        self.dropped_failed += 1
        self.refusals += 1
        if self.refusals <= 10 or self.refusals % 1000 == 0:
            self.handle.log.warn(
                "an event of {user} is dropped, it had others refused: {why} ({count} so far)",
                user=_named(user),
                why=why,
                count=self.refusals,
            )
        if lane is not self._lane or user is None:
            return
        self._blamed.pop(user, None)
        self._blamed[user] = self.handle.clock.seconds() + APART
        if len(self._blamed) > _BLAMED:
            del self._blamed[next(iter(self._blamed))]
        first, then = lane.take_out(user)
        for again, _ in first:
            self._charge(user, 1, len(again) + _EVENT)
        self._apart.put(first + then)

    def lost(self, batch: list[Event], why: str) -> None:
        """They are not sent again."""
        self.dropped_failed += len(batch)
        self.handle.alarm("server", f"{_shown(self.config.url)} refuses events: {why}")
        self.handle.log.warn("{count} events dropped: {why}", count=len(batch), why=why)


def _named(user: str | None) -> str:
    return "the broker" if user is None else repr(user[:200])


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
