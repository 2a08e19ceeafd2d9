"""Where the log lies: one directory, one folder for each node or worker that writes.

    data/events/log.json                      the log's id: offsets of another log mean nothing here
    data/events/NODE/state.json               offsets reserved ahead, how it was closed
    data/events/NODE/00000000000000524288.events    blocks, named by the first offset in it
    data/events/groups/GROUP.json             how far a consumer group has read

Files other than segments are replaced as a whole (written beside, synced, renamed).
"""

from __future__ import annotations

import json
import os
import re
import uuid
from typing import Any, Final

__all__ = [
    "GROUPS",
    "LOG_FILE",
    "STATE_FILE",
    "base_of",
    "create_log",
    "nodes_in",
    "read_json",
    "segment_name",
    "segments_in",
    "sync_directory",
    "write_json",
]

LOG_FILE: Final = "log.json"
STATE_FILE: Final = "state.json"
GROUPS: Final = "groups"
SUFFIX: Final = ".events"

_SEGMENT: Final = re.compile(r"\d{20}\.events\Z")
#: What a node or group may be called: it becomes a file name.
NAME: Final = re.compile(r"[A-Za-z0-9_@-][A-Za-z0-9_.@-]{0,99}\Z")


def segment_name(base: int) -> str:
    """The file of the segment whose first event has offset `base`."""
    return f"{base:020d}{SUFFIX}"


def base_of(segment: str) -> int:
    """The first offset of a segment, from its file name."""
    return int(segment[: -len(SUFFIX)])


def segments_in(folder: str) -> list[str]:
    """The segments of a node, in order."""
    try:
        return sorted(name for name in os.listdir(folder) if _SEGMENT.match(name))
    except FileNotFoundError:
        return []


def nodes_in(path: str) -> list[str]:
    """The nodes that have written to the log at `path`."""
    return sorted(
        entry.name
        for entry in os.scandir(path)
        if entry.is_dir()
        and entry.name != GROUPS
        and os.path.exists(os.path.join(entry.path, STATE_FILE))
    )


def create_log(path: str) -> str:
    """Make the directory a log, or find that it is one; returns the log's id."""
    os.makedirs(path, mode=0o750, exist_ok=True)
    name = os.path.join(path, LOG_FILE)
    if not os.path.exists(name):
        made = f"{name}.{uuid.uuid4().hex}"
        write_json(made, {"format": 1, "log": uuid.uuid4().hex})
        try:
            os.link(made, name)  # of several workers the first one names it
        except FileExistsError:
            pass
        finally:
            os.unlink(made)
        sync_directory(path)
    return str(read_json(name)["log"])


def read_json(name: str) -> dict[str, Any]:
    """The object in a file; raises OSError or ValueError, which name it."""
    with open(name, encoding="utf-8") as file:
        try:
            found = json.load(file)
        except ValueError as error:
            raise ValueError(f"{name}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name}: expected a JSON object")
    return found


def write_json(name: str, value: dict[str, Any]) -> None:
    """Replace a file by an object, so that it is the old one or the new one after a crash."""
    beside = name + ".new"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, name)
    sync_directory(os.path.dirname(name) or ".")


def sync_directory(path: str) -> None:
    """Make names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
