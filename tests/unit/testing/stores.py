"""The smallest stores that fulfil their interfaces: dicts, which last as long as `places` does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from mqttd.interfaces import IQueueStore, IRetainedStore, ISessionStore


class _Records:
    def __init__(self, place: dict[str, bytes] | None = None) -> None:
        self.place = {} if place is None else place

    def open(self) -> Deferred[None] | None:
        return succeed(None)

    def put(self, key: str, record: bytes) -> Deferred[None] | None:
        self.place[key] = record
        return succeed(None)

    def delete(self, key: str) -> Deferred[None] | None:
        self.place.pop(key, None)
        return None

    def load(self) -> Iterable[tuple[str, bytes]]:
        return list(self.place.items())

    def close(self) -> Deferred[None] | None:
        return None

    def description(self) -> str:
        return "a dict"


@implementer(ISessionStore)
class MemorySessions(_Records):
    pass


@implementer(IRetainedStore)
class MemoryRetained(_Records):
    pass


@implementer(IQueueStore)
class MemoryQueues:
    def __init__(self, place: dict[str, dict[int, bytes]] | None = None) -> None:
        self.place = {} if place is None else place

    def open(self) -> Deferred[None] | None:
        return None

    def append(
        self, client_ids: Sequence[str], message_id: int, message: bytes
    ) -> Deferred[None] | None:
        for client_id in client_ids:
            self.place.setdefault(client_id, {})[message_id] = message
        return succeed(None)

    def delete(self, client_id: str, message_id: int) -> Deferred[None] | None:
        self.place.get(client_id, {}).pop(message_id, None)
        return None

    def read(self, client_id: str, after: int = 0, limit: int = 100) -> list[tuple[int, bytes]]:
        waiting = self.place.get(client_id, {}).items()
        return [item for item in waiting if item[0] > after][:limit]

    def clear(self, client_id: str) -> Deferred[None] | None:
        self.place.pop(client_id, None)
        return None

    def close(self) -> Deferred[None] | None:
        return None

    def description(self) -> str:
        return "a dict"
