"""`mqttd-ctl reload, config show`: read the configuration again, see what is in force.

Part of `mqttd.admin.ctl.main`, whose promises hold here too. A plan that would cut somebody off is
shown and not applied (status 1) until it is repeated with ``--yes``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from mqttd.admin.ctl.client import CtlError, client_of
from mqttd.admin.ctl.printing import print_json, print_table
from mqttd.hints import like
from mqttd.printable import printable

__all__ = ["add_commands"]

Json = dict[str, Any]

#: Rules of each kind that a plan shows.
_RULES: Final = 10


def add_commands(add: Callable[..., Any], group: Callable[..., Any], commands: Any) -> None:
    """Add `reload` and the group `config`, with `add` and `group` of `mqttd.admin.ctl.main`."""
    reload = add(
        commands,
        "reload",
        _reload,
        "Read configuration, users, rules and certificates again: all of it is applied or nothing.",
    )
    reload.add_argument("--dry-run", action="store_true", help="show what it would do, and stop")
    reload.add_argument(
        "--yes", action="store_true", help="also where it ends connections or subscriptions"
    )
    config = group("config", "The configuration in force.")
    show = add(config, "show", _show, "Show every key, its value and where it comes from.")
    show.add_argument("key", metavar="KEY", nargs="?", help="a key or table: acl, mqtt.max_qos")
    show.add_argument("--set", action="store_true", help="those alone that are not the default")


def _reload(options: argparse.Namespace) -> int | None:
    client = client_of(options)
    if options.dry_run:
        answer = client.request("POST", "/config/plan")
    else:
        answer = client.request("POST", "/config/apply", {"confirmed": options.yes})
    held = not options.dry_run and not answer["applied"]
    if options.json:
        print_json(answer)
        return 1 if held else None
    for change in answer["changes"]:
        print(printable(change["text"]))
    for file in answer["files"]:
        _print_file(file)
    if not answer["changes"] and not answer["files"]:
        print("no key, rule or user differs from what is in force")
    for note in (*answer["warnings"], *answer["notes"]):
        print(printable(f"warning: {note}"))
    if held:
        raise CtlError("nothing was changed; `mqttd-ctl reload --yes` does it in spite of this")
    if answer["applied"]:
        kept = [change["key"] for change in answer["changes"] if not change["applies"]]
        but = f"; not applied: {', '.join(kept)}" if kept else ""
        print(printable(f"reloaded: configuration, users, rules, certificates{but}"))
    return None


def _print_file(file: Json) -> None:
    """What differs in a file; of rules the first ones of each kind."""
    print(printable(file["text"]))
    if file["kind"] != "rules":
        return
    for mark, kind in (("-", "removed"), ("+", "added"), ("~", "changed")):
        for rule in file[kind][:_RULES]:
            print(printable(f"  {mark} {rule}"))
        if len(file[kind]) > _RULES:
            print(f"  {mark} and {file['counts'][kind] - _RULES} more")


def _show(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/config")
    keys = [
        entry
        for entry in answer["keys"]
        if (not options.set or entry["source"] != "default")
        and (not options.key or f"{entry['key']}.".startswith(f"{options.key}."))
    ]
    if options.key and not keys and not options.set:
        known = [entry["key"] for entry in answer["keys"]]
        raise CtlError(f"there is no key {options.key!r}{like(options.key, known)}")
    if options.json:
        return print_json({**answer, "keys": keys})
    for entry in keys:
        if entry["file"] is not None:
            entry["source"] += f"; the file has {entry['file']} now"
    print_table(keys, ["key", "value", "source"])
