"""Lists of several brokers as one: pages in one order, figures added up, a column for whose it is.

    worker 1: a c e --.
    worker 2: b d f ---+--> a b c d | cursor d --> each is asked for what stands behind d

They are the workers of one broker, or the nodes of a cluster: `column` says which. A cursor names
the place where a page has ended by sort key and name (`mqttd.readmodel.pages`), so that each can be
asked for what stands behind it, whoever the entry before it belonged to.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from mqttd.readmodel.pages import write_cursor
from mqttd.readmodel.why import Step, life_of

__all__ = [
    "LARGEST",
    "WORKER",
    "added",
    "clients_of",
    "counts_of",
    "filters_of",
    "joined",
    "life_in",
    "lives_of",
    "marked",
    "memory_of",
    "named",
    "routes_of",
    "subscriptions_of",
]

Json = dict[str, Any]
#: The answer of each, by the number of a worker or the name of a node.
Told = Mapping[Any, Json]
#: What entries say whose they are with, where they are a worker's.
WORKER: Final = "worker"

#: Who holds most, as many as one broker names; messages that are told of one question.
LARGEST: Final = 20


def named(told: Told, key: str, column: str = WORKER) -> list[Json]:
    """The entries of a list of each, with whose they are."""
    return [{**entry, column: name} for name, each in told.items() for entry in each[key]]


def marked(found: Json, column: str, name: object) -> Json:
    """An answer about one client, and the entries of its lists, with whose it is."""
    for entries in found.values():
        if isinstance(entries, list):
            for entry in entries:
                if isinstance(entry, dict):
                    entry[column] = name
    found.setdefault(column, name)
    return found


def clients_of(told: Told, sort: str, limit: int, column: str = WORKER) -> Json:
    """A page of clients in the order that was asked for."""

    def place(entry: Json) -> tuple[Any, str]:
        return told[entry[column]]["places"][entry["client_id"]], entry["client_id"]

    found = sorted(named(told, "clients", column), key=place, reverse=sort.startswith("-"))
    more = len(found) > limit or any(each["cursor"] is not None for each in told.values())
    page = found[:limit]
    return {"clients": page, "cursor": write_cursor(*place(page[-1])) if more and page else None}


def subscriptions_of(told: Told, limit: int, column: str = WORKER) -> Json:
    """A page of subscriptions by client id, those of whole clients."""
    found = sorted(named(told, "subscriptions", column), key=lambda entry: str(entry["client_id"]))
    end = len(found)
    if end > limit:
        end = limit
        while end < len(found) and found[end]["client_id"] == found[end - 1]["client_id"]:
            end += 1
    more = end < len(found) or any(each["cursor"] is not None for each in told.values())
    page = found[:end]
    cursor = write_cursor("", page[-1]["client_id"]) if more and page else None
    return {"subscriptions": page, "cursor": cursor}


def filters_of(told: Told, limit: int, column: str = WORKER) -> Json:
    """A page of filters, with their subscribers everywhere, and of nodes, where that is."""
    counts: dict[str, int] = {}
    places: dict[str, list[Any]] = {}
    for place, each in told.items():
        for one in each["topics"]:
            known = counts.get(one["topic_filter"], 0)
            counts[one["topic_filter"]] = known + one["subscribers"]
            places.setdefault(one["topic_filter"], []).append(place)
    names = sorted(counts)
    more = len(names) > limit or any(each["cursor"] is not None for each in told.values())
    page: list[Json] = [
        {"topic_filter": name, "subscribers": counts[name]} for name in names[:limit]
    ]
    if column != WORKER:
        for one in page:
            one[f"{column}s"] = places[one["topic_filter"]]
    return {"topics": page, "cursor": write_cursor("", names[:limit][-1]) if more else None}


def routes_of(told: Told, column: str = WORKER) -> Json:
    """The filters that match a topic, with the receivers of each."""
    found = named(told, "routes", column)
    found.sort(key=lambda one: (one["topic_filter"], one["group"] or "", one[column]))
    return {"topic": next(iter(told.values()))["topic"], "routes": found}


def memory_of(told: Told) -> Json:
    """What is held by all, and the sessions and users that hold most."""
    answers = list(told.values())
    total: Json = {**answers[0]}
    for name in ("budget", "used", "grown", "unexplained", "held", "unauthenticated"):
        total[name] = sum(each[name] for each in answers)
    total["step"] = next((each["step"] for each in answers if each["step"]), "")
    total["kinds"] = added([each["kinds"] for each in answers])
    sessions = named(told, "sessions")
    total["sessions"] = heapq.nlargest(LARGEST, sessions, key=lambda one: int(one["bytes"]))
    users: dict[str, Json] = {}
    for one in (one for each in answers for one in each["users"]):
        known = users.get(one["username"])
        users[one["username"]] = dict(one) if known is None else _user(known, one)
    total["users"] = heapq.nlargest(LARGEST, users.values(), key=lambda one: int(one["bytes"]))
    return total


def _user(one: Json, other: Json) -> Json:
    return {name: one[name] if name == "username" else one[name] + other[name] for name in one}


def counts_of(told: Told, limit: int | None = None) -> Json:
    """Topics with what came to them everywhere; of many those with most messages."""
    found: dict[str, Json] = {}
    others = 0
    for each in told.values():
        others += each.get("others", 0)
        for one in each["topics"]:
            known = found.setdefault(one["topic"], {**one, "seconds": 0.0})
            if known["seconds"]:
                for name in ("messages", "bytes"):
                    known[name] += one[name]
                for name in ("message_rate", "byte_rate"):
                    known[name] = round(known[name] + one[name], 1)
            known["seconds"] = max(known["seconds"], one["seconds"])
    if limit is None:
        return {"topics": [found[name] for name in sorted(found)]}
    most = heapq.nlargest(limit, found.values(), key=lambda one: int(one["messages"]))
    return {"topics": most, "others": others}


def lives_of(told: Told, limit: int, column: str = WORKER) -> Json:
    """What became of messages, the newest first; of each what all that were asked know."""
    found: dict[str, list[Json]] = {}
    for life in named(told, "messages", column):
        found.setdefault(life["id"], []).append(life)
    names = sorted(found, reverse=True)
    more = len(names) > limit or any(each["cursor"] is not None for each in told.values())
    page = names[:limit]
    return {
        "messages": [life_in(found[name], column) for name in page],
        "unrecorded": added([each["unrecorded"] for each in told.values()]),
        "cursor": page[-1] if more and page else None,
    }


def life_in(lives: Sequence[Json], column: str = WORKER) -> Json:
    """One message, of what each, named in `column`, knows of it."""
    steps = [{**step, column: life[column]} for life in lives for step in life["steps"]]
    steps.sort(key=lambda step: int(step["at"]))
    whole = msgspec.to_builtins(life_of(msgspec.convert(steps, list[Step])))
    return {**whole, "steps": steps}


def added(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of figures by name."""
    total: dict[str, Any] = {}
    for each in figures:
        for name, value in each.items():
            total[name] = total.get(name, 0) + value
    return total


def joined(answers: Sequence[Any], counted: frozenset[str]) -> Any:
    """Answers of the same shape as one: the first, with the figures called so added up."""
    first = answers[0]
    if isinstance(first, dict):
        return {
            name: sum(each.get(name, 0) for each in answers)
            if name in counted and isinstance(value, int | float)
            else joined([each[name] for each in answers if name in each], counted)
            for name, value in first.items()
        }
    if isinstance(first, list) and all(len(each) == len(first) for each in answers):
        return [joined([each[at] for each in answers], counted) for at in range(len(first))]
    return first
