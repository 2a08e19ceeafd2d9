"""Figures of several workers as those of one broker.

Counters and most gauges add up. Not what is one set that each worker holds (retained messages), nor
what is the same for all or the worst of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["add_up", "counted", "listeners_of", "status_of"]

Json = dict[str, Any]

#: Gauges of which the largest is the broker's.
_LARGEST: Final = frozenset(
    ("uptime_seconds", "retained_messages", "retained_bytes", "loop_lag_ms", "shared_groups")
)


def add_up(figures: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The figures of all workers, by name.

    >>> add_up([{"sessions": 2, "loop_lag_ms": 3}, {"sessions": 5, "loop_lag_ms": 1}])
    {'sessions': 7, 'loop_lag_ms': 3}
    """
    total: dict[str, Any] = {}
    for each in figures:
        for name, value in each.items():
            if name not in total:
                total[name] = value
            elif name in _LARGEST:
                total[name] = max(total[name], value)
            else:
                total[name] += value
    return total


def counted(counters: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The counters of all workers; what went from one to another is sent once."""
    total = add_up(counters)
    total["messages_sent"] -= total.get("messages_crossed", 0)
    return total


def listeners_of(lists: Sequence[Sequence[Json]]) -> list[Json]:
    """The listeners of all workers, each once, with all its connections and the most of them."""
    total: dict[str, Json] = {}
    for listeners in lists:
        for each in listeners:
            known = total.setdefault(str(each["id"]), {**each, **dict.fromkeys(_ADDED, 0)})
            for name in _ADDED:
                known[name] += each[name]
    return list(total.values())


#: Figures of a listener that add up.
_ADDED: Final = ("connections", "max_connections")


def status_of(told: Mapping[int, Json], workers: Sequence[Json], ours: Json) -> Json:
    """What `GET /status` answers for all: sums, and a line for each worker.

    told: what each worker says that answers; workers: each with its number, pid and state; ours:
    what is said of the supervisor's own process, and of all where none answers.
    """
    answers = list(told.values())
    lines = []
    for worker in workers:
        said = told.get(worker["worker"])
        figures = {name: None if said is None else said["stats"][name] for name in _SHOWN}
        lines.append({**worker, "uptime": None if said is None else said["uptime"], **figures})
    return {
        **ours,
        "uptime": max((each["uptime"] for each in answers), default=0),
        "listeners": listeners_of([each["listeners"] for each in answers]),
        "stats": add_up([each["stats"] for each in answers]),
        "workers": lines,
    }


_SHOWN: Final = ("connections", "sessions", "subscriptions")
