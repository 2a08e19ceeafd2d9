"""The specification's matching rules in the fewest words: what the tries are held to."""

from __future__ import annotations

from hypothesis import strategies as st


def matches(topic_filter: str, topic: str) -> bool:
    """MQTT 5.0, 4.7: wildcards, and the rule for topics that begin with `$`."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    return _fits(topic_filter.split("/"), topic.split("/"))


def _fits(words: list[str], topic: list[str]) -> bool:
    if not words or words[0] == "#":
        return bool(words) or not topic
    return bool(topic) and words[0] in ("+", topic[0]) and _fits(words[1:], topic[1:])


WORDS = st.sampled_from(["", "a", "b", "c", "$S", "$"])

#: Topic names out of few words, so that they often meet the filters.
topics = st.lists(WORDS, min_size=1, max_size=5).map("/".join).filter(bool)


@st.composite
def _filters(draw: st.DrawFn) -> str:
    words = draw(st.lists(st.one_of(WORDS, st.just("+")), min_size=0, max_size=5))
    if not words or draw(st.booleans()):
        words = [*words, draw(st.sampled_from(["#", "a", "+"]))]
    return "/".join(words)


filters = _filters().filter(bool)
