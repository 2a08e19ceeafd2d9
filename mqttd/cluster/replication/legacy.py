"""What a node that is gone has left in its stream, made into a file and sessions again.

    the end is written --> its number --> WHOLE, the last before it --> START ... the end, read
           --> `Copy`, a file like the node's own --> `Legacy`: its sessions in another broker

That lets nobody in and writes nothing: it has their windows, queues and filters, and takes what
others have kept for the node, as that would have.

Promise: what the node has been told is there is before the end, whatever it does meanwhile.
Payloads stay in the file until their session is asked for.
"""

from __future__ import annotations

import os
from typing import Final

from twisted.internet.defer import Deferred, FirstError, gatherResults
from twisted.internet.threads import deferToThread

from mqttd.broker.broker import Broker
from mqttd.broker.sessions.records import queue_of, record_of
from mqttd.cluster.links.nodes import ONCE, TAKEN
from mqttd.cluster.replication.copying import head_of, whole_of
from mqttd.cluster.sessions.left import LEFT
from mqttd.mesh.arriving import Arriving
from mqttd.mesh.ferry import kept_rows, taken_of
from mqttd.mesh.frames import number_of
from mqttd.mesh.landing import Control
from mqttd.mesh.link import Link, Nowhere
from mqttd.mesh.peer import Choice
from mqttd.nats.client import NatsError
from mqttd.nats.jetstream import JetStream, Missing, Stored
from mqttd.plugins.calls.hooks import Hooks
from mqttd.session.session import Session
from mqttd.storage.copies import Copy
from mqttd.storage.durability import Durability
from mqttd.storage.fetching import read as payloads
from mqttd.storage.journal import StoreJournal
from mqttd.storage.ledger import Ledger
from mqttd.storage.recovery import read
from mqttd.storage.restore import restore
from mqttd.types import SessionState

__all__ = ["Legacy", "fetch"]

#: Messages of a stream that are asked for side by side, and how often one that does not come.
_WINDOW: Final = 32
_TRIES: Final = 5


async def fetch(jetstream: JetStream, stream: str, subject: str, path: str) -> None:
    """Make the file at `path` of what stands in the stream.

    Raises NatsError where it cannot be read now; Missing, where there is no such stream (NoStream),
    or nothing whole in it.
    """
    for name in (path, f"{path}-wal", f"{path}-shm"):
        if os.path.exists(name):
            os.unlink(name)
    await jetstream.info(stream)
    end = await jetstream.append(f"{subject}.f", b"")
    start = await _start(jetstream, stream, subject, end)
    copy = await deferToThread(Copy, path)
    try:
        await _apply_all(jetstream, stream, f"{subject}.q", start, end, copy)
    finally:
        await deferToThread(copy.close)


async def _start(jetstream: JetStream, stream: str, subject: str, end: int) -> int:
    """Where what is whole before the end begins."""
    whole = await jetstream.last(stream, f"{subject}.m")
    start, before = whole_of(head_of(whole.data)[1])
    return start if whole.sequence < end else before


async def _apply_all(
    jetstream: JetStream, stream: str, subject: str, start: int, end: int, copy: Copy
) -> None:
    """Put the pieces between these together; what came twice counts once."""
    which = done = 0
    pieces: dict[int, dict[int, bytes]] = {}
    for at in range(start, end, _WINDOW):
        asked = [_one(jetstream, stream, number) for number in range(at, min(at + _WINDOW, end))]
        entries: list[bytes] = []
        for found in await _all(asked):
            if found.subject != subject:
                continue
            head, body = head_of(found.data)
            if not which:
                which = head.copy
            if head.copy != which or head.entry <= done:
                continue
            known = pieces.setdefault(head.entry, {})
            known[head.piece] = body
            if len(known) == head.pieces:
                entries.append(b"".join(known[each] for each in range(head.pieces)))
                done = head.entry
                pieces.clear()
        await deferToThread(_apply, copy, entries)


async def _all(asked: list[Deferred[Stored]]) -> list[Stored]:
    """What all of these say; raises what the first raises that fails."""
    try:
        return await gatherResults(asked, consumeErrors=True)
    except FirstError as error:
        error.subFailure.raiseException()
        raise


def _apply(copy: Copy, entries: list[bytes]) -> None:
    for each in entries:
        copy.apply(each)


def _one(jetstream: JetStream, stream: str, number: int) -> Deferred[Stored]:
    async def tried() -> Stored:
        for left in range(_TRIES, 0, -1):
            try:
                return await jetstream.get(stream, number)
            except Missing:
                raise
            except NatsError:
                if left == 1:
                    raise
        raise AssertionError

    return Deferred.fromCoroutine(tried())


class Legacy:
    """The sessions of the file at `path`, for `broker`, in one of their own."""

    def __init__(self, broker: Broker, path: str) -> None:
        self._copy = copy = Copy(path)
        self._metrics, self._log = broker.metrics, broker.log
        copy.base.execute(
            "DELETE FROM will"
        )  # of those others know, too: `mqttd.cluster.wills.heirs`
        self.broker = made = Broker(
            broker.settings, broker.access, Hooks(), broker.clock, broker.now,
            broker.soon, lambda event, fields: None, name=broker.name,
        )  # fmt: skip
        ledger = Ledger()
        contents = read(copy.base, ledger, queues=True)
        contents.records.pop(0, None)  # what is retained all nodes have
        journal = StoreJournal(
            ledger, made, lambda group: None, lambda: broker.clock() // 1_000_000, broker.since(),
            Durability(0, {}),
        )  # fmt: skip
        journal.read = lambda pieces: payloads(copy.base, pieces)
        made.journal = journal
        restore(made, journal, copy.base, contents)
        #: Of each other node: its stream, and how many counted frames of that were taken.
        self.taken: dict[str, tuple[int, int]] = {
            name: (number_of(value), number_of(value[8:]))
            for name, value in copy.base.execute(
                "SELECT key, value FROM kept WHERE plugin = ?", (TAKEN,)
            )
        }
        #: The same of what comes once: the number of the last and its book.
        self.taken_once: dict[str, tuple[int, int]] = {}
        #: Sessions that were on their way elsewhere, or there.
        self.left = {
            key for (key,) in copy.base.execute("SELECT key FROM kept WHERE plugin = ?", (LEFT,))
        }
        #: Of which book the node's own numbers are, and what it had for each other node.
        self.book = 0
        self.under_way: dict[str, list[tuple[int, bytes]]] = {}
        self._read_once()

    def _read_once(self) -> None:
        rows: dict[str, list[bytes]] = {}
        query = "SELECT key, value FROM kept WHERE plugin = ?"
        for key, value in self._copy.base.execute(query, (ONCE,)):
            what, _, rest = key.partition(" ")
            if what == "from":
                self.taken_once[rest] = taken_of(value)
            elif what == "for":
                rows.setdefault(rest.partition(" ")[0], []).append(value)
            elif what == "book":
                self.book = number_of(value)
        self.under_way = {name: kept_rows(each) for name, each in rows.items()}

    def close(self) -> None:
        """Let go of the file."""
        self._copy.close()

    def client_ids(self) -> list[str]:
        """Whose sessions there are."""
        return list(self.broker.sessions)

    def leave_out(self, client_id: str) -> None:
        """Where it had left when its node was killed: another has what is later."""
        if client_id in self.left and self.broker.sessions.pop(client_id, None) is not None:
            self._log("session not inherited", {"client_id": client_id, "reason": "it had left"})

    def take(self, data: bytes) -> None:
        """A message that was kept for the node, with what is said of it."""
        broker = self.broker
        Arriving(broker, Link(broker, Nowhere(), 1), Control(), Choice()).take(data)
        broker.perform()

    def outline(self, client_id: str) -> SessionState:
        """A session without its messages."""
        return SessionState(record_of(self.broker, self.broker.sessions[client_id]), (), 0)

    def state(self, client_id: str) -> SessionState:
        """A session as it is now; no more of it is to be asked."""
        session: Session = self.broker.sessions[client_id]
        record = record_of(self.broker, session)
        counted, own = self.broker.metrics, self._metrics
        own.dropped_expired -= counted.dropped_expired
        queue = tuple(queue_of(self.broker, session, True))
        own.dropped_expired += counted.dropped_expired
        return SessionState(record, queue, 0)
