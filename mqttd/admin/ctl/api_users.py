"""`mqttd-ctl api-users ...`: who may use the HTTP interface and its page.

    add, token, del, list  --HTTP-->  the running broker, whose audit names who did it
                             '-- there is none, or --file -->  data/api-users.json

Part of `mqttd.admin.ctl.main`, whose promises hold here too. An entry that is there is given what
is new, and its log-ins end.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from mqttd.admin.ctl.client import CtlError, NoBroker, client_of, config_of
from mqttd.admin.ctl.printing import done, print_json, print_table, seconds_of, time_text
from mqttd.admin.ctl.users import new_password

__all__ = ["add_commands"]

_ROLES: Final = ("viewer", "operator", "administrator", "events")


def add_commands(add: Callable[..., Any], group: Any) -> None:
    """Add the commands to the group `api-users`, with `add` of `mqttd.admin.ctl.main`."""
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
    command.add_argument("--expires", metavar="TIME", help="such as 12h, 7d or 52w (never)")
    command.add_argument("--file", metavar="PATH", help="the file of API users")


def _path(options: argparse.Namespace) -> str:
    if options.file:
        return str(options.file)
    return os.path.join(config_of(options).node.data_dir, "api-users.json")


def _asked(options: argparse.Namespace, method: str, path: str, body: Any = None) -> Any:
    """What the running broker answers; None where there is none, and the file is ours."""
    if options.file:
        return None
    try:
        return client_of(options).request(method, path, body)
    except NoBroker:
        if options.url:
            raise
        return None


def _seconds(options: argparse.Namespace) -> float | None:
    text = options.expires
    return None if text in (None, "never") else float(seconds_of("--expires", text))


def _until(seconds: float | None) -> float | None:
    return None if seconds is None else float(int(time.time() + seconds))


def _add(options: argparse.Namespace) -> None:
    from mqttd.admin.http.api_users import add_user

    name, role, seconds = options.name, options.role, _seconds(options)
    password = new_password(name)
    body = {"name": name, "role": role, "password": password, "seconds": seconds}
    answer, where = _asked(options, "POST", "/api-users", body), ""
    if answer is None:
        path = _path(options)
        new = _file(add_user, path, name, role, password, _until(seconds))
        where = f", in {path}"
    else:
        new = answer["new"]
    text = f"{'added' if new else 'changed'} {name}, {role}{where}"
    done(options, {"user": name, "role": role, "new": new}, text)


def _token(options: argparse.Namespace) -> None:
    from mqttd.admin.http.api_users import add_token

    name, role, seconds = options.name, options.role, _seconds(options)
    if any(one["name"] == name and one["shows"] == "password" for one in _entries(options)):
        raise CtlError(f"{name} has a password: choose another name, or use: api-users del {name}")
    body = {"name": name, "role": role, "seconds": seconds}
    answer = _asked(options, "POST", "/api-users", body)
    if answer is None:
        token = _file(add_token, _path(options), name, role, _until(seconds))
    else:
        token = answer["token"]
    if options.json:
        return print_json({"user": name, "role": role, "token": token})
    print(token)


def _delete(options: argparse.Namespace) -> None:
    from mqttd.admin.http.api_users import delete_user

    name, where = options.name, ""
    if _asked(options, "DELETE", f"/api-users/{quote(name, safe='')}") is None:
        path = _path(options)
        if not _file(delete_user, path, name):
            raise CtlError(f"{path}: no user {name!r}")
        where = f" from {path}"
    done(options, {"deleted": name}, f"deleted {name}{where}")


def _list(options: argparse.Namespace) -> None:
    rows = _entries(options)
    if options.json:
        return print_json({"users": rows})
    for row in rows:
        row["expires"] = time_text(row["expires"]) if row["expires"] else "never"
    print_table(rows, ["name", "role", "shows", "expires"])


def _entries(options: argparse.Namespace) -> list[dict[str, Any]]:
    from mqttd.admin.http.api_users import read

    answer = _asked(options, "GET", "/api-users")
    if answer is not None:
        return list(answer["users"])
    return [
        {
            "name": name,
            "role": user.role,
            "shows": "password" if user.password else "token",
            "expires": user.expires,
        }
        for name, user in sorted(_file(read, _path(options)).items())
    ]


def _file(call: Callable[..., Any], *args: object) -> Any:
    try:
        return call(*args)
    except OSError as error:
        raise CtlError(f"{error.filename or args[0]}: {error.strerror}") from None
    except ValueError as error:
        raise CtlError(str(error)) from None
