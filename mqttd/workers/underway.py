"""What workers had for one another when their number changes: messages that are acknowledged.

    store 1   for 2: 17, 18, 19    acknowledged while worker 2 was away, or about to go there
    store 2   from 1: 17           what it has taken, with its sessions
         --> 18 and 19 wait for the sessions of store 2, wherever these go

The hooks have run, the rights were asked and members were chosen where each came in; what is left
is to find the sessions by their subscriptions.

Promise: nothing that was taken comes again, and nothing costs anything where nothing was under way.
MQTT 5.0, 3.3.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from mqttd.broker.routing.trie import Level, Trie
from mqttd.codec import properties as prop
from mqttd.codec.topic import is_shared
from mqttd.mesh.ferry import kept_rows, taken_of
from mqttd.mesh.frames import FOLLOWS, MEMBER, number_of, split, unpacked
from mqttd.mesh.lost import message_of
from mqttd.session.ground.message import Delivery, Message
from mqttd.session.routes.route import NO_LOCAL, QOS_MASK, RETAIN_AS_PUBLISHED
from mqttd.storage.lines import MessageLine
from mqttd.storage.reader import kept_in, subscriptions_in
from mqttd.storage.transfer import delivery_line
from mqttd.workers.mesh import UNDER_WAY

__all__ = ["UnderWay"]

#: Stands in the path of each store of several, and of each copy of one.
_WORKER: Final = re.compile(r"worker-(\d+)")


class _Owed(NamedTuple):
    """A message, the shared filter whose member gets it ("": it is for all), was it retained."""

    message: Message
    full_filter: str
    retained: bool


class _Subscription(NamedTuple):
    client_id: str
    options: int
    identifier: int


class _Subscriptions:
    """Those of the sessions of a store."""

    def __init__(self, path: str) -> None:
        self.filters = Trie()
        self.by_level: dict[Level, list[_Subscription]] = {}
        self.shared: dict[str, list[_Subscription]] = {}
        for topic_filter, client_id, options, identifier in subscriptions_in(path):
            one = _Subscription(client_id, options, identifier)
            if is_shared(topic_filter):
                self.shared.setdefault(topic_filter, []).append(one)
            else:
                self.by_level.setdefault(self.filters.insert(topic_filter), []).append(one)

    def of(self, owed: _Owed) -> list[_Subscription]:
        """By which sessions get this; of a shared group one member does."""
        if owed.full_filter:
            return self.shared.get(owed.full_filter, [])[:1]
        levels = self.filters.match(owed.message.topic)
        return [one for level in levels for one in self.by_level[level]]


class UnderWay:
    """What these stores have for one another; `now`: milliseconds since 1970."""

    def __init__(self, stores: Sequence[str], now: int) -> None:
        self.now = now
        self.rows = {path: dict(kept_in(path, UNDER_WAY)) for path in stores}
        self.numbers: dict[str, int] = {}
        for path in stores:
            found = _WORKER.findall(path)
            self.numbers[path] = int(found[-1]) if found else 0

    def for_sessions_of(self, path: str) -> Iterator[MessageLine]:
        """What the sessions in this store have yet to get, in the order in which each does."""
        found: _Subscriptions | None = None
        for owed in self._owed_to(path):
            if found is None:
                found = _Subscriptions(path)
            yield from self._lines(owed, found.of(owed))

    def _owed_to(self, path: str) -> Iterator[_Owed]:
        """What the other stores have for this one, and it has not taken."""
        number = self.numbers[path]
        for other, rows in self.rows.items():
            if other == path:
                continue
            mine = [row for key, row in rows.items() if key.startswith(f"for {number} ")]
            known = self.rows[path].get(f"from {self.numbers[other]}")
            have, book = (0, 0) if known is None else taken_of(known)
            if book != number_of(rows.get("book", bytes(8))):
                have = 0  # it speaks of a store that is no more
            for at, data in kept_rows(mine):
                if at > have and (owed := self._read(data)) is not None:
                    yield owed

    def _read(self, data: bytes) -> _Owed | None:
        """A message as it would have crossed; None for what is no message."""
        message = message_of(data)
        if message is None:
            return None
        properties = message.properties or {}
        expiry = properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, None)
        if isinstance(expiry, int):
            message.expires_at = self.now + expiry * 1000
        full_filter, retained = "", message.retain
        at = 0
        while at < len(data):
            body, end = split(data, at)
            if data[at] == MEMBER:
                full_filter = unpacked(data[body:end])[0].decode()
            elif data[at] == FOLLOWS:
                retained = data[body + 2 : end].decode() == message.topic
            at = end
        return _Owed(message, full_filter, retained)

    def _lines(self, owed: _Owed, chosen: list[_Subscription]) -> Iterator[MessageLine]:
        """A line for each session; of its subscriptions that match it gets one copy."""
        message = owed.message
        sessions: dict[str, list[_Subscription]] = {}
        for one in chosen:
            if not (one.options & NO_LOCAL and one.client_id == message.client_id):
                sessions.setdefault(one.client_id, []).append(one)
        for client_id, those in sessions.items():
            qos = min(message.qos, max(one.options & QOS_MASK for one in those))
            if not qos:
                continue  # that is kept for nobody who is away
            retain = owed.retained and any(one.options & RETAIN_AS_PUBLISHED for one in those)
            identifiers = sorted(one.identifier for one in those if one.identifier) or None
            made = Delivery.of(message, qos, retain, True, identifiers, self.now)
            yield delivery_line(made, client_id)
