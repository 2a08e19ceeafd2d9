"""Events on their way to a block, column by column.

    append(row)            what happened to a client       --+
    note(packet or run)    messages as they came, in bytes --+-->  columns  --take-->  blocks.seal
    note_message(message)  messages that are whole already --+

The first event of a batch is told with `started`, a full batch with `full`; both must not raise.

Promise: a message that is noted costs some appends here, no object of its own; `encode_block`, the
slow twin, gives the same bytes (tests/unit/pipeline/test_notes.py). Compiled with the hot path.
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
_NAMED: Final[int] = HAS_SIZE
_MESSAGE: Final[int] = HAS_QOS | HAS_SIZE
_PAYLOAD: Final[int] = HAS_PAYLOAD
_RETAIN: Final[int] = RETAIN

#: A batch is full with so many bytes of payloads, or with one so large: blocks stay small.
FULL: Final = 256 << 10
LARGE: Final = 32 << 10

_HALF: Final = (1 << 64) - 1
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
        #: Events in the batch.
        self.count: int = 0
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._bytes: int = 0
        self._codes: list[int] = []
        self._times: list[int] = []
        self._flags: list[int] = []
        #: Upper and lower halves of message ids, in turns.
        self._ids: list[int] = []
        self._named: bool = False
        self._clients: list[str] = []
        self._users: list[str] = []
        self._topics: list[str] = []
        self._sizes: list[int] = []
        self._payloads: list[bytes] = []
        #: Event -> what few events have.
        self._peers: dict[int, str] = {}
        self._reasons: dict[int, str] = {}
        self._blocks: dict[int, bytes] = {}

    # -- in ------------------------------------------------------------------------------------

    def append(self, row: Row) -> None:
        """Any event."""
        code, time, flags, name, client, user, peer, topic, reason, size, payload, block = row
        at = self.count
        self._codes.append(code)
        self._times.append(time)
        self._flags.append(flags)
        self._ids.append(int.from_bytes(name[:8], "big"))
        self._ids.append(int.from_bytes(name[8:], "big"))
        if flags & _NAMED:
            self._named = True
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
        if self.hide_client:
            client_id = ""
        user = "" if username is None or self.hide_user else username
        if self.hide_topic:
            topic = ""
        self._named = True
        if block and not self.hide_headers:
            for i in range(count):
                self._blocks[self.count + i] = block
        if count == 1:
            self._codes.append(_PUBLISH)
            self._times.append(at)
            self._flags.append(flags)
            self._ids.append(at)
            self._ids.append(number)
            self._clients.append(client_id)
            self._users.append(user)
            self._topics.append(topic)
            self._sizes.append(payload)
            if kept:
                self._payloads.append(data[body:end])
        else:
            self._codes += [_PUBLISH] * count
            self._times += [at] * count
            self._flags += [flags] * count
            self._clients += [client_id] * count
            self._users += [user] * count
            self._topics += [topic] * count
            self._sizes += [payload] * count
            ids = self._ids
            for i in range(count):
                ids.append(at)
                ids.append(number + i)
            if kept:
                payloads = self._payloads
                for _ in range(count):
                    payloads.append(data[body:end])
                    body += size
                    end += size
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
        self._named = True
        if not self.hide_headers:
            block = block_of(message, now)
            if block:
                self._blocks[self.count] = block
        self._codes.append(_PUBLISH)
        self._times.append(at)
        self._flags.append(flags)
        self._ids.append(at)
        self._ids.append(message.id & _HALF)
        self._clients.append("" if self.hide_client else client)
        self._users.append("" if username is None or self.hide_user else username)
        self._topics.append("" if self.hide_topic else topic)
        self._sizes.append(size)
        self._payloads.append(payload)
        self._grow(1, len(payload))

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
        count = self.count
        codes = bytes(self._codes)
        times = self._times
        ids = b""
        if self._named:
            halves = array("Q", self._ids)
            halves.byteswap()
            ids = halves.tobytes()
        mask = 0
        for code in set(codes):
            mask |= 1 << code
        lengths = b""
        blocks = b""
        if self._blocks:
            found = [self._blocks.get(i, b"") for i in range(count)]
            lengths = array("I", list(map(len, found))).tobytes()
            blocks = b"".join(found)
        columns = [
            codes,
            array("q", times).tobytes(),
            bytes(self._flags),
            ids,
            text_column(self._clients, count),
            text_column(self._users, count),
            self._sparse(self._peers, count),
            text_column(self._topics, count),
            self._sparse(self._reasons, count),
            array("I", self._sizes).tobytes(),
            b"".join(self._payloads),
            lengths,
            blocks,
            b"",
        ]
        taken = Taken(columns, count, mask, min(times), max(times))
        self._clear()
        return taken

    def _sparse(self, values: dict[int, str], count: int) -> bytes:
        if not values:
            return b""
        return text_column([values.get(i, "") for i in range(count)], count)


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
