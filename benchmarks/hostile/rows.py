"""The table: which attacks there are, what they need of the broker, and how they may vary.

    Row("topics", peer=True, shapes={"size": (100, 65_000), "levels": (1, 100)})

A row is the attack of the module of its name, with `arguments`. `peer`: a broker without such
limits has the like, and is measured beside ours. `needs` is what the broker has to be started with:
"http" are attacks on another door than that of the clients. `shapes` are other arguments that
`benchmarks.hostile.mixed` draws from; a row without any is not in its mixture.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from benchmarks.hostile.attack import Attack

__all__ = ["ROWS", "Needs", "Row"]

Needs = Literal["", "tls", "users", "unread log", "proxy", "http"]


@dataclass(frozen=True)
class Row:
    """See the module."""

    name: str
    module: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    needs: Needs = ""
    peer: bool = False
    shapes: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """What the attack does, in a line."""
        return str(self._module().__doc__).partition("\n")[0]

    def open(self, port: int, **other: Any) -> Attack:
        """Begin it."""
        attack: Attack = self._module().open_attack(port, **{**self.arguments, **other})
        return attack

    def _module(self) -> Any:
        return importlib.import_module(f"benchmarks.hostile.{self.module or self.name}")


ROWS: Final[Mapping[str, Row]] = {
    row.name: row
    for row in (
        Row(
            "many_filters",
            peer=True,
            shapes={"count": (10, 10_000, 100_000), "name": (b"#", b"+/+", b"a/#", b"honest")},
        ),
        Row("replays", peer=True, shapes={"count": (10, 1_000, 100_000), "size": (10, 900_000)}),
        Row(
            "retained_properties",
            peer=True,
            shapes={"size": (10, 10_000, 900_000), "each": (7, 12, 1000)},
        ),
        Row(
            "retained_levels",
            "retained_topics",
            peer=True,
            shapes={"levels": (1, 30, 126), "size": (1, 100)},
        ),  # fmt: skip
        Row(
            "retained_long",
            "retained_topics",
            {"levels": 1, "size": 65_000},
            peer=True,
            shapes={"size": (1_000, 65_000)},
        ),  # fmt: skip
        Row("aliases", shapes={"size": (10, 65_000), "each": (10, 1_000, 10_000)}),
        Row("topics", peer=True, shapes={"size": (100, 65_000), "levels": (1, 100)}),
        Row("deep_filters", peer=True, shapes={"levels": (3, 128), "each": (500, 10_000)}),
        Row("offline_queue", peer=True, shapes={"size": (10, 80_000), "each": (7, 12, 1000)}),
        Row("endless_sessions", shapes={"will": (1, 60_000), "held": (1, 500)}),
        Row("unfinished", shapes={"size": (100, 1_000_000), "count": (10, 1_000)}),
        Row("wrong_passwords", arguments={"rate": 50.0}, needs="users"),
        Row("client_hellos", needs="tls"),
        Row("three_bytes", "client_hellos", {"rate": 400.0, "whole": False}, needs="tls"),
        Row(
            "groups", shapes={"sessions": (2, 20), "each": (1_000, 5_000), "size": (10, 1_000_000)}
        ),  # fmt: skip
        Row("tangled_filters", shapes={"sessions": (2, 10), "levels": (3, 8, 12)}),
        Row("new_topics", shapes={"count": (1_000, 150_000), "filters": (1, 100)}),
        Row("ends_at_once", shapes={"clients": (2, 10), "each": (1_000, 5_000)}),
        Row("taken_ids", shapes={"size": (1, 20, 5_000)}),
        Row("endless_connects", shapes={"count": (100, 1_000)}),
        Row("silence", shapes={"count": (100, 1_000), "said": (b"\x10", b"\x10\xff\x01\0\4MQTT")}),
        Row("slow_readers", shapes={"clients": (1, 50, 1_000), "size": (10, 100_000, 900_000)}),
        Row("unreleased", shapes={"each": (100, 60_000), "size": (10, 10_000)}),
        Row("unsubscribes", peer=True, shapes={"count": (10, 9_000), "there": (False, True)}),
        Row("identifiers", shapes={"sessions": (1, 10), "levels": (3, 8, 12)}),
        Row("alias_churn", shapes={"size": (100, 65_000), "aliases": (1, 10)}),
        Row("slow_member", peer=True, shapes={"members": (2, 10), "size": (10, 100_000)}),
        Row("wills_at_once", shapes={"crowd": (20, 500), "size": (10, 60_000)}),
        Row("takeovers", shapes={"names": (1, 3), "filters": (1, 1_000)}),
        Row("pings", peer=True, shapes={"clients": (1, 20)}),
        Row("expiring", shapes={"size": (10, 10_000), "retain": (False, True)}),
        Row("long_names", needs="unread log", shapes={"size": (10, 12_000)}),
        Row("unknown_ids", peer=True, shapes={"clients": (1, 20), "reads": (False, True)}),
        Row("resubscribes", peer=True, shapes={"kept": (10, 5_000), "reads": (False, True)}),
        Row("away_members", peer=True, shapes={"members": (100, 5_000), "groups": (1, 20)}),
        Row("retained_churn", shapes={"topics": (10, 1_000), "size": (10, 10_000)}),
        Row("delayed_wills", shapes={"names": (5, 500), "size": (10, 50_000)}),
        Row("backwards", shapes={"qos": (1, 2), "each": (100, 5_000)}),
        Row("short_sessions", shapes={"filters": (1, 500), "crowd": (10, 1_000)}),
        Row("group_churn", shapes={"members": (5, 200), "groups": (1, 200)}),
        Row("dup_qos2", shapes={"ids": (1, 30, 500), "size": (10, 10_000)}),
        Row("tiny_readers", shapes={"clients": (10, 200), "qos": (0, 1)}),
        *(
            Row(f"proxy_{kind}", "proxy_headers", {"kind": kind}, needs="proxy")
            for kind in ("half", "endless", "forged", "slow")
        ),
        *(
            Row(f"http_{kind}", "http_doors", {"kind": kind}, needs="http")
            for kind in ("hellos", "three", "shaken", "heads", "bodies", "requests")
        ),
    )
}
