"""The sessions and retained messages of a store, put back into a broker that has just begun.

    session, subscription rows --> Session, subscribed      block records --> its window
                                                            their words ----> its queue
    will rows --> with their sessions, or published: their clients were there when the broker ended

Nothing is told to the journal of what it has told itself; what does not fit into its queue any more
or cannot be read is forgotten. Payloads that wait in a queue stay in the file until they are due.

MQTT 5.0: 3.1.2.5 (a will is published when the connection ends without DISCONNECT), 4.1, 4.4.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from mqttd.broker.broker import Broker
from mqttd.codec.reasons import MqttError
from mqttd.session.ground.message import RELEASED
from mqttd.session.ground.wheel import milliseconds
from mqttd.session.routes.route import OPTIONS, OWED
from mqttd.session.session import Session
from mqttd.storage.blobs import forget_closed
from mqttd.storage.entries import entry_of, load_retained, load_will
from mqttd.storage.journal import StoreJournal
from mqttd.storage.ledger import DELIVERY, KIND_MASK, MESSAGE3, MESSAGE5, RECEIVED
from mqttd.storage.ledger import RELEASED as RELEASED_KIND
from mqttd.storage.recovery import Contents, Found, Queue
from mqttd.storage.sums import Blocks
from mqttd.types import ClientInfo

__all__ = ["Restored", "restore"]

#: Messages, and bytes of them, that are read at once to see their topics.
_READ: Final = 256
_READ_BYTES: Final = 1 << 20


class Restored:
    """What was put back, for the log."""

    def __init__(self) -> None:
        self.sessions: int = 0
        self.messages: int = 0
        self.retained: int = 0
        #: Records that could not be read.
        self.unreadable: int = 0


class _Bytes:
    """The bytes of records, without the rest of their blocks."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self._blocks = Blocks(base)

    def of(self, found: Found) -> bytes:
        """The bytes of one record. Raises ValueError where they cannot be read."""
        try:
            data = self._blocks.block(found.block).read(found.at, found.length)
        except sqlite3.Error as error:
            raise ValueError(str(error)) from None
        if data is None:
            raise ValueError("its bytes are not what was written")
        return data

    def close(self) -> None:
        """Let the file be written again."""
        self._blocks.close()


def restore(
    broker: Broker, journal: StoreJournal, base: sqlite3.Connection, contents: Contents
) -> Restored:
    """Put everything back; the broker has no client yet."""
    restored = Restored()
    data = _Bytes(base)
    now = journal.seconds()
    owing: list[tuple[Session, list[tuple[str, int, int]]]] = []
    for row in base.execute(
        "SELECT owner, client_id, username, mountpoint, expiry, away_since, created_at FROM session"
    ).fetchall():
        owner, client_id, username, mountpoint, expiry, away_since, created_at = row
        if owner > journal.owners:
            journal.owners = owner
        if client_id in broker.sessions:
            journal.ended(owner)
            continue
        session = Session(broker, client_id, username)
        away = now - away_since if away_since else 0
        records = contents.records.get(owner, [])
        if mountpoint:
            session.client = ClientInfo(
                client_id, username, "", 0, "", 5, False, mountpoint=mountpoint
            )
        queue = contents.queues.pop(owner, None)
        v5 = _speaks_v5(records, queue)
        # In whole seconds, of which one may only have begun: nothing is over before its time.
        session.restored(0, expiry, broker.now - milliseconds(max(away - 1, 0)), v5)
        # Where it is not known, or a clock was set, it began no later than its client left.
        age = now - created_at if created_at else 0
        session.created_at = broker.now - milliseconds(max(age, away, 0))
        owed = _subscribe(broker, session, base, owner)
        if owed:
            owing.append((session, owed))
        session.restored(owner, expiry, session.away_since, session.v5)
        broker.registry.put_back(session)
        for found in records:
            _put(broker, journal, session, found, data, restored)
        if queue is not None:
            _queue(broker, journal, session, queue, restored)
        if not away_since:
            journal.left(owner)
        restored.sessions += 1
    if contents.highest_owner > journal.owners:
        journal.owners = contents.highest_owner
    for found in contents.records.get(0, []):
        _retain(broker, journal, found, data, restored)
    for session, owed in owing:
        for topic_filter, options, identifier in owed:
            broker.pubsub.owe(session, topic_filter, options, identifier)
            if not session.owes(topic_filter):  # nor is it to be owed after the next restart
                journal.subscribed(session.owner, topic_filter, options & OPTIONS, identifier)
    data.close()
    forget_closed(base)
    _wills(broker, base)
    return restored


def _speaks_v5(records: list[Found], queue: Queue | None) -> bool:
    """The version of the bytes in a session's window and queue, if all are of one."""
    if queue is not None:
        for receipt in queue.receipts:
            assert isinstance(receipt, int)
            if receipt & KIND_MASK != DELIVERY:
                return receipt & KIND_MASK == MESSAGE5
    for found in records:
        if found.kind == MESSAGE3:
            return False
        if found.kind == MESSAGE5:
            return True
    return True


def _subscribe(
    broker: Broker, session: Session, base: sqlite3.Connection, owner: int
) -> list[tuple[str, int, int]]:
    """Returns the subscriptions of which not all that is retained was sent."""
    owed = []
    for topic_filter, options, identifier in base.execute(
        "SELECT filter, options, identifier FROM subscription WHERE owner = ?", (owner,)
    ).fetchall():
        broker.pubsub.put_back(session, topic_filter, options & OPTIONS, identifier)
        if options & OWED:
            owed.append((topic_filter, options, identifier))
    return owed


def _put(
    broker: Broker,
    journal: StoreJournal,
    session: Session,
    found: Found,
    data: _Bytes,
    restored: Restored,
) -> None:
    """One record of a session."""
    kind = found.kind
    if kind == RECEIVED:
        session.restore_received(found.packet_id, found.number)
        return
    entry: object = RELEASED
    if kind != RELEASED_KIND:
        try:
            entry = entry_of(kind, data.of(found), session.v5, journal.since)
        except (ValueError, IndexError, TypeError):
            restored.unreadable += 1
            journal.forget(found.number)
            return
    restored.messages += 1
    session.restore(entry, found.packet_id, found.number)


def _queue(
    broker: Broker, journal: StoreJournal, session: Session, queue: Queue, restored: Restored
) -> None:
    """What waits for a session; it is read when it is due."""
    entries, numbers = queue.receipts, queue.numbers
    ranks: list[int] = []
    if broker.settings.mqueue_priorities:
        entries, numbers, ranks = _ranked(journal, session, queue)
    dropped = session.restore_queue(entries, numbers, ranks)
    for number in dropped:
        broker.metrics.dropped_queue_full += 1
        journal.forget(number)
    restored.messages += len(numbers) - len(dropped)


def _ranked(
    journal: StoreJournal, session: Session, queue: Queue
) -> tuple[list[object], vec[i64], list[int]]:
    """What of a queue can be read, and its priorities; payloads are read for their topics alone."""
    entries: list[object] = []
    numbers = vec[i64]()
    ranks: list[int] = []
    mqueue = session.new_queue()
    at = 0
    while at < len(queue.numbers):
        first, size = at, 0
        receipts: list[int] = []
        while at < len(queue.numbers) and at - first < _READ and size < _READ_BYTES:
            receipt = queue.receipts[at]
            assert isinstance(receipt, int)
            receipts.append(receipt)
            size += receipt >> 8
            at += 1
        found = journal.recall([*queue.numbers[first:at]], receipts, session.v5)
        for i in range(len(found)):
            if found[i] is not None:
                entries.append(queue.receipts[first + i])
                numbers = append(numbers, queue.numbers[first + i])
                ranks.append(mqueue.rank(found[i]))
    return entries, numbers, ranks


def _retain(
    broker: Broker, journal: StoreJournal, found: Found, data: _Bytes, restored: Restored
) -> None:
    try:
        kept, size = load_retained(data.of(found), journal.since)
        topic = kept.topic()
    except (ValueError, IndexError, TypeError, MqttError):
        restored.unreadable += 1
        journal.forget(found.number)
        return
    expires_at = kept.expires_at
    expiry = broker.settings.retained_expiry
    if expiry:
        # It has been kept since the time in its id; without one that is not known.
        came = (kept.id >> 64) // 1000 - journal.since if kept.id else broker.now
        latest = min(came, broker.now) + expiry
        if not expires_at or expires_at > latest:
            expires_at = latest
    if expires_at and expires_at <= broker.now:
        journal.forget(found.number)
        return
    kept.number = found.number
    # It was acknowledged once: limits that are lower now are asked of what comes.
    broker.retainer.store(topic, kept, size, expires_at, kept.weigh(), accepted=True)
    restored.retained += 1


def _wills(broker: Broker, base: sqlite3.Connection) -> None:
    """Wills go back to their sessions; of clients that have none, they are due."""
    wills = broker.wills
    alone = wills.held is None
    if alone:
        wills.hold()
    # Row by row: their packets together may be a great part of the memory.
    for client_id, username, delay, expiry, packet in base.execute(
        "SELECT client_id, username, delay, expiry, packet FROM will"
    ):
        session = broker.sessions.get(client_id)
        try:
            will = load_will(packet, client_id, username, expiry)
        except (MqttError, ValueError, IndexError):
            continue
        if session is None:
            session = Session(broker, client_id, username)
        session.restore_will(will, delay)
        if session.client_id not in broker.sessions:
            wills.publish(session)
    for session in list(broker.sessions.values()):
        broker.registry.resume_waiting(session)
    if alone:
        wills.release()
