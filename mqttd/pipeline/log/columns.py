"""Events on their way to a block, column by column.

    append(row)            what happened to a client       --+
    note(packet or run)    messages as they came, in bytes --+-->  columns  --take-->  packed.pack
    note_message(message)  messages that are whole already --+
    note_deliveries(run)   what becomes of them -------------+

The first event of a batch is told with `started`, a full batch with `full`; both must not raise.

Packets that follow one another in the bytes received and differ in their payloads alone are one
run.

Promise: a message that is noted costs some appends here, one if it goes on with a run, and no
object of its own; `encode_block`, the slow twin, says the same (tests/unit/pipeline/test_notes.py).
Compiled with the hot path.
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
    text_column,
)
from mqttd.pipeline.log.schema import CODES
from mqttd.session.message import Message
from mqttd.session.notes import Notes

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

#: A batch is full with so many bytes of payloads, or with one so large: blocks stay small.
FULL: Final = 256 << 10
LARGE: Final = 32 << 10

_HALF: Final = (1 << 64) - 1
_MOST: Final = 1 << 60
#: What Spark's sink says to the plugin itself is no event.
_OWN: Final = "$mqttd/"


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
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._bytes: int = 0
        #: Events of the runs but the last, and of the last.
        self._counts: list[int] = []
        self._run: int = 0
        self._codes: list[int] = []
        self._times: list[int] = []
        self._flags: list[int] = []
        #: Lower halves of message ids.
        self._ids: list[int] = []
        self._clients: list[str] = []
        self._users: list[str] = []
        self._topics: list[str] = []
        self._sizes: list[int] = []
        self._payloads: list[bytes] = []
        #: Run -> what few runs have.
        self._id_times: dict[int, int] = {}
        self._peers: dict[int, str] = {}
        self._reasons: dict[int, str] = {}
        self._blocks: dict[int, bytes] = {}
        self._mask: int = 0
        self._time: int = 0
        self._first: int = 0
        self._last: int = 0
        #: Of the last run, if it is a note: what the next one must have to belong to it.
        self._from: bytes = b""
        self._topic: str = ""
        self._block: bytes = b""
        self._flag: int = -1
        self._size: int = -1
        self._next: int = -1

    # -- in ------------------------------------------------------------------------------------

    def append(self, row: Row) -> None:
        """Any event."""
        code, time, flags, name, client, user, peer, topic, reason, size, payload, block = row
        at = self._begin(code, time, flags, 1)
        lower = int.from_bytes(name[8:], "big")
        upper = int.from_bytes(name[:8], "big")
        self._ids.append(lower)
        if upper != time and (flags & _NAMED or upper or lower):
            self._id_times[at] = _signed(upper - time)
        self._clients.append(client)
        self._users.append(user)
        self._topics.append(topic)
        self._sizes.append(size)
        self._payloads.append(payload)
        if peer:
            self._peers[at] = peer
        if reason:
            self._reasons[at] = reason
        if block:
            self._blocks[at] = block
        self._grow(1, len(payload))

    def _begin(self, code: int, time: int, flags: int, count: int) -> int:
        """A run of its own; its number."""
        at = len(self._codes)
        if at:
            self._counts.append(self._run)
            if time < self._first:
                self._first = time
            if time > self._last:
                self._last = time
        else:
            self._first = time
            self._last = time
        self._run = count
        self._flag = -1
        self._codes.append(code)
        since = time - self._time
        self._times.append(since if -_MOST < since < _MOST else _signed(since))
        self._flags.append(flags)
        self._time = time
        self._mask |= 1 << code
        return at

    def note(
        self,
        at: int,
        number: int,
        topic: str,
        client_id: str,
        username: str | None,
        first: int,
        data: bytes,
        block: bytes,
        body: int,
        end: int,
        size: int,
        count: int,
    ) -> None:
        """See `Notes.note`."""
        if topic.startswith(_OWN) or (self.wants is not None and not self.wants(client_id)):
            return
        flags = first >> 1 & 3 | _MESSAGE | (_RETAIN if first & 1 else 0)
        payload = end - body
        kept = payload <= self.limit
        if kept:
            flags |= _PAYLOAD
        if self.hide_headers:
            block = b""
        if (
            number == self._next
            and flags == self._flag
            and payload == self._size
            and at == self._time
            and data is self._from
            and topic is self._topic
            and block == self._block
        ):
            self._run += count
        else:
            run = self._begin(_PUBLISH, at, flags, count)
            self._ids.append(number)
            self._clients.append("" if self.hide_client else client_id)
            self._users.append("" if username is None or self.hide_user else username)
            self._topics.append("" if self.hide_topic else topic)
            self._sizes.append(payload)
            if block:
                self._blocks[run] = block
            self._flag = flags
            self._size = payload
            self._from = data
            self._topic = topic
            self._block = block
        self._next = number + count
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
        topic = message.topic
        client = message.client_id
        if topic.startswith(_OWN) or (self.wants is not None and not self.wants(client)):
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
        run = self._begin(_PUBLISH, at, flags, 1)
        if not self.hide_headers:
            block = block_of(message, now)
            if block:
                self._blocks[run] = block
        self._ids.append(message.id & _HALF)
        self._clients.append("" if self.hide_client else client)
        self._users.append("" if username is None or self.hide_user else username)
        self._topics.append("" if self.hide_topic else topic)
        self._sizes.append(size)
        self._payloads.append(payload)
        self._grow(1, len(payload))

    def note_deliveries(
        self,
        acked: bool,
        at: int,
        came: int,
        number: int,
        topic: str,
        client_id: str,
        username: str | None,
        first: int,
        size: int,
        count: int,
    ) -> None:
        """See `Notes.note_deliveries`; payloads are in the events of their publishes."""
        if topic.startswith(_OWN) or (self.wants is not None and not self.wants(client_id)):
            return
        # The low bits count the ids of one microsecond; these differ from one to the next.
        if self.sample < ALL and came * 40503 & 0xFFFF >= self.sample:
            return
        flags = first >> 1 & 3 | _MESSAGE | (_RETAIN if first & 1 else 0)
        run = self._begin(_ACKED if acked else _DELIVERED, at, flags, count)
        self._ids.append(number)
        if came != at:
            self._id_times[run] = _signed(came - at)
        self._clients.append("" if self.hide_client else client_id)
        self._users.append("" if username is None or self.hide_user else username)
        self._topics.append("" if self.hide_topic else topic)
        self._sizes.append(size)
        self._grow(count, 0)

    def _grow(self, count: int, size: int) -> None:
        started = not self.count
        self.count += count
        self._bytes += size
        if self.count >= self.most or self._bytes > FULL or size > LARGE * count:
            self.full()
        elif started:
            self.started()

    # -- out -----------------------------------------------------------------------------------

    def take(self) -> Taken:
        """The batch, at least one event; the next one begins."""
        runs = len(self._codes)
        counts = b""
        if runs != self.count:
            self._counts.append(self._run)
            counts = array("I", self._counts).tobytes()
        id_times = b""
        if self._id_times:
            found = [self._id_times.get(i, 0) for i in range(runs)]
            id_times = array("q", found).tobytes()
        lengths = b""
        properties = b""
        if self._blocks:
            blocks = [self._blocks.get(i, b"") for i in range(runs)]
            lengths = array("I", list(map(len, blocks))).tobytes()
            properties = b"".join(blocks)
        columns = [
            counts,
            bytes(self._codes),
            array("q", self._times).tobytes(),
            bytes(self._flags),
            id_times,
            array("Q", self._ids).tobytes(),
            text_column(self._clients, runs),
            text_column(self._users, runs),
            self._sparse(self._peers, runs),
            text_column(self._topics, runs),
            self._sparse(self._reasons, runs),
            array("I", self._sizes).tobytes(),
            b"".join(self._payloads),
            lengths,
            properties,
        ]
        taken = Taken(columns, self.count, self._mask, self._first, self._last)
        self._clear()
        return taken

    def _sparse(self, values: dict[int, str], runs: int) -> bytes:
        if not values:
            return b""
        return text_column([values.get(i, "") for i in range(runs)], runs)


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
