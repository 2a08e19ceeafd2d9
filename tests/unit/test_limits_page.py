"""The page of limits names every limit that a key sets, with the default that the schema has."""

from __future__ import annotations

import re
from pathlib import Path

from mqttd.config.options import OPTIONS, Option

PAGE = Path(__file__).parents[2] / "docs/reference/limits.md"
#: Times and sizes in tables of limits that bound nothing, and a key that is there by another name.
NONE = {
    "auth.failures.max_ban",
    "listener.tcp.NAME.max_packet_size",
    "output.gather",
    "output.low_watermark",
    "retained.expiry",
}
#: Every kind of listener has the limits of tcp; ssl has those of TLS.
KINDS = ("ws", "wss", "unix", "endpoint")


def is_limit(option: Option) -> bool:
    if option.kind not in ("count", "size", "duration"):
        return False
    parts = option.path.split(".")
    if parts[0] == "listener" and parts[1] in KINDS:
        return False
    if parts[0] == "listener" and parts[1] == "ssl" and f"listener.tcp.NAME.{parts[3]}" in OPTIONS:
        return False
    if parts[0] in ("memory", "retained", "mqueue", "output"):
        return True
    return bool(re.match(r"max_|per_|.*_per_|.*limit|.*_rate$|waiting", option.name))


def rows() -> dict[str, str]:
    found = re.findall(r"(?m)^\| `([a-zA-Z_.0-9]+)` \| `([^`]+)` \|", PAGE.read_text("utf-8"))
    assert len(found) == len(dict(found))
    return dict(found)


def test_every_limit_is_there() -> None:
    limits = {path for path, option in OPTIONS.items() if is_limit(option)}
    assert limits - NONE - set(rows()) == set()


def test_the_defaults_are_those_of_the_schema() -> None:
    shown = rows()
    assert len(shown) > 50
    assert shown == {path: OPTIONS[path].write(OPTIONS[path].default) for path in shown}
