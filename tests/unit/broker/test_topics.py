"""Routes that are kept are those that would be built: whatever changes, however few fit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttd.broker.routing.router import Router, is_wildcard
from mqttd.session.ground.settings import Settings
from mqttd.session.routes.route import HOOKED, SPREAD, TOLD, Route
from mqttd.session.session import Session
from tests.support.memory import MemoryBroker

WORDS = ["a", "b", "c", "", "$x"]
levels = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6)
topics = levels.map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    words = draw(st.lists(st.sampled_from([*WORDS, "+", "+"]), min_size=1, max_size=6))
    if draw(st.booleans()):
        words.append("#")
    return "/".join(words) or "+"


changes = st.tuples(st.sampled_from(["+", "-"]), st.integers(0, 3), filters())
uses = st.tuples(st.just("use"), st.integers(0, 0), topics)
gears = st.tuples(st.just("gear"), st.integers(0, 2), filters())


def shown(route: Route) -> Any:
    named = route.identifiers or {}
    return (
        {
            session.client_id: (options, named.get(session))
            for session, options in zip(route.sessions, route.options, strict=True)
        },
        len(route.groups or ()),
        route.gear,
    )


def fresh(router: Router, topic: str) -> Route:
    """Built of the subscriptions alone: nothing that was found before helps."""
    route = Route(topic)
    known, router._matches = router._matches, {}
    router.build(route)
    router._matches = known
    return route


def met(router: Router, topic: str) -> Route:
    """As a publisher asks for a route."""
    key = len(topic.encode()).to_bytes(2, "big") + topic.encode()
    return router.at(key) if key in router.table else router.meet(key, topic)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    steps=st.lists(st.one_of(changes, changes, uses, uses, uses, gears), max_size=120),
    entries=st.sampled_from([1, 3, 1000]),
    share=st.booleans(),
    selective=st.sampled_from([0, 1000]),
)
def test_a_route_that_is_kept_is_the_one_that_would_be_built(
    steps: list[tuple[str, int, str]], entries: int, share: bool, selective: int
) -> None:
    configured = Settings()
    configured.topic_cache_selective = selective
    configured.topic_cache_entries = entries
    node = MemoryBroker(configured)
    router = node.broker.router
    members = [Session(node.broker, f"c{number}", None) for number in range(4)]
    for what, number, text in steps:
        if what == "use":
            route = met(router, text)
            assert shown(route) == shown(fresh(router, text)), text
            assert route.topic == text and route.right == -2
            assert len(router.table) <= entries
        elif what == "gear":
            if router.gears.ask(f"{number}", HOOKED if number else TOLD, [text]):
                router.all_changed()
        elif what == "+":
            if share and number == 3:
                router.subscribe_shared(members[3], f"$share/g/{text}", "g", text, 1)
            else:
                router.subscribe(members[number], text, number % 3, number)
        elif share and number == 3:
            router.unsubscribe_shared(members[3], f"$share/g/{text}")
        else:
            router.unsubscribe(members[number], text)
    weights = sum(route.weight for route in router.table.values())
    assert router.bytes == weights
    router.sweep(node.now)
    now = node.now
    for _ in range(400):
        now += 1000
        router.sweep(now)
    assert not router.table and router.bytes == 0


@pytest.mark.parametrize("topic_filter", ["a/+", "+/b", "#", "a/#", "+/+", "+/+/+/+/x"])
def test_a_change_is_seen_whatever_came_between(topic_filter: str) -> None:
    """Also when so many changes came that they are not remembered one by one."""
    node = MemoryBroker()
    router = node.broker.router
    topic = "a/b/c/d/x" if topic_filter.endswith("x") else "a/b"
    session = Session(node.broker, "c", None)
    other = Session(node.broker, "d", None)
    assert router.of(topic).empty()
    router.subscribe(session, topic_filter, 1)
    for number in range(500):
        router.subscribe(other, f"z/{number}/+", 0)
    assert router.of(topic).sessions == [session]
    router.unsubscribe(session, topic_filter)
    for number in range(500):
        router.unsubscribe(other, f"z/{number}/+")
    assert router.of(topic).empty()
    assert router.subscriptions == 0


def test_a_change_elsewhere_builds_nothing_anew() -> None:
    node = MemoryBroker()
    router = node.broker.router
    session = Session(node.broker, "c", None)
    router.of("a/b/c")
    before = node.broker.metrics.routes_built
    for number in range(1000):
        router.subscribe(session, f"q{number}/r{number}/+", 0)
        router.of("a/b/c")
    assert node.broker.metrics.routes_built - before <= 5  # marks are shared by hash
    assert is_wildcard("q/+") and not router.of("a/b/c").gear & SPREAD


@pytest.mark.parametrize("topic_filter", ["a/b", "a/+"])
def test_the_same_subscription_once_more_builds_nothing_anew(topic_filter: str) -> None:
    """One with another QoS or identifier does."""
    node = MemoryBroker()
    router = node.broker.router
    session = Session(node.broker, "c", None)
    for options, identifier in [(0, 0), (1, 0), (1, 7), (1, 8), (1, 0)]:
        assert router.subscribe(session, topic_filter, options, identifier) == (options == 0)
        named = [identifier] if identifier else None
        assert shown(router.of("a/b"))[0] == {"c": (options, named)}
        built = node.broker.metrics.routes_built
        assert not router.subscribe(session, topic_filter, options, identifier)
        assert shown(router.of("a/b"))[0] == {"c": (options, named)}
        assert node.broker.metrics.routes_built == built


def test_a_topic_that_does_not_come_again_is_not_kept() -> None:
    configured = Settings()
    configured.topic_cache_selective = 100
    node = MemoryBroker(configured)
    session = Session(node.broker, "c", None)
    router = node.broker.router
    router.subscribe(session, "t/#", 1)
    for number in range(100):
        assert met(router, f"t/{number}").place == number
    for number in range(100, 200):
        assert met(router, f"t/{number}").sessions == [session]
    assert len(router.table) == 100 and router.bytes == sum(r.weight for r in router._ring)
    for number in range(100, 200):
        assert met(router, f"t/{number}").sessions == [session]
    # Two topics may have left their marks in the same place.
    assert len(router.table) == 200
    router.drop_cache()
    assert not router.table and not router.bytes


def test_a_topic_whose_messages_need_more_is_kept_at_once() -> None:
    configured = Settings()
    configured.topic_cache_selective = 0
    node = MemoryBroker(configured)
    router = node.broker.router
    router.subscribe_shared(Session(node.broker, "c", None), "$share/g/t/#", "g", "t/#", 1)
    assert met(router, "t/1").gear & SPREAD and "t/1" in {r.topic for r in router.table.values()}
    assert not met(router, "u/1").gear and len(router.table) == 1


def test_a_walk_that_finds_nothing_is_work_too() -> None:
    """Filters of `+` and a word at each of twelve levels: a topic that fits all but their ends."""
    node = MemoryBroker()
    router = node.broker.router
    session = Session(node.broker, "c", None)
    for words in itertools.product("+a", repeat=12):
        router.subscribe(session, "/".join(words) + "/z", 0)
    before = router.work
    assert router.of("a/" * 12 + "x").empty()
    assert router.trie.visited > 4096 and router.work - before > 4096 >> 6
