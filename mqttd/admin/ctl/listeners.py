"""`mqttd-ctl listeners ...`: see, start, stop and restart listeners, read certificates again.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from mqttd.admin.ctl.client import client_of, of_node
from mqttd.admin.ctl.printing import done, print_json, print_table
from mqttd.printable import printable

__all__ = ["add_commands"]


def add_commands(add: Callable[..., Any], listeners: Any) -> None:
    """Add the commands to the group `listeners`, with `add` of `mqttd.admin.ctl.main`."""
    of_node(add(listeners, "list", _list, "List all listeners with their connections."))
    for name, text in (
        ("start", "Accept connections (again), as the configuration says now."),
        ("stop", "Stop accepting connections, end those there are."),
        ("restart", "Stop and start, with the configuration and the files as they are now."),
    ):
        command = add(listeners, name, _change, text)
        command.add_argument("name", metavar="KIND:NAME")
        command.set_defaults(operation=name)
    add(
        listeners,
        "reload",
        _reload_settings,
        "Take over changed limits and TLS settings from the configuration; connections stay.",
    )
    add(
        listeners,
        "reload-certificates",
        _reload,
        "Read certificates, authorities and revocation lists again; nobody is disconnected.",
    )


def _list(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/listeners")
    if options.json:
        return print_json(answer)
    print_table(
        answer["listeners"],
        [
            "id",
            "host",
            "port",
            "reuse_port",
            "transport",
            "state",
            "connections",
            "max_connections",
        ],
    )


def _change(options: argparse.Namespace) -> None:
    path = f"/listeners/{quote(options.name, safe='')}/{options.operation}"
    answer = client_of(options).request("POST", path)
    done(options, answer, f"listener {answer['id']} is {answer['state']}")


def _reload_settings(options: argparse.Namespace) -> None:
    answer = client_of(options).request("POST", "/listeners/reload")
    if options.json:
        return print_json(answer)
    for entry in answer["listeners"]:
        parts = [f"changed {', '.join(entry['changed'])}"] if entry["changed"] else []
        if entry["restart"]:
            parts.append(f"waits for a restart: {', '.join(entry['restart'])}")
        parts += [entry["note"]] if entry["note"] else []
        print(printable(f"{entry['id']}: {'; '.join(parts)}"))
    if not answer["listeners"]:
        print("nothing differs from the configuration")


def _reload(options: argparse.Namespace) -> None:
    answer = client_of(options).request("POST", "/listeners/certificates/reload")
    names = ", ".join(answer["reloaded"]) or "no listener has any"
    done(options, answer, f"certificates read again: {names}")
