"""Consumer groups: how far queries have read, so that retention can wait for them.

    groups/GROUP~READER.json    one for each reader of a group
    groups/GROUP.json           of a reader that gives no name

A reader registers when its query starts, when a batch is done and every minute. Several may read as
one group: on each node it is as far as the slowest of them.

A query that starts again is a new reader, and nothing tells whose place it takes. So it clears away
those that were not heard of since it came, have stopped or are silent, and were no further than it
is now. A reader that runs is never cleared away: it is heard of.

Promise: files are replaced as a whole, and a reader writes its own alone; no lock is needed, on a
disk that several machines share neither.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from mqttd.pipeline.log.files import GROUPS, NAME, Damaged, read_json, write_json

__all__ = ["SILENT", "Record", "commit_group", "groups", "readers"]

Record = dict[str, Any]

#: What a reader may call itself.
READER: Final = re.compile(r"[0-9A-Za-z]{0,40}\Z")
_MARK: Final = "~"

#: Seconds after which a reader that says nothing is taken for one that has died: one is heard of
#: every minute, but not within a long batch.
SILENT: Final = 600.0

#: Readers of all groups together: each may keep the log from being deleted, and is a file.
MOST: Final = 500


def readers(path: str, only: str = "") -> dict[tuple[str, str], Record]:
    """(group, reader) -> {"log", "nodes", "time", "stopped", "found"} of the log at `path`.

    `only` is the group that is looked for, empty for all. One whose file is harmed has no nodes and
    no log: it has read nothing that is known.
    """
    found: dict[tuple[str, str], Record] = {}
    folder = os.path.join(path, GROUPS)
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".json"):
                file = os.path.join(folder, name)
                group, _, reader = name[:-5].partition(_MARK)
                if only and group != only:
                    continue
                with contextlib.suppress(FileNotFoundError):  # cleared away meanwhile
                    try:
                        found[group, reader] = read_json(file)
                    except Damaged:
                        at = os.path.getmtime(file)
                        found[group, reader] = {"log": "", "nodes": {}, "time": at}
    return found


def groups(path: str) -> dict[str, Record]:
    """Every group: name -> {"log", "nodes", "time", "stopped", "readers"}.

    It is as far as the slowest of its readers in the log that was read last, was heard of when one
    of them was, and has stopped when all have; `readers` counts those that have not.
    """
    of: dict[str, list[Record]] = {}
    for (group, _), record in readers(path).items():
        of.setdefault(group, []).append(record)
    return {group: _joined(records) for group, records in of.items()}


def _joined(records: list[Record]) -> Record:
    last = max(records, key=_heard)
    log = last.get("log", "")
    here = [one for one in records if one.get("log", "") in (log, "")]
    names = {node for one in here for node in one["nodes"]}
    going = sum(not one.get("stopped") for one in here)
    return {
        "log": log,
        "nodes": {node: min(one["nodes"].get(node, 0) for one in here) for node in sorted(names)},
        "time": last.get("time"),
        "stopped": not going,
        "readers": going,
    }


def commit_group(
    path: str,
    group: str,
    log: str,
    nodes: Mapping[str, int],
    stopped: bool = False,
    reader: str = "",
) -> None:
    """Note that a reader of `group` has read the log up to these offsets, and if it has stopped.

    Raises ValueError for a name that cannot be a file's and for a new reader beside `MOST` others,
    OSError when it cannot be written.
    """
    if not NAME.match(group):
        raise ValueError(f"groupId = {group!r}: expected letters, digits and _ . @ -, at most 100")
    if not READER.match(reader):
        raise ValueError(f"reader = {reader[:60]!r}: expected letters and digits, at most 40")
    folder = os.path.join(path, GROUPS)
    os.makedirs(folder, mode=0o750, exist_ok=True)
    others = {name: one for (_, name), one in readers(path, group).items()}
    own = others.pop(reader, None)
    if own is None and len(os.listdir(folder)) >= MOST:
        raise ValueError(f"groupId = {group!r}: there are {MOST} readers already, end some of them")
    # Who was there when this reader came, and when they were heard of: later than that is alive.
    before = own.get("found", {}) if own else {name: _heard(one) for name, one in others.items()}
    gone = [name for name, one in others.items() if _succeeded(one, before.get(name), log, nodes)]
    left = {name: at for name, at in before.items() if name in others and name not in gone}
    record = {
        "log": log, "nodes": dict(nodes), "time": time.time(), "stopped": stopped, "found": left
    }  # fmt: skip
    write_json(_file(folder, group, reader), record)
    for name in gone:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_file(folder, group, name))


def _succeeded(one: Record, heard: float | None, log: str, nodes: Mapping[str, int]) -> bool:
    """Whether `one` needs its place no more, now that another reader is at `nodes`."""
    if heard is None or _heard(one) != heard:
        return False
    if not (one.get("stopped") or abs(time.time() - heard) > SILENT):
        return False
    return one.get("log") != log or all(nodes.get(n, 0) >= at for n, at in one["nodes"].items())


def _heard(one: Record) -> float:
    return float(one.get("time", 0))


def _file(folder: str, group: str, reader: str) -> str:
    return os.path.join(folder, f"{group}{_MARK if reader else ''}{reader}.json")
