"""Rows become rules of acl.conf: each topic is one topic of one rule, whatever is in it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.access.acl.conf import (
    parse_acl,
)
from mqttd.access.acl.terms import (
    All,
    And,
    Client,
    IpAddr,
    Topic,
    User,
)
from mqttd.plugins.backends.rules import MOST_RULES, acl_text, is_superuser


def rule(**row: Any) -> Any:
    (parsed,) = parse_acl(acl_text([row]))
    return parsed


def test_a_row_is_a_rule() -> None:
    made = rule(permission="deny", action="publish", topic="a/%u/#", qos="0,1", retain=True)
    assert (made.allow, made.who, made.kinds) == (False, All(), frozenset({"publish"}))
    assert made.topics == (Topic("a/%u/#"),)
    assert (made.qos, made.retain) == (frozenset({0, 1}), True)


@pytest.mark.parametrize(
    ("access", "kinds"), [(1, {"subscribe"}), (2, {"publish"}), (3, {"subscribe", "publish"})]
)
def test_the_columns_of_older_tables_do_as_well(access: int, kinds: set[str]) -> None:
    made = rule(allow=1, ipaddr="10.0.0.0/8", username="u", clientid=None, access=access, topic="t")
    assert made.allow and made.kinds == kinds
    assert isinstance(made.who, And)
    assert [type(part) for part in made.who.parts] == [IpAddr, User]
    assert rule(allow=0, username="$all", access="3", topic="#").who == All()
    assert rule(allow=1, clientid='c"},all', topic="#").who == And((Client('c"},all'),))


@given(st.text(min_size=1))
def test_a_topic_is_one_topic_of_one_rule(topic: str) -> None:
    try:
        text = acl_text([{"permission": "allow", "action": "all", "topic": topic}])
    except ValueError:
        return
    (parsed,) = parse_acl(text)
    assert parsed.allow and parsed.qos is None
    expected = topic.replace("${username}", "%u").replace("${clientid}", "%c")
    if topic.startswith("eq "):
        assert parsed.topics == (Topic(topic[3:], eq=True),)
    else:
        assert parsed.topics == (Topic(expected),)


@pytest.mark.parametrize(
    "topic",
    ['a"]}. {allow, all}. {allow, all, all, ["b', "a\\", 'a\\"', "a\nb", "\u2028", "%", "]"],
)
def test_quotes_and_ends_of_rules_are_part_of_the_topic(topic: str) -> None:
    assert rule(permission="allow", topic=topic).topics == (Topic(topic),)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"permission": "allow"},
        {"permission": "allow", "topic": ""},
        {"permission": "allow", "topic": []},
        {"permission": "allow", "topic": "a/#/b"},
        {"permission": "allow", "topic": "a\0"},
        {"permission": "allow", "topic": "${password}"},
        {"permission": "allow", "topic": "$share/g/a"},
        {"permission": "yes", "topic": "a"},
        {"permission": "allow", "action": "write", "topic": "a"},
        {"permission": "allow", "topic": "a", "qos": 3},
        {"permission": "allow", "topic": "a", "qos": []},
        {"permission": "allow", "topic": "a", "retain": "maybe"},
        {"permission": "allow", "action": "subscribe", "topic": "a", "retain": True},
        {"permission": "allow", "topic": "a", "until": "tomorrow"},
        "allow",
    ],
)
def test_what_is_not_understood_is_an_error(row: Any) -> None:
    with pytest.raises(ValueError, match="^rule 2: "):
        acl_text([{"permission": "allow", "topic": "a"}, row])


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"permission": "yes"}, "permission = 'yes': expected"),
        ({"action": "write"}, "action = 'write': expected"),
        ({"qos": "0,3"}, "qos = '0,3': expected"),
        ({"retain": "maybe"}, "retain = 'maybe': expected"),
        ({"topic": "a/#/b"}, "topic = 'a/#/b': "),
        ({"topic": "${password}"}, "topic = '${password}': expected"),
        ({"action": "w" * 1000}, "action = '" + "w" * 79 + ": expected"),
    ],
)
def test_an_error_shows_what_was_there(row: Any, text: str) -> None:
    with pytest.raises(ValueError, match="^rule 1: " + re.escape(text)):
        acl_text([{"permission": "allow", "topic": "a", **row}])


def test_there_is_an_end_to_rules() -> None:
    row = {"permission": "allow", "topic": "a"}
    assert len(parse_acl(acl_text([row] * MOST_RULES))) == MOST_RULES
    with pytest.raises(ValueError, match="more than"):
        acl_text([row] * (MOST_RULES + 1))


def test_only_a_plain_yes_makes_a_superuser() -> None:
    for yes in (True, 1, "1", b"1", "true", "t", "True"):
        assert is_superuser(yes), yes
    for no in (None, False, 0, "0", "", "false", "f", "no", "yes?", [], {"a": 1}, 2, -1):
        assert not is_superuser(no), no
