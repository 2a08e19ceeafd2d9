"""Holds messages to ``$delayed/SECONDS/topic`` back, and publishes them to `topic` when it is time.

    $delayed/60/lamp/off --> waits --60 s--> lamp/off, with its publisher, id and expiry

    handle.store  "due in ms, order, user" -> message   heap of these keys, one timer for the first

The right to publish to ``$delayed/60/lamp/off`` is the right to publish to ``lamp/off``: the rules
are asked for that when the message comes, and again when it is due, since a right may have been
taken back meanwhile. Who has gone by then is asked about by name and by where it came from, which
is kept with the message; not at all if its right came with its authentication (a certificate, a
token), as for retained messages and wills.

Messages that wait are in the plugin's store: they survive unload and reload, and with
``store.kind = "sqlite"`` the broker, whose acknowledgement says so. What was due while the broker
was down is published when it is there again.

Promise: at most `max_messages` and `max_bytes` wait, of one user no more than its part of them and
than is left free behind it, so that two users have a third each and there is room for another; none
longer than `max_delay`; a message that does not fit is refused (0x97) and counted. Messages of
the same millisecond come out in the order they came. One that is being published when the broker is
killed may be published again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from heapq import heappop, heappush
from time import monotonic
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from zope.interface import implementer

from mqttd.codec.reasons import QUOTA_EXCEEDED, MqttError, name_of
from mqttd.codec.topic import validate_topic_name
from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.types import (
    ACTION_PUBLISH,
    OK,
    STOP,
    Action,
    ClientInfo,
    HookResult,
    StoreFull,
    Verdict,
)

__all__ = ["Delayed", "Settings", "parse"]

PREFIX: Final = "$delayed/"
#: The longest delay there can be: EMQ's, 49 days.
LONGEST: Final = 4_294_967
#: Messages that are published before clients have their turn.
BATCH: Final = 32
#: Seconds after which they have it in any case: a message may have many receivers.
_TURN: Final = 0.004
#: How `Kept` begins with MessagePack.
_ARRAY: Final = b"\x95"


class Settings(Struct, frozen=True, kw_only=True):
    """What ``etc/plugins/delayed.conf`` may say."""

    #: Messages that may wait.
    max_messages: Annotated[int, Meta(ge=1)] = 100_000
    #: What they may weigh together, in bytes: topics, payloads, properties, about 300 for each.
    max_bytes: Annotated[int, Meta(ge=1024)] = 64 << 20
    #: Of these, those of one user; clients without a user name are one. 0: no limit.
    max_per_user: Annotated[int, Meta(ge=0)] = 50_000
    max_bytes_per_user: Annotated[int, Meta(ge=0)] = 32 << 20
    #: The longest delay in seconds.
    max_delay: Annotated[int, Meta(ge=1, le=LONGEST)] = LONGEST


class _Part:
    """What waits of one user."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0


class Kept(Struct, frozen=True, array_like=True):
    """What is in the store: a message, and what its publisher's right is asked by."""

    message: bytes
    #: The publisher's right is looked at when it is due, ...
    asked: bool = False
    #: ... by these, where it has gone.
    peerhost: str = ""
    listener: str = ""
    mountpoint: str = ""


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


_decode: Final = msgspec.msgpack.Decoder(Kept).decode


@implementer(IPlugin)
class Delayed:
    """The running part."""

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Hook messages and rights."""
        self.handle = handle
        self.config = config
        self.published = 0
        self.refused = 0
        self.revoked = 0
        self.lost = 0
        #: Who was asked about last: a will's publisher is not connected any more.
        self._asked: ClientInfo | None = None
        self._store = handle.store
        #: Keys of the store, the next one first.
        self._heap = self._store.keys()  # a sorted list is a heap
        self._order = max((int(key[14:26]) for key in self._heap), default=0)
        #: User, as keys name it -> its part; earlier versions named nobody.
        self._parts: dict[str, _Part] = {}
        for key in self._heap:
            self._charge(key[27:], 1, len(self._store.get(key) or b""))
        self._timer: Any = None
        self._ready = False
        # After what rewrites and checks messages, before what only looks at them.
        topics = f"{PREFIX}#"
        handle.hook("message.publish", self.publish, priority=-100, topic_filter=topics)
        handle.hook("client.authorize", self.authorize, priority=100, topic_filter=topics)
        handle.add_metric("waiting", "Messages that wait.", lambda: len(self._heap))
        handle.add_metric("waiting_bytes", "What those weigh.", lambda: self._store.used)
        handle.add_metric("published_total", "Messages published late.", lambda: self.published)
        handle.add_metric("refused_total", "Messages that did not fit.", lambda: self.refused)
        handle.add_metric(
            "revoked_total", "Messages whose right was gone when due.", lambda: self.revoked
        )
        handle.add_metric("lost_total", "Messages that were refused when due.", lambda: self.lost)
        if self._heap:
            handle.log.info("{count} messages wait since before", count=len(self._heap))
        handle.ready().addCallback(self._begin)
        handle.add_command("status", self.status, "How many messages wait, and for how long.")

    def unload(self) -> None:
        """What waits stays in the store."""
        waiting = len(getattr(self, "_heap", ()))
        if waiting:
            self.handle.log.info("{count} delayed messages stay in the store", count=waiting)

    def _begin(self, ready: None) -> None:
        """Sessions are there: what was due meanwhile can be published."""
        self._ready = True
        self._wind()

    def status(self, argv: list[str]) -> str:
        """`mqttd-ctl delayed status`"""
        text = f"{len(self._heap)} messages wait, {self._store.used} bytes"
        if self._heap:
            text += f", the next for {self._left():.0f} s"
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
        self._asked = client
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
        config = self.config
        if len(self._heap) >= config.max_messages or self._store.used >= config.max_bytes:
            return self._refuse(message, "too many wait")
        due = round((self.handle.time() + seconds) * 1000)
        self._order += 1
        user = _user_of(message.username)
        key = f"{due:013d}-{self._order:012d}-{user}"
        data = msgspec.msgpack.encode(self._kept(message))
        if self._store.used + len(data) > config.max_bytes:
            return self._refuse(message, "too many wait")
        if not self._may_wait(user, len(data)):
            return self._refuse(message, "too many of this user wait")
        try:
            self._store.put(key, data)
        except StoreFull as error:
            return self._refuse(message, str(error))
        heappush(self._heap, key)
        self._charge(user, 1, len(data))
        if self._heap[0] is key and self._ready:
            self._wind()
        self.handle.holds(message, f"until {datetime.fromtimestamp(due // 1000, UTC):%F %T} UTC")
        return STOP(None)

    def _may_wait(self, user: str, size: int) -> bool:
        """Whether this user has no more than its part, nor than is left free behind it."""
        part = self._parts.get(user)
        if part is None:
            return True
        config = self.config
        messages = config.max_messages - len(self._heap) - 1
        if config.max_per_user and part.messages >= min(config.max_per_user, messages):
            return False
        left = config.max_bytes - self._store.used - size
        most = min(config.max_bytes_per_user, left)
        return not config.max_bytes_per_user or part.bytes + size <= most

    def _charge(self, user: str, messages: int, size: int) -> None:
        """So many of this user wait more (or fewer), with so many bytes."""
        part = self._parts.get(user)
        if part is None:
            part = self._parts[user] = _Part()
        part.messages += messages
        part.bytes += size
        if not part.messages:
            del self._parts[user]

    def _kept(self, message: Any) -> Kept:
        data = self.handle.dump_message(message)
        client = self.handle.client(message.client_id) or self._asked
        if client is None or not _is_by(client, message):
            return Kept(data)  # the broker's own, a plugin's or the API's
        free = client.superuser or client.acl or client.attributes or client.cert_common_name
        if free:
            return Kept(data, peerhost=client.peerhost, listener=client.listener)
        return Kept(data, True, client.peerhost, client.listener, client.mountpoint)

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
        return STOP(QUOTA_EXCEEDED)

    def _wind(self) -> None:
        """Set the timer to the first message."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        if self._heap:
            self._timer = self.handle.call_later(max(self._left(), 0), self._due)

    def _left(self) -> float:
        """Seconds until the first is due."""
        left: float = int(self._heap[0][:13]) / 1000 - self.handle.time()
        return left

    def _due(self) -> None:
        until = monotonic() + _TURN
        try:
            for _ in range(BATCH):
                if not self._heap or self._left() > 1e-3:
                    break
                key = heappop(self._heap)
                data = self._store.get(key)
                self._charge(key[27:], -1, -len(data or b""))
                if data is not None:
                    self._publish(key, data)
                if monotonic() >= until:
                    break
        finally:
            # Broken off, because the broker was long about one: the others come all the same.
            self._wind()

    def _publish(self, key: str, data: bytes) -> None:
        try:
            # Earlier versions kept the message alone.
            kept = _decode(data) if data[:1] == _ARRAY else Kept(data)
            message = self.handle.load_message(kept.message)
        except (ValueError, msgspec.MsgspecError) as error:
            self.handle.log.error("a delayed message cannot be read: {error}", error=error)
        else:
            if self._may_still(message, kept):
                code = -self.handle.republish(message)
                if code > 0:
                    self._lose(message, code)
                else:
                    self.published += 1
        finally:
            # In the turn it is published in: both are kept, or neither.
            self._store.delete(key)

    def _lose(self, message: Any, code: int) -> None:
        """A hook or the store of retained messages refuses it, and nobody sends it again."""
        self.lost += 1
        if self.lost <= 10 or self.lost % 1000 == 0:
            self.handle.log.warn(
                "delayed message of {client_id!r} to {topic} lost: {why} (0x{code:02x},"
                " {count} so far)",
                client_id=message.client_id,
                topic=message.topic[:200],
                why=name_of(code),
                code=code,
                count=self.lost,
            )

    def _may_still(self, message: Any, kept: Kept) -> bool:
        """Whether the publisher may publish it now."""
        client = self.handle.client(message.client_id)
        if (
            client is None
            or not _is_by(client, message)
            or (client.peerhost, client.listener) != (kept.peerhost, kept.listener)
        ):
            if not kept.asked:
                return True
            client = ClientInfo(
                message.client_id,
                message.username,
                kept.peerhost,
                0,
                kept.listener,
                5,
                False,
                mountpoint=kept.mountpoint,
            )
        action = Action(ACTION_PUBLISH, message.qos, message.retain)
        if self.handle.authorize(client, action, message.topic):
            return True
        self.revoked += 1
        if self.revoked <= 10 or self.revoked % 1000 == 0:
            self.handle.log.warn(
                "delayed message of {client_id!r} to {topic} dropped: it may not publish there any"
                " more ({count} so far)",
                client_id=message.client_id,
                topic=message.topic[:200],
                count=self.revoked,
            )
        return False


def _user_of(username: str | None) -> str:
    """A user as a part of keys: a name may be long."""
    name = "" if username is None else username
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _is_by(client: ClientInfo, message: Any) -> bool:
    return (client.client_id, client.username) == (message.client_id, message.username)
