"""The smallest providers of their interfaces: dicts, which last as long as `place` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from twisted.internet.defer import Deferred, fail, succeed
from zope.interface import implementer

from mqttd.interfaces import IRegistry, IRetainedStore, ISessionStore
from mqttd.types import Claim, Held, SessionState, StaleEpoch

Taken = Callable[[str, int], SessionState | None]


@implementer(IRetainedStore)
class MemoryRetained:
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
class MemorySessions:
    """Keeps sessions in `place`, as a database would in its file."""

    keeps = True

    def __init__(self, place: dict[str, SessionState] | None = None) -> None:
        self.place = {} if place is None else place

    def open(self) -> Deferred[None] | None:
        return succeed(None)

    def _current(self, client_id: str, epoch: int) -> SessionState | None:
        state = self.place.get(client_id)
        if state is not None and epoch < state.epoch:
            raise StaleEpoch(client_id)
        return state

    def save(self, client_id: str, epoch: int, record: bytes) -> Deferred[None] | None:
        self._current(client_id, epoch)
        self.place[client_id] = SessionState(record, (), epoch)
        return succeed(None)

    def append(self, client_id: str, epoch: int, packets: Sequence[bytes]) -> Deferred[None] | None:
        state = self._current(client_id, epoch)
        if state is None:
            return fail(KeyError(client_id))
        self.place[client_id] = SessionState(state.record, (*state.queue, *packets), epoch)
        return None

    def load(self, client_id: str) -> SessionState | Deferred[SessionState | None] | None:
        return self.place.get(client_id)

    def remove(self, client_id: str, epoch: int) -> Deferred[None] | None:
        self._current(client_id, epoch)
        self.place.pop(client_id, None)
        return None

    def recover(self) -> Iterable[tuple[str, SessionState]]:
        return list(self.place.items())

    def close(self) -> Deferred[None] | None:
        return None

    def description(self) -> str:
        return "a dict"


class Table:
    """Who owns what in a cluster: client id -> (epoch, member, principal)."""

    def __init__(self) -> None:
        self.owners: dict[str, tuple[int, Member, str | None]] = {}
        self.epochs: dict[str, int] = {}


@implementer(IRegistry)
class Member:
    """One process of a cluster that shares `table`."""

    def __init__(self, name: str, table: Table) -> None:
        self.name = name
        self.table = table
        self.taken: Taken = lambda client_id, epoch: None

    def claim(self, client_id: str, principal: str | None, lasts: bool) -> Claim | Deferred[Claim]:
        owner = self.table.owners.get(client_id)
        if owner is not None and owner[2] != principal:
            raise PermissionError(client_id)
        if owner is not None and owner[1] is self:
            return Claim(owner[0], Held.HERE)
        epoch = self.table.epochs.get(client_id, 0) + 1
        self.table.epochs[client_id] = epoch
        self.table.owners[client_id] = (epoch, self, principal)
        if owner is None:
            return Claim(epoch, Held.NOWHERE)
        return Claim(epoch, Held.NODE, owner[1].name, owner[1].taken(client_id, epoch))

    def release(self, client_id: str, epoch: int) -> Deferred[None] | None:
        owner = self.table.owners.get(client_id)
        if owner is not None and owner[:2] == (epoch, self):
            del self.table.owners[client_id]
        return None

    def watch(self, taken: Taken) -> None:
        self.taken = taken

    def description(self) -> str:
        return f"{self.name}: a table in memory"
