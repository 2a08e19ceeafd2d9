"""Events on their way to a block, column by column.

    append(row)            what happened to a client       --+
    note(packet or run)    messages as they came, in bytes --+-->  columns  --take-->  packed.pack
    note_message(message)  messages that are whole already --+
    note_deliveries(runs)  what becomes of them -------------+
    note_dropped(run)      what one receiver misses ---------+

The first event of a batch is told with `started`, a full batch with `full`; both must not raise.

Packets that follow one another in the bytes received and differ in their payloads alone are one
run. What many runs say is made at once: of all that a client has published in a turn, and of what
was delivered once for all clients that were sent the same (`parts`).

Promise: a message that is noted costs two appends here and a look at it later, a delivery that look
alone, where there are some of them; `encode_block`, the slow twin, says the same
(tests/unit/pipeline/test_notes.py). Compiled with the hot path.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from mqttd.codec import properties as prop
from mqttd.codec.properties import encode_properties
from mqttd.pipeline.log.blocks import (
    HAS_SIZE,
    Row,
    Taken,
)
from mqttd.pipeline.log.parts import (
    Part,
    Segments,
    counts_of,
    flags_of,
    ids_of,
    part_of,
    signed,
    size_of,
    text_of,
    texts,
    uppers_of,
)
from mqttd.pipeline.log.payloads import Payloads
from mqttd.pipeline.log.schema import CODES
from mqttd.session.ground.message import Message
from mqttd.session.ground.runs import Run, goes_on
from mqttd.session.publish.notes import Notes

__all__ = ["Columns"]

_PUBLISH: Final = CODES["message.publish"]
_DELIVERED: Final = CODES["message.delivered"]
_ACKED: Final = CODES["message.acked"]
_DROPPED: Final = CODES["delivery.dropped"]
#: `Columns.sample` for all of them.
ALL: Final = 1 << 16
_NAMED: Final[int] = HAS_SIZE

#: A batch is full with so many bytes of payloads, or with one so large; or with so much of topics,
#: names and properties, which a client makes long with few bytes (Topic Alias).
#: What is joined of it stays below what malloc would map, and the kernel clear, each time
#: (`mqttd.monitor.malloc`).
FULL: Final = 3 << 20
LARGE: Final = 32 << 10
TEXT: Final = 4 << 20

_HALF: Final = (1 << 64) - 1
_MOST: Final = 1 << 60
#: What Spark's sink says to the plugin itself is no event.
_OWN: Final = b"$mqttd/"
_DOLLAR: Final = 36
#: Runs are put into bytes so many at a time: what they are made of stays in the cache.
_AHEAD: Final = 512
#: So many runs of one client are worth a `Part`.
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
        self._payloads = Payloads()
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._bytes: int = 0
        self._text: int = 0
        #: What is in bytes, its runs, and whether one of them has an id of another time.
        self._parts: list[Part] = []
        self._sealed: int = 0
        self._apart: bool = False
        #: Run -> what few runs have; of how many events it is, where that is not one.
        self._peers: dict[int, str] = {}
        self._reasons: dict[int, str] = {}
        self._blocks: dict[int, bytes] = {}
        self._counts: dict[int, int] = {}
        self._mask: int = 0
        self._time: int = 0
        self._first: int = 0
        self._last: int = 0
        #: What one client has published at one time; the last of it if it is ours, its properties.
        self._runs: list[Run] = []
        self._client: str | None = None
        self._user: str | None = None
        self._names: int = 0
        self._came: int = 0
        self._own: Run | None = None
        self._block: bytes = b""
        #: Runs that a client was told of last, when, those of them that are events, and as a part.
        self._told: list[Run] = []
        self._told_at: int = 0
        self._telling: list[Run] = []
        self._topics_told: int = 0
        self._made: Part | None = None
        self._open()

    def _open(self) -> None:
        """Runs that come now, one by one: what each of them has, and what neighbours share."""
        self._ids: list[bytes] = []
        self._flags: list[int] = []
        self._topics: list[bytes] = []
        self._sizes: list[bytes] = []
        self._segments = Segments()

    # -- in ------------------------------------------------------------------------------------

    def append(self, row: Row) -> None:
        """Any event."""
        code, time, flags, name, client, user, peer, topic, reason, size, payload, block = row
        at = self._begin(code, time, client, user)
        lower = int.from_bytes(name[8:], "big")
        upper = int.from_bytes(name[:8], "big")
        if upper != time and (flags & _NAMED or upper or lower):
            self._segments.upper = signed(upper - time).to_bytes(8, "little", signed=True)
            self._apart = True
        self._ids.append(lower.to_bytes(8, "little"))
        self._flags.append(flags)
        self._topics.append(texts([topic]))
        self._sizes.append(size.to_bytes(4, "little"))
        if payload:
            self._payloads.add(payload)
        if peer:
            self._peers[at] = peer
        if reason:
            self._reasons[at] = reason
        if block:
            self._blocks[at] = block
        text = len(client) + len(user) + len(peer) + len(topic) + len(reason)
        self._grow(1, len(payload), text + len(block))

    def _begin(self, code: int, time: int, client: str, user: str) -> int:
        """Runs of one kind, time and client follow; the number of the first."""
        self._close()
        if len(self._ids) >= _AHEAD:
            self._seal()
        at = len(self._ids)
        self._segments.begin(at, code, self._since(time, code), client, user)
        return self._sealed + at

    def _since(self, time: int, code: int) -> int:
        """How much later the run that begins at `time` is than the one before."""
        if not self._mask:
            self._first = time
            self._last = time
        elif time < self._first:
            self._first = time
        elif time > self._last:
            self._last = time
        since = time - self._time
        self._time = time
        self._mask |= 1 << code
        return since if -_MOST < since < _MOST else signed(since)

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
        if _is_own(run.topic) or (self.wants is not None and not self.wants(client_id)):
            return
        payload = run.size
        count = run.count
        if self.hide_headers:
            block = b""
        text = len(block)
        runs = self._runs
        if (
            runs
            and client_id is self._client
            and run.came == self._came
            and username is self._user
            and len(runs) < _AHEAD
        ):
            last = runs[-1]
            if goes_on(last, run):
                if block != self._block:
                    runs.append(run)
                    text += len(run.topic) + self._names
                elif last is self._own:
                    last.count += count
                else:
                    last = last.with_more(count)
                    runs[-1] = last
                    self._own = last
            else:
                runs.append(run)
                text += len(run.topic) + self._names
        else:
            self._close()
            runs = self._runs
            runs.append(run)
            self._client = client_id
            self._user = username
            self._names = len(client_id) + (len(username) if username is not None else 0)
            text += len(run.topic) + self._names
            self._came = run.came
        if block:
            self._blocks[self._sealed + len(self._ids) + len(runs) - 1] = block
        self._block = block
        if payload > self.limit:
            self._grow(count, 0, text)
            return
        self._payloads.cut(data, body, end, size, count)
        self._grow(count, payload * count, text)

    def _close(self) -> None:
        """What came of one client at one time is told, as events of it."""
        runs = self._runs
        if not runs:
            return
        self._runs = []
        self._own = None
        assert self._client is not None
        client = "" if self.hide_client else self._client
        user = "" if self._user is None or self.hide_user else self._user
        if len(runs) < _WORTH:
            self._one_by_one(_PUBLISH, self._came, client, user, runs, self.limit)
        else:
            part = part_of(runs, self._came, self.limit, not self.hide_topic)
            self._put(part, _PUBLISH, self._came, client, user)

    def _put(self, part: Part, code: int, at: int, client: str, user: str) -> None:
        """Runs that are a part already."""
        self._seal()
        self._parts.append(part.of(code, self._since(at, code), client, user))
        self._sealed += part.runs
        if part.apart:
            self._apart = True

    def _one_by_one(
        self, code: int, at: int, client: str, user: str, runs: list[Run], limit: int
    ) -> None:
        """Runs of a kind, a time and a client, too few for a part."""
        number = self._begin(code, at, client, user)
        for run in runs:
            self._ids.append(ids_of(run.number, 1))
            self._flags.append(flags_of(run.first, run.size <= limit))
            self._topics.append(b"" if self.hide_topic else run.topic)
            self._sizes.append(size_of(run.size))
            if run.count != 1:
                self._counts[number] = run.count
            number += 1
        uppers = uppers_of(runs, at)
        if uppers:
            self._segments.upper = uppers
            self._apart = True

    def note_message(self, message: Message, now: int) -> None:
        """See `Notes.note_message`."""
        topic = texts([message.topic])
        client = message.client_id
        if _is_own(topic) or (self.wants is not None and not self.wants(client)):
            return
        payload = message.payload
        size = len(payload)
        flags = flags_of(message.qos << 1 | message.retain, size <= self.limit)
        if size > self.limit:
            payload = b""
        at = message.id >> 64
        username = message.username
        user = "" if username is None or self.hide_user else username
        run = self._begin(_PUBLISH, at, "" if self.hide_client else client, user)
        text = len(topic) + len(client) + len(user)
        if not self.hide_headers:
            block = block_of(message, now)
            if block:
                self._blocks[run] = block
                text += len(block)
        self._ids.append((message.id & _HALF).to_bytes(8, "little"))
        self._flags.append(flags)
        self._topics.append(b"" if self.hide_topic else topic)
        self._sizes.append(size.to_bytes(4, "little"))
        if payload:
            self._payloads.add(payload)
        self._grow(1, len(payload), text)

    def note_deliveries(
        self, acked: bool, at: int, client_id: str, username: str | None, runs: list[Run]
    ) -> None:
        """See `Notes.note_deliveries`; payloads are in the events of their publishes."""
        if self.wants is not None and not self.wants(client_id):
            return
        self._close()
        if runs is not self._told or at != self._told_at:
            self._told = runs
            self._told_at = at
            self._telling = self._chosen(runs)
            self._made = None
            if len(self._telling) >= _WORTH and self._topics_told <= TEXT:
                self._made = part_of(self._telling, at, -1, not self.hide_topic)
        telling = self._telling
        if not telling:
            return
        code = _ACKED if acked else _DELIVERED
        client = "" if self.hide_client else client_id
        user = "" if username is None or self.hide_user else username
        names = len(client) + len(user)
        made = self._made
        if self._text + self._topics_told + len(telling) * names > TEXT:
            for run in telling:  # more than a batch may hold, perhaps
                self._one_by_one(code, at, client, user, [run], -1)
                self._grow(run.count, 0, len(run.topic) + names)
            return
        rows = 0
        if made is None:
            self._one_by_one(code, at, client, user, telling, -1)
            for run in telling:
                rows += run.count
        else:
            self._put(made, code, at, client, user)
            rows = made.rows
        self._grow(rows, 0, self._topics_told + len(telling) * names)

    def note_dropped(
        self, at: int, client_id: str, username: str | None, run: Run, reason: str
    ) -> None:
        """See `Notes.note_dropped`."""
        if _is_own(run.topic) or (self.wants is not None and not self.wants(client_id)):
            return
        client = "" if self.hide_client else client_id
        user = "" if username is None or self.hide_user else username
        self._one_by_one(_DROPPED, at, client, user, [run], -1)
        self._reasons[self._sealed + len(self._ids) - 1] = reason
        self._grow(1, 0, len(run.topic) + len(client) + len(user) + len(reason))

    def _chosen(self, runs: list[Run]) -> list[Run]:
        """Those of which is told."""
        text = 0
        for run in runs:
            if self.sample < ALL or _is_own(run.topic):
                break
            text += len(run.topic)
        else:
            self._topics_told = text
            return runs
        # The low bits count the ids of one microsecond; these differ from one to the next.
        chosen = [
            run
            for run in runs
            if not _is_own(run.topic)
            and (self.sample == ALL or run.came * 40503 & 0xFFFF < self.sample)
        ]
        text = 0
        for run in chosen:
            text += len(run.topic)
        self._topics_told = text
        return chosen

    def _grow(self, count: int, size: int, text: int) -> None:
        started = not self.count
        self.count += count
        self._bytes += size
        self._text += text
        if (
            self.count >= self.most
            or self._bytes > FULL
            or self._text > TEXT
            or size > LARGE * count
        ):
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
        self._parts.append(part)
        self._sealed += runs
        self._open()

    def take(self) -> Taken:
        """The batch, at least one event; the next one begins."""
        self._close()
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
            b"",
            lengths,
            properties,
        ]
        pieces = self._payloads.take()
        taken = Taken(columns, self.count, self._mask, self._first, self._last, pieces)
        self._clear()
        return taken

    def _sparse(self, values: dict[int, str], runs: int) -> bytes:
        if not values:
            return b""
        return texts([values.get(i, "") for i in range(runs)])


def _is_own(topic: bytes) -> bool:
    return len(topic) != 0 and topic[0] == _DOLLAR and topic.startswith(_OWN)


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
