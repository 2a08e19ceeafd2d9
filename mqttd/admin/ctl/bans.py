"""`mqttd-ctl bans ...`: keep clients out, by client identifier, user name or address.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

from mqttd.admin.ctl.client import client_of
from mqttd.admin.ctl.printing import (
    done,
    print_json,
    print_table,
    seconds_of,
    time_text,
    untold,
)

__all__ = ["add_commands"]

_VALUE: Final = (
    "of a peerhost, an address or a network; of a client, as listed: its id and the user who has it"
)
_KINDS: Final = ("client_id", "username", "peerhost", "client")


def add_commands(add: Callable[..., Any], bans: Any) -> None:
    """Add the commands to the group `bans`, with `add` of `mqttd.admin.ctl.main`."""
    add(bans, "list", _list, "List the bans, the oldest first.")
    command = add(bans, "add", _add, "Ban somebody, and end the connections this is about.")
    _what(command)
    command.add_argument(
        "--for",
        dest="duration",
        metavar="TIME",
        help="how long, such as 30s, 10m, 2h or 1d (default: until lifted)",
    )
    command.add_argument("--reason", metavar="TEXT", default="", help="for the log and the list")
    _what(add(bans, "del", _delete, "Lift a ban."))


def _what(command: Any) -> None:
    command.add_argument("kind", metavar="KIND", choices=_KINDS, help=", ".join(_KINDS))
    command.add_argument("value", metavar="VALUE", help=_VALUE)


def _list(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/bans")
    if options.json:
        return print_json(answer)
    for ban in answer["bans"]:
        for key in ("since", "until"):
            ban[key] = _when(ban[key])
    print_table(answer["bans"], ["kind", "value", "since", "until", "reason"])


def _add(options: argparse.Namespace) -> None:
    body = {"kind": options.kind, "value": options.value, "reason": options.reason}
    if options.duration is not None:
        body["seconds"] = seconds_of("--for", options.duration)
    answer = client_of(options).request("POST", "/bans", body)
    ban, ended = answer["ban"], answer["ended"]
    until = f"until {_when(ban['until'])}" if ban["until"] else "until this is lifted"
    plural = "" if ended == 1 else "s"
    text = f"banned {ban['kind']} {ban['value']} {until}, ended {ended} connection{plural}"
    done(options, answer, text + _but(answer))


def _delete(options: argparse.Namespace) -> None:
    query = urlencode({"kind": options.kind, "value": options.value})
    answer = client_of(options).request("DELETE", f"/bans?{query}")
    text = f"lifted the ban of {options.kind} {options.value}"
    done(options, answer, text + _but(answer))


def _but(answer: dict[str, Any]) -> str:
    """What is to be said of one that is not stored yet, or not everywhere."""
    unkept = answer.get("unkept")
    text = f"; this is not stored yet, and lost if the broker is killed: {unkept}" if unkept else ""
    return text + untold(answer)


def _when(seconds: float | None) -> str:
    if not seconds:
        return ""
    return time_text(seconds)
