"""Events on their way to a block, column by column.

    append(row)            what happened to a client       --+
    note(packet or run)    messages as they came, in bytes --+-->  columns  --take-->  packed.pack
    note_message(message)  messages that are whole already --+
    note_deliveries(runs)  what becomes of them -------------+

The first event of a batch is told with `started`, a full batch with `full`; both must not raise.

Packets that follow one another in the bytes received and differ in their payloads alone are one
run. What many runs of deliveries say is made once for all clients that were sent the same.

Promise: a message that is noted costs some appends here, one if it goes on with a run, and no
object of its own, a delivery of many less than that; `encode_block`, the slow twin, says the same
(tests/unit/pipeline/test_notes.py). Compiled with the hot path.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from mqttd.codec import properties as prop
from mqttd.codec.properties import encode_properties
from mqttd.pipeline.log.blocks import (
    HAS_PAYLOAD,
    HAS_QOS,
    HAS_SIZE,
    RETAIN,
    Row,
    Taken,
)
from mqttd.pipeline.log.parts import Part, Segments, counts_of, text_of, texts
from mqttd.pipeline.log.schema import CODES
from mqttd.session.message import Message
from mqttd.session.notes import Notes
from mqttd.session.runs import Run

__all__ = ["Columns"]

_PUBLISH: Final = CODES["message.publish"]
_DELIVERED: Final = CODES["message.delivered"]
_ACKED: Final = CODES["message.acked"]
#: `Columns.sample` for all of them.
ALL: Final = 1 << 16
_NAMED: Final[int] = HAS_SIZE
_MESSAGE: Final[int] = HAS_QOS | HAS_SIZE
_PAYLOAD: Final[int] = HAS_PAYLOAD
_RETAIN: Final[int] = RETAIN

#: A batch is full with so many bytes of payloads, or with one so large.
FULL: Final = 1 << 20
LARGE: Final = 32 << 10

_HALF: Final = (1 << 64) - 1
_MOST: Final = 1 << 60
#: What Spark's sink says to the plugin itself is no event.
_OWN: Final = b"$mqttd/"
_DOLLAR: Final = 36
#: Runs are put into bytes so many at a time: what they are made of stays in the cache.
_AHEAD: Final = 512
#: So many runs that clients share are worth a `Part`.
_WORTH: Final = 8


class Columns(Notes):
    """A batch that is being filled.

    most: events that make it full; limit: the largest payload that is kept, -1 for none.
    """

    def __init__(
        self, most: int, started: Callable[[], None], full: Callable[[], None], limit: int = 1 << 28
    ) -> None:
        self.most = most
        self.limit = limit
        self.started = started
        self.full = full
        #: Columns that are left empty.
        self.hide_client: bool = False
        self.hide_user: bool = False
        self.hide_topic: bool = False
        self.hide_headers: bool = False
        #: Whose messages are kept; None: everybody's.
        self.wants: Callable[[str], bool] | None = None
        #: Of how many in 65,536 messages deliveries and acknowledgements are kept.
        self.sample: int = ALL
        #: Events in the batch.
        self.count: int = 0
        #: Runs that a client was told of last, and what was made of them at this time.
        self._told: list[Run] = []
        self._made: Part | None = None
        self._made_at: int = 0
        self._made_rows: int = 0
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._bytes: int = 0
        #: What is in bytes, its runs, and whether one of them has an id of another time.
        self._parts: list[Part] = []
        self._sealed: int = 0
        self._apart: bool = False
        self._joined: list[bytes] = []
        #: Run -> what few runs have; of how many events it is, where that is not one.
        self._peers: dict[int, str] = {}
        self._reasons: dict[int, str] = {}
        self._blocks: dict[int, bytes] = {}
        self._counts: dict[int, int] = {}
        self._mask: int = 0
        self._time: int = 0
        self._first: int = 0
        self._last: int = 0
        self._open()

    def _open(self) -> None:
        """Runs that come now, one by one: what each of them has, and what neighbours share."""
        self._ids: list[bytes] = []
        self._flags: list[int] = []
        self._topics: list[bytes] = []
        self._sizes: list[bytes] = []
        self._payloads: list[bytes] = []
        self._segments = Segments()
        self._forget()

    def _forget(self) -> None:
        """What comes next belongs to nothing before it."""
        self._client: str | None = None
        self._user: str | None = None
        self._flag: int = -1
        self._run: int = 0
        self._from: bytes = b""
        self._topic: bytes = b""
        self._block: bytes = b""
        self._size: int = -1
        self._next: int = -1

    # -- in ------------------------------------------------------------------------------------

    def append(self, row: Row) -> None:
        """Any event."""
        code, time, flags, name, client, user, peer, topic, reason, size, payload, block = row
        at = self._begin(code, time, client, user)
        lower = int.from_bytes(name[8:], "big")
        upper = int.from_bytes(name[:8], "big")
        if upper != time and (flags & _NAMED or upper or lower):
            self._segments.upper = _signed(upper - time).to_bytes(8, "little", signed=True)
            self._apart = True
        self._ids.append(lower.to_bytes(8, "little"))
        self._flags.append(flags)
        self._topics.append(texts([topic]))
        self._sizes.append(size.to_bytes(4, "little"))
        self._payloads.append(payload)
        if peer:
            self._peers[at] = peer
        if reason:
            self._reasons[at] = reason
        if block:
            self._blocks[at] = block
        self._grow(1, len(payload))

    def _begin(self, code: int, time: int, client: str, user: str) -> int:
        """Runs of one kind, time and client follow; the number of the first."""
        if len(self._ids) >= _AHEAD:
            self._seal()
        at = len(self._ids)
        self._segments.begin(at, code, self._since(time, code), client, user)
        self._forget()
        return self._sealed + at

    def _since(self, time: int, code: int) -> int:
        """How much later the run that begins at `time` is than the one before."""
        if not self.count:
            self._first = time
            self._last = time
        elif time < self._first:
            self._first = time
        elif time > self._last:
            self._last = time
        since = time - self._time
        self._time = time
        self._mask |= 1 << code
        return since if -_MOST < since < _MOST else _signed(since)

    def note(
        self,
        run: Run,
        client_id: str,
        username: str | None,
        data: bytes,
        block: bytes,
        body: int,
        end: int,
        size: int,
    ) -> None:
        """See `Notes.note`."""
        topic = run.topic
        if _is_own(topic) or (self.wants is not None and not self.wants(client_id)):
            return
        payload = run.size
        count = run.count
        kept = payload <= self.limit
        flags = _flags_of(run.first)
        if kept:
            flags |= _PAYLOAD
        if self.hide_headers:
            block = b""
        mine = client_id is self._client and run.came == self._time and username is self._user
        if (
            mine
            and run.number == self._next
            and flags == self._flag
            and payload == self._size
            and data is self._from
            and topic == self._topic
            and block == self._block
        ):
            self._run += count
            self._counts[self._sealed + len(self._ids) - 1] = self._run
        else:
            at = self._sealed + len(self._ids)
            if not mine or len(self._ids) >= _AHEAD:
                client = "" if self.hide_client else client_id
                user = "" if username is None or self.hide_user else username
                at = self._begin(_PUBLISH, run.came, client, user)
                self._client = client_id
                self._user = username
            self._ids.append(run.name)
            self._flags.append(flags)
            self._topics.append(b"" if self.hide_topic else topic)
            self._sizes.append(run.length)
            if block:
                self._blocks[at] = block
            if count != 1:
                self._counts[at] = count
            self._run = count
            self._flag = flags
            self._size = payload
            self._from = data
            self._topic = topic
            self._block = block
        self._next = run.number + count
        if kept:
            payloads = self._payloads
            payloads.append(data[body:end])
            for _ in range(count - 1):
                body += size
                end += size
                payloads.append(data[body:end])
        self._grow(count, payload * count if kept else 0)

    def note_message(self, message: Message, now: int) -> None:
        """See `Notes.note_message`."""
        topic = texts([message.topic])
        client = message.client_id
        if _is_own(topic) or (self.wants is not None and not self.wants(client)):
            return
        payload = message.payload
        size = len(payload)
        flags = message.qos | _MESSAGE | (_RETAIN if message.retain else 0)
        if size <= self.limit:
            flags |= _PAYLOAD
        else:
            payload = b""
        at = message.id >> 64
        username = message.username
        user = "" if username is None or self.hide_user else username
        run = self._begin(_PUBLISH, at, "" if self.hide_client else client, user)
        if not self.hide_headers:
            block = block_of(message, now)
            if block:
                self._blocks[run] = block
        self._ids.append((message.id & _HALF).to_bytes(8, "little"))
        self._flags.append(flags)
        self._topics.append(b"" if self.hide_topic else topic)
        self._sizes.append(size.to_bytes(4, "little"))
        self._payloads.append(payload)
        self._grow(1, len(payload))

    def note_deliveries(
        self, acked: bool, at: int, client_id: str, username: str | None, runs: list[Run]
    ) -> None:
        """See `Notes.note_deliveries`; payloads are in the events of their publishes."""
        if self.wants is not None and not self.wants(client_id):
            return
        code = _ACKED if acked else _DELIVERED
        client = "" if self.hide_client else client_id
        user = "" if username is None or self.hide_user else username
        made = self._made if runs is self._told and at == self._made_at else None
        if made is None:
            if runs is not self._told or len(runs) < _WORTH or self.sample < ALL:
                self._told = runs
                self._made = None
                self._note_one_by_one(code, at, client, user, runs)
                return
            made = self._make(runs, at)
            if made is None:
                self._note_one_by_one(code, at, client, user, runs)
                return
        self._seal()
        since = self._since(at, code)
        self._parts.append(made.of(code, since, client, user))
        self._sealed += made.runs
        self._apart = True
        self._grow(self._made_rows, 0)

    def _note_one_by_one(self, code: int, at: int, client: str, user: str, runs: list[Run]) -> None:
        rows = 0
        apart: list[int] = []
        number = 0
        for run in runs:
            # The low bits count the ids of one microsecond; these differ from one to the next.
            if self.sample < ALL and run.came * 40503 & 0xFFFF >= self.sample:
                continue
            if _is_own(run.topic):
                continue
            if not rows:
                number = self._begin(code, at, client, user)
            self._ids.append(run.name)
            self._flags.append(_flags_of(run.first))
            self._topics.append(b"" if self.hide_topic else run.topic)
            self._sizes.append(run.length)
            if run.count != 1:
                self._counts[number] = run.count
            number += 1
            apart.append(run.came)
            rows += run.count
        if rows:
            self._segments.upper = _uppers(apart, at)
            self._apart = True
            self._grow(rows, 0)

    def _make(self, runs: list[Run], at: int) -> Part | None:
        """What these runs say at this time, whoever the client is; None: not all are events."""
        rows = 0
        for run in runs:
            rows += run.count
        count = len(runs)
        names = b"\0".join([run.topic for run in runs])
        if _OWN in names:
            return None
        if self.hide_topic:
            names = b"\0" * (count - 1)
        counts = b""
        if rows != count:
            counts = array("I", [run.count for run in runs]).tobytes()
        made = Part(
            count,
            counts,
            bytes([_flags_of(run.first) for run in runs]),
            _uppers([run.came for run in runs], at),
            b"".join([run.name for run in runs]),
            names,
            b"".join([run.length for run in runs]),
        )
        self._made = made
        self._made_at = at
        self._made_rows = rows
        return made

    def _grow(self, count: int, size: int) -> None:
        started = not self.count
        self.count += count
        self._bytes += size
        if self.count >= self.most or self._bytes > FULL or size > LARGE * count:
            self.full()
        elif started:
            self.started()

    # -- out -----------------------------------------------------------------------------------

    def _seal(self) -> None:
        """Put the runs that came one by one into bytes."""
        runs = len(self._ids)
        if not runs:
            return
        part = Part(
            runs,
            b"",
            bytes(self._flags),
            b"",
            b"".join(self._ids),
            b"\0".join(self._topics),
            b"".join(self._sizes),
        )
        self._segments.close(runs, part)
        self._joined.append(b"".join(self._payloads))
        self._parts.append(part)
        self._sealed += runs
        self._open()

    def take(self) -> Taken:
        """The batch, at least one event; the next one begins."""
        self._seal()
        runs = self._sealed
        parts = self._parts
        counts = b""
        if runs != self.count:
            counts = counts_of(parts, self._counts)
        id_times = b""
        if self._apart:
            id_times = b"".join([part.id_times for part in parts])
        lengths = b""
        properties = b""
        if self._blocks:
            sizes = array("I")
            sizes.frombytes(bytes(4 * runs))
            for run, block in self._blocks.items():
                sizes[run] = len(block)
            lengths = sizes.tobytes()
            properties = b"".join(list(self._blocks.values()))
        columns = [
            counts,
            b"".join([part.codes for part in parts]),
            b"".join([part.times for part in parts]),
            b"".join([part.flags for part in parts]),
            id_times,
            b"".join([part.ids for part in parts]),
            text_of([part.clients for part in parts], runs),
            text_of([part.users for part in parts], runs),
            self._sparse(self._peers, runs),
            text_of([part.topics for part in parts], runs),
            self._sparse(self._reasons, runs),
            b"".join([part.sizes for part in parts]),
            b"".join(self._joined),
            lengths,
            properties,
        ]
        taken = Taken(columns, self.count, self._mask, self._first, self._last)
        self._clear()
        return taken

    def _sparse(self, values: dict[int, str], runs: int) -> bytes:
        if not values:
            return b""
        return texts([values.get(i, "") for i in range(runs)])


def _is_own(topic: bytes) -> bool:
    return len(topic) != 0 and topic[0] == _DOLLAR and topic.startswith(_OWN)


def _uppers(came: list[int], at: int) -> bytes:
    """The upper halves of these ids, less the time, as a column."""
    first = came[0]
    for one in came:
        if one != first:
            return array("q", [_signed(one - at) for one in came]).tobytes()
    return _signed(first - at).to_bytes(8, "little", signed=True) * len(came)


def _flags_of(first: int) -> int:
    return first >> 1 & 3 | _MESSAGE | (_RETAIN if first & 1 else 0)


def _signed(number: int) -> int:
    """A number as 64 bits with a sign hold it."""
    number &= _HALF
    return number - (1 << 64) if number >> 63 else number


def block_of(message: Message, now: int) -> bytes:
    """The properties of a message as on the wire, its expiry from `now` on; empty for none."""
    block = message.block
    if block is not None:
        return block
    properties = message.properties
    if message.expires_at:
        properties = dict(properties) if properties is not None else {}
        left = (message.expires_at - now + 999) // 1000
        properties[prop.MESSAGE_EXPIRY_INTERVAL] = left if left > 0 else 0
    return encode_properties(properties) if properties else b""
