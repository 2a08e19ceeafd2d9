"""`mqttd-ctl import mosquitto.conf|mosquitto.db|dynamic-security.json`: what another broker had.

Part of `mqttd.admin.ctl.main`. Promise: what is there already is never written over, and what
could not be taken over is listed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Callable
from typing import Any, Final

from msgspec import to_builtins

from mqttd.access.roles.mosquitto import import_roles, is_dynamic_security
from mqttd.admin.ctl.client import CtlError, client_of, config_of
from mqttd.admin.ctl.printing import print_json, untold
from mqttd.admin.ctl.store import counted, new_path_of
from mqttd.config.load import ConfigError, load
from mqttd.config.mosquitto import NoConfiguration, import_mosquitto
from mqttd.printable import printable
from mqttd.secrets.users import put_proofs, sifted_users
from mqttd.storage.database import StoreError
from mqttd.storage.place import alone

__all__ = ["add_command"]

#: Bytes of a file that show what it is.
_HEAD: Final = 4096
#: Characters of a file of roles at most.
_MOST: Final = 64 << 20


def add_command(add: Callable[..., Any], commands: Any) -> None:
    """Add `import`, with `add` of `mqttd.admin.ctl.main`."""
    command = add(
        commands,
        "import",
        _import,
        "Make configuration, rules and users of a mosquitto.conf, or a store of a mosquitto.db, or"
        " have the running broker take the roles of a dynamic-security.json; list what has no place"
        " here.",
    )
    command.add_argument("file", metavar="FILE")
    command.add_argument(
        "--into", metavar="DIR", default="etc", help="of a configuration: where to write (etc)"
    )
    command.add_argument(
        "--data",
        metavar="PATH",
        help="of a configuration: the data directory (data beside DIR); made where it is missing",
    )
    command.add_argument(
        "--path",
        metavar="FILE",
        help="of a mosquitto.db: the new store (store.db in node.data_dir)",
    )


def _import(options: argparse.Namespace) -> None:
    if _is_database(options.file):
        return _import_database(options)
    if is_dynamic_security(_text(options.file)):
        return _import_roles(options)
    _refuse_others(options.file)
    try:
        made = import_mosquitto(options.file)
        os.makedirs(options.into, exist_ok=True)
        config = made.config
        if options.data is not None:
            data = json.dumps(os.path.abspath(options.data), ensure_ascii=False)
            config = f"{config.rstrip()}\n\n[node]\ndata_dir = {data}\n"
        texts = {"mqttd.conf": config, "acl.conf": made.rules}
        if made.users is not None:
            texts["users.conf"], wrong = sifted_users(made.users, made.users_from)
            made.left += wrong
        paths = {name: os.path.join(options.into, name) for name in texts}
        for path in paths.values():
            if os.path.exists(path):
                raise CtlError(f"{path} is there already; name another directory with --into")
        for name, text in texts.items():
            _write(paths[name], text, 0o600 if name == "users.conf" else 0o644)
        data = load(paths["mqttd.conf"], {}).node.data_dir
        fresh = not os.path.isdir(data)
        os.makedirs(data, mode=0o700, exist_ok=True)
    except OSError as error:
        raise CtlError(f"{error.filename}: {error.strerror}") from None
    except NoConfiguration as error:
        raise CtlError(str(error)) from None
    except ConfigError as error:
        mistakes = "; ".join(error.mistakes)
        raise CtlError(f"what was written needs a correction: {mistakes}") from None
    if options.json:
        return print_json({"written": list(paths.values()), "data": data, "left": made.left})
    for path in paths.values():
        print(printable(f"wrote {path}"))
    if fresh:
        print(printable(f"made {data}"))
    if made.left:
        print("not taken over:")
    for line in made.left:
        print(printable(f"  {line}"))
    print(printable(f"check it:  mqttd --config {paths['mqttd.conf']} --check-config"))


def _is_database(path: str) -> bool:
    from mqttd.storage.mosquitto import MAGIC

    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise CtlError(f"{path}: {error.strerror}") from None


def _refuse_others(path: str) -> None:
    """Raises CtlError, with the command that is meant, for what is no text of settings."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise CtlError(f"{path}: {error.strerror}") from None
    shown = shlex.quote(path)
    if head.startswith(b"SQLite format 3\0"):
        means = f"a database of SQLite; a copy of a store: mqttd-ctl restore {shown}"
    elif b"\0" in head:
        means = "no text; of what mosquitto keeps, its mosquitto.db is taken"
    elif head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        means = f"JSON; what `store export` has written: mqttd-ctl store import {shown}"
    else:
        return
    raise CtlError(f"{path}: expected a mosquitto.conf, this is {means}")


def _import_database(options: argparse.Namespace) -> None:
    from mqttd.storage.mosquitto import MosquittoFile
    from mqttd.storage.transfer import import_lines

    path = new_path_of(options)
    try:
        found = MosquittoFile(options.file)
        with alone(path):
            counts = import_lines(path, found.lines())
    except StoreError as error:
        raise CtlError(str(error)) from None
    except OSError as error:
        raise CtlError(f"{error.filename}: {error.strerror}") from None
    if options.json:
        return print_json({"written": [path], "counts": counts, "left": found.left})
    print(printable(f"{path}: {counted(counts)}"))
    if found.left:
        print("not taken over:")
    for line in found.left:
        print(printable(f"  {line}"))


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MOST)
    except UnicodeDecodeError:
        return ""
    except OSError as error:
        raise CtlError(f"{path}: {error.strerror}") from None


def _import_roles(options: argparse.Namespace) -> None:
    """Into the running broker: roles, groups and users; passwords into its file of users."""
    try:
        made = import_roles(_text(options.file))
    except ValueError as error:
        raise CtlError(f"{options.file}: {error}") from None
    client = client_of(options)
    body = to_builtins(made.change)
    answer = client.request("POST", "/roles/import", body)
    new = 0
    path = config_of(options).auth.username.file if made.passwords else ""
    if made.passwords:
        try:
            new = len(put_proofs(path, made.passwords)[0])
        except (OSError, ValueError) as error:
            raise CtlError(f"the roles are there, but not the passwords: {error}") from None
        client.request("POST", "/auth/reload")
    if options.json:
        return print_json({"imported": answer, "passwords": new, "left": made.left})
    print(printable(f"took {answer['roles']} roles, {answer['groups']} groups, "
                    f"{answer['members']} users{untold(answer)}"))  # fmt: skip
    if path:
        print(printable(f"{path}: {new} passwords"))
    if made.left:
        print("not taken over:")
    for line in made.left:
        print(printable(f"  {line}"))


def _write(path: str, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
