"""Consumer groups: how far queries have read, so that retention can wait for them.

    groups/GROUP~READER.json    one for each reader of a group
    groups/GROUP.json           of a reader that gives no name

A reader registers when its query starts, when a batch is done and every minute. Several may read as
one group: on each node it is as far as the slowest of them.

A query that starts again is a new reader, and nothing tells whose place it takes. So it clears away
those that were not heard of since it came, have stopped or are silent, and were no further than it
is now; and they do not count, where it has ended before they were silent for long enough. A reader
that runs is never cleared away: it is heard of.

Promise: files are replaced as a whole, and a reader writes its own alone; no lock is needed, on a
disk that several machines share neither.

The folder may be open to other users: what stands there and is no reader of a group is passed over,
and told (`skipped`). It keeps nothing, and reading costs at most `MOST` files and `MOST_TOGETHER`
bytes, and never waits.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from mqttd.pipeline.log.blocks import Block
from mqttd.pipeline.log.files import GROUPS, NAME, OFFSETS, Damaged, read_json, write_json

__all__ = ["SILENT", "Record", "commit_group", "groups", "readers", "reads", "standing", "unread"]

Record = dict[str, Any]

#: What a reader may call itself.
READER: Final = re.compile(r"[0-9A-Za-z]{0,40}\Z")
_MARK: Final = "~"

#: Seconds after which a reader that says nothing is taken for one that has died: one is heard of
#: every minute, but not within a long batch.
SILENT: Final = 600.0

#: Readers of all groups together: each may keep the log from being deleted, and is a file. Those
#: that one token or user of the HTTP interface has brought are no more than it leaves free.
MOST: Final = 500
#: Names in the folder that are looked at, bytes of a file and of all of them that are read: a
#: reader's are some hundred.
MOST_NAMES: Final = 2 * MOST
MOST_BYTES: Final = 128 << 10
MOST_TOGETHER: Final = 4 << 20
#: Seconds since 1970 that a time can be.
_LATEST: Final = 253_402_300_800


def readers(
    path: str, only: str = "", skipped: list[str] | None = None
) -> dict[tuple[str, str], Record]:
    """(group, reader) -> {"log", "nodes", "time", "stopped", "found"} of the log at `path`.

    `only` is the group that is looked for, empty for all; `skipped` gets a line for each file that
    is none, and why.
    """
    found: dict[tuple[str, str], Record] = {}
    lines = [] if skipped is None else skipped
    folder = os.path.join(path, GROUPS)
    files, size = 0, 0
    for name in _names(folder, lines):
        group, _, reader = name[:-5].partition(_MARK)
        if only and group != only:
            continue
        try:
            if not (NAME.match(group) and READER.match(reader)):
                raise Damaged("not the name of a group")
            files += 1
            size += min(os.lstat(os.path.join(folder, name)).st_size, MOST_BYTES)
            if files > MOST or size > MOST_TOGETHER:
                raise Damaged("too many files, or too large together")
            record = read_json(os.path.join(folder, name), MOST_BYTES)
            if not _is_record(record):
                raise Damaged("not what a reader writes")
            found[group, reader] = record
        except FileNotFoundError:
            continue  # cleared away meanwhile
        except (OSError, Damaged) as error:
            why = getattr(error, "strerror", None) or str(error.args[0])
            lines.append(f"{name!a}: {why.removeprefix(os.path.join(folder, name) + ': ')}")
    return found


def _names(folder: str, lines: list[str]) -> list[str]:
    """Files that may be readers', in order."""
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in islice(entries, MOST_NAMES + 1)]
    except FileNotFoundError:
        return []
    except OSError as error:
        lines.append(f"{GROUPS}: {error.strerror}")
        return []
    if len(names) > MOST_NAMES:
        lines.append(f"{GROUPS}: more than {MOST_NAMES} files, the others are not looked at")
    return sorted(name for name in names[:MOST_NAMES] if name.endswith(".json"))


def _is_record(one: Record) -> bool:
    """Whether a reader may have written this."""
    nodes, found = one.get("nodes"), one.get("found", {})
    return (
        isinstance(one.get("log"), str)
        and isinstance(nodes, dict)
        and all(NAME.match(node) for node in nodes)
        and all(type(at) is int and 0 <= at < OFFSETS for at in nodes.values())
        and _is_time(one.get("time"))
        and isinstance(one.get("who", ""), str)
        and isinstance(found, dict)
        and all(map(_is_time, found.values()))
    )


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < _LATEST  # type: ignore[operator]


def groups(path: str, skipped: list[str] | None = None) -> dict[str, Record]:
    """Every group: name -> {"log", "nodes", "time", "stopped", "readers"}.

    It is as far as the slowest of its readers in the log that was read last, was heard of when one
    of them was, and has stopped when all have; `readers` counts those that have not. `skipped`: see
    `readers`.
    """
    of: dict[str, list[Record]] = {}
    for (group, _), record in standing(readers(path, skipped=skipped)).items():
        of.setdefault(group, []).append(record)
    return {group: _joined(records) for group, records in of.items()}


def standing(found: dict[tuple[str, str], Record]) -> dict[tuple[str, str], Record]:
    """Those of `readers` whose place no other of their group has taken."""
    taken = {
        (group, reader)
        for (group, _), other in found.items()
        for reader, heard in other.get("found", {}).items()
        if (group, reader) in found
        and _succeeded(found[group, reader], heard, other["log"], other["nodes"])
    }
    return {key: one for key, one in found.items() if key not in taken}


def _joined(records: list[Record]) -> Record:
    last = max(records, key=_heard)
    log = last["log"]
    here = [one for one in records if one["log"] == log]
    names = {node for one in here for node in one["nodes"]}
    going = sum(not one.get("stopped") for one in here)
    return {
        "log": log,
        "nodes": {node: min(one["nodes"].get(node, 0) for one in here) for node in sorted(names)},
        "time": last["time"],
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
    who: str = "",
) -> None:
    """Note that a reader of `group` has read the log up to these offsets, and if it has stopped.

    who: as whom it asks the broker; empty where it writes the file itself.

    Raises ValueError for a name that cannot be a file's and for a new reader that there is no place
    for, OSError when it cannot be written.
    """
    if not NAME.match(group):
        raise ValueError(f"groupId = {group!r}: expected letters, digits and _ . @ -, at most 100")
    if not READER.match(reader):
        raise ValueError(f"reader = {reader[:60]!r}: expected letters and digits, at most 40")
    folder = os.path.join(path, GROUPS)
    os.makedirs(folder, mode=0o750, exist_ok=True)
    others = {name: one for (_, name), one in readers(path, group).items()}
    own = others.pop(reader, None)
    if own is None:
        _find_place(path, group, who)
    # Who was there when this reader came, and when they were heard of: later than that is alive.
    before = own.get("found", {}) if own else {name: _heard(one) for name, one in others.items()}
    gone = [name for name, one in others.items() if _succeeded(one, before.get(name), log, nodes)]
    left = {name: at for name, at in before.items() if name in others and name not in gone}
    record = {
        "log": log, "nodes": dict(nodes), "time": time.time(), "stopped": stopped, "found": left,
        "who": who,
    }  # fmt: skip
    write_json(_file(folder, group, reader), record)
    for name in gone:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_file(folder, group, name))


def _find_place(path: str, group: str, who: str) -> None:
    """Raises ValueError if there is none for a new reader of `group`."""
    taken = len(_names(os.path.join(path, GROUPS), []))
    if taken >= MOST:
        raise ValueError(f"groupId = {group!r}: there are {MOST} readers already, end some of them")
    if who:
        own = sum(one.get("who") == who for one in readers(path).values())
        if own >= MOST - taken:
            raise ValueError(
                f"groupId = {group!r}: {who} has {own} readers of {taken} already, of {MOST} in"
                " all; end some of them"
            )


def reads(group: Record) -> bool:
    """Whether a group, or a reader, reads now: it has not stopped, and was heard of lately."""
    return not group.get("stopped") and abs(time.time() - _heard(group)) <= SILENT


def _succeeded(one: Record, heard: float | None, log: str, nodes: Mapping[str, int]) -> bool:
    """Whether `one` needs its place no more, now that another reader is at `nodes`."""
    if heard is None or _heard(one) != heard:
        return False
    if not (one.get("stopped") or abs(time.time() - heard) > SILENT):
        return False
    return one.get("log") != log or all(nodes.get(n, 0) >= at for n, at in one["nodes"].items())


def _heard(one: Record) -> float:
    return float(one["time"])


def _file(folder: str, group: str, reader: str) -> str:
    return os.path.join(folder, f"{group}{_MARK if reader else ''}{reader}.json")


def unread(
    blocks: Callable[[str, int, int], Sequence[Block]],
    bounds: Mapping[str, Sequence[int]],
    nodes: Mapping[str, Any],
) -> int:
    """Events that are there and a group, which is at `nodes`, has not read.

    None that is lost and no offset that was skipped; of a node that it does not name all: such a
    node is read from its first event.

    :param blocks: those of a node that hold a range, as far as they are there.
    :param bounds: node -> the first offset and the one behind the last.
    """
    behind = 0
    for node, (earliest, latest) in bounds.items():
        start = max(earliest, int(nodes.get(node, earliest)))
        if start < latest:
            behind += sum(
                min(one.end, latest) - max(one.base, start)
                for one in blocks(node, start, latest)
                if not one.gap
            )
    return behind
