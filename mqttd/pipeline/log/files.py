"""Where the log lies: one directory, one folder for each node or worker that writes.

    data/events/log.json                      the log's id (offsets of another log mean nothing
                                              here), and what each node has reserved
    data/events/NODE/state.json               the same of one node, and how it was closed
    data/events/NODE/lock                     held by the writer; how far it has written
    data/events/NODE/00000000000000524288.events    blocks, named by the first offset in it
    data/events/NODE/00000000000000524288.events.damaged-1    a damaged one, set aside
    data/events/groups/GROUP~READER.json      how far a reader of a consumer group has read
    data/events.reserved.json                 see `beside`

What is reserved and the log's id are in two files, each with a checksum: when one is harmed or gone
the other has them. Files other than segments are replaced as a whole (written beside, synced,
renamed).

`groups/` may be open to other users of the system: there, and everywhere, what is read is a regular
file of a bounded size, opened without waiting, and what is written beside is a file of our own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import uuid
import zlib
from collections.abc import Container, Iterator
from typing import Any, Final

__all__ = [
    "FORMAT",
    "GROUPS",
    "LOG_FILE",
    "OFFSETS",
    "STATE_FILE",
    "Damaged",
    "OtherFormat",
    "aside",
    "base_of",
    "check_place",
    "create_log",
    "locked",
    "log_id_at",
    "nodes_in",
    "nodes_known",
    "read_json",
    "reserve",
    "reserved_by",
    "segment_inodes",
    "segment_name",
    "segments_in",
    "set_aside_in",
    "strangers_in",
    "sync_directory",
    "write_json",
]

#: The format of the log that this program reads and writes (log.json).
FORMAT: Final = 1

LOG_FILE: Final = "log.json"
STATE_FILE: Final = "state.json"
LOCK: Final = "lock"
GROUPS: Final = "groups"
SUFFIX: Final = ".events"
#: Offsets are less than this.
OFFSETS: Final = 1 << 63
#: Bytes of a JSON file that is read.
MOST_BYTES: Final = 16 << 20

_SEGMENT: Final = re.compile(r"\d{20}\.events\Z")
_SET_ASIDE: Final = re.compile(r"\d{20}\.events\.damaged-\d+\Z")
#: What a node or group may be called: it becomes a file name.
NAME: Final = re.compile(r"[A-Za-z0-9_@-][A-Za-z0-9_.@-]{0,99}\Z")


class OtherFormat(ValueError):
    """What is there was put there by another program than this one."""


class Damaged(ValueError):
    """A file of the log has not the content it was written with; the text names it."""


def check_place(folder: str, lock: int) -> None:
    """Raise OSError unless `folder` is the one whose `lock` is held open.

    It may be removed while it is written to. What is in one that was made in its place is another
    writer's, and what goes into files that have no name any more nobody reads.
    """
    again = "taken away while it was written to: 'mqttd-ctl plugins reload spark' goes on"
    try:
        there = os.stat(os.path.join(folder, LOCK))
    except FileNotFoundError:
        if os.path.isdir(folder):
            return  # the lock alone
        raise FileNotFoundError(errno.ENOENT, f"the event log was {again}", folder) from None
    if not os.path.samestat(there, os.fstat(lock)):
        why = f"another event log is in the place of this one, which was {again}"
        raise BlockingIOError(errno.EAGAIN, why, folder)


def segment_name(base: int) -> str:
    """The file of the segment whose first event has offset `base`."""
    return f"{base:020d}{SUFFIX}"


def base_of(segment: str) -> int:
    """The first offset of a segment, from its file name."""
    return int(segment[: -len(SUFFIX)])


def _is_segment(one: os.DirEntry[str]) -> bool:
    match = _SEGMENT.match(one.name)
    return match is not None and base_of(one.name) < OFFSETS and one.is_file()


def segments_in(folder: str) -> list[str]:
    """The segments of a node, in order; a directory of such a name is none."""
    try:
        with os.scandir(folder) as entries:
            return sorted(one.name for one in entries if _is_segment(one))
    except FileNotFoundError:
        return []


def segment_inodes(folder: str) -> list[tuple[str, int]]:
    """The segments of a node in order, each with the number that tells files of a name apart."""
    try:
        with os.scandir(folder) as entries:
            return sorted((one.name, one.inode()) for one in entries if _is_segment(one))
    except FileNotFoundError:
        return []


def strangers_in(folder: str) -> list[str]:
    """Files of a node that are called like segments by a number that is no offset."""
    names = [name for name in os.listdir(folder) if _SEGMENT.match(name)]
    return sorted(name for name in names if base_of(name) >= OFFSETS)


def aside(folder: str, name: str) -> str:
    """Under which name a damaged file is kept."""
    number = 1 + max((int(one.rpartition("-")[2]) for one in set_aside_in(folder)), default=0)
    return f"{name}.damaged-{number}"


def set_aside_in(folder: str) -> list[str]:
    """The damaged files of a node that are kept."""
    try:
        return sorted(name for name in os.listdir(folder) if _SET_ASIDE.match(name))
    except FileNotFoundError:
        return []


def nodes_in(path: str, known: Container[str] = ()) -> list[str]:
    """The nodes that have written to the log at `path`; those `known` are not looked into.

    Raises OSError for a folder that may not be looked into: it is not an empty one.
    """
    found = []
    for entry in os.scandir(path):
        if entry.name != GROUPS and NAME.match(entry.name) and entry.is_dir():
            if entry.name in known or any(
                name in (STATE_FILE, LOCK) or _SEGMENT.match(name)
                for name in os.listdir(entry.path)
            ):
                found.append(entry.name)
    return sorted(found)


def create_log(path: str, node: str = "") -> str:
    """Make the directory a log, or find that it is one; returns the log's id.

    A log.json that is gone or harmed is written again with what the state of `node` says. If that
    is gone too, nobody knows which offsets were given: then it is a log with a new id.

    Raises ValueError for a format that this program does not know.
    """
    os.makedirs(path, mode=0o750, exist_ok=True)
    with locked(path):
        try:
            found = _read_log(path)
        except (FileNotFoundError, Damaged):
            log = _log_of_state(path, node) if node else ""
            found = {"format": FORMAT, "log": log or uuid.uuid4().hex, "reserved": {}}
            write_json(os.path.join(path, LOG_FILE), found)
    return str(found["log"])


def log_id_at(path: str) -> str:
    """The id of the log at `path`, from log.json or, where that is harmed, a node's state.

    Raises FileNotFoundError or ValueError if there is no log that this program reads.
    """
    try:
        return str(_read_log(path)["log"])
    except (FileNotFoundError, Damaged):
        for node in nodes_in(path):
            if log := _log_of_state(path, node):
                return log
        raise


def reserved_by(path: str, node: str) -> int:
    """The offset up to which log.json says that `node` may have given offsets; 0 if nothing."""
    try:
        return int(_read_log(path)["reserved"][node])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0


def nodes_known(path: str) -> list[str]:
    """The nodes that log.json knows of; their folders may be gone."""
    try:
        return sorted(_read_log(path).get("reserved", {}))
    except (FileNotFoundError, Damaged):
        return []


def reserve(path: str, node: str, offset: int, log: str) -> None:
    """Note in log.json that `node` may give offsets of `log` up to `offset`."""
    with locked(path):
        try:
            found = _read_log(path)
        except (FileNotFoundError, Damaged):  # since the writer opened the log
            found = {"format": FORMAT, "log": log}
        given = dict(found.get("reserved", {}))
        given[node] = max(offset, int(given.get(node, 0)))
        write_json(os.path.join(path, LOG_FILE), {**found, "reserved": given})


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Of several workers one at a time changes log.json."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read_log(path: str) -> dict[str, Any]:
    name = os.path.join(path, LOG_FILE)
    damaged: Damaged | None = None
    try:
        found = read_json(name)
    except Damaged as error:
        damaged = error
        found = error.args[1] if len(error.args) > 1 else {}
    number = found.get("format", FORMAT)
    # Asked first: a file of another format may be sealed in another way.
    if isinstance(number, int) and number != FORMAT:
        raise OtherFormat(
            f"{name}: the log has format {number}, this program reads and writes {FORMAT}; nothing"
            " was changed. Use the program that wrote it, or another directory"
        )
    if damaged is not None:
        raise damaged
    if not isinstance(found.get("log"), str) or not found["log"]:
        raise Damaged(f"{name}: no log id in it")
    return found


def _log_of_state(path: str, node: str) -> str:
    try:
        return str(read_json(os.path.join(path, node, STATE_FILE)).get("log", ""))
    except (FileNotFoundError, Damaged):
        return ""


def read_json(name: str, most: int = MOST_BYTES) -> dict[str, Any]:
    """The object in a regular file of at most so many bytes, without its checksum.

    Waits for nobody, whatever stands there. Raises OSError, or Damaged, which name it.
    """
    data = _read_plain(name, most)
    try:
        found = json.loads(data)
    except RecursionError:
        raise Damaged(f"{name}: not JSON of ours: too deep") from None
    except ValueError as error:
        raise Damaged(f"{name}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Damaged(f"{name}: expected a JSON object")
    crc = found.pop("crc", None)
    if crc is not None and crc != _crc(found):
        raise Damaged(f"{name}: wrong checksum", found)
    return found


def _read_plain(name: str, most: int) -> bytes:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):  # a link, a socket
            raise Damaged(f"{name}: not a regular file") from None
        raise
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise Damaged(f"{name}: not a regular file")
        if about.st_size > most:
            raise Damaged(f"{name}: larger than {most} bytes")
        # One that grows meanwhile is no JSON where it is cut.
        return os.pread(fd, most, 0)
    finally:
        os.close(fd)


def first_kept(folder: str, base: int) -> int:
    """The first event that retention has left of a node whose first segment begins with `base`.

    Segments are looked for first: what retention deletes it notes before. Older writers noted
    nothing: then it is `base`.
    """
    noted = _deleted(folder) if base else base
    return min(base, noted) if noted >= 0 else base


def note_deleted(folder: str, offset: int) -> None:
    """Note that events before `offset` will be deleted, of a node that nobody writes.

    Raises OSError, BlockingIOError where it is written all the same.
    """
    fd = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _deleted(folder) >= 0:
            name = os.path.join(folder, STATE_FILE)
            write_json(name, {**read_json(name), "deleted": offset})
    finally:
        os.close(fd)


def _deleted(folder: str) -> int:
    try:
        return int(read_json(os.path.join(folder, STATE_FILE)).get("deleted", -1))
    except (OSError, ValueError, TypeError):
        return -1


def _crc(value: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def write_json(name: str, value: dict[str, Any]) -> None:
    """Replace a file by an object, so that it is the old one or the new one after a crash."""
    beside = name + ".new"
    # Ours, not what another user has put there: a link would lead anywhere.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    with open(beside, "x", encoding="utf-8") as file:
        json.dump({**value, "crc": _crc(value)}, file)
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
