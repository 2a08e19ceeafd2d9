"""`mqttd-ctl top`: what the broker does now, once a second, as a screen that is written again.

    up 2 h 5 m   processor 41 %   loop lag 3 ms   held for clients 61.0 MiB
    connections 19,004   sessions 20,000   subscriptions 20,000
    in          12,004 messages/s      1.4 MiB/s
    out         84,120 messages/s      9.9 MiB/s
    clients: 12 came, 9 went in a second
    dropped in a second: queue_full 12

Part of `mqttd.admin.ctl.main`, whose promises hold here too: it reads the figures, which costs the
broker the number of figures and not of clients.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from mqttd.admin.ctl.client import CtlError, client_of, of_node
from mqttd.admin.ctl.printing import bytes_text, duration_text

__all__ = ["add_command", "rates", "screen"]

Figures = dict[str, dict[str, float]]

#: Home, and away with what was written before.
_CLEAR: Final = "\x1b[H\x1b[J"
_DROPPED: Final = "dropped_"


def add_command(add: Callable[..., Any], commands: Any) -> None:
    """Add `top`, with `add` of `mqttd.admin.ctl.main`."""
    command = of_node(add(commands, "top", _top, "What the broker does now, again each second."))
    command.add_argument(
        "--every", metavar="SECONDS", type=float, default=1.0, help="how often (1)"
    )
    command.add_argument(
        "--count", metavar="N", type=int, default=0, help="end after so many (until Ctrl-C)"
    )


def _top(options: argparse.Namespace) -> None:
    if options.every < 0.1:
        raise CtlError(f"--every {options.every:g}: expected at least 0.1 seconds")
    client = client_of(options)
    shown = 0
    at, before = time.monotonic(), client.get("/metrics")
    try:
        while not options.count or shown < options.count:
            time.sleep(max(0.0, at + options.every - time.monotonic()))
            now, after = time.monotonic(), client.get("/metrics")
            told = rates(before, after, now - at)
            at, before = now, after
            shown += 1
            if options.json:
                print(json.dumps({"rates": told, "gauges": after["gauges"]}), flush=True)
            else:
                text = screen(after["gauges"], told)
                print((_CLEAR if sys.stdout.isatty() else "") + text, flush=True)
    except KeyboardInterrupt:
        return


def rates(before: Figures, after: Figures, seconds: float) -> dict[str, float]:
    """By how much each counter grew in a second; one that began anew begins at 0."""
    old, new = before["counters"], after["counters"]
    return {
        name: round(max(0.0, value - old.get(name, 0.0)) / seconds, 3)
        for name, value in new.items()
    }


def screen(gauges: dict[str, float], told: dict[str, float]) -> str:
    """What is shown of the gauges, and of `rates`."""
    lost = [
        f"{name.removeprefix(_DROPPED)} {rate:,.0f}"
        for name, rate in sorted(told.items(), key=lambda item: -item[1])
        if name.startswith(_DROPPED) and rate
    ]
    lines = [
        f"up {duration_text(int(gauges.get('uptime_seconds', 0)))}"
        f"   processor {100 * told.get('cpu_seconds', 0):.0f} %"
        f"   loop lag {gauges.get('loop_lag_ms', 0):.0f} ms"
        f"   held for clients {bytes_text(int(gauges.get('memory_used_bytes', 0)))}",
        "   ".join(
            f"{name} {gauges.get(name, 0):,.0f}"
            for name in ("connections", "sessions", "subscriptions", "topics", "alarms")
            if name in gauges
        ),
        f"in    {told.get('messages_received', 0):>12,.0f} messages/s"
        f" {_size(told, 'bytes_received'):>12}/s",
        f"out   {told.get('messages_sent', 0):>12,.0f} messages/s"
        f" {_size(told, 'bytes_sent'):>12}/s",
        f"clients: {told.get('connections_accepted', 0):,.0f} came,"
        f" {told.get('connections_closed', 0):,.0f} went in a second",
        f"dropped in a second: {', '.join(lost) or 'nothing'}",
    ]
    return "\n".join(lines)


def _size(told: dict[str, float], name: str) -> str:
    return bytes_text(int(told.get(name, 0)))
