"""A store as JSON lines, and JSON lines as a store: between machines, versions and brokers.

    store.db --export_lines--> lines --import_lines--> store.db, new; users for who wants them
                                 ^
                 mosquitto.db ---'   (`mqttd.storage.mosquitto`)

Promise: an import makes the whole store or none: it is made beside its place and linked there when
the last line was taken, and never takes the place of one that is there. Lines are told by number.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Final

from mqttd.broker.rights.bans import DRAWER, Ban, BanError, load_ban
from mqttd.codec.frame import body_at
from mqttd.codec.parser import parse_packet
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_filter, validate_topic_name
from mqttd.session.ground.message import Delivery
from mqttd.storage.database import (
    DATE_SESSION,
    KEEP,
    LEAVE_SESSION,
    OPEN_SESSION,
    PLACE_SESSION,
    SET_WILL,
    SUBSCRIBE,
    StoreError,
    connect,
)
from mqttd.storage.entries import dump, dump_retained, load, load_retained, load_will
from mqttd.storage.ledger import (
    DELIVERY,
    MESSAGE3,
    MESSAGE5,
    RECEIVED,
    RELEASED,
    RETAINED,
    Ledger,
)
from mqttd.storage.lines import (
    VERSION,
    BanLine,
    End,
    Header,
    Line,
    MessageLine,
    RetainedLine,
    SessionLine,
    UserLine,
    ValueLine,
    WillLine,
    load_line,
)
from mqttd.storage.place import put_in_place, remove
from mqttd.storage.reader import Reader, row_named
from mqttd.storage.recovery import Found
from mqttd.storage.writer import write

__all__ = [
    "delivery_line",
    "export_lines",
    "import_lines",
    "line_of",
    "message_line",
    "retained_line",
]

_STATES: Final = {RECEIVED: "received", RELEASED: "released"}
#: Records that are written at once.
_BATCH: Final = 500
_PUBLISH: Final = 3

Users = list[UserLine]


def export_lines(
    path: str, users: Iterable[UserLine] = (), by: str = "", left: list[str] | None = None
) -> Iterator[Line]:
    """Everything in a store that can be read, and these users; `left` gets what cannot.

    Raises StoreError.
    """
    count = 0
    left = [] if left is None else left
    with Reader(path) as store:
        left += [f"{path}: {row_named(number)}" for number in store.damaged()]
        for line in _everything(store, users, by, left):
            count += 1
            yield line
    yield End(lines=count)


def _everything(
    store: Reader, users: Iterable[UserLine], by: str, left: list[str]
) -> Iterator[Line]:
    yield Header(version=VERSION, written_at=int(time.time()), by=by)
    ask = store.base.execute
    rows = ask(
        "SELECT owner, client_id, username, mountpoint, expiry, away_since, created_at"
        " FROM session ORDER BY owner"
    ).fetchall()
    for owner, client_id, username, mountpoint, expiry, away_since, created_at in rows:
        yield SessionLine(
            client_id=client_id,
            username=username,
            mountpoint=mountpoint,
            expiry=expiry,
            away_since=away_since,
            created_at=created_at,
            subscriptions=ask(
                "SELECT filter, options, identifier FROM subscription WHERE owner = ?", (owner,)
            ).fetchall(),
        )
        yield from _records(store, owner, client_id, left)
    yield from _records(store, 0, "", left)
    for client_id, username, delay, expiry, packet in ask("SELECT * FROM will").fetchall():
        yield WillLine(
            client_id=client_id, username=username, delay=delay, expiry=expiry, packet=packet
        )
    for plugin, key, value in ask("SELECT plugin, key, value FROM kept").fetchall():
        if plugin == DRAWER:
            ban = load_ban(value)
            yield BanLine(
                kind=ban.kind,  # type: ignore[arg-type]
                value=ban.value,
                reason=ban.reason,
                until=ban.until,
                since=ban.since,
            )
        else:
            yield ValueLine(plugin=plugin, key=key, value=value)
    yield from users


def _records(store: Reader, owner: int, client_id: str, left: list[str]) -> Iterator[Line]:
    for found in store.contents.records.get(owner, ()):
        line = line_of(store, found, client_id)
        if isinstance(line, Exception):
            of = f" of {client_id!r}" if owner else ""
            left.append(f"{store.path}: record {found.number} in block {found.block}{of}: {line!r}")
        else:
            yield line


def line_of(store: Reader, found: Found, client_id: str) -> MessageLine | RetainedLine | Exception:
    """The line of a record, or why it cannot be read."""
    try:
        data = store.data(found)
        if found.kind == RETAINED:
            return retained_line(data)
        return message_line(found, data, client_id)
    except (ValueError, IndexError, KeyError, TypeError, MqttError) as error:
        return error


def message_line(found: Found, data: bytes, client_id: str) -> MessageLine:
    """One record of a session. Raises ValueError, IndexError or TypeError for other bytes."""
    kind = found.kind
    if kind in _STATES:
        state = "received" if kind == RECEIVED else "released"
        return MessageLine(client_id=client_id, packet_id=found.packet_id, state=state)  # type: ignore[arg-type]
    line = MessageLine(
        client_id=client_id,
        packet_id=found.packet_id,
        state="inflight" if found.packet_id else "queued",
        version=5 if kind == MESSAGE5 else 4,
        packet=data,
    )
    if kind == DELIVERY:
        _remember(line, load(data, 0))
    return line


def delivery_line(delivery: Delivery, client_id: str) -> MessageLine:
    """A delivery that is to wait for a session."""
    line = MessageLine(client_id=client_id, packet_id=0, state="queued")
    _remember(line, delivery)
    return line


def _remember(line: MessageLine, delivery: Delivery) -> None:
    line.version = 5 if delivery.v5 else 4
    line.expires_at = delivery.expires_at
    line.publisher = delivery.source
    line.packet = delivery.wire
    line.record = dump(delivery, 0)


def retained_line(data: bytes) -> RetainedLine:
    """A retained message. Raises as `message_line`."""
    kept, _ = load_retained(data, 0)
    return RetainedLine(
        topic=kept.topic(),
        version=5 if kept.v5 else 4,
        expires_at=kept.expires_at,
        publisher=kept.source,
        username=kept.username,
        packet=kept.wire,
        record=data,
    )


def import_lines(
    path: str,
    lines: Iterable[str | Line],
    take_users: Callable[[Users], Callable[[], None]] | None = None,
) -> dict[str, int]:
    """Make a store of lines; returns how many there were of each type.

    take_users: called with the users when everything else is written; what it returns is called
    if the store cannot be put in its place after all, and undoes it. Without it users are counted
    only. Raises StoreError where there is a store already or it cannot be written, or for lines
    that are none, with the number of the line, OSError where it cannot get its name: then no
    file is made.
    """
    if os.path.exists(path):
        raise StoreError(f"{path} is there already; move it away first")
    making = f"{path}.making"
    remove(making)
    try:
        return _import(making, path, lines, take_users)
    except sqlite3.Error as error:
        raise StoreError(f"{making}: {error}") from None
    finally:
        remove(making)


def _import(
    making: str,
    path: str,
    lines: Iterable[str | Line],
    take_users: Callable[[Users], Callable[[], None]] | None,
) -> dict[str, int]:
    with closing(connect(making)) as base:
        taking = _Import(base)
        counts = taking.all(lines)
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    undo = take_users(taking.users) if take_users is not None else None
    try:
        put_in_place(making, path)
    except BaseException:
        if undo is not None:
            undo()
        raise
    return counts


class _Import:
    """Lines on their way into a new file."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self.base = base
        self.ledger = Ledger()
        self.owners: dict[str, int] = {}
        self.topics: set[str] = set()
        self.users: Users = []
        self.counts = dict.fromkeys(
            ("session", "message", "retained", "will", "ban", "user", "value"), 0
        )

    def all(self, lines: Iterable[str | Line]) -> dict[str, int]:
        """Take every line. Raises StoreError."""
        number = 0
        taken = 0
        version = 0
        ended = False
        try:
            for text in lines:
                number += 1
                if isinstance(text, str):
                    if not text.strip():
                        continue
                    if ended:
                        raise ValueError("a line behind the last (type end)")
                    line = load_line(text)
                else:
                    line = text
                if isinstance(line, Header):
                    if taken:
                        raise ValueError("a second first line (type store)")
                    if not 1 <= line.version <= VERSION:
                        raise ValueError(f"version {line.version}: this mqttd reads 1 to {VERSION}")
                    version = line.version
                elif not version:
                    raise ValueError('expected {"type":"store","version":...} first')
                elif isinstance(line, End):
                    if line.lines != taken:
                        raise ValueError(f"{line.lines} lines were written, {taken} are here")
                    ended = True
                else:
                    self._take(line)
                taken += 1
                if len(self.ledger.group.words) >= 16 * _BATCH or taken % 5000 == 0:
                    self.flush()
        except (ValueError, KeyError, IndexError, TypeError, MqttError, BanError) as error:
            raise StoreError(f"line {number}: {_told(error)}") from None
        if not version:
            raise StoreError('line 1: expected {"type":"store","version":...}, found nothing')
        if version > 1 and not ended:
            raise StoreError(
                f'line {number + 1}: expected more, up to {{"type":"end"}}: the file was cut off'
            )
        self.flush()
        return self.counts

    def flush(self) -> None:
        """Write what was gathered."""
        group = self.ledger.close()
        if group is not None:
            write(self.base, group)

    def _take(self, line: Line) -> None:
        if isinstance(line, SessionLine):
            self._session(line)
            kind = "session"
        elif isinstance(line, MessageLine):
            self._message(line)
            kind = "message"
        elif isinstance(line, RetainedLine):
            self._retained(line)
            kind = "retained"
        elif isinstance(line, WillLine):
            load_will(line.packet, line.client_id, line.username, line.expiry)
            self.ledger.row(
                SET_WILL, (line.client_id, line.username, line.delay, line.expiry, line.packet)
            )
            kind = "will"
        elif isinstance(line, BanLine):
            ban = Ban(line.kind, line.value, line.reason, line.until, line.since)
            load_ban(ban.dump())
            self.ledger.row(KEEP, (DRAWER, ban.key(), ban.dump()))
            kind = "ban"
        elif isinstance(line, UserLine):
            self.users.append(line)
            kind = "user"
        elif isinstance(line, ValueLine):
            if line.plugin == DRAWER:
                raise ValueError(f"plugin {DRAWER!r}: bans have a type of their own")
            self.ledger.row(KEEP, (line.plugin, line.key, line.value))
            kind = "value"
        else:
            raise TypeError("a header or an end among the lines")
        self.counts[kind] += 1

    def _session(self, line: SessionLine) -> None:
        if line.client_id in self.owners:
            raise ValueError(f"session {line.client_id!r} comes twice")
        owner = len(self.owners) + 1
        self.owners[line.client_id] = owner
        row = self.ledger.row
        row(OPEN_SESSION, (owner, line.client_id, line.username, line.expiry))
        row(PLACE_SESSION, (line.mountpoint, owner))
        row(DATE_SESSION, (line.created_at, owner))
        row(LEAVE_SESSION, (line.away_since or int(time.time()), owner))
        for topic_filter, options, identifier in line.subscriptions:
            validate_topic_filter(topic_filter)
            if options & 3 == 3:
                raise ValueError(f"options {options} of {topic_filter!r}: expected a QoS up to 2")
            row(SUBSCRIBE, (owner, topic_filter, options, identifier))

    def _message(self, line: MessageLine) -> None:
        owner = self.owners.get(line.client_id)
        if owner is None:
            raise ValueError(f"client_id {line.client_id!r}: expected that of a session before")
        note = self.ledger.note
        if (line.state == "queued") == bool(line.packet_id):
            raise ValueError(
                f"packet_id {line.packet_id}: expected 0 of what is queued, else an id"
            )
        if line.state == "received" or line.state == "released":
            note(owner, RECEIVED if line.state == "received" else RELEASED, line.packet_id, b"")
        elif line.record is not None:
            kept = load(line.record, 0)
            _check_publish(kept.wire, 5 if kept.v5 else 4, line.packet_id)
            note(owner, DELIVERY, line.packet_id, line.record)
        else:
            if line.version is None:
                raise ValueError("version: expected 4 or 5")
            _check_publish(line.packet, line.version, line.packet_id)
            note(owner, MESSAGE5 if line.version == 5 else MESSAGE3, line.packet_id, line.packet)

    def _retained(self, line: RetainedLine) -> None:
        kept, _ = load_retained(line.record, 0)
        if kept.topic() != line.topic:
            raise ValueError(f"topic {line.topic!r}: the record is of {kept.topic()!r}")
        validate_topic_name(line.topic)
        if line.topic in self.topics:
            raise ValueError(f"topic {line.topic!r} comes twice")
        self.topics.add(line.topic)
        self.ledger.note(0, RETAINED, 0, dump_retained(kept, 0))


def _check_publish(packet: bytes, version: int, packet_id: int) -> None:
    if not packet or packet[0] >> 4 != _PUBLISH:
        raise ValueError("packet: expected a PUBLISH")
    try:
        parse_packet(packet[0], packet[body_at(packet) :], version)
    except (MqttError, IndexError) as error:
        raise ValueError(f"packet: expected a PUBLISH: {error}") from None
    if packet_id and not packet[0] & 6:
        raise ValueError("packet: expected QoS 1 or 2 of what is in flight")


def _told(error: Exception) -> str:
    if isinstance(error, MqttError):
        return error.detail or str(error)
    return str(error) if isinstance(error, ValueError) and str(error) else repr(error)
