"""`mqttd-ctl roles ...`: roles with rules, groups of them, and which users have them.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from mqttd.admin.ctl.client import CtlError, client_of
from mqttd.admin.ctl.printing import done, print_json, print_table, untold
from mqttd.printable import printable

__all__ = ["add_commands"]


def add_commands(add: Callable[..., Any], roles: Any) -> None:
    """Add the commands to the group `roles`, with `add` of `mqttd.admin.ctl.main`."""
    add(roles, "list", _list, "List the roles, with their rules.")
    command = add(roles, "put", _put, "Put a role: rules in the words of acl.conf.")
    command.add_argument("name", metavar="NAME")
    command.add_argument(
        "--rule",
        metavar="RULE",
        action="append",
        default=[],
        help="such as '{allow, all, publish, [\"plant/#\"]}'; may be repeated",
    )
    command.add_argument("--file", metavar="FILE", help="a file with the rules; - reads them")
    _enabled(command)
    _named(add(roles, "del", _delete, "Delete a role; groups and users lose it."))

    add(roles, "groups", _groups, "List the groups, with their roles.")
    command = add(roles, "put-group", _put_group, "Put a group of roles.")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--role", metavar="ROLE", action="append", default=[])
    _enabled(command)
    _named(add(roles, "del-group", _delete_group, "Delete a group, which its users lose."))

    add(roles, "users", _users, "List the users with their roles and groups.")
    command = add(roles, "give", _give, "Give a user these roles and groups, and no others.")
    command.add_argument(
        "name", metavar="USER", help="'$anonymous' (in quotes) for clients without a user name"
    )
    command.add_argument("--role", metavar="ROLE", action="append", default=[])
    command.add_argument("--group", metavar="GROUP", action="append", default=[])
    _enabled(command, "keep the user out, and end its connections")
    _named(add(roles, "take", _take, "Take all roles and groups from a user."), "USER")


def _named(command: Any, metavar: str = "NAME") -> None:
    command.add_argument("name", metavar=metavar)


def _enabled(command: Any, text: str = "it gives nothing until it is put without this") -> None:
    command.add_argument("--disabled", action="store_true", help=text)


def _list(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/roles")
    if options.json:
        return print_json(answer)
    if not answer["roles"]:
        print("there are no roles")
    for role in answer["roles"]:
        print(printable(role["name"]) + ("" if role["enabled"] else "  (disabled)"))
        for line in role["rules"].splitlines():
            print("  " + printable(line))


def _put(options: argparse.Namespace) -> None:
    rules = "".join(f"{rule.rstrip().rstrip('.')}.\n" for rule in options.rule)
    if options.file is not None:
        try:
            if options.file == "-":
                rules += sys.stdin.read()
            else:
                with open(options.file, encoding="utf-8") as file:
                    rules += file.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise CtlError(f"{options.file}: {reason}") from None
    body = {"name": options.name, "rules": rules, "enabled": not options.disabled}
    answer = client_of(options).request("POST", "/roles", body)
    done(options, answer, f"put role {options.name}" + untold(answer))


def _groups(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/groups")
    if options.json:
        return print_json(answer)
    for group in answer["groups"]:
        group["roles"] = ", ".join(group["roles"])
    print_table(answer["groups"], ["name", "roles", "enabled", "text"])


def _put_group(options: argparse.Namespace) -> None:
    body = {"name": options.name, "roles": options.role, "enabled": not options.disabled}
    answer = client_of(options).request("POST", "/groups", body)
    done(options, answer, f"put group {options.name}" + untold(answer))


def _users(options: argparse.Namespace) -> None:
    found = client_of(options).pages("/members", "members")
    if options.json:
        return print_json({"members": found})
    for member in found:
        member["roles"] = ", ".join(member["roles"])
        member["groups"] = ", ".join(member["groups"])
    print_table(found, ["username", "roles", "groups", "enabled", "text"])


def _give(options: argparse.Namespace) -> None:
    if not options.name:
        raise CtlError("USER is empty: a shell takes $anonymous without quotes for a variable")
    body = {"username": options.name, "roles": options.role, "groups": options.group,
            "enabled": not options.disabled}  # fmt: skip
    answer = client_of(options).request("POST", "/members", body)
    named = ", ".join(
        [f"role {one}" for one in options.role] + [f"group {one}" for one in options.group]
    )
    text = "; it is kept out" if options.disabled else ""
    text += untold(answer)
    done(options, answer, f"user {options.name} has {named or 'no roles'}{text}")


def _delete(options: argparse.Namespace) -> None:
    _remove(options, f"/roles/{quote(options.name, safe='')}", f"deleted role {options.name}")


def _delete_group(options: argparse.Namespace) -> None:
    _remove(options, f"/groups/{quote(options.name, safe='')}", f"deleted group {options.name}")


def _take(options: argparse.Namespace) -> None:
    text = f"user {options.name} has no roles"
    _remove(options, f"/members/{quote(options.name, safe='')}", text)


def _remove(options: argparse.Namespace, path: str, text: str) -> None:
    answer = client_of(options).request("DELETE", path)
    done(options, answer, text + untold(answer))
