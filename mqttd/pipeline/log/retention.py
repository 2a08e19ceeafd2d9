"""How long segments stay: until the log is too large or they are too old, whichever comes first.

    oldest                                                            newest
    | segment | segment | segment | segment | segment | written to |
      over `bytes` or older than `seconds`: deleted ... unless a group has not read it yet
      over `held_bytes`: deleted, whoever has not read it

A consumer group that registered its progress keeps what it has not read, up to `held_bytes`, and
for `group_seconds` after it was last heard of, stopped or not: a job that runs once a night is a
group all day. The newest segment always stays.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mqttd.pipeline.log.files import GROUPS, NAME, Damaged, read_json, write_json

__all__ = ["Retention", "Segment", "commit_group", "expired", "groups"]


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


def groups(path: str) -> dict[str, dict[str, Any]]:
    """Every consumer group of the log at `path`: name -> {"log", "nodes", "time", "stopped"}.

    One whose file is harmed has no nodes and no log: it has read nothing that is known.
    """
    found: dict[str, dict[str, Any]] = {}
    folder = os.path.join(path, GROUPS)
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".json"):
                file = os.path.join(folder, name)
                try:
                    found[name[:-5]] = read_json(file)
                except Damaged:
                    found[name[:-5]] = {"log": "", "nodes": {}, "time": os.path.getmtime(file)}
    return found


def commit_group(
    path: str, group: str, log: str, nodes: Mapping[str, int], stopped: bool = False
) -> None:
    """Note that `group` has read the log up to these offsets, and whether it has stopped.

    Raises ValueError for a name that cannot be a file's, OSError when it cannot be written.
    """
    if not NAME.match(group):
        raise ValueError(f"groupId = {group!r}: expected letters, digits and _ . @ -, at most 100")
    folder = os.path.join(path, GROUPS)
    os.makedirs(folder, mode=0o750, exist_ok=True)
    record = {"log": log, "nodes": dict(nodes), "time": time.time(), "stopped": stopped}
    write_json(os.path.join(folder, f"{group}.json"), record)


def slowest(path: str, log: str, node: str, limits: Retention, now: float) -> int | None:
    """The offset of `node` that every group heard of lately has read, None without groups.

    A group of a log that was here before keeps nothing of this one.
    """
    offsets = [
        int(group["nodes"].get(node, 0))
        for group in groups(path).values()
        if group.get("log") in (log, "")
        and now - float(group.get("time", 0)) < limits.group_seconds
    ]
    return min(offsets, default=None)
