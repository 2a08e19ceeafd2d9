"""Columns of a batch while it is filled: runs that are bytes already, part by part.

    runs one by one --> Segments: what neighbours share ------+
    some runs of a client at once --> part_of --> Part.of(...) --+--> parts --> columns of a block

What a part of deliveries says is made once for all clients that were sent the same; `Part.of` adds
what differs. What is the same of all runs of a part, and ids that follow one another, is copied
from what is ready made. Compiled with the hot path. Format: `mqttd.pipeline.log.packed`.
"""

from __future__ import annotations

from array import array
from typing import Final

from mqttd.codec.frame import ONE_BYTE
from mqttd.pipeline.log.blocks import HAS_PAYLOAD, HAS_QOS, HAS_SIZE, RETAIN
from mqttd.session.ground.runs import Run

__all__ = [
    "Part",
    "Segments",
    "counts_of",
    "flags_of",
    "ids_of",
    "part_of",
    "repeated",
    "signed",
    "size_of",
    "text_of",
    "texts",
    "uppers_of",
    "zeros",
]

_MESSAGE: Final[int] = HAS_QOS | HAS_SIZE
_PAYLOAD: Final[int] = HAS_PAYLOAD
_RETAIN: Final[int] = RETAIN

_ONE: Final = b"\1\0\0\0"
_ZERO: Final = bytes(8)
#: Bytes of zeros are cut from these as long as they reach.
_ZEROS: Final = bytes(8 * 64)
_HALF: Final = (1 << 64) - 1
#: Ids are ready made for the first so many of a microsecond, of so many origins (nodes, processes).
_READY: Final = 4096
_ORIGINS: Final = 8
_ready: dict[int, bytes] = {}
#: Texts as bytes, with U+0000 behind, of the last clients and users, of at most so many bytes each.
_MOST: Final = 4096
_SHORT: Final = 128
_known: dict[str, bytes] = {}
#: Sizes as bytes.
_SIZES: Final[list[bytes]] = [size.to_bytes(4, "little") for size in range(1024)]


class Part:
    """Columns of some runs; `counts` may be empty where all are 1, `id_times` where all are 0.

    rows: events; apart: one of them has an id of another time; came, first: of all runs alike
    (`Run`), -1 where they differ.
    """

    __slots__ = (
        "apart",
        "came",
        "clients",
        "codes",
        "counts",
        "first",
        "flags",
        "id_times",
        "ids",
        "rows",
        "runs",
        "sizes",
        "times",
        "topics",
        "users",
    )

    def __init__(
        self,
        runs: int,
        counts: bytes,
        flags: bytes,
        id_times: bytes,
        ids: bytes,
        topics: bytes,
        sizes: bytes,
    ) -> None:
        self.runs = runs
        self.rows: int = runs
        self.apart: bool = False
        self.came: int = -1
        self.first: int = -1
        self.counts = counts
        self.flags = flags
        self.id_times = id_times
        self.ids = ids
        self.topics = topics
        self.sizes = sizes
        self.codes: bytes = b""
        self.times: bytes = b""
        self.clients: bytes = b""
        self.users: bytes = b""

    def of(self, code: int, since: int, client: str, user: str) -> Part:
        """The same events of a client; `since` when the run before was, all at one time."""
        runs = self.runs
        made = Part(runs, self.counts, self.flags, self.id_times, self.ids, self.topics, self.sizes)
        made.rows = self.rows
        made.apart = self.apart
        made.codes = ONE_BYTE[code] * runs
        if since:
            made.times = since.to_bytes(8, "little", signed=True) + zeros(8 * runs - 8)
        else:
            made.times = zeros(8 * runs)
        made.clients = repeated(client, runs)
        made.users = repeated(user, runs) if user else zeros(runs - 1)
        return made

    def again(self, at: int) -> Part | None:
        """What the same runs say at another time, their payloads told already; None: unknown."""
        if self.came < 0 or self.first < 0:
            return None
        runs = self.runs
        flags = ONE_BYTE[flags_of(self.first, False)] * runs
        apart = self.came != at
        uppers = _upper(self.came, at) * runs if apart else zeros(8 * runs)
        made = Part(runs, self.counts, flags, uppers, self.ids, self.topics, self.sizes)
        made.rows = self.rows
        made.apart = apart
        return made


def part_of(runs: list[Run], at: int, limit: int, named: bool) -> Part:
    """What these runs, at least one, say at this time, whoever the client is.

    Payloads of at most `limit` bytes are in the block (-1: none are); without `named` no topic is.
    """
    first = runs[0]
    count = len(runs)
    rows = 0
    largest = 0
    sized = alike = together = True
    topic = first.topic
    same = True
    # Ids that follow one another, from `number`, so many of them.
    ids: list[bytes] = []
    number = first.number
    after = number
    follow = 0
    for run in runs:
        if run.number != after:
            ids.append(ids_of(number, follow))
            number = run.number
            follow = 0
        follow += 1
        after = run.number + 1
        rows += run.count
        size = run.size
        if size != first.size:
            sized = False
        if size > largest:
            largest = size
        if run.first != first.first:
            alike = False
        if run.came != first.came:
            together = False
        if same and run.topic is not topic and run.topic != topic:
            same = False
    ids.append(ids_of(number, follow))
    if alike and (largest <= limit or limit < 0):
        flags = ONE_BYTE[flags_of(first.first, limit >= 0)] * count
    else:
        flags = bytes([flags_of(run.first, run.size <= limit) for run in runs])
    if sized:
        sizes = size_of(first.size) * count
    else:
        sizes = b"".join([size_of(run.size) for run in runs])
    if not named:
        topics = zeros(count - 1)
    elif same:
        topics = topic + (b"\0" + topic) * (count - 1)
    else:
        topics = b"\0".join([run.topic for run in runs])
    counts = b""
    if rows != count:
        counts = array("I", [run.count for run in runs]).tobytes()
    uppers = b""
    if not together:
        uppers = uppers_of(runs, at)
    elif first.came != at:
        uppers = _upper(first.came, at) * count
    made = Part(
        count,
        counts,
        flags,
        uppers or zeros(8 * count),
        ids[0] if len(ids) == 1 else b"".join(ids),
        topics,
        sizes,
    )
    made.rows = rows
    made.apart = len(uppers) > 0
    if together and first.came >= 0:
        made.came = first.came
    if alike:
        made.first = first.first
    return made


def ids_of(number: int, count: int) -> bytes:
    """The lower halves of so many ids that follow one another, as a column."""
    at = number & 0xFFFF
    if at + count > _READY:
        return array("Q", range(number, number + count)).tobytes()
    origin = number - at
    ready = _ready.get(origin)
    if ready is None:
        if len(_ready) >= _ORIGINS:
            return array("Q", range(number, number + count)).tobytes()
        ready = array("Q", range(origin, origin + _READY)).tobytes()
        _ready[origin] = ready
    return ready[8 * at : 8 * (at + count)]


def uppers_of(runs: list[Run], at: int) -> bytes:
    """The upper halves of their ids, less the time, as a column; empty if all are 0."""
    found: list[bytes] = []
    came = runs[0].came
    count = 0
    for run in runs:
        if run.came != came:
            found.append(_upper(came, at) * count)
            came = run.came
            count = 0
        count += 1
    if not found and came == at:
        return b""
    found.append(_upper(came, at) * count)
    return b"".join(found)


def _upper(came: int, at: int) -> bytes:
    return signed(came - at).to_bytes(8, "little", signed=True)


def size_of(size: int) -> bytes:
    """A size, as in a column."""
    return _SIZES[size] if size < len(_SIZES) else size.to_bytes(4, "little")


def flags_of(first: int, kept: bool) -> int:
    """The flags of a message whose PUBLISH has this QoS and RETAIN; its payload may be kept."""
    flags = first >> 1 & 3 | _MESSAGE
    if first & 1:
        flags |= _RETAIN
    return flags | _PAYLOAD if kept else flags


def signed(number: int) -> int:
    """A number as 64 bits with a sign hold it."""
    number &= _HALF
    return number - (1 << 64) if number >> 63 else number


class Segments:
    """Of runs that come one by one: what those of one kind, time and client share.

    upper: the upper halves of the ids of the last segment, less its time, where they are not all 0.
    """

    __slots__ = ("_at", "_client", "_clients", "_code", "_codes", "_since", "_times", "_uppers",
                 "_user", "_users", "upper")  # fmt: skip

    def __init__(self) -> None:
        self._codes: list[bytes] = []
        self._times: list[bytes] = []
        self._uppers: list[bytes] = []
        self._clients: list[bytes] = []
        self._users: list[bytes] = []
        #: The last one: where it begins, -1 for none, and what its runs share.
        self._at: int = -1
        self._code: int = 0
        self._since: int = 0
        self._client: str = ""
        self._user: str = ""
        self.upper: bytes = b""

    def begin(self, at: int, code: int, since: int, client: str, user: str) -> None:
        """The next segment begins with run `at`, so much later than the one before."""
        if self._at >= 0:
            self._end(at)
        self._at = at
        self._code = code
        self._since = since
        self._client = client
        self._user = user
        self.upper = b""

    def _end(self, at: int) -> None:
        runs = at - self._at
        self._codes.append(ONE_BYTE[self._code] * runs)
        self._times.append(self._since.to_bytes(8, "little", signed=True))
        if runs > 1:
            self._times.append(zeros(8 * runs - 8))
        self._uppers.append(self.upper or zeros(8 * runs))
        self._clients.append(repeated(self._client, runs))
        self._users.append(repeated(self._user, runs) if self._user else zeros(runs - 1))

    def close(self, at: int, part: Part) -> None:
        """All runs are there; the columns of the part that they share."""
        self._end(at)
        part.codes = b"".join(self._codes)
        part.times = b"".join(self._times)
        part.id_times = b"".join(self._uppers)
        part.clients = b"\0".join(self._clients)
        part.users = b"\0".join(self._users)


def zeros(size: int) -> bytes:
    """So many bytes of 0."""
    return _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)


def counts_of(parts: list[Part], apart: dict[int, int]) -> bytes:
    """How many events each run has: as its part says, else as `apart` does by its number."""
    counts = array("I")
    counts.frombytes(b"".join([part.counts or _ONE * part.runs for part in parts]))
    for run, count in apart.items():
        counts[run] = count
    return counts.tobytes()


def repeated(text: str, count: int) -> bytes:
    """A text so many times, as a column."""
    data = _known.get(text)
    if data is None:
        data = texts([text]) + b"\0"
        if len(data) <= _SHORT:
            if len(_known) >= _MOST:
                _known.clear()
            _known[text] = data
    return (data * count)[:-1]


def texts(values: list[str]) -> bytes:
    """Texts, at least one, joined by U+0000."""
    text = "\0".join(values)
    if text.count("\0") != len(values) - 1:
        text = "\0".join([value.replace("\0", "\ufffd") for value in values])
    return text.encode("utf-8", "replace")


def text_of(parts: list[bytes], runs: int) -> bytes:
    """Joined texts of parts as a column: empty if all of them are."""
    text = b"\0".join(parts)
    return b"" if len(text) == runs - 1 else text
