"""Sessions move where their client ids belong, when a broker starts with another number of workers.

    data/store.db                          of one process
    data/worker-K/store.db                 of several
          |  every session, its messages and its will to the worker of its client id;
          |  retained messages and bans to all: of what changed after the last link between them
          |  had ended the last; what plugins keep to the worker of the same number;
          |  what one worker had for another to the sessions that it is for
          v
    data/resharded.making/K.db  --all are whole-->  data/resharded/K.db  -->  in their places

What was there is kept beside it, as `store.db.before`, until the next time.

Promise: a process that is killed leaves the old stores or the new ones, never some of both: what is
in `resharded` is whole, and the next start goes on with it. Nothing is opened where the number is
the one that it was.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mqttd.storage.lines import (
    VERSION,
    BanLine,
    End,
    Header,
    Line,
    MessageLine,
    RetainedLine,
    SessionLine,
    UserLine,
    ValueLine,
    WillLine,
)
from mqttd.storage.reader import kept_in
from mqttd.storage.transfer import export_lines, import_lines
from mqttd.workers.mesh import UNDER_WAY, left_in
from mqttd.workers.place import worker_of
from mqttd.workers.underway import UnderWay

__all__ = ["LEFT", "data_of", "lines_of", "reshard", "stores_of"]

#: What is logged of each damaged part of a store that was taken apart.
LEFT: Final = "damaged, it stays in the old store, which is kept as store.db.before: {what}"

_WORKER: Final = re.compile(r"worker-([1-9]\d?)\Z")
_STORE: Final = "store.db"
#: Bans and roles, where nothing else is kept.
_FILES: Final = ("bans.json", "roles.json")
#: Names of plugins that an operator loaded.
_PLUGINS: Final = "loaded_plugins"
#: What SQLite has beside a file, in the order in which it may be moved.
_BESIDE: Final = ("-wal", "-shm", "")


def data_of(data_dir: str, number: int, count: int) -> str:
    """The data directory of a worker; of the only one it is the broker's."""
    return data_dir if count == 1 else os.path.join(data_dir, f"worker-{number}")


def reshard(data_dir: str, count: int, left: list[str] | None = None) -> int:
    """Have the stores below `data_dir` be those of `count` workers; how many sessions have moved.

    -1 if they are already, or there are none. Call it with the directory locked. Raises StoreError
    for one that cannot be read, and OSError; then nothing has changed. left: gets the names of rows
    and records that are damaged and stay in the old stores.
    """
    _carry(data_dir, count)
    if not _is_of(data_dir, count):
        _carry_plugins(data_dir, count)
    made = os.path.join(data_dir, "resharded")
    if not os.path.isdir(made):
        before = stores_of(data_dir)
        wanted = [os.path.join(data_of(data_dir, k, count), _STORE) for k in range(1, count + 1)]
        if not before or set(before) <= set(wanted) and _is_of(data_dir, count):
            _write_count(data_dir, count)
            return -1
        moved = _make(data_dir, before, count, left)
    else:
        moved = 0
    _put_in_place(data_dir, made)
    return moved


def _carry(data_dir: str, count: int) -> None:
    """Files that stand for a store where there is none are the first worker's, who tells others."""
    first, own = os.path.join(data_dir, "worker-1"), data_of(data_dir, 1, count)
    for name in _FILES:
        newest = _newest((data_dir, first), name)
        target = os.path.join(own, name)
        if newest and newest != target:
            os.makedirs(own, mode=0o700, exist_ok=True)
            os.replace(newest, target)


def _carry_plugins(data_dir: str, count: int) -> None:
    """What was loaded by hand last, wherever it is written, every worker loads."""
    folders = [data_dir, *(os.path.dirname(path) for path in _workers_of(data_dir))]
    newest = _newest(folders, _PLUGINS)
    for number in range(1, count + 1):
        own = data_of(data_dir, number, count)
        target = os.path.join(own, _PLUGINS)
        if newest and newest != target:
            os.makedirs(own, mode=0o700, exist_ok=True)
            shutil.copy2(newest, f"{target}.new")
            os.replace(f"{target}.new", target)


def _newest(folders: Iterable[str], name: str) -> str:
    """The file of this name that was written last; "" where there is none."""
    paths = [os.path.join(folder, name) for folder in folders]
    return max(filter(os.path.exists, paths), key=os.path.getmtime, default="")


def stores_of(data_dir: str) -> list[str]:
    """The stores that there are: of one process, then of workers by their numbers."""
    found = [os.path.join(data_dir, _STORE), *_workers_of(data_dir)]
    return [path for path in found if os.path.exists(path)]


def _workers_of(data_dir: str) -> list[str]:
    """Where the stores of workers are, or would be, by their numbers."""
    if not os.path.isdir(data_dir):
        return []
    numbers = sorted(
        int(match[1]) for name in os.listdir(data_dir) if (match := _WORKER.match(name))
    )
    return [os.path.join(data_dir, f"worker-{number}", _STORE) for number in numbers]


def _is_of(data_dir: str, count: int) -> bool:
    """Whether the stores were kept by so many workers."""
    try:
        with open(os.path.join(data_dir, "workers"), encoding="ascii") as file:
            return int(file.read()) == count
    except FileNotFoundError:
        return count == 1
    except ValueError:
        return False


def _write_count(data_dir: str, count: int) -> None:
    path = os.path.join(data_dir, "workers")
    if count == 1 and not os.path.exists(path):
        return
    with open(f"{path}.new", "w", encoding="ascii") as file:
        file.write(f"{count}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def _make(data_dir: str, before: Sequence[str], count: int, left: list[str] | None) -> int:
    """Make the new stores beside the old ones; how many sessions are in them."""
    making = os.path.join(data_dir, "resharded.making")
    shutil.rmtree(making, ignore_errors=True)
    os.mkdir(making, 0o700)
    sessions = 0
    for number in range(1, count + 1):
        path = os.path.join(making, f"{number}.db")
        told = left if number == 1 else None  # each reads all of them
        sessions += import_lines(path, lines_of(before, number, count, left=told))["session"]
    with open(os.path.join(making, "count"), "w", encoding="ascii") as file:
        file.write(f"{count}\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(making, os.path.join(data_dir, "resharded"))
    _sync(data_dir)
    return sessions


def lines_of(
    before: Sequence[str],
    number: int = 1,
    count: int = 1,
    users: Iterable[UserLine] = (),
    by: str = "mqttd",
    left: list[str] | None = None,
) -> Iterator[Line]:
    """What of these stores is for one worker, all of it for the only one; then these users.

    left: gets what cannot be read.
    """
    topics: set[str] = set()
    bans: set[tuple[str, str]] = set()
    values: set[tuple[str, str]] = set()
    last = _last_of(before)
    under_way = UnderWay(before, time.time_ns() // 1_000_000)
    taken = 1
    yield Header(version=VERSION, written_at=int(time.time()), by=by)
    for at, path in enumerate(before):
        for line in export_lines(path, left=left):
            if isinstance(line, SessionLine | MessageLine | WillLine):
                if worker_of(line.client_id, count) != number:
                    continue
            elif isinstance(line, RetainedLine):
                if line.topic in topics or last.get(line.topic, at) != at:
                    continue
                topics.add(line.topic)
            elif isinstance(line, BanLine):
                if (line.kind, line.value) in bans:
                    continue
                bans.add((line.kind, line.value))
            elif isinstance(line, ValueLine):
                if line.plugin == UNDER_WAY:
                    continue
                key = (line.plugin, line.key)
                if min(at + 1, count) != number or key in values:
                    continue
                values.add(key)
            else:
                continue
            taken += 1
            yield line
        for owed in under_way.for_sessions_of(path):
            if worker_of(owed.client_id, count) == number:
                taken += 1
                yield owed
    for user in users:
        taken += 1
        yield user
    yield End(lines=taken)


def _last_of(before: Sequence[str]) -> dict[str, int]:
    """In which store a retained message changed last, of those that the others have not heard of.

    Where it has none any more nobody does.
    """
    last: dict[str, int] = {}
    stamps: dict[str, int] = {}
    for at, path in enumerate(before):
        for key, row in kept_in(path, UNDER_WAY):
            topic, stamp = left_in(key, row)
            if stamp > stamps.get(topic, 0):
                last[topic], stamps[topic] = at, stamp
    return last


def _put_in_place(data_dir: str, made: str) -> None:
    """The new stores are whole: they take the places of the old ones."""
    with open(os.path.join(made, "count"), encoding="ascii") as file:
        count = int(file.read())
    done = os.path.join(made, "moved")
    if not os.path.exists(done):
        for path in stores_of(data_dir):
            for end in _BESIDE:
                if os.path.exists(path + end):
                    os.replace(path + end, f"{path}.before{end}")
        with open(done, "w", encoding="ascii"):
            pass
        _sync(made)
    for number in range(1, count + 1):
        folder = data_of(data_dir, number, count)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(made, f"{number}.db")
        if os.path.exists(path):
            os.replace(path, os.path.join(folder, _STORE))
            _sync(folder)
    _write_count(data_dir, count)
    shutil.rmtree(made)


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
