"""`mqttd-ctl alarms, slow, audit`: what is wrong, who is slow, who has changed what.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from mqttd.admin.ctl.client import CtlError, client_of, of_node
from mqttd.admin.ctl.printing import (
    bytes_text,
    done,
    duration_text,
    print_json,
    print_table,
    time_text,
)

__all__ = ["add_commands"]

#: What an entry of the audit may be about, in what was changed.
_NAMES: Final = ("username", "name", "client_id", "value", "filter", "topic")


def add_commands(add: Callable[..., Any], commands: Any) -> None:
    """Add them, with `add` of `mqttd.admin.ctl.main`."""
    alarms = of_node(add(commands, "alarms", _alarms, "List the alarms that are raised."))
    alarms.add_argument("--past", action="store_true", help="the last ones that were, too")
    alarms.add_argument(
        "--clear", metavar="NAME", help="take one back; it is raised again if its cause stays"
    )
    of_node(add(commands, "slow", _slow, "List the clients that take less than is sent to them."))
    audit = add(commands, "audit", _audit, "Who has changed what since the start, newest first.")
    audit.add_argument("--limit", metavar="N", type=int, default=20, help="at most so many (20)")


def _alarms(options: argparse.Namespace) -> None:
    client = client_of(options)
    if options.clear is not None:
        answer = client.request("DELETE", f"/alarms/{quote(options.clear, safe='')}")
        return done(options, answer, f"alarm {options.clear} was taken back")
    answer = client.get("/alarms")
    if options.json:
        return print_json(answer)
    rows = answer["alarms"] + (answer["past"] if options.past else [])
    for row in rows:
        for name in ("raised_at", "cleared_at"):
            if row[name]:
                row[name] = time_text(row[name])
    print_table(rows, ["name", "raised_at", *(["cleared_at"] if options.past else []), "text"])


def _slow(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/slow")
    if options.json:
        return print_json(answer)
    for row in answer["slow"]:
        row["for"] = duration_text(round(row["seconds"]))
        row["unsent"] = bytes_text(row["unsent_bytes"])
    print_table(answer["slow"], ["client_id", "username", "for", "unsent", "queued"])
    if answer["count"] > len(answer["slow"]):
        print(f"and {answer['count'] - len(answer['slow'])} more")


def _about(row: dict[str, Any]) -> str:
    """What an entry of the audit is about, and how often."""
    found = ""
    for told in (row["after"], row["before"]):
        if isinstance(told, dict):
            name = next((told[key] for key in _NAMES if told.get(key)), "")
            found = found or (f" {name}" if name else "")
    return f"{found}, {row['times']} times" if row["times"] > 1 else found


def _audit(options: argparse.Namespace) -> None:
    if not 1 <= options.limit <= 1000:
        raise CtlError(f"--limit {options.limit}: expected 1 to 1000")
    answer = client_of(options).get("/audit", limit=options.limit)
    if options.json:
        return print_json(answer)
    for row in answer["audit"]:
        row["at"] = time_text(row["at"])
        row["change"] = f"{row['method']} {row['path'].removeprefix('/api/v1')}"
        row["what"] += _about(row)
    print_table(answer["audit"], ["at", "who", "role", "peer", "change", "what"])
