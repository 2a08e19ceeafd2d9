"""Topic names and filters against a reference of three lines."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.codec.reasons import TopicFilterInvalid, TopicNameInvalid
from mqttd.codec.topic import (
    is_shared,
    match,
    overlap,
    split_shared,
    validate_topic_filter,
    validate_topic_name,
    words,
)
from tests.cases.packets import BAD_FILTERS, GOOD_FILTERS

few_levels = st.lists(st.sampled_from(["", "a", "b", "$x", "é"]), min_size=1, max_size=5)
few_patterns = st.lists(st.sampled_from(["", "a", "b", "$x", "é", "+"]), max_size=5)


def reference(name: list[str], pattern: list[str]) -> bool:
    if not name or not pattern or pattern[0] == "#":
        return name == pattern or pattern[:1] == ["#"]
    return pattern[0] in ("+", name[0]) and reference(name[1:], pattern[1:])


def reference_match(name: str, pattern: str) -> bool:
    hidden = name[:1] == "$" and pattern[:1] in ("+", "#")
    return not hidden and reference(name.split("/"), pattern.split("/"))


@given(few_levels, few_patterns, st.booleans())
def test_match_agrees_with_the_reference(
    name_levels: list[str], filter_levels: list[str], open_ended: bool
) -> None:
    name = "/".join(name_levels)
    pattern = "/".join(filter_levels + (["#"] if open_ended else []))
    if name and pattern:
        assert match(name, pattern) == reference_match(name, pattern)


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("sport/tennis/player1", "sport/tennis/player1/#", True),
        ("sport/tennis/player1/ranking", "sport/tennis/player1/#", True),
        ("sport", "sport/#", True),
        ("sports", "sport/#", False),
        ("sport/tennis/player1", "sport/tennis/+", True),
        ("sport/tennis/player1/ranking", "sport/tennis/+", False),
        ("sport", "sport/+", False),
        ("sport/", "sport/+", True),
        ("/finance", "+/+", True),
        ("/finance", "/+", True),
        ("/finance", "+", False),
        ("$SYS/monitor/Clients", "#", False),
        ("$SYS/monitor/Clients", "+/monitor/Clients", False),
        ("$SYS/monitor/Clients", "$SYS/#", True),
        ("$SYS/monitor/Clients", "$SYS/monitor/+", True),
        ("a/$SYS", "a/+", True),
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
        ("a//b", "a/+/b", True),
        ("a//b", "a/b", False),
        ("/", "#", True),
        ("/", "+/+", True),
        ("a/b/c", "a/#", True),
        ("a", "a/b/#", False),
    ],
)
def test_match_does_what_the_standard_shows(name: str, pattern: str, expected: bool) -> None:
    """The examples of 4.7.1 and 4.7.2."""
    assert match(name, pattern) is expected


def test_words_are_the_levels() -> None:
    assert words("a/+//#") == ["a", "+", "", "#"]
    assert words("") == [""]


@pytest.mark.parametrize("topic_filter", GOOD_FILTERS)
def test_a_good_filter_is_taken(topic_filter: str) -> None:
    validate_topic_filter(topic_filter)


@pytest.mark.parametrize("topic_filter", [*BAD_FILTERS, "a\0", "\0", "é" * 32768])
def test_a_bad_filter_is_refused(topic_filter: str) -> None:
    with pytest.raises(TopicFilterInvalid) as raised:
        validate_topic_filter(topic_filter)
    assert raised.value.reason_code == 0x8F


@pytest.mark.parametrize("topic", ["a", "/", "//", " ", "$SYS/x", "\ufeffa", "t" * 65535])
def test_a_good_name_is_taken(topic: str) -> None:
    validate_topic_name(topic)


@pytest.mark.parametrize("topic", ["", "+", "a/#", "a+b", "a\0", "t" * 65536, "é" * 32768])
def test_a_bad_name_is_refused(topic: str) -> None:
    with pytest.raises(TopicNameInvalid) as raised:
        validate_topic_name(topic)
    assert raised.value.reason_code == 0x90


def test_levels_are_limited() -> None:
    deepest = "/".join(["x"] * 256)
    validate_topic_name(deepest)
    validate_topic_filter(deepest)
    validate_topic_filter("$share/g/" + deepest)
    with pytest.raises(TopicNameInvalid):
        validate_topic_name(deepest + "/x")
    with pytest.raises(TopicFilterInvalid):
        validate_topic_filter(deepest + "/x")
    validate_topic_name(deepest + "/x", 257)
    validate_topic_filter("/" * 65535, 0)
    with pytest.raises(TopicFilterInvalid):
        validate_topic_filter("a/b", 1)


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("a/b", (None, "a/b")),
        ("$SYS/#", (None, "$SYS/#")),
        ("$share", (None, "$share")),
        ("$queue", (None, "$queue")),
        ("$shared/g/a", (None, "$shared/g/a")),
        ("$share/g/a", ("g", "a")),
        ("$share/g//", ("g", "/")),
        ("$share/g/$SYS/#", ("g", "$SYS/#")),
        ("$share/g/+/#", ("g", "+/#")),
        ("$queue/a/b", ("$queue", "a/b")),
        ("$queue//", ("$queue", "/")),
    ],
)
def test_a_share_is_split(topic_filter: str, expected: tuple[str | None, str]) -> None:
    assert split_shared(topic_filter) == expected
    assert is_shared(topic_filter) == (expected[0] is not None)


@pytest.mark.parametrize(
    "topic_filter",
    ["$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/a#/b", "$queue/"],
)
def test_a_bad_share_is_refused(topic_filter: str) -> None:
    with pytest.raises(TopicFilterInvalid):
        split_shared(topic_filter)


def test_the_longest_topics_are_matched() -> None:
    """65,535 bytes of levels, wildcards in all of them; nothing recurses."""
    name = "/" * 65535
    assert match(name, "+/" * 65535 + "+")
    assert match(name, "/" * 65534 + "#")
    assert not match(name, "+/" * 65535 + "a")


#: Names of up to three levels, some of which any two of these filters share if they share one.
NAMES = [
    "/".join(levels) for n in (1, 2, 3) for levels in product(["", "a", "b", "$x", "c"], repeat=n)
]


@st.composite
def short_filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from(["", "a", "b", "$x", "+"]), min_size=1, max_size=2))
    return "/".join([*levels, *draw(st.sampled_from([[], ["#"]]))])


@given(
    topic_filter=st.one_of(short_filters(), st.just("#")),
    other=st.one_of(short_filters(), st.just("#")),
)
def test_filters_overlap_if_a_topic_goes_to_both(topic_filter: str, other: str) -> None:
    both = [name for name in NAMES if match(name, topic_filter) and match(name, other)]
    assert overlap(topic_filter, other) == bool(both)
    assert overlap(other, topic_filter) == bool(both)
