"""How long segments stay: until the log is too large or they are too old, whichever comes first.

    oldest                                                            newest
    | segment | segment | segment | segment | segment | written to |
      over `bytes` or older than `seconds`: deleted ... unless a group has not read it yet
      over `held_bytes`: deleted, whoever has not read it

A consumer group that registered its progress keeps what it has not read, up to `held_bytes`, and
for `group_seconds` after it was last heard of, stopped or not: a job that runs once a night is a
group all day. The newest segment always stays.

What is deleted is noted first (`deleted` in state.json): what else is missing somebody has taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mqttd.pipeline.log.files import base_of, segments_in
from mqttd.pipeline.log.groups import Record

__all__ = ["Retention", "Segment", "delete_expired", "expired", "slowest"]


@dataclass(frozen=True)
class Retention:
    """The limits; 0 is none. Sizes in bytes, durations in seconds."""

    bytes: int = 10 * 1024**3
    seconds: float = 0.0
    held_bytes: int = 0
    group_seconds: float = 7 * 86400.0


@dataclass(frozen=True)
class Segment:
    """One segment as retention sees it; `written` is when it was last written to."""

    name: str
    end: int
    size: int
    written: float


def delete_expired(
    path: str, log: str, node: str, end: int, limits: Retention, now: float,
    readers: Iterable[Record], may_go: Callable[[int], bool], note: Callable[[int], None],
) -> list[Segment]:  # fmt: skip
    """Delete what a node's part of the log at `path` need not keep; returns what that was.

    end: the offset behind the newest segment; readers: of groups; may_go: whether a segment that
    ends at an offset may be deleted; note: is told before which offset all will be deleted. Raises
    OSError.
    """
    folder = os.path.join(path, node)
    names = segments_in(folder)
    segments = []
    for name, behind in zip(names, [*map(base_of, names[1:]), end], strict=False):
        about = os.stat(os.path.join(folder, name))
        segments.append(Segment(name, behind, about.st_size, about.st_mtime))
    found = expired(segments, limits, now, slowest(readers, log, node, limits, now))
    going = list(takewhile(lambda segment: may_go(segment.end), found))
    if going:
        note(going[-1].end)
    for segment in going:
        os.unlink(os.path.join(folder, segment.name))
    return going


def expired(
    segments: Sequence[Segment], limits: Retention, now: float, read: int | None
) -> list[Segment]:
    """The segments to delete, oldest first.

    :param segments: all of a node, in order; the last one is being written to.
    :param read: the offset the slowest group has read to, None if there is no group.
    """
    total = sum(segment.size for segment in segments)
    found = []
    for segment in segments[:-1]:
        large = limits.bytes > 0 and total > limits.bytes
        old = limits.seconds > 0 and segment.written < now - limits.seconds
        if not (large or old):
            break
        if read is not None and segment.end > read and total <= limits.held_bytes:
            break
        found.append(segment)
        total -= segment.size
    return found


def slowest(
    readers: Iterable[Record], log: str, node: str, limits: Retention, now: float
) -> int | None:
    """The offset of `node` that every reader heard of lately has read, None without groups.

    One of a log that was here before keeps nothing of this one.
    """
    offsets = [
        int(one["nodes"].get(node, 0))
        for one in readers
        if one["log"] == log and now - float(one["time"]) < limits.group_seconds
    ]
    return min(offsets, default=None)
