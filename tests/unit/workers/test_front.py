"""The HTTP interface over several workers: who answers what, and answers put together.

Workers here are functions; `tests/integration/test_workers_admin.py` has real ones.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from mqttd.admin import lists
from mqttd.admin.api import Api
from mqttd.admin.http.openapi import document
from mqttd.admin.http.parts import Desk
from mqttd.readmodel.pages import read_cursor
from mqttd.workers.answers import ANSWERS
from mqttd.workers.feeds import EventLines
from mqttd.workers.front import Front
from mqttd.workers.rules import RULES, rule_of


def front() -> Front:
    service: Any = SimpleNamespace(
        reactor=Clock(), workers=[], count=2, applied=list, warned=list, drained=list
    )
    return Front(service, Desk())


def test_every_rule_is_of_a_route_and_has_somebody_who_answers() -> None:
    routes = front().routes
    known = {f"{route.method} {'/' if route.root else ''}{route.path}" for route in routes}
    assert set(RULES) <= known


def test_every_route_has_a_rule() -> None:
    assert [route.full_path for route in front().routes if rule_of(route) is None] == []


def test_workers_have_the_routes_of_one_process() -> None:
    assert {route.full_path for route in Api(Desk()).routes} < {
        route.full_path for route in front().routes
    }


def test_the_document_has_what_is_of_workers() -> None:
    """`tests/integration/test_workers_admin.py` compares all answers with it."""
    told = document(front().routes)
    assert set(ANSWERS) <= set(RULES)
    for key, kind in ANSWERS.items():
        method, _, path = key.partition(" ")
        answer = told["paths"][f"/api/v1{path}"][method.lower()]["responses"]["200"]
        assert answer["content"]["application/json"]["schema"]["$ref"].endswith(kind.__name__)
    assert "missing" in told["components"]["schemas"]["WorkerClients"]["required"]


# -- lists -----------------------------------------------------------------------------------------


def client(name: str, queued: int = 0) -> dict[str, Any]:
    return {"client_id": name, "mqueue": queued, "username": None}


def page_of(
    clients: list[dict[str, Any]], sort: str, limit: int, cursor: str | None
) -> dict[str, Any]:
    """What one worker answers."""
    name, backwards = sort.removeprefix("-"), sort.startswith("-")

    def place(one: dict[str, Any]) -> tuple[Any, str]:
        return ("" if name == "client_id" else one[name] or 0), one["client_id"]

    after = read_cursor(cursor, str if name == "client_id" else int)
    found = sorted(clients, key=place, reverse=backwards)
    if after is not None:
        found = [one for one in found if (place(one) < after if backwards else place(one) > after)]
    places = {one["client_id"]: place(one)[0] for one in found[:limit]}
    more = "more" if len(found) > limit else None
    return {"clients": found[:limit], "cursor": more, "places": places}


@given(
    st.lists(
        st.tuples(st.text("abc", min_size=1), st.integers(0, 3)), unique_by=lambda one: one[0]
    ),
    st.sampled_from(["client_id", "-client_id", "mqueue", "-mqueue"]),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_pages_of_several_workers_are_pages_of_one_list(
    given_: list[tuple[str, int]], sort: str, limit: int, count: int
) -> None:
    everybody = [client(name, queued) for name, queued in given_]
    workers = {number + 1: everybody[number::count] for number in range(count)}
    seen: list[str] = []
    cursor: str | None = None
    while True:
        told = {n: page_of(theirs, sort, limit, cursor) for n, theirs in workers.items()}
        page = lists.clients_of(told, sort, limit)
        assert len(page["clients"]) <= limit
        assert all(
            one["client_id"] in {each["client_id"] for each in workers[one["worker"]]}
            for one in page["clients"]
        )
        seen += [one["client_id"] for one in page["clients"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    whole = page_of(everybody, sort, 1000, None)["clients"]
    assert seen == [one["client_id"] for one in whole]


def test_a_page_of_subscriptions_has_those_of_whole_clients() -> None:
    def one(name: str, topic_filter: str) -> dict[str, Any]:
        return {"client_id": name, "topic_filter": topic_filter}

    told = {
        1: {"subscriptions": [one("a", "x"), one("c", "x"), one("c", "y")], "cursor": None},
        2: {"subscriptions": [one("b", "x"), one("d", "x")], "cursor": None},
    }
    page = lists.subscriptions_of(told, 3)
    found = [(each["client_id"], each["worker"]) for each in page["subscriptions"]]
    assert found == [("a", 1), ("b", 2), ("c", 1), ("c", 1)]
    assert read_cursor(page["cursor"]) == ("", "c")


def test_filters_have_the_subscribers_of_all() -> None:
    told = {
        1: {"topics": [{"topic_filter": "b", "subscribers": 2}], "cursor": None},
        2: {"topics": [{"topic_filter": "a", "subscribers": 1},
                       {"topic_filter": "b", "subscribers": 3}], "cursor": None},
    }  # fmt: skip
    assert lists.filters_of(told, 5)["topics"] == [
        {"topic_filter": "a", "subscribers": 1},
        {"topic_filter": "b", "subscribers": 5},
    ]
    assert read_cursor(lists.filters_of(told, 1)["cursor"]) == ("", "a")


def test_counts_of_topics_add_up() -> None:
    def one(topic: str, messages: int, seconds: float) -> dict[str, Any]:
        return {"topic": topic, "messages": messages, "bytes": 10 * messages,
                "message_rate": messages / 2, "byte_rate": 5.0 * messages,
                "seconds": seconds}  # fmt: skip

    told = {1: {"topics": [one("a", 4, 2.0)], "others": 1},
            2: {"topics": [one("a", 6, 1.0), one("b", 30, 2.0)], "others": 2}}  # fmt: skip
    assert lists.counts_of(told)["topics"] == [
        {**one("a", 10, 2.0), "message_rate": 5.0},
        one("b", 30, 2.0),
    ]
    assert lists.counts_of(told, 1) == {"topics": [one("b", 30, 2.0)], "others": 3}


def test_figures_of_one_name_are_added_wherever_they_stand() -> None:
    one = {"rules": [{"rule": "a", "hits": 2}, {"rule": "b", "hits": 0}]}
    other = {"rules": [{"rule": "a", "hits": 5}, {"rule": "b", "hits": 1}]}
    found = lists.joined([one, other], frozenset(("hits",)))
    assert found == {"rules": [{"rule": "a", "hits": 7}, {"rule": "b", "hits": 1}]}


# -- events ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_come_in_any_pieces(size: int) -> None:
    found: list[Any] = []
    lines = EventLines(lambda kind, told: found.append((kind, told)))
    data = b"retry: 2000\n\n: still here\n\n"
    data += b'id: 7\nevent: clients\ndata: {"event":"connected"}\n\n'
    data += b"id: 8\nevent: counters\ndata: " + json.dumps({"at": 1}).encode() + b"\n\n"
    for at in range(0, len(data), size):
        lines.take(data[at : at + size])
    assert found == [("clients", {"event": "connected"}), ("counters", {"at": 1})]
