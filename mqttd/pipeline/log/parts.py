"""Columns of a batch while it is filled: runs that are bytes already, part by part.

    runs that came one by one ----------------------+
    runs of a client's deliveries --> Part.of(...) --+--> list of parts --> columns of a block

What a part of deliveries says is made once for all clients that were sent the same; `Part.of` adds
what differs. Compiled with the hot path. Format: `mqttd.pipeline.log.packed`.
"""

from __future__ import annotations

from array import array
from typing import Final

__all__ = ["Part", "counts_of", "text_of", "texts"]

_ONE: Final = b"\1\0\0\0"
_ZERO: Final = bytes(8)


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
        made.times = array("q", (since,)).tobytes() + _ZERO * (runs - 1)
        made.clients = _repeated(client, runs)
        made.users = _repeated(user, runs)
        return made


def counts_of(parts: list[Part]) -> bytes:
    """How many events each run has."""
    return b"".join([part.counts or _ONE * part.runs for part in parts])


def _repeated(text: str, count: int) -> bytes:
    data = texts([text])
    return data + (b"\0" + data) * (count - 1)


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
