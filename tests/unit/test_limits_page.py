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


#: Limits of what all workers have together, or of one: they are no worker's own.
SHARED = {
    "jetstream.replicas", "log.keep", "log.rotate", "store.min_free", "trace.sample",
    "auth.password.lanes", "auth.password.memory", "auth.password.passes",
    "listener.tcp.NAME.flapping_disconnects",
    "retained.max_messages", "retained.max_bytes", "retained.max_per_user",
    "retained.max_bytes_per_user",
}  # fmt: skip
#: Of a user, or of all sessions, though their scope is a session.
WIDER = {"mqueue.in_memory_total", "memory.per_user"}


def test_the_page_about_workers_names_what_each_counts_by_itself() -> None:
    text = PAGE.parents[1].joinpath("design/workers.md").read_text("utf-8")
    section = text.partition("### Limits that each worker counts by itself")[2].partition("\n## ")[
        0
    ]
    table = "".join(line for line in section.splitlines() if line.startswith("|"))
    named = set(re.findall(r"`([a-z_.]+)`", table))
    own = {
        path
        for path, option in OPTIONS.items()
        if option.kind in ("count", "size")
        and (option.scope in ("broker", "listener") or path in WIDER)
        and path.split(".")[1] not in KINDS
    } - SHARED
    names = {option.rpartition(".")[2] if "NAME" in option else option for option in own}
    assert named == names - {"flapping_disconnects"}


def test_every_limit_is_there() -> None:
    limits = {path for path, option in OPTIONS.items() if is_limit(option)}
    assert limits - NONE - set(rows()) == set()


def test_the_defaults_are_those_of_the_schema() -> None:
    shown = rows()
    assert len(shown) > 50
    assert shown == {path: OPTIONS[path].write(OPTIONS[path].default) for path in shown}
