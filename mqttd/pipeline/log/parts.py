"""Columns of a batch while it is filled: runs that are bytes already, part by part.

    runs one by one --> Segments: what neighbours share --+
    deliveries of several clients alike --> Part.of(...) --+--> parts --> columns of a block

What a part of deliveries says is made once for all clients that were sent the same; `Part.of` adds
what differs. Compiled with the hot path. Format: `mqttd.pipeline.log.packed`.
"""

from __future__ import annotations

from array import array
from typing import Final

from mqttd.codec.frame import ONE_BYTE

__all__ = ["Part", "Segments", "counts_of", "text_of", "texts"]

_ONE: Final = b"\1\0\0\0"
_ZERO: Final = bytes(8)
#: Bytes of zeros are cut from these as long as they reach.
_ZEROS: Final = bytes(8 * 64)


class Part:
    """Columns of some runs; `counts` may be empty where all are 1."""

    __slots__ = (
        "clients",
        "codes",
        "counts",
        "flags",
        "id_times",
        "ids",
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
        made.codes = bytes((code,)) * runs
        made.times = since.to_bytes(8, "little", signed=True) + _ZERO * (runs - 1)
        made.clients = _repeated(client, runs)
        made.users = _repeated(user, runs)
        return made


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
            self._times.append(_zeros(8 * runs - 8))
        self._uppers.append(self.upper or _zeros(8 * runs))
        self._clients.append(_repeated(self._client, runs))
        self._users.append(_repeated(self._user, runs) if self._user else _zeros(runs - 1))

    def close(self, at: int, part: Part) -> None:
        """All runs are there; the columns of the part that they share."""
        self._end(at)
        part.codes = b"".join(self._codes)
        part.times = b"".join(self._times)
        part.id_times = b"".join(self._uppers)
        part.clients = b"\0".join(self._clients)
        part.users = b"\0".join(self._users)


def _zeros(size: int) -> bytes:
    return _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)


def counts_of(parts: list[Part], apart: dict[int, int]) -> bytes:
    """How many events each run has: as its part says, else as `apart` does by its number."""
    counts = array("I")
    counts.frombytes(b"".join([part.counts or _ONE * part.runs for part in parts]))
    for run, count in apart.items():
        counts[run] = count
    return counts.tobytes()


def _repeated(text: str, count: int) -> bytes:
    data = texts([text])
    return data if count == 1 else data + (b"\0" + data) * (count - 1)


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
