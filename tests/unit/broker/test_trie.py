"""The topic trie: what it finds, and what is left of filters that are gone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.broker.routing.trie import Trie

from .reference import filters, matches, topics


def found(trie: Trie, topic: str) -> list[str]:
    return sorted(level.topic_filter() for level in trie.match(topic))


def is_empty(trie: Trie) -> bool:
    return len(trie) == 0 and trie.root.is_needless()


@given(st.lists(filters, max_size=30), st.lists(topics, min_size=1, max_size=10))
def test_a_topic_finds_exactly_the_filters_that_match(stored: list[str], names: list[str]) -> None:
    """Each matching filter once, and no other."""
    trie = Trie()
    for topic_filter in stored:
        trie.insert(topic_filter)
    assert len(trie) == len(set(stored))
    for topic in names:
        assert found(trie, topic) == sorted({f for f in stored if matches(f, topic)})


@given(st.lists(st.tuples(st.booleans(), filters), max_size=60), topics)
def test_removed_filters_match_no_more_and_leave_nothing(
    steps: list[tuple[bool, str]], topic: str
) -> None:
    """Inserts and removals in any order leave what a set would hold."""
    trie = Trie()
    model: set[str] = set()
    for insert, topic_filter in steps:
        if insert:
            trie.insert(topic_filter)
            model.add(topic_filter)
        else:
            assert trie.remove(topic_filter) == (topic_filter in model)
            model.discard(topic_filter)
        assert len(trie) == len(model)
    assert found(trie, topic) == sorted(f for f in model if matches(f, topic))
    for topic_filter in model:
        assert trie.remove(topic_filter)
    assert is_empty(trie)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/monitor", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/monitor", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/+", "a/$b", True),
        ("a/#", "a/$b/c", True),
        ("ACCOUNTS", "Accounts", False),
        ("a//b", "a//b", True),
        ("a//b", "a/b", False),
    ],
)
def test_the_examples_of_the_specification(topic_filter: str, topic: str, expected: bool) -> None:
    """MQTT 5.0, 4.7.1 to 4.7.3."""
    trie = Trie()
    trie.insert(topic_filter)
    assert found(trie, topic) == ([topic_filter] if expected else [])


def test_the_subscribers_of_a_filter_are_kept_with_it() -> None:
    trie = Trie()
    level = trie.insert("a/+")
    assert level.subscribers == {}
    subscriber = object()
    level.put(subscriber, 1)
    assert trie.insert("a/+") is level
    assert trie.get("a/+") is level
    assert trie.match("a/b")[0].subscribers == {subscriber: 1}
    assert trie.get("a") is None
    assert trie.get("a/b") is None


def test_words_behind_the_first_that_is_new_are_there_once() -> None:
    trie = Trie()
    levels = [trie.insert(f"plant/{number}/state/+").parent for number in range(2)]
    assert levels[0] is not None and levels[1] is not None
    assert levels[0] is not levels[1] and levels[0].word is levels[1].word


SUBSCRIBERS = [object() for _ in range(3)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a/+", "a/#", "+/b"]),
            st.sampled_from(SUBSCRIBERS),
            st.integers(-1, 3),
        ),
        max_size=30,
    )
)
def test_one_subscriber_or_several_a_filter_has_those_that_a_dict_would(
    steps: list[tuple[str, object, int]],
) -> None:
    """-1: it leaves, and with the last one the filter goes."""
    trie = Trie()
    model: dict[str, dict[object, int]] = {}
    for topic_filter, subscriber, options in steps:
        here = model.setdefault(topic_filter, {})
        if options >= 0:
            trie.insert(topic_filter).put(subscriber, options)
            here[subscriber] = options
        elif subscriber in here:
            level = trie.get(topic_filter)
            assert level is not None
            del here[subscriber]
            assert level.take(subscriber) == (not here)
            if not here:
                trie.remove_at(level)
        for known, subscribers in model.items():
            level = trie.get(known)
            assert (level is None) == (not subscribers)
            if level is not None:
                assert level.subscribers == subscribers
                for each in SUBSCRIBERS:
                    assert level.options_of(each) == subscribers.get(each, -1)


def test_a_filter_above_or_below_another_survives_its_removal() -> None:
    trie = Trie()
    for topic_filter in ("a", "a/b", "a/b/c", "a/#"):
        trie.insert(topic_filter)
    assert trie.remove("a/b")
    assert not trie.remove("a/b")
    assert found(trie, "a/b/c") == ["a/#", "a/b/c"]
    assert trie.remove("a/b/c")
    assert found(trie, "a") == ["a", "a/#"]


def test_a_topic_of_65535_empty_levels_is_matched_without_recursion() -> None:
    """However deep a topic or filter, no stack is spent on it (CVE-2019-11779)."""
    deep = "/" * 65534
    trie = Trie()
    trie.insert(deep)
    trie.insert("/".join(["+"] * 60000) + "/#")
    assert len(trie.match(deep)) == 2
    assert trie.remove(deep)
    assert found(trie, deep) == ["/".join(["+"] * 60000) + "/#"]


def test_the_walk_is_bounded_by_the_filters_not_by_the_ways_through_them() -> None:
    """Filters with `+` in any place: 2 ** 128 ways to match, but each level is visited once."""
    chance = random.Random(1)
    trie = Trie()
    stored = {"/".join(chance.choice("a+") for _ in range(128)) for _ in range(500)}
    for topic_filter in stored:
        trie.insert(topic_filter)
    assert len(trie.match("/".join("a" * 128))) == len(stored)
    assert trie.match("/".join("a" * 127) + "/b") is not None
    for topic_filter in stored:
        trie.remove(topic_filter)
    assert is_empty(trie)
