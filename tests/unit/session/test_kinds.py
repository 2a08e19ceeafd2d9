"""The filter of a kind that matches a topic, beside a match of each filter."""

from __future__ import annotations

import random

import pytest

from mqttd.codec.topic import match
from mqttd.session.kinds import Kind, kind_of


@pytest.mark.parametrize(
    ("topic_filter", "kind"),
    [("a", ""), ("a/b", ""), ("#", "#"), ("+", "+"), ("a/+/c/#", "/+//#"), ("/+", "/+")],
)
def test_a_kind_is_where_the_wildcards_are(topic_filter: str, kind: str) -> None:
    assert kind_of(topic_filter) == kind


def test_a_kind_finds_the_filter_that_matches() -> None:
    chance = random.Random(1)
    for _ in range(5000):
        topic = "/".join(chance.choices(("a", "b", ""), k=chance.randrange(1, 5)))
        words = chance.choices(("a", "b", "", "+", "+"), k=chance.randrange(0, 5))
        words += ["#"] if not words or chance.random() < 0.4 else []
        topic_filter = "/".join(words)
        if topic_filter and topic and kind_of(topic_filter):
            found = Kind(kind_of(topic_filter)).filter_of(topic.split("/"))
            assert (found == topic_filter) == match(topic, topic_filter)
