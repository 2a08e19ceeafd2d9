"""`mqttd-ctl users ...` and `mqttd-ctl auth ...`: who may connect.

    users add|passwd|del|import|list  -->  the file itself, with or without a broker
                                                |
                                                '--> a running broker is told to read it again
    auth list|reload                  --HTTP-->  the broker

Part of `mqttd.admin.ctl.main`, whose promises hold here too. With `--scram` the users are those of
SCRAM-SHA-256 (auth.scram.file), else those of user names and passwords (auth.username.file).
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from mqttd.admin.ctl.client import CtlError, NoBroker, at_this_node, client_of, config_of
from mqttd.admin.ctl.printing import done, print_json, print_table, warn
from mqttd.printable import printable

__all__ = ["add_commands", "new_password"]


def add_commands(add: Callable[..., Any], auth: Any, users: Any) -> None:
    """Add the commands to the groups `auth` and `users`, with `add` of `mqttd.admin.ctl.main`."""
    add(auth, "list", _auth_list, "List the modules in the order they are asked, with counters.")
    add(auth, "reload", _auth_reload, "Read users and keys again; a wrong file changes nothing.")
    for name, run, text in (
        ("add", _add, "Add a user; asks for the password, or reads a line from a pipe."),
        ("passwd", _passwd, "Give a user a new password; who is connected with the old one, ends."),
        ("del", _delete, "Delete a user; its connections end."),
    ):
        command = add(users, name, run, text)
        command.add_argument("user", metavar="USER")
        _where(command)
    _where(add(users, "list", _list, "List the users."))
    command = add(users, "import", _import, "Take the users of a mosquitto_passwd file over.")
    command.add_argument("source", metavar="FILE")
    command.add_argument("--overwrite", action="store_true", help="also those there are already")
    command.add_argument("--file", metavar="PATH", help="the password file")


def _where(command: Any) -> None:
    command.add_argument("--file", metavar="PATH", help="the password file")
    command.add_argument(
        "--scram", action="store_true", help="the users of SCRAM-SHA-256 (auth.scram.file)"
    )


# -- auth


def _auth_list(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/auth")
    if options.json:
        return print_json(answer)
    for module in answer["modules"]:
        latency = module.get("latency")
        if latency:
            mean = latency["sum"] / latency["count"] if latency["count"] else 0.0
            module["mean_ms"] = round(mean * 1000, 1)
            module["max_ms"] = round(latency["max"] * 1000, 1)
    apart = any(module.get("listener") for module in answer["modules"])
    for module in answer["modules"]:
        module["listener"] = module.get("listener") or "all others"
    print_table(
        answer["modules"],
        [*(["listener"] if apart else []), "kind", "seq", "name", "hit", "ok", "deny", "ignore",
         "error", "busy", "cached", "running", "waiting", "mean_ms", "max_ms", "breaker",
         "description"],
    )  # fmt: skip


def _auth_reload(options: argparse.Namespace) -> None:
    answer = client_of(options).request("POST", "/auth/reload")
    done(options, answer, "users and keys were read again" + at_this_node(options))


# -- users


def _file(options: argparse.Namespace) -> str:
    # The helpers warn of a file that everybody may read: one line, not Python's two.
    warnings.showwarning = warn
    if options.file:
        return str(options.file)
    auth = config_of(options).auth
    return str(auth.scram.file if getattr(options, "scram", False) else auth.username.file)


def _users(options: argparse.Namespace, path: str) -> dict[str, str]:
    from mqttd.secrets.scram import read_scram_users
    from mqttd.secrets.users import read_users

    if not os.path.exists(path):
        return {}
    read = read_scram_users if options.scram else read_users
    found: dict[str, str] = _access(read, path)
    return found


def _add(options: argparse.Namespace) -> None:
    path = _file(options)
    if options.user in _users(options, path):
        raise CtlError(f"{path}: user {options.user!r} is there already; use: users passwd")
    _set_password(options, path)


def _passwd(options: argparse.Namespace) -> None:
    path = _file(options)
    if options.user not in _users(options, path):
        raise CtlError(f"{path}: no user {options.user!r}; use: users add")
    _set_password(options, path)


def _set_password(options: argparse.Namespace, path: str) -> None:
    from mqttd.secrets.passwords import Cost
    from mqttd.secrets.scram import add_scram_user
    from mqttd.secrets.users import add_user

    given: tuple[object, ...] = (options.user, new_password(options.user))
    if options.scram:
        new = _access(add_scram_user, path, *given)
    else:
        costs = config_of(options).auth.password
        cost = Cost(max(costs.memory // 1024, 8 * costs.lanes), costs.passes, costs.lanes)
        new = _access(add_user, path, *given, cost)
    told = _tell(options, f"users passwd {options.user}")
    text = f"{'added' if new else 'changed'} {options.user} in {path}; {told}"
    done(options, {"user": options.user, "new": new}, text)


def _delete(options: argparse.Namespace) -> None:
    from mqttd.secrets.scram import delete_scram_user
    from mqttd.secrets.users import delete_user

    path = _file(options)
    delete = delete_scram_user if options.scram else delete_user
    if not _access(delete, path, options.user):
        raise CtlError(f"{path}: no user {options.user!r}")
    text = f"deleted {options.user} from {path}; {_tell(options, f'users del {options.user}')}"
    done(options, {"deleted": options.user}, text)


def _import(options: argparse.Namespace) -> None:
    from mqttd.secrets.users import import_users

    path = _file(options)
    taken, left = _access(import_users, path, options.source, options.overwrite)
    text = f"took {len(taken)} user{'' if len(taken) == 1 else 's'} into {path}"
    if left:
        text += f", left {len(left)} that {'is' if len(left) == 1 else 'are'} there already"
    done(options, {"imported": taken, "left": left}, f"{text}; {_tell(options, 'users import')}")


def _list(options: argparse.Namespace) -> None:
    users = sorted(_users(options, _file(options)))
    if options.json:
        return print_json({"users": users})
    for user in users:
        print(printable(user))


def _tell(options: argparse.Namespace, reason: str) -> str:
    """Have a running broker read its files again, with why; says in clauses what came of it."""
    return _told(options, reason) + at_this_node(options)


def _told(options: argparse.Namespace, reason: str) -> str:
    try:
        client_of(options).request("POST", "/auth/reload", {"reason": reason[:1000]})
    except NoBroker:
        return "no broker is running"
    except CtlError as error:
        return f"the running broker did not take it: {error}"
    return "the running broker has read it"


def _access(call: Callable[..., Any], path: str, *args: object) -> Any:
    try:
        return call(path, *args)
    except OSError as error:
        raise CtlError(f"{error.filename or path}: {error.strerror}") from None
    except ValueError as error:
        raise CtlError(str(error)) from None


def new_password(user: str) -> str:
    """Asked for twice on a terminal, else the first line of standard input."""
    if sys.stdin.isatty():
        password = getpass.getpass(f"Password for {user}: ")
        if getpass.getpass("Again: ") != password:
            raise CtlError("the two passwords differ")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CtlError("an empty password is no password")
    return password
