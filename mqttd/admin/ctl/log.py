"""`mqttd-ctl log ...`: levels of the log while it is written, and what became of its lines.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, Final

from mqttd.admin.ctl.client import CtlError, client_of
from mqttd.admin.ctl.printing import done, print_json, print_pairs
from mqttd.printable import printable

__all__ = ["add_commands"]

_LEVELS: Final = ("debug", "info", "warn", "error", "critical")
_DEFAULT: Final = "default"
#: Seconds between two looks at the lines to come.
_EVERY: Final = 1.0


def add_commands(add: Callable[..., Any], log: Any) -> None:
    """Add the commands to the group `log`, with `add` of `mqttd.admin.ctl.main`."""
    add(log, "show", _show, "Where the log goes, its levels, and what was dropped.")
    tail = add(log, "tail", _tail, "The last lines; with --follow also those to come.")
    tail.add_argument("-n", metavar="N", type=int, default=20, dest="lines", help="so many (20)")
    tail.add_argument("-f", "--follow", action="store_true", help="until Ctrl+C")
    level = add(log, "level", _level, "Give all modules, or one, another level until a restart.")
    level.add_argument(
        "words",
        nargs="+",
        metavar="[MODULE] LEVEL",
        help=f"such as mqttd.access debug; levels: {', '.join(_LEVELS)}, or {_DEFAULT} to take a"
        " module's own back",
    )


def _show(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/log")
    if options.json:
        return print_json(answer)
    print_pairs(
        [
            ("to", answer["to"]),
            ("level", answer["level"]),
            *[(f"level of {name}", level) for name, level in answer["modules"].items()],
            ("lines", answer["lines"]),
            ("dropped", answer["dropped"]),
            ("waiting", f"{answer['waiting_bytes']} bytes"),
            ("fault", answer["fault"] or "none"),
        ]
    )


def _tail(options: argparse.Namespace) -> None:
    client = client_of(options)
    answer = client.get("/log/lines", after=0)
    lines = answer["lines"][-options.lines :] if options.lines > 0 else []
    while True:
        for line in lines:
            print(printable(line), flush=True)
        if not options.follow:
            return
        time.sleep(_EVERY)
        answer = client.get("/log/lines", after=answer["last"])
        lines = answer["lines"]


def _level(options: argparse.Namespace) -> None:
    *modules, level = options.words
    if len(modules) > 1 or level not in (*_LEVELS, _DEFAULT):
        raise CtlError(f"expected [MODULE] LEVEL, one of {', '.join(_LEVELS)} or {_DEFAULT}")
    module = modules[0] if modules else ""
    body = {"module": module, "level": None if level == _DEFAULT else level}
    answer = client_of(options).request("POST", "/log/level", body)
    done(options, answer, f"{module or 'all modules'}: {level}")
