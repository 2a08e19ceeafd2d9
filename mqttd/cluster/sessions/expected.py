"""Which sessions this node has claimed and are not here yet: of a client id several, in a line.

    claimed by us --> claimed by b --> claimed by us again      two: the older one is for b

Promise: the newest first, by the revisions in which they were claimed.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqttd.cluster.sessions.coming import Coming
from mqttd.cluster.sessions.transit import cancel

__all__ = ["Expected"]


class Expected:
    """Those of one node; `of` has the newest of each client id."""

    def __init__(self) -> None:
        self.of: dict[str, Coming] = {}

    def __len__(self) -> int:
        return len(self.of)

    def _all(self) -> Iterator[tuple[str, Coming]]:
        for client_id in list(self.of):
            for comes in self.line(client_id):
                yield client_id, comes

    def line(self, client_id: str) -> Iterator[Coming]:
        """Those of a client id, the newest first."""
        comes = self.of.get(client_id)
        while comes is not None:
            yield comes
            comes = comes.older

    def find(self, client_id: str, revision: int) -> Coming | None:
        """The one that was claimed in this revision."""
        line = self.line(client_id)
        return next((each for each in line if revision in (each.revision, each.by)), None)

    def _unlink(self, client_id: str, comes: Coming) -> None:
        cancel(comes.late)
        comes.late = None
        newest = self.of.get(client_id)
        if newest is comes:
            if comes.older is None:
                del self.of[client_id]
            else:
                self.of[client_id] = comes.older
            return
        while newest is not None and newest.older is not comes:
            newest = newest.older
        if newest is not None:
            newest.older = comes.older

    def pending(self, client_id: str) -> int:
        """The revision of what was claimed last and nobody has been given; 0 for none."""
        comes = self.of.get(client_id)
        return 0 if comes is None or comes.taken or comes.next is not None else comes.by

    def missed(self, client_id: str, revision: int) -> bool:
        """Somebody has waited in vain for one that is expected; whether that is the first time."""
        comes = self.find(client_id, revision)
        if comes is None or comes.missed:
            return False
        comes.missed = True
        return True

    def renewed(self, client_id: str, revision: int, lease: int) -> None:
        """A client id is ours by this revision and lease, since we are a member anew."""
        if self.pending(client_id):
            self.of[client_id].by, self.of[client_id].lease = revision, lease

    def origin_of(self, client_id: str) -> str:
        """From where one comes that nobody has been given; empty: none does."""
        return self.of[client_id].origin if self.pending(client_id) else ""

    def awaited_of(self, origin: str) -> list[tuple[str, int]]:
        """Sessions that were claimed of a node, and are still wanted of it: in which revision."""
        return [
            (client_id, comes.revision)
            for client_id, comes in self._all()
            if comes.origin == origin and comes.revision and not comes.whole
            and (comes.state is None or comes.again)
        ]  # fmt: skip

    def expect(self, client_id: str, origin: str, revision: int, lasts: bool = False) -> Coming:
        """A session comes from this node, claimed in this revision; `lasts`: see `Coming`."""
        comes = self.find(client_id, revision)
        if comes is None:
            newest = self.of.get(client_id)
            if newest is None or newest.by < revision:
                comes = self.of[client_id] = Coming(origin, revision, newest)
            else:
                while newest.older is not None and newest.older.by > revision:
                    newest = newest.older
                comes = newest.older = Coming(origin, revision, newest.older)
            comes.lasts = lasts
        return comes

    def _is_coming(self, client_id: str, comes: Coming) -> bool:
        return self.find(client_id, comes.revision) is comes and not comes.whole
