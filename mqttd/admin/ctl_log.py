"""`mqttd-ctl log ...`: levels of the log while it is written, and what became of its lines.

Part of `mqttd.admin.ctl`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from mqttd.admin.ctl_client import CtlError, client_of
from mqttd.admin.ctl_print import done, print_json, print_pairs

__all__ = ["add_commands"]

_LEVELS: Final = ("debug", "info", "warn", "error", "critical")
_DEFAULT: Final = "default"


def add_commands(add: Callable[..., Any], log: Any) -> None:
    """Add the commands to the group `log`, with `add` of `mqttd.admin.ctl`."""
    add(log, "show", _show, "Where the log goes, its levels, and what was dropped.")
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


def _level(options: argparse.Namespace) -> None:
    *modules, level = options.words
    if len(modules) > 1 or level not in (*_LEVELS, _DEFAULT):
        raise CtlError(f"expected [MODULE] LEVEL, one of {', '.join(_LEVELS)} or {_DEFAULT}")
    module = modules[0] if modules else ""
    body = {"module": module, "level": None if level == _DEFAULT else level}
    answer = client_of(options).request("POST", "/log/level", body)
    text = f"{module or 'all modules'}: {level}"
    if not answer["known"] and level != _DEFAULT:
        text += "; no line of a module with this name was ever written: is it spelled right?"
    done(options, answer, text)
