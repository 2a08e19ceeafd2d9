"""What mqttd-ctl prints: tables for people, JSON for programs.

Part of `mqttd.admin.ctl.main`, whose promises hold here too: text that came from clients is printed
with its control characters escaped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mqttd.admin.ctl.client import CtlError
from mqttd.printable import printable

__all__ = [
    "bytes_text",
    "counted",
    "done",
    "duration_text",
    "lasting",
    "print_json",
    "print_pairs",
    "print_table",
    "seconds_of",
    "time_text",
    "untold",
    "warn",
]

Json = dict[str, Any]

#: What is told in seconds.
_LASTING: Final = {"keep_alive", "session_age", "away", "session_expiry_interval", "idle",
                   "expires_in", "uptime"}  # fmt: skip

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def done(options: argparse.Namespace, answer: Json, text: str) -> None:
    """Say that something was done."""
    if options.json:
        print_json(answer)
    else:
        print(printable(text))


def untold(answer: Json) -> str:
    """What is to be said of a change that the other nodes of a cluster have not heard of."""
    why = answer.get("untold")
    return f"; other nodes have not heard of it, and will when etcd is back: {why}" if why else ""


def counted(number: int, thing: str) -> str:
    """A number of things: 1 message, 2 messages."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def seconds_of(option: str, text: str) -> int:
    """The seconds of a time with its unit, as the configuration has it: 30s, 10m, 2h, 1d, 1w.

    Raises CtlError that names the option.
    """
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isascii() or not number.isdigit() or not int(number):
        is_bare = text.isascii() and text.isdigit()
        hint = f"; a time has its unit: {text}s, {text}m or {text}h?" if is_bare else ""
        raise CtlError(f"{option} {text}: expected a time such as 30s, 10m, 2h, 1d or 1w{hint}")
    return int(number) * _UNITS[unit]


def time_text(seconds: float, exact: bool = False) -> str:
    """Seconds since the epoch as a date and time (ISO 8601, UTC), or `exact` to the microsecond."""
    whole, micros = divmod(round(seconds * 1e6), 1_000_000)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{text}.{micros:06d}Z" if exact else f"{text}Z"


def duration_text(seconds: int) -> str:
    """A time as people read it, in its two largest units: 1 h 5 m."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    shown = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(shown[:2]) or "0 s"


def lasting(row: Json) -> Json:
    """A row with its numbers of seconds as people read them."""
    return {
        name: duration_text(value) if name in _LASTING and isinstance(value, int) else value
        for name, value in row.items()
    }


def bytes_text(size: int) -> str:
    """A number of bytes as people read it: 1.5 MiB."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def print_json(value: object) -> None:
    """For ``--json``."""
    print(json.dumps(value, indent=2))


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, a line each."""
    rows = [(name, _text(value)) for name, value in pairs]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def print_table(rows: Sequence[Json], columns: Sequence[str]) -> None:
    """Columns as wide as what is in them; numbers to the right.

    Rows that say which worker or node they are of, where there are several, have a column for it.
    """
    for name in ("worker", "node"):
        if any(name in row for row in rows) and name not in columns:
            columns = [*columns, name]
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    heads = [column.replace("_", " ") for column in columns]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(columns))]
    numeric = [
        bool(rows) and all(type(row.get(column)) in (int, float) for row in rows)
        for column in columns
    ]
    for line in [heads, *cells]:
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(parts).rstrip())


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def warn(message: Warning | str, *rest: object, **more: object) -> None:
    """What `warnings.showwarning` is to be: a line, without Python's place in our sources."""
    print(f"mqttd-ctl: {message}", file=sys.stderr)
