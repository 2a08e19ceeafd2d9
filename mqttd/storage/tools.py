"""What an operator asks of a store whose broker is down: what is in it, is it whole, give it to me.

    info      sizes, counts of sessions, messages, retained messages
    check     SQLite's own check, each block's CRC, each record that lives read once
    export    everything as JSON lines, one object a line, in an order that `import` can follow
    import    JSON lines into a new file

    {"type": "store", "version": 1}
    {"type": "session", "client_id": ..., "username": ..., "mountpoint": ..., "expiry": seconds,
     "away_since": seconds since 1970, "subscriptions": [[filter, options, identifier], ...]}
    {"type": "message", "client_id": ..., "packet_id": 0 | id, "state": "queued" | "inflight" |
     "released" | "received", "version": 4 | 5, "expires_at": ms since 1970, "publisher": ...,
     "packet": base64 of the PUBLISH}
    {"type": "retained", ...} and {"type": "will", ...} alike

A broker that runs has the file for itself, so these are refused then; see `backup`.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from mqttd.storage.database import (
    OPEN_SESSION,
    PLACE_SESSION,
    SET_WILL,
    STATEMENTS,
    SUBSCRIBE,
    Damaged,
    StoreError,
    connect,
)
from mqttd.storage.entries import dump, dump_retained, load, load_retained
from mqttd.storage.ledger import (
    DELIVERY,
    MESSAGE3,
    MESSAGE5,
    RECEIVED,
    RELEASED,
    RETAINED,
    Ledger,
)
from mqttd.storage.recovery import Contents, Found, read
from mqttd.storage.writer import write

__all__ = ["backup", "check", "export", "import_lines", "info"]

Json = dict[str, Any]

_VERSION: Final = 1
_STATES: Final = {RECEIVED: "received", RELEASED: "released"}
#: Records that are written at once by `import_lines`.
_BATCH: Final = 500


class _Reader:
    """A store that is open for a tool. Raises StoreError."""

    def __init__(self, path: str) -> None:
        if not os.path.exists(path):
            raise StoreError(f"{path}: there is no store")
        try:
            self.base = connect(path)
        except Damaged as error:
            raise StoreError(str(error)) from None
        self.ledger = Ledger()
        self._block = 0
        self._data = b""
        try:
            self.contents: Contents = read(self.base, self.ledger)
        except sqlite3.DatabaseError as error:
            self.base.close()
            raise StoreError(f"{path}: {error}") from None

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *failure: object) -> None:
        self.base.close()

    def data(self, found: Found) -> bytes:
        """The bytes of a record."""
        if found.block != self._block:
            row = self.base.execute("SELECT data FROM block WHERE id = ?", (found.block,))
            self._data = row.fetchone()[0]
            self._block = found.block
        return self._data[found.at : found.at + found.length]


def info(path: str) -> Json:
    """What is in a store. Raises StoreError."""
    with _Reader(path) as store:
        records = store.contents.records
        count = store.base.execute
        messages = sum(
            found.kind in (MESSAGE3, MESSAGE5, DELIVERY)
            for owner, mine in records.items()
            if owner
            for found in mine
        )
        return {
            "path": path,
            "bytes": os.path.getsize(path),
            "blocks": len(store.ledger.blocks),
            "block_bytes": store.ledger.bytes,
            "sessions": count("SELECT count(*) FROM session").fetchone()[0],
            "subscriptions": count("SELECT count(*) FROM subscription").fetchone()[0],
            "wills": count("SELECT count(*) FROM will").fetchone()[0],
            "messages": messages,
            "retained": len(records.get(0, ())),
            "damaged": store.contents.damaged,
        }


def check(path: str) -> list[str]:
    """What is wrong with a store, nothing if it is whole. Raises StoreError."""
    wrong: list[str] = []
    with _Reader(path) as store:
        for row in store.base.execute("PRAGMA integrity_check"):
            if row[0] != "ok":
                wrong.append(str(row[0]))
        for number, words, crc in store.base.execute("SELECT id, words, crc FROM block"):
            if not isinstance(words, bytes) or len(words) % 16 or zlib.crc32(words) != crc:
                wrong.append(f"block {number}: its words are damaged")
        for owner, mine in store.contents.records.items():
            for found in mine:
                try:
                    _line(store, found, str(owner))
                except (ValueError, IndexError, KeyError, TypeError) as error:
                    wrong.append(f"record {found.number} in block {found.block}: {error!r}")
    return wrong


def export(path: str) -> Iterator[Json]:
    """Everything in a store, an object a line. Raises StoreError."""
    with _Reader(path) as store:
        yield {"type": "store", "version": _VERSION, "written_at": int(time.time())}
        ask = store.base.execute
        rows = ask(
            "SELECT owner, client_id, username, mountpoint, expiry, away_since FROM session"
            " ORDER BY owner"
        ).fetchall()
        for owner, client_id, username, mountpoint, expiry, away_since in rows:
            subscriptions = ask(
                "SELECT filter, options, identifier FROM subscription WHERE owner = ?", (owner,)
            ).fetchall()
            yield {
                "type": "session",
                "client_id": client_id,
                "username": username,
                "mountpoint": mountpoint,
                "expiry": expiry,
                "away_since": away_since,
                "subscriptions": [list(row) for row in subscriptions],
            }
            for found in store.contents.records.get(owner, ()):
                yield _line(store, found, client_id)
        for found in store.contents.records.get(0, ()):
            yield _line(store, found, "")
        for client_id, username, delay, expiry, packet in ask("SELECT * FROM will").fetchall():
            yield {
                "type": "will",
                "client_id": client_id,
                "username": username,
                "delay": delay,
                "expiry": expiry,
                "packet": base64.b64encode(packet).decode(),
            }


def _line(store: _Reader, found: Found, client_id: str) -> Json:
    """One record as an object."""
    kind = found.kind
    data = store.data(found)
    if kind == RETAINED:
        kept, _ = load_retained(data, 0)
        return {
            "type": "retained",
            "topic": kept.topic(),
            "version": 5 if kept.v5 else 4,
            "expires_at": kept.expires_at,
            "publisher": kept.source,
            "username": kept.username,
            "packet": base64.b64encode(kept.wire).decode(),
            "record": base64.b64encode(data).decode(),
        }
    line: Json = {"type": "message", "client_id": client_id, "packet_id": found.packet_id}
    line["state"] = _STATES.get(kind, "inflight" if found.packet_id else "queued")
    if kind in _STATES:
        return line
    if kind == DELIVERY:
        delivery = load(data, 0)
        line["version"] = 5 if delivery.v5 else 4
        line["expires_at"] = delivery.expires_at
        line["publisher"] = delivery.source
        line["packet"] = base64.b64encode(delivery.wire).decode()
        line["record"] = base64.b64encode(dump(delivery, 0)).decode()
    else:
        line["version"] = 5 if kind == MESSAGE5 else 4
        line["packet"] = base64.b64encode(data).decode()
    return line


def import_lines(path: str, lines: Iterable[str]) -> Json:
    """Make a store of what `export` has written; returns counts.

    Raises StoreError where there is one already, or for lines that are none: then no file is made.
    """
    if os.path.exists(path):
        raise StoreError(f"{path} is there already; move it away first")
    making = f"{path}.making"
    if os.path.exists(making):
        os.unlink(making)
    base = connect(making)
    try:
        counts = _Import(base).all(lines)
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        base.close()
        os.rename(making, path)
        return counts
    except BaseException:
        base.close()
        for end in ("", "-wal", "-shm"):
            if os.path.exists(making + end):
                os.unlink(making + end)
        raise


class _Import:
    """Lines on their way into a new file."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self.base = base
        self.ledger = Ledger()
        self.owners: dict[str, int] = {}
        self.counts: dict[str, int] = {"session": 0, "message": 0, "retained": 0, "will": 0}

    def all(self, lines: Iterable[str]) -> Json:
        """Take every line."""
        kinds: dict[str, Callable[[Json], None]] = {
            "session": self.session,
            "message": self.message,
            "retained": self.retained,
            "will": self.will,
        }
        begun = False
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
                kind = line["type"]
                if kind == "store":
                    if line["version"] != _VERSION:
                        raise StoreError(
                            f"line {number}: version {line['version']!r}, expected {_VERSION}"
                        )
                    begun = True
                    continue
                if not begun:
                    raise StoreError("line 1: not what `mqttd-ctl store export` writes")
                kinds[kind](line)
                self.counts[kind] += 1
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                raise StoreError(f"line {number}: {error!r}") from None
            if len(self.ledger.group.words) >= 2 * _BATCH:
                self.flush()
        self.flush()
        return dict(self.counts)

    def flush(self) -> None:
        """Write what was gathered."""
        group = self.ledger.close()
        if group is not None:
            write(self.base, group)

    def session(self, line: Json) -> None:
        """A session with its subscriptions."""
        owner = len(self.owners) + 1
        if line["client_id"] in self.owners:
            raise StoreError(f"session {line['client_id']!r} comes twice")
        self.owners[line["client_id"]] = owner
        row = self.ledger.row
        row(OPEN_SESSION, (owner, line["client_id"], line["username"], line["expiry"]))
        row(PLACE_SESSION, (line["mountpoint"], owner))
        row(STATEMENTS.index("UPDATE session SET away_since = ? WHERE owner = ?"),
            (line["away_since"] or int(time.time()), owner))  # fmt: skip
        for topic_filter, options, identifier in line["subscriptions"]:
            row(SUBSCRIBE, (owner, topic_filter, options, identifier))

    def message(self, line: Json) -> None:
        """A message of a session, or a packet id."""
        owner = self.owners[line["client_id"]]
        packet_id = line["packet_id"]
        state = line["state"]
        if state in ("received", "released"):
            kind = RECEIVED if state == "received" else RELEASED
            self.ledger.note(owner, kind, packet_id, b"")
        elif "record" in line:
            data = base64.b64decode(line["record"], validate=True)
            load(data, 0)
            self.ledger.note(owner, DELIVERY, packet_id, data)
        else:
            kind = MESSAGE5 if line["version"] == 5 else MESSAGE3
            data = base64.b64decode(line["packet"], validate=True)
            self.ledger.note(owner, kind, packet_id, data)

    def retained(self, line: Json) -> None:
        """A retained message."""
        data = base64.b64decode(line["record"], validate=True)
        kept, _ = load_retained(data, 0)
        self.ledger.note(0, RETAINED, 0, dump_retained(kept, 0))

    def will(self, line: Json) -> None:
        """A will."""
        packet = base64.b64decode(line["packet"], validate=True)
        values = (line["client_id"], line["username"], line["delay"], line["expiry"], packet)
        self.ledger.row(SET_WILL, values)


def backup(base: sqlite3.Connection, path: str) -> None:
    """Copy the store behind a connection to a new file, mode 0600, a few pages at a time."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    target = sqlite3.connect(path)
    try:
        base.backup(target, pages=256)
        target.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        target.close()
