"""Retained messages: what is kept, what a subscription finds, and what a slow one still gets."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.broker.retained.retainer import RetainedCursor, Retainer
from mqttd.broker.retained.tree import has_head
from mqttd.codec.reasons import PACKET_TOO_LARGE, QUOTA_EXCEEDED, SUCCESS

from .reference import filters, matches, topics


def drain(cursor: RetainedCursor, n: int = 7) -> list[object]:
    messages: list[object] = []
    while not cursor.done:
        page = cursor.next(n)
        assert len(page) <= n
        messages += page
    assert cursor.next(n) == []
    return messages


def is_empty(retainer: Retainer) -> bool:
    return (
        len(retainer) == 0
        and retainer.bytes == 0
        and retainer.held == 0
        and retainer.expiring == 0
        and retainer.root.first is None
        and retainer.root.children is None
        and retainer.root.cursors == 0
        and not any(retainer.words)
    )


@given(st.lists(topics, max_size=30), filters, st.integers(1, 5))
def test_a_filter_finds_exactly_the_messages_that_match(
    stored: list[str], topic_filter: str, n: int
) -> None:
    """Each once, with its latest message; pages of any size."""
    retainer = Retainer()
    for number, topic in enumerate(stored):
        assert retainer.store(topic, (topic, number), 1) == SUCCESS
    latest = {topic: (topic, number) for number, topic in enumerate(stored)}
    found = drain(retainer.match(topic_filter), n)
    expected = [message for topic, message in latest.items() if matches(topic_filter, topic)]
    assert sorted(found) == sorted(expected)  # type: ignore[type-var]


@given(st.lists(topics, max_size=30), filters, st.sampled_from(["a/", "a/b/", "$S/"]))
def test_below_a_mountpoint_as_in_a_tree_of_its_own(
    stored: list[str], topic_filter: str, place: str
) -> None:
    retainer = Retainer()
    for topic in stored:
        for name in (topic, place + topic):
            retainer.store(name, name, 1)
    mounted = topic_filter[0] in "+#"
    found = drain(retainer.match(place + topic_filter, 0, mounted))

    def own(names: Iterable[object]) -> list[str]:
        """As its clients know them: an empty name is none."""
        return sorted(
            str(name)[len(place) :]
            for name in names
            if str(name).startswith(place) and name != place
        )

    assert own(found) == [name for name in own(retainer.topics) if matches(topic_filter, name)]


STEPS = st.one_of(
    st.tuples(st.just("store"), topics, st.integers(0, 30)),
    st.tuples(st.just("delete"), topics, st.just(0)),
    st.tuples(st.just("next"), st.just(""), st.integers(1, 3)),
    st.tuples(st.just("expire"), st.just(""), st.integers(0, 5)),
)


@given(st.lists(topics, max_size=25), filters, st.lists(STEPS, max_size=40))
def test_a_cursor_misses_none_that_stays_and_doubles_none(
    stored: list[str], topic_filter: str, steps: list[tuple[str, str, int]]
) -> None:
    """Whatever is stored, deleted and expires between its pages."""
    retainer = Retainer()
    model: dict[str, tuple[str, int, int]] = {}
    number = 0
    now = 1
    for topic in stored:
        number += 1
        model[topic] = (topic, number, 0)
        retainer.store(topic, model[topic], 1)
    stayed = set(model.values())
    cursor = retainer.match(topic_filter, now)
    found: list[object] = []
    for step, topic, value in steps:
        if step == "store":
            number += 1
            expires_at = now + value if value else 0
            model[topic] = (topic, number, expires_at)
            assert retainer.store(topic, model[topic], 1, expires_at) == SUCCESS
        elif step == "delete":
            assert retainer.delete(topic) == (topic in model)
            model.pop(topic, None)
        elif step == "expire":
            now += value
            gone = [topic for topic, message in model.items() if 0 < message[2] <= now]
            assert retainer.expire(now) == len(gone)
            for topic in gone:
                del model[topic]
        else:
            page = cursor.next(value, now)
            assert all(message in model.values() for message in page)
            found += page
        stayed &= set(model.values())
        assert len(retainer) == retainer.bytes == len(model)
    found += drain(cursor)
    times = Counter(found)
    assert not times or max(times.values()) == 1
    assert {message for message in stayed if matches(topic_filter, message[0])} <= set(found)
    assert all(matches(topic_filter, message[0]) for message in times)  # type: ignore[index]
    for topic in list(model):
        assert retainer.get(topic) == model[topic]
        assert retainer.delete(topic)
    assert is_empty(retainer)


@given(
    st.lists(topics, max_size=25),
    filters,
    st.lists(STEPS, max_size=40),
    st.booleans(),
    st.sampled_from(["", "a/", "a/b/"]),
)
def test_a_cursor_knows_what_it_is_still_to_come_to(
    stored: list[str],
    topic_filter: str,
    steps: list[tuple[str, str, int]],
    bounded: bool,
    place: str,
) -> None:
    """Wherever it rests, whatever came and went; what was kept later than it counts is not."""
    retainer = Retainer()
    for topic in stored:
        for name in (topic, place + topic):
            retainer.store(name, name, 1)
    cursor = retainer.match(place + topic_filter, 0, place != "" and topic_filter[0] in "+#")
    if bounded:
        cursor.upto = retainer.stores
    for step, topic, value in steps:
        if step == "store":
            retainer.store(topic, topic, 1)
        elif step == "delete":
            retainer.delete(topic)
        elif step == "next":
            cursor.next(value)
    awaited = {topic for topic, level in retainer.topics.items() if cursor.awaits(topic, level)}
    assert awaited == set(drain(cursor))


def test_a_message_takes_the_place_of_the_one_before() -> None:
    retainer = Retainer()
    retainer.store("a/b", "old", 10)
    retainer.store("a/b", "new", 3)
    assert retainer.get("a/b") == "new"
    assert (len(retainer), retainer.bytes) == (1, 3)
    assert retainer.get("a") is None
    assert retainer.delete("a/b")
    assert not retainer.delete("a/b")
    assert is_empty(retainer)


def test_each_limit_refuses_and_leaves_the_earlier_message() -> None:
    topics = Retainer()
    for topic in "ab":
        topics.store(topic, topic, 0)
    retainer = Retainer(max_messages=2, max_bytes=topics.held + 10, max_payload=8)
    assert retainer.store("a", "9 bytes", 9) == PACKET_TOO_LARGE
    assert retainer.store("a", "a", 8) == SUCCESS
    assert retainer.store("b", "b", 3) == QUOTA_EXCEEDED
    assert retainer.store("b", "b", 2) == SUCCESS
    assert retainer.store("c", "c", 0) == QUOTA_EXCEEDED
    assert retainer.store("b", "more", 3) == QUOTA_EXCEEDED
    assert retainer.get("b") == "b"
    assert retainer.store("a", "less", 1) == SUCCESS
    assert retainer.store("b", "more", 8) == SUCCESS
    assert (len(retainer), retainer.bytes) == (2, 9)


def test_a_topic_that_has_nothing_is_not_looked_for_again() -> None:
    retainer = Retainer()
    retainer.store("a/b", "here", 1)
    assert retainer.match("a/c").done
    assert retainer.match("a").done  # a level that only leads to others
    assert drain(retainer.match("a/b")) == ["here"]


@given(st.lists(st.tuples(topics, st.integers(0, 400)), max_size=12), st.integers(1, 6000))
def test_what_is_kept_is_what_fits_to_the_byte(stored: list[tuple[str, int]], most: int) -> None:
    retainer = Retainer(max_bytes=most)
    unlimited = Retainer()
    for topic, size in stored:
        before = unlimited.get(topic)
        weighs = unlimited.bytes + unlimited.held
        unlimited.store(topic, size, size)
        code = retainer.store(topic, size, size)
        after = unlimited.bytes + unlimited.held
        assert (code == QUOTA_EXCEEDED) == (weighs < after > most)
        if code != SUCCESS:  # both as they were
            unlimited.delete(topic)
            if isinstance(before, int):
                unlimited.store(topic, before, before)
        assert retainer.bytes + retainer.held == unlimited.bytes + unlimited.held


@given(topics | st.text("/é", min_size=1, max_size=40), st.integers(0, 20_000))
def test_what_a_topic_costs_is_reckoned_only_where_it_decides(topic: str, most: int) -> None:
    twin, retainer = Retainer(), Retainer()
    twin.store(topic, b"", 0)
    assert retainer.costs_more(topic, most) is (twin.held > most)


def test_expired_messages_are_not_found_and_then_forgotten() -> None:
    retainer = Retainer()
    retainer.store("a/1", "soon", 1, 10)
    retainer.store("a/2", "later", 1, 20)
    retainer.store("a/3", "never", 1)
    assert retainer.get("a/1", 9) == "soon"
    assert retainer.get("a/1", 10) is None
    assert sorted(map(str, drain(retainer.match("a/+", 10)))) == ["later", "never"]
    assert retainer.expire(9) == 0
    assert retainer.expire(10) == 1
    assert len(retainer) == 2
    assert retainer.expire(100) == 1
    assert retainer.expire(100) == 0
    assert retainer.get("a/3") == "never"


def test_a_replaced_message_lives_by_its_own_expiry() -> None:
    retainer = Retainer()
    retainer.store("a", "short", 1, 10)
    retainer.store("a", "long", 1, 30)
    assert retainer.expire(20) == 0
    assert retainer.get("a", 20) == "long"
    retainer.store("a", "for ever", 1)
    assert retainer.expire(100) == 0
    assert retainer.get("a", 100) == "for ever"


def test_one_turn_of_expiry_is_bounded() -> None:
    retainer = Retainer()
    for number in range(100):
        retainer.store(f"a/{number}", number, 1, 5)
    assert not retainer.is_due(4) and retainer.is_due(5)
    # A message costs as much as its topic has levels.
    assert [retainer.expire(5, 80) for _ in range(4)] == [40, 40, 20, 0]
    assert is_empty(retainer) and not retainer.is_due(5)


def test_storing_a_topic_over_and_over_leaves_no_deadlines_behind() -> None:
    retainer = Retainer()
    for number in range(20_000):
        retainer.store("a", number, 1, 1_000_000 - number)
        retainer.store(f"b/{number}", number, 1, 1_000_000)
        retainer.delete(f"b/{number}")
    assert len(retainer.deadlines) <= 2000
    assert retainer.expire(1_000_000) == 1
    assert is_empty(retainer)


def test_a_cursor_ends_though_topics_are_added_faster_than_it_reads() -> None:
    retainer = Retainer()
    for number in range(100):
        retainer.store(f"a/{number}", number, 1)
    cursor = retainer.match("a/#")
    found: list[object] = []
    while not cursor.done:
        found += cursor.next(1)
        for _ in range(3):
            number += 1
            retainer.store(f"a/{number}", number, 1)
        assert number < 1000
    assert set(range(100)) <= set(found)
    assert len(found) == len(set(found))


def test_the_level_under_a_cursor_goes_when_the_cursor_does() -> None:
    retainer = Retainer()
    for topic in ("a/b/c", "a/b/d", "x"):
        retainer.store(topic, topic, 1)
    given_up = retainer.match("a/#")
    given_up.next(1)
    waiting = retainer.match("a/b/+")
    waiting.next(1)
    unread = retainer.match("#")
    for topic in ("a/b/c", "a/b/d", "x"):
        retainer.delete(topic)
    assert retainer.root.first is not None
    given_up.close()
    given_up.close()
    assert given_up.next(5) == []
    assert drain(waiting) == []
    unread.close()
    assert is_empty(retainer)


def test_a_slow_reader_gets_all_of_100000_messages() -> None:
    """A page whenever there is room; the broker serves others meanwhile."""
    retainer = Retainer()
    for number in range(100_000):
        retainer.store(f"plant/{number % 1000}/sensor/{number}", number, 1)
    cursor = retainer.match("plant/+/sensor/#")
    found: list[object] = []
    turns = 0
    while not cursor.done:
        found += cursor.next(100)
        turns += 1
        retainer.store(f"plant/{turns % 1000}/other/{turns}", -1, 1)
        retainer.delete(f"plant/{(turns - 3) % 1000}/other/{turns - 3}")
    assert sorted(found) == list(range(100_000))  # type: ignore[type-var]


@given(st.lists(topics, max_size=6), filters)
def test_a_first_word_that_no_topic_has_says_that_nothing_matches(
    stored: list[str], topic_filter: str
) -> None:
    retainer = Retainer()
    for topic in stored:
        retainer.store(topic, topic, 0)
    head = topic_filter.split("/")[0]
    known = {topic.split("/")[0] for topic in stored}
    found = has_head(retainer.words, topic_filter)
    assert found is (bool(known) and (head in ("+", "#") or head in known))
    assert found or drain(retainer.match(topic_filter)) == []


def test_one_call_visits_a_bounded_number_of_levels() -> None:
    """A filter that fits many first words and hardly a topic holds nobody up."""
    retainer = Retainer()
    for number in range(20_000):
        retainer.store(f"a/{number}/x", number, 1)
    retainer.store("b/0/y", "y", 1)
    cursor = retainer.match("+/+/y")
    calls = 0
    found: list[object] = []
    while not cursor.done:
        found += cursor.next(10)
        calls += 1
    assert found == ["y"]
    assert calls > 5


def test_a_word_that_occurs_nowhere_ends_the_search_before_it_begins() -> None:
    retainer = Retainer()
    for number in range(1000):
        retainer.store(f"a/{number}/x", number, 1)
    for topic_filter in ("a/+/nope", "+/+/nope/#", "nope/#", "+/x/#", "+/+/+/+"):
        assert retainer.match(topic_filter).done
    for topic_filter in ("a/+/x", "+/+/x/#", "a/#", "+/7/#"):
        cursor = retainer.match(topic_filter)
        assert not cursor.done
        cursor.close()


@pytest.mark.parametrize("topic_filter", ["#", "+/#", "+/+", "+"])
def test_wildcards_do_not_find_dollar_topics(topic_filter: str) -> None:
    """[MQTT-4.7.2-1]"""
    retainer = Retainer()
    for topic in ("$SYS/uptime", "$SYS", "$x"):
        retainer.store(topic, topic, 1)
    assert drain(retainer.match(topic_filter)) == []
    assert sorted(map(str, drain(retainer.match("$SYS/#")))) == ["$SYS", "$SYS/uptime"]
    assert drain(retainer.match("$SYS/+")) == ["$SYS/uptime"]
    assert drain(retainer.match("$x")) == ["$x"]


def test_a_deep_topic_spends_no_stack() -> None:
    retainer = Retainer()
    deep = "/" * 65534
    retainer.store(deep, "deep", 1)
    assert drain(retainer.match("#")) == ["deep"]
    assert drain(retainer.match("+/" * 60_000 + "#")) == ["deep"]
    assert retainer.delete(deep)
    assert is_empty(retainer)


@pytest.mark.slow
def test_a_large_tree_can_be_thrown_away() -> None:
    """The levels are chained to each other: freeing them must not recurse."""
    retainer = Retainer()
    chance = random.Random(3)
    for number in range(200_000):
        retainer.store(f"a/{chance.random()}", number, 1)
    cursor = retainer.match("a/+")
    cursor.next(10)
    del retainer, cursor
