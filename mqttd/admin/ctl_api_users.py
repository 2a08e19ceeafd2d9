"""`mqttd-ctl api-users ...`: who may use the HTTP interface and its page.

    add, token, del, list  -->  data/api-users.json  -->  a running broker sees that it has changed

Part of `mqttd.admin.ctl`, whose promises hold here too. The file is looked at with or without a
broker; an entry that is there is given what is new, and its log-ins end.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable
from typing import Any, Final

from mqttd.admin.ctl_client import CtlError, config_of
from mqttd.admin.ctl_print import done, print_json, print_table, time_text
from mqttd.admin.ctl_users import new_password

__all__ = ["add_commands"]

_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_ROLES: Final = ("viewer", "operator", "administrator", "events")


def add_commands(add: Callable[..., Any], group: Any) -> None:
    """Add the commands to the group `api-users`, with `add` of `mqttd.admin.ctl`."""
    command = add(
        group, "add", _add, "Add who logs in at the page; asks for the password, or reads a line."
    )
    _who(command, "administrator")
    command = add(group, "token", _token, "Make a token for a program, and print it this once.")
    _who(command, "viewer")
    command = add(group, "del", _delete, "Delete a user or token; log-ins of it end.")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--file", metavar="PATH", help="the file of API users")
    add(group, "list", _list, "List users and tokens.").add_argument(
        "--file", metavar="PATH", help="the file of API users"
    )


def _who(command: Any, role: str) -> None:
    command.add_argument("name", metavar="NAME")
    command.add_argument(
        "--role", choices=_ROLES, default=role,
        help=f"what it may: look, change, all, or read the event log (default: {role})",
    )  # fmt: skip
    command.add_argument("--expires", metavar="TIME", help="such as 12h, 30d or 52w")
    command.add_argument("--file", metavar="PATH", help="the file of API users")


def _path(options: argparse.Namespace) -> str:
    if options.file:
        return str(options.file)
    return os.path.join(config_of(options).node.data_dir, "api-users.json")


def _expires(options: argparse.Namespace) -> float | None:
    text = options.expires
    if text is None:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})([mhdw])", text)
    if found is None:
        raise CtlError(f"--expires {text!r}: expected such as 12h, 30d or 52w")
    return float(int(time.time()) + int(found[1]) * _SECONDS[found[2]])


def _add(options: argparse.Namespace) -> None:
    from mqttd.admin.api_users import add_user

    path, expires = _path(options), _expires(options)
    password = new_password(options.name)
    new = _file(add_user, path, options.name, options.role, password, expires)
    text = f"{'added' if new else 'changed'} {options.name}, {options.role}, in {path}"
    done(options, {"user": options.name, "role": options.role, "new": new}, text)


def _token(options: argparse.Namespace) -> None:
    from mqttd.admin.api_users import add_token

    path, expires = _path(options), _expires(options)
    token = _file(add_token, path, options.name, options.role, expires)
    if options.json:
        return print_json({"user": options.name, "role": options.role, "token": token})
    print(token)


def _delete(options: argparse.Namespace) -> None:
    from mqttd.admin.api_users import delete_user

    path = _path(options)
    if not _file(delete_user, path, options.name):
        raise CtlError(f"{path}: no user {options.name!r}")
    done(options, {"deleted": options.name}, f"deleted {options.name} from {path}")


def _list(options: argparse.Namespace) -> None:
    from mqttd.admin.api_users import read

    found = _file(read, _path(options))
    rows = [
        {
            "name": name,
            "role": user.role,
            "shows": "password" if user.password else "token",
            "expires": user.expires,
        }
        for name, user in sorted(found.items())
    ]
    if options.json:
        return print_json({"users": rows})
    for row in rows:
        row["expires"] = time_text(row["expires"]) if row["expires"] else "never"
    print_table(rows, ["name", "role", "shows", "expires"])


def _file(call: Callable[..., Any], *args: object) -> Any:
    try:
        return call(*args)
    except OSError as error:
        raise CtlError(f"{error.filename or args[0]}: {error.strerror}") from None
    except ValueError as error:
        raise CtlError(str(error)) from None
