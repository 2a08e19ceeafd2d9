"""`mqttd-ctl store ...`: the store on disk of a broker that is down.

Part of `mqttd.admin.ctl`, whose promises hold here too; what the commands do is in
`mqttd.storage.tools`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from mqttd.admin.ctl_client import CtlError, client_of, config_of
from mqttd.storage.database import StoreError
from mqttd.storage.tools import check, export, import_lines, info

__all__ = ["add_backup", "add_commands"]


def add_commands(add: Callable[..., Any], store: Any) -> None:
    """Add the commands to the group `store`, with `add` of `mqttd.admin.ctl`."""

    def one(name: str, run: Callable[[argparse.Namespace], int | None], text: str) -> Any:
        command = add(store, name, run, text)
        command.add_argument(
            "--path", metavar="FILE", help="the store (default: store.db in node.data_dir)"
        )
        return command

    one("info", _info, "Sizes and counts.")
    one("check", _check, "Look at every record; exit status 1 if something is wrong.")
    out = one("export", _export, "Write everything as JSON lines.")
    out.add_argument("file", metavar="FILE", help="a new file; - for standard output")
    into = one("import", _import, "Make a new store of JSON lines.")
    into.add_argument("file", metavar="FILE", help="what export has written; - for standard input")


def add_backup(add: Callable[..., Any], commands: Any) -> None:
    """Add `backup`."""
    command = add(commands, "backup", _backup, "Copy the store of the running broker.")
    command.add_argument("file", metavar="FILE", help="a new file; put back as store.db")


def _backup(options: argparse.Namespace) -> int:
    answer = client_of(options).request(
        "POST", "/store/backup", {"path": os.path.abspath(options.file)}
    )
    print(json.dumps(answer) if options.json else f"{answer['path']}: {answer['bytes']} bytes")
    return 0


def _path(options: argparse.Namespace) -> str:
    if options.path:
        return str(options.path)
    return os.path.join(config_of(options).node.data_dir, "store.db")


def _info(options: argparse.Namespace) -> int:
    try:
        found = info(_path(options))
    except StoreError as error:
        raise _error(error) from None
    if options.json:
        print(json.dumps(found))
        return 0
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<14} {value}")
    return 0


def _check(options: argparse.Namespace) -> int:
    try:
        wrong = check(_path(options))
    except StoreError as error:
        raise _error(error) from None
    if options.json:
        print(json.dumps({"wrong": wrong}))
    else:
        print("\n".join(wrong) or "nothing wrong")
    return 1 if wrong else 0


def _export(options: argparse.Namespace) -> int:
    lines = export(_path(options))
    try:
        if options.file == "-":
            for line in lines:
                print(json.dumps(line))
            return 0
        descriptor = os.open(options.file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")
    except StoreError as error:
        raise _error(error) from None
    except OSError as error:
        raise CtlError(f"{options.file}: {error.strerror}") from None
    return 0


def _import(options: argparse.Namespace) -> int:
    path = _path(options)
    try:
        if options.file == "-":
            counts = import_lines(path, sys.stdin)
        else:
            with open(options.file, encoding="utf-8") as file:
                counts = import_lines(path, file)
    except StoreError as error:
        raise _error(error) from None
    except OSError as error:
        raise CtlError(f"{options.file}: {error.strerror}") from None
    text = ", ".join(f"{count} of {name}" for name, count in counts.items())
    print(json.dumps(counts) if options.json else f"{path}: {text}")
    return 0


def _error(error: StoreError) -> CtlError:
    if "database is locked" in str(error):
        return CtlError(f"{error}: stop the broker first, or ask it for a backup")
    return CtlError(str(error))
