"""`mqttd-ctl store ...`, `backup`, `restore`: what is kept on disk.

    backup, store compact                         the running broker does it
    restore, store info|check|export|import       the broker is down; a running one is named

Part of `mqttd.admin.ctl.main`, whose promises hold here too; what the commands do is in
`mqttd.storage`. Promise: nothing that is there is written over, and what fails leaves nothing
behind.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from mqttd import __version__
from mqttd.admin.ctl.client import CtlError, client_of, config_of
from mqttd.admin.ctl.files import export_users, take_users
from mqttd.admin.ctl.printing import counted as count_text
from mqttd.printable import printable
from mqttd.storage.database import StoreError
from mqttd.storage.lines import dump_line
from mqttd.storage.place import alone

__all__ = ["add_backup", "add_commands", "counted", "new_path_of"]

#: What is counted, where the file's word for it does not do.
_NAMES = {"retained": "retained message", "value": "plugin value"}
#: What was left out, a line each at most.
_TOLD = 20


def add_commands(add: Callable[..., Any], store: Any) -> None:
    """Add the commands to the group `store`, with `add` of `mqttd.admin.ctl.main`."""

    def one(name: str, run: Callable[[argparse.Namespace], int | None], text: str) -> Any:
        command = add(store, name, run, text)
        command.add_argument(
            "--path", metavar="FILE", help="the store (default: store.db in node.data_dir)"
        )
        return command

    one("info", _info, "Sizes and counts.")
    one("check", _check, "Look at every record; exit status 1 if something is wrong.")
    add(store, "compact", _compact, "Have the running broker give unused space back.")
    out = one("export", _export, "Write everything, and the users, as JSON lines.")
    out.add_argument("file", metavar="FILE", help="a new file; - for standard output")
    into = one("import", _import, "Make a new store of JSON lines, and add their users.")
    into.add_argument("file", metavar="FILE", help="what export has written; - for standard input")


def add_backup(add: Callable[..., Any], commands: Any) -> None:
    """Add `backup` and `restore`."""
    command = add(commands, "backup", _backup, "Copy the store of the running broker.")
    command.add_argument("file", metavar="FILE", help="a new file")
    command = add(commands, "restore", _restore, "Make a copy the store of a broker that is down.")
    command.add_argument("file", metavar="FILE", help="what backup has written")
    command.add_argument(
        "--path", metavar="FILE", help="the store (default: store.db in node.data_dir)"
    )


def counted(counts: dict[str, Any]) -> str:
    """Counts by type, as text: 4 sessions, 1 retained message."""
    parts = []
    for kind, count in counts.items():
        name = kind.removesuffix("s")
        if count:
            parts.append(count_text(count, _NAMES.get(name, name)))
    return ", ".join(parts) or "nothing"


def _backup(options: argparse.Namespace) -> int:
    client = client_of(options)
    client.timeout = 3600.0
    answer = client.request("POST", "/store/backup", {"path": os.path.abspath(options.file)})
    if not client.token:
        _be_there(answer["path"])
    print(json.dumps(answer) if options.json else f"{answer['path']}: {answer['bytes']} bytes")
    if damaged := answer.get("damaged"):
        rows = count_text(damaged, "damaged row")
        print(
            f"{rows} in the store: what is there cannot be read, and a restore leaves it out;"
            " `store compact` drops it",
            file=sys.stderr,
        )
    return 0


def _tell_left(left: list[str]) -> None:
    """Say what was not taken, on standard error."""
    for text in left[:_TOLD]:
        print(printable(f"left out: {text}"), file=sys.stderr)
    if len(left) > _TOLD:
        print(f"left out: {len(left) - _TOLD} more", file=sys.stderr)


def _be_there(path: str) -> None:
    """Raises CtlError where the broker on this machine has written a file that is not here."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        raise CtlError(
            f"{path}: the broker has written it where this command does not see it, and where it"
            " may go with the broker: it has a /tmp of its own (PrivateTmp of systemd), or files (a"
            " container); expected a path that both see, as in node.data_dir"
        ) from None
    except OSError:
        pass  # who may not look there cannot tell


def _compact(options: argparse.Namespace) -> int:
    client = client_of(options)
    client.timeout = 3600.0
    answer = client.request("POST", "/store/compact")
    if options.json:
        print(json.dumps(answer))
    else:
        print(
            f"{answer['path']}: {answer['before']} -> {answer['after']} bytes,"
            f" {answer['moved']} records moved"
        )
        for name in answer.get("dropped", ()):
            print(printable(f"dropped, it could not be read: {name}"))
    return 0


def _restore(options: argparse.Namespace) -> int:
    from mqttd.storage.tools import restore

    try:
        found = restore(options.file, new_path_of(options))
    except StoreError as error:
        raise _error(error) from None
    _tell_left(found["left_out"])
    if options.json:
        print(json.dumps(found))
        return 0
    kinds = ("sessions", "messages", "retained", "wills", "bans", "values")
    text = counted({kind: found[kind] for kind in kinds})
    print(f"{options.file} -> {found['path']}: {text}")
    return 0


def _paths_of(options: argparse.Namespace) -> list[str]:
    """The stores that are meant: those of all workers, where the broker has several."""
    if options.path:
        return [str(options.path)]
    return _stores_in(config_of(options).node.data_dir) or [path_of(options)]


def _stores_in(data_dir: str) -> list[str]:
    """The stores that are there. Raises CtlError where nobody but its owner may look."""
    from mqttd.workers.resharding import stores_of

    try:
        return stores_of(data_dir)
    except PermissionError:
        raise CtlError(
            f"no right to look into {data_dir}: run this as the broker's user, or as root"
        ) from None


def new_path_of(options: argparse.Namespace) -> str:
    """Where a new store goes; no worker may have one, whose sessions would be mixed with it.

    Raises CtlError, too, where the broker would not use it.
    """
    path = path_of(options)
    if not options.path and config_of(options).store.kind == "memory":
        raise CtlError(
            'store.kind is "memory": a broker with this configuration uses no store; set it to'
            ' "sqlite" first, or name the file that is to be made with --path'
        )
    others = [] if options.path else _stores_in(os.path.dirname(path))
    if others and path not in others:
        raise CtlError(f"{others[0]} is there already; move it away first")
    return path


def path_of(options: argparse.Namespace) -> str:
    """The store that is meant."""
    if options.path:
        return str(options.path)
    return os.path.join(config_of(options).node.data_dir, "store.db")


def _info(options: argparse.Namespace) -> int:
    from mqttd.storage.tools import info

    try:
        found = [info(path) for path in _paths_of(options)]
    except StoreError as error:
        raise _error(error) from None
    if options.json:
        print(json.dumps(found[0] if len(found) == 1 else {"stores": found}))
        return 0
    for number, each in enumerate(found):
        if number:
            print()
        for name, value in each.items():
            print(f"{name.replace('_', ' '):<14} {value}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from mqttd.storage.tools import check

    paths = _paths_of(options)
    try:
        wrong = [
            text if len(paths) == 1 else f"{path}: {text}" for path in paths for text in check(path)
        ]
    except StoreError as error:
        raise _error(error) from None
    if options.json:
        print(json.dumps({"wrong": wrong}))
    else:
        print("\n".join(wrong) or "nothing wrong")
    return 1 if wrong else 0


def _export(options: argparse.Namespace) -> int:
    from mqttd.storage.transfer import export_lines
    from mqttd.workers.resharding import lines_of

    # With --path it is that store alone; else what belongs to this configuration.
    users = iter(()) if options.path else export_users(config_of(options))
    paths, by = _paths_of(options), f"mqttd {__version__}"
    left: list[str] = []
    if len(paths) == 1:
        lines = export_lines(paths[0], users, by, left)
    else:
        lines = lines_of(paths, users=users, by=by, left=left)
    try:
        if options.file == "-":
            for line in lines:
                print(dump_line(line))
            _tell_left(left)
            return 0
        descriptor = os.open(options.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                for line in lines:
                    file.write(dump_line(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            os.unlink(options.file)
            raise
    except StoreError as error:
        raise _error(error) from None
    except OSError as error:
        raise CtlError(f"{options.file}: {error.strerror}") from None
    _tell_left(left)
    return 0


def _import(options: argparse.Namespace) -> int:
    from mqttd.storage.transfer import import_lines

    path = new_path_of(options)
    config = None if options.path else config_of(options)
    users = None if config is None else take_users(config)
    try:
        with alone(path):
            counts = import_lines(path, _lines(options.file), users)
    except StoreError as error:
        text = str(error)
        raise CtlError(f"{options.file}: {text}" if text.startswith("line ") else text) from None
    except OSError as error:
        raise CtlError(f"{error.filename or options.file}: {error.strerror}") from None
    print(json.dumps(counts) if options.json else f"{path}: {counted(counts)}")
    if config is None and counts["user"]:
        print("users are not part of a store: import without --path takes them", file=sys.stderr)
    return 0


def _lines(name: str) -> Iterator[str]:
    number = 1
    try:
        with sys.stdin if name == "-" else open(name, encoding="utf-8") as file:
            for line in file:
                yield line
                number += 1
    except UnicodeDecodeError:
        raise StoreError(f"line {number}: expected JSON in UTF-8") from None


def _error(error: StoreError) -> CtlError:
    if "database is locked" in str(error):
        return CtlError(f"{error}: stop the broker first, or ask it for a backup")
    return CtlError(str(error))
