"""What other programs ask before anything else: is it alive, is it ready, and its figures as text.

    GET    /health/live      200 while the event loop answers
    GET    /health/ready     200 when clients are let in, 503 before, and while new ones are refused
    GET    /metrics          every counter and gauge, in the text format of Prometheus

Over TCP `/health/...` is answered without a token, and says no more; `/metrics` needs one.
The names are those of `mqttd-ctl metrics` behind `mqttd_`, counters end in `_total`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["OPEN_PATHS", "exposition"]

#: What is told to anybody who can reach the port.
OPEN_PATHS: Final = (b"/health/live", b"/health/ready")

_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")


def exposition(counters: Mapping[str, float], gauges: Mapping[str, float]) -> str:
    """Counters and gauges in the text format that Prometheus reads (version 0.0.4).

    >>> print(exposition({"bytes_sent": 3}, {"clients": 1.5}), end="")
    # TYPE mqttd_bytes_sent_total counter
    mqttd_bytes_sent_total 3
    # TYPE mqttd_clients gauge
    mqttd_clients 1.5
    """
    lines: list[str] = []
    for kind, values, suffix in (("counter", counters, "_total"), ("gauge", gauges, "")):
        for name, value in sorted(values.items()):
            shown = "mqttd_" + _NO_NAME.sub("_", name.removesuffix(suffix)) + suffix
            lines += [f"# TYPE {shown} {kind}", f"{shown} {value:.17g}"]
    return "\n".join(lines) + "\n"
