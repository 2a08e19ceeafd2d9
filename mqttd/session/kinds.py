"""Filters by where their wildcards are: those of one kind that match a topic are looked up as one.

    "a/+/c/#"  --its words left out-->  kind "/+//#"
    "a/x/c/d"  --the kind's wildcards put in-->  "a/+/c/#", if any of them matches it

Promise: to find the filter of a kind costs as much as the filter is long, however many there are.
MQTT 5.0, 4.7.1.
"""

from __future__ import annotations

__all__ = ["Kind", "kind_of"]


class Kind:
    """Where the wildcards of some filters are.

    filters: how many are waited for; since: the number of the last replay of one that has begun.
    """

    __slots__ = ("filters", "key", "rest", "since", "singles")

    def __init__(self, key: str) -> None:
        self.key: str = key
        words = key.split("/")
        self.rest: bool = words[-1] == "#"
        if self.rest:
            words.pop()
        self.singles: list[bool] = [word == "+" for word in words]
        self.filters: int = 0
        self.since: int = 0

    def filter_of(self, levels: list[str]) -> str:
        """The one filter of this kind that a topic of these levels may match; "": there is none."""
        singles = self.singles
        count = len(singles)
        if len(levels) < count or (len(levels) > count and not self.rest):
            return ""
        words = ["+" if singles[at] else levels[at] for at in range(count)]
        if self.rest:
            words.append("#")
        return "/".join(words)


def kind_of(topic_filter: str) -> str:
    """The key of a filter's kind: without its words; "" where it has no wildcard."""
    if "+" not in topic_filter and not topic_filter.endswith("#"):
        return ""
    words = topic_filter.split("/")
    for at in range(len(words)):
        word = words[at]
        if word != "+" and word != "#":
            words[at] = ""
    return "/".join(words)
