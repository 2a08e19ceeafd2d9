"""A batch of events that is being filled, column by column.

    one by one: ids, flags, topics, sizes --seal--> Part --+
    many at once ---------------------------------> Part --+--take--> packed.pack

Runs of a kind, a time and a client share what they have alike (`parts`). The first event of a batch
is told with `started`, a full batch with `full`; both must not raise.

Promise: see `mqttd.pipeline.log.columns`, which says what an event is. Compiled with the hot path.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from mqttd.pipeline.log.blocks import HAS_SIZE, Row, Taken
from mqttd.pipeline.log.parts import (
    Part,
    Segments,
    counts_of,
    flags_of,
    ids_of,
    part_of,
    repeated,
    signed,
    size_of,
    text_of,
    texts,
    uppers_of,
    zeros,
)
from mqttd.pipeline.log.payloads import Payloads
from mqttd.pipeline.log.schema import CODES
from mqttd.session.ground.runs import Run
from mqttd.session.publish.notes import Notes

__all__ = ["AHEAD", "ALL", "FULL", "LARGE", "TEXT", "WORTH", "Batch"]

_PUBLISH: Final = CODES["message.publish"]
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

_MOST: Final = 1 << 60
#: Runs are put into bytes so many at a time: what they are made of stays in the cache.
AHEAD: Final = 512
#: So many runs of one client are worth a `Part`.
WORTH: Final = 8
#: Parts of what was published that are remembered for what becomes of it in the same turn.
_KNOWN: Final = 64


class Batch(Notes):
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
        self.hide_peer: bool = False
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
        #: What few runs have: the first of some, how many, and their text, in order.
        self._peers: list[tuple[int, int, str]] = []
        self._reasons: list[tuple[int, int, str]] = []
        #: By run: its properties; of how many events it is, where that is not one.
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
        #: The last parts of what was published, with their runs, by the number of the first.
        self._known: dict[int, tuple[list[Run], Part]] = {}
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
            self._peers.append((at, 1, peer))
        if reason:
            self._reasons.append((at, 1, reason))
        if block:
            self._blocks[at] = block
        text = len(client) + len(user) + len(peer) + len(topic) + len(reason)
        self._grow(1, len(payload), text + len(block))

    def _begin(self, code: int, time: int, client: str, user: str) -> int:
        """Runs of one kind, time and client follow; the number of the first."""
        self._close()
        if len(self._ids) >= AHEAD:
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

    # -- runs, and what is full ----------------------------------------------------------------

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
        if len(runs) < WORTH:
            self._one_by_one(_PUBLISH, self._came, client, user, runs, self.limit)
        else:
            part = part_of(runs, self._came, self.limit, not self.hide_topic)
            self._put(part, _PUBLISH, self._came, client, user)
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[runs[0].number] = (runs, part)

    def _part_again(self, runs: list[Run], at: int) -> Part:
        """What became of these, at least one, at this time: most often they were published so."""
        known = self._known.get(runs[0].number)
        if known is not None and known[0] == runs:
            made = known[1].again(at)
            if made is not None:
                return made
        return part_of(runs, at, -1, not self.hide_topic)

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
            _sparse(self._peers, runs),
            text_of([part.topics for part in parts], runs),
            _sparse(self._reasons, runs),
            b"".join([part.sizes for part in parts]),
            b"",
            lengths,
            properties,
        ]
        pieces = self._payloads.take()
        taken = Taken(columns, self.count, self._mask, self._first, self._last, pieces)
        self._clear()
        return taken


def _sparse(spans: list[tuple[int, int, str]], runs: int) -> bytes:
    """A column of texts that only these of so many runs have."""
    if not spans:
        return b""
    made: list[bytes] = []
    at = 0
    for first, count, text in spans:
        made.append(zeros(first - at))
        made.append(texts([text]) if count == 1 else repeated(text, count))
        at = first + count - 1
    made.append(zeros(runs - 1 - at))
    return b"".join(made)
